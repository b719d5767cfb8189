"""A batch: commands applied in memory in the order of arrival, their changes in one open transaction, their answers.

When something fails before the commit, the transaction is rolled back, memory goes back to what is on disk, and the
batch is applied again without the commands that cannot go on: the one that raised, or, on a full disk where shortening
the log did not help, those that need room. So an error in one command fails that one alone.
"""

import logging
from collections import deque

import apsw

from veilmq.core.commands import Command, CreateQueue, Send
from veilmq.core.errors import InternalError, StoreFull, VeilmqError
from veilmq.core.forwards import Forward
from veilmq.core.limits import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX
from veilmq.core.ports import Done
from veilmq.core.publications import Publish, Stage
from veilmq.core.topics import CreateTopic, PublishToTopic, Subscribe
from veilmq.engines.embedded.claims import ClaimStep
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.machine import Machine
from veilmq.engines.embedded.moves import MoveStep
from veilmq.engines.embedded.publications import PublicationStep

log = logging.getLogger(__name__)

Entry = tuple[Command, Done]

_OF_TOPICS = (CreateTopic, Subscribe, PublishToTopic)
_NEED_ROOM = (Send, Forward, Stage, Publish, CreateQueue, *_OF_TOPICS, PublicationStep, ClaimStep, MoveStep)
_NOBODYS_FAULT = (apsw.BusyError, apsw.IOError)


class Batch:
    """The commands of one transaction, and what they are to hear; used again for the next one."""

    __slots__ = ("_answers", "_careful", "_entries", "_journal", "_machine", "_refused", "_woken", "applying")

    def __init__(self, *, machine: Machine, journal: Journal) -> None:
        """Begin empty."""
        self._machine = machine
        self._journal = journal
        self._entries: list[Entry] = []
        self._answers: list[object] = []
        self._refused: list[tuple[Done, object]] = []
        self._woken: deque[Entry] = deque()
        self._careful = False  # a batch failed as a whole: find the command that is at fault
        self.applying = False

    def insert(self, entry: Entry) -> None:
        """Have a command that a watch submits, while the batch is applied, applied next."""
        self._woken.append(entry)

    def run(self, entries: deque[Entry], now_ms: int, ahead_ms: int = 0) -> bool:
        """Apply ``entries``, leaving those beyond a batch's size; tell whether there is anything to commit.

        Users see ``now_ms`` as ``ahead_ms`` more.
        """
        self._machine.shown.ahead_ms = ahead_ms
        while True:
            self._entries, self._answers = [], []
            self._journal.batch_bytes = 0
            self._machine.events.now_ms = now_ms
            self.applying = True
            try:
                self._apply(entries, now_ms)
                if self._machine.events.staged:
                    self._machine.events.write(ahead_ms)
                return self._journal.finish(now_ms)
            except Exception as error:
                if not self._entries:
                    raise  # nobody is at fault, and another try would end the same way
                entries.extendleft(reversed(self.roll_back(error)))
            finally:
                self.applying = False

    def _apply(self, entries: deque[Entry], now_ms: int) -> None:
        handlers, journal, woken = self._machine.handlers, self._journal, self._woken
        applied, answers = self._entries, self._answers
        while entries and len(applied) < BATCH_COMMANDS_MAX and journal.batch_bytes < BATCH_BYTES_MAX:
            entry = entries.popleft()
            applied.append(entry)
            command = entry[0]
            try:
                answer = handlers[type(command)](command, now_ms)
            except VeilmqError as error:
                answer = error
            if self._careful:
                journal.flush()
            answers.append(answer)
            while woken:
                entries.appendleft(woken.pop())

    def roll_back(self, error: Exception) -> list[Entry]:
        """Undo the batch and refuse those that cannot go on; return the others, to be applied again."""
        self._journal.roll_back()
        self._machine.reload()
        blamed, reason = self._blame(error)
        self._refused += [(done, reason) for _, done in blamed]
        gone = {id(entry) for entry in blamed}
        others = [entry for entry in (*self._entries, *self._woken) if id(entry) not in gone]
        self._woken.clear()
        return others

    def _blame(self, error: Exception) -> tuple[list[Entry], VeilmqError]:
        if isinstance(error, apsw.FullError):
            if self._journal.shorten_log():
                return [], StoreFull()  # there is room again: once more with everyone
            is_news = not self._machine.space.is_short
            self._machine.space.run_out()
            log.warning("the disk is full: refusing the sends of a batch of %d commands", len(self._entries))
            needy = [entry for entry in self._entries if isinstance(entry[0], _NEED_ROOM)]
            if not needy and is_news:
                return [], StoreFull()  # once more with everyone, now that no receive moves dead letters
            return needy or self._entries, StoreFull()
        alone = len(self._answers) < len(self._entries)
        if not alone and not self._careful and not isinstance(error, _NOBODYS_FAULT):
            self._careful = True
            return [], InternalError()  # once more, with the rows of each command written by themselves
        log.error("a command failed and changed nothing", exc_info=error)
        return self._entries[-1:] if alone else self._entries, InternalError()

    def deliver(self) -> None:
        """Tell everyone; the batch is durable."""
        refused, self._refused = self._refused, []
        self._careful = False
        results = self._answers
        if self._machine.shown.ahead_ms:
            results = [self._machine.shown(answer) for answer in results]
        answers = [(done, answer) for (_, done), answer in zip(self._entries, results, strict=True)]
        for done, answer in answers + refused:
            try:
                done(answer)
            except Exception:
                log.exception("an answer could not be delivered")

    def fail(self, error: VeilmqError) -> None:
        """Tell everyone that nobody knows."""
        self._entries += self._woken
        self._woken.clear()
        self._answers = [error] * len(self._entries)
        self.deliver()

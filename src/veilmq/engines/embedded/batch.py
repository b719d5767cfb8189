"""A batch: commands applied in memory in the order of arrival, their changes in one open transaction, their answers.

When something fails before the commit, the transaction is rolled back, memory goes back to what is on disk, and the
batch is applied again, twice at most. A defect: the commands are applied one by one, each in a savepoint, so that an
error in one fails that one alone. A full disk: the batch is applied as it was if moving the log made room, then without
the commands that need room; what still fails is refused. Commands that arrive meanwhile wait for the next batch, so
they cannot keep this one from its end.
"""

import logging
from collections import deque
from collections.abc import Iterator
from itertools import chain
from math import inf
from operator import itemgetter

import apsw

from veilmq.core.commands import Command, CreateQueue, Send
from veilmq.core.errors import InternalError, StoreFull, VeilmqError
from veilmq.core.forwards import Forward
from veilmq.core.limits import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX
from veilmq.core.ports import Done
from veilmq.core.publications import Publish, Stage
from veilmq.core.topics import CreateTopic, PublishToTopic, Subscribe
from veilmq.engines.clock import stopwatch_s
from veilmq.engines.embedded.claims import ClaimStep
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.machine import Machine
from veilmq.engines.embedded.moves import MoveStep
from veilmq.engines.embedded.publications import PublicationStep

log = logging.getLogger(__name__)

Entry = tuple[Command, Done]

_OF_TOPICS = (CreateTopic, Subscribe, PublishToTopic)
_NEED_ROOM = (Send, Forward, Stage, Publish, CreateQueue, *_OF_TOPICS, PublicationStep, ClaimStep, MoveStep)
_NO_COMMANDS_FAULT = (apsw.BusyError, apsw.IOError)
_REPEATS_MAX = 2


class Batch:
    """The commands of one transaction, and what they are to hear; used again for the next one."""

    __slots__ = (
        "_again",
        "_answers",
        "_entries",
        "_journal",
        "_machine",
        "_one_by_one",
        "_outcomes",
        "_refused",
        "_tries",
        "_woken",
        "applying",
    )

    def __init__(self, *, machine: Machine, journal: Journal) -> None:
        """Begin empty."""
        self._machine = machine
        self._journal = journal
        self._entries: list[Entry] = []
        self._answers: list[object] = []
        self._refused: list[tuple[Done, object]] = []
        self._outcomes: Iterator[tuple[Done, object]] | None = None  # what is still to be delivered
        self._woken: deque[Entry] = deque()
        self._again: deque[Entry] = deque()  # what is left of a batch that failed
        self._tries = 0  # of this batch that failed
        self._one_by_one = False
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
            source = self._again if self._tries else entries
            self._entries, self._answers = [], []
            if self._tries and not source:
                return False  # all were refused; what loading staged goes with the next batch
            self._journal.batch_bytes = 0
            self._machine.events.now_ms = now_ms
            self.applying = True
            try:
                self._apply(source, now_ms)
                changed = self._finish(now_ms)
            except Exception as error:
                if not self._entries:
                    raise  # no command is at fault, and another try would end the same way
                self.roll_back(error)
            else:
                entries.extendleft(reversed(self._again))
                self._again.clear()
                return changed
            finally:
                self.applying = False

    def _apply(self, entries: deque[Entry], now_ms: int) -> None:
        handlers, journal, woken = self._machine.handlers, self._journal, self._woken
        applied, answers = self._entries, self._answers
        full_at = BATCH_BYTES_MAX // 2
        while entries and len(applied) < BATCH_COMMANDS_MAX:
            if journal.batch_bytes >= full_at:
                if journal.batch_bytes >= BATCH_BYTES_MAX:
                    return
                full_at = BATCH_BYTES_MAX
                _let_others_pass(applied[-1][0], entries)
            entry = entries.popleft()
            applied.append(entry)
            command = entry[0]
            if self._one_by_one:
                answer = self._apply_alone(command, now_ms)
            else:
                try:
                    answer = handlers[type(command)](command, now_ms)
                except VeilmqError as error:
                    answer = error
            answers.append(answer)
            while woken:
                entries.appendleft(woken.pop())

    def _apply_alone(self, command: Command, now_ms: int) -> object:
        """Apply and write one command; undo that one alone if it fails."""
        self._journal.begin_savepoint()
        try:
            answer = self._answer(command, now_ms)
            self._finish(now_ms)
            self._journal.release_savepoint()
        except _NO_COMMANDS_FAULT:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this command's
            return self._undo(error, now_ms)
        return answer

    def _answer(self, command: Command, now_ms: int) -> object:
        try:
            return self._machine.handlers[type(command)](command, now_ms)
        except VeilmqError as error:
            return error

    def _finish(self, now_ms: int) -> bool:
        if self._machine.events.staged:
            self._machine.events.write(self._machine.shown.ahead_ms)
        return self._journal.finish(now_ms)

    def _undo(self, error: Exception, now_ms: int) -> VeilmqError:
        if not self._journal.roll_back_to_savepoint():
            raise error  # the transaction is gone, and with it the commands before
        self._machine.reload()
        self._machine.events.now_ms = now_ms
        if isinstance(error, apsw.FullError):
            self._machine.space.run_out()
            return StoreFull()
        log.error("a command failed and changed nothing", exc_info=error)
        return InternalError()

    def roll_back(self, error: Exception) -> None:
        """Undo the batch and refuse the commands that cannot go on; ``run`` applies the others again."""
        self._journal.roll_back()
        entries = [*self._entries, *self._woken, *self._again]
        self._woken.clear()
        self._tries += 1
        refused, reason = self._blame(entries, error)
        self._machine.reload()
        self._refused += [(done, reason) for _, done in refused]
        gone = {id(entry) for entry in refused}
        self._again = deque(entry for entry in entries if id(entry) not in gone)

    def _blame(self, entries: list[Entry], error: Exception) -> tuple[list[Entry], VeilmqError]:
        if isinstance(error, apsw.FullError):
            if self._tries == 1 and self._journal.shorten_log():
                return [], StoreFull()  # there is room again: once more with everyone
            is_news = not self._machine.space.is_short
            self._machine.space.run_out()
            needy = [entry for entry in entries if isinstance(entry[0], _NEED_ROOM)]
            if self._tries <= _REPEATS_MAX and (needy or is_news or self._tries == 1):
                self._one_by_one = self.applying  # else it was the commit, which no command makes alone
                return needy, StoreFull()  # without sends, and with no receive that moves dead letters
            return entries, StoreFull()
        if self._tries <= _REPEATS_MAX and not self._one_by_one and not isinstance(error, _NO_COMMANDS_FAULT):
            self._one_by_one = True
            return [], InternalError()
        log.error("a batch of %d commands failed and changed nothing", len(entries), exc_info=error)
        return entries, InternalError()

    def deliver(self, until_s: float = inf) -> bool:
        """Call each ``done``: the batch is durable. Return ``False`` to be called again, if ``until_s`` ended that.

        ``until_s`` is an instant of ``stopwatch_s``.
        """
        if self._outcomes is None:
            results = self._answers
            if self._machine.shown.ahead_ms:
                results = [self._machine.shown(answer) for answer in results]
            asked = zip(map(itemgetter(1), self._entries), results, strict=True)
            self._outcomes = chain(asked, self._refused)
            self._entries, self._answers, self._refused = [], [], []
            if self._tries:
                self._tries, self._one_by_one = 0, False
                self._machine.space.end_batch()
        for done, answer in self._outcomes:
            try:
                done(answer)
            except Exception:
                log.exception("an answer could not be delivered")
            if stopwatch_s() >= until_s:
                return False
        self._outcomes = None
        return True

    def fail(self, error: VeilmqError) -> None:
        """Fail every command of the batch: what is on disk is unknown."""
        self._entries += [*self._woken, *self._again]
        self._woken.clear()
        self._again.clear()
        self._answers = [error] * len(self._entries)
        self.deliver()


def _let_others_pass(last: Command, entries: deque[Entry]) -> None:
    """Move commands of the kind and queue of ``last``, which filled half of a batch, behind all others.

    So another command waits for one batch of a queue's large messages, however many receives or sends are queued. The
    commands of either part keep their order.
    """
    heavy = type(last), getattr(last, "queue", None)
    ordered = sorted(entries, key=lambda entry: (type(entry[0]), getattr(entry[0], "queue", None)) == heavy)
    entries.clear()
    entries.extend(ordered)

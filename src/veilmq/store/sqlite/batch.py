"""A batch: the commands of one transaction, gathered by queue and applied a kind at a time.

Within a batch the commands of one queue are applied in this order: deletes and changes that came before its first
receive, sends, receives, the other deletes and changes. That is an order in which they could have come: no command of a
batch was answered before another one was submitted. Commands of one connection keep theirs, as a receive is begun only
when what its connection sent before is answered: behind a receive stand deletes and changes, which follow it, and
sends, which it does not see (``standard.Taker``).

Every other command is a barrier: what came before it is applied first. Once sends or receives of one queue have filled
half of the batch's bytes, the rest of them waits for the next batch, and commands on other queues pass. Receives
that a watch submits while the batch is applied come before all that are in it.

When something fails before the commit, the transaction is rolled back, the caches are dropped, and the commands are
applied one by one, each in a savepoint, so that an error in one fails that one alone.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Any, get_args, get_type_hints

import apsw
from msgspec import Struct
from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.claims import ClaimPage, Publish, Stage
from veilmq.core.commands import Command, Done
from veilmq.core.errors import InternalError, QueueNotFound, StoreFull, VeilmqError
from veilmq.core.limits import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, BATCH_ROW_BYTES
from veilmq.core.topics import Forward
from veilmq.store.clock import stopwatch_s
from veilmq.store.cold import Sweep
from veilmq.store.publications import PublicationStep
from veilmq.store.queues import Queue
from veilmq.store.sqlite import fifo, standard, transaction
from veilmq.store.sqlite.database import Database
from veilmq.store.sqlite.session import Session
from veilmq.store.sqlite.settling import settle, settle_time, sink_of
from veilmq.store.sqlite.standard import LATER, SEES_ALL, Taker, rounds

log = logging.getLogger(__name__)

Entry = tuple[Command, Done]
Handler = Callable[[Session, Any, int], object]
"""Applies a command that is not hot: called with the session, the command and the present instant."""

_SEND, _RECEIVE = commands.Send, commands.Receive
_HOT = frozenset((_SEND, _RECEIVE, commands.Delete, commands.ChangeVisibility))
HANDLERS: dict[type[Command], Handler] = {Sweep: transaction.sweep, **transaction.HANDLERS}
_QUEUE_BYTES_MAX = BATCH_BYTES_MAX // 2  # then commands on other queues pass
_NEED_ROOM = (_SEND, commands.CreateQueue, Forward, Stage, Publish, PublicationStep)


class _Work:
    """The commands of one queue in a batch, each with its place."""

    __slots__ = ("after", "before", "bytes", "firsts", "receives", "sends")

    def __init__(self) -> None:
        self.before: list[tuple[int, Any]] = []
        self.sends: list[tuple[int, commands.Send]] = []
        self.receives: list[tuple[int, commands.Receive]] = []
        self.after: list[tuple[int, Any]] = []
        self.firsts: list[int] = []
        self.bytes = 0  # of the sends


class Batch:
    """The commands of one transaction and their answers; used again for the next one."""

    def __init__(self, session: Session, database: Database) -> None:
        self._session = session
        self._database = database
        self._entries: list[Entry] = []
        self._answers: list[Any] = []
        self._outcomes: Iterator[tuple[Done, object]] | None = None  # what is still to be delivered
        self._woken: list[Entry] = []
        self._refused: list[Entry] = []
        self._one_by_one = False
        self._leaves = False  # whether a command is left to the next batch
        self._ahead_ms = 0
        self.applying = False

    def insert(self, entry: Entry) -> None:
        """Have a command that a watch submits, while the batch is applied, applied with it."""
        self._woken.append(entry)

    def run(
        self, entries: deque[Entry], now_ms: int, ahead_ms: int = 0, mark: bytes | None = None, *, alone: bool = False
    ) -> bool:
        """Apply ``entries``, leaving those beyond a batch's size; tell whether there is anything to commit.

        Users see ``now_ms`` as ``ahead_ms`` more. ``mark`` is the clock's, written if anything else is, or ``alone``.
        """
        session = self._session
        self._ahead_ms = session.ahead_ms = ahead_ms
        session.bytes_left = session.write_bytes_left = BATCH_BYTES_MAX
        if len(entries) <= BATCH_COMMANDS_MAX:
            self._entries = list(entries)
            entries.clear()
        else:
            self._entries = [entries.popleft() for _ in range(BATCH_COMMANDS_MAX)]
        self._answers = [None] * len(self._entries)
        connection = session.connection
        changes_before = connection.total_changes()
        self.applying = True
        try:
            session.execute("BEGIN IMMEDIATE")
            if self._one_by_one:
                self._apply_one_by_one(now_ms)
            else:
                self._apply(0, len(self._entries), now_ms)
            if self._leaves:
                self._put_back(entries)
            if connection.total_changes() == changes_before and not alone and not self._database.moves_log:
                session.execute("COMMIT")
                return False
            if mark is not None:
                session.run("put_mark", mark)
            session.finish(now_ms)
        except Exception as error:
            is_full = isinstance(error, apsw.FullError)
            if self._one_by_one and not is_full:
                raise
            log.exception("a batch failed; its commands are applied one by one", exc_info=error)
            self.roll_back(entries, is_full=is_full)
            return self.run(entries, now_ms, ahead_ms, mark, alone=alone)
        finally:
            self.applying = False
        return True

    def _put_back(self, entries: deque[Entry]) -> None:
        """Leave commands for which there was no room to the next batch."""
        self._leaves = False
        pairs = list(zip(self._entries, self._answers, strict=True))
        entries.extendleft([entry for entry, answer in reversed(pairs) if answer is LATER])
        kept = [pair for pair in pairs if pair[1] is not LATER]
        self._entries, self._answers = [entry for entry, _ in kept], [answer for _, answer in kept]

    def _apply(self, start: int, end: int, now_ms: int) -> None:
        """Apply the commands of these places, and what watches submit meanwhile; what is beyond the bytes is left."""
        session = self._session
        works: dict[str, _Work] = {}
        held: set[str] = set()  # queues that were sent so much that the rest is left, so that others have room
        bytes_left = session.write_bytes_left
        slot = start
        for entry in self._entries[start:end]:
            command: Any = entry[0]
            kind = type(command)
            if kind is _SEND and (bytes_left <= 0 or command.queue in held):
                self._answers[slot] = LATER
                self._leaves = True
            elif kind in _HOT:
                work = works.get(command.queue)
                if work is None:
                    work = works[command.queue] = _Work()
                if kind is _SEND:
                    work.sends.append((slot, command))
                    for new in command.messages:
                        size = len(new.body) + len(new.properties) + BATCH_ROW_BYTES
                        bytes_left -= size
                        work.bytes += size
                    if work.bytes >= _QUEUE_BYTES_MAX:
                        held.add(command.queue)
                elif kind is _RECEIVE:
                    work.receives.append((slot, command))
                else:
                    (work.after if work.receives else work.before).append((slot, command))
            elif bytes_left <= 0 or (held and getattr(command, "queue", None) in held):
                self._answers[slot:end] = [LATER] * (end - slot)
                self._leaves = True
                break
            else:
                self._apply_works(works, now_ms)
                works = {}
                session.write_bytes_left = bytes_left
                self._answers[slot] = self._handle(command, now_ms)
                bytes_left = session.write_bytes_left
            slot += 1
        session.write_bytes_left = bytes_left
        self._apply_works(works, now_ms)
        while self._woken:
            woken = self._take_woken(None)
            self._apply(woken, len(self._entries), now_ms)

    def _take_woken(self, queue: str | None) -> int:
        """Give places to the commands that watches submitted, of one queue or all; return the first place."""
        start = len(self._entries)
        taken: list[Entry] = []
        woken, self._woken = self._woken, []
        for entry in woken:
            goes = queue is None or (type(entry[0]) is _RECEIVE and entry[0].queue == queue)
            (taken if goes else self._woken).append(entry)
        self._entries += taken
        self._answers += [None] * len(taken)
        return start

    def _handle(self, command: Command, now_ms: int) -> object:
        try:
            return HANDLERS[type(command)](self._session, command, now_ms)
        except VeilmqError as error:
            return error

    def _apply_works(self, works: dict[str, _Work], now_ms: int) -> None:
        """Apply commands gathered by queue: one kind after the other, each for all queues."""
        session, answers = self._session, self._answers
        found: list[tuple[Queue, _Work]] = []
        for name, work in works.items():
            queue = session.find(name)
            if queue is None:
                for slot, _ in chain(work.before, work.sends, work.receives, work.after):
                    answers[slot] = QueueNotFound(name)
                continue
            if now_ms > queue.counted_at_ms or now_ms >= queue.expires_at_ms:
                settle_time(session, queue, now_ms)
            found.append((queue, work))
        before = [(queue, work.before) for queue, work in found if work.before]
        if before:
            settle(session, before, now_ms, answers)
        sending = [(queue, work) for queue, work in found if work.sends]
        for queue, work in sending:
            work.firsts = self._send(queue, work.sends, now_ms)
        if session.has_ended:
            session.settle_ended()  # before the sends are written, which then take the pages that become free
        session.flush()  # what a cold command before these has staged, too
        for queue, work in found:
            if self._woken or work.receives:
                self._receive(queue, work, now_ms)
        session.flush()
        after = [(queue, work.after) for queue, work in found if work.after]
        if after:
            settle(session, after, now_ms, answers)
            session.flush()

    def _send(self, queue: Queue, sends: list[tuple[int, commands.Send]], now_ms: int) -> list[int]:
        """Store the messages of ``sends``; return the first seq that each of them could use, none where all fail."""
        if self._database.is_short and self._database.recheck_room(now_ms):
            for slot, _ in sends:
                self._answers[slot] = StoreFull()
            return []
        send = fifo.send if queue.fifo else standard.send
        return send(self._session, queue, sends, now_ms, self._answers)

    def _receive(self, queue: Queue, work: _Work, now_ms: int) -> None:
        """Make the receives of a queue: first those that waited and were woken, then those of the batch."""
        receive = fifo.receive if queue.fifo else standard.receive
        woken: list[Taker] = []
        if self._woken:
            start = self._take_woken(queue.name)
            woken = [Taker(slot, command) for slot, (command, _) in enumerate(self._entries[start:], start)]  # type: ignore[arg-type]
        takers = woken + _takers(work) if work.receives else woken
        if not takers:
            return
        session = self._session
        others = max(0, session.bytes_left - _QUEUE_BYTES_MAX) if len(takers) > 1 else 0
        session.bytes_left -= others
        for place, round_ in enumerate(rounds(queue, takers, now_ms, self._answers)):
            if place:
                session.flush()
            sink = sink_of(session, queue, now_ms) if queue.settings.receives_max else None
            receive(session, queue, round_, now_ms, self._answers, sink)
        self._leaves = self._leaves or session.bytes_left <= 0
        session.bytes_left += others

    # Failures.

    def _apply_one_by_one(self, now_ms: int) -> None:
        """Apply and write one command after the other; undo that one alone that fails. What it wakes comes next."""
        session, waiting = self._session, deque(self._entries)
        entries: list[Entry] = []
        answers: list[Any] = []
        while waiting:
            self._entries, self._answers = [waiting.popleft()], [None]
            session.execute("SAVEPOINT command")
            entries_before = session.deduplication_log.count
            try:
                self._apply(0, 1, now_ms)
                session.finish(now_ms)
            except Exception as error:  # whatever it is, it is this command's
                if not session.connection.in_transaction:
                    self._entries = [*entries, *self._entries, *waiting]
                    raise  # the transaction is gone, and with it the commands before
                session.execute("ROLLBACK TO command")
                session.undo(entries_before)
                waiting.extendleft(reversed([*self._entries[1:], *self._woken]))
                self._woken = []
                self._entries, self._answers = self._entries[:1], [self._blame(error)]
            session.execute("RELEASE command")
            entries += self._entries
            answers += self._answers
        self._entries, self._answers = entries, answers

    def _blame(self, error: Exception) -> VeilmqError:
        if isinstance(error, apsw.FullError):
            self._database.run_out()
            return StoreFull()
        log.error("a command failed and changed nothing", exc_info=error)
        return InternalError()

    def roll_back(self, entries: deque[Entry], *, is_full: bool = False) -> None:
        """Undo the batch and put its commands back, to be applied one by one.

        Where the disk had no room for the commit, sends are refused; if it has none for the others either, they are.
        """
        self._session.roll_back()
        again = [*self._entries, *self._woken]
        self._entries, self._answers, self._woken = [], [], []
        if is_full:
            self._database.run_out()
            refused = [entry for entry in again if self._one_by_one or isinstance(entry[0], _NEED_ROOM)]
            self._refused += refused
            again = [entry for entry in again if entry not in refused]
        entries.extendleft(reversed(again))
        self._one_by_one = True

    # Answers.

    def deliver(self, until_s: float = inf) -> bool:
        """Call each ``done``: the batch is durable. Return ``False`` to be called again, if ``until_s`` ended that.

        ``until_s`` is an instant of ``stopwatch_s``.
        """
        if self._outcomes is None:
            results = self._answers
            if self._ahead_ms:
                results = [_shown(answer, self._ahead_ms) for answer in results]
            refused = [(done, StoreFull()) for _, done in self._refused]
            self._outcomes = chain(zip(map(itemgetter(1), self._entries), results, strict=True), refused)
            self._entries, self._answers, self._refused = [], [], []
            self._one_by_one = False
            self._database.end_batch()
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
        self._entries += self._woken
        self._woken = []
        self._answers = [error] * len(self._entries)
        self.deliver()


def _takers(work: _Work) -> list[Taker]:
    """Return the receives of a queue, each with the first seq that was sent behind it."""
    receives = work.receives
    if not work.firsts or work.sends[-1][0] < receives[0][0]:
        return [Taker(slot, command) for slot, command in receives]
    send_slots = [slot for slot, _ in work.sends]
    bounds = [*work.firsts, SEES_ALL]
    return [Taker(slot, command, bounds[bisect_left(send_slots, slot)]) for slot, command in receives]


# Shown times.

_INSTANTS = ("_at_ms", "_until_ms")


def _shown(result: Any, ahead_ms: int) -> Any:
    """Return a result with its instants as users see them: the fields whose names end in ``_INSTANTS``.

    A page of a claim is left as it is: what a claim has must be the same whenever it is read, so it was made with the
    difference of the claim's binding.
    """
    if isinstance(result, list):
        return [_shown(each, ahead_ms) for each in result]
    if not isinstance(result, Struct) or type(result) is ClaimPage:
        return result
    instants, nested = _fields(type(result))
    changed: dict[str, Any] = {name: _shown(getattr(result, name), ahead_ms) for name in nested}
    changed |= {name: at_ms + ahead_ms for name in instants if (at_ms := getattr(result, name))}  # 0 is none, too
    return replace(result, **changed) if changed else result


@cache
def _fields(kind: type) -> tuple[list[str], list[str]]:
    """Return the fields of a type of results that are instants, and those that have results inside."""
    hints = get_type_hints(kind)
    nested = [
        name
        for name, hint in hints.items()
        if any(isinstance(each, type) and issubclass(each, Struct) for each in (hint, *get_args(hint)))
    ]
    return [name for name in hints if name.endswith(_INSTANTS)], nested

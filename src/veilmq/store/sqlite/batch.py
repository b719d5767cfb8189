"""A batch: the commands of one transaction, gathered by queue and applied a kind at a time.

Within a batch the commands of one queue are applied in this order: deletes and changes that came before its first
receive, sends, receives, the other deletes and changes. They could have come so: no command of a batch was answered
before another one was submitted. Commands of one connection keep their order: a receive begins when what its connection
sent before is answered, and does not see the sends that stand behind it (``standard.Taker``).

Every other command is a barrier: what came before it is applied first. Once sends or receives of one queue have filled
half of the batch's bytes, the rest of them waits for the next batch, and commands on other queues pass. Receives
that a watch submits while the batch is applied come before all that are in it.

When something fails before the commit, or the disk has no room for it, the transaction is rolled back, the caches are
dropped, and the commands get a transaction each, so that an error in one fails that one alone.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from functools import cache
from itertools import chain
from math import inf
from operator import itemgetter
from typing import Any, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.claims import ClaimPage
from veilmq.core.commands import Command, Done
from veilmq.core.errors import InternalError, QueueNotFound, StoreFull, VeilmqError
from veilmq.core.limits import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, BATCH_ROW_BYTES
from veilmq.store.clock import stopwatch_s
from veilmq.store.queues import Queue
from veilmq.store.sqlite import fifo, standard
from veilmq.store.sqlite.database import ran_out_of_room
from veilmq.store.sqlite.session import Session
from veilmq.store.sqlite.settling import settle, settle_time, sink_of
from veilmq.store.sqlite.standard import LATER, SEES_ALL, Answers, Sends, Taker, rounds
from veilmq.store.sqlite.transaction import HANDLERS

log = logging.getLogger(__name__)

Entry = tuple[Command, Done]
_SEND, _RECEIVE = commands.Send, commands.Receive
_HOT = frozenset((_SEND, _RECEIVE, commands.Delete, commands.ChangeVisibility))
_QUEUE_BYTES_MAX = BATCH_BYTES_MAX // 2  # then commands on other queues pass


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

    def refuse(self, answers: Answers, error: VeilmqError) -> None:
        """Answer all commands with an error."""
        for slot, _ in chain(self.before, self.sends, self.receives, self.after):
            answers[slot] = error


class Batch:
    """The commands of one transaction and their answers; used again for the next one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._database = session.database
        self._entries: list[Entry] = []
        self._answers: list[Any] = []
        self._outcomes: Iterator[tuple[Done, object]] | None = None  # what is still to be delivered
        self._woken: list[Entry] = []
        self._singles = 0  # so many of the next commands have a transaction each
        self._leaves = False  # whether a command is left to the next batch
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
        session.now_ms = session.events.now_ms = now_ms
        session.ahead_ms = ahead_ms
        session.bytes_left = session.write_bytes_left = BATCH_BYTES_MAX
        self._singles = min(self._singles, len(entries))  # some may have been withdrawn
        commands_max = 1 if self._singles else BATCH_COMMANDS_MAX
        if len(entries) <= commands_max:
            self._entries = list(entries)
            entries.clear()
        else:
            self._entries = [entries.popleft() for _ in range(commands_max)]
        self._answers = [None] * len(self._entries)
        changes_before = session.connection.total_changes()
        self.applying = True
        try:
            session.execute("BEGIN IMMEDIATE")
            self._apply(0, len(self._entries))
            if self._leaves:  # there was no room for some
                pairs = list(zip(self._entries, self._answers, strict=True))
                entries.extendleft([entry for entry, answer in reversed(pairs) if answer is LATER])
                pairs = [pair for pair in pairs if pair[1] is not LATER]
                self._entries, self._answers = [entry for entry, _ in pairs], [answer for _, answer in pairs]
            if session.connection.total_changes() == changes_before and not alone and not self._database.moves_log:
                session.execute("COMMIT")
                return False
            if mark is not None:
                session.run("put_mark", mark)
            session.finish()
        except Exception as error:  # that of a command, unless SQLite has ended the transaction twice
            if self._singles and not session.connection.in_transaction and not ran_out_of_room(error):
                raise
            self.roll_back(entries, error)
            return False
        finally:
            self.applying = self._leaves = False
        return True

    def _apply(self, start: int, end: int) -> None:
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
                name = command.queue
                work = works.get(name)
                if work is None:
                    work = works[name] = _Work()
                if kind is _SEND:
                    work.sends.append((slot, command))
                    size = 0
                    for new in command.messages:
                        size += len(new.body) + len(new.properties) + BATCH_ROW_BYTES
                    bytes_left -= size
                    work.bytes += size
                    if work.bytes >= _QUEUE_BYTES_MAX:
                        held.add(name)
                elif kind is _RECEIVE:
                    work.receives.append((slot, command))
                else:
                    (work.after if work.receives else work.before).append((slot, command))
            elif bytes_left <= 0 or (held and getattr(command, "queue", None) in held):
                self._answers[slot:end] = [LATER] * (end - slot)
                self._leaves = True
                break
            else:
                self._apply_works(works)
                works = {}
                session.write_bytes_left = bytes_left
                try:
                    self._answers[slot] = HANDLERS[kind](session, command)
                except VeilmqError as error:
                    self._answers[slot] = error
                bytes_left = session.write_bytes_left
            slot += 1
        session.write_bytes_left = bytes_left
        self._apply_works(works)
        while self._woken:
            woken = self._take_woken(None)
            self._apply(woken, len(self._entries))

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

    def _apply_works(self, works: dict[str, _Work]) -> None:
        """Apply commands gathered by queue: one kind after the other, each for all queues."""
        session, answers, now_ms = self._session, self._answers, self._session.now_ms
        found: list[tuple[Queue, _Work]] = []
        for name, work in works.items():
            queue = session.find(name)
            if queue is None:
                work.refuse(answers, QueueNotFound(name))
                continue
            if now_ms > queue.counted_at_ms or now_ms >= queue.expires_at_ms:
                settle_time(session, queue)
            if work.before:
                settle(session, queue, work.before, answers)
            found.append((queue, work))
        for queue, work in found:
            if work.sends:
                work.firsts = self._send(queue, work.sends)
        if session.has_ended:
            session.settle_ended()  # before the sends are written, which then take the pages that become free
        session.flush()  # what a cold command before these has staged, too
        for queue, work in found:
            if self._woken or work.receives:
                self._receive(queue, work)
        session.flush()
        for queue, work in found:
            if work.after:
                settle(session, queue, work.after, answers)

    def _send(self, queue: Queue, sends: Sends) -> list[int]:
        """Store the messages of ``sends``; return the first seq that each of them could use, none where all fail."""
        if self._database.is_short and self._database.recheck_room():
            for slot, _ in sends:
                self._answers[slot] = StoreFull()
            return []
        return (fifo.send if queue.fifo else standard.send)(self._session, queue, sends, self._answers)

    def _receive(self, queue: Queue, work: _Work) -> None:
        """Make the receives of a queue: first those that waited and were woken, then those of the batch."""
        session, receive = self._session, fifo.receive if queue.fifo else standard.receive
        takers: list[Taker] = []
        if self._woken:
            start = self._take_woken(queue.name)
            woken: list[Any] = self._entries[start:]
            takers = [Taker(slot, command) for slot, (command, _) in enumerate(woken, start)]
        if work.firsts and work.receives and work.sends[-1][0] > work.receives[0][0]:  # some were sent behind a receive
            send_slots, bounds = [slot for slot, _ in work.sends], [*work.firsts, SEES_ALL]
            takers += [Taker(slot, command, bounds[bisect_left(send_slots, slot)]) for slot, command in work.receives]
        else:
            takers += [Taker(slot, command) for slot, command in work.receives]
        if not takers:
            return
        others = max(0, session.bytes_left - _QUEUE_BYTES_MAX) if len(takers) > 1 else 0
        session.bytes_left -= others
        for place, round_ in enumerate(rounds(queue, takers, session.now_ms, self._answers)):
            if place:
                session.flush()
            sink = sink_of(session, queue) if queue.settings.receives_max else None
            receive(session, queue, round_, self._answers, sink)
        self._leaves = self._leaves or session.bytes_left <= 0
        session.bytes_left += others

    def roll_back(self, entries: deque[Entry], error: BaseException) -> None:
        """Undo the batch, and put its commands back, which get a transaction each; one that had one has failed."""
        self._session.roll_back()
        is_full, failed = ran_out_of_room(error), bool(self._singles)
        if is_full:
            self._database.run_out()
        else:
            log.error("a command failed and changed nothing" if failed else "a batch failed", exc_info=error)
        again, self._woken = [*self._entries, *self._woken], []
        self._entries, again = again[:failed], again[failed:]
        self._answers = [StoreFull() if is_full else InternalError() for _ in self._entries]
        self._singles += len(again)
        entries.extendleft(reversed(again))

    # Answers.

    def deliver(self, until_s: float = inf) -> bool:
        """Call each ``done``: the batch is durable. Return ``False`` to be called again, if ``until_s`` ended that.

        ``until_s`` is an instant of ``stopwatch_s``.
        """
        if self._outcomes is None:
            results = self._answers
            if ahead_ms := self._session.ahead_ms:
                results = [_shown(answer, ahead_ms) for answer in results]
            self._outcomes = zip(map(itemgetter(1), self._entries), results, strict=True)
            if self._entries and self._singles:
                self._singles -= 1
            self._entries, self._answers = [], []
            self._database.in_batch = self._singles > 0
        for done, answer in self._outcomes:
            try:
                done(answer)
            except Exception:
                log.exception("a reply could not be delivered")
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

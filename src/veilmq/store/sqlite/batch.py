"""A batch: the commands of one transaction, grouped by queue and applied one kind at a time.

The commands of a queue are applied in this order: deletes and changes that precede its first receive, sends, receives,
the other deletes and changes. This is a valid order, because no command of a batch got its result before another one
was submitted. Commands of one connection keep their order: a receive starts when all earlier commands of its connection
have results, and does not see sends that follow it (``standard.ReceiveRequest``).

Any other command is a barrier: all commands before it are applied first. When sends or receives of one queue have used
half of the batch's bytes, the rest of them waits for the next batch, and commands on other queues overtake them.
Receives that a watch submits while the batch is applied precede the new ones of the batch.

If anything fails before the commit, or the disk is full, the transaction is rolled back, the caches are cleared, and
each command gets its own transaction, so that only the faulty command fails.
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

import apsw
from msgspec import Struct
from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.claims import ClaimPage
from veilmq.core.commands import Command, Done
from veilmq.core.errors import InternalError, QueueNotFound, StoreFull, VeilmqError
from veilmq.core.limits import BATCH_BYTES_MAX, BATCH_COMMANDS_MAX, BATCH_ROW_BYTES
from veilmq.store.clock import stopwatch_s
from veilmq.store.sqlite import fifo, standard
from veilmq.store.sqlite.database import FolderError, disk_is_full
from veilmq.store.sqlite.queues import Queue
from veilmq.store.sqlite.session import Session
from veilmq.store.sqlite.settling import advance_time, dead_letter_sink, settle
from veilmq.store.sqlite.standard import DEFERRED, SEQ_END, ReceiveRequest, Results, Sends, split_receives
from veilmq.store.sqlite.transaction import HANDLERS

log = logging.getLogger(__name__)

Entry = tuple[Command, Done]
_SEND, _RECEIVE = commands.Send, commands.Receive
_HOT = frozenset((_SEND, _RECEIVE, commands.Delete, commands.ChangeVisibility))
_QUEUE_BYTES_MAX = BATCH_BYTES_MAX // 2  # then commands on other queues overtake


class _QueueCommands:
    """The commands of one queue in a batch, each with the slot of its result."""

    __slots__ = ("first_seqs", "receives", "sends", "sent_bytes", "settles_after_receives", "settles_before_receives")

    def __init__(self) -> None:
        self.settles_before_receives: list[tuple[int, Any]] = []
        self.sends: list[tuple[int, commands.Send]] = []
        self.receives: list[tuple[int, commands.Receive]] = []
        self.settles_after_receives: list[tuple[int, Any]] = []
        self.first_seqs: list[int] = []
        self.sent_bytes = 0

    def refuse(self, results: Results, error: VeilmqError) -> None:
        for slot, _ in chain(self.settles_before_receives, self.sends, self.receives, self.settles_after_receives):
            results[slot] = error


class Batch:
    """The commands of one transaction and their results; reused for the next one."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._database = session.database
        self._entries: list[Entry] = []
        self._results: list[Any] = []
        self._undelivered: Iterator[tuple[Done, object]] | None = None  # not delivered yet
        self.woken: list[Entry] = []  # commands that watches submit while the batch is applied
        self._singles = 0  # how many of the next commands get their own transactions
        self._has_deferred = False  # whether a command is deferred to the next batch
        self.applying = False

    def run(
        self, entries: deque[Entry], now_ms: int, ahead_ms: int = 0, mark: bytes | None = None, *, alone: bool = False
    ) -> bool:
        """Apply ``entries``, leaving those that exceed the batch; return whether there is anything to commit.

        Shown time is ``now_ms`` plus ``ahead_ms``. ``mark`` is the clock's mark; it is written only with other changes,
        or also without them if ``alone``.
        """
        session = self._session
        session.now_ms = session.events.now_ms = now_ms
        session.ahead_ms = ahead_ms
        session.read_bytes_left = session.write_bytes_left = BATCH_BYTES_MAX
        self._singles = min(self._singles, len(entries))  # commands may have been withdrawn
        commands_max = 1 if self._singles else BATCH_COMMANDS_MAX
        if len(entries) <= commands_max:
            self._entries = list(entries)
            entries.clear()
        else:
            self._entries = [entries.popleft() for _ in range(commands_max)]
        self._results = [None] * len(self._entries)
        changes_before = session.connection.total_changes()
        self.applying = True
        try:
            session.execute("BEGIN IMMEDIATE")
            self._apply(0, len(self._entries))
            if self._has_deferred:
                pairs = list(zip(self._entries, self._results, strict=True))
                entries.extendleft([entry for entry, result in reversed(pairs) if result is DEFERRED])
                pairs = [pair for pair in pairs if pair[1] is not DEFERRED]
                self._entries, self._results = [entry for entry, _ in pairs], [result for _, result in pairs]
            if session.connection.total_changes() == changes_before and not alone and not self._database.checkpoint_due:
                session.execute("COMMIT")
                return False
            if mark is not None:
                session.run("put_mark", mark)
            session.finish()
        except FolderError:
            raise
        except apsw.CorruptError as error:  # further writes could damage more
            raise FolderError(f"The database is damaged: {error}. Run `veilmq doctor`, and restore a copy.") from error
        except Exception as error:  # the fault of a command, unless SQLite ended the transaction twice
            if self._singles and not session.connection.in_transaction and not disk_is_full(error):
                raise
            self.roll_back(entries, error)
            return False
        finally:
            self.applying = self._has_deferred = False
        return True

    def _apply(self, start: int, end: int) -> None:
        """Apply the commands of these slots, and those that watches submit meanwhile; defer what exceeds the bytes."""
        session = self._session
        by_queue: dict[str, _QueueCommands] = {}
        full_queues: set[str] = set()  # queues whose further sends are deferred
        bytes_left = session.write_bytes_left
        slot = start
        for entry in self._entries[start:end]:
            command: Any = entry[0]
            kind = type(command)
            if kind is _SEND and (bytes_left <= 0 or command.queue in full_queues):
                self._results[slot] = DEFERRED
                self._has_deferred = True
            elif kind in _HOT:
                name = command.queue
                work = by_queue.get(name)
                if work is None:
                    work = by_queue[name] = _QueueCommands()
                if kind is _SEND:
                    work.sends.append((slot, command))
                    size = 0
                    for new in command.messages:
                        size += len(new.body) + len(new.properties) + BATCH_ROW_BYTES
                    bytes_left -= size
                    work.sent_bytes += size
                    if work.sent_bytes >= _QUEUE_BYTES_MAX:
                        full_queues.add(name)
                elif kind is _RECEIVE:
                    work.receives.append((slot, command))
                else:
                    settles = work.settles_after_receives if work.receives else work.settles_before_receives
                    settles.append((slot, command))
            elif bytes_left <= 0 or (full_queues and getattr(command, "queue", None) in full_queues):
                self._results[slot:end] = [DEFERRED] * (end - slot)
                self._has_deferred = True
                break
            else:
                self._apply_by_queue(by_queue)
                by_queue = {}
                session.write_bytes_left = bytes_left
                try:
                    self._results[slot] = HANDLERS[kind](session, command)
                except VeilmqError as error:
                    self._results[slot] = error
                bytes_left = session.write_bytes_left
            slot += 1
        session.write_bytes_left = bytes_left
        self._apply_by_queue(by_queue)
        while self.woken:
            woken = self._take_woken(None)
            self._apply(woken, len(self._entries))

    def _take_woken(self, queue: str | None) -> int:
        """Add the receives that watches submitted for one queue, or all their commands; return the first slot."""
        start = len(self._entries)
        added: list[Entry] = []
        woken, self.woken = self.woken, []
        for entry in woken:
            is_included = queue is None or (type(entry[0]) is _RECEIVE and entry[0].queue == queue)
            (added if is_included else self.woken).append(entry)
        self._entries += added
        self._results += [None] * len(added)
        return start

    def _apply_by_queue(self, by_queue: dict[str, _QueueCommands]) -> None:
        session, results, now_ms = self._session, self._results, self._session.now_ms
        found: list[tuple[Queue, _QueueCommands]] = []
        for name, work in by_queue.items():
            queue = session.find(name)
            if queue is None:
                work.refuse(results, QueueNotFound(name))
                continue
            if now_ms > queue.counted_at_ms or now_ms >= queue.expires_at_ms:
                advance_time(session, queue)
            if work.settles_before_receives:
                settle(session, queue, work.settles_before_receives, results)
            found.append((queue, work))
        for queue, work in found:
            if work.sends:
                work.first_seqs = self._send(queue, work.sends)
        session.write_deletions()  # before the sends, which then use the freed pages
        session.flush()  # also what an earlier cold command has staged
        for queue, work in found:
            if self.woken or work.receives:
                self._receive(queue, work)
        session.flush()
        for queue, work in found:
            if work.settles_after_receives:
                settle(session, queue, work.settles_after_receives, results)

    def _send(self, queue: Queue, sends: Sends) -> list[int]:
        """Store the messages of ``sends``; return the first seq that each of them could use, or none if all fail."""
        if self._database.low_disk_space and self._database.recheck_space():
            for slot, _ in sends:
                self._results[slot] = StoreFull()
            return []
        return (fifo.send if queue.fifo else standard.send)(self._session, queue, sends, self._results)

    def _receive(self, queue: Queue, work: _QueueCommands) -> None:
        """Apply the receives of a queue: first of waiters (repeated ones precede woken ones), then new ones."""
        session, receive = self._session, fifo.receive if queue.fifo else standard.receive
        if work.first_seqs and work.receives and work.sends[-1][0] > work.receives[0][0]:  # a send follows a receive
            slots, ends = [slot for slot, _ in work.sends], [*work.first_seqs, SEQ_END]
            requests = [ReceiveRequest(slot, each, ends[bisect_left(slots, slot)]) for slot, each in work.receives]
        else:
            requests = [ReceiveRequest(slot, command) for slot, command in work.receives]
        if self.woken:
            start = self._take_woken(queue.name)
            woken: list[Any] = self._entries[start:]
            requests += [ReceiveRequest(slot, command) for slot, (command, _) in enumerate(woken, start)]
            requests.sort(key=lambda each: 1 if each.slot >= start else 2 * (each.command.requested_at_ms is None))
        if not requests:
            return
        # Keep half of the batch's bytes for the other queues.
        reserved = max(0, session.read_bytes_left - _QUEUE_BYTES_MAX) if len(requests) > 1 else 0
        session.read_bytes_left -= reserved
        for index, group in enumerate(split_receives(queue, requests, session.now_ms, self._results)):
            if index:
                session.flush()
            sink = dead_letter_sink(session, queue) if queue.settings.receives_max else None
            receive(session, queue, group, self._results, sink)
        self._has_deferred = self._has_deferred or session.read_bytes_left <= 0
        session.read_bytes_left += reserved

    def roll_back(self, entries: deque[Entry], error: BaseException) -> None:
        """Roll back, and requeue the commands with a transaction each; a command that already had its own fails."""
        self._session.roll_back()
        is_full, failed = disk_is_full(error), bool(self._singles)
        if is_full:
            self._database.mark_full()
        else:
            log.error("a command failed and changed nothing" if failed else "a batch failed", exc_info=error)
        requeued, self.woken = [*self._entries, *self.woken], []
        self._entries, requeued = requeued[:failed], requeued[failed:]
        self._results = [StoreFull() if is_full else InternalError() for _ in self._entries]
        self._singles += len(requeued)
        entries.extendleft(reversed(requeued))

    def deliver(self, until_s: float = inf) -> bool:
        """Call each ``done``, after the commit; return ``False`` to be called again.

        That is when ``stopwatch_s`` reaches ``until_s`` before the last one.
        """
        if self._undelivered is None:
            results = self._results
            if ahead_ms := self._session.ahead_ms:
                results = [_shown(result, ahead_ms) for result in results]
            self._undelivered = zip(map(itemgetter(1), self._entries), results, strict=True)
            if self._entries and self._singles:
                self._singles -= 1
            self._entries, self._results = [], []
            self._database.in_batch = self._singles > 0
        for done, result in self._undelivered:
            try:
                done(result)
            except Exception:
                log.exception("a reply could not be delivered")
            if stopwatch_s() >= until_s:
                return False
        self._undelivered = None
        return True

    def fail(self, error: VeilmqError) -> None:
        """Fail every command of the batch: its state on disk is unknown."""
        self._entries += self.woken
        self.woken = []
        self._results = [error] * len(self._entries)
        self.deliver()


_INSTANTS = ("_at_ms", "_until_ms")


def _shown(result: Any, ahead_ms: int) -> Any:
    """Convert all instants in a result to shown time.

    A claim's page has the shown time of its binding already, because it must be the same whenever it is read.
    """
    if isinstance(result, list):
        return [_shown(each, ahead_ms) for each in result]
    if not isinstance(result, Struct) or type(result) is ClaimPage:
        return result
    instants, nested = _fields(type(result))
    changed: dict[str, Any] = {name: _shown(getattr(result, name), ahead_ms) for name in nested}
    changed |= {name: at_ms + ahead_ms for name in instants if (at_ms := getattr(result, name))}  # 0: none
    return replace(result, **changed) if changed else result


@cache
def _fields(kind: type) -> tuple[list[str], list[str]]:
    """Return the fields of a result type that are instants, and those that contain results."""
    hints = get_type_hints(kind)
    nested = [
        name
        for name, hint in hints.items()
        if any(isinstance(each, type) and issubclass(each, Struct) for each in (hint, *get_args(hint)))
    ]
    return [name for name in hints if name.endswith(_INSTANTS)], nested

"""Cold commands on SQLite, the janitor, and the port of ``store.transaction`` on the open batch.

A cold command runs inside the batch, in a savepoint if it changes something.
"""

# The methods only take queues of this dialect: a transaction gets the queues that it has found itself.
# mypy: disable-error-code="override"

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from heapq import merge
from itertools import chain, islice
from operator import itemgetter
from typing import Any

import msgspec

from veilmq.core import commands, limits
from veilmq.core.commands import Command, MessageState, QueueCounts, SentMessage
from veilmq.core.errors import StoreFull
from veilmq.core.messages import NewMessage
from veilmq.core.settings import QueueSettings
from veilmq.store.cold import COLD, READS, Cold, Sweep
from veilmq.store.events import EXPIRED_KEPT_S, Logged
from veilmq.store.queue_commands import delete_cooldowns
from veilmq.store.sqlite import fifo, settling, standard
from veilmq.store.sqlite.claims import SqliteClaims
from veilmq.store.sqlite.database import SQL, SQL_WITH_SIZES
from veilmq.store.sqlite.queues import SEQ_MAX, Queue
from veilmq.store.sqlite.session import BODY, ID, PROPERTIES, RECEIVE_COUNT, SEQ, SOURCE, Session
from veilmq.store.sqlite.settling import advance_time
from veilmq.store.transaction import NEVER_MS, SEQ_SHIFT, Lock, Row, StoredMessage, VisibleMessage

_ROWS_PER_SWEEP = 1_000
_QUEUES_PER_SWEEP = 200
_PARTITION_ROWS = 5  # the cost of inspecting a partition, in rows
_PAUSE_MS = 10
_SWEEP_MS = limits.RETENTION_S.minimum * limits.SECOND_MS


class _Transaction(SqliteClaims):
    """The open transaction of a batch, at the time of its commands. No method suspends."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.ids = session.ids
        self.codec = session.codec
        self.options = session.options

    async def rows(self, query: str, *values: Any, lock: Lock | None = None) -> Sequence[Row]:
        return self._session.rows(query, *values)  # no other transaction is open

    async def run(self, query: str, *values: Any) -> None:
        self._session.run(query, *values)

    async def run_many(self, query: str, rows: Sequence[Row]) -> None:
        self._session.run_many(query, [tuple(row) for row in rows])
        self._session.write_bytes_left -= sum(len(each) for row in rows for each in row if isinstance(each, bytes))

    async def lock(self, kind: str, *key: Any) -> None: ...

    async def now(self) -> int:
        return self._session.now_ms

    def shown(self, at_ms: int) -> int:
        return at_ms + self._session.ahead_ms

    async def find(self, name: str, lock: Lock | None = None) -> Queue | None:
        """See ``Transaction``; the totals of the queue are up to date from then on."""
        queue = self._session.find(name)
        if queue is not None:
            advance_time(self._session, queue)
        return queue

    async def counts(self, counted: Sequence[Queue], *, recent: bool = False) -> list[QueueCounts]:
        return [settling.counts(self._session, each) for each in counted]

    async def retire(self, queue: Queue, *, is_deleted: bool) -> None:
        self.schedule(Sweep)

    async def change(self, queue: Queue, settings: QueueSettings, modified_at_ms: int) -> None:
        """Change the settings; messages that the old retention ended are below the queue's floor from now on."""
        queue.floor_seq = queue.floor(self._session.now_ms)
        self._session.dirty.add(queue)
        self._session.run("update_queue", queue.number, msgspec.json.encode(settings), modified_at_ms)
        self.invalidate(queue)

    def invalidate(self, queue: Queue) -> None:
        session = self._session
        if not session.reload(queue):
            queue.notify(session.now_ms)
            return
        advance_time(session, queue)  # messages past a shorter retention may block groups, or use capacity
        settling.notify_freed(session, queue)

    def require_space(self) -> None:
        if self._session.database.recheck_space():
            raise StoreFull

    async def store(self, queue: Queue, messages: Sequence[NewMessage], ids: Sequence[bytes]) -> list[SentMessage]:
        session, results = self._session, [None]
        send = commands.Send(queue=queue.name, messages=tuple(messages))
        (fifo.send if queue.fifo else standard.send)(session, queue, [(0, send)], results, iter(ids).__next__)
        sent: Any = results[0]
        assert all(type(each) is SentMessage for each in sent), "the queue takes them"
        for new in messages:
            session.write_bytes_left -= len(new.body) + len(new.properties) + limits.BATCH_ROW_BYTES
        return list(sent)

    async def select_visible(self, queue: Queue, count: int) -> tuple[list[VisibleMessage], bool]:
        """Select none while expired messages are being deleted."""
        session = self._session
        if session.now_ms >= queue.expires_at_ms:
            return [], True
        requests = [standard.ReceiveRequest(0, commands.Receive(queue=queue.name, count=count))]
        if queue.fifo:
            (rows,), unsettled = fifo.distribute(session, queue, requests, count, None)
            fifo.update_cursors(session, queue, unsettled)
        else:
            (rows,) = standard.distribute(session, queue, requests, count, None)
        messages = [VisibleMessage(row[SEQ], row[SOURCE], len(row[BODY]) + len(row[PROPERTIES]), row) for row in rows]
        return messages, len(rows) == count or session.read_bytes_left <= 0

    async def move(self, queue: Queue, target: Queue, messages: Sequence[VisibleMessage]) -> int:
        session, rows = self._session, [each.row for each in messages]
        received = [row[SEQ] for row in rows if row[RECEIVE_COUNT]]
        session.events.end_receipts(queue.log, queue.partition, received, kind=queue.kind)
        contents = [(self.ids.next(), row[PROPERTIES], None, None, None) for row in rows]
        settling.move(session, queue, target, rows, contents)
        return len(rows)

    async def find_leased(self, queue: Queue, seqs: Sequence[int]) -> list[StoredMessage]:
        found = self._at(queue, seqs)
        bodies = await self.bodies(queue, [each.seq for each in found])
        return [each._replace(body=bodies[each.seq]) for each in found]

    async def delete(self, queue: Queue, messages: Sequence[StoredMessage]) -> None:
        receipts = tuple([self.codec.issue(*each.receipt(queue)) for each in messages])
        settling.settle(self._session, queue, [(0, commands.Delete(queue=queue.name, receipts=receipts))], [None])

    async def dead_letter(
        self, queue: Queue, target: Queue, messages: Sequence[StoredMessage], new: Sequence[NewMessage]
    ) -> list[SentMessage]:
        session = self._session
        settling.end_leases(session, queue, [each.receipt(queue) for each in messages])
        query = f"{queue.kind}_leased"
        old = [row for each in messages for row in session.rows(query, queue.partition, each.seq)]
        rows = [
            (*row[:PROPERTIES], message.properties, *row[PROPERTIES + 1 :])
            for row, message in zip(old, new, strict=True)
        ]
        moved = zip(rows, settling.dead_letter(session, queue, target, rows), strict=True)
        settling.notify_freed(session, queue)
        return [SentMessage(id=row[ID], sequence=seq if target.fifo else None) for row, seq in moved]

    async def bodies(self, queue: Queue, seqs: Sequence[int]) -> Mapping[int, str]:
        return dict(self._session.executemany(SQL["body"], [(seq,) for seq in seqs]))

    def schedule(self, step: type[Command]) -> None:
        self._session.schedulers[step].schedule()

    def notify(self, name: str) -> None:
        """Call the watch at once; commands that it submits are part of the batch."""
        wake = self._session.wakes.get(name)
        if wake is not None:
            wake(self._session.now_ms)

    # Inspection: messages are found as seq and lane (those of the ready list have no row with the lane), and read
    # without their bodies. Claimed messages follow other messages in flight, even past their retention.

    async def inspect(
        self, queue: Queue, state: MessageState | None, count: int, passed_max: int
    ) -> list[StoredMessage]:
        self._session.flush()
        found = self._unclaimed(queue, state, count, passed_max)
        if queue.claims and state in (None, MessageState.IN_FLIGHT):
            found += self._session.rows("claimed_from", queue.partition, count)
            if state is None:
                found.sort(key=itemgetter(0))
        return self._stored(queue, found[:count])

    async def inspect_at(self, queue: Queue, seqs: Sequence[int]) -> list[StoredMessage]:
        return [each for each in self._at(queue, seqs) if each.receive_count > 0]

    def _at(self, queue: Queue, seqs: Sequence[int]) -> list[StoredMessage]:
        self._session.flush()
        return self._stored(queue, [(seq, None) for seq in seqs if seq >= queue.floor(self._session.now_ms)])

    async def receivable(self, queue: Queue, count: int) -> list[StoredMessage]:
        session = self._session
        if queue.fifo:
            groups = fifo.ready_groups(session, queue, count)
            rows: Iterator[Any] = chain.from_iterable(
                fifo.group_messages(session, queue, group, count) for group in groups
            )
        else:
            rows = standard.in_order(session, queue, SQL_WITH_SIZES, mark_noisy=False)
        return self._stored(queue, _first(rows, queue.floor(session.now_ms), count, limits.INSPECT_SCANNED_MAX))

    def _stored(self, queue: Queue, found: Iterable[Any]) -> list[StoredMessage]:
        query = SQL[f"{queue.kind}_stored"]
        parameters = [(queue.partition, seq, queue.delay_ms if queue.fifo else lane) for seq, lane in found]
        return [
            StoredMessage._make((*row, self._session.now_ms, ""))
            for row in self._session.executemany(query, parameters)
        ]

    def _unclaimed(self, queue: Queue, state: MessageState | None, count: int, passed_max: int) -> list[Any]:
        session, now_ms = self._session, self._session.now_ms
        floor, scanned_max = queue.floor(now_ms), passed_max + count
        if state in (MessageState.IN_FLIGHT, MessageState.DELAYED):
            rows = sorted(self._hidden(queue, state is MessageState.IN_FLIGHT, floor, count, scanned_max))
            return [row[1:] for row in rows[:count]]
        if queue.fifo:
            until_ms = NEVER_MS if state is None else now_ms
            return self._ordered(queue, floor, until_ms, count if state is None else scanned_max, count)
        if state is None:
            lanes = [(floor, queue.partition, lane, -1, count) for lane in queue.lanes]
            waiting = [session.execute(SQL_WITH_SIZES["ready_take"], lane) for lane in lanes]
            returned = session.rows("standard_between", queue.partition, floor, SEQ_MAX, count)
            return _first(merge(returned, *waiting, key=itemgetter(0)), floor, count, count)
        found = [standard.visible(session, queue, lane, scanned_max, SQL_WITH_SIZES) for lane in queue.lanes]
        return _first(merge(*found, key=standard.by_visibility), floor, count, scanned_max)

    def _ordered(
        self, queue: Queue, floor: int, until_ms: int, scanned_max: int, count: int, *, floating: bool = False
    ) -> list[Any]:
        values = queue.partition, floor, SEQ_MAX, scanned_max
        return self._session.rows("ordered_visible", *values, queue.delay_ms, until_ms, floating, count)

    def _hidden(self, queue: Queue, is_received: bool, floor: int, count: int, scanned_max: int) -> list[Any]:
        """Return visible_at, seq and lane of messages in flight or delayed, including the first ``count``."""
        session, now_ms, partition = self._session, self._session.now_ms, queue.partition
        found: list[Any] = []
        parameters: list[Any] = [(lane, now_ms) for lane in queue.lanes]
        if queue.fifo:
            if is_received:  # those counted with their groups
                found = session.rows("ordered_in_flight", partition, now_ms, scanned_max, floor, count)
            else:
                start = max(floor, (now_ms - queue.delay_ms + 1) << SEQ_SHIFT)
                waiting = self._ordered(queue, start, NEVER_MS, scanned_max, count, floating=True)
                found = [((row[0] >> SEQ_SHIFT) + queue.delay_ms, *row) for row in waiting]
            parameters = [(now_ms, found[-1][0] if len(found) == count else NEVER_MS)]  # later ones are not needed
        for values in parameters:
            found += session.rows(f"{queue.kind}_hidden", partition, *values, scanned_max, is_received, floor, count)
        return found


def _first(rows: Iterable[Any], floor: int, count: int, scanned_max: int) -> list[Any]:
    return list(islice((row[:2] for row in islice(rows, scanned_max) if row[0] >= floor), count))


def handler(cold: Cold, *, changes: bool) -> Callable[[Session, Any], object]:
    """Return a handler that runs a cold command; an error rolls it back if it ``changes`` something."""

    def handle(session: Session, command: Any) -> object:
        name = getattr(command, "queue", None) or getattr(command, "source", None)
        if changes and name is not None:
            run_to_end(_Transaction(session).find(name))  # what this changes would be undone, too, and drop the caches
        with session.savepoint() if changes else nullcontext():
            return run_to_end(cold(_Transaction(session), command))

    return handle


def run_to_end(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine over the port, which never suspends, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise AssertionError("a cold command must not suspend")


# The janitor.


def sweep(session: Session, command: Sweep) -> int:
    """Do a slice of the janitor's work: delete expired, purged and deleted messages, and free empty pages.

    A slice is 1,000 rows, a few milliseconds, followed by a pause. When all is done, it runs once a minute, the minimum
    of retention. Expired messages are never delivered in the meantime, because all commands check retention themselves.
    """
    now_ms, left = session.now_ms, _ROWS_PER_SWEEP
    session.database.recheck_space()
    while left > 0 and (retired := session.row("retired_parts", 1)) is not None:
        left -= _PARTITION_ROWS + _sweep(session, retired, left)
    inspected = session.rows("queues_after", session.swept_to, _QUEUES_PER_SWEEP if left > 0 else 0)
    for number, name, *_ in inspected:
        queue = session.queue(name)
        messages = queue.messages
        advance_time(session, queue)
        left -= messages - queue.messages
        if left <= 0:
            break
        session.swept_to = number
    if len(inspected) < _QUEUES_PER_SWEEP and left > 0:
        session.swept_to = 0
    changed_before = session.connection.total_changes()
    session.run("old_attempts", now_ms - limits.ATTEMPT_S * limits.SECOND_MS, _ROWS_PER_SWEEP)
    named_s_max = limits.RETENTION_S.maximum + EXPIRED_KEPT_S  # a late delete may still name it
    session.run("old_renumbered", (now_ms - named_s_max * limits.SECOND_MS) << SEQ_SHIFT, _ROWS_PER_SWEEP)
    run_to_end(delete_cooldowns(_Transaction(session)))
    if session.rows("delete_accepted", now_ms - limits.DEDUPLICATION_S * limits.SECOND_MS, _ROWS_PER_SWEEP):
        session.deduplication_log.refresh_first()
    many_unread = session.deduplication_log.read(_ROWS_PER_SWEEP // 4)
    many_deleted = session.connection.total_changes() - changed_before >= _ROWS_PER_SWEEP
    session.flush()  # writes the rows that decide whether groups have messages
    many_groups = session.group_numbers.sweep(_ROWS_PER_SWEEP // 2)
    many_expired = session.events.sweep(_ROWS_PER_SWEEP // 4)
    freed_pages = session.database.free_pages()
    more = (
        many_unread or many_deleted or many_groups or many_expired or freed_pages or left <= 0 or session.swept_to > 0
    )
    return _PAUSE_MS if more or session.row("retired_parts", 1) is not None else _SWEEP_MS


def _sweep(session: Session, retired: Row, rows_max: int) -> int:
    """Delete a slice of a retired partition, finally the partition's row; return the number of rows."""
    count, (partition, logged_queue, retired_at_ms) = 0, retired
    log = None if logged_queue is None else Logged(logged_queue, 0, retired_at_ms)
    for lanes in (range(limits.PRIORITY.maximum + 1), None):
        count += len(settling.delete_below(session, partition, lanes, standard.SEQ_END, rows_max - count, log))
    if count:
        return count  # keeps group numbers, which the messages' events need, until the next slice
    before = session.connection.total_changes()
    session.run("delete_cursors_of", partition, rows_max)
    session.run("delete_fair_groups_of", partition, rows_max)
    if session.connection.total_changes() == before:
        session.run("delete_part", partition)
        session.run("put_progress", session.now_ms, session.last_seq)
    return session.connection.total_changes() - before


# The handlers of all commands that are not hot.
HANDLERS: dict[type[Command], Callable[[Session, Any], object]] = {
    Sweep: sweep,
    **{kind: handler(cold, changes=kind not in READS) for kind, cold in COLD.items()},
}

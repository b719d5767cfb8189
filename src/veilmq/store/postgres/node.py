"""The state of queues that a node keeps in memory and may lose: positions, low-water marks, quotas, totals, fairness.

**Positions.** A position (``seq``) is the database's time in milliseconds and a counter of the node. If two nodes
generate the same position, the second statement fails, and its node retries with a random counter.

**Low-water marks.** While any transaction is open, deleted and hidden messages leave dead entries in a partition's
index, which slow down scans from the start. Messages become visible at the current time or later, so no message of a
priority precedes the last received one, except those committed late or returned by a failed node. Scans start behind
that message, every 16th a little before it; once a second, and whenever nothing is found, at the start. These full
scans take at most a tenth of the time.

**Quotas.** A small in-flight quota is counted at each receive: only simultaneous receives of several nodes exceed it.
For a large one, one node counts for all at intervals (at most a fiftieth of the time), and each node adds its own
changes since; between two counts, receives of other nodes can exceed the quota. A small quota beside thousands of
delayed messages works the same way, but nodes share their changes at once; an expired lease frees its slot at the next
count.

**Fair queues** are standard queues with message groups. A node tracks its own receives exactly, and reads the leases of
all nodes at most once a second, for at most a fiftieth of the time. ``core.messages`` decides which groups are noisy.

**A step of the database's clock** must not delete messages. Retention is computed from an instant at most one hour
after the last confirmed one (``mq.retention_now()``). A node confirms the database's time if its boot clock agrees.
After a step of more than an hour that the node's wall clock does not confirm, the node records its doubt: then no node
confirms, and retention deletes nothing, until an operator trusts the clock or the step is undone.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from random import getrandbits
from typing import Any, TypeVar

from veilmq.core.commands import Clock, Command
from veilmq.core.errors import InternalError
from veilmq.core.limits import PRIORITY, SECOND_MS
from veilmq.core.messages import Fairness, IdSource, Lease, NewMessage, group_hash
from veilmq.core.receipts import ReceiptCodec
from veilmq.store.clock import stopwatch_s
from veilmq.store.copying import CopiedMessage
from veilmq.store.port import NOTHING_HELD_BACK, Metric, gauge
from veilmq.store.postgres.database import COLLISIONS, COLLISIONS_MAX, Database, DatabaseClock, PostgresOptions, Worker
from veilmq.store.postgres.queues import BEGINNING, FAIR, SQL, STANDARD, Catalog, Queue, retention_ms, sql
from veilmq.store.postgres.wakeups import Watches

log = logging.getLogger(__name__)

T = TypeVar("T")

COUNTER_BITS = 20


class Positions:
    """The counter of a node, for positions."""

    def __init__(self) -> None:
        self._next = 0
        self.jump()

    def take(self, messages: int) -> int:
        """Return the first number of a range for so many messages; the statement wraps the counter."""
        first, self._next = self._next, self._next + messages
        return first

    def jump(self) -> None:
        """Continue at a random number in the lower half: a counter that wraps gives a low number after a high one."""
        self._next = getrandbits(COUNTER_BITS - 1)


_LATE_MS = 50
_SCANS_PER_NEAR_SCAN = 16
_FULL_SCAN_INTERVAL_MS = SECOND_MS
_SLOW_S = 0.02
_SLOW_FACTOR = 8
_SLOW_SCANS_MIN = 2  # one slow scan may be chance: a busy machine
_COSTS_PER_FULL_SCAN = 10
_LANES = PRIORITY.maximum
_INTERVAL_MS = SECOND_MS
_INTERVAL_MS_WHILE_FREE = 10 * SECOND_MS
_COSTS_PER_INTERVAL = 50
_HIDDEN_COUNTED_MAX = 2_000  # at each receive, of each priority, or groups
_CACHED_PARTITIONS_MAX = 10_000


class PartitionCache(dict[int, T]):
    """State by partition, created on first use; all of it is dropped when it grows too large."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __missing__(self, partition: int) -> T:
        if len(self) >= _CACHED_PARTITIONS_MAX:
            self.clear()
        made = self[partition] = self._make()
        return made


@dataclass(slots=True)
class LowWater:
    """The last received message of each priority of a partition, and where the next scan starts.

    FIFO queues have none: a group may become eligible by an instant that is long past. A full scan is due at
    ``full_scan_at_ms``, and allowed from ``full_scan_at_s_min`` of the stopwatch. The last partial scan took
    ``partial_s``; the last ``slow_scans`` full scans took much longer. ``marks`` is in the form of ``BEGINNING``.
    """

    clock: Clock
    full_scan_at_ms: int = 0
    full_scan_at_s_min: float = 0.0
    scans: int = 0
    is_full_scan: bool = False
    began_s: float = 0.0
    partial_s: float | None = None
    slow_scans: int = 0
    marks: list[int] = field(default_factory=lambda: list(BEGINNING))

    def begin(self) -> list[int]:
        """Begin a scan; return the marks behind which it starts."""
        now_ms, self.began_s = self.clock.now_ms(), stopwatch_s()
        self.is_full_scan = now_ms >= self.full_scan_at_ms and self.began_s >= self.full_scan_at_s_min
        if self.is_full_scan:
            self.full_scan_at_ms = now_ms + _FULL_SCAN_INTERVAL_MS
            return BEGINNING
        self.scans += 1
        if self.scans % _SCANS_PER_NEAR_SCAN:
            return self.marks
        return [max(0, instant - _LATE_MS) for instant in self.marks[:_LANES]] + BEGINNING[_LANES:]

    def begin_full_scan(self) -> list[int] | None:
        """Begin a full scan after a partial one that found nothing; ``None`` if none follows."""
        if self.is_full_scan:
            return None
        self._finish_scan()
        self.began_s = stopwatch_s()
        self.is_full_scan = self.began_s >= self.full_scan_at_s_min
        return BEGINNING if self.is_full_scan else None

    def record(self, rows: list[Any]) -> None:
        """Record the result and the cost of the scan."""
        self._finish_scan()
        for row in sorted(rows, key=itemgetter("was_visible_at", "seq")):
            lane, instant = row["priority"] - 1, row["was_visible_at"]
            self.marks[lane], self.marks[_LANES + lane] = instant, row["seq"] if instant < row["now"] else -1

    def _finish_scan(self) -> None:
        now_s = stopwatch_s()
        cost_s = now_s - self.began_s
        if not self.is_full_scan:
            self.partial_s = cost_s
            return
        self.is_full_scan = False
        is_slow = self.partial_s is not None and cost_s >= max(_SLOW_S, _SLOW_FACTOR * self.partial_s)
        self.slow_scans = self.slow_scans + 1 if is_slow else 0
        self.full_scan_at_s_min = now_s + _COSTS_PER_FULL_SCAN * cost_s if self.slow_scans >= _SLOW_SCANS_MIN else 0.0

    @property
    def full_scan_wait_ms(self) -> int | None:
        """The ms until the next full scan is allowed; ``None`` if it is allowed now."""
        left_s = self.full_scan_at_s_min - stopwatch_s()
        return int(left_s * SECOND_MS) + 1 if left_s > 0 else None


@dataclass(slots=True)
class _InFlightCount:
    """The last count of messages in flight."""

    in_flight: int = 0
    delta: int = 0  # changes by this node since the count, without shared ones
    due_ms: int = 0  # when the next count is due, by the database's clock
    recount_at_ms: int = 0  # the same by the machine's clock
    recount_at_ms_if_free: int = 0  # while half of the quota is free
    shares_delta: bool = False  # changes are added to the count of all nodes at once


class InFlight:
    """The in-flight quotas of queues, from counts and this node's changes since."""

    def __init__(self, *, options: PostgresOptions, clock: Clock, watches: Watches) -> None:
        self._options = options
        self._clock = clock
        self._watches = watches
        self._counts: PartitionCache[_InFlightCount] = PartitionCache(_InFlightCount)

    async def free_slots(self, connection: Any, queue: Queue, wanted: int) -> tuple[int, int | None]:
        """Return how many more messages may be in flight, up to ``wanted``, and, for 0, when to try again."""
        quota = queue.settings.in_flight_max
        if quota is None:
            quota = self._options.fifo_in_flight_max if queue.settings.fifo else self._options.in_flight_max
        is_small, row = quota <= self._options.in_flight_counted_max, None
        count = self._counts.get(queue.partition)
        if is_small and (count is None or self._clock.now_ms() >= count.recount_at_ms):
            row = await self._count(connection, queue, _HIDDEN_COUNTED_MAX)
        if row is not None and (row["is_whole"] or row["in_flight"] >= quota):
            free_slots, due_ms = quota - row["in_flight"], row["due"]
            if count is not None:
                count.shares_delta, count.delta = False, 0
        else:
            count = await self._estimate(connection, queue, quota, shares_delta=is_small)
            free_slots, due_ms = quota - count.in_flight - count.delta, count.due_ms
        if free_slots <= 0:
            self._watches.record_full(queue.name)
            return 0, due_ms
        return min(free_slots, wanted), None

    async def delivered(self, connection: Any, queue: Queue, messages: int) -> None:
        """Record messages that this node delivered."""
        count = self._counts.get(queue.partition)
        if count is not None:
            count.delta += messages
            if count.shares_delta and messages:
                await self._add(connection, queue, count)

    def freed(self, queue: Queue, messages: int, now_ms: int) -> None:
        """Record messages that are no longer in flight, and wake the waiters that were over the quota."""
        if (count := self._counts.get(queue.partition)) is not None:
            count.delta -= messages
        self._watches.slot_freed(queue.name, now_ms)

    async def _estimate(self, connection: Any, queue: Queue, quota: int, *, shares_delta: bool) -> _InFlightCount:
        """Return a recent count: the cached one, that of another node, or, if due, a new one."""
        count = self._counts[queue.partition]
        count.shares_delta = shares_delta
        if shares_delta and count.delta:
            await self._add(connection, queue, count)
        is_free = 2 * (count.in_flight + count.delta) < quota
        recount_at_ms = count.recount_at_ms_if_free if is_free else count.recount_at_ms
        if not shares_delta and self._clock.now_ms() < recount_at_ms:
            return count
        row = await connection.fetchrow(STANDARD["claim_count"], queue.partition, _INTERVAL_MS)
        count.delta = max(0, count.delta)  # a count by another node may not include all of it
        if row["is_claimed"] or row["counted"] is None:
            began_s = stopwatch_s()
            counted = (await self._count(connection, queue, None))["in_flight"]
            args = queue.partition, counted, interval_ms(began_s), row["counted"] if shares_delta else None
            count.delta = 0
            row = await connection.fetchrow(STANDARD["store_count"], *args)
        now_ms = self._clock.now_ms()
        count.in_flight, count.due_ms = row["counted"], row["next_at"]
        count.recount_at_ms = now_ms + max(0, row["next_at"] - row["now"])
        count.recount_at_ms_if_free = max(count.recount_at_ms, now_ms + _INTERVAL_MS_WHILE_FREE)
        return count

    async def _add(self, connection: Any, queue: Queue, count: _InFlightCount) -> None:
        """Add this node's change to the count of all nodes, unless a newer count includes it."""
        delta, count.delta = count.delta, 0
        await connection.execute(STANDARD["add_count"], queue.partition, delta, count.due_ms)

    async def _count(self, connection: Any, queue: Queue, hidden_max: int | None) -> Any:
        return await connection.fetchrow(sql(queue)["in_flight"], queue.partition, hidden_max, retention_ms(queue))


def interval_ms(began_s: float) -> int:
    """Return the ms until work that began then and is finished may run again: it takes at most 1/50 of the time."""
    return max(_INTERVAL_MS, _COSTS_PER_INTERVAL * int((stopwatch_s() - began_s) * SECOND_MS))


GROUPED = 100
"""Added to the priority to get the stored priority of a message with a group."""

_LEASES_READ_MAX = 3_000
_HIDDEN_READ_MAX = 20_000


class FairShares(Fairness):
    """The groups of one partition, and which of them are noisy. Instants of leases are of the database's clock."""

    __slots__ = ("_ahead_ms", "_clock", "refresh_at_ms", "suspects", "touched")

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.suspects: set[int] = set()  # groups that are noisy, or may be soon
        self.refresh_at_ms = 0  # when the leases of all nodes may be read again
        self.touched: set[int] | None = None  # positions that changed during a refresh
        self._clock = clock
        self._ahead_ms = 0  # offset of the database's clock

    def stored(self, groups: Sequence[int | None], rows: Sequence[Any]) -> None:
        """Record stored messages; a send can make a busy group that was silent noisy again."""
        for group, row in zip(groups, rows, strict=True):
            if group is not None:
                self.record_send(group, row["sent_at"])
                self._suspect(group, row["sent_at"])

    def received(self, queue: Queue, rows: Sequence[Any]) -> None:
        """Record delivered messages, which are hidden now."""
        if not rows or "group_key" not in rows[0]:
            return  # the queue has just become fair: the next refresh reads them
        self._ahead_ms = rows[0]["now"] - self._clock.now_ms()
        for row in rows:
            self.begin_lease(row["seq"], lease_of(queue, row, row["visible_at"], row["now"]), row["now"])

    def ended(self, positions: Iterable[int], now_ms: int) -> None:
        """Record deleted messages."""
        self.expire_leases(now_ms)
        for position in positions:
            self.end_lease(position, now_ms)

    def moved(self, queue: Queue, row: Any) -> None:
        """Record a new deadline of a message; if it was visible, its processing starts now."""
        self.expire_leases(row["now"])
        lease = lease_of(queue, row, row["until"], row["now"])
        is_new = not self.change_lease(row["seq"], lease.ends_at_ms)
        if is_new and row["receive_count"] and row["visible_at"] <= row["now"]:
            self.begin_lease(row["seq"], lease, row["now"])

    def begin_lease(self, position: int, lease: Lease, now_ms: int) -> None:
        self._touch(position)
        self.expire_leases(now_ms)
        super().begin_lease(position, lease, now_ms)
        if lease.group is not None and self.has_many_in_flight(lease.group):
            self.suspects.add(lease.group)

    def change_lease(self, position: int, ends_at_ms: int) -> bool:
        self._touch(position)
        return super().change_lease(position, ends_at_ms)

    def end_lease(self, position: int, at_ms: int) -> Lease | None:
        self._touch(position)
        lease = super().end_lease(position, at_ms)
        if lease is not None and lease.group is not None:
            self._suspect(lease.group, at_ms)
        return lease

    def merge(self, found: Mapping[int, Lease], now_ms: int, *, whole: bool) -> None:
        """Merge the messages in flight that were read, by position; ``whole``: these are all."""
        touched, self.touched = self.touched or set(), None
        self.expire_leases(now_ms)
        for position in found.keys() - touched:
            lease = found[position]
            known = self.leases.get(position)
            if known is None or known.since_ms < lease.since_ms:
                self.begin_lease(position, lease, now_ms)
            elif known.ends_at_ms != lease.ends_at_ms:
                self.change_lease(position, lease.ends_at_ms)
        if whole:
            for position in self.leases.keys() - found.keys() - touched:
                self.end_lease(position, now_ms)

    def _touch(self, position: int) -> None:
        if self.touched is not None:
            self.touched.add(position)

    def _suspect(self, group: int, now_ms: int) -> None:
        if self.would_be_noisy(group, now_ms):
            self.suspects.add(group)

    def noisy(self, now_ms: int, *, judge: bool = True) -> list[int]:
        """Return the noisy groups, those with the fewest messages in flight first; ``judge`` keeps the judgement."""
        self.expire_leases(now_ms)
        is_noisy = self.is_noisy if judge else self.would_be_noisy
        noisy = [group for group in self.suspects if is_noisy(group, now_ms)]
        if judge:
            self.suspects = {*noisy, *filter(self.has_many_in_flight, self.suspects)}
        return sorted(noisy, key=lambda group: (self.in_flight(group), group))

    async def find_noisy(self, connection: Any, queue: Queue, *, judge: bool = True) -> list[int]:
        """Return the noisy groups after a refresh, if one is due."""
        await self.refresh(connection, queue)
        return self.noisy(self._clock.now_ms() + self._ahead_ms, judge=judge)

    async def refresh(self, connection: Any, queue: Queue) -> None:
        """Read the messages in flight at all nodes, if that is due."""
        kept_ms, now_ms = retention_ms(queue), self._clock.now_ms()
        if now_ms < self.refresh_at_ms:
            return
        began_s = stopwatch_s()
        self.refresh_at_ms = now_ms + _INTERVAL_MS  # no other command refreshes meanwhile
        self.touched = set()  # changes during the read are newer than the rows
        rows = await connection.fetch(FAIR["leases"], queue.partition, _LEASES_READ_MAX, _HIDDEN_READ_MAX, kept_ms)
        if rows:
            self._ahead_ms = rows[0]["now"] - self._clock.now_ms()
        found = {row["seq"]: lease_of(queue, row, row["visible_at"], row["received_at"]) for row in rows}
        self.merge(found, self._clock.now_ms() + self._ahead_ms, whole=len(rows) < _LEASES_READ_MAX)
        if self.suspects:
            for row in await connection.fetch(FAIR["group_states"], queue.partition, list(self.suspects), kept_ms):
                self.record_past_send(row["group_key"], row["sent_at"])
                if not row["has_any"]:
                    self.mark_drained(row["group_key"])
        self.refresh_at_ms = now_ms + interval_ms(began_s)


def keys_of(messages: Iterable[NewMessage | CopiedMessage]) -> list[int | None]:
    """Return the hash of each message's group; groups with the same hash count as one group."""
    return [None if each.group is None else group_hash(each.group) for each in messages]


def lease_of(queue: Queue, row: Any, visible_at_ms: int, since_ms: int) -> Lease:
    """Return the lease of a message that is hidden until ``visible_at_ms`` or the end of its retention."""
    return Lease(min(visible_at_ms, row["sent_at"] + retention_ms(queue)), row["group_key"], since_ms)


STEP_MS = 3_600 * SECOND_MS
"""A larger deviation of a clock is a step; ``mq.retention_now()`` has the same hour."""

_CONFIRM_INTERVAL_MS = 300 * SECOND_MS  # all nodes write the same row


class ClockGuard:
    """This node's check of the database's clock."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._name = node.watches.name
        self._last_good: tuple[int, int] | None = None  # time of the database, and of the boot clock
        self._trusts = 0
        self._is_suspicious = False  # the last check found a step; the next one decides
        self._doubt_ms: int | None = None

    async def check(self) -> None:
        """Confirm or doubt the database's clock."""
        async with self._node.database.connection() as connection:
            row = await connection.fetchrow(SQL["clock"])
            now_ms: int = row["now"]
            boot_ms = self._node.clock.machine.boot_ms()
            if row["trusts"] != self._trusts:
                self._trusts, self._last_good = row["trusts"], None
            confirmed_ms = now_ms if row["confirmed_at"] is None else row["confirmed_at"]
            doubter, is_suspicious = row["doubted_by"], False
            last_good_ms, last_good_boot_ms = (confirmed_ms, boot_ms) if self._last_good is None else self._last_good
            if abs(now_ms - last_good_ms - (boot_ms - last_good_boot_ms)) <= STEP_MS:
                # A node with a good time from before the step may clear the doubt of another node.
                known_ms = now_ms if self._last_good is None else min(last_good_ms, now_ms)
                may_confirm = doubter in (None, self._name) or known_ms <= confirmed_ms + STEP_MS
                is_due = row["confirmed_at"] is None or abs(now_ms - confirmed_ms) > _CONFIRM_INTERVAL_MS
                confirms = may_confirm and (doubter is not None or is_due)
                self._last_good, is_doubted = (now_ms, boot_ms), not may_confirm
            elif abs(now_ms - self._node.clock.machine.wall_ms()) <= STEP_MS:
                confirms = doubter == self._name
                self._last_good, is_doubted = (now_ms, boot_ms), doubter not in (None, self._name)
            else:
                confirms, is_doubted = False, doubter is not None or self._is_suspicious
                if doubter is None and self._is_suspicious:
                    await connection.execute(SQL["doubt_clock"], self._name, confirmed_ms)
                is_suspicious = True
            if confirms:
                await connection.execute(SQL["confirm_clock"], doubter)
                confirmed_ms = now_ms
        self._is_suspicious, ahead_ms = is_suspicious, now_ms - confirmed_ms
        if is_doubted and self._doubt_ms is None:
            log.warning(
                "the database's clock is doubted: it is %d s from the last confirmed instant", ahead_ms // 1_000
            )
        self._doubt_ms = ahead_ms if is_doubted else None
        self._node.catalog.keep_longer(ahead_ms if is_doubted or ahead_ms > STEP_MS else 0)

    async def trust(self) -> str:
        """Confirm the present time on behalf of an operator; return the effect, as a sentence."""
        was_doubted = self._doubt_ms is not None
        async with self._node.database.connection() as connection:
            await connection.execute(SQL["trust_clock"])
        await self.check()
        return "The database's clock is trusted: retention deletes again." if was_doubted else NOTHING_HELD_BACK

    def warnings(self) -> list[str]:
        """Return a warning while the clock is doubted."""
        if self._doubt_ms is None:
            return []
        hours = self._doubt_ms / STEP_MS
        text = f"The clock of the database is doubted: it is {hours:+.1f} h from the last confirmed instant, and"
        remedy = "Set the clock right, or, if it is right, run veilmq clock trust."
        return [f"{text} retention deletes nothing. {remedy}"]

    def metrics(self) -> list[Metric]:
        """Return whether the clock is doubted."""
        is_doubted = self._doubt_ms is not None
        return [gauge("store_clock_doubted", "1 while a clock is doubted and retention deletes nothing.", is_doubted)]


class Node:
    """The state that the parts of one node share."""

    def __init__(self, database: Database, *, options: PostgresOptions, clock: DatabaseClock) -> None:
        self.database = database
        self.options = options
        self.clock = clock
        self.codec: ReceiptCodec  # once the database was reached
        self.ids = IdSource()
        self.tasks: set[asyncio.Task[None]] = set()
        self.catalog = Catalog(options)
        self.watches = Watches(database, poll_s=options.poll_s, clock=clock, catalog=self.catalog, start=self.start)
        self.positions = Positions()
        self.totals: defaultdict[int, Counter[str]] = defaultdict(Counter)
        """Messages by queue number, counted by this node since its start; a repeated transaction may count twice."""
        self.fair: PartitionCache[FairShares] = PartitionCache(partial(FairShares, clock.machine))
        self.low_water: PartitionCache[LowWater] = PartitionCache(partial(LowWater, clock.machine))
        database.on_lost = self.low_water.clear
        self.in_flight = InFlight(options=options, clock=clock.machine, watches=self.watches)
        self.workers: dict[type[Command], Worker] = {}  # by the command that does one slice
        # Counts of many messages, and until when they are reused.
        self.counts: PartitionCache[tuple[float, Any]] = PartitionCache(lambda: (0.0, None))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` as a task of this node."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def retry_collisions(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of ``work``, repeated after conflicts with other nodes."""
        for _ in range(COLLISIONS_MAX):
            try:
                return await work()
            except COLLISIONS:
                self.positions.jump()
        raise InternalError

    def stored(self, queue: Queue, messages: int) -> None:
        """Count sent messages, except those for another database, which are not in the queue yet."""
        if not queue.away:
            self.totals[queue.number]["sent"] += messages

    def deleted(self, queue: Queue, seqs: list[int], now_ms: int) -> None:
        """Record deleted messages that were in flight."""
        self.totals[queue.number]["deleted"] += len(seqs)
        self.in_flight.freed(queue, len(seqs), now_ms)
        shares = self.fair_of(queue)
        if shares is not None:
            shares.ended(seqs, now_ms)

    def fair_of(self, queue: Queue) -> FairShares | None:
        """Return the groups of ``queue``; ``None`` while no message with a group is known."""
        return self.fair[queue.partition] if queue.has_groups or queue.partition in self.fair else None

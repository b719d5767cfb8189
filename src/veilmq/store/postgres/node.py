"""What one node keeps in memory of queues, and may lose: positions, low-water marks, quotas, totals, fairness.

**Positions.** A seq is an instant in milliseconds, which the database knows, and a counter of the node, so that of two
messages of the same millisecond the later one has the higher seq. Where two nodes have given the same, the later one
jumps and tries again.

**Low-water marks.** What was deleted or hidden leaves entries behind in a partition's index as long as some transaction
is open, so a receive from the beginning gets slower with every message that is consumed meanwhile. What becomes visible
does so at the present instant or later; so once a receive has taken messages, nothing of their priority can be before
the last of them, but for what was committed late, or given back by a node that failed. Looks begin behind that message,
now and then a little before it, and once a second, and whenever nothing is found, at the beginning. While a transaction
is open for long, even those few become dear: they are had for a tenth of the time at the most.

**Quotas.** A small quota is counted at each receive, and exact. Up to a large one, one node counts now and then for all
(at most a fiftieth of the time), and each adds what it gave since and subtracts what it deleted: between two counts a
quota may be passed by what other nodes give in that time. So it is with a small one beside thousands of delayed
messages, except that nodes add what they give to the count of all at once: only receives at the same instant pass it,
and an ended lease frees its place from the next count on.

**Fair queues** are standard queues with messages that name a group; others cost nothing. A node follows what it gave
out itself, exactly. What other nodes gave, and what became of it, it learns from which messages are in flight, once a
second at the most, and no more than a fiftieth of the time. ``core.messages`` judges.
"""

import asyncio
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
from veilmq.store.claims import Backlog
from veilmq.store.clock import stopwatch_s
from veilmq.store.copying import CopiedMessage
from veilmq.store.postgres.database import COLLISIONS, COLLISIONS_MAX, Database, DatabaseClock, Mover, PostgresOptions
from veilmq.store.postgres.queues import BEGINNING, FAIR, STANDARD, Catalog, Queue, retention_ms, sql
from veilmq.store.postgres.wakeups import Watches

T = TypeVar("T")

COUNTER_BITS = 20


class Positions:
    """The counter of one node."""

    def __init__(self) -> None:
        self._next = 0
        self.jump()

    def take(self, messages: int) -> int:
        """Return the first of so many numbers; the statement has them go round."""
        first, self._next = self._next, self._next + messages
        return first

    def jump(self) -> None:
        """Go on anywhere else, in the lower half: a counter that goes round gives a low number after a high one."""
        self._next = getrandbits(COUNTER_BITS - 1)


_LATE_MS = 50
_SCANS_PER_NEAR_ONE = 16
_WHOLE_SCAN_MS = SECOND_MS
_SLOW_S = 0.02
_SLOW_FACTOR = 8
_SLOW_SCANS_MIN = 2  # once may be chance: a busy machine
_COSTS_PER_WHOLE_SCAN = 10
_LANES = PRIORITY.maximum
_INTERVAL_MS = SECOND_MS
_INTERVAL_MS_WHILE_FREE = 10 * SECOND_MS
_COSTS_PER_INTERVAL = 50
_HIDDEN_COUNTED_MAX = 2_000  # of a priority, or groups, at each receive
_KNOWN_MAX = 10_000  # queues


class Known(dict[int, T]):
    """What a node knows of each partition: made when first named, and all forgotten where it would be too much."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __missing__(self, partition: int) -> T:
        if len(self) >= _KNOWN_MAX:
            self.clear()
        made = self[partition] = self._make()
        return made


@dataclass(slots=True)
class LowWater:
    """The last message that was taken of each priority of a partition, and which kind of look is due.

    Standard queues alone have marks: a group may come up by an instant that is long past. From ``whole_at_ms`` on the
    next look is from the beginning; none is before ``again_at_s`` of the stopwatch, however little is found. The
    present look began at ``began_s``; one that was not from the beginning took ``usual_s``, and the last ``slow_scans``
    from there took far longer.
    """

    clock: Clock
    whole_at_ms: int = 0
    again_at_s: float = 0.0
    scans: int = 0
    is_whole: bool = False
    began_s: float = 0.0
    usual_s: float | None = None
    slow_scans: int = 0
    last: list[int] = field(default_factory=lambda: list(BEGINNING))

    def begin(self) -> list[int]:
        """Begin a look; return behind what it looks for messages of each priority, in the form of ``BEGINNING``."""
        now_ms, self.began_s = self.clock.now_ms(), stopwatch_s()
        self.is_whole = now_ms >= self.whole_at_ms and self.began_s >= self.again_at_s
        if self.is_whole:
            self.whole_at_ms = now_ms + _WHOLE_SCAN_MS
            return BEGINNING
        self.scans += 1
        if self.scans % _SCANS_PER_NEAR_ONE:
            return self.last
        return [max(0, instant - _LATE_MS) for instant in self.last[:_LANES]] + BEGINNING[_LANES:]

    def instead(self) -> list[int] | None:
        """Return the beginning, for a look that found nothing and began elsewhere; ``None`` for no other look."""
        if self.is_whole:
            return None
        self._end_scan()
        self.began_s = stopwatch_s()
        self.is_whole = self.began_s >= self.again_at_s
        return BEGINNING if self.is_whole else None

    def found(self, rows: list[Any]) -> None:
        """Take note of what the look took, and of what it cost."""
        self._end_scan()
        for row in sorted(rows, key=itemgetter("was_visible_at", "seq")):
            lane, instant = row["priority"] - 1, row["was_visible_at"]
            self.last[lane], self.last[_LANES + lane] = instant, row["seq"] if instant < row["now"] else -1

    def _end_scan(self) -> None:
        now_s = stopwatch_s()
        cost_s = now_s - self.began_s
        if not self.is_whole:
            self.usual_s = cost_s
            return
        self.is_whole = False
        is_slow = self.usual_s is not None and cost_s >= max(_SLOW_S, _SLOW_FACTOR * self.usual_s)
        self.slow_scans = self.slow_scans + 1 if is_slow else 0
        self.again_at_s = now_s + _COSTS_PER_WHOLE_SCAN * cost_s if self.slow_scans >= _SLOW_SCANS_MIN else 0.0

    @property
    def again_ms(self) -> int | None:
        """In how many ms there may be a look at what is not behind ``last``; ``None``: at once."""
        left_s = self.again_at_s - stopwatch_s()
        return int(left_s * SECOND_MS) + 1 if left_s > 0 else None


@dataclass(slots=True)
class _Counted:
    """How many are in flight, as counted; ``own`` is what the node gave since, but for what it added where it ``adds``.

    There may be another count at ``due_ms`` by the database's clock, which is ``again_ms`` of the node's; while half of
    the quota is free, at ``again_free_ms``.
    """

    in_flight: int = 0
    own: int = 0
    due_ms: int = 0
    again_ms: int = 0
    again_free_ms: int = 0
    adds: bool = False


class InFlight:
    """The quotas of in-flight messages, as one node knows them."""

    def __init__(self, *, options: PostgresOptions, clock: Clock, watches: Watches) -> None:
        self._options = options
        self._clock = clock
        self._watches = watches
        self._known: Known[_Counted] = Known(_Counted)

    async def places(self, connection: Any, queue: Queue, wanted: int) -> tuple[int, int | None]:
        """Return how many more may be in flight, up to ``wanted``; and, for none, when to look for a place."""
        quota = queue.settings.in_flight_max
        if quota is None:
            quota = self._options.fifo_in_flight_max if queue.settings.fifo else self._options.in_flight_max
        is_small, row = quota <= self._options.in_flight_counted_max, None
        known = self._known.get(queue.partition)
        if is_small and (known is None or self._clock.now_ms() >= known.again_ms):
            row = await self._count(connection, queue, _HIDDEN_COUNTED_MAX)
        if row is not None and (row["is_whole"] or row["in_flight"] >= quota):
            places, due_ms = quota - row["in_flight"], row["due"]
            if known is not None:
                known.adds, known.own = False, 0
        else:
            known = await self._estimate(connection, queue, quota, adds=is_small)
            places, due_ms = quota - known.in_flight - known.own, known.due_ms
        if places <= 0:
            self._watches.found_full(queue.name)
            return 0, due_ms
        return min(places, wanted), None

    async def given(self, connection: Any, queue: Queue, messages: int) -> None:
        """Take note of what this node gave out."""
        known = self._known.get(queue.partition)
        if known is not None:
            known.own += messages
            if known.adds and messages:
                await self._add(connection, queue, known)

    def freed(self, queue: Queue, messages: int, now_ms: int) -> None:
        """Take note of what is no longer in flight, and wake the waiters that found no place."""
        if (known := self._known.get(queue.partition)) is not None:
            known.own -= messages
        self._watches.freed(queue.name, now_ms)

    async def _estimate(self, connection: Any, queue: Queue, quota: int, *, adds: bool) -> _Counted:
        """Return a count that is recent enough: the known one, that of another node or, if it is time to, a new one."""
        known = self._known[queue.partition]
        known.adds = adds
        if adds and known.own:
            await self._add(connection, queue, known)
        is_free = 2 * (known.in_flight + known.own) < quota
        if not adds and self._clock.now_ms() < (known.again_free_ms if is_free else known.again_ms):
            return known
        row = await connection.fetchrow(STANDARD["claim_count"], queue.partition, _INTERVAL_MS)
        known.own = max(0, known.own)  # which the one that has counted did not see all of
        if row["is_claimed"] or row["counted"] is None:
            began_s = stopwatch_s()
            counted = (await self._count(connection, queue, None))["in_flight"]
            known.own, terms = 0, (queue.partition, counted, _interval_ms(began_s), row["counted"] if adds else None)
            row = await connection.fetchrow(STANDARD["note_count"], *terms)
        now_ms = self._clock.now_ms()
        known.in_flight, known.due_ms = row["counted"], row["next_at"]
        known.again_ms = now_ms + max(0, row["next_at"] - row["now"])
        known.again_free_ms = max(known.again_ms, now_ms + _INTERVAL_MS_WHILE_FREE)
        return known

    async def _add(self, connection: Any, queue: Queue, known: _Counted) -> None:
        """Add to the count of all nodes what this one gave, less what it freed, unless a later count has seen that."""
        own, known.own = known.own, 0
        await connection.execute(STANDARD["add_count"], queue.partition, own, known.due_ms)

    async def _count(self, connection: Any, queue: Queue, passed_max: int | None) -> Any:
        return await connection.fetchrow(sql(queue)["in_flight"], queue.partition, passed_max, retention_ms(queue))


def _interval_ms(began_s: float) -> int:
    """Return when to do again what began then and is done: a fiftieth of the time at the most is spent on it."""
    return max(_INTERVAL_MS, _COSTS_PER_INTERVAL * int((stopwatch_s() - began_s) * SECOND_MS))


LANE = 100
"""What is added to the priority of a message with a group where it is stored."""

_LEASES_READ_MAX = 3_000
_HIDDEN_READ_MAX = 20_000


class FairShares(Fairness):
    """The groups of one partition, and who is noisy among them. Instants are of the database's clock."""

    __slots__ = ("_ahead_ms", "_clock", "refresh_at_ms", "suspects", "touched")

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.suspects: set[int] = set()
        """The groups that are noisy, or may be soon."""
        self.refresh_at_ms = 0
        """From when on, by the node's clock, there may be another look at what other nodes do."""
        self.touched: set[int] | None = None  # positions of which something was heard during a look
        self._clock = clock
        self._ahead_ms = 0  # the database's clock, of this node's

    # What happens.

    def stored(self, groups: Sequence[int | None], rows: Sequence[Any]) -> None:
        """Note what was stored; a group that took much and was silent may be noisy again by that."""
        for group, row in zip(groups, rows, strict=True):
            if group is not None:
                self.sent(group, row["sent_at"])
                self._suspect(group, row["sent_at"])

    def received(self, queue: Queue, rows: Sequence[Any]) -> None:
        """Note what was given out, as it is hidden now."""
        if not rows or "group_key" not in rows[0]:
            return  # of a queue that was just found to be fair, the next look will tell
        self._ahead_ms = rows[0]["now"] - self._clock.now_ms()
        for row in rows:
            self.begin_lease(row["seq"], lease_of(queue, row, row["visible_at"], row["now"]), row["now"])

    def passed_over(self, rows: Iterable[Any]) -> None:
        """Note which of the groups that had to wait have nothing to give any more."""
        for group in {row["group_key"] for row in rows if row["is_drained"]}:
            self.drained(group)

    def ended(self, positions: Iterable[int], now_ms: int) -> None:
        """Note messages that are gone."""
        self.expire_leases(now_ms)
        for position in positions:
            self.end_lease(position, now_ms)

    def moved(self, queue: Queue, row: Any) -> None:
        """Note another deadline of a message, which is processed from now on if it was visible."""
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

    def correct(self, found: Mapping[int, Lease], now_ms: int, *, whole: bool) -> None:
        """Take over what was seen in flight, by positions; ``whole`` tells that these are all."""
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
        """Return the groups that are noisy now, by a judgement or as one would be: the one that comes first, first."""
        self.expire_leases(now_ms)
        is_noisy = self.is_noisy if judge else self.would_be_noisy
        noisy = [group for group in self.suspects if is_noisy(group, now_ms)]
        if judge:
            self.suspects = {*noisy, *filter(self.has_many_in_flight, self.suspects)}
        return sorted(noisy, key=lambda group: (self.in_flight(group), group))

    async def find_noisy(self, connection: Any, queue: Queue, *, judge: bool = True) -> list[int]:
        """Do so with what other nodes do, as far as it is known."""
        await self.refresh(connection, queue)
        return self.noisy(self._clock.now_ms() + self._ahead_ms, judge=judge)

    async def refresh(self, connection: Any, queue: Queue) -> None:
        """See what other nodes do, if a look at that is due."""
        kept_ms, now_ms = retention_ms(queue), self._clock.now_ms()
        if now_ms < self.refresh_at_ms:
            return
        began_s = stopwatch_s()
        self.refresh_at_ms = now_ms + _INTERVAL_MS  # no other command looks meanwhile
        self.touched = set()  # what is heard while the rows are read is the later news
        rows = await connection.fetch(FAIR["flights"], queue.partition, _LEASES_READ_MAX, _HIDDEN_READ_MAX, kept_ms)
        if rows:
            self._ahead_ms = rows[0]["now"] - self._clock.now_ms()
        found = {row["seq"]: lease_of(queue, row, row["visible_at"], row["received_at"]) for row in rows}
        self.correct(found, self._clock.now_ms() + self._ahead_ms, whole=len(rows) < _LEASES_READ_MAX)
        if self.suspects:
            for row in await connection.fetch(FAIR["turns"], queue.partition, list(self.suspects), kept_ms):
                self.last_sent(row["group_key"], row["sent_at"])
                if not row["has_any"]:
                    self.drained(row["group_key"])
        self.refresh_at_ms = now_ms + _interval_ms(began_s)


def keys_of(messages: Iterable[NewMessage | CopiedMessage]) -> list[int | None]:
    """Return the number of each message's group, a hash: two groups that have one number count as one, and no more."""
    return [None if each.group is None else group_hash(each.group) for each in messages]


def lease_of(queue: Queue, row: Any, visible_at_ms: int, since_ms: int) -> Lease:
    """Return the lease of a message that is hidden until then, or until its retention ends."""
    return Lease(min(visible_at_ms, row["sent_at"] + retention_ms(queue)), row["group_key"], since_ms)


class Node:
    """What the parts of one node share."""

    def __init__(self, database: Database, *, options: PostgresOptions, clock: DatabaseClock) -> None:
        self.database = database
        self.options = options
        self.clock = clock
        self.book = ReceiptCodec(keys=[])
        self.ids = IdSource()
        self.tasks: set[asyncio.Task[None]] = set()
        """What is under way."""
        self.catalog = Catalog(options)
        self.watches = Watches(database, round_s=options.round_s, clock=clock, catalog=self.catalog, start=self.start)
        self.positions = Positions()
        self.totals: defaultdict[int, Counter[str]] = defaultdict(Counter)
        """What has passed through each queue at this node, since that began, by the number of the queue.

        Each node counts what it does itself, once the statement that did it has come back; the numbers of a store are
        the sums over its nodes. (A transaction that is repeated afterwards may be counted twice.)
        """
        self.fair: Known[FairShares] = Known(partial(FairShares, clock))
        self.low_water: Known[LowWater] = Known(partial(LowWater, clock))
        database.on_lost = self.low_water.clear
        self.in_flight = InFlight(options=options, clock=clock, watches=self.watches)
        self.workers: dict[type[Command], Mover] = {}
        """What does slices of work in the background, by the step that does one."""
        self.backlogs: Known[tuple[float, Backlog]] = Known(lambda: (0.0, Backlog(0, None)))
        """Counts of visible messages that took long, and until when they are given again."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Make a task of ``work``."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def repeated(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return what ``work`` returns, which is called again when another node was in its way."""
        for _ in range(COLLISIONS_MAX):
            try:
                return await work()
            except COLLISIONS:
                self.positions.jump()
        raise InternalError

    def stored(self, queue: Queue, messages: int) -> None:
        """Count what was sent; what is on its way to another database is not in the queue yet."""
        if not queue.away:
            self.totals[queue.number]["sent"] += messages

    def deleted(self, queue: Queue, seqs: list[int], now_ms: int) -> None:
        """Take note of messages in flight that were deleted."""
        self.totals[queue.number]["deleted"] += len(seqs)
        self.in_flight.freed(queue, len(seqs), now_ms)
        shares = self.fair_of(queue)
        if shares is not None:
            shares.ended(seqs, now_ms)

    def fair_of(self, queue: Queue) -> FairShares | None:
        """Return what is known of the groups of ``queue``; ``None`` while no message of it is known to name one."""
        return self.fair[queue.partition] if queue.has_groups or queue.partition in self.fair else None

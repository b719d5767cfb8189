"""What a node counts: places for messages in flight, visible messages for heartbeats, and what passed through it.

A small quota is counted at each receive, and exact. Counting up to a large one would be dear, so there one node counts
now and then for all of them (at the most a fiftieth of the time), and each adds what it gave since and subtracts what
it deleted: between two counts a quota may be passed by what other nodes give in that time. As long as less than half of
a quota is taken, a node asks every ten seconds, else every second.
"""

from asyncio import get_running_loop
from collections import Counter
from dataclasses import dataclass
from typing import Any

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.engines.clock import stopwatch_s
from veilmq.engines.named_sql import load
from veilmq.store.claimed import Backlog
from veilmq.store.postgres.catalog import Queue
from veilmq.store.postgres.coalescing import STANDARD, retention_ms, sql
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.watches import Watches

SQL = load("veilmq.store.postgres", "claims.sql")

LONG_S = 0.1
_COSTS_KEPT = 50
_INTERVAL_MS = SECOND_MS
_INTERVAL_MS_WHILE_FREE = 10 * SECOND_MS
_COSTS_PER_INTERVAL = 50
_KNOWN_MAX = 10_000


@dataclass(slots=True)
class _Known:
    """What this node takes for the number in flight at the instant ``at_ms`` of its clock.

    From ``again_ms`` on there may be another count, at ``due_ms`` by the database's clock; ``own`` is the node's own
    part since that was counted.
    """

    in_flight: int
    at_ms: int
    again_ms: int
    due_ms: int
    own: int = 0

    def is_fresh(self, now_ms: int, quota: int) -> bool:
        """Tell whether that is good enough."""
        if 2 * (self.in_flight + self.own) < quota:
            return now_ms < max(self.again_ms, self.at_ms + _INTERVAL_MS_WHILE_FREE)
        return now_ms < self.again_ms


class InFlight:
    """The quotas of in-flight messages, as one node knows them."""

    def __init__(self, *, options: PostgresOptions, clock: Clock, watches: Watches) -> None:
        """``watches`` hears of places that become free where there was none."""
        self._options = options
        self._clock = clock
        self._watches = watches
        self._known: dict[int, _Known] = {}
        self._full: set[int] = set()

    async def places(self, connection: Any, queue: Queue, wanted: int) -> tuple[int, int | None]:
        """Return how many more may be in flight, up to ``wanted``; and, for none, when to look for a place."""
        quota = _quota(queue, self._options)
        if quota <= self._options.in_flight_counted_max:
            row = await self._count(connection, queue, quota)
            places, due_ms = quota - row["in_flight"], row["due"]
        else:
            known = await self._fresh(connection, queue, quota)
            places, due_ms = quota - known.in_flight - known.own, known.due_ms
        if places <= 0:
            self._full.add(queue.partition)
            self._watches.found_full(queue.name)
            return 0, due_ms
        self._full.discard(queue.partition)
        return min(places, wanted), None

    def given(self, queue: Queue, messages: int) -> None:
        """Take note of what this node gave out."""
        known = self._known.get(queue.partition)
        if known is not None:
            known.own += messages

    def freed(self, queue: Queue, messages: int, now_ms: int) -> None:
        """Take note of what is no longer in flight, and tell whoever found no place."""
        self.given(queue, -messages)
        if queue.partition in self._full:
            self._full.discard(queue.partition)
            self._watches.wake(queue.name, now_ms)
        else:
            self._watches.freed(queue.name, now_ms)

    async def _fresh(self, connection: Any, queue: Queue, quota: int) -> _Known:
        before = self._known.get(queue.partition)
        if before is not None and before.is_fresh(self._clock.now_ms(), quota):
            return before
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        own = 0 if before is None else max(0, before.own)
        known = self._known[queue.partition] = await self._learn(connection, queue, quota, own)
        return known

    async def _learn(self, connection: Any, queue: Queue, quota: int, own: int) -> _Known:
        """Count if it is time to; else read what another node counted, who did not see all of our ``own`` part."""
        if await connection.fetchval(STANDARD["claim_count"], queue.partition, _INTERVAL_MS) is None:
            row = await connection.fetchrow(STANDARD["counted"], queue.partition)
            if row is not None and row["counted"] is not None:
                return self._as_known(row, own)
        began_s = stopwatch_s()
        counted = (await self._count(connection, queue, quota))["in_flight"]
        cost_ms = int((stopwatch_s() - began_s) * SECOND_MS)
        interval_ms = max(_INTERVAL_MS, _COSTS_PER_INTERVAL * cost_ms)
        row = await connection.fetchrow(STANDARD["note_count"], queue.partition, counted, interval_ms)
        return self._as_known(row, 0)

    def _as_known(self, row: Any, own: int) -> _Known:
        left_ms = max(0, row["next_at"] - row["now"])
        now_ms = self._clock.now_ms()
        return _Known(row["counted"], now_ms, now_ms + left_ms, row["next_at"], own)

    async def _count(self, connection: Any, queue: Queue, quota: int) -> Any:
        return await connection.fetchrow(sql(queue)["in_flight"], queue.partition, quota, retention_ms(queue))


def _quota(queue: Queue, options: PostgresOptions) -> int:
    if queue.settings.in_flight_max is not None:
        return queue.settings.in_flight_max
    return options.fifo_in_flight_max if queue.settings.fifo else options.in_flight_max


class Ready:
    """How many messages of each queue are visible, for heartbeats.

    A count looks at each of them. Readers beat several times a minute and take the number for what it is, a hint; so
    what took long to count is told again for fifty times as long. Who opens a source, or lists them, is told what is
    true.
    """

    def __init__(self) -> None:
        """Know nothing."""
        self._known: dict[int, tuple[float, Backlog]] = {}

    async def lately(self, connection: Any, queue: Queue) -> Backlog:
        """Return how many messages are visible, or were when that was last counted."""
        began_s = get_running_loop().time()
        known = self._known.get(queue.partition)
        if known is not None and began_s < known[0]:
            return known[1]
        counted = await count(connection, queue)
        cost_s = get_running_loop().time() - began_s
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        if cost_s > LONG_S:
            self._known[queue.partition] = began_s + _COSTS_KEPT * cost_s, counted
        return counted


async def count(connection: Any, queue: Queue) -> Backlog:
    """Count what of ``queue`` is visible."""
    counted = sql(queue)["count"] if queue.settings.fifo else SQL["ready"]
    row = await connection.fetchrow(counted, queue.partition, retention_ms(queue))
    return Backlog(row["visible"], row["oldest_sent_at"])


class Totals:
    """What has passed through each queue at one node, since that began, by the number of the queue.

    Each node counts what it does itself, in memory, once the statement that did it has come back; the numbers of a
    store are the sums over its nodes. (A transaction that is repeated afterwards may be counted twice.)
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self.redelivered: Counter[int] = Counter()
        self.deleted: Counter[int] = Counter()

    def stored(self, queue: Queue, messages: int) -> None:
        """Count what was sent; what is on its way to another database is not in the queue yet."""
        if not queue.away:
            self.sent[queue.number] += messages

    def forget(self, number: int) -> None:
        """Let go of a queue that was deleted; its number is never given again."""
        for counter in (self.sent, self.received, self.redelivered, self.deleted):
            counter.pop(number, None)

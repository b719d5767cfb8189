"""The fair queues that a node has met: standard queues with messages that name a group. Others cost nothing here.

That a queue is fair is known from its first such message that this node sends or receives, and from looking the queue
up. Until then its messages come in the order in which they became visible, whatever their groups.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from veilmq.core.commands import NewMessage
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.engines.clock import stopwatch_s
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.fair_shares import FairShares, Flight
from veilmq.engines.postgres.on_queue import retention_ms

FAIR = load("veilmq.engines.postgres", "fair.sql")

LANE = 100
"""What is added to the priority of a message with a group where it is stored."""

_INTERVAL_MS = SECOND_MS
_COSTS_PER_INTERVAL = 50
_FLIGHTS_READ_MAX = 3_000
_HIDDEN_READ_MAX = 20_000
_QUEUES_MAX = 10_000


@dataclass(slots=True)
class _Known:
    """What is known of one partition; from ``look_at_ms`` of the node's clock on there may be another look."""

    shares: FairShares = field(default_factory=FairShares)
    look_at_ms: int = 0


class FairQueues:
    """What one node knows of its fair queues."""

    def __init__(self, *, clock: Clock) -> None:
        """``clock`` says when to look what other nodes do; what is recent is reckoned by the database's clock."""
        self._clock = clock
        self._ahead_ms = 0  # the database's clock, of this node's
        self._known: dict[int, _Known] = {}

    def has(self, queue: Queue) -> bool:
        """Tell whether messages of ``queue`` are known to name groups."""
        return queue.partition in self._known or queue.has_groups

    def meet(self, queue: Queue) -> None:
        """Note that messages of ``queue`` name groups."""
        if not self.has(queue):
            self._of(queue)

    async def noisy(self, connection: Any, queue: Queue, *, judge: bool = True) -> list[int]:
        """Return the noisy groups, the one that comes first among them first."""
        shares = await self.current(connection, queue)
        return shares.noisy(self._now_ms()) if judge else shares.would_be_noisy(self._now_ms())

    async def current(self, connection: Any, queue: Queue) -> FairShares:
        """Return who takes how much, after a look at what other nodes do if one is due."""
        known = self._of(queue)
        now_ms = self._clock.now_ms()
        if now_ms >= known.look_at_ms:
            began_s = stopwatch_s()
            known.look_at_ms = now_ms + _INTERVAL_MS  # nobody else looks meanwhile
            await self._look(connection, queue, known.shares)
            cost_ms = int((stopwatch_s() - began_s) * SECOND_MS)
            known.look_at_ms = now_ms + max(_INTERVAL_MS, _COSTS_PER_INTERVAL * cost_ms)
        return known.shares

    async def _look(self, connection: Any, queue: Queue, shares: FairShares) -> None:
        kept_ms = retention_ms(queue)
        shares.begin_look()
        rows = await connection.fetch(FAIR["flights"], queue.partition, _FLIGHTS_READ_MAX, _HIDDEN_READ_MAX, kept_ms)
        self._hear(rows)
        found = {row["seq"]: _flight(queue, row, row["received_at"]) for row in rows}
        shares.correct(found, self._now_ms(), whole=len(rows) < _FLIGHTS_READ_MAX)
        if shares.suspects:
            for row in await connection.fetch(FAIR["turns"], queue.partition, shares.suspects, kept_ms):
                shares.heard(row["group_key"], row["sent_at"])
                if not row["has_any"]:
                    shares.drained(row["group_key"])

    # What this node does.

    def sent(self, queue: Queue, groups: Sequence[int | None], rows: Sequence[Any]) -> None:
        """Note what was stored."""
        shares = self._of(queue).shares
        for group, row in zip(groups, rows, strict=True):
            if group is not None:
                shares.sent(group, row["sent_at"])

    def received(self, queue: Queue, rows: Sequence[Any]) -> None:
        """Note what was given out, as it is hidden now."""
        if not rows or "group_key" not in rows[0] or not self.has(queue):
            return  # of a queue that was just found to be fair, the next look will tell
        self._hear(rows)
        shares = self._of(queue).shares
        for row in rows:
            shares.take_off(row["seq"], _flight(queue, row, row["now"]), row["now"])

    def drained(self, queue: Queue, rows: Iterable[Any]) -> None:
        """Note which of the groups that had to wait have nothing to give any more."""
        for group in {row["group_key"] for row in rows if row["is_drained"]}:
            self._of(queue).shares.drained(group)

    def ended(self, queue: Queue, positions: Iterable[int], now_ms: int) -> None:
        """Note messages that are gone."""
        if self.has(queue):
            shares = self._of(queue).shares
            shares.pass_time(now_ms)
            for position in positions:
                shares.land(position, now_ms)

    def moved(self, queue: Queue, row: Any) -> None:
        """Note another deadline of a message, which is processed from now on if it was visible."""
        if row["group_key"] is not None:
            self.meet(queue)
        if not self.has(queue):
            return
        shares = self._of(queue).shares
        shares.pass_time(row["now"])
        if not shares.move(row["seq"], row["until"]) and row["receive_count"] and row["visible_at"] <= row["now"]:
            flight = Flight(row["until"], row["group_key"], row["now"], row["sent_at"] + retention_ms(queue))
            shares.take_off(row["seq"], flight, row["now"])

    def _of(self, queue: Queue) -> _Known:
        known = self._known.get(queue.partition)
        if known is None:
            if len(self._known) >= _QUEUES_MAX:
                self._known.clear()
            known = self._known[queue.partition] = _Known()
        return known

    def _hear(self, rows: Sequence[Any]) -> None:
        if rows:
            self._ahead_ms = rows[0]["now"] - self._clock.now_ms()

    def _now_ms(self) -> int:
        return self._clock.now_ms() + self._ahead_ms


def keys_of(new: Iterable[NewMessage]) -> list[int | None]:
    """Return the number of each message's group."""
    return [None if each.group is None else _key_of(each.group) for each in new]


def _flight(queue: Queue, row: Any, since_ms: int) -> Flight:
    return Flight(row["visible_at"], row["group_key"], since_ms, row["sent_at"] + retention_ms(queue))


@lru_cache(maxsize=16_384)  # senders name the same groups again and again
def _key_of(group: str) -> int:
    """Return the number of a group, a hash: two groups that have one number count as one group, and no more."""
    return int.from_bytes(blake2b(group.encode(), digest_size=8).digest()) >> 1

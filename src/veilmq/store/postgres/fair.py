"""Fair queues: standard queues with messages that name a group. Others cost nothing here.

That a queue is fair is known from its first such message that this node sends or receives, and from looking the queue
up. Until then its messages come in the order in which they became visible, whatever their groups.

A node follows what it gave out itself, exactly. What other nodes gave, and what became of it, it learns by looking
which messages are in flight: once a second at the most, and no more than a fiftieth of the time; what is no longer
there has ended when that was seen. Such a look reads so many rows at the most, of those that land last.
``core.fairness`` judges.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NamedTuple

from veilmq.core.commands import NewMessage
from veilmq.core.fairness import Fairness
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.engines.clock import stopwatch_s
from veilmq.engines.named_sql import load
from veilmq.store.postgres.catalog import Queue
from veilmq.store.postgres.coalescing import retention_ms

FAIR = load("veilmq.store.postgres", "fair.sql")

LANE = 100
"""What is added to the priority of a message with a group where it is stored."""

_INTERVAL_MS = SECOND_MS
_COSTS_PER_INTERVAL = 50
_FLIGHTS_READ_MAX = 3_000
_HIDDEN_READ_MAX = 20_000
_LANDINGS_SPARE = 1_000
_QUEUES_MAX = 10_000


class Flight(NamedTuple):
    """A message in flight since an instant; it lands when it is visible, or kept no longer.

    Without a group it counts among the others.
    """

    visible_at_ms: int
    group: int | None
    since_ms: int
    kept_until_ms: int

    @property
    def lands_at_ms(self) -> int:
        """When it lands by itself."""
        return min(self.visible_at_ms, self.kept_until_ms)


class FairShares:
    """The groups of one partition. Instants are of the database's clock."""

    __slots__ = ("_alone", "_fairness", "_flights", "_landings", "_suspects", "_touched")

    def __init__(self) -> None:
        """Begin with nothing in flight."""
        self._fairness = Fairness()
        self._flights: dict[int, Flight] = {}
        self._landings: list[tuple[int, int]] = []  # when, and the position; some are of earlier deadlines
        self._alone = 0
        self._suspects: set[int] = set()
        self._touched: set[int] | None = None  # positions of which something was heard during a look

    # What happens.

    def sent(self, group: int, now_ms: int) -> None:
        """Note that the group sent a message; one that took much and was silent may be noisy again by that."""
        self._fairness.sent(group, now_ms)
        self._suspect(group, now_ms)

    def heard(self, group: int, sent_at_ms: int) -> None:
        """Note when the group last sent through any node, if that is news."""
        self._fairness.heard(group, sent_at_ms)

    def take_off(self, position: int, flight: Flight, now_ms: int) -> None:
        """Count a message in flight; ``now_ms`` is when that was seen."""
        self.pass_time(now_ms)
        self.land(position, now_ms)
        self._touch(position)
        self._flights[position] = flight
        self._await_landing(position, flight)
        if flight.group is None:
            self._alone += 1
            return
        self._fairness.received(flight.group, now_ms)
        if self._fairness.has_many(flight.group):
            self._suspects.add(flight.group)

    def move(self, position: int, visible_at_ms: int) -> bool:
        """Note another deadline; tell whether the message was known to be in flight."""
        self._touch(position)
        flight = self._flights.get(position)
        if flight is None:
            return False
        flight = self._flights[position] = flight._replace(visible_at_ms=visible_at_ms)
        self._await_landing(position, flight)
        return True

    def land(self, position: int, now_ms: int) -> None:
        """Count a message out, if it is known to be in flight."""
        self._touch(position)
        flight = self._flights.pop(position, None)
        if flight is None:
            return
        if flight.group is None:
            self._alone -= 1
            return
        self._fairness.ended(flight.group, max(0, now_ms - flight.since_ms), now_ms)
        self._suspect(flight.group, now_ms)

    def pass_time(self, now_ms: int) -> None:
        """Count out what has become visible since."""
        while self._landings and self._landings[0][0] <= now_ms:
            lands_at_ms, position = heappop(self._landings)
            flight = self._flights.get(position)
            if flight is not None and flight.lands_at_ms == lands_at_ms:
                self.land(position, lands_at_ms)

    def _await_landing(self, position: int, flight: Flight) -> None:
        if len(self._landings) > 2 * len(self._flights) + _LANDINGS_SPARE:  # most of them have landed before
            self._landings = sorted((each.lands_at_ms, at) for at, each in self._flights.items())
        else:
            heappush(self._landings, (flight.lands_at_ms, position))

    def drained(self, group: int) -> None:
        """Note that nothing of the group waits any more."""
        self._fairness.drained(group)

    def begin_look(self) -> None:
        """From now on it is seen what is in flight; of what is heard meanwhile, that is the later news."""
        self._touched = set()

    def correct(self, found: Mapping[int, Flight], now_ms: int, *, whole: bool) -> None:
        """Take over what was seen in flight, by positions; ``whole`` tells that these are all."""
        touched, self._touched = self._touched or set(), None
        self.pass_time(now_ms)
        for position in found.keys() - touched:
            flight = found[position]
            known = self._flights.get(position)
            if known is None or known.since_ms < flight.since_ms:
                self.take_off(position, flight, now_ms)
            elif known.visible_at_ms != flight.visible_at_ms:
                self.move(position, flight.visible_at_ms)
        if whole:
            for position in self._flights.keys() - found.keys() - touched:
                self.land(position, now_ms)

    def _touch(self, position: int) -> None:
        if self._touched is not None:
            self._touched.add(position)

    # Who is noisy.

    def _suspect(self, group: int, now_ms: int) -> None:
        if self._fairness.would_be_noisy(group, self._alone, now_ms):
            self._suspects.add(group)

    @property
    def suspects(self) -> list[int]:
        """The groups that are noisy, or may be soon."""
        return list(self._suspects)

    def noisy(self, now_ms: int) -> list[int]:
        """Judge who is noisy now: the group that comes first among them first."""
        self.pass_time(now_ms)
        noisy = [group for group in self._suspects if self._fairness.is_noisy(group, self._alone, now_ms)]
        self._suspects = {*noisy, *filter(self._fairness.has_many, self._suspects)}
        return sorted(noisy, key=self._need)

    def would_be_noisy(self, now_ms: int) -> list[int]:
        """Tell the same without a judgement."""
        self.pass_time(now_ms)
        noisy = [group for group in self._suspects if self._fairness.would_be_noisy(group, self._alone, now_ms)]
        return sorted(noisy, key=self._need)

    def _need(self, group: int) -> tuple[int, int]:
        return self._fairness.in_flight(group), group


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

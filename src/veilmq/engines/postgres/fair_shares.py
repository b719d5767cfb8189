"""Who takes how much of a fair queue, as one node knows it: which groups are noisy, and who comes first among them.

A node follows what it gave out itself, exactly. What other nodes gave, and what became of it, it learns by looking
which messages are in flight: once a second at the most, and no more than a fiftieth of the time; what is no longer
there has ended when that was seen. Such a look reads so many rows at the most, of those that land last.
``core.fairness`` judges.
"""

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from veilmq.core.fairness import Fairness

_LANDINGS_SPARE = 1_000


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

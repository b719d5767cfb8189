"""The leases of a queue as bars, from a sequence of looks: when each began, ends or ended, and how.

A look shows what is in flight at an instant, and of leases seen before also what has become of their messages. One
whose message is there ended by its timeout, if that has passed, else because somebody released it; one whose message is
gone was deleted (or its queue purged). A lease that begins and ends between two looks is never seen, and a renewal is
drawn where it was seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum

import msgspec

from veilmq.core.limits import LEASE_S_MAX, SECOND_MS
from veilmq.wire.v1.queues import Lease

BARS_MAX = 60
"""How many leases are drawn, those that end first; of the others only the number is told."""

KEPT_MS = 10 * SECOND_MS
"""How long a bar stays after its end."""

ENDED_MAX = 30
"""How many bars that ended stay, those that ended last: where thousands end in a second, nobody reads more."""

RENEWALS_MAX = 40


class Ending(Enum):
    """How a lease ended, as far as can be seen."""

    DELETED = "deleted"
    RETURNED = "returned"
    EXPIRED = "expired"


WORDS: Mapping[Ending, str] = {
    Ending.DELETED: "deleted",
    Ending.RETURNED: "returned: it was released, and is visible again",
    Ending.EXPIRED: "expired: its timeout ended, and it is visible again",
}


class Bar(msgspec.Struct, kw_only=True):
    """A lease with its past: ``renewed_at_ms`` is when it was seen that its deadline had been moved.

    ``place`` counts the lines from the top; a bar keeps its own. ``end_ms`` is where it ends, or ended.
    """

    lease: Lease
    place: int
    renewed_at_ms: tuple[int, ...] = ()
    ending: Ending | None = None
    ended_at_ms: int | None = None

    @property
    def end_ms(self) -> int:
        """Return the deadline, or when it ended."""
        return self.lease.visible_at_ms if self.ended_at_ms is None else self.ended_at_ms

    @property
    def wall_ms(self) -> int:
        """Return when the longest lease there is would end."""
        return self.lease.received_at_ms + LEASE_S_MAX * SECOND_MS


class Timeline:
    """The bars of one queue."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._bars: dict[str, Bar] = {}
        self.now_ms = 0

    def __iter__(self) -> Iterator[Bar]:
        """Yield the bars from the top."""
        return iter(sorted(self._bars.values(), key=lambda bar: bar.place))

    def __len__(self) -> int:
        """Return how many bars there are."""
        return len(self._bars)

    @property
    def positions(self) -> list[str]:
        """Return where the messages stand whose leases go on: what is asked for in the next look."""
        return [bar.lease.position for bar in self._bars.values() if bar.ending is None]

    def look(self, leases: Sequence[Lease], now_ms: int) -> None:
        """Take what was seen at ``now_ms``: leases, those that end first first, and what is still at ``positions``."""
        self.now_ms = now_ms
        seen = {key_of(lease): lease for lease in going_on(leases, now_ms)[:BARS_MAX]}
        self._end(seen, {lease.message_id: lease for lease in leases}, now_ms)
        self._drop_ended(now_ms)
        for key, lease in seen.items():
            bar = self._bars.get(key)
            if bar is None or bar.ending is not None:
                self._bars[key] = Bar(lease=lease, place=self._free_place())
            elif bar.lease.visible_at_ms != lease.visible_at_ms:
                bar.renewed_at_ms = (*bar.renewed_at_ms, now_ms)[-RENEWALS_MAX:]
                bar.lease = lease

    def _end(self, seen: Mapping[str, Lease], there: Mapping[str, Lease], now_ms: int) -> None:
        """End the bars not ``seen``, and drop those that go on out of sight; ``there`` has what is there by message."""
        for key in [key for key, bar in self._bars.items() if bar.ending is None and key not in seen]:
            bar = self._bars[key]
            last = there.get(bar.lease.message_id)
            is_same = last is not None and key_of(last) == key
            if last is not None and is_same and last.visible_at_ms > now_ms:
                del self._bars[key]
                continue
            end_ms = last.visible_at_ms if last is not None and is_same else now_ms
            bar.ended_at_ms = min(end_ms, bar.lease.visible_at_ms)
            if last is None:
                bar.ending = Ending.DELETED
            elif bar.ended_at_ms == bar.lease.visible_at_ms:
                bar.ending = Ending.EXPIRED
            else:
                bar.ending = Ending.RETURNED

    def _drop_ended(self, now_ms: int) -> None:
        """Drop the bars that have stayed long enough, or for which there is no room."""
        ended = [(bar.ended_at_ms, key) for key, bar in self._bars.items() if bar.ended_at_ms is not None]
        kept = [key for at_ms, key in sorted(ended, reverse=True)[:ENDED_MAX] if at_ms + KEPT_MS > now_ms]
        for key in {key for _, key in ended}.difference(kept):
            del self._bars[key]

    def _free_place(self) -> int:
        taken = {bar.place for bar in self._bars.values()}
        return next(place for place in range(len(taken) + 1) if place not in taken)


def key_of(lease: Lease) -> str:
    """Return what tells a lease from all others of its queue, other receives of the same message too."""
    return f"{lease.message_id}.{lease.generation}"


def going_on(leases: Sequence[Lease], now_ms: int) -> list[Lease]:
    """Return those of the leases that have not ended."""
    return [lease for lease in leases if lease.visible_at_ms > now_ms]

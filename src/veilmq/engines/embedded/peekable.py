"""A lane that can be looked at: what it would give next, without giving it.

A look goes through the same runs as a receive, in the same order, and leaves them as they are: nothing is taken out of
memory, staged, or counted. What is behind the part in memory is read from the store and forgotten again.
"""

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import itemgetter

from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE
from veilmq.engines.embedded.lane import Lane
from veilmq.engines.embedded.rows import Lease, MessageRow

_COUNTED_MAX = 1_000  # messages looked at one by one: a millisecond

Offered = tuple[int, MessageRow, Lease | None]
"""A message that a receive may give: since when it is visible, what was sent, and its lease if it ever had one."""

since = itemgetter(0)


class PeekableLane(Lane):
    """The messages of one incarnation of a queue at one priority, as a look sees them."""

    __slots__ = ()

    def oldest_sent_at_ms(self) -> int | None:
        """Return when the oldest message within its retention was sent."""
        firsts = [self._journal.first_sent(series.floor, series.next) for series in (self._direct, self._delayed)]
        return min((first.sent_at_ms for first in firsts if first is not None), default=None)

    def follow(self, delay_ms: int, now_ms: int) -> None:
        """Take note of the queue's present delay; what was sent stays as it is, but in ordered groups."""

    def waiting(self, now_ms: int, count: int) -> list[tuple[int, int, bool]]:
        """Return the first ``count`` messages sent so lately that ``delay_ms`` hides those without leases.

        Each comes as its position, when it was sent, and whether it has a lease.
        """
        if not self.delay_ms:
            return []
        series = self._direct
        start = series.sent_after(self._journal, series.floor, series.next, now_ms - self.delay_ms)
        return self._journal.rows("waiting_between", start, series.next, count)

    def count_waiting(self, now_ms: int) -> int:
        """Return how many messages ``delay_ms`` hides; behind the first thousand all count, whatever they are."""
        found = self.waiting(now_ms, _COUNTED_MAX)
        behind = self._direct.next - 1 - found[-1][0] if len(found) == _COUNTED_MAX else 0
        return behind + sum(not has_lease for *_, has_lease in found)

    def hides(self, position: int) -> bool:
        """Whether the message at ``position``, which must be there, was moved here and is past its retention."""
        return self._moved is not None and self._moved.hides(position)

    def peek(self, count: int, now_ms: int, receives_max: int) -> list[Offered]:
        """Return up to ``count`` messages in the order in which they would be taken.

        Those received ``receives_max`` times, if that is not 0, are left out, and behind as many of them as one receive
        moves to the dead-letter queue nothing is seen.
        """
        returned = self._with_rows(self._returned(self._hidden.in_order(now_ms), receives_max), count)
        return first_of(count, returned, self._unreceived(self._fresh.first(count)))

    def _returned(self, leases: Iterable[Lease], receives_max: int) -> Iterator[Lease]:
        """Yield those of ``leases`` that a receive would give."""
        dead = 0
        for lease in leases:
            if self._is_expired(lease.position):
                continue
            if not receives_max or lease.receive_count < receives_max:
                yield lease
            elif (dead := dead + 1) >= DEAD_LETTERS_PER_RECEIVE:
                return

    def _with_rows(self, leases: Iterable[Lease], count: int) -> list[Offered]:
        found = [(lease, self._journal.message_at(lease.position)) for lease in islice(leases, count)]
        return [(lease.visible_at_ms, row, lease) for lease, row in found if not self._has_ended(row)]

    def _unreceived(self, rows: Iterable[MessageRow]) -> list[Offered]:
        return [(row.sent_at_ms, row, None) for row in rows if not self._has_ended(row)]

    def _has_ended(self, row: MessageRow) -> bool:
        """Tell whether the message was moved here and is past its retention."""
        return self._moved is not None and self._moved.has_ended(row)


def first_of(count: int, returned: Iterable[Offered], unreceived: Iterable[Offered]) -> list[Offered]:
    """Return the first so many of both; of the same instant, what returned comes first."""
    return list(islice(merge(returned, unreceived, key=since), count))

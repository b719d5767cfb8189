"""A lane that claims can take messages from, give them back to, or delete them from.

Messages that were never received and name no group are taken as a *stretch* of positions, without a lease each: the
fresh run begins behind it. All others are taken one by one by the lane's own means, and hidden until ``CLAIMED_MS``: so
heads, turns of groups and the order in them work by themselves. Claimed messages are counted apart from those in
flight, and sweeps pass over them.
"""

from random import getrandbits
from typing import NamedTuple

from veilmq.engines.embedded import positions
from veilmq.engines.embedded.moved import Moved
from veilmq.engines.embedded.peekable import PeekableLane
from veilmq.engines.embedded.rows import Lease, MessageRow
from veilmq.engines.embedded.run import CLAIMED_MS, Run
from veilmq.engines.embedded.series import Series

_GENERATION_BITS = 32
_COUNTED_MAX = 5_000  # messages that are counted one by one: a few milliseconds
_SWEPT_MAX = 200  # where claimed messages may stand among those to be swept


class Stretch(NamedTuple):
    """So many messages at the positions from ``start`` up to, not including, ``end``; ``bytes`` where they count."""

    start: int
    end: int
    messages: int
    bytes: int = 0


class ClaimableLane(PeekableLane):
    """The messages of one incarnation of a queue at one priority, as claims see them."""

    __slots__ = ()

    # Binding.

    def take_stretch(self, count: int, now_ms: int, bytes_max: int | None = None) -> Stretch | None:
        """Take up to ``count`` messages never received, as far as no returned one is before them; ``None``: no such.

        With ``bytes_max``, which is enough for one, no more than fit. There may be more behind it.
        """
        row = self._fresh.head()
        lease = self._returned_head(now_ms)
        if row is None:
            self._direct.dense = True
            return None
        if self._moved is not None or (lease is not None and lease.visible_at_ms <= row.sent_at_ms):
            return None
        end = self._direct.next
        if lease is not None:
            end = self._direct.sent_after(self._journal, row.position + 1, end, lease.visible_at_ms - 1)
        stretch = self._measure(row.position, end, count, bytes_max)
        self._fresh.skip_to(stretch.end)
        self.counters.claimed += stretch.messages
        self.counters.bound += stretch.messages
        self._journal.touch(self)
        return stretch

    def _measure(self, start: int, end: int, count: int, bytes_max: int | None) -> Stretch:
        if bytes_max is not None:
            return self._fitting(start, end, count, bytes_max)
        if self._direct.dense:
            end = min(start + count, end)
            return Stretch(start, end, end - start)
        rows = self._journal.rows("positions_between", start, end, min(count, _COUNTED_MAX))
        return Stretch(start, rows[-1][0] + 1, len(rows))

    def _fitting(self, start: int, end: int, count: int, bytes_max: int) -> Stretch:
        last, size, messages = start, 0, 0
        for position, message_bytes in self._journal.rows("sizes_between", start, end, min(count, _COUNTED_MAX)):
            if size + message_bytes > bytes_max:
                break
            last, size, messages = position, size + message_bytes, messages + 1
        assert messages, "one fits"
        return Stretch(start, last + 1, messages, size)

    def bind(self, lease: Lease, now_ms: int) -> None:
        """Hide a message that was taken for as long as its claim lasts; that is one more receive."""
        self._hidden.leave_claimed()
        self.lease(lease, now_ms, CLAIMED_MS, now_ms)
        self.counters.in_flight -= 1
        self.counters.claimed += 1
        self.counters.bound += 1

    # The end of a claim.

    def bring_back(self, start: int, end: int, count: int, bound_at_ms: int, now_ms: int) -> Stretch:
        """Make up to ``count`` messages of a stretch visible now: received once, when they were bound."""
        found = [position for (position,) in self._journal.rows("positions_between", start, end, count)]
        self.catch_up(now_ms)  # so that what comes back is not counted in, to be counted out by the next look
        for position in found:
            if self._is_expired(position):
                self._journal.remove(position)
                self.counters.messages -= 1
            else:
                generation = getrandbits(_GENERATION_BITS)
                lease = Lease(position, self.number, now_ms, 1, generation, 1, bound_at_ms, bound_at_ms)
                self._hide(lease, self._journal.add_lease)
        self.counters.claimed -= len(found)
        self._journal.touch(self)
        return _done(found, end, count)

    def bring_back_leased(self, start: int, end: int, count: int, now_ms: int) -> Stretch:
        """Make up to ``count`` messages with leases visible now."""
        leases = self._claimed(start, end, count)
        self.catch_up(now_ms)
        for lease in leases:
            self._unbind(lease)
            if self._is_expired(lease.position):
                self.remove(lease, now_ms)
            else:
                self._come_back(lease, now_ms)
        return _done([lease.position for lease in leases], end, count)

    def _come_back(self, lease: Lease, now_ms: int) -> None:
        self.move(lease, now_ms, now_ms, supersede=False)

    def delete(self, start: int, end: int) -> Stretch:
        """Delete the messages of a stretch."""
        messages, _, _ = self._journal.delete_between(start, end, self.counters.counted_at_ms)
        self.counters.messages -= messages
        self.counters.claimed -= messages
        self.counters.doomed -= messages
        self.counters.acknowledged += messages
        self._journal.touch(self)
        return Stretch(start, end, messages)

    def delete_leased(self, start: int, end: int, now_ms: int) -> Stretch:
        """Delete the messages of a stretch, which have leases."""
        leases = self._claimed(start, end, end - start)
        for lease in leases:
            self._unbind(lease)
            self.remove(lease, now_ms)
        self.counters.doomed -= len(leases)
        self.counters.acknowledged += len(leases)
        return Stretch(start, end, len(leases))

    def take_out(self, position: int, bound_at_ms: int, now_ms: int) -> tuple[MessageRow, Lease]:
        """Delete one claimed message, to be stored elsewhere; return what it was."""
        row = self._journal.message_at(position)
        leases = self._claimed(position, position + 1, 1)
        if leases:
            self._unbind(leases[0])
            self.remove(leases[0], now_ms)
            return row, leases[0]
        lease = Lease(position, self.number, CLAIMED_MS, 1, first_received_at_ms=bound_at_ms)
        self.counters.claimed -= 1
        self.let_go(lease)
        return row, lease

    def _claimed(self, start: int, end: int, count: int) -> list[Lease]:
        leases = []
        for was_moved, *columns in self._journal.rows("claimed_leases", start, end, count):
            lease = Lease(*columns)
            leases.append(Run.get(self._hidden, lease.position) or lease)
            if was_moved:  # its retention was not looked at
                self._moved = self._moved or self._new_moved()
                self.expires_at_ms = 0
        return leases

    def _unbind(self, lease: Lease) -> None:
        self.counters.claimed -= 1
        self.counters.in_flight += 1

    # Time.

    def _sweep(self, series: Series, rows_max: int) -> int:
        if not self.counters.claimed or self.queue is None:
            return super()._sweep(series, rows_max)
        start, end = series.sweep(self._journal, min(rows_max, _SWEPT_MAX))
        return sum(self._delete_between(*piece) for piece in self._unclaimed(start, end))

    def _ended(self, moved: Moved, rows_max: int) -> list[int]:
        ended = super()._ended(moved, rows_max)
        return [at for at in ended if self._unclaimed(at, at + 1)] if self.counters.claimed else ended

    def _unclaimed(self, start: int, end: int) -> list[tuple[int, int]]:
        """Return what of the positions from ``start`` up to ``end`` is not claimed."""
        before = self._journal.rows("range_at", start)
        if before and before[0][0] >= positions.direct_start(self.number):
            start = max(start, before[0][1] + 1)
        pieces = []
        for first, last in self._journal.rows("ranges_between", start, end):
            pieces.append((start, first))
            start = last + 1
        pieces.append((start, end))
        return [(low, high) for low, high in pieces if low < high]


def _done(found: list[int], end: int, count: int) -> Stretch:
    """Return what was done of the positions up to ``end``, where no more than ``count`` were to be ``found``."""
    start = found[0] if found else end
    return Stretch(start, found[-1] + 1 if len(found) == count else end, len(found))

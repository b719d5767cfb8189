"""A series of positions: messages in the order they were sent, and how far retention has eaten into it.

Positions below ``floor`` are past their retention: they are never delivered, and a receipt finds nothing there. Since
the engine's clock does not run backwards, instants of sending rise along the series, so the floor is found by
bisection, at a cost that grows with the logarithm of the backlog. ``sweep`` deletes the rows below it in slices.
"""

from veilmq.engines.embedded.journal import Journal


class Series:
    """One half of a lane: the messages sent directly, or those sent with a delay."""

    __slots__ = ("_swept_to", "dense", "end", "floor", "next")

    def __init__(self, *, start: int, floor: int, next_position: int, end: int, dense: bool) -> None:
        """Positions go from ``start`` up to, not including, ``end``; ``next_position`` is for the next message.

        ``dense`` tells that of the messages behind the last one received none was deleted from among the others.
        """
        self.dense = dense
        self.floor = floor
        self.next = next_position
        self.end = end
        self._swept_to = start

    def expire(self, journal: Journal, sent_until_ms: int) -> int | None:
        """Move the floor over messages sent up to then; return when the first one behind it was sent, if any."""
        first = journal.first_sent(self.floor, self.next)
        if first is not None and first.sent_at_ms <= sent_until_ms:
            self.floor = self.sent_after(journal, first.position + 1, self.next, sent_until_ms)
            first = journal.first_sent(self.floor, self.next)
        return None if first is None else first.sent_at_ms

    def sent_after(self, journal: Journal, low: int, high: int, sent_until_ms: int) -> int:
        """Return the first position in ``[low, high)`` of a message sent later than then; ``high`` if there is none."""
        while low < high:
            middle = (low + high) // 2
            row = journal.first_sent(middle, high)
            if row is not None and row.sent_at_ms <= sent_until_ms:
                low = row.position + 1
            else:
                high = middle
        return low

    def retire(self) -> None:
        """Put the floor behind everything: all rows may go."""
        self.floor = self.next

    @property
    def swept(self) -> bool:
        """Whether no row is left below the floor."""
        return self._swept_to >= self.floor

    def sweep(self, journal: Journal, rows_max: int) -> tuple[int, int]:
        """Choose the next slice below the floor, at most ``rows_max`` messages, and fewer large ones; count it swept.

        Returns its bounds ``(from, to)``; the caller deletes what lies between.
        """
        start = self._swept_to
        end, _ = journal.slice_from(start, self.floor, rows_max)
        self._swept_to = end
        return start, end


def stored_series(start: int, floor: int, next_position: int, sequences_max: int, dense: int = 1) -> Series:
    """Return the series that begins at ``start`` and has ``sequences_max`` positions, as far as it is stored."""
    end = start + sequences_max
    return Series(start=start, floor=floor, next_position=next_position, end=end, dense=bool(dense))

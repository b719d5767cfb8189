"""The moved messages of a lane: those whose retention counts from their first sending, in another queue.

They stand anywhere among the others, so no floor of a series passes over them. Instead the lane knows until when the
ones that have ended were first sent, and the position before which they stand: what came later is judged by the
retention in force then. An index by first sending finds them, and they are deleted in slices. While some are *left*,
they are neither delivered nor found by a receipt, which costs a look at the message; otherwise nothing is looked at.

A lane that has no moved message has none of this. (How far an earlier, shorter retention had come is not stored: a
process that ends just then forgets it.)
"""

from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import MessageRow
from veilmq.engines.embedded.series import Series

ENDED_PER_COMMAND = 500  # a few milliseconds


class Moved:
    """How far retention has come among the messages that were moved to one lane."""

    __slots__ = ("_end", "_journal", "_lane", "_passed", "_series", "_until_ms", "left")

    def __init__(self, *, journal: Journal, lane: int, series: Series) -> None:
        """``series`` are the positions that moved messages take in the lane of that number."""
        self._journal = journal
        self._lane = lane
        self._series = series
        self._until_ms = 0  # those first sent up to then have ended
        self._end = 0  # if they stand before this position
        self._passed = (0, 0)  # first sending and position up to which they are deleted or, claimed, spared
        self.left = False  # whether any such are not deleted yet

    def expire(self, first_sent_until_ms: int) -> None:
        """Let those end that were first sent up to then; a shorter retention than before is taken up in any case.

        A longer one is, too, unless some are left that had ended.
        """
        if first_sent_until_ms > self._until_ms or not self.left:
            self._until_ms, self._end = first_sent_until_ms, self._series.next
            self._passed = (0, 0)

    def has_ended(self, row: MessageRow) -> bool:
        """Whether the message is past its retention."""
        first_sent_at_ms = row.first_sent_at_ms
        return first_sent_at_ms is not None and first_sent_at_ms <= self._until_ms and row.position < self._end

    def hides(self, position: int) -> bool:
        """Whether the message at ``position``, which must be there, has ended and is not deleted yet."""
        return self.left and self.has_ended(self._journal.message_at(position))

    def sweep(self, rows_max: int) -> list[int]:
        """Return the positions of up to ``rows_max`` that have ended, the next ones; the caller deletes or spares."""
        gone = self._journal.moved_until(
            self._lane, self._until_ms, self._passed, self._series.floor, self._end, rows_max
        )
        self.left = len(gone) == rows_max
        if gone:
            self._passed = gone[-1]
        return [position for _, position in gone]

    def first_sent_ms(self) -> int | None:
        """Return when the first one that is there, and was not spared, was first sent; ``None`` when there is none."""
        return self._until_ms if self.left else self._journal.first_moved_ms(self._lane, self._until_ms, self._end)

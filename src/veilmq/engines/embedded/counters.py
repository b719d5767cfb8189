"""The counters of a lane: exact, and found without counting the backlog.

``in_flight`` and ``delayed`` count the messages hidden at the instant ``counted_at_ms``. Commands keep them up as they
hide, move and delete messages; that time alone makes messages visible is made good by ``catch_up``, which asks the
index how many became due since.
"""

from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import LaneRow, Lease


class Counters:
    """How many messages a lane has, and how many of them were hidden when last counted."""

    __slots__ = (
        "_positions_before",
        "acknowledged",
        "bound",
        "claimed",
        "counted_at_ms",
        "delayed",
        "doomed",
        "in_flight",
        "messages",
        "moved",
        "redelivered",
    )

    def __init__(self, row: LaneRow) -> None:
        """Go on from what was stored."""
        self.messages = row.messages
        self.in_flight = row.in_flight
        self.delayed = row.delayed
        self.counted_at_ms = row.counted_at_ms
        self.claimed = 0  # of ``messages``, and not of ``in_flight``: the claims tell after a start
        self.doomed = 0  # of ``claimed``: acknowledged, and not deleted yet
        # Since the start of the engine:
        self.redelivered = 0  # receives of messages that had been received before
        self.moved = 0  # messages that came from other queues
        self.bound = 0  # messages that claims took
        self.acknowledged = 0  # and those of them that were deleted
        self._positions_before = row.direct_next + row.delayed_next

    def sent(self, row: LaneRow) -> int:
        """Return how many messages were sent since the start: each took a position, as the lane's ``row`` tells."""
        return row.direct_next + row.delayed_next - self._positions_before - self.moved

    def hide(self, lease: Lease) -> None:
        """Count the lease in, as it is now."""
        if lease.visible_at_ms > self.counted_at_ms:
            if lease.receive_count:
                self.in_flight += 1
            else:
                self.delayed += 1

    def unhide(self, lease: Lease) -> None:
        """Count the lease out, before it changes."""
        if lease.visible_at_ms > self.counted_at_ms:
            if lease.receive_count:
                self.in_flight -= 1
            else:
                self.delayed -= 1

    def catch_up(self, journal: Journal, lane: int, now_ms: int) -> None:
        """Count out the messages that became visible by the passing of time."""
        if now_ms <= self.counted_at_ms:
            return
        if self.in_flight or self.delayed:
            due, received = journal.count_due(lane, self.counted_at_ms, now_ms)
            self.in_flight -= received
            self.delayed -= due - received
        self.counted_at_ms = now_ms

"""What must be the same for receives to share one claim."""

from typing import NamedTuple


class Terms(NamedTuple):
    """Of a receive that did not wait, ``requested_at_ms`` is 0; ``ruled`` where each message has its own timeout.

    No lease is longer than ``lease_ms_max`` from when it was asked for, 0 for any.

    Receives of FIFO queues share nothing, as two receivers must not have messages of one group: ``alone`` tells them
    apart, and ``attempt_id`` is theirs.
    """

    timeout_ms: int
    requested_at_ms: int
    lease_ms_max: int
    ruled: bool = False
    alone: int = 0
    attempt_id: str | None = None

    @property
    def requested(self) -> tuple[int | None, int | None]:
        """Return when the receive was asked for and the last instant of its lease; nothing of one that did not wait."""
        if not self.requested_at_ms:
            return None, None
        last_ms = self.requested_at_ms + self.lease_ms_max if self.lease_ms_max else None
        return self.requested_at_ms, last_ms

    @property
    def bound_ms(self) -> int | None:
        """Return how long a lease may be; ``None`` for any time."""
        return self.lease_ms_max or None

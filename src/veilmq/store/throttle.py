"""How many receives are asked of a queue: no more than so many in any second, in memory alone.

What is refused does not count, so whoever asks too often gets as many as the queue allows, and not none.
"""

from collections import deque

from veilmq.core.errors import ReceivesThrottled
from veilmq.core.limits import SECOND_MS
from veilmq.core.settings import QueueSettings


class Throttle:
    """The receives of the last second, counted by the millisecond in which they were asked."""

    __slots__ = ("_asked", "_counts", "per_s_max")

    def __init__(self, *, per_s_max: int) -> None:
        """Begin as if nobody had asked."""
        self.per_s_max = per_s_max
        self._counts: deque[tuple[int, int]] = deque()  # instant and how many, the oldest first
        self._asked = 0

    def admit(self, now_ms: int) -> None:
        """Count a receive; raises ``ReceivesThrottled`` when it is one too many."""
        counts = self._counts
        while counts and counts[0][0] <= now_ms - SECOND_MS:
            self._asked -= counts.popleft()[1]
        if self._asked >= self.per_s_max:
            raise ReceivesThrottled(self.per_s_max)
        before = counts.pop()[1] if counts and counts[-1][0] == now_ms else 0
        counts.append((now_ms, before + 1))
        self._asked += 1


def throttle_of(settings: QueueSettings, before: Throttle | None = None) -> Throttle | None:
    """Return what counts the receives of a queue with these settings, ``None`` where nothing does.

    It goes on from ``before`` where the limit is the same.
    """
    per_s_max = settings.receives_per_s_max
    if not per_s_max:
        return None
    return before if before is not None and before.per_s_max == per_s_max else Throttle(per_s_max=per_s_max)

"""What a handler's runner counts: numbers and histograms, plain enough for the hot path.

They are written in the event loop's thread and read by whoever exports them; a number that is one behind is no harm.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

EDGES_S = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 30.0, 120.0, 600.0, 3_600.0, 14_400.0, 43_200.0)

EVENTS = (
    "received",
    "redelivered",
    "started",
    "recognised",
    "acked",
    "dropped",
    "retried",
    "rejected",
    "released",
    "left",
    "suspect",
    "lost",
    "ended",
    "delete_failed",
)
"""What may happen to a message; each is told from the start, as 0."""


class Spread:
    """A histogram of durations in seconds, with the buckets ``EDGES_S`` and one above them."""

    __slots__ = ("counts", "sum_s", "tell")

    def __init__(self) -> None:
        """Begin empty."""
        self.counts = [0] * (len(EDGES_S) + 1)
        self.sum_s = 0.0
        self.tell: Callable[[float], object] | None = None
        """Is given every observation, where somebody wants each and not their counts."""

    def add(self, duration_s: float) -> None:
        """Count one observation; one below zero counts as zero."""
        duration_s = max(0.0, duration_s)
        self.counts[bisect_left(EDGES_S, duration_s)] += 1
        self.sum_s += duration_s
        if self.tell is not None:
            self.tell(duration_s)


class Counts:
    """All numbers of one handler; ``events`` are counters by name, those of ``EVENTS``."""

    __slots__ = ("buffer_wait", "events", "handle_time", "hold_time", "queue_wait")

    def __init__(self) -> None:
        """Begin at zero."""
        self.events: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))
        self.queue_wait = Spread()
        self.buffer_wait = Spread()
        self.handle_time = Spread()
        self.hold_time = Spread()

"""Receivers: how many pushes each host gets at once, so that a dead one holds up nobody but itself.

A receiver begins with one push at a time; each that it accepts doubles that, up to a bound, and each failure brings it
back to one. So a host that does not answer takes one of the places that all of them share, for some seconds each time.
"""

PARALLEL_MAX = 16


class Receiver:
    """One host at one port."""

    __slots__ = ("bound", "running")

    def __init__(self) -> None:
        """Begin with one at a time."""
        self.bound = 1
        self.running = 0

    @property
    def free(self) -> int:
        """Return how many more pushes it may get now."""
        return max(0, self.bound - self.running)

    def end(self, *, accepted: bool) -> None:
        """Take note that a push to it has ended."""
        self.running -= 1
        self.bound = min(PARALLEL_MAX, self.bound * 2) if accepted else 1

"""The positions that a node gives: an instant in milliseconds, and a counter that tells apart what came at one instant.

The database knows the instant. The counter is one for all that the node stores, so that of two messages of the same
millisecond the later one has the higher position; it begins anywhere, so that nodes seldom give the same, and goes
round. Where two have given the same, the later one jumps and tries again.
"""

from random import getrandbits

COUNTER_BITS = 20


class Positions:
    """The counter of one node."""

    def __init__(self) -> None:
        """Begin anywhere."""
        self._next = 0
        self.jump()

    def take(self, messages: int) -> int:
        """Return the first of so many numbers; the statement has them go round."""
        first, self._next = self._next, self._next + messages
        return first

    def jump(self) -> None:
        """Go on anywhere else, in the lower half: a counter that goes round gives a low number after a high one."""
        self._next = getrandbits(COUNTER_BITS - 1)

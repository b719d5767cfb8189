"""A node's clock that agrees with the database's, by which everything is visible or not.

It is the clock of the node's machine and what that differs by, as far as answers of the database tell: its instant was
read between the sending of a statement and the coming of the answer. So who waits at a node looks when there is
something, and neither late nor, again and again, too early.
"""

from collections.abc import Callable

from veilmq.core.ports import Clock, Timer

_ROUNDING_MS = 1


class DatabaseClock:
    """``core.ports.Clock``; until it has seen an answer it is that of the machine."""

    def __init__(self, machine: Clock) -> None:
        """``machine`` is the clock of the node's machine."""
        self.machine = machine
        self._ahead_ms = 0
        self._last_ms = 0

    def now_ms(self) -> int:
        """Return the present instant of the database; never less than before."""
        self._last_ms = max(self._last_ms, self.machine.now_ms() + self._ahead_ms)
        return self._last_ms

    def shown_ms(self) -> int:
        """Return the same: the database's clock is shown as it is."""
        return self.now_ms()

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` when ``now_ms()`` is ``at_ms``, as far as is known now."""
        return self.machine.call_at(at_ms - self._ahead_ms, callback)

    def saw(self, database_ms: int, *, sent_ms: int) -> None:
        """Take note of an instant that the database has just told, asked at ``sent_ms`` of the machine's clock."""
        at_most_ms = database_ms - sent_ms + _ROUNDING_MS
        at_least_ms = database_ms - self.machine.now_ms() - _ROUNDING_MS
        self._ahead_ms = min(max(self._ahead_ms, at_least_ms), at_most_ms)

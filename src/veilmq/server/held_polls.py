"""Receives and claims that are not begun, as answers that clients do not read fill their half of the budget of bytes.

They wait for room as they would for a message: for as long as they were to wait, a second at least, and then they are
answered with nothing.
"""

from collections.abc import Callable
from typing import Protocol

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.server.byte_budget import ByteBudget
from veilmq.server.http_request import Pending

HELD_S_MIN = 1


class Begin(Protocol):
    """Begins a poll that may wait for so many seconds."""

    def __call__(self, *, wait_s: int | None) -> Pending:
        """Begin it."""


class HeldPoll:
    """One of them; a ``Pending``."""

    __slots__ = ("_begin", "_begun", "_budget", "_clock", "_deadline_ms", "_give_up", "_is_over", "_timer", "_wait_s")

    def __init__(
        self,
        clock: Clock,
        budget: ByteBudget,
        wait_s: int | None,
        *,
        begin: Begin,
        give_up: Callable[[], object],
    ) -> None:
        """Call ``begin`` when there is room, or ``give_up``."""
        self._clock = clock
        self._budget = budget
        self._wait_s = wait_s
        self._begin = begin
        self._give_up = give_up
        self._begun: Pending | None = None
        self._is_over = False
        self._deadline_ms = clock.now_ms() + max(wait_s or 0, HELD_S_MIN) * SECOND_MS
        self._timer = clock.call_at(self._deadline_ms, self._expire)
        budget.on_room(self._go_on)

    def withdraw(self) -> None:
        """Forget it."""
        self._end()
        if self._begun is not None:
            self._begun.withdraw()

    def hurry(self) -> None:
        """Answer with nothing, or with what there is if it has begun."""
        if self._begun is not None:
            self._begun.hurry()
        else:
            self._expire()

    def _go_on(self) -> None:
        if self._end():
            wait_s = self._wait_s
            if wait_s:  # what was waited for room is not waited for a message too
                wait_s = max(0, self._deadline_ms - self._clock.now_ms()) // SECOND_MS
            self._begun = self._begin(wait_s=wait_s)

    def _expire(self) -> None:
        if self._end():
            self._give_up()

    def _end(self) -> bool:
        """Wait no longer; tell whether it did."""
        was_over, self._is_over = self._is_over, True
        if not was_over:
            self._timer.cancel()
            self._budget.off_room(self._go_on)
        return not was_over

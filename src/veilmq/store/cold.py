"""All cold commands, and the scheduler of those that work in the background, one slice at a time.

Schedules are not stored: a store schedules each kind of background work when it opens, and a command that creates work
calls ``Transaction.schedule``.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from veilmq.core.commands import Clock, Command, Done, Timer
from veilmq.core.limits import SECOND_MS
from veilmq.store import events, inspection, queue_commands, topics  # noqa: F401 - they add their commands
from veilmq.store.claims import ClaimStep
from veilmq.store.moves import MoveStep
from veilmq.store.publications import PublicationStep
from veilmq.store.transaction import COLD, READS, SNAPSHOTS, Cold

__all__ = ["COLD", "READS", "SNAPSHOTS", "STEPS", "Cold", "Scheduler", "Sweep"]

# Each does a slice of background work and returns the ms until the next one is due (see ``Scheduler``).
STEPS: tuple[type[Command], ...] = (MoveStep, PublicationStep, ClaimStep)

_PAUSE_MS_AFTER_ERROR = SECOND_MS


class Sweep(Command, frozen=True, kw_only=True):
    """Do a slice of the janitor's work; returns the ms until the next one is due."""


class Scheduler:
    """Call ``step`` whenever a slice is due, one at a time."""

    def __init__(
        self, *, step: Callable[[Done], object], clock: Clock, pause_ms_min: int = 0, poll_ms_max: float = inf
    ) -> None:
        """``step`` does a slice, then calls its argument with the ms until the next one, ``None`` or an error.

        Consecutive slices are at least ``pause_ms_min`` and at most ``poll_ms_max`` apart.
        """
        self._step = step
        self._clock = clock
        self._pause_ms_min = pause_ms_min
        self._poll_ms_max = poll_ms_max
        self._at_ms = inf  # when the next slice is due
        self._timer: Timer | None = None
        self._busy = False
        self._stopped = False

    def schedule(self, after_ms: float = 0) -> None:
        """Run a slice after the given time, unless an earlier one is scheduled."""
        at_ms = self._clock.now_ms() + after_ms
        if self._timer is None or at_ms < self._at_ms:
            self._at_ms = min(self._at_ms, at_ms)
            self._arm()

    def stop(self) -> None:
        """Start no more slices."""
        self._stopped = True
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._busy and not self._stopped and self._at_ms < inf:
            self._timer = self._clock.call_at(int(self._at_ms), self._begin)

    def _begin(self) -> None:
        self._timer, self._at_ms, self._busy = None, inf, True
        self._step(self._ended)

    def _ended(self, due: Any) -> None:
        self._busy = False
        after_ms = inf if due is None else _PAUSE_MS_AFTER_ERROR if isinstance(due, Exception) else due
        self.schedule(min(self._poll_ms_max, max(self._pause_ms_min, after_ms)))

"""Log lines about what may go on for long: one for each subject now and then, not one for each time."""

from collections.abc import Hashable

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock

PERIOD_MS = 60 * SECOND_MS
_SUBJECTS_MAX = 10_000


class Seldom:
    """Remembers what was said lately."""

    __slots__ = ("_clock", "_said")

    def __init__(self, clock: Clock) -> None:
        """Begin with nothing said."""
        self._clock = clock
        self._said: dict[Hashable, int] = {}

    def due(self, subject: Hashable) -> bool:
        """Tell whether it is time to say something about ``subject``; whoever asks says it."""
        now_ms = self._clock.now_ms()
        if now_ms < self._said.get(subject, 0) + PERIOD_MS:
            return False
        if len(self._said) >= _SUBJECTS_MAX:
            self._said.clear()
        self._said[subject] = now_ms
        return True

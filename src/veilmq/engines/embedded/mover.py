"""The mover: when the next slice of work that goes on by itself is due. What it does stands in ``moves`` and others.

Like the janitor it is one more sender of commands, with a pause between two slices. It keeps nothing that a restart
would have to bring back: whoever commits a batch tells it when a slice is due.
"""

from collections.abc import Callable

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Done, Timer
from veilmq.engines.embedded.moves import Stepped
from veilmq.engines.embedded.run import NEVER_MS

_PAUSE_MS_AFTER_ERROR = SECOND_MS


class Mover:
    """Submits a command that does one slice, and answers ``Stepped``, whenever one is due."""

    def __init__(self, *, step: Command, submit: Callable[[Command, Done], None], clock: Clock) -> None:
        """``step`` is the command, ``submit`` the engine's."""
        self._command = step
        self._submit = submit
        self._clock = clock
        self._busy = False
        self._stopped = False
        self._timer: Timer | None = None
        self._at_ms = NEVER_MS  # the timer's instant

    def look(self, due_ms: int) -> None:
        """Take note that a slice is due at ``due_ms``, unless one is arranged for then or earlier, or under way."""
        if due_ms < self._at_ms and not self._busy and not self._stopped:
            self._disarm()
            self._at_ms = due_ms
            self._timer = self._clock.call_at(due_ms, self._step)

    def stop(self) -> None:
        """Do no more."""
        self._stopped = True
        self._disarm()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self) -> None:
        self._timer = None
        self._at_ms = NEVER_MS
        self._busy = True
        self._submit(self._command, self._stepped)

    def _stepped(self, result: Stepped | VeilmqError) -> None:
        self._busy = False
        if isinstance(result, VeilmqError):
            self.look(self._clock.now_ms() + _PAUSE_MS_AFTER_ERROR)
        else:
            self.look(result.due_ms)

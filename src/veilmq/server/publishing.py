"""Publishing until all is in the queue: the engine moves a slice at a time, and is asked again while there is more.

Between two slices everybody else's commands get theirs; with a rate there is a wait between them. An answer is given
after ``PUBLISH_S_MAX`` at the latest: what was decided comes into the queue by itself then, and whoever wants to see it
asks once more.
"""

from typing import Any

from msgspec.structs import replace

from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Done, Engine, Timer
from veilmq.core.publications import Publish, Published

PUBLISH_S_MAX = 5


class Publishing:
    """Has publications carried out."""

    def __init__(self, *, engine: Engine, clock: Clock) -> None:
        """Use ``engine``, on its event loop and by its ``clock``."""
        self._engine = engine
        self._clock = clock

    def ask(self, command: Publish, wait_s: int | None, answer: Done) -> "OnePublication":
        """Publish; ``answer`` is called once."""
        until_ms = self._clock.now_ms() + PUBLISH_S_MAX * SECOND_MS
        return OnePublication(self._engine, self._clock, command, answer, until_ms)


class OnePublication:
    """One request on its way."""

    __slots__ = ("_again", "_answer", "_clock", "_command", "_engine", "_timer", "_until_ms")

    def __init__(self, engine: Engine, clock: Clock, command: Publish, answer: Done, until_ms: int) -> None:
        """Ask the engine a first time."""
        self._engine = engine
        self._clock = clock
        self._command = command
        self._answer: Done | None = answer
        self._until_ms = until_ms
        self._again: bool | None = None  # what the first answer said
        self._timer: Timer | None = None
        self._ask()

    def _ask(self) -> None:
        self._timer = None
        self._engine.submit(self._command, self._done)

    def _done(self, result: Published | VeilmqError) -> None:
        if self._answer is None:
            return
        if isinstance(result, VeilmqError):
            self._answer(result)
            return
        if self._again is None:
            self._again = result.again
        now_ms = self._clock.now_ms()
        due_ms = now_ms if result.next_due_ms is None else result.next_due_ms
        if result.more and due_ms < self._until_ms:
            if due_ms <= now_ms:
                self._ask()
            else:
                self._timer = self._clock.call_at(due_ms, self._ask)
        else:
            self._answer(shown_due(replace(result, again=self._again), self._clock))

    def withdraw(self) -> None:
        """Forget it: what is not begun does not happen, what is decided does."""
        self._answer = None
        if self._timer is not None:
            self._timer.cancel()
        self._engine.withdraw(self._done)

    def hurry(self) -> None:
        """Answer with the next slice."""
        self._until_ms = 0
        if self._timer is not None:
            self._timer.cancel()
            self._ask()


def shown_due(result: Any, clock: Clock) -> Any:
    """Return ``result`` with the instant at which something is due next as users see it."""
    due_ms = getattr(result, "next_due_ms", None)
    return result if due_ms is None else replace(result, next_due_ms=clock.shown_ms(due_ms))


def showing_due(answer: Done | None, clock: Clock) -> Done:
    """Return what gives ``answer`` a result with that instant."""
    assert answer is not None, "it is there until it is given"
    return lambda result: answer(shown_due(result, clock))

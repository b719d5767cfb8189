"""What the outside gives the engine and what an engine gives the outside: two small ports.

``Engine`` is all that a server knows of a store. ``Clock`` is the one source of time; tests put a virtual one in.
"""

from collections.abc import Callable
from typing import Any, Protocol

from veilmq.core.commands import Command

Done = Callable[[Any], object]
"""Called once with the result or the ``VeilmqError`` of a command, in the event loop, once that is durable."""

Wake = Callable[[int], object]
"""Called with the instant (ms) at which a watched queue has, or may have, a message."""


MaySend = Callable[[str, str, str], bool]
"""Whether a principal (its ARN) may send to a queue (its full name) that has this policy."""


class Timer(Protocol):
    """A call that was arranged and can be called off."""

    def cancel(self) -> object:
        """Call it off; harmless when it has happened."""


class Clock(Protocol):
    """The time of a store, which never runs backwards, in whole milliseconds.

    Timers and ``next_due_ms`` are in it; a server tells its users the shown one. Instants in results whose names end in
    ``_at_ms`` or ``_until_ms`` are shown ones, as users see them: their age is reckoned from ``shown_ms()``.
    """

    def now_ms(self) -> int:
        """Return the present instant of the store."""

    def shown_ms(self, at_ms: int | None = None) -> int:
        """Return the instant ``at_ms``, the present one without it, as users see it, since the epoch."""

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in the event loop once ``now_ms()`` is at least ``at_ms``."""


class Engine(Protocol):
    """Commands made atomic and durable. All methods are called in the event loop's thread, and none blocks."""

    @property
    def token_key(self) -> bytes:
        """Return a secret of 32 bytes, kept as long as the data: for what a protocol hands out and takes back."""

    def submit(self, command: Command, done: Done) -> None:
        """Take ``command``; call ``done`` with its result or error once that is durable."""

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun; its client has gone."""

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` whenever ``queue`` may have a message sooner than its last receive said.

        Called between a command and the next one: a command that ``wake`` submits is the next to be applied, in the
        same batch. Deletion of the queue wakes too (the next receive answers ``QueueNotFound``). One watch a queue.
        """

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""

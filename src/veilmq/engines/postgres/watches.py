"""Who waits for messages of which queue: at this node, and at others."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from veilmq.core.ports import Wake

log = logging.getLogger(__name__)

_held: ContextVar[dict[str, int] | None] = ContextVar("held", default=None)


class OtherNodes(Protocol):
    """What the watches of one node know of the other nodes."""

    def begin(self, queue: str) -> None:
        """Hear that somebody waits for ``queue`` here."""

    def awaits(self, queue: str) -> bool:
        """Tell whether another node waits for ``queue``."""

    def tell(self, queue: str, due_ms: int) -> None:
        """Have them hear of a message, or a place for one, at ``due_ms``."""

    def changed(self, queue: str) -> None:
        """Have them hear that what they know of ``queue`` is old."""

    def found_full(self, queue: str) -> None:
        """Have them hear that there was no place for another message in flight."""

    def lacks_a_place(self, queue: str) -> bool:
        """Tell whether another node waits for a place in ``queue``."""


class Watches:
    """The watches of one node; see ``core.ports.Engine``."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._wakes: dict[str, Wake] = {}
        self.elsewhere: OtherNodes | None = None
        """The other nodes, where there may be any."""

    def begin(self, queue: str, wake: Wake) -> None:
        """Have ``wake`` called when ``queue`` may have a message."""
        self._wakes[queue] = wake
        if self.elsewhere is not None:
            self.elsewhere.begin(queue)

    def end(self, queue: str) -> None:
        """Call nobody for ``queue`` any more."""
        self._wakes.pop(queue, None)

    @property
    def here(self) -> list[str]:
        """Return for which queues somebody waits at this node."""
        return list(self._wakes)

    def is_here(self, queue: str) -> bool:
        """Tell whether somebody waits for ``queue`` at this node."""
        return queue in self._wakes

    def has(self, queue: str) -> bool:
        """Tell whether somebody waits for ``queue`` anywhere."""
        return queue in self._wakes or (self.elsewhere is not None and self.elsewhere.awaits(queue))

    def wake(self, queue: str, due_ms: int) -> None:
        """Tell whoever waits, here or elsewhere, that there is, or may be, a message at ``due_ms``.

        What it is about must be committed, as who is told looks at once; before that, see ``held``.
        """
        held = _held.get()
        if held is not None:
            held[queue] = due_ms
            return
        self.rouse(queue, due_ms)
        if self.elsewhere is not None and self.elsewhere.awaits(queue):
            self.elsewhere.tell(queue, due_ms)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have whoever is to be woken inside told at the end, when the transaction is; nobody after an error."""
        held: dict[str, int] = {}
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)
        for queue, due_ms in held.items():
            self.wake(queue, due_ms)

    def rouse(self, queue: str, due_ms: int) -> None:
        """Tell whoever waits at this node."""
        wake = self._wakes.get(queue)
        if wake is None:
            return
        try:
            wake(due_ms)
        except Exception:  # what it hears of is durable already
            log.exception("the watch on %s failed", queue)

    def changed(self, queue: str, now_ms: int = 0) -> None:
        """Tell whoever waits, and all nodes that know the queue, that it was changed, purged or deleted."""
        self.rouse(queue, now_ms)
        if self.elsewhere is not None:
            self.elsewhere.changed(queue)

    def found_full(self, queue: str) -> None:
        """Have other nodes tell of places that they free in ``queue``, if anybody waits here."""
        if self.elsewhere is not None and queue in self._wakes:
            self.elsewhere.found_full(queue)

    def freed(self, queue: str, due_ms: int) -> None:
        """Tell other nodes of a place, if one of them waits for it."""
        if self.elsewhere is not None and self.elsewhere.lacks_a_place(queue):
            self.elsewhere.tell(queue, due_ms)

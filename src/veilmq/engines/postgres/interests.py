"""What other nodes wait for, as far as this one has heard: whoever they do not wait for, they need not be told of."""

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock

REFRESH_MS = 10 * SECOND_MS
"""How often a node repeats what it waits for."""

_KEPT_MS = 25 * SECOND_MS  # a node that has repeated nothing for so long is gone


class Interests:
    """The queues that each other node awaits, and those where one found no place for another message in flight."""

    def __init__(self, *, clock: Clock) -> None:
        """``clock`` says when an interest is old."""
        self._clock = clock
        self._until_ms: dict[str, dict[str, int]] = {}
        self._full: set[str] = set()

    def note(self, node: str, queue: str) -> None:
        """Take note that ``node`` awaits messages of ``queue``."""
        self._until_ms.setdefault(queue, {})[node] = self._clock.now_ms() + _KEPT_MS

    def drop(self, node: str, queue: str) -> None:
        """Take note that it does so no more."""
        nodes = self._until_ms.get(queue, {})
        nodes.pop(node, None)
        if not nodes:
            self._until_ms.pop(queue, None)
            self._full.discard(queue)

    def has(self, queue: str) -> bool:
        """Tell whether any node awaits ``queue``."""
        nodes = self._until_ms.get(queue)
        if not nodes:
            return False
        now_ms = self._clock.now_ms()
        for node in [node for node, until_ms in nodes.items() if until_ms <= now_ms]:
            self.drop(node, queue)
        return bool(nodes)

    def fill(self, queue: str) -> None:
        """Take note that a node found no place there."""
        self._full.add(queue)

    def is_full(self, queue: str) -> bool:
        """Tell whether a node waits for a place there."""
        return queue in self._full and self.has(queue)

    def give_place(self, queue: str) -> bool:
        """Do so for one that is told of a place now, and says so again if it finds none."""
        was_full = self.is_full(queue)
        self._full.discard(queue)
        return was_full

    def look(self) -> None:
        """Forget what is old."""
        for queue in list(self._until_ms):
            self.has(queue)

    def clear(self) -> None:
        """Know of nothing."""
        self._until_ms.clear()
        self._full.clear()

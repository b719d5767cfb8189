"""Who waits at this node for messages of which queue."""

import logging

from veilmq.core.ports import Wake

log = logging.getLogger(__name__)


class Watches:
    """The watches of one node; see ``core.ports.Engine``."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._wakes: dict[str, Wake] = {}

    def begin(self, queue: str, wake: Wake) -> None:
        """Have ``wake`` called when ``queue`` may have a message."""
        self._wakes[queue] = wake

    def end(self, queue: str) -> None:
        """Call nobody for ``queue`` any more."""
        self._wakes.pop(queue, None)

    def has(self, queue: str) -> bool:
        """Tell whether somebody waits for ``queue``."""
        return queue in self._wakes

    def wake(self, queue: str, due_ms: int) -> None:
        """Tell whoever waits that there is, or may be, a message at ``due_ms``."""
        wake = self._wakes.get(queue)
        if wake is None:
            return
        try:
            wake(due_ms)
        except Exception:  # what it hears of is durable already
            log.exception("the watch on %s failed", queue)

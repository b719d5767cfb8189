"""The mover: when this node does the next slice of the move tasks.

It keeps nothing. A node that begins a task looks at once, every other one now and then: that is how a task goes on
whose node has died.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import asyncpg

from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.engines.postgres.failures import IN_DOUBT
from veilmq.engines.postgres.on_queue import COLLISIONS

log = logging.getLogger(__name__)

LOOK_MS = 10 * SECOND_MS
"""How often a node looks that knows of no task."""
_BUSY_MS = 10  # while another node is at the task
_PAUSE_MS_AFTER_ERROR = SECOND_MS


class Mover:
    """Has ``step`` done whenever a slice is due."""

    def __init__(
        self,
        *,
        step: Callable[[], Awaitable[int | None]],
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
        pause_ms_min: int = _BUSY_MS,
    ) -> None:
        """``step`` tells in how many ms the next slice is due; ``start`` makes a task of the engine."""
        self._pause_ms_min = pause_ms_min
        self._step = step
        self._clock = clock
        self._start = start
        self._timer: Timer | None = None
        self._stopped = False

    def look(self, after_ms: int = 0) -> None:
        """Do what is due then, and nothing before."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._stopped:
            self._timer = self._clock.call_at(self._clock.now_ms() + after_ms, self._look)

    def stop(self) -> None:
        """Do no more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._start(self._work())

    async def _work(self) -> None:
        try:
            due_ms = await self._step()
            self.look(LOOK_MS if due_ms is None else min(LOOK_MS, max(self._pause_ms_min, due_ms)))
        except COLLISIONS:
            self.look()
        except (*IN_DOUBT, asyncpg.PostgresError, VeilmqError):
            log.warning("work in the background was interrupted, and goes on later", exc_info=True)
            self.look(_PAUSE_MS_AFTER_ERROR)

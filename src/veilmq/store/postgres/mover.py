"""When a node does the next slice of work in the background.

It keeps nothing. A node that begins such work looks at once, every other one now and then: that is how it goes on when
a node has died.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Done
from veilmq.store.background import Scheduler
from veilmq.store.postgres.coalescing import COLLISIONS

log = logging.getLogger(__name__)

LOOK_MS = 10 * SECOND_MS
"""How often a node looks that knows of no work."""
_BUSY_MS = 10  # while another node is at it


class Mover(Scheduler):
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

        async def work(done: Done) -> None:
            due: int | Exception | None
            try:
                due = await step()
            except COLLISIONS:
                due = 0
            except Exception as error:
                log.warning("work in the background was interrupted, and goes on later", exc_info=True)
                due = error
            done(due)

        super().__init__(
            step=lambda done: start(work(done)), clock=clock, pause_ms_min=pause_ms_min, look_ms_max=LOOK_MS
        )

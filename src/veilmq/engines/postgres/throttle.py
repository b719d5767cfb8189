"""How many receives are asked of a queue: no more than so many in any second, counted for all nodes together.

What is refused does not count. A queue that bounds nothing pays nothing; another one has a statement more for the
receives that travel together, on one row of a table that a crash may empty.
"""

from collections.abc import Sequence
from typing import Any

from veilmq.core.commands import Receive
from veilmq.core.limits import SECOND_MS
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.on_queue import STANDARD


async def refused(connection: Any, queue: Queue, together: Sequence[Receive]) -> set[int]:
    """Return which of the receives, by their places, are too many; those that waited were counted before."""
    per_s_max = queue.settings.receives_per_s_max
    if not per_s_max:
        return set()
    asked = [place for place, command in enumerate(together) if command.requested_at_ms is None]
    if not asked:
        return set()
    admitted = await connection.fetchval(STANDARD["admit"], queue.origin, len(asked), per_s_max, SECOND_MS)
    return set(asked[admitted:])

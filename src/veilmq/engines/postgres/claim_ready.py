"""How many messages of a queue are visible, as heartbeats tell it: counted seldom where counting takes long.

A count looks at each of them. Readers beat several times a minute and take the number for what it is, a hint; so what
took long to count is told again for fifty times as long. Whoever opens a source, or lists them, is told what is true.
"""

from asyncio import get_running_loop
from typing import Any

from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.on_queue import retention_ms, sql
from veilmq.store.claimed import Backlog

SQL = load("veilmq.engines.postgres", "claims.sql")

LONG_S = 0.1
_COSTS_KEPT = 50
_KNOWN_MAX = 10_000


class Ready:
    """What one node has counted lately."""

    def __init__(self) -> None:
        """Know nothing."""
        self._known: dict[int, tuple[float, Backlog]] = {}

    async def lately(self, connection: Any, queue: Queue) -> Backlog:
        """Return how many messages are visible, or were when that was last counted."""
        began_s = get_running_loop().time()
        known = self._known.get(queue.partition)
        if known is not None and began_s < known[0]:
            return known[1]
        counted = await count(connection, queue)
        cost_s = get_running_loop().time() - began_s
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        if cost_s > LONG_S:
            self._known[queue.partition] = began_s + _COSTS_KEPT * cost_s, counted
        return counted


async def count(connection: Any, queue: Queue) -> Backlog:
    """Count what of ``queue`` is visible."""
    counted = sql(queue)["count"] if queue.settings.fifo else SQL["ready"]
    row = await connection.fetchrow(counted, queue.partition, retention_ms(queue))
    return Backlog(row["visible"], row["oldest_sent_at"])

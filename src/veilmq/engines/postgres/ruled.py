"""Visibility rules: where a receive names no timeout, each message is hidden for that of its class.

The class depends on what the message says of itself, which is not read in SQL: the claim hides all for as long as a
lease may be, and a second statement of the same transaction hides each for its own time.
"""

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any

from veilmq.core.limits import SECOND_MS
from veilmq.core.routing import RoutingTable, read_table
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.on_queue import retention_ms, sql

_TABLES_KEPT = 256

Take = Callable[[], Awaitable[list[Any]]]
"""Leases messages and returns their rows."""


async def take_by_class(connection: Any, queue: Queue, take: Take, bound_ms: int | None) -> list[Any]:
    """Return the rows of what ``take`` leases, hidden for the timeout of each message's class."""
    async with connection.transaction():
        return await hide_by_class(connection, queue, await take(), bound_ms)


async def hide_by_class(connection: Any, queue: Queue, rows: list[Any], bound_ms: int | None) -> list[Any]:
    """Hide messages that were leased in this transaction; return their rows with the deadlines that hold.

    None is later than ``bound_ms`` from when the message was asked for, if that is given.
    """
    if not rows:
        return rows
    table = _table(queue.settings.visibility_rules)
    timeouts_ms = [table.timeout_s(row["properties"] or b"", row["receive_count"] - 1) * SECOND_MS for row in rows]
    hidden = await connection.fetch(
        sql(queue)["hide"],
        queue.partition,
        [row["seq"] for row in rows],
        timeouts_ms,
        bound_ms,
        retention_ms(queue),
    )
    until_ms = dict(hidden)
    return [{**row, "visible_at": until_ms[row["seq"]]} for row in rows]


@lru_cache(maxsize=_TABLES_KEPT)
def _table(text: str) -> RoutingTable:
    return read_table(text)

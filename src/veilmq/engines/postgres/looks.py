"""Looks at a queue: its messages as they are, and those that a receive of this instant would give; nothing changes."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from veilmq.core.limits import DEAD_LETTERS_PER_RECEIVE, PRIORITY
from veilmq.core.looks import LookAtQueue, MessageState, Peek, Peeked, PeekedMessage, SeenMessage
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.fair_queues import FAIR, LANE, FairQueues
from veilmq.engines.postgres.fifo_taking import properties_of
from veilmq.engines.postgres.on_queue import retention_ms, sql
from veilmq.engines.postgres.redrive import target_of


class Looks:
    """The commands of ``core.looks``."""

    def __init__(self, *, database: Database, catalog: Catalog, fair: FairQueues) -> None:
        """``catalog`` is the node's; ``fair`` knows who has to wait."""
        self._fair = fair
        self._database = database
        self._catalog = catalog

    async def look(self, command: LookAtQueue) -> list[SeenMessage]:
        """Show what there is, in the order of sending."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            rows = await connection.fetch(sql(queue)["look"], queue.partition, command.count, retention_ms(queue))
        return [_seen(queue, row) for row in rows]

    async def peek(self, command: Peek) -> Peeked:
        """Show the first visible messages; the quota of messages in flight does not count."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            dies = await target_of(connection, self._catalog, queue) is not None
            count = command.count + DEAD_LETTERS_PER_RECEIVE if dies else command.count
            rows = await self._first(connection, queue, count)
        shown = islice(_living(rows, queue.settings.receives_max if dies else 0), command.count)
        return Peeked(messages=[_shown(queue, row) for row in shown], smq_base64=queue.settings.smq_base64)

    async def _first(self, connection: Any, queue: Queue, count: int) -> list[Any]:
        terms: tuple[Any, ...] = (queue.partition, count, retention_ms(queue))
        statement = sql(queue)["peek"]
        if not queue.settings.fifo and self._fair.has(queue):
            statement, terms = FAIR["peek"], (*terms, await self._fair.noisy(connection, queue, judge=False))
        rows: list[Any] = await connection.fetch(statement, *terms)
        return rows


def _living(rows: Iterable[Any], receives_max: int) -> Iterator[Any]:
    """Yield what a receive would give, up to where it has moved as many dead letters as one may."""
    dead = 0
    for row in rows:
        if not receives_max or row["receive_count"] < receives_max:
            yield row
        elif (dead := dead + 1) >= DEAD_LETTERS_PER_RECEIVE:
            return


def _shown(queue: Queue, row: Any) -> PeekedMessage:
    return PeekedMessage(
        id=row["id"],
        body=row["body"],
        properties=properties_of(queue, row),
        sent_at_ms=row["sent_at"],
        first_received_at_ms=row["first_received_at"],
        receive_count=row["receive_count"] + row["receives_before"],
        priority=PRIORITY.default if queue.settings.fifo else row["priority"] % LANE,
        source=row["source"],
    )


def _seen(queue: Queue, row: Any) -> SeenMessage:
    state = MessageState.VISIBLE
    if row["visible_at"] > row["now"]:
        state = MessageState.IN_FLIGHT if row["receive_count"] else MessageState.DELAYED
    return SeenMessage(
        id=row["id"],
        body=row["body"],
        properties=properties_of(queue, row),
        sent_at_ms=row["sent_at"],
        receive_count=row["receive_count"],
        state=state,
        visible_at_ms=row["visible_at"] if row["was_hidden"] else None,
    )

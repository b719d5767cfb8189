"""Numbers of events: those that are committed are taken away, a slice at a time, numbered, and stored as one batch.

Whoever does it holds the lock of one row from before it looks until it has committed, so numbers rise without a gap.
What a transaction commits later gets a later number. No event stands before one that it follows: whoever wrote the
later one had seen the earlier one, so it was there to be taken, and has the lower place in its table.

Where too many wait to be exported the newest are dropped and counted, and the receipts that ended with them are told of
no more.
"""

import logging
from typing import Any

from veilmq.core.events import encode
from veilmq.store.events import Event, event_of, routing_key
from veilmq.store.postgres.event_log import SQL
from veilmq.store.postgres.options import PostgresOptions

log = logging.getLogger(__name__)

SLICE_EVENTS = 1_000


class EventNumbers:
    """Numbers the events of one store."""

    def __init__(self, *, options: PostgresOptions) -> None:
        """``options`` bound how many may wait, and say which attribute is the routing key."""
        self._options = options

    async def number(self, connection: Any, slice_events: int = SLICE_EVENTS) -> None:
        """Number all events that are committed."""
        await connection.execute(SQL["state"])
        while await self._slice(connection, slice_events) == slice_events:
            pass

    async def _slice(self, connection: Any, slice_events: int) -> int:
        async with connection.transaction():
            state = await connection.fetchrow(SQL["lock_state"])
            rows = sorted(await connection.fetch(SQL["take"], slice_events), key=lambda row: row["number"])
            if not rows:
                return 0
            room = max(0, self._options.events_waiting_max - (state["recorded"] - state["exported"]))
            kept, dropped = rows[:room], rows[room:]
            if kept:
                encoded = encode([self._event(row) for row in kept])
                await connection.execute(SQL["insert_batch"], state["recorded"] + 1, len(kept), encoded)
            if dropped:
                await self._drop(connection, dropped, is_first=not state["dropped"])
            await connection.execute(SQL["number"], len(kept), len(dropped))
        return len(rows)

    async def _drop(self, connection: Any, dropped: list[Any], *, is_first: bool) -> None:
        if is_first:
            log.warning("events are dropped: too many wait to be exported")
        numbers: dict[int, list[int]] = {}
        for row in dropped:
            if row["outcome"] == "expired":
                numbers.setdefault(row["qp"], []).append(row["number"])
        for origin, of_queue in numbers.items():
            await connection.execute(SQL["drop_expired"], origin, of_queue)

    def _event(self, row: Any) -> Event:
        return event_of(
            queue=row["queue"],
            key=routing_key(row["properties"], self._options.routing_attribute),
            group_hash=row["group_hash"],
            size=row["size"],
            message_id=row["id"],
            generation=row["generation"],
            sent_at_ms=row["came_at"],
            received_at_ms=row["received_at"],
            visible_at_ms=row["visible_at"],
            receive_count=row["receive_count"],
            log=row["log"],
            outcome=row["outcome"],
            closed_at_ms=row["closed_at"],
        )

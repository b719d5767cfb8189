"""Numbers of events: those that are committed are taken away, a slice at a time, numbered, and stored as one batch.

Whoever does it holds the lock of one row from before it looks until it has committed, so numbers rise without a gap.
What a transaction commits later gets a later number. No event stands before one that it follows: whoever wrote the
later one had seen the earlier one, so it was there to be taken, and has the lower place in its table.

Where too many wait to be exported the newest are dropped and counted, and the receipts that ended with them are told of
no more.
"""

import logging
from functools import lru_cache
from typing import Any

from veilmq.core.events import EventCounts, encode
from veilmq.core.routing import key_of
from veilmq.engines import held
from veilmq.engines.postgres.event_log import SQL
from veilmq.engines.postgres.options import PostgresOptions

log = logging.getLogger(__name__)

SLICE_EVENTS = 1_000
_KEYS_MAX = 4_096
_REMEMBERED_BYTES_MAX = 1_000  # of the properties of a message: larger ones are looked into each time


class EventNumbers:
    """Numbers the events of one store."""

    def __init__(self, *, options: PostgresOptions) -> None:
        """``options`` bound how many may wait, and say which attribute is the routing key."""
        self._options = options

    async def number(self, connection: Any, slice_events: int = SLICE_EVENTS) -> EventCounts:
        """Number all events that are committed; tell how many there are then."""
        await connection.execute(SQL["state"])
        while await self._slice(connection, slice_events) == slice_events:
            pass
        return EventCounts(**dict(await connection.fetchrow(SQL["counts"])))

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

    def _event(self, row: Any) -> tuple[Any, ...]:
        """Return the fields of a ``ReceiptClosed`` in their order."""
        extensions, batch_size, batch_position, _ = held.read(row["log"])
        return (
            row["queue"],
            self._key(row["properties"]) if row["properties"] else "",
            row["group_hash"],
            1 << row["size"].bit_length(),
            row["id"],
            row["generation"],
            row["came_at"],
            row["received_at"],
            row["closed_at"],
            row["closed_at"] - row["received_at"],
            row["outcome"],
            row["visible_at"] - row["received_at"],
            extensions,
            row["receive_count"],
            batch_size,
            batch_position,
        )

    def _key(self, properties: bytes) -> str:
        attribute = self._options.routing_attribute
        if len(properties) > _REMEMBERED_BYTES_MAX:
            return key_of(properties, attribute)
        return _remembered_key(properties, attribute)


@lru_cache(maxsize=_KEYS_MAX)
def _remembered_key(properties: bytes, attribute: str) -> str:
    return key_of(properties, attribute)

"""A database as the source of a copy to another kind of store: one snapshot of it."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from veilmq.core import properties
from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.core.settings import QueueSettings
from veilmq.engines.copying import (
    SLICE,
    CopiedAcceptance,
    CopiedMessage,
    CopiedMove,
    CopiedPause,
    CopiedQueue,
    CopiedSubscription,
    CopiedTopic,
    CopyRefused,
    Remembered,
    obstacle,
)
from veilmq.engines.postgres.copy_lock import SQL, CopyLock
from veilmq.engines.postgres.identity import read

_COPIED = frozenset({"accepted", "fifo_msg", "meta", "move", "msg", "pause", "queue", "subscription", "topic"})
_FORGOTTEN = frozenset({"attempt", "clock", "event_state", "expired_receipt", "fair_turn", "fifo_group", "piece"})
"""Made anew, or of no use in another store; the pieces of a stage are told of with it."""
_UNLESS_ENDED = {
    "part": "log_queue IS NOT NULL AND (EXISTS (SELECT FROM mq.msg WHERE msg.qp = part.qp) "
    "OR EXISTS (SELECT FROM mq.fifo_msg WHERE fifo_msg.qp = part.qp))",
    "publication": "stages <> '{}'",
    "stage": "publication IS NULL",
}
"""Of these only some rows matter: what is only to be dropped may be lost on the way."""
_VALUES = ("token_key",)
"""Not the key of receipts: in another kind of store they would name other messages, so they are refused there."""


class DatabaseSource:
    """``engines.copying.Source`` of a database."""

    def __init__(self, lock: CopyLock, *, now_ms: int) -> None:
        """Use ``open``."""
        self._lock = lock
        self.now_ms = now_ms

    @classmethod
    async def open(cls, lock: CopyLock) -> "DatabaseSource":
        """Begin to read; raises ``CopyRefused``, also for a schema of another version."""
        await lock.require()
        await lock.hold()
        identity = await read(lock.connection)
        if identity is not None and identity.places > 1:
            raise CopyRefused(
                f"{lock.place} is number {identity.place + 1} of the {identity.places} databases of a store: a data "
                "folder takes none of several. Copy each of them to a database of its own."
            )
        return cls(lock, now_ms=await lock.connection.fetchval(SQL["now"]))

    async def obstacles(self) -> list[str]:
        """See ``Source``."""
        told = []
        for (table,) in await self._lock.connection.fetch(SQL["tables"]):
            if table in _COPIED or table in _FORGOTTEN:
                continue
            which = _UNLESS_ENDED.get(table, "true")
            count = await self._lock.connection.fetchval(f"SELECT count(*) FROM mq.{table} WHERE {which}")
            if count:
                told.append(obstacle(table, count))
        return told

    async def queues(self) -> list[CopiedQueue]:
        """See ``Source``."""
        return [
            CopiedQueue(number, name, msgspec.json.decode(settings, type=QueueSettings), settings, created, modified)
            for number, name, settings, created, modified in await self._lock.connection.fetch(SQL["queues"])
        ]

    async def last_queue(self) -> int:
        """See ``Source``."""
        return int(await self._lock.connection.fetchval(SQL["last_queue"]))

    async def count(self) -> int:
        """See ``Source``; as the last vacuum saw it."""
        return int(await self._lock.connection.fetchval(SQL["count"]))

    async def messages(self, queue: CopiedQueue) -> AsyncIterator[list[CopiedMessage]]:
        """See ``Source``."""
        until_ms = queue.retained_ms(self.now_ms)
        statement, read = (SQL["fifo"], _message) if queue.settings.fifo else (SQL["standard"], _fair_message)
        found: list[CopiedMessage] = []
        async for row in self._lock.connection.cursor(statement, queue.number, until_ms, prefetch=SLICE):
            found.append(read(row))
            if len(found) == SLICE:
                yield found
                found = []
        yield found

    async def remembered(self) -> Remembered:
        """See ``Source``; also the last moment to see that somebody has been at work meanwhile."""
        await self._lock.check_alone()
        fetch = self._lock.connection.fetch
        return Remembered(
            accepted=[
                CopiedAcceptance(queue, key, message_id, sequence, expires_at - DEDUPLICATION_S * SECOND_MS)
                for queue, key, message_id, sequence, expires_at in await fetch(SQL["accepted"])
            ],
            moves=[CopiedMove(*row) for row in await fetch(SQL["moves"])],
            pauses=[CopiedPause(*row) for row in await fetch(SQL["pauses"])],
            topics=[CopiedTopic(*row) for row in await fetch(SQL["topics"])],
            subscriptions=[CopiedSubscription(*row) for row in await fetch(SQL["subscriptions"])],
        )

    async def values(self) -> dict[str, bytes]:
        """See ``Source``."""
        return dict(await self._lock.connection.fetch(SQL["values"], list(_VALUES)))


def _message(row: Any) -> CopiedMessage:
    return CopiedMessage(*row)


def _fair_message(row: Any) -> CopiedMessage:
    """Return a message of a standard queue, whose row has a hash of its group; the name is among the properties."""
    message = CopiedMessage(*row)
    if message.group is None:
        return message
    return message._replace(group=properties.decode(message.properties).group or f"group {message.group}")

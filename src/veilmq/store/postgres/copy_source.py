"""A database as the source of a copy to another kind of store: one snapshot of it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from veilmq.core import properties
from veilmq.core.limits import DEDUPLICATION_S, SECOND_MS
from veilmq.engines.copying import (
    SLICE,
    CopiedAcceptance,
    CopiedMessage,
    CopiedQueue,
    CopyRefused,
    Remembered,
    TableSource,
)
from veilmq.store.postgres.copy_lock import SQL, CopyLock


class DatabaseSource(TableSource):
    """``engines.copying.Source`` of a database."""

    SQL = SQL
    COPIED = frozenset(
        {"accepted", "fifo_msg", "move", "msg", "pause", "queue", "setting", "subscription", "topic"}
        | {"attempt", "clock", "event_state", "expired_receipt", "fair_turn", "fifo_group", "piece"}
    )
    UNLESS_ENDED: ClassVar[Mapping[str, str]] = {
        **TableSource.UNLESS_ENDED,
        "part": "log_queue IS NOT NULL AND (EXISTS (SELECT FROM msg WHERE msg.qp = part.qp) "
        "OR EXISTS (SELECT FROM fifo_msg WHERE fifo_msg.qp = part.qp))",
    }

    def __init__(self, lock: CopyLock, *, now_ms: int) -> None:
        """Use ``open``."""
        self._lock = lock
        self.now_ms = now_ms

    @classmethod
    async def open(cls, lock: CopyLock) -> "DatabaseSource":
        """Begin to read; raises ``CopyRefused``, also for a schema of another version."""
        await lock.require()
        await lock.hold()
        if await lock.connection.fetchval(SQL["is_one_of_several"]):
            raise CopyRefused(
                f"{lock.place} is one of several databases of a store: a data folder takes none of them. Copy each "
                "to a database of its own."
            )
        return cls(lock, now_ms=await lock.connection.fetchval(SQL["now"]))

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        """Return the rows of a statement."""
        rows: list[Any] = await self._lock.connection.fetch(text, *values)
        return rows

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

    async def accepted(self) -> list[CopiedAcceptance]:
        """See ``Source``."""
        return [
            CopiedAcceptance(queue, key, message_id, sequence, expires_at - DEDUPLICATION_S * SECOND_MS)
            for queue, key, message_id, sequence, expires_at in await self.fetch(SQL["accepted"])
        ]

    async def remembered(self) -> Remembered:
        """See ``Source``; also the last moment to see that somebody has been at work meanwhile."""
        await self._lock.check_alone()
        return await super().remembered()


def _message(row: Any) -> CopiedMessage:
    return CopiedMessage(*row)


def _fair_message(row: Any) -> CopiedMessage:
    """Return a message of a standard queue, whose row has a hash of its group; the name is among the properties."""
    message = CopiedMessage(*row)
    if message.group is None:
        return message
    return message._replace(group=properties.decode(message.properties).group or f"group {message.group}")

"""The queues that a node knows: looked up when they are first named, and kept for a while.

What a node knows may be old: another one may have changed settings, purged or deleted the queue since. A statement on a
partition that was retired finds nothing and stores nothing; whoever meets that forgets the queue and looks it up again.
"""

from asyncio import get_running_loop
from typing import Any, NamedTuple

import msgspec

from veilmq.core.errors import QueueNotFound
from veilmq.core.settings import QueueSettings
from veilmq.engines.named_sql import load

SQL = load("veilmq.engines.postgres", "queues.sql")


class Queue(NamedTuple):
    """One incarnation of a queue; ``number`` is in receipts, ``partition`` (qp) in every statement on its messages.

    ``origin`` was its first partition; it has what outlives a purge.
    """

    number: int
    name: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    partition: int
    origin: int


class Catalog:
    """The queues of one store, as far as this node has met them."""

    def __init__(self, *, fresh_s: float) -> None:
        """Know none. What is older than ``fresh_s`` is looked up again."""
        self._fresh_s = fresh_s
        self._known: dict[str, tuple[Queue, float]] = {}

    async def queue(self, connection: Any, name: str) -> Queue:
        """Return the queue of that full name; raises ``QueueNotFound``."""
        return self.known(name) or await self.sure(connection, name)

    def known(self, name: str) -> Queue | None:
        """Return what is known of that queue, if that is not too old."""
        known = self._known.get(name)
        return known[0] if known is not None and get_running_loop().time() < known[1] else None

    async def sure(self, connection: Any, name: str) -> Queue:
        """Look the queue up, whatever is known of it; raises ``QueueNotFound``."""
        queue = await self.find(connection, name)
        if queue is None:
            raise QueueNotFound(name)
        return queue

    async def find(self, connection: Any, name: str) -> Queue | None:
        """Look the queue up; ``None`` when there is none of that name."""
        self.forget(name)
        row = await connection.fetchrow(SQL["find_queue"], name)
        return None if row is None else self.note(queue_of(row))

    def note(self, queue: Queue) -> Queue:
        """Take ``queue`` as it was just seen; return it."""
        self._known[queue.name] = queue, get_running_loop().time() + self._fresh_s
        return queue

    def seen(self, name: str) -> Queue | None:
        """Return what is known of the queue, however old; ``None`` when that is nothing."""
        known = self._known.get(name)
        return None if known is None else known[0]

    def forget(self, name: str) -> None:
        """Look that queue up again when it is named next."""
        self._known.pop(name, None)

    def clear(self) -> None:
        """Look all of them up again."""
        self._known.clear()


def queue_of(row: Any) -> Queue:
    """Return the queue of a row of ``mq.queue``."""
    number, name, settings, *rest = row
    return Queue(number, name, msgspec.json.decode(settings, type=QueueSettings), *rest)

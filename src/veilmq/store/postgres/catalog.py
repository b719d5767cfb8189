"""The queues that a node knows: looked up when they are first named, and kept for a while.

What a node knows may be old: another one may have changed settings, purged or deleted the queue since. A statement on a
partition that was retired finds nothing and stores nothing; whoever meets that forgets the queue and looks it up again.
"""

from asyncio import get_running_loop
from typing import Any, NamedTuple, Protocol

import msgspec

from veilmq.core.errors import QueueNotFound
from veilmq.core.settings import QueueSettings
from veilmq.engines.named_sql import load
from veilmq.store.named_queries import shared

SQL = {**shared(), **load("veilmq.store.postgres", "queues.sql")}


class Queue(NamedTuple):
    """One incarnation of a queue; ``number`` is in receipts, ``partition`` (qp) in every statement on its messages.

    ``origin`` was its first partition; it has what outlives a purge. One that is ``away`` is in another database, and
    the partition is one of the outbox, from where its messages go there. ``has_groups`` tells of a standard queue
    whether a message ever named one, as far as it was looked up. Messages are kept ``kept_longer_ms`` longer than its
    settings say while the clock is doubted.
    """

    number: int
    name: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    partition: int
    origin: int
    away: bool = False
    has_groups: bool = False
    kept_longer_ms: int = 0


class Elsewhere(Protocol):
    """The other databases of a store."""

    async def settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue elsewhere; ``None`` when there is none; raises ``StoreUnavailable``."""

    async def has_sources(self, name: str) -> bool:
        """Tell whether it is the dead-letter queue of any queue elsewhere; raises ``StoreUnavailable``."""

    async def target(self, connection: Any, name: str, source: tuple[int, str]) -> Queue | None:
        """Return a queue elsewhere, as one that is away; raises ``StoreUnavailable``."""


class Catalog:
    """The queues of one store, as far as this node has met them."""

    def __init__(self, *, fresh_s: float) -> None:
        """Know none. What is older than ``fresh_s`` is looked up again."""
        self._fresh_s = fresh_s
        self._known: dict[str, tuple[Queue, float]] = {}
        self._kept_longer_ms = 0
        self.elsewhere: Elsewhere | None = None
        """The other databases, where there are any."""

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

    async def target(self, connection: Any, name: str, source: tuple[int, str]) -> Queue | None:
        """Look up a queue that messages are to be moved to, in the transaction that moves them, wherever it is.

        ``source`` is number and name of the queue that they leave, 0 and its name for a topic. Raises
        ``StoreUnavailable`` for one in another database about which nothing is known.
        """
        queue = await self.find(connection, name)
        if queue is None and self.elsewhere is not None:
            return await self.elsewhere.target(connection, name, source)
        return queue

    async def settings(self, connection: Any, name: str) -> QueueSettings | None:
        """Look up the settings of a queue wherever it is; ``None`` when there is none; raises ``StoreUnavailable``."""
        queue = await self.find(connection, name)
        if queue is None and self.elsewhere is not None:
            return await self.elsewhere.settings(name)
        return None if queue is None else queue.settings

    def note(self, queue: Queue) -> Queue:
        """Take ``queue`` as it was just seen; return it."""
        if self._kept_longer_ms:
            queue = queue._replace(kept_longer_ms=self._kept_longer_ms)
        self._known[queue.name] = queue, get_running_loop().time() + self._fresh_s
        return queue

    def seen(self, name: str) -> Queue | None:
        """Return what is known of the queue, however old; ``None`` when that is nothing."""
        known = self._known.get(name)
        return None if known is None else known[0]

    def forget(self, name: str) -> None:
        """Look that queue up again when it is named next."""
        self._known.pop(name, None)

    def keep_longer(self, time_ms: int) -> None:
        """Have the messages of all queues kept longer, from now on."""
        if time_ms != self._kept_longer_ms:
            self._kept_longer_ms = time_ms
            self.clear()

    def clear(self) -> None:
        """Look all of them up again."""
        self._known.clear()


def queue_of(row: Any) -> Queue:
    """Return the queue of a row of ``mq.queue``."""
    number, name, settings, created_at_ms, modified_at_ms, partition, origin, *has_groups = row
    decoded = msgspec.json.decode(settings, type=QueueSettings)
    queue = Queue(number, name, decoded, created_at_ms, modified_at_ms, partition, origin)
    return queue._replace(has_groups=True) if has_groups == [True] else queue

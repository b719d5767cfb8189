"""The outbox of one database: how its queues send messages to queues of others.

For each pair of a queue here and a queue elsewhere there is a *transit*: a partition of the tables of messages, which
stands for the other queue. Whoever moves messages (dead letters, move tasks, forwards, publications) does so as if the
queue was here, by the same statements in the same transaction; that is what makes the message's way durable. Carriers
then take it on (``carrier``).
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec

from veilmq.core.errors import StoreUnavailable
from veilmq.core.settings import QueueSettings
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Queue

OUTBOX = load("veilmq.engines.postgres", "outbox.sql")
SHARDS = load("veilmq.engines.postgres", "shards.sql")


class Placed(NamedTuple):
    """A queue of the database at ``place``."""

    place: int
    queue: Queue


class Directory(Protocol):
    """Knows the queues of all databases of a store."""

    async def find(self, name: str) -> Placed | None:
        """Return the queue of that full name; raises ``StoreUnavailable`` where nobody can tell."""

    async def has_sources(self, name: str) -> bool:
        """Tell whether the queue is the dead-letter queue of one at any place; raises ``StoreUnavailable``."""


class Transits:
    """``catalog.Elsewhere`` of the database at ``place``."""

    def __init__(
        self,
        *,
        place: int,
        directory: Directory,
        afterwards: Callable[[Any, Callable[[], None]], None],
        look: Callable[[], None],
    ) -> None:
        """``look`` is called when there may be something in the outbox: ``afterwards``, when a connection is back."""
        self._place = place
        self._directory = directory
        self._afterwards = afterwards
        self._look = look

    async def settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue elsewhere; ``None`` when there is none; raises ``StoreUnavailable``."""
        found = await self._directory.find(name)
        return None if found is None else found.queue.settings

    async def has_sources(self, name: str) -> bool:
        """Tell whether any queue's dead-letter queue it is; raises ``StoreUnavailable``."""
        return await self._directory.has_sources(name)

    async def target(self, connection: Any, name: str, source: tuple[int, str]) -> Queue | None:
        """Return a queue elsewhere as its transit stands for it, to which messages of ``source`` can be moved.

        ``source`` is number and name, 0 and the name for a topic. The transit is made in the connection's transaction.
        While the other database cannot be reached, the queue is as it was last; raises ``StoreUnavailable`` if it was
        never met.
        """
        try:
            found = await self._directory.find(name)
        except StoreUnavailable:
            return await self._last_known(connection, name, source)
        if found is None or found.place == self._place:
            return None
        queue = found.queue
        partition = await self._partition(connection, found, source)
        self._afterwards(connection, self._look)
        return _as_away(partition, queue)

    async def _partition(self, connection: Any, found: Placed, source: tuple[int, str]) -> int:
        queue = found.queue
        settings = msgspec.json.encode(queue.settings)
        row = await connection.fetchrow(SHARDS["find_transit"], source[0], found.place, queue.number)
        if row is not None and row["settings"] == settings:
            return int(row["qp"])
        made = await connection.fetchval(
            SHARDS["make_transit"], *source, found.place, queue.number, queue.name, settings
        )
        return int(made)

    async def _last_known(self, connection: Any, name: str, source: tuple[int, str]) -> Queue:
        row = await connection.fetchrow(SHARDS["known_transit"], source[0], name)
        if row is None:
            raise StoreUnavailable
        settings = msgspec.json.decode(row["settings"], type=QueueSettings)
        self._afterwards(connection, self._look)
        return _as_away(row["qp"], Queue(row["target_id"], name, settings, 0, 0, 0, 0))


def _as_away(partition: int, queue: Queue) -> Queue:
    """Return ``queue`` with a number that no queue here has."""
    return queue._replace(number=-partition, partition=partition, origin=partition, away=True)

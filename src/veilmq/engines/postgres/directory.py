"""What the databases of a store know of each other's queues, and how they pass messages on."""

from collections.abc import Collection, Mapping
from typing import Any

from veilmq.core.errors import StoreUnavailable
from veilmq.engines.postgres.carriage import Arrived, Batch, Fate, Transit, arrive
from veilmq.engines.postgres.catalog import SQL, Queue
from veilmq.engines.postgres.engine import PostgresEngine
from veilmq.engines.postgres.next_visible import rouse_groups
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX
from veilmq.engines.postgres.placement import Placement
from veilmq.engines.postgres.shard import Shard
from veilmq.engines.postgres.transits import Placed


class Directory:
    """``transits.Directory`` and ``carrier.Destinations`` of one node."""

    def __init__(self, *, shards: Mapping[int, Shard], removed: Collection[int], placement: Placement) -> None:
        """``shards`` are all by their places, the home at 0, and ``removed`` places of others; both may change."""
        self._shards = shards
        self._removed = removed
        self._placement = placement

    # Queues.

    async def find(self, name: str) -> Placed | None:
        """Return the queue of that full name; raises ``StoreUnavailable`` where nobody can tell."""
        place = self._placement.known(name)
        if place is not None:
            queue = await self._queue_at(place, name)
            if queue is not None:
                return Placed(place, queue)
            self._placement.forget(name)
        found = await self._placement.place_of(name)
        if found is None or found == place:
            return None
        queue = await self._queue_at(found, name)
        return None if queue is None else Placed(found, queue)

    async def _queue_at(self, place: int, name: str) -> Queue | None:
        catalog = self._engine_at(place).machine.catalog
        return catalog.known(name) or await self._shards[place].ask(lambda connection: catalog.find(connection, name))

    def _engine_at(self, place: int) -> PostgresEngine:
        shard = self._shards.get(place)
        if shard is None or shard.engine is None:
            raise StoreUnavailable
        return shard.engine

    async def has_sources(self, name: str) -> bool:
        """Tell whether the queue is the dead-letter queue of one at any place; raises ``StoreUnavailable``."""
        for shard in list(self._shards.values()):
            if await shard.ask(lambda connection: connection.fetch(SQL["queue_sources"], name, "", 1)):
                return True
        return False

    # Messages.

    async def arrive(self, transit: Transit, from_place: int, batch: Batch) -> Arrived:
        """Have a batch stored at its target, and wake who waits there; raises ``StoreUnavailable``."""
        if transit.place in self._removed:
            return Arrived(Fate.QUEUE_GONE)
        engine = self._engine_at(transit.place)
        for _ in range(COLLISIONS_MAX):
            try:
                async with self._shards[transit.place].connection() as connection, connection.transaction():
                    arrived = await arrive(connection, transit, from_place, batch, engine.machine.positions)
                break
            except COLLISIONS:
                engine.machine.positions.jump()
        else:
            raise StoreUnavailable
        if arrived.is_changed:
            engine.machine.catalog.forget(transit.target)
            engine.machine.watches.changed(transit.target, arrived.due_ms)
        elif arrived.fate is Fate.ARRIVED and arrived.queue is not None:
            await self.wake(transit.place, arrived.queue, arrived.due_ms)
        return arrived

    async def wake(self, place: int, queue: Queue, due_ms: int = 0) -> None:
        """Wake who waits for ``queue`` at ``place``, which has something at ``due_ms``."""
        engine = self._shards[place].engine
        if engine is None:
            return
        if not queue.settings.fifo:
            engine.machine.watches.wake(queue.name, due_ms)
            return

        async def rouse(connection: Any) -> None:
            await rouse_groups(connection, queue, engine.machine.watches)

        await self._shards[place].ask(rouse)

"""Where each queue of a store is: at the place that the home says, which was written before the queue was made.

A queue never moves; so a place that is known may be old only where the queue was deleted, and the shard says so.
"""

from collections.abc import Mapping
from contextlib import asynccontextmanager
from typing import Any

from veilmq.core.errors import StoreUnavailable
from veilmq.engines.postgres.shard import Shard
from veilmq.engines.postgres.transits import SHARDS

_KNOWN_MAX = 100_000
_PAGE = 500
_TRIES_MAX = 5


class Placement:
    """The places of queues, as one node knows them."""

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        """``shards`` are all by their places, the home at 0; they may change."""
        self._shards = shards
        self._known: dict[str, int] = {}

    def known(self, name: str) -> int | None:
        """Return the place of a queue that was met before."""
        return self._known.get(name)

    def forget(self, name: str) -> None:
        """Look it up again when it is named next."""
        self._known.pop(name, None)

    def clear(self) -> None:
        """Look all of them up again."""
        self._known.clear()

    async def place_of(self, name: str) -> int | None:
        """Look up the place of a queue; ``None`` for one that never was; raises ``StoreUnavailable``."""
        try:
            place = await self._home.ask(lambda connection: connection.fetchval(SHARDS["locate"], name))
        except StoreUnavailable:
            place = await self._place_without_home(name)
        return None if place is None else self._note(name, place)

    async def _place_without_home(self, name: str) -> int:
        """Ask the others: a queue that one of them has is there; of any other queue only the home can tell."""
        for shard in [each for each in self._shards.values() if each.place]:
            try:
                if await shard.ask(lambda connection: connection.fetchval(SHARDS["has_queue"], name)):
                    return shard.place
            except StoreUnavailable:
                continue
        raise StoreUnavailable

    @asynccontextmanager
    async def held(self, name: str) -> Any:
        """Give a queue its place, unless it has one, and keep it while the queue is made; raises ``StoreUnavailable``.

        A new queue goes where the fewest are, of the databases that can be reached.
        """
        for _ in range(_TRIES_MAX):
            if await self.place_of(name) is None:
                await self._reserve(name)
            async with self._home.connection() as connection, connection.transaction():
                place = await connection.fetchval(SHARDS["hold_place"], name)
                if place is not None:
                    yield self._note(name, place)
                    return
                await connection.execute(SHARDS["reserve"], name, 0)  # it was at the home before there were others
        raise StoreUnavailable

    async def _reserve(self, name: str) -> None:
        async with self._home.connection() as connection:
            loads = dict(await connection.fetch(SHARDS["loads"]))
            for shard in sorted(self._shards.values(), key=lambda shard: (loads.get(shard.place, 0), shard.place)):
                if await _is_up(shard):
                    await connection.execute(SHARDS["reserve"], name, shard.place)
                    return
        raise StoreUnavailable

    async def sweep(self, connection: Any) -> None:
        """Forget the places of queues that are gone; ``connection`` is to the home."""
        for shard in list(self._shards.values()):
            after = ""
            while rows := await connection.fetch(SHARDS["placed"], shard.place, after, _PAGE):
                names = [name for (name,) in rows]
                for name in await self._unused(shard, names):
                    await self._drop(connection, shard, name)
                after = names[-1]

    async def _drop(self, connection: Any, shard: Shard, name: str) -> None:
        async with connection.transaction():
            held = await connection.fetchval(SHARDS["take_place"], name, shard.place)
            if held is not None and await self._unused(shard, [name]):
                await connection.execute(SHARDS["drop_place"], name)
                self.forget(name)

    async def _unused(self, shard: Shard, names: list[str]) -> list[str]:
        try:
            rows = await shard.ask(lambda connection: connection.fetch(SHARDS["unused"], names))
        except StoreUnavailable:
            return []
        return [name for (name,) in rows]

    @property
    def _home(self) -> Shard:
        return self._shards[0]

    def _note(self, name: str, place: int) -> int:
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[name] = place
        return place


async def _is_up(shard: Shard) -> bool:
    try:
        return bool(await shard.ask(lambda connection: connection.fetchval("SELECT true")))
    except StoreUnavailable:
        return False

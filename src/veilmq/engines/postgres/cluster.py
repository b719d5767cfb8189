"""The databases of a store, as one node has them open: the home, those that it knows, and those that it is given."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import asyncpg

from veilmq.core.errors import StoreUnavailable, VeilmqError
from veilmq.engines.postgres import databases, identity
from veilmq.engines.postgres.database_clock import MachineClock
from veilmq.engines.postgres.failures import UNREACHABLE, sentence
from veilmq.engines.postgres.identity import Identity
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.shard import Shard
from veilmq.engines.postgres.transits import SHARDS
from veilmq.engines.store import StoreError
from veilmq.engines.store_urls import bare

log = logging.getLogger(__name__)

REFRESH_MS = 10_000
"""How often a node looks which databases there are."""


class Cluster:
    """The databases by their places; they change while the node runs."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        clock: MachineClock,
        options: PostgresOptions,
        opened: Callable[[Shard], None],
        dropped: Callable[[Shard], None],
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """``opened`` is called with each that takes part, ``dropped`` with each that does no more."""
        self._machine = clock
        self._options = options
        self._opened = opened
        self._dropped = dropped
        self._start = start
        self._given = dict(enumerate(urls))
        self._refreshing: asyncio.Task[None] | None = None
        self.identity: Identity | None = None
        """What the store is; ``None`` until a database was asked."""
        self.shards: dict[int, Shard] = {}
        self.removed: set[int] = set()
        """The places of databases that were removed."""
        self.home = self._add(0, urls[0])

    async def open(self) -> None:
        """Connect to all that can be reached; raises ``StoreError``, see ``Shards.open``."""
        failure = await _failure(self.home)
        if failure is None:
            await self._meet_home()
        else:
            for place, url in self._given.items():
                self._add(place, url)
            self._take(databases.last_known(self.home.url))
            self.identity = await self._identity_elsewhere(failure)
        for shard in list(self.shards.values()):
            shard.home = self.identity
            if await _failure(shard) is None:
                with _named(shard):
                    await shard.open()

    async def _meet_home(self) -> None:
        """Make known what was given, and take what the home knows."""
        given = [self._add(place, url) for place, url in self._given.items() if place]
        reached = [shard for shard in given if await _failure(shard) is None]
        async with (await self.home.connect()).connection() as connection:
            with _named(self.home):
                home = self.identity = await identity.found(connection)
            async with databases.locked(connection):
                for shard in given:
                    with _named(shard):
                        is_sure = shard in reached and await _fits(shard, home)
                        await databases.register(connection, shard.place, shard.url, is_sure=is_sure)
            members = await databases.members(connection)
        self._take(members)
        databases.keep(self.home.url, members)

    async def _identity_elsewhere(self, failure: BaseException) -> Identity:
        """Return what the store is from a database that has joined it, as the home is down."""
        for shard in self.shards.values():
            if shard is not self.home and await _failure(shard) is None:
                async with (await shard.connect()).connection() as connection:
                    known = await identity.read(connection)
                if known is not None:
                    return known
        raise StoreError(
            f"{self.home.name} cannot be used: {sentence(failure)}"
            + (" No other database of its store that is known here can be asked." if self.shards.keys() - {0} else "")
        )

    def _add(self, place: int, url: str) -> Shard:
        if place not in self.shards:
            shard = self.shards[place] = Shard(
                url,
                place=place,
                clock=self._machine,
                options=self._options,
                opened=self._opened,
                start=self._start,
            )
            shard.home = self.identity
        return self.shards[place]

    def _take(self, members: Sequence[databases.Member]) -> None:
        """Have the databases be those of ``members``."""
        for member in members:
            shard = self.shards.get(member.place)
            if shard is not None and (member.removed or _has_moved(shard, member, self._given)):
                del self.shards[member.place]
                self._dropped(shard)
                shard = None
            if member.removed:
                self.removed.add(member.place)
            elif shard is None and member.url is None:
                raise StoreError(
                    f"{self.home.name} does not know the URL of database {member.place + 1} of its store: start a "
                    "server with the URLs of all once, in their order, or add it with `veilmq database add`."
                )
            elif shard is None and member.url is not None:
                self._add(member.place, member.url)

    async def refresh(self) -> None:
        """Look which databases there are, and open those that are new."""
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh())
        await self._refreshing

    async def _refresh(self) -> None:
        try:
            members = await self.home.ask(databases.members)
            self._take(members)
            databases.keep(self.home.url, members)
        except (StoreUnavailable, StoreError) as error:
            log.warning("which databases there are is looked up later: %s", error)
        finally:
            self._refreshing = None
        closed = [shard for shard in self.shards.values() if shard.engine is None]
        await asyncio.gather(*(shard.open_late() for shard in closed))

    async def at(self, place: int) -> Shard:
        """Return the database at ``place``, which may have been added a moment ago; raises ``StoreUnavailable``."""
        if place not in self.shards:
            await self.refresh()
        if place not in self.shards:
            raise StoreUnavailable
        return self.shards[place]


def _has_moved(shard: Shard, member: databases.Member, given: Mapping[int, str]) -> bool:
    """Tell whether the home knows another URL of a database; one that the settings give counts more."""
    return member.place not in given and member.url is not None and bare(shard.url) != member.url


async def _failure(shard: Shard) -> BaseException | None:
    """Return why the database cannot be reached, if so; raises ``StoreError`` for one that can, and cannot be used."""
    try:
        await shard.connect()
    except UNREACHABLE as error:
        return error
    except (VeilmqError, ValueError, asyncpg.PostgresError) as error:
        raise StoreError(f"{shard.name}: {error}") from error
    return None


async def _fits(shard: Shard, home: Identity) -> bool:
    """Tell whether a database knows that it has its place; raises ``StoreError`` where it cannot have it."""
    async with (await shard.connect()).connection() as connection:
        ours = await identity.read(connection)
        if ours is None and not await connection.fetchval(SHARDS["is_empty"]):
            raise StoreError(f"it has queues of its own, so it cannot be number {shard.place + 1} of another store.")
    reason = identity.objection(ours, store=home.store, place=shard.place)
    if reason:
        raise StoreError(reason)
    return ours is not None


@contextmanager
def _named(shard: Shard) -> Iterator[None]:
    """Say which database a ``StoreError`` is about."""
    try:
        yield
    except StoreError as error:
        raise StoreError(f"{shard.name}: {error}") from error

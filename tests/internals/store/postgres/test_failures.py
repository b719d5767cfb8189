"""What goes wrong between a node and its database, also what is lost on the way, and what whoever asked is told."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from tests.internals.store.postgres.proxy import Proxy, passing
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.commands import Command, QueueView, SentMessage
from veilmq.core.errors import InternalError, OutcomeUnknown, ReceiptState, StoreFull, StoreUnavailable
from veilmq.store.port import execute
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.database import Breaker, Database, failure_of
from veilmq.store.postgres.engine import PostgresEngine
from veilmq.testing import VirtualClock

SEND = commands.Send(queue=QUEUE, messages=(message("a"),))
SHOW = commands.ShowQueue(queue=QUEUE)
TAG = commands.TagQueue(queue=QUEUE, tags={"a": "b"})
FEW = replace(RESTLESS, connections=1, acquire_s=2)  # in which a busy machine makes a connection
HASTY = replace(RESTLESS, statement_s=1)  # long enough for every statement that need not wait


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url, options=FEW) as opened:
        opened.create()
        yield opened


@contextlib.asynccontextmanager
async def locked(host: PostgresHost) -> AsyncIterator[Any]:
    """Keep the queues to ourselves for a while: whoever needs one waits."""
    async with connected(host.url) as connection, connection.transaction():
        await connection.execute("LOCK TABLE mq.queue")
        yield connection


async def waiting(connection: Any) -> None:
    async with asyncio.timeout(60):
        while not await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass


async def kill(connection: Any) -> None:
    await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE NOT granted")


def blocked(host: PostgresHost, command: Command, then: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Return what `command`, which waits for the lock, is answered after `then` and the end of the lock."""

    async def ask() -> Any:
        async with locked(host) as connection:
            asked = asyncio.ensure_future(execute(host.engine, command))
            await waiting(connection)
            await then(connection)
        return await asked

    return host.run(ask())


def test_who_finds_no_connection_is_told_to_try_again(host: PostgresHost) -> None:
    """Nothing of his command was done, and the next one finds one."""

    async def meanwhile(connection: Any) -> None:
        with pytest.raises(StoreUnavailable):
            await execute(host.engine, SEND)

    blocked(host, TAG, meanwhile)
    assert host.counts() == (0, 0, 0)
    host.do(SEND)
    assert host.counts() == (1, 0, 0)


def test_a_change_whose_connection_is_lost_may_have_happened(host: PostgresHost) -> None:
    """Nobody knows; the node goes on with another connection."""
    with pytest.raises(OutcomeUnknown):
        blocked(host, TAG, kill)
    assert host.do(SHOW).settings.tags == {}


def test_what_changes_nothing_is_asked_again(host: PostgresHost) -> None:
    assert isinstance(blocked(host, SHOW, kill), QueueView)


def test_a_statement_that_takes_too_long_is_given_up(postgres_url: str) -> None:
    with hosting_postgres(postgres_url, options=HASTY) as host:
        host.create()

        async def ask() -> None:
            async with locked(host):
                with pytest.raises(StoreUnavailable):
                    await execute(host.engine, TAG)

        host.run(ask())
        assert host.do(SHOW).settings.tags == {}


def test_commands_that_travel_together_are_told_together(postgres_url: str) -> None:
    with hosting_postgres(postgres_url, options=HASTY) as host:
        host.create()

        async def ask() -> list[Any]:
            async with connected(host.url) as connection, connection.transaction():
                await connection.execute("LOCK TABLE mq.msg")
                asked = [execute(host.engine, SEND) for _ in range(3)]
                return await asyncio.gather(*asked, return_exceptions=True)

        assert [type(answer) for answer in host.run(ask())] == [StoreUnavailable] * 3
        assert host.counts() == (0, 0, 0)


@contextlib.contextmanager
def altered(host: PostgresHost, do: str, undo: str) -> Iterator[None]:
    async def alter(statement: str) -> None:
        async with connected(host.url) as connection:
            await connection.execute("SET default_transaction_read_only = off")
            await connection.execute(statement)

    host.run(alter(do))
    try:
        yield
    finally:
        host.run(alter(undo))


@contextlib.asynccontextmanager
async def database_of(host: PostgresHost, url: str, connections: int) -> AsyncIterator[Database]:
    options = replace(RESTLESS, connections=connections)
    database = Database(url, options=options, clock=host.clock)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def test_a_server_that_is_full_costs_nobody_the_connections_that_there_are(host: PostgresHost) -> None:
    """Who would need one more is told to try again, and the next one is served."""

    async def asks(database: Database) -> None:
        async with database.connection() as connection:
            await connection.execute("SELECT 1")

    async def play() -> None:
        async with database_of(host, host.url.replace("postgres:@", "few:@"), connections=3) as database:
            async with database.connection():
                with pytest.raises(StoreUnavailable) as refused:
                    await asks(database)
                assert isinstance(refused.value.__cause__, asyncpg.TooManyConnectionsError)
            await asks(database)

    with altered(host, "CREATE ROLE few LOGIN CONNECTION LIMIT 1 IN ROLE postgres", "DROP ROLE few"):
        host.run(play())


def test_a_server_that_takes_nothing_is_left_for_another(host: PostgresHost) -> None:
    """It is a standby now, say, and the primary is elsewhere: the next connection may find that."""

    async def write(database: Database) -> Any:
        async with database.connection() as connection:
            await connection.execute("UPDATE mq.test_clock SET now_ms = now_ms")
            return await connection.fetchval("SELECT pg_backend_pid()")

    async def play() -> None:
        lost: list[None] = []
        async with database_of(host, host.url, connections=1) as database:
            database.on_lost.append(lambda: lost.append(None))
            before = await write(database)
            async with database.connection() as connection:
                await connection.execute("SET default_transaction_read_only = on")
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await write(database)
            with pytest.raises(StoreUnavailable):
                await write(database)
            host.clock.advance(100)
            assert await write(database) != before
        assert lost == [None]

    host.run(play())


def test_what_was_in_each_others_way_is_repeated(host: PostgresHost) -> None:
    """The database gives one of the two up; whoever asked for it does not hear of that."""
    host.send("a", "b")
    receipts = tuple(each.receipt for each in host.receive(2))
    locks = "SELECT FROM mq.msg WHERE body = $1 FOR UPDATE"

    async def play() -> Any:
        async with connected(host.url) as connection:
            await connection.execute("SET deadlock_timeout = '60s'")  # so it is the node's that is given up
            async with connection.transaction():
                await connection.execute(locks, "b")
                asked = asyncio.ensure_future(execute(host.engine, commands.Delete(queue=QUEUE, receipts=receipts)))
                async with connected(host.url) as looking:
                    await waiting(looking)
                await connection.execute(locks, "a")
            return await asked

    assert host.run(play()) == [ReceiptState.LIVE] * 2
    assert host.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (asyncpg.DiskFullError("full"), StoreFull),
        (asyncpg.ReadOnlySQLTransactionError("a standby"), StoreUnavailable),
        (asyncpg.ConnectionDoesNotExistError("gone"), OutcomeUnknown),
        (asyncpg.InternalClientError("another operation is in progress"), OutcomeUnknown),
        (ConnectionResetError(), OutcomeUnknown),
        (StoreFull(), StoreFull),
        (ZeroDivisionError(), InternalError),
    ],
)
def test_what_an_error_means(error: Exception, answer: type) -> None:
    assert type(failure_of(error, "Send")) is answer


def test_the_breaker_rests_longer_each_time() -> None:
    """One tries after each rest, and nobody else until it is known what he found."""
    clock = VirtualClock()
    breaker = Breaker(clock=clock)
    for pause_ms in (100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000):
        breaker.check()
        breaker.failed()
        clock.advance(pause_ms - 1)
        with pytest.raises(StoreUnavailable):
            breaker.check()
        clock.advance(1)
    breaker.check()
    with pytest.raises(StoreUnavailable):
        breaker.check()
    breaker.worked()
    breaker.check()
    breaker.check()
    breaker.failed()
    clock.advance(100)
    breaker.check()


ALONE = replace(RESTLESS, connections=1, listens=False)
SILENT = replace(ALONE, statement_s=1, silence_s=1)  # long enough for every statement on a busy machine


@pytest.fixture
def roomy(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as opened:
        opened.create()
        yield opened


@contextlib.asynccontextmanager
async def behind(host: PostgresHost, options: PostgresOptions = ALONE) -> AsyncIterator[tuple[Proxy, PostgresEngine]]:
    """Keep a node open behind a proxy; it has a connection, which knows the statement of a send, and is idle."""
    async with passing(host.url) as proxy:
        node = await open_engine(proxy.url, clock=host.clock, options=options)
        try:
            await execute(node, SEND)
            await node.answered()
            yield proxy, node
        finally:
            await node.close()


async def told(node: PostgresEngine, command: Command) -> Any:
    return (await asyncio.gather(execute(node, command), return_exceptions=True))[0]


def test_what_was_done_although_its_answer_was_lost_is_not_denied(roomy: PostgresHost) -> None:
    """Whoever asked hears that it may have happened: here it has. The next command finds another connection."""

    async def play() -> tuple[Any, Any]:
        async with behind(roomy) as (proxy, node):
            proxy.cuts = True
            return await told(node, SEND), await told(node, SEND)

    lost, (sent,) = roomy.run(play())
    assert isinstance(lost, OutcomeUnknown)
    assert isinstance(sent, SentMessage)
    assert roomy.counts() == (3, 0, 0)


def test_what_only_reads_is_asked_again_when_its_answer_was_lost(roomy: PostgresHost) -> None:
    async def play() -> Any:
        async with behind(roomy) as (proxy, node):
            proxy.cuts = True
            return await told(node, commands.ShowQueue(queue=QUEUE))

    assert roomy.run(play()).queue == QUEUE


def test_a_server_that_falls_silent_is_given_up(roomy: PostgresHost) -> None:
    """Who was asking hears that it may have happened; who comes then, at once that nothing was done.

    After a while one tries, and when the server speaks again everybody is served. Nothing acknowledged is missing.
    """

    async def play() -> None:
        async with behind(roomy, SILENT) as (proxy, node):
            proxy.swallows = True
            silent = await asyncio.gather(*(told(node, SEND) for _ in range(3)))
            assert {type(answer) for answer in silent} == {OutcomeUnknown}
            began_s = time.monotonic()
            assert [type(await told(node, SEND)) for _ in range(100)] == [StoreUnavailable] * 100
            assert time.monotonic() - began_s < 60, "they waited, each for two seconds"
            proxy.swallows = False
            roomy.clock.advance(5_000)
            (sent,) = await execute(node, SEND)
            assert sent.id

    roomy.run(play())
    assert roomy.counts()[0] in {2, 3, 4, 5}

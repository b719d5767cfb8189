"""What goes wrong between a node and its database, and what whoever asked is told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from tests.engines.host import QUEUE, message
from tests.engines.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres
from veilmq.core import commands
from veilmq.core.commands import Command
from veilmq.core.errors import InternalError, OutcomeUnknown, StoreFull, StoreUnavailable
from veilmq.core.results import QueueView
from veilmq.engines.execute import execute
from veilmq.engines.postgres.breaker import Breaker
from veilmq.engines.postgres.failures import told
from veilmq.testing import VirtualClock

SEND = commands.Send(queue=QUEUE, messages=(message("a"),))
SHOW = commands.ShowQueue(queue=QUEUE)
TAG = commands.TagQueue(queue=QUEUE, tags={"a": "b"})
FEW = replace(RESTLESS, connections=1, acquire_s=0.05)


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    """Return a node with one connection and a queue."""
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
    """Return when somebody waits for the lock."""
    async with asyncio.timeout(10):
        while not await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass


async def kill(connection: Any) -> None:
    """End the connections of whoever waits for the lock."""
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
    """Whoever asked does not hear of it."""
    assert isinstance(blocked(host, SHOW, kill), QueueView)


def test_a_statement_that_takes_too_long_is_given_up(postgres_url: str) -> None:
    """By the server, which has then done nothing."""
    with hosting_postgres(postgres_url, options=replace(RESTLESS, statement_s=0.05)) as host:
        host.create()

        async def ask() -> None:
            async with locked(host):
                with pytest.raises(StoreUnavailable):
                    await execute(host.engine, TAG)

        host.run(ask())
        assert host.do(SHOW).settings.tags == {}


def test_commands_that_travel_together_are_told_together(postgres_url: str) -> None:
    """And none of them was done."""
    with hosting_postgres(postgres_url, options=replace(RESTLESS, statement_s=0.05)) as host:
        host.create()

        async def ask() -> list[Any]:
            async with connected(host.url) as connection, connection.transaction():
                await connection.execute("LOCK TABLE mq.msg")
                asked = [execute(host.engine, SEND) for _ in range(3)]
                return await asyncio.gather(*asked, return_exceptions=True)

        assert [type(answer) for answer in host.run(ask())] == [StoreUnavailable] * 3
        assert host.counts() == (0, 0, 0)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (asyncpg.DiskFullError("full"), StoreFull),
        (asyncpg.ReadOnlySQLTransactionError("a standby"), StoreUnavailable),
        (asyncpg.ConnectionDoesNotExistError("gone"), OutcomeUnknown),
        (ConnectionResetError(), OutcomeUnknown),
        (StoreFull(), StoreFull),
        (ZeroDivisionError(), InternalError),
    ],
)
def test_what_an_error_means(error: Exception, answer: type) -> None:
    """To whoever asked."""
    assert type(told(error, "Send")) is answer


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

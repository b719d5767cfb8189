"""What is lost between a node and its server: the way to it, or the answer to what it did."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.internals.store.postgres.proxy import Proxy, passing
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, hosting_postgres, open_engine
from veilmq.core import commands
from veilmq.core.commands import Command, SentMessage
from veilmq.core.errors import OutcomeUnknown, StoreUnavailable
from veilmq.store.port import execute
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.engine import PostgresEngine

SEND = commands.Send(queue=QUEUE, messages=(message("a"),))
SHOW = commands.ShowQueue(queue=QUEUE)
ALONE = replace(RESTLESS, connections=1, listens=False)
HASTY = replace(ALONE, statement_s=1, silence_s=1)  # long enough for every statement on a busy machine


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    """Return a node that nothing is lost to, with a queue."""
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
    """Return the answer, or what it was refused with."""
    return (await asyncio.gather(execute(node, command), return_exceptions=True))[0]


def test_what_was_done_although_its_answer_was_lost_is_not_denied(host: PostgresHost) -> None:
    """Whoever asked hears that it may have happened: here it has. The next command finds another connection."""

    async def play() -> tuple[Any, Any]:
        async with behind(host) as (proxy, node):
            proxy.cuts = True
            return await told(node, SEND), await told(node, SEND)

    lost, (sent,) = host.run(play())
    assert isinstance(lost, OutcomeUnknown)
    assert isinstance(sent, SentMessage)
    assert host.counts() == (3, 0, 0)


def test_what_only_looks_is_asked_again(host: PostgresHost) -> None:
    """Its answer was lost, and nobody need know."""

    async def play() -> Any:
        async with behind(host) as (proxy, node):
            proxy.cuts = True
            return await told(node, SHOW)

    assert host.run(play()).queue == QUEUE


def test_a_server_that_falls_silent_is_given_up(host: PostgresHost) -> None:
    """Who was asking hears that it may have happened; who comes then, at once that nothing was done.

    After a while one tries, and when the server speaks again everybody is served. Nothing acknowledged is missing.
    """

    async def play() -> None:
        async with behind(host, HASTY) as (proxy, node):
            proxy.swallows = True
            silent = await asyncio.gather(*(told(node, SEND) for _ in range(3)))
            assert {type(answer) for answer in silent} == {OutcomeUnknown}
            began_s = time.monotonic()
            assert [type(await told(node, SEND)) for _ in range(100)] == [StoreUnavailable] * 100
            assert time.monotonic() - began_s < 60, "they waited, each for two seconds"
            proxy.swallows = False
            host.clock.advance(5_000)
            (sent,) = await execute(node, SEND)
            assert sent.id

    host.run(play())
    assert host.counts()[0] in {2, 3, 4, 5}

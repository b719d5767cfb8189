"""What a copy to a database refuses, and what one from a database does not take along: nothing is kept then."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.store.host import QUEUE
from tests.store.postgres_host import PostgresHost, connected, copied
from veilmq.core.claims import OpenSource
from veilmq.core.settings import QueueSettings
from veilmq.store.copying import CopiedMessage, CopiedQueue, CopyRefused
from veilmq.store.postgres.copying import CopyLock, DatabaseSource, DatabaseTarget

JOBS = CopiedQueue(1, QUEUE, QueueSettings(), 0, 0)


def filled(url: str, fill: Callable[[DatabaseTarget, CopyLock, int], Awaitable[None]]) -> None:
    """Begin a copy to an empty store, have `fill` go on at the instant that it is told, and finish."""
    PostgresHost.on_empty(url).close()

    async def run() -> None:
        async with CopyLock(url) as lock:
            now_ms: int = await lock.connection.fetchval("SELECT mq.now_ms()")
            target = DatabaseTarget(lock)
            await target.begin({}, now_ms=now_ms, last_queue=1)
            await target.add_queue(JOBS)
            await fill(target, lock, now_ms)
            await target.finish()

    try:
        asyncio.run(run())
    finally:
        assert asyncio.run(queues(url)) == 0


async def queues(url: str) -> int:
    async with connected(url) as connection:
        return int(await connection.fetchval("SELECT count(*) FROM mq.queue"))


@asynccontextmanager
async def _node(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, server_settings={"application_name": "veilmq"})
    try:
        yield connection
    finally:
        await connection.close()


async def _waits(lock: CopyLock, node: Any) -> None:
    blocked = "SELECT pg_backend_pid() = ANY (pg_blocking_pids($1))"
    while not await lock.connection.fetchval(blocked, node.get_server_pid()):
        pass


def test_a_copy_that_does_not_agree_with_itself_is_not_kept(postgres_url: str) -> None:
    """A group without a message: whatever made it, nobody should serve from it."""

    async def fill(target: DatabaseTarget, lock: CopyLock, now_ms: int) -> None:
        await lock.connection.execute(
            "INSERT INTO mq.fifo_group (qp, group_id, eligible_at, head, last_seq) VALUES (99, 'g', 0, 1, 1)"
        )

    with pytest.raises(CopyRefused, match="every group has a message"):
        filled(postgres_url, fill)


def test_a_position_of_an_instant_to_come_is_refused(postgres_url: str) -> None:
    async def fill(target: DatabaseTarget, lock: CopyLock, now_ms: int) -> None:
        position = now_ms + 60_001 << 20
        message = CopiedMessage(position, b"i" * 16, "body", b"", 8, now_ms, now_ms, now_ms, receive_count=1)
        await target.add_messages(JOBS, [message])

    with pytest.raises(CopyRefused, match="is not sound"):
        filled(postgres_url, fill)


def test_a_database_whose_clock_is_elsewhere_is_refused(postgres_url: str) -> None:
    PostgresHost.on_empty(postgres_url).close()

    async def run() -> None:
        async with CopyLock(postgres_url) as lock:
            now_ms: int = await lock.connection.fetchval("SELECT mq.now_ms()")
            await DatabaseTarget(lock).begin({}, now_ms=now_ms + 60_001, last_queue=0)

    with pytest.raises(CopyRefused, match="more than a minute"):
        asyncio.run(run())


def test_a_node_that_is_back_while_a_database_is_copied_ends_that(postgres_url: str) -> None:
    """It had lost its connections when the copy began, and what it is sent since would be missing."""
    PostgresHost.on_empty(postgres_url).close()

    async def run() -> None:
        async with CopyLock(postgres_url) as lock:
            source = await DatabaseSource.open(lock)
            assert await source.queues() == []
            async with _node(postgres_url):
                with pytest.raises(CopyRefused, match="stop all servers"):
                    await source.deduplication_log()

    asyncio.run(run())


def test_a_node_that_waits_for_a_copy_does_not_end_it(postgres_url: str) -> None:
    """Whoever starts one asks for the keys first, and has them afterwards."""
    PostgresHost.on_empty(postgres_url).close()

    async def run() -> None:
        async with CopyLock(postgres_url) as lock:
            source = await DatabaseSource.open(lock)
            async with _node(postgres_url) as node:
                keys = asyncio.create_task(node.fetch("SELECT name FROM mq.setting"))
                await _waits(lock, node)
                assert await source.deduplication_log() == []
                await lock.commit()
                assert len(await keys) > 0

    asyncio.run(run())


def test_what_a_folder_does_not_take_is_named(postgres_url: str, tmp_path: Path) -> None:
    """A reader of a queue: here, and nothing is made."""
    host = PostgresHost.on_empty(postgres_url)
    host.create()
    host.do(OpenSource(queue=QUEUE, source="reader"))
    now_ms = host.clock.now_ms()
    host.close()
    with pytest.raises(CopyRefused, match="1 of source: close the readers"):
        copied(postgres_url, str(tmp_path / "copy"), now_ms)
    assert list(tmp_path.iterdir()) == []

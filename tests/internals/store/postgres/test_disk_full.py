"""A disk of the database that is full: nothing is half-kept, deletes go on, and everything when there is room again."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.small_disk import MIB, small_file_system
from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, connected, hosting_postgres, prepare
from veilmq.core import commands
from veilmq.core.errors import ReceiptState, StoreFull
from veilmq.testing.postgres_server import PostgresServer, temporary_folder


@pytest.fixture
def small() -> Iterator[Path]:
    with temporary_folder() as folder, small_file_system(folder / "small", size_bytes=2 * MIB):
        yield folder / "small"


@pytest.fixture
def host(small: Path) -> Iterator[PostgresHost]:
    with PostgresServer(small.parent / "server", settings={"fsync": "off"}) as server:
        place = small / "messages"
        place.mkdir()
        server.give(place)
        asyncio.run(prepare(server.url))
        asyncio.run(put_messages_on(place, server.url))
        with hosting_postgres(server.url) as opened:
            opened.create()
            yield opened


async def put_messages_on(place: Path, url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
        await connection.execute("ALTER TABLE mq.msg SET TABLESPACE small")


def fill(host: PostgresHost) -> list[str]:
    """Send until the disk is full; return what was acknowledged."""
    sent: list[str] = []
    while len(sent) < 1_000:
        body = os.urandom(20_000).hex()
        try:
            host.do(commands.Send(queue=QUEUE, messages=(message(body),)))
        except StoreFull:
            return sent
        sent.append(body)
    pytest.fail("the disk took everything")


@pytest.mark.slow
def test_a_full_disk(host: PostgresHost, small: Path) -> None:
    """What was refused is not there, what was acknowledged is."""
    host.send("first")
    held = host.receive_one()
    sent = fill(host)
    assert len(sent) > 5
    assert host.counts() == (len(sent), 1, 0)
    assert host.delete(held.receipt) == [ReceiptState.LIVE]
    subprocess.run(["mount", "-o", f"remount,size={20 * MIB}", str(small)], timeout=30, check=True)
    host.send("last")
    received = {each.body for _ in range(len(sent)) for each in host.receive(10)}
    assert received == {*sent, "last"}

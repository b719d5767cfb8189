"""What the doctor says about several databases together."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.store.postgres_host import ShardsHost, connected, empty, hosting_shards
from veilmq.store.port import Finding
from veilmq.store.postgres import databases
from veilmq.store.postgres.databases import ONE_STORE, PLACES, examine_together

NOWHERE = "postgresql://u:s3cret@127.0.0.1:1/x"
A, B, C = (f"000000000000/{name}" for name in "abc")

REPAIR = (  # as docs/stores.md says
    f"INSERT INTO mq.shard_of (name, place) VALUES ('{B}', 1) ON CONFLICT (name) DO UPDATE SET place = excluded.place"
)


@pytest.fixture
def host(shard_urls: list[str]) -> Iterator[ShardsHost]:
    """Return a node on two databases; the first has the queues A and C, the second B."""
    with hosting_shards(shard_urls) as opened:
        for name in (A, B, C):
            opened.create(name)
        yield opened


def faults(host: ShardsHost, urls: Sequence[str] = ()) -> dict[str, str]:
    return {
        each.check: each.detail
        for each in host.run(examine_together(dict(enumerate(urls or host.urls))))
        if not each.ok
    }


def execute(host: ShardsHost, place: int, statement: str) -> None:
    async def done() -> None:
        async with connected(host.urls[place]) as connection:
            await connection.execute(statement)

    host.run(done())


def test_nothing_is_said_against_a_sound_store(host: ShardsHost) -> None:
    """Nor against what the home had before there were others, of which it may know no place."""
    assert faults(host) == {}
    execute(host, 0, f"DELETE FROM mq.shard_of WHERE name = '{A}'")
    assert faults(host) == {}


def test_nothing_is_said_against_databases_that_nobody_has_served(host: ShardsHost) -> None:
    for url in host.urls:
        host.run(empty(url))
    assert faults(host) == {}


@pytest.mark.parametrize(
    "change", [f"DELETE FROM mq.shard_of WHERE name = '{B}'", f"UPDATE mq.shard_of SET place = 0 WHERE name = '{B}'"]
)
def test_a_queue_that_the_home_does_not_find_is_named(host: ShardsHost, change: str) -> None:
    """Its place was forgotten, or is another one: the home was brought back from an earlier moment, say."""
    execute(host, 0, change)
    (said,) = faults(host).items()
    assert said[0] == PLACES
    assert said[1].endswith(f"has 1 that the home looks for elsewhere, the first is {B}")
    execute(host, 0, REPAIR)
    assert faults(host) == {}


def test_queues_are_looked_at_beyond_a_page(host: ShardsHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, here one by one; those of the home, too."""
    monkeypatch.setattr(databases, "_PAGE", 1)
    assert faults(host) == {}
    execute(host, 0, "UPDATE mq.shard_of SET place = 1")
    assert faults(host)[PLACES].endswith(f"has 2 that the home looks for elsewhere, the first is {A}")


def test_a_queue_that_goes_meanwhile_is_no_fault(host: ShardsHost) -> None:
    """Here one is deleted, and made anew at another place, between the look at the queues and that at their places."""

    async def play() -> list[Finding]:
        async with connected(host.urls[0]) as connection:
            async with connection.transaction():
                await connection.execute("LOCK TABLE mq.shard_of")
                examining = asyncio.ensure_future(examine_together(dict(enumerate(host.urls))))
                await waiting(connection)
                await connection.execute("UPDATE mq.shard_of SET place = 1 WHERE name = $1", C)
                await connection.execute("DELETE FROM mq.queue WHERE name = $1", C)
            return await examining

    assert [each for each in host.run(play()) if not each.ok] == []


async def waiting(connection: Any) -> None:
    async with asyncio.timeout(60):
        while not await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):
            pass


def test_databases_in_another_order_are_named(host: ShardsHost) -> None:
    """Their queues are not compared then: all would be at the wrong place."""
    said = faults(host, host.urls[::-1])
    assert "it is number 2 of its store, and named as number 1" in said[ONE_STORE]
    assert "it is number 1 of its store, and named as number 2" in said[ONE_STORE]
    assert said[PLACES].startswith("not looked at: ")


def test_a_database_of_another_store_is_named(host: ShardsHost) -> None:
    """One that belongs elsewhere, and one that has queues and belongs nowhere."""
    execute(host, 1, "UPDATE mq.setting SET value = 'another' WHERE name = 'store'")
    assert "it belongs to another store" in faults(host)[ONE_STORE]
    execute(host, 1, "DELETE FROM mq.setting WHERE name = 'store'")
    assert "it has queues of its own, so it cannot be number 2 of another store" in faults(host)[ONE_STORE]


@pytest.mark.parametrize("place", [0, 1])
def test_one_that_cannot_be_asked_is_named(host: ShardsHost, place: int) -> None:
    """The others are compared as far as they can be; no password is said."""
    urls = [NOWHERE if each == place else url for each, url in enumerate(host.urls)]
    said = faults(host, urls)
    assert set(said) == {ONE_STORE, PLACES}
    for detail in said.values():
        assert detail.startswith("postgresql://u:***@127.0.0.1:1/x could not be asked: ")


def test_one_with_an_older_schema_says_what_to_do(host: ShardsHost) -> None:
    execute(host, 1, "CREATE TABLE mq.kept AS SELECT * FROM mq.migration; DELETE FROM mq.migration WHERE number > 3")
    try:
        assert "run `veilmq migrate`" in faults(host)[ONE_STORE]
    finally:
        execute(host, 1, "INSERT INTO mq.migration SELECT * FROM mq.kept WHERE number > 3; DROP TABLE mq.kept")

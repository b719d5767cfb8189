"""The databases of a store: adding and removing them while nodes run, with only the home in the settings."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, ShardsHost, hosting_shards, making_database, prepare
from veilmq.core import commands
from veilmq.core.errors import StoreUnavailable
from veilmq.store.port import StoreError, execute
from veilmq.store.postgres import Shards, databases
from veilmq.store.postgres.database import POLL_MS
from veilmq.store.postgres.outbox import CLAIM_MS
from veilmq.store.postgres.store import REFRESH_MS
from veilmq.store.urls import remove_passwords

LATER = "000000000000/later"
DEAD = "000000000000/dead"
IMPATIENT = replace(RESTLESS, acquire_s=2.0)


@pytest.fixture
def urls(postgres_url: str) -> Iterator[list[str]]:
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        for url in (first, second):
            asyncio.run(prepare(url))
        yield [first, second]


@pytest.fixture
def host(urls: list[str]) -> Iterator[ShardsHost]:
    """A node with only the first database in its settings; the second one has the test's clock, too."""
    with hosting_shards(urls[:1]) as opened:
        opened.urls = urls
        opened.given = 1
        yield opened


def add(host: ShardsHost) -> None:
    assert host.run(databases.add(*host.urls)).number == 2


@asynccontextmanager
async def another(host: ShardsHost, *urls: str) -> AsyncIterator[Shards]:
    opened = await Shards.open(urls or host.urls[:1], clock=host.clock, options=RESTLESS)
    try:
        yield opened
    finally:
        await opened.close()


def refusal(host: ShardsHost, work: Any) -> str:
    async def attempt() -> str:
        with pytest.raises(StoreError) as found:
            await work
        return str(found.value)

    return host.run(attempt())


def test_running_node_opens_an_added_database(host: ShardsHost) -> None:
    host.create(QUEUE)
    add(host)
    host.advance(REFRESH_MS)
    host.create(LATER)
    assert (host.place_of(QUEUE), host.place_of(LATER)) == (0, 1)
    assert host.do(commands.ListQueues(account="000000000000")).names == ["jobs", "later"]


def test_node_finds_a_queue_in_a_database_it_does_not_know(host: ShardsHost) -> None:
    """A lookup of a queue that is not at the home reads the list of databases."""

    async def make() -> None:
        async with another(host) as other:
            for name in (QUEUE, LATER):
                await execute(other, commands.CreateQueue(queue=name))

    woken = host.watch(LATER)
    add(host)
    host.run(make())
    assert host.place_of(LATER) == 1
    host.send("a", queue=LATER)
    assert host.receive_one(queue=LATER).body == "a"
    woken.clear()
    host.send("b", queue=LATER)
    assert woken


def test_node_with_an_old_list_creates_no_second_queue(host: ShardsHost) -> None:
    async def make() -> None:
        create = commands.CreateQueue(queue=LATER)
        async with another(host) as other:
            await asyncio.gather(*(execute(node, create) for node in (other, host.engine, other, host.engine)))

    host.create(QUEUE)
    add(host)
    host.run(make())
    assert sum(host.values("SELECT count(*) FROM mq.queue", url=url)[0] for url in host.urls) == 2
    assert host.do(commands.ShowQueue(queue=LATER)).queue == LATER


def test_removed_database_gets_no_new_queue(host: ShardsHost) -> None:
    """Also from a node that has not read the list again; the place is not reused."""
    add(host)
    host.advance(REFRESH_MS)
    host.create(QUEUE)
    host.create(LATER)
    host.drop(LATER)
    assert host.run(databases.remove(host.urls[0], "2")).number == 2
    host.create(LATER)
    assert host.place_of(LATER) == 0
    host.advance(REFRESH_MS)
    assert list(host.engine.shards) == [0]
    assert host.do(commands.ListQueues(account="000000000000")).names == ["jobs", "later"]
    assert host.run(databases.add(*host.urls)).number == 3
    host.advance(REFRESH_MS)
    host.create(DEAD)
    assert host.place_of(DEAD) == 1
    assert list(host.engine.shards) == [0, 2]


def test_only_an_empty_database_can_be_removed(host: ShardsHost) -> None:
    """Not with a queue, or with messages in its outbox; a refusal changes nothing."""
    add(host)
    host.advance(REFRESH_MS)
    for name in (QUEUE, LATER):
        host.create(name)
    remove = host.urls[0], "2"
    assert "has queues (1): move their messages elsewhere, and delete them first" in refusal(
        host, databases.remove(*remove)
    )
    assert "No database '7' can be removed: there are 2 (postgresql://" in refusal(
        host, databases.remove(host.urls[0], "7")
    )
    assert "the home, which cannot be removed" in refusal(host, databases.remove(host.urls[0], "1"))
    host.send("a", queue=LATER)
    assert [each.queues for each in host.run(databases.list_databases(host.urls[0]))] == [1, 1]


@pytest.mark.parametrize("place", [0, 1])
def test_database_with_relayed_messages_cannot_be_removed(host: ShardsHost, place: int) -> None:
    add(host)
    query = (
        "INSERT INTO mq.outbox (qp, source_id, source, place, target_id, target, settings, seqs)"
        f" VALUES (999, 7, 'deleted', {1 - place}, 8, 'deleted', '', '{{1}}')"
    )
    host.values(query, url=host.urls[place])
    error = refusal(host, databases.remove(host.urls[0], "2"))
    assert ("are on their way to other" if place else "Messages are on their way to") in error


def test_messages_for_a_removed_database_return(host: ShardsHost) -> None:
    """As for a deleted queue: a node may have cached the queue."""
    add(host)
    host.advance(REFRESH_MS)
    host.create(QUEUE)
    host.create(DEAD)
    host.set_queue(dead_letter_queue=DEAD, receives_max=1)
    host.send("a")
    host.receive(1, timeout_s=0)
    host.engine.shards[0].catalog.outbox.stop()  # no relay
    assert host.receive(1) == []
    host.drop(DEAD)
    host.values("UPDATE mq.database SET removed = true")  # although messages are on their way
    host.reopen()
    host.advance(CLAIM_MS + POLL_MS)
    host.advance(POLL_MS)
    assert host.receive_one().body == "a"


def test_start_with_a_list_registers_its_databases(host: ShardsHost) -> None:
    """After that, another node needs only the home."""
    host.given = 2
    host.reopen()
    host.create(QUEUE)
    host.create(LATER)
    host.given = 1
    host.reopen()
    assert (host.place_of(LATER), list(host.engine.shards)) == (1, [0, 1])


def test_two_starts_with_lists_agree(host: ShardsHost, new_database: str) -> None:
    """With the same list, they are one store; of two different lists, one is refused, and its database stays free."""
    asyncio.run(prepare(new_database))

    async def start(*lists: list[str]) -> list[Any]:
        opening = (Shards.open(urls, clock=host.clock, options=RESTLESS) for urls in lists)
        found = await asyncio.gather(*opening, return_exceptions=True)
        for each in found:
            if isinstance(each, Shards):
                await each.close()
        return found

    found = host.run(start(host.urls, host.urls))
    assert [type(each) for each in found] == [Shards, Shards]
    (error,) = host.run(start([host.urls[0], new_database]))
    assert "number 2 of the store is postgresql://" in str(error)
    assert host.values("SELECT name FROM mq.setting WHERE name = 'store'", url=new_database) == []
    assert len(host.values("SELECT url FROM mq.database")) == 1


def test_concurrent_additions_get_different_places(host: ShardsHost, new_database: str) -> None:
    asyncio.run(prepare(new_database))

    async def add_all() -> list[int]:
        home, second = host.urls
        adding = (databases.add(home, url) for url in (second, new_database, second, new_database))
        return [each.number for each in await asyncio.gather(*adding)]

    numbers = host.run(add_all())
    assert (numbers[0], numbers[1]) == (numbers[2], numbers[3])
    assert {*numbers} == {2, 3}


def test_additions_that_are_refused(host: ShardsHost, new_database: str) -> None:
    """A database with queues, one of another store, the home, and one that does not exist."""
    asyncio.run(prepare(new_database))

    async def serve_alone() -> None:
        async with another(host, new_database) as other:
            await execute(other, commands.CreateQueue(queue=QUEUE))

    host.run(serve_alone())
    assert "belongs to another store" in refusal(host, databases.add(host.urls[0], new_database))
    assert "is the first database of the store itself" in refusal(host, databases.add(host.urls[0], host.urls[0]))
    nowhere = "postgresql://u@127.0.0.1:1/x"
    assert f"{nowhere} cannot be used: " in refusal(host, databases.add(host.urls[0], nowhere))
    host.values("DELETE FROM mq.setting WHERE name = 'store'", url=new_database)
    assert "has queues of its own" in refusal(host, databases.add(host.urls[0], new_database))
    assert host.values("SELECT place FROM mq.database") == []


def test_changed_address_replaces_the_old_one(host: ShardsHost) -> None:
    add(host)
    host.advance(REFRESH_MS)
    host.create(QUEUE)
    host.create(LATER)
    assert host.receive(1, queue=LATER) == []
    woken, before = host.watch(LATER), host.engine.shards[1]
    host.run(databases.add(host.urls[0], f"{host.urls[1]}&sslmode=disable"))
    host.advance(REFRESH_MS)
    assert host.engine.shards[1] is not before
    woken.clear()
    send = commands.Send(queue=LATER, messages=(message("a"),))
    host.run(execute(host.engine.shards[1], send))  # as a message that arrives from another database
    assert woken
    assert host.receive_one(queue=LATER).body == "a"


def test_store_without_urls_does_not_start(host: ShardsHost) -> None:
    """A home of an earlier version knows the number of databases only; the error says what to do."""
    host.given = 2
    host.reopen()
    host.values("UPDATE mq.database SET url = NULL")
    one = Shards.open(host.urls[:1], clock=host.clock, options=RESTLESS)
    assert "does not know the URL of database 2 of its store" in refusal(host, one)
    host.reopen()
    assert host.values("SELECT url IS NULL FROM mq.database") == [False]


# While the home is down.


def test_node_starts_from_the_saved_list_while_the_home_is_down(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves the other databases; without the list, the home cannot be used."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with temporary_folder() as folder, PostgresServer(folder / "home", settings={"fsync": "off"}) as server:
        asyncio.run(prepare(server.url))
        with hosting_shards([server.url, urls[1]], options=IMPATIENT) as host:
            host.create(QUEUE)
            host.create(LATER)
            host.given = 1
            server.kill()
            host.down.add(0)
            host.reopen()
            host.send("a", queue=LATER)
            assert host.receive_one(queue=LATER).body == "a"
            with pytest.raises(StoreUnavailable):
                host.send("a")
            (kept,) = (tmp_path / "veilmq").iterdir()
            assert "postgres" in kept.read_text()
            kept.unlink()
            one = Shards.open([server.url], clock=host.clock, options=IMPATIENT)
            assert " cannot be used: " in refusal(host, one)


def test_node_serves_without_saving_the_list(
    host: ShardsHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "veilmq").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    add(host)
    host.advance(REFRESH_MS)
    assert list(host.engine.shards) == [0, 1]
    assert "the list of databases is not stored" in caplog.text
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError))
    host.advance(REFRESH_MS)
    assert "set XDG_STATE_HOME" in caplog.text


# Passwords.


def test_passwords_are_not_stored(
    urls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither those of a list nor of an added database; a database that needs the password in its URL is refused."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    with temporary_folder() as folder, PostgresServer(folder / "second") as server:
        server.sql("CREATE ROLE guarded SUPERUSER LOGIN PASSWORD 's3cret'")
        server.sql("CREATE DATABASE added")
        rules = folder / "second" / "data" / "pg_hba.conf"
        rules.write_text("host all guarded 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        server.sql("SELECT pg_reload_conf()")
        asyncio.run(prepare(server.url))
        guarded, added = (f"postgresql://guarded:s3cret@{server.authority}/{name}" for name in ("postgres", "added"))
        host = ShardsHost([urls[0], guarded])
        assert "accepts no connection without the password in the URL" in refusal(host, databases.add(urls[0], added))
        (tmp_path / "pgpass").write_text(f"127.0.0.1:{server.port}:*:guarded:s3cret\n")
        (tmp_path / "pgpass").chmod(0o600)
        assert host.run(databases.add(urls[0], added)).number == 3
        kept = host.values("SELECT url FROM mq.database ORDER BY place")
        assert kept == [guarded.replace(":s3cret", ""), added.replace(":s3cret", "")]
        host.given = 1
        host.urls[1] = kept[0]
        host.reopen()  # with the password from .pgpass
        assert len(host.engine.shards) == 3
        (file,) = (tmp_path / "veilmq").iterdir()
        host.close()
    assert "s3cret" not in file.read_text() + caplog.text


@pytest.mark.parametrize(("url", "stored"), [
    ("postgresql://u:p@h/d", "postgresql://u@h/d"),
    ("postgresql://u:p@ss:w@h:5/d?sslmode=require", "postgresql://u@h:5/d?sslmode=require"),
    ("postgresql://u@h/d?password=p", "postgresql://u@h/d"),
    ("postgresql://h/d?user=u&password=p&sslpassword=q&sslmode=require", "postgresql://h/d?user=u&sslmode=require"),
    ("postgresql:///?service=two", "postgresql:///?service=two"),
])  # fmt: skip
def test_urls_are_stored_without_passwords(url: str, stored: str) -> None:
    assert remove_passwords(url) == stored


async def test_upgrades_at_the_same_moment_report_the_format(new_database: str) -> None:
    found = await asyncio.gather(*(databases.upgrade(new_database, apply=True) for _ in range(3)))
    assert sorted((each.found, each.upgrades) for each in found) == [(0, ["schema"]), (20, []), (20, [])]

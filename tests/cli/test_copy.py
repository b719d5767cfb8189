"""`veilmq copy` between real stores, and what it refuses."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Veilmq, without_passwords
from tests.store.postgres_host import connected, making_database
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.testing import RunningServer, SystemClock

BODIES = ["a", "b", "c"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a data folder with a queue, of whose messages one is in flight."""
    path = tmp_path / "store"
    with RunningServer(data=path, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        for body in BODIES:
            client.send("orders", body)
        client.receive("orders", timeout_s=600)
    return path


async def _execute(url: str, statement: str) -> object:
    async with connected(url) as connection:
        return await connection.fetchval(statement)


def test_from_a_folder_to_databases_and_back(folder: Path, tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """The same messages after four copies, and receipts where they are kept."""
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        there = veilmq("copy", "--from", str(folder), "--to", first)
        assert (there.code, there.err) == (0, "")
        assert there.out.splitlines() == ["messages  3"]
        beside = veilmq("copy", "--from", first, "--to", second, "--json")
        assert json.loads(beside.out) == {"messages": 3}
        assert veilmq("copy", "--from", second, "--to", str(tmp_path / "back")).out == "messages  3\n"
    assert veilmq("copy", "--from", str(tmp_path / "back"), "--to", str(tmp_path / "again")).code == 0
    assert veilmq("doctor", "--data", str(tmp_path / "again")).code == 0
    data = tmp_path / "again"
    with RunningServer(data=data, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        status = client.show("orders")
        assert (status.visible, status.in_flight) == (2, 1)
        assert [each.body for each in client.receive("orders", count=10)] == BODIES[1:]


def test_a_folder_in_use_is_not_copied(folder: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    """Its lock proves it; nothing is made."""
    with RunningServer(data=folder, clock=SystemClock()):
        answer = veilmq("copy", "--from", str(folder), "--to", str(tmp_path / "copy"))
    assert (answer.code, answer.out) == (1, "")
    assert "is in use by process" in answer.err
    assert not (tmp_path / "copy").exists()


def test_a_database_in_use_is_not_copied(folder: Path, tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """Neither from nor to one that a node is connected to."""
    with making_database(postgres_url) as url, RunningServer(store=url, clock=SystemClock()):
        for source, target in ((url, tmp_path / "copy"), (folder, url)):
            answer = veilmq("copy", "--from", str(source), "--to", str(target))
            assert (answer.code, answer.out) == (1, "")
            assert "stop all servers" in answer.err
    assert not (tmp_path / "copy").exists()


def test_a_target_with_queues_is_refused(folder: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """And stays as it is."""
    with making_database(postgres_url) as url:
        assert veilmq("copy", "--from", str(folder), "--to", url).code == 0
        answer = veilmq("copy", "--from", str(folder), "--to", url)
        assert answer.code == 1
        assert "name an empty one" in answer.err
    answer = veilmq("copy", "--from", str(folder), "--to", str(folder))
    assert answer.code == 1


def test_what_fails_in_the_middle_leaves_nothing(folder: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """Here the database refuses a message; the next copy begins anew."""
    with making_database(postgres_url) as url:
        assert veilmq("migrate", "--store", url).code == 0
        asyncio.run(_execute(url, "ALTER TABLE mq.msg ADD CONSTRAINT no_c CHECK (body <> 'c')"))
        answer = veilmq("copy", "--from", str(folder), "--to", url)
        assert answer.code == 1
        assert "nothing was copied" in answer.err
        assert asyncio.run(_execute(url, "SELECT count(*) FROM mq.msg WHERE qp > 0")) == 0
        asyncio.run(_execute(url, "ALTER TABLE mq.msg DROP CONSTRAINT no_c"))
        assert veilmq("copy", "--from", str(folder), "--to", url).code == 0


def test_between_databases_a_failure_is_said_on_one_line(folder: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """With the name of the one that has failed; nothing is kept."""
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        assert veilmq("copy", "--from", str(folder), "--to", first).code == 0
        assert veilmq("migrate", "--store", second).code == 0
        asyncio.run(_execute(second, "ALTER TABLE mq.msg ADD CONSTRAINT no_c CHECK (body <> 'c')"))
        answer = veilmq("copy", "--from", first, "--to", second)
        assert (answer.code, answer.err.count("\n")) == (1, 1)
        assert f"{without_passwords(second)} failed, and nothing was copied: " in answer.err
        assert asyncio.run(_execute(second, "SELECT count(*) FROM mq.queue")) == 0


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO mq.topic (name, settings, created_at, modified_at) VALUES ('news', '{}', 0, 0)",
        "INSERT INTO mq.setting (name, value) VALUES ('account 123456789012', '{}')",
        "INSERT INTO mq.setting (name, value) VALUES ('store_place', '1')",
        "INSERT INTO mq.event_batch (number, events, encoded) VALUES (1, 1, '')",
    ],
)
def test_what_a_target_without_queues_has_is_not_lost(
    statement: str, folder: Path, postgres_url: str, veilmq: Veilmq
) -> None:
    """Topics, accounts, a place in a store, events: it is refused, and keeps them."""
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        assert veilmq("copy", "--from", str(folder), "--to", first).code == 0
        assert veilmq("migrate", "--store", second).code == 0
        asyncio.run(_execute(second, statement))
        for source in (first, str(folder)):
            answer = veilmq("copy", "--from", source, "--to", second)
            assert (answer.code, answer.out) == (1, "")
            assert "name an empty one" in answer.err
        assert asyncio.run(_execute(second, "SELECT count(*) FROM mq.queue")) == 0


def test_a_database_of_another_format_is_named(tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """One without a schema as the source, one of a later version as the target."""
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        answer = veilmq("copy", "--from", first, "--to", str(tmp_path / "copy"))
        assert answer.code == 1
        assert f"{without_passwords(first)}: The database has format 0" in answer.err
        assert veilmq("migrate", "--store", first).code == veilmq("migrate", "--store", second).code == 0
        asyncio.run(_execute(second, "INSERT INTO mq.migration (number, ends) VALUES (999, 999)"))
        answer = veilmq("copy", "--from", first, "--to", second)
        assert answer.code == 1
        assert f"{without_passwords(second)}: The database has format 999" in answer.err


def test_one_of_several_databases_is_no_data_folder(tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """Neither the home nor another one: what the others have would be missing, and accounts and topics with it."""
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        with RunningServer(store=f"{first},{second}", clock=SystemClock()):
            pass
        for url in (first, second):
            answer = veilmq("copy", "--from", url, "--to", str(tmp_path / "copy"))
            assert (answer.code, answer.out) == (1, "")
            assert "is one of several databases of a store" in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "target", "said"),
    [
        ("nowhere", "copy", "name a data folder"),
        ("nowhere", "postgresql://127.0.0.1:1/x", "name a data folder"),
        ("store", "postgresql://127.0.0.1:1/x", "cannot be used"),
        ("store", "http://127.0.0.1:1/x", "is not the URL of one database"),
    ],
)
def test_what_cannot_be_copied_is_said(source: str, target: str, said: str, folder: Path, veilmq: Veilmq) -> None:
    """On one line."""
    assert folder.name == "store"
    answer = veilmq("copy", "--from", source, "--to", target)
    assert (answer.code, answer.out) == (1, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_what_no_copy_takes_along_is_named(tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """A reader of a queue: the copy says what to do, and makes nothing."""
    path = tmp_path / "claimed"
    with RunningServer(data=path, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        client.send("orders", "a")
        with Claims(server.endpoint, "orders") as claims:
            claims.open("reader")
    with making_database(postgres_url) as url:
        answer = veilmq("copy", "--from", str(path), "--to", url)
    assert answer.code == 1
    assert "veilmq claims close" in answer.err


def test_a_folder_that_is_not_there_is_not_made_by_copying_from_it(tmp_path: Path, veilmq: Veilmq) -> None:
    missing = tmp_path / "missing"
    answer = veilmq("copy", "--from", str(missing), "--to", str(tmp_path / "copy"))
    assert answer.code == 1
    assert f"{missing} has no store.db: name a data folder with --from." in answer.err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []

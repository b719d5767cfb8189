"""`veilmq database`: a store grows and shrinks beside running servers, which are given the URL of its home alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Outcome, Veilmq
from tests.proofs.served import Served, starting_nodes
from veilmq.client import HttpQueueClient
from veilmq.testing.postgres_server import PostgresServer, temporary_folder

SECRET = "s3cret"
FAST = {"fsync": "off"}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[PostgresServer]]:
    """Run two servers of PostgreSQL; servers of veilmq keep their lists in a folder of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "one", settings=FAST) as one,
        PostgresServer(folder / "two", settings=FAST) as two,
    ):
        yield [one, two]


def with_secret(server: PostgresServer) -> str:
    """Return the URL of a server, with a password that it does not ask for."""
    return server.url.replace("postgres@", f"postgres:{SECRET}@")


def done(answer: Outcome) -> Any:
    """Return what a command printed as JSON."""
    assert (answer.code, answer.err) == (0, "")
    return json.loads(answer.out)


def make_queues(node: Served, *names: str) -> None:
    """Make queues, one after the other."""
    with HttpQueueClient(node.endpoint) as client:
        for name in names:
            client.create_queue(name)


def test_a_store_grows_and_shrinks_beside_its_servers(
    servers: list[PostgresServer], tmp_path: Path, veilmq: Veilmq
) -> None:
    """One that runs, one that is started with the home's URL, and one that is started while the home is down."""
    home, other = servers
    url = with_secret(home)
    store = ("--store", url)
    with starting_nodes(url, tmp_path) as start:
        first = start()
        make_queues(first, "a")
        assert done(veilmq("database", "add", with_secret(other), *store, "--json"))["number"] == 2
        second = start()
        make_queues(second, "b", "c")
        assert [each["queues"] for each in done(veilmq("database", "list", *store, "--json"))] == [2, 1]
        for node in (first, second):
            with HttpQueueClient(node.endpoint) as client:
                client.send("b", "from each")
        second.stop()
        home.kill()
        second.start()
        with HttpQueueClient(second.endpoint) as client:
            assert [each.body for each in client.receive("b", count=10)] == ["from each"] * 2
        home.start()
        refused = veilmq("database", "remove", other.url, *store)
        assert (refused.code, refused.out, "has queues (1): move" in refused.err) == (1, "", True)
        with HttpQueueClient(first.endpoint) as client:
            client.delete_queue("b")
        assert veilmq("database", "remove", "2", *store).code == 0
        listed = veilmq("database", "list", *store)
        assert listed.out == f"number    1\ndatabase  {home.url.replace('postgres@', 'postgres:***@')}\nqueues    2\n"
        assert veilmq("doctor", *store).out.count("store ") == 1
        other.stop()
        make_queues(start(), "d")
        said = "".join(each.read_text() for each in [*tmp_path.glob("*.log"), *(tmp_path / "state").glob("*/*")])
    assert SECRET not in said + home.sql("SELECT string_agg(url, ' ') FROM mq.database")


def test_commands_know_all_databases_by_the_home(servers: list[PostgresServer], veilmq: Veilmq) -> None:
    """The doctor examines each and all together, migrate upgrades each; one that is down is listed with the reason."""
    home, other = servers
    store = ("--store", home.url)
    assert veilmq("migrate", *store).code == 0
    added = veilmq("database", "add", other.url, *store)
    assert added.out == f"number    2\ndatabase  {other.url}\nqueues    0\n"
    examined = done(veilmq("migrate", *store, "--json"))["databases"]
    assert [each["store"] for each in examined] == [home.url, other.url]
    assert [each["store"] for each in json.loads(veilmq("doctor", *store, "--json").out)["databases"]] == [
        home.url,
        other.url,
    ]
    other.kill()
    listed = veilmq("database", "list", *store).out
    assert f"number    2\ndatabase  {other.url}\nerror     {other.url} cannot be used: " in listed


def test_what_is_asked_wrongly_is_said(veilmq: Veilmq) -> None:
    """Settings without a database, and what is no URL; no password is shown."""
    answer = veilmq("database", "list")
    assert (answer.code, "name the home of the store with --store" in answer.err) == (2, True)
    nowhere = f"postgresql://u:{SECRET}@127.0.0.1:1/x"
    answer = veilmq("database", "add", "here", "--store", nowhere)
    assert (answer.code, answer.err) == (2, "veilmq: here is not the URL of one database (postgresql://…).\n")
    answer = veilmq("database", "add", nowhere, "--store", nowhere)
    assert (answer.code, SECRET in answer.err) == (1, False)
    assert "postgresql://u:***@127.0.0.1:1/x cannot be used: " in answer.err

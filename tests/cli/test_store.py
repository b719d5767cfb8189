"""Commands on stores: backup, copy, init-database and its kin, doctor, clock."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.cli.conftest import Outcome, Veilmq, without_passwords
from tests.client.scripted_server import ScriptedServer, reply
from tests.client.traffic import drained
from tests.proofs.served import Served, ServedFolder, starting_nodes
from tests.server.keys import OWNER, REGION, SECRETS, written
from tests.store.postgres_host import connected, making_database
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.testing import RunningServer, SystemClock

BEFORE_MIN = 300
"""Messages that are acknowledged before the backup begins."""


class Sender:
    """Sends numbers until it is told to stop, and remembers which were acknowledged."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.acknowledged: list[str] = []
        self.enough = Event()
        self.stop = Event()

    def run(self) -> None:
        with HttpQueueClient(self._endpoint) as client:
            number = 0
            while not self.stop.is_set():
                client.send("orders", str(number))
                self.acknowledged.append(str(number))
                number += 1
                if number == BEFORE_MIN:
                    self.enough.set()


def test_a_backup_under_load_has_all_that_was_acknowledged(tmp_path: Path, veilmq: Veilmq) -> None:
    """Leases and receive counts as they were; the server goes on meanwhile."""
    with (
        ServedFolder(tmp_path / "store") as server,
        HttpQueueClient(server.endpoint) as client,
        ThreadPoolExecutor(1) as beside,
    ):
        client.create_queue("orders")
        client.create_queue("leased")
        client.send("leased", "in flight")
        client.send("leased", "again")
        (held,) = client.receive("leased", timeout_s=600)
        client.receive("leased", timeout_s=0)
        sender = Sender(server.endpoint)
        sending = beside.submit(sender.run)
        try:
            assert sender.enough.wait(60)
            before = len(sender.acknowledged)
            answer = veilmq("backup", "--data", str(tmp_path / "store"), "--to", str(tmp_path / "copy"), "--json")
            meanwhile = len(sender.acknowledged) - before
        finally:
            sender.stop.set()
        sending.result()
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["path"] == str(tmp_path / "copy")
    assert meanwhile > 0, "nothing was sent while the backup was made"
    with ServedFolder(tmp_path / "copy") as restored, HttpQueueClient(restored.endpoint) as client:
        assert set(sender.acknowledged[:before]) <= {each.body for each in drained(client, "orders")}
        (again,) = client.receive("leased", count=10)
        assert (again.body, again.receive_count) == ("again", 2)
        client.delete("leased", held.receipt)
        assert client.receive("leased") == []


def test_a_backup_is_told_in_lines(tmp_path: Path, veilmq: Veilmq) -> None:
    with RunningServer(data=tmp_path / "store"):
        pass
    asked = ("backup", "--data", str(tmp_path / "store"), "--to", str(tmp_path / "copy"))
    answer = veilmq(*asked)
    assert answer.code == 0
    assert answer.out.splitlines()[0].split() == ["backup", str(tmp_path / "copy")]
    veilmq(*asked).fails(1, "is not overwritten")


def test_the_doctor_says_what_to_do(tmp_path: Path, veilmq: Veilmq) -> None:
    """Below each check that failed, and there alone."""
    data = tmp_path / "store"
    with RunningServer(data=data) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        client.send("orders", "a")
    sound = json.loads(veilmq("doctor", "--data", str(data), "--json").out)
    assert not any("remedy" in check for check in sound["checks"])
    with closing(sqlite3.connect(data / "store.db")) as database, database:
        database.execute("DELETE FROM message")
    answer = veilmq("doctor", "--data", str(data))
    assert answer.code == 1
    lines = answer.out.splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith("FAILED")]
    assert places
    for place in places:
        assert "rows break this" in lines[place + 1]
        assert "restore the latest backup" in lines[place + 2]
    told = json.loads(veilmq("doctor", "--data", str(data), "--json").out)
    assert all(("remedy" in check) != check["ok"] for check in told["checks"])


# `veilmq copy` between real stores, and what it refuses.


BODIES = ["a", "b", "c"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with RunningServer(data=path, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        for body in BODIES:
            client.send("orders", body)
        client.receive("orders", timeout_s=600)
    return path


def execute(url: str, statement: str) -> object:
    async def done() -> object:
        async with connected(url) as connection:
            return await connection.fetchval(statement)

    return asyncio.run(done())


def test_from_a_folder_to_databases_and_back(folder: Path, tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
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
    with RunningServer(data=folder, clock=SystemClock()):
        answer = veilmq("copy", "--from", str(folder), "--to", str(tmp_path / "copy"))
    answer.fails(1, "is in use by process")
    assert not (tmp_path / "copy").exists()


def test_a_database_in_use_is_not_copied(folder: Path, tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    with making_database(postgres_url) as url, RunningServer(store=url, clock=SystemClock()):
        for source, target in ((url, tmp_path / "copy"), (folder, url)):
            veilmq("copy", "--from", str(source), "--to", str(target)).fails(1, "stop all servers")
    assert not (tmp_path / "copy").exists()


def test_a_target_with_queues_is_refused(folder: Path, postgres_url: str, veilmq: Veilmq) -> None:
    with making_database(postgres_url) as url:
        assert veilmq("copy", "--from", str(folder), "--to", url).code == 0
        veilmq("copy", "--from", str(folder), "--to", url).fails(1, "use an empty one")
    answer = veilmq("copy", "--from", str(folder), "--to", str(folder))
    assert answer.code == 1


def test_what_fails_in_the_middle_leaves_nothing(folder: Path, postgres_url: str, veilmq: Veilmq) -> None:
    with making_database(postgres_url) as url:
        assert veilmq("migrate", "--store", url).code == 0
        execute(url, "ALTER TABLE mq.msg ADD CONSTRAINT no_c CHECK (body <> 'c')")
        veilmq("copy", "--from", str(folder), "--to", url).fails(1, "nothing was copied")
        assert execute(url, "SELECT count(*) FROM mq.msg WHERE qp > 0") == 0
        execute(url, "ALTER TABLE mq.msg DROP CONSTRAINT no_c")
        assert veilmq("copy", "--from", str(folder), "--to", url).code == 0


def test_between_databases_a_failure_is_said_on_one_line(folder: Path, postgres_url: str, veilmq: Veilmq) -> None:
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        assert veilmq("copy", "--from", str(folder), "--to", first).code == 0
        assert veilmq("migrate", "--store", second).code == 0
        execute(second, "ALTER TABLE mq.msg ADD CONSTRAINT no_c CHECK (body <> 'c')")
        answer = veilmq("copy", "--from", first, "--to", second)
        assert (answer.code, answer.err.count("\n")) == (1, 1)
        assert f"{without_passwords(second)} failed, and nothing was copied: " in answer.err
        assert execute(second, "SELECT count(*) FROM mq.queue") == 0


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
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        assert veilmq("copy", "--from", str(folder), "--to", first).code == 0
        assert veilmq("migrate", "--store", second).code == 0
        execute(second, statement)
        for source in (first, str(folder)):
            veilmq("copy", "--from", source, "--to", second).fails(1, "use an empty one")
        assert execute(second, "SELECT count(*) FROM mq.queue") == 0


def test_a_database_of_another_format_is_named(tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        answer = veilmq("copy", "--from", first, "--to", str(tmp_path / "copy"))
        answer.fails(1, f"{without_passwords(first)}: The database has format 0")
        assert veilmq("migrate", "--store", first).code == veilmq("migrate", "--store", second).code == 0
        execute(second, "INSERT INTO mq.migration (number, ends) VALUES (999, 999)")
        answer = veilmq("copy", "--from", first, "--to", second)
        answer.fails(1, f"{without_passwords(second)}: The database has format 999")


def test_one_of_several_databases_is_no_data_folder(tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    """Neither the home nor another one: what the others have would be missing, and accounts and topics with it."""
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        with RunningServer(store=f"{first},{second}", clock=SystemClock()):
            pass
        for url in (first, second):
            answer = veilmq("copy", "--from", url, "--to", str(tmp_path / "copy"))
            answer.fails(1, "is one of several databases of a store")
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
    assert folder.name == "store"
    answer = veilmq("copy", "--from", source, "--to", target)
    answer.fails(1, said)
    assert answer.err.count("\n") == 1


def test_what_no_copy_takes_along_is_named(tmp_path: Path, postgres_url: str, veilmq: Veilmq) -> None:
    path = tmp_path / "claimed"
    with RunningServer(data=path, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        client.send("orders", "a")
        with Claims(server.endpoint, "orders") as claims:
            claims.open("reader")
    with making_database(postgres_url) as url:
        answer = veilmq("copy", "--from", str(path), "--to", url)
    answer.fails(1, "veilmq claims close")


def test_a_folder_that_is_not_there_is_not_made_by_copying_from_it(tmp_path: Path, veilmq: Veilmq) -> None:
    missing = tmp_path / "missing"
    answer = veilmq("copy", "--from", str(missing), "--to", str(tmp_path / "copy"))
    assert answer.code == 1
    assert f"{missing} has no store.db: name a data folder with --from." in answer.err.replace("\n", " ")
    assert list(tmp_path.iterdir()) == []


# `veilmq database`: a store grows and shrinks beside running servers, which are given the URL of its home alone.


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
    return server.url.replace("postgres@", f"postgres:{SECRET}@")


def done(answer: Outcome) -> Any:
    assert (answer.code, answer.err) == (0, "")
    return json.loads(answer.out)


def make_queues(node: Served, *names: str) -> None:
    with HttpQueueClient(node.endpoint) as client:
        for name in names:
            client.create_queue(name)


def test_a_store_grows_and_shrinks_beside_its_servers(
    servers: list[PostgresServer], tmp_path: Path, veilmq: Veilmq
) -> None:
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
        veilmq("database", "remove", other.url, *store).fails(1, "has queues (1): move")
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
    veilmq("database", "list").fails(2, "name the home of the store with --store")
    nowhere = f"postgresql://u:{SECRET}@127.0.0.1:1/x"
    answer = veilmq("database", "add", "here", "--store", nowhere)
    assert (answer.code, answer.err) == (2, "veilmq: here is not the URL of one database (postgresql://…).\n")
    answer = veilmq("database", "add", nowhere, "--store", nowhere)
    assert (answer.code, SECRET in answer.err) == (1, False)
    assert "postgresql://u:***@127.0.0.1:1/x cannot be used: " in answer.err


# `veilmq doctor` on real folders: sound, damaged, absent.


DATABASE = "store.db"


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "there"
    with RunningServer(data=path) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        client.send("orders", "a")
        client.receive("orders")
        client.send("orders", "b")
    return path


def test_a_sound_folder_is_ok(sound: Path, veilmq: Veilmq) -> None:
    before = snapshot(sound)
    answer = veilmq("doctor", "--data", str(sound))
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].split() == ["folder", str(sound)]
    assert ["messages", "2"] in [line.split() for line in lines]
    assert "ok      the database file is sound" in lines
    assert "FAILED" not in answer.out
    assert lines[-1] == "Every check is ok."
    assert snapshot(sound) == before


def test_json_has_facts_and_checks(sound: Path, veilmq: Veilmq) -> None:
    found = json.loads(veilmq("doctor", "--data", str(sound), "--json").out)
    assert (found["folder"], found["ok"], found["facts"]["queues"]) == (str(sound), True, 1)
    assert {"check": "the database file is sound", "ok": True, "detail": ""} in found["checks"]


def test_a_broken_invariant_fails(sound: Path, veilmq: Veilmq) -> None:
    with closing(sqlite3.connect(sound / DATABASE)) as database, database:
        database.execute("DELETE FROM message WHERE body = 'a'")
    answer = veilmq("doctor", "--data", str(sound))
    assert (answer.code, answer.err) == (1, "")
    lines = answer.out.splitlines()
    place = lines.index("FAILED  every message has one place in a queue, and every place its message")
    assert "1 rows break this" in lines[place + 1]
    assert lines[-1].endswith("checks failed.")
    assert json.loads(veilmq("doctor", "--data", str(sound), "--json").out)["ok"] is False


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def killed(folder: Path, copy: Path) -> Path:
    with RunningServer(data=folder) as server, HttpQueueClient(server.endpoint) as client:
        client.send("orders", "c")
        shutil.copytree(folder, copy)
    return copy


@pytest.mark.parametrize("leftover", ["with the index of the log", "without it"])
def test_the_log_of_a_killed_server_is_read(sound: Path, tmp_path: Path, veilmq: Veilmq, leftover: str) -> None:
    copy = killed(sound, tmp_path / "killed")
    if leftover == "without it":
        (copy / f"{DATABASE}-shm").unlink()
    before = snapshot(copy)
    assert before[f"{DATABASE}-wal"]
    answer = veilmq("doctor", "--data", str(copy), "--json")
    assert (answer.code, json.loads(answer.out)["facts"]["messages"]) == (0, 3)
    assert snapshot(copy) == before


def test_a_damaged_log_is_read_up_to_its_damage(sound: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    """As the next start does: what was not acknowledged is not there, and nothing is changed."""
    copy = killed(sound, tmp_path / "killed")
    with (copy / f"{DATABASE}-wal").open("ab") as log:
        log.write(b"torn" * 500)
    before = snapshot(copy)
    answer = veilmq("doctor", "--data", str(copy), "--json")
    assert (answer.code, json.loads(answer.out)["facts"]["messages"]) == (0, 3)
    assert snapshot(copy) == before


def test_a_hot_journal_is_read_as_it_will_be_rolled_back(sound: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    """A transaction of which half is in the file is not counted, and nothing is changed."""
    copy = tmp_path / "killed"
    with closing(sqlite3.connect(sound / DATABASE, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM message")
        database.execute("CREATE TABLE large AS SELECT zeroblob(100000)")  # too much for the cache: it is written
        shutil.copytree(sound, copy)
        database.execute("ROLLBACK")
    before = snapshot(copy)
    assert before[f"{DATABASE}-journal"]
    answer = veilmq("doctor", "--data", str(copy), "--json")
    assert (answer.code, json.loads(answer.out)["facts"]["messages"]) == (0, 2)
    assert snapshot(copy) == before


@pytest.mark.parametrize("content", [None, b"no database" * 1000], ids=["absent", "garbage"])
def test_a_folder_that_cannot_be_examined_is_an_error(content: bytes | None, tmp_path: Path, veilmq: Veilmq) -> None:
    if content is not None:
        (tmp_path / DATABASE).write_bytes(content)
    answer = veilmq("doctor", "--data", str(tmp_path))
    answer.fails(1, str(tmp_path))
    assert answer.err.count("\n") == 1


def test_a_running_servers_folder_can_be_examined(tmp_path: Path, veilmq: Veilmq) -> None:
    with RunningServer(data=tmp_path / "d") as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        assert veilmq("doctor", "--data", str(tmp_path / "d")).code == 0
        client.send("orders", "still there")


def test_the_folder_is_that_of_the_settings(
    sound: Path, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "named.toml").write_text(f"data = '{sound}'", encoding="utf-8")
    assert veilmq("doctor", "--config", str(tmp_path / "named.toml")).code == 0
    monkeypatch.setenv("VEILMQ_DATA", str(sound))
    assert veilmq("doctor").code == 0
    monkeypatch.delenv("VEILMQ_DATA")
    monkeypatch.setenv("VEILMQ_MEMORY", "true")
    veilmq("doctor").fails(2, "name one with --data")


# ``veilmq clock``.


def test_trust_of_a_clock_that_is_not_doubted(veilmq: Veilmq) -> None:
    with RunningServer() as server:
        answer = veilmq("clock", "trust", "--admin-endpoint", server.admin_endpoint)
    assert (answer.code, answer.out) == (0, "The clock is trusted: nothing is held back.\n")


def test_trust_without_a_server_of_ours(veilmq: Veilmq) -> None:
    with ScriptedServer(reply(404, b"not here")) as server:
        answer = veilmq("clock", "trust", "--admin-endpoint", server.endpoint)
    answer.fails(1, "is not the admin port of a veilmq server: it answered 404.")
    assert veilmq("clock", "trust", "--admin-endpoint", "http://127.0.0.1:1").code == 1
    assert veilmq("clock", "trust", "--admin-endpoint", "nowhere").code == 2


def test_trust_is_the_operators(veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=credentials, account=OWNER, region=REGION) as server:
        trust = ("clock", "trust", "--admin-endpoint", server.admin_endpoint)
        monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
        assert "HTTP Basic" in veilmq(*trust).err
        for key_id, code in (("AKIDCAROL", 1), ("AKIDOWNER", 0)):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[key_id])
            assert veilmq(*trust).code == code

"""Commands on stores: backup, copy, migrate, database, doctor and clock."""

import asyncio
import json
import shutil
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.cli.conftest import Outcome, Veilmq, without_passwords
from tests.client.scripted_server import ScriptedServer, reply
from tests.client.traffic import drained
from tests.proofs.served import Served, ServedFolder, starting_nodes
from tests.server.keys import OWNER, REGION, SECRETS, written
from tests.small_disk import MIB, small_file_system
from tests.store.postgres_host import connected, making_database
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.testing import RunningServer, SystemClock

ACKNOWLEDGED_MIN = 300
"""Messages that are acknowledged before the backup begins."""


class Sender:
    """Send numbers until ``stop`` is set; ``acknowledged`` has those with a reply."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.acknowledged: list[str] = []
        self.enough = Event()
        self.stop = Event()

    def run(self) -> None:
        with HttpQueueClient(self._endpoint) as client:
            while not self.stop.is_set():
                number = str(len(self.acknowledged))
                client.send("orders", number)
                self.acknowledged.append(number)
                if len(self.acknowledged) == ACKNOWLEDGED_MIN:
                    self.enough.set()


def test_a_backup_under_load_contains_all_acknowledged_messages(tmp_path: Path, veilmq: Veilmq) -> None:
    """It keeps leases and receive counts, and the server continues meanwhile."""
    with (
        ServedFolder(tmp_path / "store") as server,
        HttpQueueClient(server.endpoint) as client,
        ThreadPoolExecutor(1) as threads,
    ):
        client.create_queue("orders")
        client.create_queue("leased")
        client.send("leased", "in flight")
        client.send("leased", "again")
        (held,) = client.receive("leased", timeout_s=600)
        client.receive("leased", timeout_s=0)
        sender, numbers = Sender(server.endpoint), count()
        sending = threads.submit(sender.run)
        try:
            assert sender.enough.wait(60)
            while True:
                copy, before = tmp_path / f"copy {next(numbers)}", len(sender.acknowledged)
                result = veilmq("backup", "--data", str(tmp_path / "store"), "--to", str(copy), "--json")
                if len(sender.acknowledged) > before:  # a busy machine may run no server in so short a time
                    break
        finally:
            sender.stop.set()
        sending.result()
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out)["path"] == str(copy)
    with ServedFolder(copy) as restored, HttpQueueClient(restored.endpoint) as client:
        assert set(sender.acknowledged[:before]) <= {each.body for each in drained(client, "orders")}
        (again,) = client.receive("leased", count=10)
        assert (again.body, again.receive_count) == ("again", 2)
        client.delete("leased", held.receipt)
        assert client.receive("leased") == []


def test_a_backup_prints_its_folder_and_never_overwrites_one(folder: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    backup = ("backup", "--data", str(folder), "--to", str(tmp_path / "copy"))
    result = veilmq(*backup)
    assert result.code == 0
    assert result.out.splitlines()[0].split() == ["backup", str(tmp_path / "copy")]
    veilmq(*backup).fails(1, "is not overwritten")


def test_a_backup_on_a_full_disk_leaves_nothing(folder: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    with small_file_system(tmp_path / "disk", size_bytes=MIB // 8):
        for to in ("disk/copy", "disk/copy.db"):
            backup = veilmq("backup", "--data", str(folder), "--to", str(tmp_path / to))
            backup.fails(1, f"cannot be copied to {tmp_path / to}: its disk is full.")
        assert list((tmp_path / "disk").iterdir()) == []


BODIES = ["a", "b", "c"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with three messages, one of them in flight."""
    path = tmp_path / "store"
    with RunningServer(data=path, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        for body in BODIES:
            client.send("orders", body)
        client.receive("orders", timeout_s=600)
    return path


# `veilmq copy`.


@pytest.fixture
def databases(postgres_url: str) -> Iterator[tuple[str, str]]:
    """The URLs of two empty databases without a schema."""
    with making_database(postgres_url) as first, making_database(postgres_url) as second:
        yield first, second


@pytest.fixture
def copied(databases: tuple[str, str], folder: Path, veilmq: Veilmq) -> tuple[str, str]:
    """The URLs of two databases: a copy of ``folder``, and an empty one with a schema."""
    first, second = databases
    assert veilmq("copy", "--from", str(folder), "--to", first).code == 0
    assert veilmq("migrate", "--store", second).code == 0
    return databases


def execute(url: str, statement: str) -> object:
    async def fetch() -> object:
        async with connected(url) as connection:
            return await connection.fetchval(statement)

    return asyncio.run(fetch())


def test_copy_converts_between_folders_and_databases(
    folder: Path, tmp_path: Path, databases: tuple[str, str], veilmq: Veilmq
) -> None:
    back, data = tmp_path / "back", tmp_path / "again"
    veilmq("copy", "--from", str(folder), "--to", databases[0]).prints("messages  3\n")
    veilmq("copy", "--from", databases[0], "--to", databases[1], "--json").prints('{"messages":3}\n')
    veilmq("copy", "--from", databases[1], "--to", str(back)).prints("messages  3\n")
    assert veilmq("copy", "--from", str(back), "--to", str(data)).code == 0
    assert veilmq("doctor", "--data", str(data)).code == 0
    with RunningServer(data=data, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        status = client.show("orders")
        assert (status.visible, status.in_flight) == (2, 1)
        assert [each.body for each in client.receive("orders", count=10)] == BODIES[1:]


def test_copy_converts_databases_that_servers_have_used(
    tmp_path: Path, databases: tuple[str, str], veilmq: Veilmq
) -> None:
    """Also one of a store that had a second database."""
    first, second = databases
    with RunningServer(store=first, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        client.send("orders", "a")
    with RunningServer(store=second, clock=SystemClock()):
        pass
    execute(first, "INSERT INTO mq.database (place, removed) VALUES (1, true)")
    execute(first, "INSERT INTO mq.arrival (qp, from_place, from_qp, number, token) VALUES (1, 1, 1, 1, '')")
    execute(
        first,
        "INSERT INTO mq.outbox (qp, source_id, source, place, target_id, target, settings) "
        "VALUES (1000, 1, 'orders', 1, 1, 'dead', '')",
    )
    veilmq("copy", "--from", first, "--to", second).prints("messages  1\n")
    veilmq("copy", "--from", second, "--to", str(tmp_path / "copy")).prints("messages  1\n")
    execute(first, "UPDATE mq.outbox SET seqs = '{1}'")
    veilmq("copy", "--from", first, "--to", str(tmp_path / "waiting")).fails(1, "The store has 1 of outbox")


def test_copy_refuses_a_folder_in_use(folder: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    with RunningServer(data=folder, clock=SystemClock()):
        result = veilmq("copy", "--from", str(folder), "--to", str(tmp_path / "copy"))
    result.fails(1, "is in use by process")
    assert not (tmp_path / "copy").exists()


def test_copy_refuses_a_database_in_use(folder: Path, tmp_path: Path, new_database: str, veilmq: Veilmq) -> None:
    with RunningServer(store=new_database, clock=SystemClock()):
        for source, target in ((new_database, tmp_path / "copy"), (folder, new_database)):
            veilmq("copy", "--from", str(source), "--to", str(target)).fails(1, "stop all servers")
    assert not (tmp_path / "copy").exists()


def test_copy_refuses_a_target_with_queues(folder: Path, copied: tuple[str, str], veilmq: Veilmq) -> None:
    veilmq("copy", "--from", str(folder), "--to", copied[0]).fails(1, "use an empty one")
    assert veilmq("copy", "--from", str(folder), "--to", str(folder)).code == 1


def test_a_failed_copy_is_rolled_back(folder: Path, copied: tuple[str, str], veilmq: Veilmq) -> None:
    first, second = copied
    execute(second, "ALTER TABLE mq.msg ADD CONSTRAINT no_c CHECK (body <> 'c')")
    veilmq("copy", "--from", str(folder), "--to", second).fails(1, "nothing was copied")
    assert execute(second, "SELECT count(*) FROM mq.msg WHERE qp > 0") == 0
    failed = f"{without_passwords(second)} failed, and nothing was copied: "
    veilmq("copy", "--from", first, "--to", second).fails(1, failed)
    assert execute(second, "SELECT count(*) FROM mq.queue") == 0
    execute(second, "ALTER TABLE mq.msg DROP CONSTRAINT no_c")
    assert veilmq("copy", "--from", str(folder), "--to", second).code == 0


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO mq.topic (name, settings, created_at, modified_at) VALUES ('news', '{}', 0, 0)",
        "INSERT INTO mq.setting (name, value) VALUES ('account 123456789012', '{}')",
        "INSERT INTO mq.setting (name, value) VALUES ('store_place', '1')",
        "INSERT INTO mq.event_batch (number, events, encoded) VALUES (1, 1, '')",
    ],
)
def test_copy_refuses_a_target_with_other_data(
    statement: str, folder: Path, copied: tuple[str, str], veilmq: Veilmq
) -> None:
    execute(copied[1], statement)
    for source in (copied[0], str(folder)):
        veilmq("copy", "--from", source, "--to", copied[1]).fails(1, "use an empty one")
    assert execute(copied[1], "SELECT count(*) FROM mq.queue") == 0


def test_copy_refuses_a_database_of_another_format(databases: tuple[str, str], tmp_path: Path, veilmq: Veilmq) -> None:
    first, second = databases
    result = veilmq("copy", "--from", first, "--to", str(tmp_path / "copy"))
    result.fails(1, f"{without_passwords(first)}: The database has format 0")
    assert veilmq("migrate", "--store", first).code == veilmq("migrate", "--store", second).code == 0
    execute(second, "INSERT INTO mq.migration (number, ends) VALUES (999, 999)")
    newer = f"{without_passwords(second)}: The database has format 999"
    veilmq("copy", "--from", first, "--to", second).fails(1, newer)


def test_timeouts_of_the_database_or_role_do_not_apply(
    folder: Path, tmp_path: Path, databases: tuple[str, str], veilmq: Veilmq
) -> None:
    """Neither to servers, nor to commands, whose statements may take long."""
    url = databases[0]
    for name in ("idle_in_transaction_session", "idle_session", "lock", "statement"):
        execute(databases[1], f"ALTER DATABASE {urlsplit(url).path[1:]} SET {name}_timeout = '1ms'")
    veilmq("copy", "--from", str(folder), "--to", url).prints("messages  3\n")
    with RunningServer(store=url, clock=SystemClock()) as server, HttpQueueClient(server.endpoint) as client:
        assert [each.body for each in client.receive("orders", count=10)] == BODIES[1:]
        shown = veilmq("doctor", "--store", url, "--json")
        assert all(each["ok"] for each in json.loads(shown.out)["checks"] if "durable" not in each["check"])
        notified = "veilmq_store_notifications_arrive 1.0"
        assert notified in urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode().splitlines()
    assert veilmq("copy", "--from", url, "--to", str(tmp_path / "back")).code == 0


def test_a_database_whose_encoding_lacks_characters_is_refused(postgres_url: str, veilmq: Veilmq) -> None:
    with making_database(postgres_url, "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0") as url:
        veilmq("migrate", "--store", url).fails(1, "encoding LATIN1")


def test_copy_refuses_one_of_several_databases_of_a_store(
    databases: tuple[str, str], tmp_path: Path, veilmq: Veilmq
) -> None:
    """The copy would lack the queues of the others, or the accounts and topics."""
    with RunningServer(store=",".join(databases), clock=SystemClock()):
        pass
    for url in databases:
        veilmq("copy", "--from", url, "--to", str(tmp_path / "copy")).fails(1, "is one of several databases of a store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        ("nowhere", "copy", "name a data folder"),
        ("nowhere", "postgresql://127.0.0.1:1/x", "name a data folder"),
        ("store", "postgresql://127.0.0.1:1/x", "cannot be used"),
        ("store", "http://127.0.0.1:1/x", "is not the URL of one database"),
        ("postgresql://h/a,postgresql://h/b", "copy", "are 2 databases, and each is copied separately"),
        ("store", "postgresql://h/a,postgresql://h/b", "are 2 databases, and a store is copied to one"),
    ],
)
def test_an_invalid_copy_is_a_one_line_error(
    source: str, target: str, error: str, folder: Path, veilmq: Veilmq
) -> None:
    assert folder.name == "store"
    veilmq("copy", "--from", source, "--to", target).fails(1, error)


def test_copy_refuses_a_store_with_claims(folder: Path, new_database: str, veilmq: Veilmq) -> None:
    with RunningServer(data=folder, clock=SystemClock()) as server, Claims(server.endpoint, "orders") as claims:
        claims.open("reader")
    veilmq("copy", "--from", str(folder), "--to", new_database).fails(1, "veilmq claims close")


def test_copy_does_not_create_a_missing_source(tmp_path: Path, veilmq: Veilmq) -> None:
    copy = veilmq("copy", "--from", "missing", "--to", "copy")
    copy.fails(1, "missing has no store.db: name a data folder with --from.")
    assert list(tmp_path.iterdir()) == []


# `veilmq database` adds and removes databases while servers run; the servers have the URL of the home database only.


SECRET = "s3cret"
FAST = {"fsync": "off"}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[PostgresServer]]:
    """Two PostgreSQL servers; veilmq servers keep their lists of databases in a temporary folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with (
        temporary_folder() as folder,
        PostgresServer(folder / "one", settings=FAST) as one,
        PostgresServer(folder / "two", settings=FAST) as two,
    ):
        yield [one, two]


def with_secret(server: PostgresServer) -> str:
    return server.url.replace("postgres@", f"postgres:{SECRET}@")


def printed(result: Outcome) -> Any:
    assert (result.code, result.err) == (0, "")
    return json.loads(result.out)


def make_queues(node: Served, *names: str) -> None:
    with HttpQueueClient(node.endpoint) as client:
        for name in names:
            client.create_queue(name)


def test_databases_are_added_and_removed_while_servers_run(
    servers: list[PostgresServer], tmp_path: Path, veilmq: Veilmq
) -> None:
    home, other = servers
    url = with_secret(home)
    store = ("--store", url)
    with starting_nodes(url, tmp_path) as start:
        first = start()
        make_queues(first, "a")
        assert printed(veilmq("database", "add", with_secret(other), *store, "--json"))["number"] == 2
        second = start()
        make_queues(second, "b", "c")
        assert [each["queues"] for each in printed(veilmq("database", "list", *store, "--json"))] == [2, 1]
        (no_home,) = printed(veilmq("database", "list", "--store", other.url, "--json"))
        assert (no_home["number"], no_home["queues"]) == (2, 1)
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
        files = [*tmp_path.glob("*.log"), *(tmp_path / "state").glob("*/*")]
        text = "".join(each.read_text() for each in files)
    assert SECRET not in text + home.sql("SELECT string_agg(url, ' ') FROM mq.database")


def test_commands_find_all_databases_through_the_home_database(servers: list[PostgresServer], veilmq: Veilmq) -> None:
    home, other = servers
    store = ("--store", home.url)
    assert veilmq("migrate", *store).code == 0
    assert veilmq("database", "add", other.url, *store).out == f"number    2\ndatabase  {other.url}\nqueues    0\n"
    for command in ("migrate", "doctor"):
        examined = json.loads(veilmq(command, *store, "--json").out)["databases"]
        assert [each["store"] for each in examined] == [home.url, other.url]
    other.kill()
    listed = veilmq("database", "list", *store).out
    assert f"number    2\ndatabase  {other.url}\nerror     {other.url} cannot be used: " in listed


def test_errors_about_databases_contain_no_password(veilmq: Veilmq) -> None:
    veilmq("database", "list").fails(2, "name the home of the store with --store")
    nowhere = f"postgresql://u:{SECRET}@127.0.0.1:1/x"
    veilmq("database", "add", "here", "--store", nowhere).fails(
        2, "veilmq: here is not the URL of one database (postgresql://…).\n"
    )
    result = veilmq("database", "add", nowhere, "--store", nowhere)
    result.fails(1, "postgresql://u:***@127.0.0.1:1/x cannot be used: ")
    assert SECRET not in result.err


# `veilmq doctor`.


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


def test_the_doctor_reports_a_sound_folder(sound: Path, veilmq: Veilmq) -> None:
    before = snapshot(sound)
    result = veilmq("doctor", "--data", str(sound))
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].split() == ["folder", str(sound)]
    assert ["messages", "2"] in [line.split() for line in lines]
    assert "ok      the database file is sound" in lines
    assert "FAILED" not in result.out
    assert lines[-1] == "Every check is ok."
    found = json.loads(veilmq("doctor", "--data", str(sound), "--json").out)
    assert (found["folder"], found["ok"], found["facts"]["queues"]) == (str(sound), True, 1)
    assert {"check": "the database file is sound", "ok": True, "detail": ""} in found["checks"]
    assert not any("remedy" in check for check in found["checks"])
    assert snapshot(sound) == before


def test_the_doctor_prints_a_remedy_for_each_failed_check(sound: Path, veilmq: Veilmq) -> None:
    with closing(sqlite3.connect(sound / DATABASE)) as database, database:
        database.execute("DELETE FROM message WHERE body = 'a'")
    result = veilmq("doctor", "--data", str(sound))
    assert (result.code, result.err) == (1, "")
    lines = result.out.splitlines()
    assert "FAILED  every message has one place in a queue, and every place its message" in lines
    for place in (place for place, line in enumerate(lines) if line.startswith("FAILED")):
        assert "1 rows break this" in lines[place + 1]
        assert "restore the latest backup" in lines[place + 2]
    assert lines[-1].endswith("checks failed.")
    found = json.loads(veilmq("doctor", "--data", str(sound), "--json").out)
    assert found["ok"] is False
    assert all(("remedy" in check) != check["ok"] for check in found["checks"])


def snapshot(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def check_messages(veilmq: Veilmq, copy: Path, log: str, expected: int) -> None:
    """Assert that the doctor counts so many messages and changes no file; ``log`` must have content."""
    before = snapshot(copy)
    assert before[f"{DATABASE}-{log}"]
    result = veilmq("doctor", "--data", str(copy), "--json")
    assert (result.code, json.loads(result.out)["facts"]["messages"]) == (0, expected)
    assert snapshot(copy) == before


@pytest.mark.parametrize("damage", ["none", "without the index of the log", "torn"])
def test_the_doctor_reads_the_log_of_a_killed_server(sound: Path, tmp_path: Path, veilmq: Veilmq, damage: str) -> None:
    """It reads a torn log up to the damage, as the next start does."""
    copy = tmp_path / "killed"
    with RunningServer(data=sound) as server, HttpQueueClient(server.endpoint) as client:
        client.send("orders", "c")
        shutil.copytree(sound, copy)
    if damage == "without the index of the log":
        (copy / f"{DATABASE}-shm").unlink()
    elif damage == "torn":
        with (copy / f"{DATABASE}-wal").open("ab") as log:
            log.write(b"torn" * 500)
    check_messages(veilmq, copy, "wal", 3)


def test_the_doctor_does_not_count_a_transaction_of_a_hot_journal(sound: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    """The next start rolls it back; half of it is in the database file."""
    copy = tmp_path / "killed"
    with closing(sqlite3.connect(sound / DATABASE, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM message")
        database.execute("CREATE TABLE large AS SELECT zeroblob(100000)")  # exceeds the cache, so it is written
        shutil.copytree(sound, copy)
        database.execute("ROLLBACK")
    check_messages(veilmq, copy, "journal", 2)


@pytest.mark.parametrize("content", [None, b"no database" * 1000], ids=["absent", "garbage"])
def test_a_folder_without_a_database_is_a_one_line_error(content: bytes | None, tmp_path: Path, veilmq: Veilmq) -> None:
    if content is not None:
        (tmp_path / DATABASE).write_bytes(content)
    veilmq("doctor", "--data", str(tmp_path)).fails(1, str(tmp_path))


def test_the_doctor_examines_the_folder_of_a_running_server(sound: Path, veilmq: Veilmq) -> None:
    with RunningServer(data=sound) as server, HttpQueueClient(server.endpoint) as client:
        assert veilmq("doctor", "--data", str(sound)).code == 0
        client.send("orders", "still there")


def test_the_doctor_takes_the_folder_from_the_settings(
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


def test_trust_reports_that_the_clock_is_trusted(server: RunningServer, veilmq: Veilmq) -> None:
    trust = veilmq("clock", "trust", "--admin-endpoint", server.admin_endpoint)
    trust.prints("The clock is trusted: nothing is held back.\n")


def test_trust_needs_a_veilmq_server(veilmq: Veilmq) -> None:
    with ScriptedServer(reply(404, b"not here")) as server:
        result = veilmq("clock", "trust", "--admin-endpoint", server.endpoint)
    result.fails(1, "is not the admin port of a veilmq server: it answered 404.")
    assert veilmq("clock", "trust", "--admin-endpoint", "http://127.0.0.1:1").code == 1
    assert veilmq("clock", "trust", "--admin-endpoint", "nowhere").code == 2


def test_trust_needs_the_key_of_the_account_owner(
    veilmq: Veilmq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=credentials, account=OWNER, region=REGION) as server:
        trust = ("clock", "trust", "--admin-endpoint", server.admin_endpoint)
        assert "HTTP Basic" in veilmq(*trust).err
        for key_id, code in (("AKIDCAROL", 1), ("AKIDOWNER", 0)):
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRETS[key_id])
            assert veilmq(*trust).code == code

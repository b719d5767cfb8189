"""`veilmq doctor` on real folders: sound, damaged, absent."""

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Veilmq
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

DATABASE = "store.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make a data folder with one queue and two messages, one of them in flight."""
    path = tmp_path / "there"
    with RunningServer(data=path) as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        client.send("orders", "a")
        client.receive("orders")
        client.send("orders", "b")
    return path


def test_a_sound_folder_is_ok(folder: Path, veilmq: Veilmq) -> None:
    """The facts, a line for each check, and a verdict; nothing is changed."""
    before = snapshot(folder)
    answer = veilmq("doctor", "--data", str(folder))
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].split() == ["folder", str(folder)]
    assert ["messages", "2"] in [line.split() for line in lines]
    assert "ok      the database file is sound" in lines
    assert "FAILED" not in answer.out
    assert lines[-1] == "Every check is ok."
    assert snapshot(folder) == before


def test_json_has_facts_and_checks(folder: Path, veilmq: Veilmq) -> None:
    """One document."""
    found = json.loads(veilmq("doctor", "--data", str(folder), "--json").out)
    assert (found["folder"], found["ok"], found["facts"]["queues"]) == (str(folder), True, 1)
    assert {"check": "the database file is sound", "ok": True, "detail": ""} in found["checks"]


def test_a_broken_invariant_fails(folder: Path, veilmq: Veilmq) -> None:
    """A message that is gone from under its lease: exit code 1, the check that found it, and where."""
    with closing(sqlite3.connect(folder / DATABASE)) as database, database:
        database.execute("DELETE FROM message WHERE body = 'a'")
    answer = veilmq("doctor", "--data", str(folder))
    assert (answer.code, answer.err) == (1, "")
    lines = answer.out.splitlines()
    place = lines.index("FAILED  every place in a queue has its message")
    assert "1 rows break this" in lines[place + 1]
    assert lines[-1].endswith("checks failed.")
    assert json.loads(veilmq("doctor", "--data", str(folder), "--json").out)["ok"] is False


def snapshot(folder: Path) -> dict[str, bytes]:
    """Return what is in a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def killed(folder: Path, copy: Path) -> Path:
    """Copy the folder of a running server, as a kill would leave it."""
    with RunningServer(data=folder) as server, HttpQueueClient(server.endpoint) as client:
        client.send("orders", "c")
        shutil.copytree(folder, copy)
    return copy


@pytest.mark.parametrize("leftover", ["with the index of the log", "without it"])
def test_the_log_of_a_killed_server_is_read(folder: Path, tmp_path: Path, veilmq: Veilmq, leftover: str) -> None:
    """Its messages count, and every file stays as it is: none is made and none is removed."""
    copy = killed(folder, tmp_path / "killed")
    if leftover == "without it":
        (copy / f"{DATABASE}-shm").unlink()
    before = snapshot(copy)
    assert before[f"{DATABASE}-wal"]
    answer = veilmq("doctor", "--data", str(copy), "--json")
    assert (answer.code, json.loads(answer.out)["facts"]["messages"]) == (0, 3)
    assert snapshot(copy) == before


def test_a_damaged_log_is_read_up_to_its_damage(folder: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    """As the next start does: what was not acknowledged is not there, and nothing is changed."""
    copy = killed(folder, tmp_path / "killed")
    with (copy / f"{DATABASE}-wal").open("ab") as log:
        log.write(b"torn" * 500)
    before = snapshot(copy)
    answer = veilmq("doctor", "--data", str(copy), "--json")
    assert (answer.code, json.loads(answer.out)["facts"]["messages"]) == (0, 3)
    assert snapshot(copy) == before


def test_a_hot_journal_is_read_as_it_will_be_rolled_back(folder: Path, tmp_path: Path, veilmq: Veilmq) -> None:
    """A transaction of which half is in the file is not counted, and nothing is changed."""
    copy = tmp_path / "killed"
    with closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA cache_size = 1")
        database.execute("BEGIN IMMEDIATE")
        database.execute("DELETE FROM message")
        database.execute("CREATE TABLE large AS SELECT zeroblob(100000)")  # too much for the cache: it is written
        shutil.copytree(folder, copy)
        database.execute("ROLLBACK")
    before = snapshot(copy)
    assert before[f"{DATABASE}-journal"]
    answer = veilmq("doctor", "--data", str(copy), "--json")
    assert (answer.code, json.loads(answer.out)["facts"]["messages"]) == (0, 2)
    assert snapshot(copy) == before


@pytest.mark.parametrize("content", [None, b"no database" * 1000], ids=["absent", "garbage"])
def test_a_folder_that_cannot_be_examined_is_an_error(content: bytes | None, tmp_path: Path, veilmq: Veilmq) -> None:
    """One line that says what to do."""
    if content is not None:
        (tmp_path / DATABASE).write_bytes(content)
    answer = veilmq("doctor", "--data", str(tmp_path))
    assert (answer.code, answer.out) == (1, "")
    assert str(tmp_path) in answer.err
    assert answer.err.count("\n") == 1


def test_a_running_servers_folder_can_be_examined(tmp_path: Path, veilmq: Veilmq) -> None:
    """Without a pause for the server."""
    with RunningServer(data=tmp_path / "d") as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        assert veilmq("doctor", "--data", str(tmp_path / "d")).code == 0
        client.send("orders", "still there")


def test_the_folder_is_that_of_the_settings(
    folder: Path, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From a file, from the environment; and memory has none."""
    (tmp_path / "named.toml").write_text(f"data = '{folder}'", encoding="utf-8")
    assert veilmq("doctor", "--config", str(tmp_path / "named.toml")).code == 0
    monkeypatch.setenv("VEILMQ_DATA", str(folder))
    assert veilmq("doctor").code == 0
    monkeypatch.delenv("VEILMQ_DATA")
    monkeypatch.setenv("VEILMQ_MEMORY", "true")
    answer = veilmq("doctor")
    assert answer.code == 2
    assert "name one with --data" in answer.err

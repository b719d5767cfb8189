"""`veilmq migrate`, `doctor`, `backup` and `copy` where several databases are one store, on a real PostgreSQL."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Veilmq, without_passwords
from tests.store.postgres_host import connected, making_database
from veilmq.store.postgres.databases import ONE_STORE, PLACES
from veilmq.testing import RunningServer, SystemClock
from veilmq.testing.postgres_server import PostgresServer, temporary_folder

SECRET = "s3cret"
NOWHERE = f"postgresql://u:{SECRET}@127.0.0.1:1/x"
NAMES = ["schema"]
NEWER = "INSERT INTO mq.migration VALUES (999, 999)"
OLDER = "DELETE FROM mq.migration WHERE number = 999"


@pytest.fixture(scope="module")
def durable_url() -> Iterator[str]:
    """Run a server that waits for its disk: the doctor has nothing to say against it."""
    with temporary_folder() as folder, PostgresServer(folder / "one") as server:
        yield server.url


@pytest.fixture
def urls(durable_url: str) -> Iterator[tuple[str, str]]:
    with making_database(durable_url) as first, making_database(durable_url) as second:
        yield with_secret(first), with_secret(second)


def with_secret(url: str) -> str:
    return url.replace("postgres@", f"postgres:{SECRET}@")


def execute(url: str, statement: str) -> None:
    async def done() -> None:
        async with connected(url) as connection:
            await connection.execute(statement)

    asyncio.run(done())


def failed(document: Any) -> list[str]:
    return [check["check"] for check in document if not check["ok"]]


def serve(urls: tuple[str, ...], *queues: str) -> None:
    with RunningServer(store=",".join(urls), clock=SystemClock()) as server:
        for queue in queues:
            server.queue(queue)


def test_all_are_upgraded_in_turn(urls: tuple[str, str], veilmq: Veilmq) -> None:
    both = ",".join(urls)
    would = veilmq("migrate", "--store", both, "--check", "--json")
    told = [{"store": without_passwords(url), "format": 0, "upgrades": NAMES, "applied": False} for url in urls]
    assert (would.code, json.loads(would.out)) == (1, {"databases": told})
    done = veilmq("migrate", "--store", urls[0], "--store", urls[1])
    assert (done.code, done.err, SECRET in done.out) == (0, "", False)
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("store ")] == [
        without_passwords(url) for url in urls
    ]
    assert done.out.count(NAMES[-1]) == 2
    again = veilmq("migrate", "--store", both, "--check")
    assert (again.code, again.out.count("The schema has all that this version needs.")) == (0, 2)


def test_what_fails_at_one_keeps_nothing_from_the_others(urls: tuple[str, str], veilmq: Veilmq) -> None:
    assert veilmq("migrate", "--store", urls[0]).code == 0
    execute(urls[0], NEWER)
    answer = veilmq("migrate", "--store", ",".join((*urls, NOWHERE)))
    assert (answer.code, SECRET in answer.out + answer.err) == (1, False)
    assert answer.out.count("FAILED") == 2
    assert "install a newer one" in answer.out
    assert "postgresql://u:***@127.0.0.1:1/x cannot be used" in answer.out
    assert NAMES[-1] in answer.out, "the second was upgraded"
    assert answer.err.startswith(f"veilmq: 2 of 3 databases failed ({without_passwords(urls[0])}, postgresql://u:***@")
    told = json.loads(veilmq("migrate", "--store", ",".join(urls), "--json").out)["databases"]
    assert [sorted(each) for each in told] == [["error", "store"], ["applied", "format", "store", "upgrades"]]
    execute(urls[0], OLDER)
    again = veilmq("migrate", "--store", ",".join(urls))
    assert (again.code, again.err, again.out.count("FAILED")) == (0, "", 0)


def test_the_doctor_examines_each_and_all_together(urls: tuple[str, str], veilmq: Veilmq) -> None:
    both = ",".join(urls)
    with RunningServer(store=both, clock=SystemClock()) as server:
        for queue in ("a", "b", "c"):
            server.queue(queue)
        answer = veilmq("doctor", "--store", both)
        found = json.loads(veilmq("doctor", "--store", both, "--json").out)
    assert (answer.code, answer.err, SECRET in answer.out) == (0, "", False)
    lines = answer.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("store ")] == [without_passwords(url) for url in urls]
    assert [f"ok      {check}" in lines for check in (ONE_STORE, PLACES)] == [True, True]
    assert lines[-1] == "Every check is ok."
    assert [each["facts"]["queues"] for each in found["databases"]] == [2, 1]
    assert (found["ok"], failed(found["together"])) == (True, [])


def test_a_fault_of_one_is_said_beside_what_is_found_at_the_others(urls: tuple[str, str], veilmq: Veilmq) -> None:
    serve(urls, "a", "b")
    execute(
        urls[1], "INSERT INTO mq.msg (qp, seq, visible_at, sent_at, priority, id, body) VALUES (99, 1, 1, 1, 8, '', '')"
    )
    answer = veilmq("doctor", "--store", ",".join((*urls, NOWHERE)))
    assert (answer.code, answer.err, SECRET in answer.out) == (1, "", False)
    blocks = answer.out.split("store ")[1:]
    assert ["FAILED  every message has its partition" in block for block in blocks] == [False, True, False]
    assert "FAILED  it can be examined\n        postgresql://u:***@127.0.0.1:1/x cannot be used" in blocks[2]
    assert answer.out.splitlines()[-1].startswith("4 of ")
    found = json.loads(veilmq("doctor", "--store", ",".join((*urls, NOWHERE)), "--json").out)
    assert [each["ok"] for each in found["databases"]] == [True, False, False]
    assert (found["ok"], failed(found["together"])) == (False, [ONE_STORE, PLACES])


def test_a_backup_of_databases_says_what_to_do(tmp_path: Path, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch) -> None:
    to = str(tmp_path / "backup")
    given = veilmq("backup", "--to", to, "--store", f"{NOWHERE},{NOWHERE}")
    monkeypatch.setenv("VEILMQ_STORE", NOWHERE)
    for answer in (given, veilmq("backup", "--to", to)):
        assert (answer.code, answer.out, "PostgreSQL's own means" in answer.err) == (2, "", True)
        assert SECRET not in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_several_says_what_to_do(tmp_path: Path, veilmq: Veilmq) -> None:
    both = f"{NOWHERE},{NOWHERE}"
    for source, target, said in (
        (both, NOWHERE, "copy one after the other"),
        (both, str(tmp_path / "copy"), "No data folder takes them"),
        (str(tmp_path), both, "copy it to the first"),
        (NOWHERE, both, "copy each by itself"),
    ):
        answer = veilmq("copy", "--from", source, "--to", target)
        assert (answer.code, answer.out, SECRET in answer.err, answer.err.count("\n")) == (1, "", False, 1)
        assert said in answer.err
    assert list(tmp_path.iterdir()) == []

"""``veilmq migrate``, ``doctor``, ``backup`` and ``copy`` on PostgreSQL, with one database and with several."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.cli.conftest import Veilmq, without_passwords
from tests.cli.test_store import execute
from tests.store.postgres_host import making_database
from veilmq.store.port import StoreError
from veilmq.store.postgres.databases import ONE_STORE, PLACES
from veilmq.store.postgres.schema import all_scripts
from veilmq.testing import RunningServer, SystemClock

SECRET = "s3cret"
FSYNC = "acknowledged commits are durable"  # the tests' servers run without fsync
NOWHERE = f"postgresql://u:{SECRET}@127.0.0.1:1/x"
UNREACHED = "postgresql://u:***@127.0.0.1:1/x cannot be used"
LOST = "INSERT INTO mq.msg (qp, seq, visible_at, sent_at, priority, id, body) VALUES (99, 1, 1, 1, 8, '', '')"
NAMES = ["schema"]
NEWER = "INSERT INTO mq.migration VALUES (999, 999)"
OLDER = "DELETE FROM mq.migration WHERE number = 999"
COMPLETE = "The schema has all that this version needs."


@pytest.fixture
def database(new_database: str) -> str:
    """Return the URL of an empty database, with a password that the server does not require."""
    return new_database.replace(":@", f":{SECRET}@")


@pytest.fixture(scope="module")
def durable_url() -> Iterator[str]:
    """Run a server with fsync, which passes the doctor's check of durability."""
    with temporary_folder() as folder, PostgresServer(folder / "one") as server:
        yield server.url


@pytest.fixture
def urls(durable_url: str) -> Iterator[tuple[str, str]]:
    """Return the URLs of two empty databases, with a password that the server does not require."""
    with making_database(durable_url) as first, making_database(durable_url) as second:
        yield first.replace("postgres@", f"postgres:{SECRET}@"), second.replace("postgres@", f"postgres:{SECRET}@")


def failed(checks: Any) -> list[str]:
    return [check["check"] for check in checks if not check["ok"]]


# One database


def test_migrate_shows_pending_upgrades_then_applies_them(database: str, veilmq: Veilmq) -> None:
    """``--check`` changes nothing; its exit code is 1 if there is anything to do."""
    assert [veilmq("migrate", "--store", database, "--check").code for _ in range(2)] == [1, 1]
    would = json.loads(veilmq("migrate", "--store", database, "--check", "--json").out)
    assert (would["format"], would["upgrades"], would["applied"]) == (0, NAMES, False)
    done = veilmq("migrate", "--store", database)
    assert (done.code, done.err, SECRET in done.out) == (0, "", False)
    assert [line.split()[-1] for line in done.out.splitlines()][2:] == NAMES
    again = veilmq("migrate", "--store", database, "--check")
    assert (again.code, again.out.splitlines()[-1]) == (0, COMPLETE)


def test_with_no_migrate_a_server_refuses_a_pending_upgrade(database: str, veilmq: Veilmq) -> None:
    """Such a server needs no rights to change tables."""
    with pytest.raises(StoreError, match=r"has format 0, this version needs \d+: run `veilmq migrate`"):
        RunningServer(store=database, no_migrate=True).__enter__()
    assert veilmq("migrate", "--store", database).code == 0
    with RunningServer(store=database, no_migrate=True) as server:
        assert server.queue("jobs").counts.visible == 0


def test_a_database_of_a_newer_version_is_refused(database: str, veilmq: Veilmq) -> None:
    assert veilmq("migrate", "--store", database).code == 0
    execute(database, NEWER)
    for command in ("migrate", "doctor"):
        done = veilmq(command, "--store", database)
        assert (done.code, "install a newer one" in done.err, SECRET in done.err) == (1, True, False)
    with pytest.raises(StoreError, match="install a newer one"):
        RunningServer(store=database).__enter__()


def test_the_doctor_reports_server_schema_and_durability(database: str, veilmq: Veilmq) -> None:
    """It may run beside a server. Only the check of the test database's settings fails."""
    with RunningServer(store=database) as server:
        server.queue("jobs")
        done = veilmq("doctor", "--store", database, "--json")
    found = json.loads(done.out)
    assert ("***" in found["store"], SECRET in done.out) == (True, False)
    facts = found["facts"]
    assert facts["server"].startswith("PostgreSQL ")
    assert (facts["queues"], facts["messages"], facts["format"]) == (1, 0, all_scripts()[-1].number)
    assert facts["durability"].startswith("strict: ")
    assert failed(found["checks"]) == [FSYNC]
    assert "ALTER SYSTEM SET fsync = on" in done.out


def test_the_doctor_reports_a_missing_schema_and_inconsistent_rows(database: str, veilmq: Veilmq) -> None:
    done = veilmq("doctor", "--store", database)
    assert done.code == 1
    assert re.search(r"FAILED  there is a schema\n +run `veilmq migrate`", done.out)
    assert veilmq("migrate", "--store", database).code == 0
    execute(database, LOST)
    done = veilmq("doctor", "--store", database)
    assert done.code == 1
    lines = done.out.splitlines()
    index = lines.index("FAILED  every message has its partition")
    assert lines[index + 1].strip() == "1 rows break this, the first at 99/1"


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_an_unreachable_database_is_named(command: str, veilmq: Veilmq) -> None:
    done = veilmq(command, "--store", NOWHERE)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(f"veilmq: {UNREACHED}: ")


def test_a_data_folder_needs_no_migration(veilmq: Veilmq) -> None:
    veilmq("migrate").fails(2, "name one with --store")


# Several databases of one store


def test_all_databases_are_upgraded_in_turn(urls: tuple[str, str], veilmq: Veilmq) -> None:
    """The URLs may be separated by commas or repeated options; the output has no passwords."""
    both, shown = ",".join(urls), [without_passwords(url) for url in urls]
    would = veilmq("migrate", "--store", both, "--check", "--json")
    expected = [{"store": url, "format": 0, "upgrades": NAMES, "applied": False} for url in shown]
    assert (would.code, json.loads(would.out)) == (1, {"databases": expected})
    done = veilmq("migrate", "--store", urls[0], "--store", urls[1])
    assert (done.code, done.err, SECRET in done.out) == (0, "", False)
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("store ")] == shown
    assert done.out.count(NAMES[-1]) == 2
    again = veilmq("migrate", "--store", both, "--check")
    assert (again.code, again.out.count(COMPLETE)) == (0, 2)


def test_a_failed_upgrade_of_one_database_does_not_stop_the_others(urls: tuple[str, str], veilmq: Veilmq) -> None:
    """After the repair another run does the rest."""
    assert veilmq("migrate", "--store", urls[0]).code == 0
    execute(urls[0], NEWER)
    done = veilmq("migrate", "--store", ",".join((*urls, NOWHERE)))
    assert (done.code, SECRET in done.out + done.err) == (1, False)
    assert done.out.count("FAILED") == 2
    assert "install a newer one" in done.out
    assert UNREACHED in done.out
    assert NAMES[-1] in done.out, "the second was upgraded"
    assert done.err.startswith(f"veilmq: 2 of 3 databases failed ({without_passwords(urls[0])}, postgresql://u:***@")
    results = json.loads(veilmq("migrate", "--store", ",".join(urls), "--json").out)["databases"]
    assert [sorted(each) for each in results] == [["error", "store"], ["applied", "format", "store", "upgrades"]]
    execute(urls[0], OLDER)
    again = veilmq("migrate", "--store", ",".join(urls))
    assert (again.code, again.err, again.out.count("FAILED")) == (0, "", 0)


def test_the_doctor_checks_each_database_and_all_together(urls: tuple[str, str], veilmq: Veilmq) -> None:
    """First all checks pass; then a message is lost, and a third database cannot be reached."""
    both, all_of_them = ",".join(urls), ",".join((*urls, NOWHERE))
    with RunningServer(store=both, clock=SystemClock()) as server:
        for queue in ("a", "b", "c"):
            server.queue(queue)
        done = veilmq("doctor", "--store", both)
        found = json.loads(veilmq("doctor", "--store", both, "--json").out)
    assert (done.code, done.err, SECRET in done.out) == (0, "", False)
    lines = done.out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("store ")] == [without_passwords(url) for url in urls]
    assert [f"ok      {check}" in lines for check in (ONE_STORE, PLACES)] == [True, True]
    assert lines[-1] == "Every check is ok."
    assert [each["facts"]["queues"] for each in found["databases"]] == [2, 1]
    assert (found["ok"], failed(found["together"])) == (True, [])

    execute(urls[1], LOST)
    done = veilmq("doctor", "--store", all_of_them)
    assert (done.code, done.err, SECRET in done.out) == (1, "", False)
    blocks = f"\n{done.out}".split("\nstore ")[1:]
    assert ["FAILED  every message has its partition" in block for block in blocks] == [False, True, False]
    assert f"FAILED  it can be examined\n        {UNREACHED}" in blocks[2]
    assert done.out.splitlines()[-1].startswith("4 of ")
    found = json.loads(veilmq("doctor", "--store", all_of_them, "--json").out)
    assert [each["ok"] for each in found["databases"]] == [True, False, False]
    assert (found["ok"], failed(found["together"])) == (False, [ONE_STORE, PLACES])


def test_a_backup_of_databases_is_refused_with_a_remedy(
    tmp_path: Path, veilmq: Veilmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = str(tmp_path / "backup")
    by_option = veilmq("backup", "--to", to, "--store", f"{NOWHERE},{NOWHERE}")
    monkeypatch.setenv("VEILMQ_STORE", NOWHERE)
    for done in (by_option, veilmq("backup", "--to", to)):
        done.fails(2, "PostgreSQL's own means")
        assert SECRET not in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        (f"{NOWHERE},{NOWHERE}", NOWHERE, "copy one after the other"),
        (f"{NOWHERE},{NOWHERE}", "copy", "They cannot be copied to a data folder"),
        (".", f"{NOWHERE},{NOWHERE}", "copy it to the first"),
        (NOWHERE, f"{NOWHERE},{NOWHERE}", "each database of a store separately"),
    ],
)
def test_a_copy_of_several_databases_is_refused_with_a_remedy(
    source: str, target: str, error: str, veilmq: Veilmq
) -> None:
    done = veilmq("copy", "--from", source, "--to", target)
    assert (done.code, done.out, SECRET in done.err, done.err.count("\n")) == (1, "", False, 1)
    assert error in done.err
    assert list(Path().iterdir()) == []

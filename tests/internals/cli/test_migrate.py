"""`veilmq migrate` and `veilmq doctor` on a real PostgreSQL."""

import asyncio
import json
import re

import pytest

from tests.cli.conftest import Veilmq
from tests.store.postgres_host import connected
from veilmq.store.port import StoreError
from veilmq.store.postgres.schema import all_scripts
from veilmq.testing import RunningServer

SECRET = "s3cret"
FSYNC = "what is acknowledged is durable"  # the servers of the tests do not wait for their disks
NOWHERE = f"postgresql://u:{SECRET}@127.0.0.1:1/x"
LOST = "INSERT INTO mq.msg (qp, seq, visible_at, sent_at, priority, id, body) VALUES (99, 1, 1, 1, 8, '', '')"


@pytest.fixture
def database(new_database: str) -> str:
    return new_database.replace(":@", f":{SECRET}@")


def execute(url: str, statement: str) -> None:
    async def done() -> None:
        async with connected(url) as connection:
            await connection.execute(statement)

    asyncio.run(done())


def test_what_would_be_applied_is_shown_then_applied_then_done(database: str, veilmq: Veilmq) -> None:
    names = ["schema"]
    assert [veilmq("migrate", "--store", database, "--check").code for _ in range(2)] == [1, 1]
    would = json.loads(veilmq("migrate", "--store", database, "--check", "--json").out)
    assert (would["format"], would["upgrades"], would["applied"]) == (0, names, False)
    done = veilmq("migrate", "--store", database)
    assert (done.code, done.err, SECRET in done.out) == (0, "", False)
    assert [line.split()[-1] for line in done.out.splitlines()][2:] == names
    again = veilmq("migrate", "--store", database, "--check")
    assert (again.code, again.out.splitlines()[-1]) == (0, "The schema has all that this version needs.")


def test_a_server_that_may_not_upgrade_asks_for_it(database: str, veilmq: Veilmq) -> None:
    """Then it needs no rights to change tables."""
    with pytest.raises(StoreError, match=r"has format 0.*run `veilmq migrate`"):
        RunningServer(store=database, no_migrate=True).__enter__()
    assert veilmq("migrate", "--store", database).code == 0
    with RunningServer(store=database, no_migrate=True) as server:
        assert server.queue("jobs").counts.visible == 0


def test_a_newer_database_is_refused_by_all(database: str, veilmq: Veilmq) -> None:
    assert veilmq("migrate", "--store", database).code == 0
    execute(database, "INSERT INTO mq.migration VALUES (999, 999)")
    for command in ("migrate", "doctor"):
        answer = veilmq(command, "--store", database)
        assert (answer.code, "install a newer one" in answer.err, SECRET in answer.err) == (1, True, False)
    with pytest.raises(StoreError, match="install a newer one"):
        RunningServer(store=database).__enter__()


def test_the_doctor_names_server_schema_and_durability(database: str, veilmq: Veilmq) -> None:
    with RunningServer(store=database) as server:
        server.queue("jobs")
        answer = veilmq("doctor", "--store", database, "--json")
    found = json.loads(answer.out)
    assert "***" in found["store"]
    assert SECRET not in answer.out
    assert found["facts"]["server"].startswith("PostgreSQL ")
    assert (found["facts"]["queues"], found["facts"]["messages"]) == (1, 0)
    assert found["facts"]["format"] == all_scripts()[-1].number
    assert found["facts"]["durability"].startswith("strict: ")
    assert [check["check"] for check in found["checks"] if not check["ok"]] == [FSYNC]
    assert "ALTER SYSTEM SET fsync = on" in answer.out


def test_the_doctor_finds_what_contradicts_itself(database: str, veilmq: Veilmq) -> None:
    assert veilmq("migrate", "--store", database).code == 0
    execute(database, LOST)
    answer = veilmq("doctor", "--store", database)
    assert answer.code == 1
    lines = answer.out.splitlines()
    place = lines.index("FAILED  every message has its partition")
    assert lines[place + 1].strip() == "1 rows break this, the first at 99/1"


def test_the_doctor_of_an_empty_database_says_what_to_do(database: str, veilmq: Veilmq) -> None:
    answer = veilmq("doctor", "--store", database)
    assert answer.code == 1
    assert re.search(r"FAILED  there is a schema\n +run `veilmq migrate`", answer.out)


@pytest.mark.parametrize("command", ["migrate", "doctor"])
def test_a_database_that_cannot_be_reached_is_named(command: str, veilmq: Veilmq) -> None:
    answer = veilmq(command, "--store", NOWHERE)
    assert (answer.code, answer.out, answer.err.count("\n")) == (1, "", 1)
    assert answer.err.startswith("veilmq: postgresql://u:***@127.0.0.1:1/x cannot be used: ")


def test_a_data_folder_needs_no_migration(veilmq: Veilmq) -> None:
    answer = veilmq("migrate")
    assert (answer.code, "name one with --store" in answer.err) == (2, True)

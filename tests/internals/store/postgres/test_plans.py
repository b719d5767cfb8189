"""The plans of all statements, as they are while a table is empty: also when its rows were counted.

A connection plans them for good, whenever that is: what is harmless then, to go through a partition for a few of its
messages, is not when there are a million. (Deletes read all messages of their queue, twice.)
"""

import asyncio
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from uuid import uuid4

import pytest

from tests.internals.store.postgres.entries import entries_read
from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, connected, hosting_postgres
from veilmq.core import commands
from veilmq.store.named_queries import load, shared
from veilmq.store.postgres.background import SQL as SWEEPS
from veilmq.store.postgres.database import SETTINGS
from veilmq.store.postgres.outbox import OUTBOX
from veilmq.store.postgres.queues import FAIR, FIFO, STANDARD, logged
from veilmq.store.postgres.transaction import CLAIMS

pytestmark = pytest.mark.usefixtures("tables")

PACKAGE = "veilmq.store.postgres"
OF_STORES = {"copies.sql", "schema.sql", "functions.sql"}
"""What copies a whole store, and what makes one."""
STATEMENTS: dict[str, dict[str, str]] = {
    **{
        each.name: load(PACKAGE, each.name)
        for each in files(PACKAGE).iterdir()
        if each.name.endswith(".sql") and each.name not in OF_STORES
    },
    "shared": shared(),
    "of FIFO queues": FIFO,
    "of fair queues": {"send": FAIR["send"]},
    "locks": {"choose": STANDARD["choose"], "choose_claimed": CLAIMS["choose"]},
    "of FIFO queues in claims": {"read": CLAIMS["read_fifo"]},
    "of FIFO queues in sweeps": {"drop_messages": SWEEPS["drop_fifo_messages"]},
    "of FIFO queues in the outbox": {name: OUTBOX[f"fifo_{name}"] for name in ("first", "messages")},
}
WHOLE = {"count", "inspect", "waiting"}
"""Statements that are about all of a partition, or its first messages."""

_SCAN = re.compile(
    r"(Seq Scan on (?:msg|fifo_msg|fifo_group)\b)|Index (?:Only )?Scan using (\w+) on (?:msg|fifo_msg|fifo_group)\b"
)
_FEW = re.compile(r"Limit|LockRows|InitPlan|SubPlan")
_SECOND = {
    "msg_pkey": "seq",
    "msg_visible": "priority",
    "msg_moved": "sent_at",
    "msg_group": "priority",
    "msg_claim": "claim",
    "fifo_msg_pkey": "seq",
    "fifo_msg_group": "group_id",
    "fifo_msg_claim": "claim",
    "fifo_group_pkey": "group_id",
    "fifo_group_eligible": "eligible_at",
}
"""The column of each index behind the partition: a scan without a condition on it reads all of the partition."""


async def plan(connection: Any, number: int, statement: str) -> list[str]:
    """Return the lines of the plan that a connection keeps for a statement."""
    name = f"s{number}"
    await connection.execute(f"PREPARE {name} AS {statement}")
    types = await connection.fetchval(
        "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = $1", name
    )
    terms = ", ".join("'{}'" if each.endswith("[]") else "NULL" for each in types)
    return [line for (line,) in await connection.fetch(f"EXPLAIN EXECUTE {name}" + (f"({terms})" if terms else ""))]


def every(file: str) -> Iterator[tuple[str, str]]:
    """Yield the statements of a file, also as they are for logged queues."""
    yield from STATEMENTS[file].items()
    for name, statement in logged(STATEMENTS[file]).items():
        if statement != STATEMENTS[file][name]:
            yield f"{name}, logged", statement


def wholesale(lines: list[str]) -> Iterator[str]:
    """Yield where a plan goes through all messages, all groups or all index entries of a partition or of the table.

    To take the first of them in the order of the index, or to see whether there is one, is something else.
    """
    for number, line in enumerate(lines):
        scan = _SCAN.search(line)
        below = "".join(lines[number + 1 :][:1])
        if scan and (scan[1] or not re.search(rf"Index Cond: .*\b{_SECOND[scan[2]]}\b", below)):
            parents = [above for above in reversed(lines[:number]) if _indent(above) < _indent(line)]
            parent = next((above for above in parents if "Append" not in above), "")  # of both tables, one by one
            if not _FEW.search(parent):
                yield line.strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize("file", STATEMENTS)
def test_no_statement_goes_through_a_partition(postgres_url: str, file: str) -> None:
    """But for those that are about all of it."""

    async def found() -> dict[str, list[str]]:
        async with connected(postgres_url) as connection:
            for name, value in SETTINGS.items():
                await connection.execute("SELECT set_config($1, $2, false)", name, value)
            plans = {}
            for number, (name, statement) in enumerate(every(file)):
                text = re.sub("--.*", "", statement)
                if text.split()[0] in {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}:
                    plans[name] = list(wholesale(await plan(connection, number, text)))
            return plans

    plans = asyncio.run(found())
    assert {name: lines for name, lines in plans.items() if lines and name not in WHOLE} == {}


GROUPS = 10
"""Of messages that are received at once."""


@pytest.mark.parametrize("kind", ["standard", "fair", "fifo"])
def test_a_message_costs_the_same_however_many_there_are(postgres_url: str, kind: str) -> None:
    """Whatever the functions do: of the messages beside it no entry of an index is read."""
    with hosting_postgres(postgres_url) as host:
        host.create(fifo=kind == "fifo")
        read = [cycles(host, kind), cycles(host, kind)]
        for number in range(100):
            send(host, f"beside {number}", kind)
        read.append(cycles(host, kind))
    assert read[2] < 2 * read[1]


def cycles(host: PostgresHost, kind: str) -> int:
    """Return how many entries of indexes are read for messages that are sent, received, changed and deleted."""
    before = entries_read(host)
    host.advance(1_000)
    for number in range(5):
        send(host, str(number), kind)
        batch = host.receive(GROUPS)
        for each in batch:
            host.change(each.receipt, 60)
        host.delete(*(each.receipt for each in batch))
    return entries_read(host) - before


def send(host: PostgresHost, name: str, kind: str) -> None:
    """Send messages, each of a group of its own where there are groups."""
    new = []
    for number in range(GROUPS):
        body = f"{name} {number}"
        group = None if kind == "standard" else body
        new.append(message(body, group=group, dedup_id=uuid4().hex if kind == "fifo" else None))
    host.do(commands.Send(queue=QUEUE, messages=tuple(new)))

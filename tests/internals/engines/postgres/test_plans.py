"""The plans of all statements, as they are while a table is still empty and nobody has counted its rows.

That is when a connection plans them for good: what is harmless then, to go through a partition for a few of its
messages, is not when there are a million. (A delete once read all messages of its queue.)
"""

import asyncio
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from uuid import uuid4

import pytest

from tests.internals.engines.postgres.entries import entries_read
from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, connected, hosting_postgres
from veilmq.core import commands
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.database import SETTINGS
from veilmq.store.named_queries import shared

pytestmark = pytest.mark.usefixtures("new_tables")

PACKAGE = "veilmq.engines.postgres"
OF_STORES = {"copies.sql"}
"""What copies a whole store."""
FILES = sorted(
    each.name for each in files(PACKAGE).iterdir() if each.name.endswith(".sql") and each.name not in OF_STORES
)
STATEMENTS = {**{file: load(PACKAGE, file) for file in FILES}, "shared": shared()}
WHOLE = {"count", "look", "waiting"}
"""Statements that are about all of a partition, or its first messages."""

_SCAN = re.compile(
    r"(Seq Scan on (?:msg|fifo_msg|fifo_group)\b)|Index (?:Only )?Scan using (\w+) on (?:msg|fifo_msg|fifo_group)\b"
)
_FEW = re.compile(r"Limit|LockRows|InitPlan|SubPlan")
_ALL = re.compile(r"Index Cond: \((?:\w+\.)?qp = [^()]+\)$")


async def plan(connection: Any, number: int, statement: str) -> list[str]:
    """Return the lines of the plan that a connection keeps for a statement."""
    name = f"s{number}"
    await connection.execute(f"PREPARE {name} AS {statement}")
    types = await connection.fetchval(
        "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = $1", name
    )
    terms = ", ".join("'{}'" if each.endswith("[]") else "NULL" for each in types)
    return [line for (line,) in await connection.fetch(f"EXPLAIN EXECUTE {name}" + (f"({terms})" if terms else ""))]


def wholesale(lines: list[str]) -> Iterator[str]:
    """Yield where a plan goes through all messages, or all groups, of a partition or of the table.

    To take the first of them in the order of the index, or to see whether there is one, is something else.
    """
    for number, line in enumerate(lines):
        scan = _SCAN.search(line)
        if scan and (scan[1] or _ALL.search("".join(lines[number + 1 : number + 2]))):
            parent = next((above for above in reversed(lines[:number]) if _indent(above) < _indent(line)), "")
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
            for number, (name, statement) in enumerate(STATEMENTS[file].items()):
                text = re.sub("--.*", "", statement)
                if text.split()[0] in {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}:
                    plans[name] = list(wholesale(await plan(connection, number, text)))
            return plans

    plans = asyncio.run(found())
    assert {name: lines for name, lines in plans.items() if lines and name not in WHOLE} == {}


GROUPS = 10
"""Of messages that are received at once."""


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_message_costs_the_same_however_many_there_are(postgres_url: str, fifo: bool) -> None:
    """Whatever the functions do: of the messages beside it no entry of an index is read."""
    with hosting_postgres(postgres_url) as host:
        host.create(fifo=fifo)
        read = [cycles(host, fifo=fifo), cycles(host, fifo=fifo)]
        for number in range(100):
            send(host, f"beside {number}", fifo=fifo)
        read.append(cycles(host, fifo=fifo))
    assert read[2] < 2 * read[1]


def cycles(host: PostgresHost, *, fifo: bool) -> int:
    """Return how many entries of indexes are read for messages that are sent, received, changed and deleted."""
    before = entries_read(host)
    host.advance(1_000)
    for number in range(5):
        send(host, str(number), fifo=fifo)
        batch = host.receive(GROUPS)
        for each in batch:
            host.change(each.receipt, 60)
        host.delete(*(each.receipt for each in batch))
    return entries_read(host) - before


def send(host: PostgresHost, name: str, *, fifo: bool) -> None:
    """Send messages, each of a group of its own where there are groups."""
    names = [f"{name} {number}" for number in range(GROUPS)]
    new = tuple(message(each, group=each if fifo else None, dedup_id=uuid4().hex if fifo else None) for each in names)
    host.do(commands.Send(queue=QUEUE, messages=new))

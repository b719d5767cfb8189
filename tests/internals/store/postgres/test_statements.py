"""Statements on PostgreSQL: each names its partition, none goes through one, and they read no more than they give.

A partition can so live in any database. Plans are those of tables that are empty, also when their rows were counted: a
connection plans statements for good, whenever that is. What is harmless then, to go through a partition for a few of
its messages, is not when there are a million. (Deletes read all messages of their queue, twice.)
"""

import asyncio
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from uuid import uuid4

import pytest

from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, connected
from veilmq.core.commands import InspectLeases, InspectQueue, MessageState
from veilmq.store import inspection
from veilmq.store.named_queries import load, schema, shared
from veilmq.store.postgres.background import SQL as SWEEPS
from veilmq.store.postgres.database import SETTINGS
from veilmq.store.postgres.outbox import OUTBOX
from veilmq.store.postgres.queues import FAIR, FIFO, STANDARD, log_variants
from veilmq.store.postgres.transaction import CLAIMS

PACKAGE = "veilmq.store.postgres"


def send(host: PostgresHost, name: str, messages: int, *, groups: bool, delay_s: int | None = None) -> None:
    names = [f"{name} {number}" for number in range(messages)]
    host.put(*(message(each, group=each if groups else None, dedup_id=uuid4().hex, delay_s=delay_s) for each in names))


# What is read.


KINDS = pytest.mark.parametrize("kind", ["standard", "fair", "fifo"])
SHOWN = 5
LEASES = InspectLeases(queue=QUEUE, count=SHOWN)
IN_FLIGHT = InspectQueue(queue=QUEUE, count=SHOWN, state=MessageState.IN_FLIGHT)


@pytest.mark.usefixtures("tables")
@KINDS
def test_a_message_costs_the_same_however_many_there_are(host: PostgresHost, kind: str) -> None:
    """Whatever the functions do: of the messages beside it no entry of an index is read."""

    def cycles() -> int:
        before = host.entries_read()
        host.advance(1_000)
        for number in range(5):
            send(host, str(number), 10, groups=kind != "standard")
            batch = host.receive(10)
            for each in batch:
                host.change(each.receipt, 60)
            host.delete(*(each.receipt for each in batch))
        return host.entries_read() - before

    host.create(fifo=kind == "fifo")
    read = [cycles(), cycles()]
    for number in range(100):
        send(host, f"beside {number}", 10, groups=kind != "standard")
    assert cycles() < 2 * read[1]


@pytest.mark.usefixtures("new_tables")
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_look_costs_the_same_however_many_others_there_are(host: PostgresHost, *, fifo: bool) -> None:
    def looked() -> int:
        before = host.entries_read()
        for command in (LEASES, IN_FLIGHT):
            for _ in range(5):
                assert len(host.do(command)) == SHOWN
        return host.entries_read() - before

    host.create(fifo=fifo)
    send(host, "first", 60, groups=fifo)
    host.receive(20, timeout_s=600)
    read = looked()
    send(host, "more", 1_000, groups=fifo)
    send(host, "late", 500, groups=fifo, delay_s=None if fifo else 900)
    host.receive(500, timeout_s=700)
    assert looked() < 2 * read


def test_no_more_are_passed_over_than_a_look_may(host: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is behind them is not seen."""
    monkeypatch.setattr(inspection, "INSPECT_SCANNED_MAX", 7)
    seen = []
    host.create()
    send(host, "held", 1, groups=False)
    host.receive(1, timeout_s=900)
    for name in ("some", "many"):
        send(host, name, 10, groups=False, delay_s=500)
        seen.append((len(host.do(LEASES)), len(host.do(IN_FLIGHT))))
    assert seen == [(1, 1), (0, 0)]


def test_groups_that_have_nothing_any_more_are_passed_over_a_thousand_at_a_time(host: PostgresHost) -> None:
    """They are there until the janitor comes; the next receive goes on behind them."""
    host.create(fifo=True, retention_s=60)
    send(host, "old", 1_000, groups=True)
    host.advance(59_000)
    host.reopen()  # whose janitor comes a minute later
    send(host, "new", 1, groups=True)
    host.advance(1_000)
    assert host.receive(10) == []
    assert host.rows("fifo_group") == 1
    assert host.bodies(10) == ["new 0"]


@pytest.mark.usefixtures("new_tables")
def test_what_a_delay_hides_in_a_group_costs_no_more_than_a_hundred_messages_do(host: PostgresHost) -> None:
    """So many are passed over, by a receive and by what says when the group gives its next message."""

    def send_to(group: int, count: int, delay_s: int | None = None) -> None:
        host.put(*(message("", group=str(group), dedup_id=uuid4().hex, delay_s=delay_s) for _ in range(count)))

    host.create(fifo=True)
    read = []
    for hidden in (200, 2_000):
        send_to(hidden, hidden, delay_s=900)
        before = host.entries_read()
        for _ in range(5):
            send_to(hidden, 1)
            assert host.receive(10) == []
        read.append(host.entries_read() - before)
    assert 5 * read[1] < 6 * read[0]


# No statement goes through a partition.


OF_STORES = {"copies.sql", "doctor.sql", "schema.sql", "functions.sql"}
"""What copies or examines a whole store, and what makes one."""
STATEMENTS: dict[str, dict[str, str]] = {
    **{
        each.name: load(PACKAGE, each.name)
        for each in files(PACKAGE).iterdir()
        if each.name.endswith(".sql") and each.name not in OF_STORES
    },
    "shared": shared(),
    "of FIFO queues": FIFO,
    "fair.sql": FAIR,
    "locks": {"lock_visible": STANDARD["lock_visible"], "lock_visible_claimed": CLAIMS["lock_visible"]},
    "of FIFO queues in claims": {"read": CLAIMS["read_fifo"]},
    "of FIFO queues in sweeps": {"drop_messages": SWEEPS["drop_fifo_messages"]},
    "of FIFO queues in the outbox": {name: OUTBOX[f"fifo_{name}"] for name in ("next_seqs", "messages")},
}
WHOLE = {"count", "facts", "inspect", "waiting"}
"""Statements that are about all of a partition or a database, or its first messages."""

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
    name = f"s{number}"
    await connection.execute(f"PREPARE {name} AS {statement}")
    types = await connection.fetchval(
        "SELECT parameter_types::text[] FROM pg_prepared_statements WHERE name = $1", name
    )
    terms = ", ".join("'{}'" if each.endswith("[]") else "NULL" for each in types)
    return [line for (line,) in await connection.fetch(f"EXPLAIN EXECUTE {name}" + (f"({terms})" if terms else ""))]


def every(file: str) -> Iterator[tuple[str, str]]:
    yield from STATEMENTS[file].items()
    for name, statement in log_variants(STATEMENTS[file]).items():
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


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("file", STATEMENTS)
def test_no_statement_goes_through_a_partition(postgres_url: str, file: str) -> None:
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


# Every statement names its partition.


FILES = [entry.name for entry in files(PACKAGE).iterdir() if entry.name.endswith(".sql") and entry.name != "doctor.sql"]
"""The doctor looks at whole databases."""
NO_QUERIES = {"schema.sql", "functions.sql"}
SCHEMA = schema(PACKAGE, id="", name="text", number="bigint", bytes="bytea", keyed="")
FUNCTIONS = files(PACKAGE).joinpath("functions.sql").read_text()
PARTITIONS = {"$1", "p_qp", "p_target", "p_part.qp", "v_part"}
OF_ALL = {
    name: why
    for why, names in {
        "a copy of a whole store, which nobody uses meanwhile": "copies.sql deduplication_log, copies.sql fifo, "
        "copies.sql is_used, copies.sql standard",
        "a new partition, which has no number yet": "copies.sql add_part, shared insert_part",
        "the doctor looks at whole databases": "durability.sql facts",
        "the janitor looks where there is something to do": "events.sql retired_parts, sweeps.sql parts, "
        "sweeps.sql end_outboxes, sweeps.sql drop_outboxes",
        "the exporter takes the events of a whole database": "events.sql take",
        "a relay looks where there is something to do": "outbox.sql due",
        "finds the partition, by the name of its queue": "queues.sql find_queue",
        "a node looks where sources have something to do": "shared due_source",
        "finds the partition, by the queues that it is between": "outbox.sql known_outbox",
        "an operator removes a database": "shards.sql has_events, shards.sql is_waiting",
        "names the partitions of all that is waited for at a node": "wakeups.sql awaited, wakeups.sql awaited_groups",
    }.items()
    for name in names.split(", ")
}
"""What is asked of a whole database, and why; each is rare, or finds out which partition to name."""


def without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)


_MADE = re.compile(r"CREATE (?:UNLOGGED )?TABLE (?:mq\.)?(\w+) \(\s*qp\b")
DATA = "|".join(sorted({*_MADE.findall(SCHEMA), "expired_receipt", "message"}))
"""The tables of the data plane: those whose first column is the partition, and the view of two of them."""

_WITHOUT_SCHEMA = re.compile(rf"\b(FROM|JOIN|USING|UPDATE|INTO)\s+(?=(?:{DATA})\b)")
_TABLE = re.compile(rf"\b(?:FROM|JOIN|USING|UPDATE|DELETE FROM|,)\s+mq\.(?:{DATA})\b")
_INSERT = re.compile(rf"\bINSERT INTO mq\.(?:{DATA})(?: AS \w+)? \(\s*(\w+)")
_INSERT_WHOLE = re.compile(rf"\bINSERT INTO mq\.(?:{DATA})(?: AS \w+)?\s+SELECT\b")
_GIVEN_WHOLE = re.compile(r"'qp', \$1|v_\w+\.qp := p_qp|mq\.event_of\(|SELECT qp, seq,")
"""How whole rows get theirs: it is put in, or it is that of rows that were found by it."""
_CALL = re.compile(r"\bmq\.(?:fifo_\w+|fair_\w+|admit)\(\s*([^,)]+)")
_NAMED = re.compile(r"\bqp = (\$[12]\b|p_\w+|part\.qp|v_\w+|NEW\.qp)")
_FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION mq\.(\w+)\((.*?)\$\$(.*?)\$\$", re.DOTALL)


def findings(text: str) -> list[str]:
    found = []
    if len(_NAMED.findall(text)) < len(_TABLE.findall(text)):
        found.append("a table is looked at in all partitions")
    if "part.qp" in _NAMED.findall(text) and not re.search(r"\bpart\.qp = (\$1|p_qp)\b", text):
        found.append("the partition is not named itself")
    if _INSERT_WHOLE.search(text) and not _GIVEN_WHOLE.search(text):
        found.append("whole rows bring a partition of their own")
    found += [f"rows begin with {column}" for column in _INSERT.findall(text) if column != "qp"]
    found += [f"a call begins with {term}" for term in _CALL.findall(text) if term not in PARTITIONS]
    return found


def touches_data(text: str) -> bool:
    return any(pattern.search(text) for pattern in (_TABLE, _INSERT, _INSERT_WHOLE, _CALL))


def queries() -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement in each file of the folders, and of those that both dialects share."""
    for file in sorted(set(FILES) - NO_QUERIES):
        for name, text in load(PACKAGE, file).items():
            yield f"{file} {name}", without_comments(text)
    for name, text in shared().items():
        yield f"shared {name}", _WITHOUT_SCHEMA.sub(r"\1 mq.", without_comments(text))


def statements() -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement of the data plane, and of each function that it calls."""
    for name, text in queries():
        if touches_data(text) and name not in OF_ALL:
            yield name, text
    for name, _, body in _FUNCTION.findall(without_comments(FUNCTIONS)):
        yield f"function {name}", body


def test_each_statement_names_one() -> None:
    """As its first term; what goes on to another queue names that one's as its second."""
    wrong = {name: found for name, text in statements() if (found := findings(text))}
    assert wrong == {}
    assert [name for name, text in statements() if not name.startswith("function ") and "$1" not in text] == [], (
        "no partition is given"
    )


def test_exceptions_are_needed() -> None:
    """Each of them is a statement that there is, and that names none; a file without statements is named."""
    found = {name for name, text in queries() if touches_data(text) and (findings(text) or "$1" not in text)}
    assert found == set(OF_ALL)
    assert {file for file in FILES if not load(PACKAGE, file)} == NO_QUERIES


@pytest.mark.parametrize("text", [
    "SELECT * FROM mq.msg WHERE seq = $1", "DELETE FROM mq.msg USING mq.accepted WHERE msg.qp = $1",
    "UPDATE mq.fifo_group SET head = 1", "INSERT INTO mq.msg (seq, qp) VALUES ($1, $2)",
    "INSERT INTO mq.msg SELECT * FROM rows", "SELECT mq.fifo_remove($2, $1)",
    "SELECT * FROM mq.part JOIN mq.msg ON msg.qp = part.qp WHERE part.queue_id = $1",
])  # fmt: skip
def test_what_does_not_is_found(text: str) -> None:
    assert findings(text)

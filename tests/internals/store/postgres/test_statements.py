"""Statements on PostgreSQL: each acts on one partition, scans no partition, and reads no more rows than it returns.

So a partition can be in any database. Plans are those for empty tables, also by their statistics, because a connection
plans a statement once. To scan a partition for a few messages is harmless then, but not with a million messages.
(Deletes read all messages of their queue, twice.)
"""

import asyncio
import json
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from uuid import uuid4

import pytest

from tests.store.host import QUEUE, message
from tests.store.postgres_host import PostgresHost, connected
from tests.store.test_claims import claim_whole, open_source
from veilmq.core.commands import InspectLeases, InspectQueue, MessageState, Peek
from veilmq.store import inspection
from veilmq.store.named_queries import load, schema, shared
from veilmq.store.postgres.database import SETTINGS
from veilmq.store.postgres.outbox import OUTBOX
from veilmq.store.postgres.queues import FAIR, FIFO, STANDARD, log_variants
from veilmq.store.postgres.transaction import CLAIMS, SWEEPS

PACKAGE = "veilmq.store.postgres"


def send(host: PostgresHost, name: str, messages: int, *, groups: bool, delay_s: int | None = None) -> None:
    names = [f"{name} {number}" for number in range(messages)]
    host.put(*(message(each, group=each if groups else None, dedup_id=uuid4().hex, delay_s=delay_s) for each in names))


# Costs.


for_each_kind = pytest.mark.parametrize("kind", ["standard", "fair", "fifo"])
SHOWN = 5
LEASES = InspectLeases(queue=QUEUE, count=SHOWN)
IN_FLIGHT = InspectQueue(queue=QUEUE, count=SHOWN, state=MessageState.IN_FLIGHT)


@pytest.mark.usefixtures("tables")
@for_each_kind
def test_cost_of_a_message_is_independent_of_the_queue_size(host: PostgresHost, kind: str) -> None:
    """No index entry of another message is read."""

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
@for_each_kind
def test_cost_of_peeks_and_receives_is_independent_of_claimed_messages_past_their_retention(
    host: PostgresHost, kind: str
) -> None:
    """Once the janitor has passed them, and a receive the index entries from before the claim."""

    def receives() -> int:
        before = host.entries_read()
        for _ in range(10):
            assert len(host.do(Peek(queue=QUEUE)).messages) == len(host.receive(1)) == 1
        return host.entries_read() - before

    host.create(fifo=kind == "fifo", retention_s=60)
    send(host, "first", 20, groups=kind != "standard")
    receives()
    read = receives()
    send(host, "claimed", 1_000, groups=kind != "standard")
    open_source(host)
    claim_whole(host, 1, 1_000)
    host.advance(60_000)
    host.sweep()
    send(host, "last", 20, groups=kind != "standard")
    receives()
    assert receives() < 4 * read


@pytest.mark.usefixtures("new_tables")
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_cost_of_an_inspection_is_independent_of_the_queue_size(host: PostgresHost, *, fifo: bool) -> None:
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


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_count_reads_the_clock_once(host: PostgresHost, *, fifo: bool) -> None:
    """It reads a page or two for each message; the test's clock is a table."""
    host.create(fifo=fifo)
    send(host, "m", 200, groups=fifo)

    async def pages() -> int:
        async with connected(host.url) as connection:
            explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + (FIFO if fifo else STANDARD)["count"]
            args = [await connection.fetchval("SELECT max(qp) FROM mq.part")], [86_400_000]
            await connection.fetchval(explain, *args)  # the first statement of a connection also reads the catalog
            return int(json.loads(await connection.fetchval(explain, *args))[0]["Plan"]["Shared Hit Blocks"])

    assert 0 < host.run(pages()) <= 500


def test_inspection_skips_a_limited_number_of_messages(host: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages behind them are not shown."""
    monkeypatch.setattr(inspection, "INSPECT_SCANNED_MAX", 7)
    seen = []
    host.create()
    send(host, "held", 1, groups=False)
    host.receive(1, timeout_s=900)
    for name in ("some", "many"):
        send(host, name, 10, groups=False, delay_s=500)
        seen.append((len(host.do(LEASES)), len(host.do(IN_FLIGHT))))
    assert seen == [(1, 1), (0, 0)]


def test_receive_skips_a_thousand_empty_groups(host: PostgresHost) -> None:
    """Before the janitor deletes them, and after it has deleted a thousand; the next receive continues behind them."""
    host.create(fifo=True, retention_s=60)
    send(host, "old", 2_000, groups=True)
    host.advance(59_000)
    host.reopen()  # the janitor runs a minute later
    send(host, "new", 1, groups=True)
    host.advance(1_000)
    assert host.receive(10) == []
    assert host.rows("fifo_group") == 1_001
    assert host.bodies(10) == ["new 0"]


@pytest.mark.usefixtures("new_tables")
def test_cost_of_a_peek_is_independent_of_expired_messages_in_the_group(host: PostgresHost) -> None:
    """It deletes up to a thousand of them, and reads none of the others."""
    host.create(fifo=True, retention_s=60)
    read = []
    for expired in (2_000, 5_000):
        host.put(*(message("old", group="g", dedup_id=uuid4().hex) for _ in range(expired)))
        host.advance(59_000)
        host.reopen()  # the janitor runs a minute later
        host.put(message("live", group="g", dedup_id=uuid4().hex))
        host.advance(1_000)
        before = host.entries_read()
        (peeked,) = host.do(Peek(queue=QUEUE, count=1)).messages
        assert peeked.body == "live"
        read.append(host.entries_read() - before)
        host.purge()
    assert 10 * read[1] < 11 * read[0]


@pytest.mark.usefixtures("new_tables")
def test_cost_of_delayed_messages_in_a_group_is_limited_to_a_hundred(host: PostgresHost) -> None:
    """Receives and mq.fifo_settle skip at most that many."""

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


# No statement scans a partition.


WHOLE_STORE_FILES = {"copies.sql", "doctor.sql", "schema.sql", "functions.sql"}
"""Files for copies, checks and the creation of a whole store."""
STATEMENTS: dict[str, dict[str, str]] = {
    **{
        each.name: load(PACKAGE, each.name)
        for each in files(PACKAGE).iterdir()
        if each.name.endswith(".sql") and each.name not in WHOLE_STORE_FILES
    },
    "shared": shared(),
    "of FIFO queues": FIFO,
    "fair.sql": FAIR,
    "locks": {"lock_visible": STANDARD["lock_visible"], "lock_visible_claimed": CLAIMS["lock_visible"]},
    "of FIFO queues in claims": {"read": CLAIMS["read_fifo"]},
    "of FIFO queues in sweeps": {"delete_messages": SWEEPS["delete_fifo_messages"]},
    "of FIFO queues in the outbox": {name: OUTBOX[f"fifo_{name}"] for name in ("next_seqs", "messages")},
}
WHOLE = {"count", "facts", "inspect", "waiting"}
"""Statements on a whole partition or database, or on its first messages."""

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
"""The second column of each index: a scan without a condition on it reads the whole partition."""


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


def whole_scans(lines: list[str]) -> Iterator[str]:
    """Yield the nodes of a plan that scan all messages, groups or index entries of a partition or table.

    Reads of the first ones by an index, and existence checks, are allowed.
    """
    for number, line in enumerate(lines):
        scan = _SCAN.search(line)
        below = "".join(lines[number + 1 :][:1])
        if scan and (scan[1] or not re.search(rf"Index Cond: .*\b{_SECOND[scan[2]]}\b", below)):
            parents = [above for above in reversed(lines[:number]) if _indent(above) < _indent(line)]
            parent = next((above for above in parents if "Append" not in above), "")  # nested loop over both tables
            if not _FEW.search(parent):
                yield line.strip()


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("file", STATEMENTS)
def test_no_statement_scans_a_partition(postgres_url: str, file: str) -> None:
    async def found() -> dict[str, list[str]]:
        async with connected(postgres_url) as connection:
            for name, value in SETTINGS.items():
                await connection.execute("SELECT set_config($1, $2, false)", name, value)
            plans = {}
            for number, (name, statement) in enumerate(every(file)):
                text = re.sub("--.*", "", statement)
                if text.split()[0] in {"SELECT", "WITH", "INSERT", "UPDATE", "DELETE"}:
                    plans[name] = list(whole_scans(await plan(connection, number, text)))
            return plans

    plans = asyncio.run(found())
    assert {name: lines for name, lines in plans.items() if lines and name not in WHOLE} == {}


# Each statement acts on one partition.


FILES = [entry.name for entry in files(PACKAGE).iterdir() if entry.name.endswith(".sql") and entry.name != "doctor.sql"]
"""The doctor checks whole databases."""
NO_QUERIES = {"schema.sql", "functions.sql"}
SCHEMA = schema(PACKAGE, id="", name="text", number="bigint", bytes="bytea", keyed="")
FUNCTIONS = files(PACKAGE).joinpath("functions.sql").read_text()
PARTITIONS = {"$1", "p_qp", "p_target", "p_part.qp", "v_part"}
WHOLE_DATABASE = {
    name: why
    for why, names in {
        "a copy of a whole store, while no node runs": "copies.sql deduplication_log, copies.sql fifo, "
        "copies.sql is_used, copies.sql standard",
        "a new partition, without a number": "copies.sql add_part, shared insert_part",
        "the doctor checks whole databases": "durability.sql facts",
        "the janitor finds its work": "events.sql retired_parts, sweeps.sql parts, "
        "sweeps.sql end_outboxes, sweeps.sql delete_outboxes",
        "the exporter takes events of a whole database": "events.sql take",
        "a relay finds its work": "outbox.sql due",
        "finds the partition by the name of its queue": "queues.sql find_queue",
        "a node finds sources with work": "shared due_source",
        "finds the partition of an outbox by its queues": "outbox.sql known_outbox",
        "an operator removes a database": "shards.sql has_events, shards.sql is_waiting",
        "the partitions of all counted queues": "messages.sql count, shared held_claims",
        "the partitions of all awaited queues of a node": "wakeups.sql awaited, wakeups.sql awaited_groups",
    }.items()
    for name in names.split(", ")
}
"""Statements on a whole database, and why; each is rare, or finds the partition."""


def without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)


_MADE = re.compile(r"CREATE (?:UNLOGGED )?TABLE (?:mq\.)?(\w+) \(\s*qp\b")
DATA = "|".join(sorted({*_MADE.findall(SCHEMA), "expired_receipt", "message"}))
"""The tables with the partition as their first column, and the view of two of them."""

_WITHOUT_SCHEMA = re.compile(rf"\b(FROM|JOIN|USING|UPDATE|INTO)\s+(?=(?:{DATA})\b)")
_TABLE = re.compile(rf"\b(?:FROM|JOIN|USING|UPDATE|DELETE FROM|,)\s+mq\.(?:{DATA})\b")
_INSERT = re.compile(rf"\bINSERT INTO mq\.(?:{DATA})(?: AS \w+)? \(\s*(\w+)")
_INSERT_WHOLE = re.compile(rf"\bINSERT INTO mq\.(?:{DATA})(?: AS \w+)?\s+SELECT\b")
_GIVEN_WHOLE = re.compile(r"'qp', \$1|v_\w+\.qp := p_qp|mq\.event_of\(|SELECT qp, seq,")
"""How inserts of whole rows set the partition: explicitly, or from rows that were found by it."""
_CALL = re.compile(r"\bmq\.(?:fifo_\w+|fair_\w+|admit)\(\s*([^,)]+)")
_NAMED = re.compile(r"\bqp = (\$[12]\b|p_\w+|part\.qp|v_\w+|NEW\.qp)")
_FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION mq\.(\w+)\((.*?)\$\$(.*?)\$\$", re.DOTALL)


def findings(text: str) -> list[str]:
    found = []
    if len(_NAMED.findall(text)) < len(_TABLE.findall(text)):
        found.append("a table is read in all partitions")
    if "part.qp" in _NAMED.findall(text) and not re.search(r"\bpart\.qp = (\$1|p_qp)\b", text):
        found.append("the partition has no condition")
    if _INSERT_WHOLE.search(text) and not _GIVEN_WHOLE.search(text):
        found.append("whole rows have another partition")
    found += [f"rows begin with {column}" for column in _INSERT.findall(text) if column != "qp"]
    found += [f"a call begins with {term}" for term in _CALL.findall(text) if term not in PARTITIONS]
    return found


def touches_data(text: str) -> bool:
    return any(pattern.search(text) for pattern in (_TABLE, _INSERT, _INSERT_WHOLE, _CALL))


def queries() -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement of the SQL files, and of those that both dialects share."""
    for file in sorted(set(FILES) - NO_QUERIES):
        for name, text in load(PACKAGE, file).items():
            yield f"{file} {name}", without_comments(text)
    for name, text in shared().items():
        yield f"shared {name}", _WITHOUT_SCHEMA.sub(r"\1 mq.", without_comments(text))


def statements() -> Iterator[tuple[str, str]]:
    """Yield name and text of each statement of the data plane, and of each function that it calls."""
    for name, text in queries():
        if touches_data(text) and name not in WHOLE_DATABASE:
            yield name, text
    for name, _, body in _FUNCTION.findall(without_comments(FUNCTIONS)):
        yield f"function {name}", body


def test_each_statement_acts_on_one_partition() -> None:
    """Its first argument; for a statement with a target queue, the second one is the target's."""
    wrong = {name: found for name, text in statements() if (found := findings(text))}
    assert wrong == {}
    assert [name for name, text in statements() if not name.startswith("function ") and "$1" not in text] == [], (
        "no argument is the partition"
    )


def test_exceptions_are_needed() -> None:
    """Each one exists and names no partition."""
    found = {name for name, text in queries() if touches_data(text) and (findings(text) or "$1" not in text)}
    assert found == set(WHOLE_DATABASE)
    assert {file for file in FILES if not load(PACKAGE, file)} == NO_QUERIES


@pytest.mark.parametrize("text", [
    "SELECT * FROM mq.msg WHERE seq = $1", "DELETE FROM mq.msg USING mq.accepted WHERE msg.qp = $1",
    "UPDATE mq.fifo_group SET head = 1", "INSERT INTO mq.msg (seq, qp) VALUES ($1, $2)",
    "INSERT INTO mq.msg SELECT * FROM rows", "SELECT mq.fifo_remove($2, $1)",
    "SELECT * FROM mq.part JOIN mq.msg ON msg.qp = part.qp WHERE part.queue_id = $1",
])  # fmt: skip
def test_statement_without_a_partition_is_found(text: str) -> None:
    assert findings(text)

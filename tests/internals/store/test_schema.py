"""The schema of PostgreSQL: who migrates to it, that nothing of format 19 is lost; `store/model.md`, of both dialects.

A database of format 19, the last before scripts and schema became one, is recorded with every feature in use. The first
line of the recording says what its tests have to know: receipts, what was counted, and when that was.
"""

import asyncio
import gzip
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.store.host import QUEUE, message, numbered
from tests.store.postgres_host import _CLOCK, _UNGUARDED, OF_QUEUES, PostgresHost, connected, making_database
from veilmq.core import claims, commands
from veilmq.core.claims import ListWriters, Publish
from veilmq.core.commands import MoveStatus, ShowAccount
from veilmq.core.errors import QueueDeletedRecently, ReceiptState
from veilmq.core.receipts import Outcome, PlanExport
from veilmq.core.topics import push_queue
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.schema import SchemaRefused, Script, all_scripts, migrate, read_format, require
from veilmq.store.sqlite.database import EngineOptions, open_connection
from veilmq.testing import VirtualClock

_RECORDED = Path(__file__).with_name("format_19.sql.gz")


@cache
def recorded() -> tuple[dict[str, Any], str]:
    said, statements = gzip.decompress(_RECORDED.read_bytes()).decode().split("\n", 1)
    return json.loads(said.removeprefix("-- ")), statements


async def restore(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(recorded()[1])


OURS = all_scripts()
FIRST, LAST = OURS[0].number - 1, OURS[-1].number


def added(*, ends: int = 0, text: str = "CREATE TABLE mq.later ()") -> Script:
    return Script(LAST + 1, f"{LAST + 1}_later", text, ends)


async def test_a_new_database_gets_the_schema_once(new_database: str) -> None:
    async with connected(new_database) as connection:
        (schema,) = (await read_format(connection))[1]
        assert (schema.number, schema.name) == (LAST, "schema")
        assert await migrate(connection) == [schema]
        assert await read_format(connection) == (LAST, [])
        assert await migrate(connection) == []


async def test_a_format_that_was_never_released_is_refused(new_database: str) -> None:
    async with connected(new_database) as connection:
        await connection.execute(recorded()[1])
        await connection.execute("DELETE FROM mq.migration WHERE number = $1", FIRST)
        for do in (read_format, migrate, require):
            with pytest.raises(SchemaRefused, match=f"has format {FIRST - 1}, which was never released.*new database"):
                await do(connection)


async def test_all_of_it_or_nothing(new_database: str) -> None:
    async with connected(new_database) as connection:
        await migrate(connection)
        with pytest.raises(asyncpg.UndefinedTableError):
            await migrate(connection, [*OURS, added(), added(text="DROP TABLE mq.nothing")])
        assert await read_format(connection) == (LAST, [])
        assert await connection.fetchval("SELECT to_regclass('mq.later')") is None


async def test_a_node_goes_on_with_what_a_later_version_has_added(new_database: str) -> None:
    """Nodes are exchanged one after the other, and one that is still old may have to start again."""
    async with connected(new_database) as connection:
        await migrate(connection)
        assert await migrate(connection, [*OURS, added()], may_exclude_older_nodes=False) == [added()]
        assert await migrate(connection) == []
        await require(connection)


async def test_a_node_refuses_what_it_cannot_work_with(new_database: str) -> None:
    async with connected(new_database) as connection:
        await migrate(connection, [*OURS, added(ends=LAST + 1)])
        for do in (read_format, migrate, require):
            with pytest.raises(SchemaRefused, match=f"has format {LAST + 1}.*this one knows {LAST}: install a newer"):
                await do(connection)


async def test_no_node_ends_others_by_starting(new_database: str) -> None:
    """The operator does, when he has stopped them; an empty database ends nobody."""
    last = added(ends=LAST + 1)
    async with connected(new_database) as connection:
        await migrate(connection)
        with pytest.raises(SchemaRefused, match=r"Older servers cannot use.*stop them all, run `veilmq migrate`"):
            await migrate(connection, [*OURS, last], may_exclude_older_nodes=False)
        assert await migrate(connection, [*OURS, last]) == [last]
        await connection.execute("DROP SCHEMA mq CASCADE")
        assert await migrate(connection, [*OURS, last], may_exclude_older_nodes=False)


async def test_the_operator_ends_no_node_that_is_connected(new_database: str) -> None:
    """Of the database of format 19: it is as it was until the last node has been stopped."""
    await restore(new_database)
    async with connected(new_database) as connection:
        node = await asyncpg.connect(new_database, server_settings={"application_name": "veilmq"})
        with pytest.raises(SchemaRefused, match=r"stop them all \(1 connections are open\), run `veilmq migrate`"):
            await migrate(connection)
        assert await read_format(connection) == (FIRST, list(OURS))
        node_pid = node.get_server_pid()
        await node.close()
        while await connection.fetchval("SELECT true FROM pg_stat_activity WHERE pid = $1", node_pid):
            pass  # its process ends after its connection
        assert await migrate(connection) == list(OURS)


async def test_a_node_that_may_not_migrate_says_what_is_missing(new_database: str) -> None:
    async with connected(new_database) as connection:
        with pytest.raises(SchemaRefused, match=rf"has format 0, this version needs {LAST}: run `veilmq migrate`"):
            await require(connection)
        await migrate(connection)
        await require(connection)


async def test_a_table_in_use_is_not_waited_for(new_database: str) -> None:
    """Whoever waits for a table keeps everybody else from it; nothing is upgraded."""
    async with connected(new_database) as connection, connected(new_database) as other:
        await migrate(connection)
        async with other.transaction():
            await other.execute("SELECT FROM mq.queue")
            with pytest.raises(SchemaRefused, match="another session uses a table"):
                await migrate(connection, [*OURS, added(text="ALTER TABLE mq.queue ADD COLUMN later int")])
        assert await read_format(connection) == (LAST, [])


# What a database of format 19 has.

TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relpersistence = 'p' AND relname <> 'migration'
"""
GONE = {"source": {"lost"}}
"""Columns that nothing reads."""
RENAMED = {"meta": "setting"}
MADE = {"database"}
"""What has no rows where there is one database."""


async def contents(connection: Any, *, old: bool = False) -> dict[str, list[Any]]:
    """Return the rows of each table, sorted, without the names of columns; of an old one as they are to be."""
    found = {}
    for (table,) in await connection.fetch(TABLES):
        rows = await connection.fetch(f"SELECT * FROM mq.{table} AS each WHERE {OF_QUEUES}")
        kept = [[value for name, value in row.items() if name not in GONE.get(table, ())] for row in rows]
        found[RENAMED.get(table, table) if old else table] = sorted(kept, key=repr)
    return {table: rows for table, rows in found.items() if rows or table not in MADE}


async def test_a_migration_that_is_killed_changes_nothing_and_is_done_by_the_next(new_database: str) -> None:
    """Whichever of its statements it was at; every row is there before and after, and a second one does nothing."""
    statements = [each for each in OURS[0].text.split(";\n") if each.strip()]
    await restore(new_database)
    async with connected(new_database) as other:
        before = await contents(other, old=True)
        assert all(before.values()), "every table has rows"
        for done in range(1, len(statements)):
            killed = "SELECT pg_terminate_backend(pg_backend_pid())"
            text = ";\n".join([*statements[:done], killed])
            async with connected(new_database) as connection:
                with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                    await migrate(connection, [OURS[0]._replace(text=text)])
            assert await read_format(other) == (FIRST, list(OURS))
            assert await contents(other, old=True) == before
        assert await migrate(other) == list(OURS)
        assert await migrate(other) == []
        assert await contents(other) == before


async def test_the_home_of_several_databases_knows_how_many_there_are(new_database: str) -> None:
    await restore(new_database)
    async with connected(new_database) as connection:
        for name, value in (("store", b"id"), ("store_place", b"0"), ("store_places", b"3")):
            await connection.execute("INSERT INTO mq.meta VALUES ($1, $2)", name, value)
        await migrate(connection)
        rows = await connection.fetch("SELECT * FROM mq.database")
        assert [tuple(row) for row in rows] == [(1, None, False), (2, None, False)]
        assert await connection.fetchval("SELECT count(*) FROM mq.setting WHERE name = 'store_places'") == 0


@pytest.fixture
def migrated(new_database: str) -> Iterator[PostgresHost]:
    async def prepare() -> None:
        await restore(new_database)
        async with connected(new_database) as connection:
            await migrate(connection)
            await connection.execute(_CLOCK + _UNGUARDED)

    asyncio.run(prepare())
    options = PostgresOptions(purge_pause_s=0, queue_name_pause_s=60, event_log="closed", listens=False)
    host = PostgresHost(new_database, options=options, clock=VirtualClock(recorded()[0]["now_ms"]))
    yield host
    host.check()
    host.close()


def test_messages_groups_and_claims_go_on(migrated: PostgresHost) -> None:
    """Leases, counts, receipts, attempts, duplicates, delays, fair groups, dead letters and what is claimed."""
    said = recorded()[0]
    for queue, counts in said["counts"].items():
        if not queue.endswith(("/in", "/dead", "/read")):  # which go on by themselves
            assert list(migrated.counts(queue)) == counts, queue
    assert migrated.bodies(2) == ["soon", "b"]
    states = [migrated.delete(receipt)[0] for _, receipt, _ in said["leases"]]
    assert states == [ReceiptState.LIVE, ReceiptState.SUPERSEDED, ReceiptState.LIVE]
    fifo = QUEUE + ".fifo"
    migrated.do(commands.Send(queue=fifo, messages=(message("a3", group="a", dedup_id="a3"),)))
    again = migrated.do(commands.Receive(queue=fifo, count=1, attempt_id="x", timeout_s=30)).messages
    assert [each.body for each in again] == [body for body, _ in said["attempt"]]
    assert migrated.bodies(10, queue=fifo) == ["b1", "b2"]
    assert migrated.bodies(10, queue="000000000000/fair") == ["x2", "y0", "y1", "y2"]
    page = migrated.do(claims.ReadClaim(queue="000000000000/in.fifo", source="s", number=1, shard=0))
    other = migrated.do(claims.ReadClaim(queue="000000000000/in.fifo", source="s", number=1, shard=1))
    assert sorted(each.body for each in (*page.messages, *other.messages)) == ["g0", "g1"]
    migrated.do(claims.ReleaseClaim(queue="000000000000/read", source="s", number=2))
    migrated.advance(50_000)
    assert migrated.bodies(1, queue="000000000000/late.fifo") == ["slow"]
    assert migrated.counts("000000000000/read") == (18, 0, 0)
    assert "later" in migrated.bodies(10)


def test_what_goes_on_by_itself_goes_on(migrated: PostgresHost) -> None:
    """Publications, move tasks, cooldowns, events and late deletes, topics and what waits to be pushed, settings."""
    said = recorded()[0]
    inbox, queue = "000000000000/in", said["events_queue"]
    assert migrated.engine.token_key.hex() == said["token_key"]
    assert migrated.do(ShowAccount(account="a")).logging_bucket == "b"
    assert migrated.do(commands.ShowQueue(queue=QUEUE)).settings.tags == {"team": "red"}
    with pytest.raises(QueueDeletedRecently):
        migrated.create("000000000000/gone")
    (task,) = migrated.do(commands.ListMoves(source="000000000000/dead"))
    assert (task.id.hex(), task.status) == (said["move"], MoveStatus.RUNNING)
    while migrated.do(Publish(queue=inbox, writer="w", batch=1, attempts=(("a", 30),))).more:
        migrated.advance(1_000)
    assert migrated.counts(inbox)[0] == 30
    (writer,) = migrated.do(ListWriters(queue=inbox))
    assert (writer.batch, writer.staged) == (1, 2)
    assert migrated.bodies(1, queue=push_queue("000000000000/news", "s")) == ["n"]
    planned = migrated.do(PlanExport(events_max=2))
    assert [planned.first, planned.last] == said["planned"]
    before = numbered(migrated)
    assert said["fresh"] in [event.message_id.hex() for _, event in before]
    migrated.delete(*(said["ends"][body][0] for body in ("late", "gone", "held")), queue=queue)
    added = {event.message_id.hex(): event.outcome for _, event in numbered(migrated)[len(before) :]}
    late = {said["ends"][body][1]: Outcome.LATE_DELETED for body in ("late", "gone")}
    assert {each: added.get(each) for each in late} == late
    assert added[said["ends"]["held"][1]] is Outcome.DELETED


# A database that was migrated is in every catalog as a new one is.


VACUUMED_AS_OTHERS_ARE = {"part"}
"""Begins with a partition, but has one row for each."""

CATALOGS = {
    "tables": """
        SELECT relname, relkind, relpersistence, relreplident, reloptions FROM pg_class
        WHERE relnamespace = 'mq'::regnamespace""",
    "columns": """
        SELECT relname, row_number() OVER (PARTITION BY attrelid ORDER BY attnum), attname,
            format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated, attcollation::regcollation::text,
            attstorage, attcompression, pg_get_expr(adbin, adrelid)
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = 'mq'::regnamespace AND relkind IN ('r', 'c') AND attnum > 0 AND NOT attisdropped""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'mq'::regnamespace AND contype <> 'n'""",
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'mq'",
    "functions": """
        SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'mq'::regnamespace""",
    "triggers": """
        SELECT pg_get_triggerdef(pg_trigger.oid) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = 'mq'::regnamespace AND NOT tgisinternal""",
    "types": """
        SELECT typname, typtype FROM pg_type
        WHERE typnamespace = 'mq'::regnamespace""",
}
ROWS_THAT_LIVE_SECONDS = """
SELECT relname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum = 1 AND attname = 'qp'
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relpersistence = 'p'
    AND NOT coalesce(reloptions, '{}') @> '{autovacuum_vacuum_scale_factor=0}'
"""


async def catalogs(url: str) -> dict[str, set[tuple[Any, ...]]]:
    """Migrate a database; return what there is in its schema."""
    async with connected(url) as connection:
        await migrate(connection)
        return {
            name: {tuple(map(_plain, row)) for row in await connection.fetch(query)} for name, query in CATALOGS.items()
        }


def _plain(value: Any) -> Any:
    return tuple(sorted(value)) if isinstance(value, list) else value


def test_the_scripts_lead_to_the_schema(postgres_url: str) -> None:
    with making_database(postgres_url) as new, making_database(postgres_url) as old:
        asyncio.run(restore(old))
        migrated, made = asyncio.run(catalogs(old)), asyncio.run(catalogs(new))
    for name in CATALOGS:
        assert migrated[name] - made[name] == set(), f"schema.sql and functions.sql lack {name}"
        assert made[name] - migrated[name] == set(), f"the scripts of migrations lack {name}"
        assert made[name]


def test_hot_tables_are_vacuumed_by_the_number_of_rows(postgres_url: str) -> None:
    """A share of a million rows is too many: a table that begins with qp sets its own threshold."""

    async def look() -> set[str]:
        async with connected(postgres_url) as connection:
            return {name for (name,) in await connection.fetch(ROWS_THAT_LIVE_SECONDS)}

    assert asyncio.run(look()) <= VACUUMED_AS_OTHERS_ARE, "name it at the end of schema.sql, as mq.fifo_msg"


# The document names each table and column of both schemas, and nothing else.


MODEL = files("veilmq.store").joinpath("model.md").read_text(encoding="utf-8")
DIALECTS = {"SQLite", "PostgreSQL"}
COLUMNS = """
SELECT relname, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relname <> 'test_clock'
    AND attnum > 0 AND NOT attisdropped
"""
Column = tuple[str, str]

_HEADING = re.compile(r"^### `(\w+)`(?: \((\w+)\))?$", re.MULTILINE)
_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (\w*) ?\|", re.MULTILINE)


def described(dialect: str) -> list[Column]:
    _, *parts = _HEADING.split(MODEL)
    found = []
    for table, only, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        assert only is None or only in DIALECTS
        rows = _ROW.findall(text)
        assert all(place in {"", *DIALECTS} for _, place in rows), table
        assert len(rows) == len(re.findall(r"^\| `", text, re.MULTILINE)), table
        if only in {None, dialect}:
            found += [
                (table, name.strip("`"))
                for names, place in rows
                if place in {"", dialect}
                for name in names.split(", ")
            ]
    return found


def of_sqlite() -> set[Column]:
    connection = open_connection(None, EngineOptions())
    return {
        (str(table), str(column))
        for (table,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        for (column,) in connection.execute("SELECT name FROM pragma_table_xinfo(?)", (table,))
    }


async def of_postgres(url: str) -> set[Column]:
    async with connected(url) as connection:
        return {(table, column) for table, column in await connection.fetch(COLUMNS)}


def test_it_has_the_columns_of_sqlite() -> None:
    columns = described("SQLite")
    assert len(columns) == len(set(columns))
    assert set(columns) == of_sqlite()


def test_it_has_the_columns_of_postgresql(postgres_url: str) -> None:
    columns = described("PostgreSQL")
    assert len(columns) == len(set(columns))
    assert set(columns) == asyncio.run(of_postgres(postgres_url))

"""The PostgreSQL schema and its migrations, which keep all data of format 19; `store/model.md` and both schemas.

A database of format 19, the last before scripts and schema were unified, is recorded with every feature in use. The
first line of the recording has what its tests need: receipts, counts and their time.
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
    header, statements = gzip.decompress(_RECORDED.read_bytes()).decode().split("\n", 1)
    return json.loads(header.removeprefix("-- ")), statements


async def restore(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(recorded()[1])


SCRIPTS = all_scripts()
FIRST, LAST = SCRIPTS[0].number - 1, SCRIPTS[-1].number


def later_script(*, ends: int = 0, text: str = "CREATE TABLE mq.later ()") -> Script:
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


async def test_a_migration_is_applied_completely_or_not_at_all(new_database: str) -> None:
    async with connected(new_database) as connection:
        await migrate(connection)
        with pytest.raises(asyncpg.UndefinedTableError):
            await migrate(connection, [*SCRIPTS, later_script(), later_script(text="DROP TABLE mq.nothing")])
        assert await read_format(connection) == (LAST, [])
        assert await connection.fetchval("SELECT to_regclass('mq.later')") is None


async def test_a_node_works_with_additions_of_a_later_version(new_database: str) -> None:
    """Nodes are upgraded one after the other, and an older one may have to restart."""
    async with connected(new_database) as connection:
        await migrate(connection)
        assert await migrate(connection, [*SCRIPTS, later_script()], may_exclude_older_nodes=False) == [later_script()]
        assert await migrate(connection) == []
        await require(connection)


async def test_a_node_refuses_a_format_that_it_cannot_use(new_database: str) -> None:
    async with connected(new_database) as connection:
        await migrate(connection, [*SCRIPTS, later_script(ends=LAST + 1)])
        for do in (read_format, migrate, require):
            with pytest.raises(SchemaRefused, match=f"has format {LAST + 1}.*this one knows {LAST}: install a newer"):
                await do(connection)


async def test_no_node_excludes_older_nodes_by_starting(new_database: str) -> None:
    """Only an operator does that, after stopping them; an empty database excludes no node."""
    last = later_script(ends=LAST + 1)
    async with connected(new_database) as connection:
        await migrate(connection)
        with pytest.raises(SchemaRefused, match=r"Older servers cannot use.*stop them all, run `veilmq migrate`"):
            await migrate(connection, [*SCRIPTS, last], may_exclude_older_nodes=False)
        assert await migrate(connection, [*SCRIPTS, last]) == [last]
        await connection.execute("DROP SCHEMA mq CASCADE")
        assert await migrate(connection, [*SCRIPTS, last], may_exclude_older_nodes=False)


async def test_a_migration_is_refused_while_an_excluded_node_is_connected(new_database: str) -> None:
    """The database of format 19 does not change until the last node has stopped."""
    await restore(new_database)
    async with connected(new_database) as connection:
        node = await asyncpg.connect(new_database, server_settings={"application_name": "veilmq"})
        with pytest.raises(SchemaRefused, match=r"stop them all \(1 connections are open\), run `veilmq migrate`"):
            await migrate(connection)
        assert await read_format(connection) == (FIRST, list(SCRIPTS))
        node_pid = node.get_server_pid()
        await node.close()
        while await connection.fetchval("SELECT true FROM pg_stat_activity WHERE pid = $1", node_pid):
            pass  # the backend process ends after its connection
        assert await migrate(connection) == list(SCRIPTS)


async def test_a_migration_does_not_wait_for_a_table_in_use(new_database: str) -> None:
    """A waiting migration would block all other users of the table; nothing is migrated."""
    async with connected(new_database) as connection, connected(new_database) as other:
        await migrate(connection)
        async with other.transaction():
            await other.execute("SELECT FROM mq.queue")
            with pytest.raises(SchemaRefused, match="another session uses a table"):
                await migrate(connection, [*SCRIPTS, later_script(text="ALTER TABLE mq.queue ADD COLUMN later int")])
        assert await read_format(connection) == (LAST, [])


# A database of format 19.

TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relpersistence = 'p' AND relname <> 'migration'
"""
DROPPED = {"source": {"lost"}}  # columns that nothing reads
RENAMED = {"meta": "setting"}
EMPTY_ALONE = {"database"}  # has no rows with a single database


async def contents(connection: Any, *, old: bool = False) -> dict[str, list[Any]]:
    """Return the sorted rows of each table without column names; an old database gets the new table names."""
    found = {}
    for (table,) in await connection.fetch(TABLES):
        rows = await connection.fetch(f"SELECT * FROM mq.{table} AS each WHERE {OF_QUEUES}")
        kept = [[value for name, value in row.items() if name not in DROPPED.get(table, ())] for row in rows]
        found[RENAMED.get(table, table) if old else table] = sorted(kept, key=repr)
    return {table: rows for table, rows in found.items() if rows or table not in EMPTY_ALONE}


async def test_a_killed_migration_changes_nothing_and_can_be_repeated(new_database: str) -> None:
    """It is killed at each statement; every row is there before and after, and a second migration does nothing."""
    statements = [each for each in SCRIPTS[0].text.split(";\n") if each.strip()]
    await restore(new_database)
    async with connected(new_database) as other:
        before = await contents(other, old=True)
        assert all(before.values()), "every table has rows"
        for done in range(1, len(statements)):
            killed = "SELECT pg_terminate_backend(pg_backend_pid())"
            text = ";\n".join([*statements[:done], killed])
            async with connected(new_database) as connection:
                with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                    await migrate(connection, [SCRIPTS[0]._replace(text=text)])
            assert await read_format(other) == (FIRST, list(SCRIPTS))
            assert await contents(other, old=True) == before
        assert await migrate(other) == list(SCRIPTS)
        assert await migrate(other) == []
        assert await contents(other) == before


async def test_the_home_of_several_databases_gets_a_row_for_each(new_database: str) -> None:
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


def test_messages_groups_and_claims_continue_after_a_migration(migrated: PostgresHost) -> None:
    """Leases, counts, receipts, attempts, duplicates, delays, fair groups, dead letters, claimed messages."""
    header = recorded()[0]
    for queue, counts in header["counts"].items():
        if not queue.endswith(("/in", "/dead", "/read")):  # changed by background work
            assert list(migrated.counts(queue)) == counts, queue
    assert migrated.bodies(2) == ["soon", "b"]
    states = [migrated.delete(receipt)[0] for _, receipt, _ in header["leases"]]
    assert states == [ReceiptState.LIVE, ReceiptState.SUPERSEDED, ReceiptState.LIVE]
    fifo = QUEUE + ".fifo"
    migrated.do(commands.Send(queue=fifo, messages=(message("a3", group="a", dedup_id="a3"),)))
    repeated = migrated.do(commands.Receive(queue=fifo, count=1, attempt_id="x", timeout_s=30)).messages
    assert [each.body for each in repeated] == [body for body, _ in header["attempt"]]
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


def test_background_work_and_settings_continue_after_a_migration(migrated: PostgresHost) -> None:
    """Publications, move tasks, cooldowns, events, late deletes, topics, waiting pushes, settings."""
    header = recorded()[0]
    inbox, queue = "000000000000/in", header["events_queue"]
    assert migrated.engine.token_key.hex() == header["token_key"]
    assert migrated.do(ShowAccount(account="a")).logging_bucket == "b"
    assert migrated.do(commands.ShowQueue(queue=QUEUE)).settings.tags == {"team": "red"}
    with pytest.raises(QueueDeletedRecently):
        migrated.create("000000000000/gone")
    (task,) = migrated.do(commands.ListMoves(source="000000000000/dead"))
    assert (task.id.hex(), task.status) == (header["move"], MoveStatus.RUNNING)
    while migrated.do(Publish(queue=inbox, writer="w", batch=1, attempts=(("a", 30),))).more:
        migrated.advance(1_000)
    assert migrated.counts(inbox)[0] == 30
    (writer,) = migrated.do(ListWriters(queue=inbox))
    assert (writer.batch, writer.staged) == (1, 2)
    assert migrated.bodies(1, queue=push_queue("000000000000/news", "s")) == ["n"]
    planned = migrated.do(PlanExport(events_max=2))
    assert [planned.first, planned.last] == header["planned"]
    before = numbered(migrated)
    assert header["fresh"] in [event.message_id.hex() for _, event in before]
    migrated.delete(*(header["ends"][body][0] for body in ("late", "gone", "held")), queue=queue)
    outcomes = {event.message_id.hex(): event.outcome for _, event in numbered(migrated)[len(before) :]}
    late = {header["ends"][body][1]: Outcome.LATE_DELETED for body in ("late", "gone")}
    assert {each: outcomes.get(each) for each in late} == late
    assert outcomes[header["ends"]["held"][1]] is Outcome.DELETED


# A migrated database has the same catalogs as a new one.


VACUUMED_BY_DEFAULT = {"part"}  # starts with a partition, but has one row per partition

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
HOT_TABLES = """
SELECT relname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum = 1 AND attname = 'qp'
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relpersistence = 'p'
    AND NOT coalesce(reloptions, '{}') @> '{autovacuum_vacuum_scale_factor=0}'
"""


async def catalogs(url: str) -> dict[str, set[tuple[Any, ...]]]:
    """Migrate a database; return the contents of its schema."""
    async with connected(url) as connection:
        await migrate(connection)
        return {
            name: {tuple(map(_comparable, row)) for row in await connection.fetch(query)}
            for name, query in CATALOGS.items()
        }


def _comparable(value: Any) -> Any:
    return tuple(sorted(value)) if isinstance(value, list) else value


def test_the_migration_scripts_result_in_the_schema(postgres_url: str) -> None:
    with making_database(postgres_url) as new, making_database(postgres_url) as old:
        asyncio.run(restore(old))
        migrated, created = asyncio.run(catalogs(old)), asyncio.run(catalogs(new))
    for name in CATALOGS:
        assert migrated[name] - created[name] == set(), f"schema.sql and functions.sql lack {name}"
        assert created[name] - migrated[name] == set(), f"the scripts of migrations lack {name}"
        assert created[name]


def test_hot_tables_are_vacuumed_by_a_number_of_rows(postgres_url: str) -> None:
    """A fraction of a million rows would be too many; a table that starts with qp sets its own threshold."""

    async def tables() -> set[str]:
        async with connected(postgres_url) as connection:
            return {name for (name,) in await connection.fetch(HOT_TABLES)}

    assert asyncio.run(tables()) <= VACUUMED_BY_DEFAULT, "add it to the end of schema.sql, like mq.fifo_msg"


# The document has exactly the tables and columns of both schemas.


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


def documented_columns(dialect: str) -> list[Column]:
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


def sqlite_columns() -> set[Column]:
    connection = open_connection(None, EngineOptions())
    return {
        (str(table), str(column))
        for (table,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        for (column,) in connection.execute("SELECT name FROM pragma_table_xinfo(?)", (table,))
    }


async def postgres_columns(url: str) -> set[Column]:
    async with connected(url) as connection:
        return {(table, column) for table, column in await connection.fetch(COLUMNS)}


def test_the_model_has_the_columns_of_sqlite() -> None:
    columns = documented_columns("SQLite")
    assert len(columns) == len(set(columns))
    assert set(columns) == sqlite_columns()


def test_the_model_has_the_columns_of_postgresql(postgres_url: str) -> None:
    columns = documented_columns("PostgreSQL")
    assert len(columns) == len(set(columns))
    assert set(columns) == asyncio.run(postgres_columns(postgres_url))

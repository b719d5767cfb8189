"""The sum of the migrations is `schema.sql`, and every table whose rows live seconds is vacuumed by their number."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from scripts.postgres_schema import FILE, schema
from veilmq.engines.postgres.migrate import migrate

WHAT_TO_DO = "run `.venv/bin/python scripts/postgres_schema.py` and commit src/veilmq/engines/postgres/schema.sql"
VACUUMED_AS_OTHERS_ARE = {"part"}
"""Begins with a partition, but has one row for each."""

CATALOGS = {
    "tables": """
        SELECT relname, relkind, relpersistence, relreplident, reloptions FROM pg_class
        WHERE relnamespace = 'mq'::regnamespace""",
    "columns": """
        SELECT relname, attnum, attname, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
            attcollation::regcollation::text, attstorage, attcompression, pg_get_expr(adbin, adrelid)
        FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
            LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = 'mq'::regnamespace AND attnum > 0 AND NOT attisdropped""",
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = 'mq'::regnamespace""",
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
WHAT_MIGRATE_KEEPS = "CREATE TABLE mq.migration (number int PRIMARY KEY, ends int NOT NULL DEFAULT 0)"
ROWS_THAT_LIVE_SECONDS = """
SELECT relname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum = 1 AND attname = 'qp'
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relpersistence = 'p'
    AND NOT coalesce(reloptions, '{}') @> '{autovacuum_vacuum_scale_factor=0}'
"""


@asynccontextmanager
async def fresh(url: str, name: str) -> AsyncIterator[Any]:
    """Have a connection to an empty database for a while."""
    server = await asyncpg.connect(url)
    await server.execute(f"CREATE DATABASE {name}")
    connection = await asyncpg.connect(url, database=name)
    try:
        yield connection
    finally:
        await connection.close()
        await server.execute(f"DROP DATABASE {name}")
        await server.close()


async def catalogs(connection: Any) -> dict[str, set[tuple[Any, ...]]]:
    """Return what there is in the schema."""
    return {
        name: {tuple(map(_plain, row)) for row in await connection.fetch(query)} for name, query in CATALOGS.items()
    }


def _plain(value: Any) -> Any:
    return tuple(sorted(value)) if isinstance(value, list) else value


def test_the_sum_of_the_migrations_is_the_schema(postgres_url: str) -> None:
    """In every catalog: so whoever reads the one file knows what a database has."""

    async def look() -> tuple[dict[str, Any], dict[str, Any], str]:
        async with fresh(postgres_url, "migrated") as migrated, fresh(postgres_url, "installed") as installed:
            await migrate(migrated)
            await installed.execute(FILE.read_text(encoding="utf-8"))
            await installed.execute(WHAT_MIGRATE_KEEPS)
            return await catalogs(migrated), await catalogs(installed), await schema(migrated)

    migrated, installed, text = asyncio.run(look())
    for name in CATALOGS:
        assert migrated[name] - installed[name] == set(), f"schema.sql lacks {name}: {WHAT_TO_DO}"
        assert installed[name] - migrated[name] == set(), f"schema.sql has {name} too many: {WHAT_TO_DO}"
    assert all(migrated[name] for name in ("tables", "columns", "constraints", "indexes", "functions"))
    assert text == FILE.read_text(encoding="utf-8"), f"schema.sql says it otherwise: {WHAT_TO_DO}"


def test_hot_tables_are_vacuumed_by_the_number_of_rows(postgres_url: str) -> None:
    """A share of a million rows is too many: a table that begins with qp sets its own threshold."""

    async def look() -> set[str]:
        async with fresh(postgres_url, "vacuumed") as connection:
            await migrate(connection)
            return {name for (name,) in await connection.fetch(ROWS_THAT_LIVE_SECONDS)}

    assert asyncio.run(look()) <= VACUUMED_AS_OTHERS_ARE, "have its migration set what mq.fifo_msg has set"

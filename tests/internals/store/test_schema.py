"""A database that was migrated is in every catalog as a new one is; hot tables are vacuumed by the number of rows."""

import asyncio
from typing import Any

from tests.internals.store.format_19 import restore
from tests.store.postgres_host import connected, making_database
from veilmq.store.postgres.schema import migrate

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

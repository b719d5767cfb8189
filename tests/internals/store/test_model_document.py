"""`store/model.md` names each table and column of both schemas, and nothing else."""

import asyncio
import re
from importlib.resources import files

from tests.store.postgres_host import connected
from veilmq.store.sqlite.database import EngineOptions, open_connection

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
    """Return the columns that the document has of a dialect, by table."""
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
    """Return those of the schema."""
    connection = open_connection(None, EngineOptions())
    return {
        (str(table), str(column))
        for (table,) in connection.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        for (column,) in connection.execute("SELECT name FROM pragma_table_xinfo(?)", (table,))
    }


async def of_postgres(url: str) -> set[Column]:
    """Return those of a new database."""
    async with connected(url) as connection:
        return {(table, column) for table, column in await connection.fetch(COLUMNS)}


def test_it_has_the_columns_of_sqlite() -> None:
    """Each once."""
    columns = described("SQLite")
    assert len(columns) == len(set(columns))
    assert set(columns) == of_sqlite()


def test_it_has_the_columns_of_postgresql(postgres_url: str) -> None:
    """Each once."""
    columns = described("PostgreSQL")
    assert len(columns) == len(set(columns))
    assert set(columns) == asyncio.run(of_postgres(postgres_url))

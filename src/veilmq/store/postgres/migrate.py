"""The schema of a database: how a new one is made, and how one of an earlier version becomes that of this one.

A new database gets ``schema.sql``; one of an earlier version gets the scripts of ``migrations`` that it lacks, each
once, in order. Then both get ``functions.sql``, which replaces all functions. So a change of a table stands in
``schema.sql`` and in a script, and a change of a function in ``functions.sql``, with a script that raises the format.

Nodes of two versions may be at work on one database while the nodes are exchanged one after the other, so a script
leaves everything that older nodes use as they know it: it adds, and what is no longer needed goes with a later version.
A script that older nodes cannot live with says ``-- ends: N``: those that know fewer than N formats cannot work with
what it leaves. A node that starts applies the first kind by itself; the second kind is applied by ``veilmq migrate``
while no node is connected. Two that migrate together take turns. A node that finds a newer schema goes on unless the
scripts that made it say that it cannot.
"""

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import asyncpg

from veilmq.core.errors import VeilmqError

_SCRIPT = re.compile(r"(\d{3})_\w+\.sql")
_ENDS = re.compile(r"^-- ends: (\d{3})$", re.MULTILINE)
_TURN = 0x7665696C6D71  # "veilmq", the key of the advisory lock

_PREPARE = """
CREATE SCHEMA IF NOT EXISTS mq;
CREATE TABLE IF NOT EXISTS mq.migration (number int PRIMARY KEY, ends int NOT NULL DEFAULT 0);
"""
# A session that waits for a table holds up all that come after it, so none waits for long; and an index takes its time.
_PATIENCE = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '2s'"
_IS_THERE = "SELECT to_regclass('mq.migration') IS NOT NULL"
_FOUND = "SELECT coalesce(max(number), 0), coalesce(max(ends), 0) FROM mq.migration"
_APPLIED = "INSERT INTO mq.migration (number, ends) VALUES ($1, $2)"
_NODES = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'veilmq%' AND pid <> pg_backend_pid()
"""


class Script(NamedTuple):
    """A step to the format ``number``; nodes that know fewer than ``ends`` formats cannot work with what it leaves."""

    number: int
    name: str
    text: str
    ends: int


class Look(NamedTuple):
    """The format of the database, 0 without a schema, and what there is to apply."""

    found: int
    pending: list[Script]


class SchemaRefused(VeilmqError):
    """The database has a schema that this version cannot work with, or may not change."""


async def look(connection: Any, scripts: Sequence[Script] | None = None) -> Look:
    """Compare the schema with ``scripts`` (default: ours) and change nothing.

    Raises ``SchemaRefused`` for a format of a later version that this one cannot work with, and for one that is older
    than the first that was released.
    """
    scripts = scripts or all_scripts()
    if not await connection.fetchval(_IS_THERE):
        return Look(0, [_whole(scripts)])
    found, ends = await connection.fetchrow(_FOUND)
    first, last = scripts[0].number - 1, scripts[-1].number
    if ends > last:
        raise SchemaRefused(
            f"The database has format {found}, which needs a version of veilmq that knows {ends}; this one knows "
            f"{last}: install a newer one."
        )
    if 0 < found < first:
        raise SchemaRefused(
            f"The database has format {found}, which was never released; this version migrates format {first} and "
            "later ones: use a new database."
        )
    return Look(found, [script for script in scripts if script.number > found] if found else [_whole(scripts)])


async def migrate(
    connection: Any, scripts: Sequence[Script] | None = None, *, ending_older_nodes: bool = True
) -> list[Script]:
    """Bring the schema up to date, all of it or nothing; return what was applied. Raises ``SchemaRefused``.

    That is also when a table is in use for long, and when nodes of the version that made the schema could not go on:
    always where ``ending_older_nodes`` is false, and while one is connected where it is true.
    """
    if not (await look(connection, scripts)).pending:
        return []
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _TURN)
            await connection.execute(_PATIENCE)
            await connection.execute(_PREPARE)
            found, pending = await look(connection, scripts)
            ending = [script.name for script in pending if 0 < found < script.ends]
            if ending:
                await _refuse_ends(connection, found, ending[0], may_end=ending_older_nodes)
            for script in pending:
                await connection.execute(script.text)
                await connection.execute(_APPLIED, script.number, script.ends)
            if pending:
                await connection.execute(_text("functions.sql"))
    except asyncpg.LockNotAvailableError as error:
        raise SchemaRefused("Nothing was upgraded: another session uses a table of the schema; try again.") from error
    return pending


async def require(connection: Any) -> None:
    """Raise ``SchemaRefused`` unless the schema has all that this version needs."""
    found, pending = await look(connection)
    if pending:
        raise SchemaRefused(
            f"The database has format {found}, this version needs {pending[-1].number}: run `veilmq migrate`, or start "
            "a server without no_migrate."
        )


async def _refuse_ends(connection: Any, found: int, name: str, *, may_end: bool) -> None:
    nodes = await connection.fetchval(_NODES) if may_end else 0
    if nodes or not may_end:
        raise SchemaRefused(
            f"The upgrade {name} ends what older servers can do with this database (format {found}): stop them all"
            f"{f' ({nodes} connections are open)' if nodes else ''}, run `veilmq migrate`, and start again."
        )


@cache
def all_scripts() -> tuple[Script, ...]:
    """Return every script of this version, in order."""
    folder = files(__package__).joinpath("migrations")
    named = [(match, entry) for entry in folder.iterdir() if (match := _SCRIPT.fullmatch(entry.name)) is not None]
    return tuple(sorted(_read(int(match[1]), entry) for match, entry in named))


def _read(number: int, entry: Any) -> Script:
    text = entry.read_text(encoding="utf-8")
    ends = _ENDS.search(text)
    return Script(number, entry.name.removesuffix(".sql"), text, 0 if ends is None else int(ends[1]))


def _whole(scripts: Sequence[Script]) -> Script:
    """Return what makes a new database, which is all that ``scripts`` lead to."""
    return Script(scripts[-1].number, "schema", _text("schema.sql"), max(script.ends for script in scripts))


def _text(file: str) -> str:
    return files(__package__).joinpath(file).read_text(encoding="utf-8")

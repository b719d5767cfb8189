"""The schema and its history: numbered scripts, each applied once, in order.

Nodes of two versions may be at work on one database while the nodes are exchanged one after the other, so a script
leaves everything that older nodes use as they know it: it adds, and what is no longer needed goes with a later version.
A script that older nodes cannot live with says ``-- ends: N``: those that know fewer than N scripts cannot work with
what it leaves. A node that starts applies the first kind by itself; the second kind is applied by ``veilmq migrate``,
when the older nodes have been stopped. Two that upgrade together take turns. A node that finds a newer schema goes on
unless the scripts that made it say that it cannot.
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
# Whoever waits for a table keeps all that come after from it, so nobody waits for long; and an index takes its time.
_PATIENCE = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '2s'"
_IS_THERE = "SELECT to_regclass('mq.migration') IS NOT NULL"
_FOUND = "SELECT coalesce(max(number), 0), coalesce(max(ends), 0) FROM mq.migration"
_APPLIED = "INSERT INTO mq.migration (number, ends) VALUES ($1, $2)"


class Script(NamedTuple):
    """One step; nodes that know fewer than ``ends`` scripts cannot work with what it leaves."""

    number: int
    name: str
    text: str
    ends: int


class Look(NamedTuple):
    """The number of the last script that was applied, and what there is to apply."""

    found: int
    pending: list[Script]


class SchemaRefused(VeilmqError):
    """The database has a schema that this version cannot work with, or may not change."""


async def look(connection: Any, scripts: Sequence[Script] | None = None) -> Look:
    """Compare the schema with ``scripts`` (default: ours) and change nothing; raises ``SchemaRefused``.

    That is when it was made by a later version and this one cannot work with it.
    """
    scripts = scripts or all_scripts()
    if not await connection.fetchval(_IS_THERE):
        return Look(0, list(scripts))
    found, ends = await connection.fetchrow(_FOUND)
    known = scripts[-1].number
    if ends > known:
        raise SchemaRefused(
            f"The database has format {found}, which needs a version of veilmq that knows {ends}; this one knows "
            f"{known}: install a newer one."
        )
    return Look(found, [script for script in scripts if script.number > found])


async def migrate(
    connection: Any, scripts: Sequence[Script] | None = None, *, ending_older_nodes: bool = True
) -> list[Script]:
    """Bring the schema up to date, all of it or nothing; return what was applied. Raises ``SchemaRefused``.

    That is also when a table is in use for long, and, where ``ending_older_nodes`` is false, when nodes of the version
    that made the schema could not go on.
    """
    if not (await look(connection, scripts)).pending:
        return []
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _TURN)
            await connection.execute(_PATIENCE)
            await connection.execute(_PREPARE)
            found, pending = await look(connection, scripts)
            if not ending_older_nodes:
                _refuse_ends(found, pending)
            for script in pending:
                await connection.execute(script.text)
                await connection.execute(_APPLIED, script.number, script.ends)
    except asyncpg.LockNotAvailableError as error:
        raise SchemaRefused("Nothing was upgraded: somebody else uses a table of the schema; try again.") from error
    return pending


async def require(connection: Any) -> None:
    """Raise ``SchemaRefused`` unless the schema has all that this version needs."""
    found, pending = await look(connection)
    if pending:
        raise SchemaRefused(
            f"The database has format {found}, this version needs {pending[-1].number}: run `veilmq migrate`, or start "
            "a server without no_migrate."
        )


def _refuse_ends(found: int, pending: Sequence[Script]) -> None:
    for script in pending:
        if 0 < found < script.ends:
            raise SchemaRefused(
                f"The upgrade {script.name} ends what older servers can do with this database (format {found}): stop "
                "them all, run `veilmq migrate`, and start again."
            )


@cache
def all_scripts() -> tuple[Script, ...]:
    """Return every script of this version, in order."""
    folder = files("veilmq.engines.postgres").joinpath("migrations")
    named = [(match, entry) for entry in folder.iterdir() if (match := _SCRIPT.fullmatch(entry.name)) is not None]
    return tuple(sorted(_read(int(match[1]), entry) for match, entry in named))


def _read(number: int, entry: Any) -> Script:
    text = entry.read_text(encoding="utf-8")
    ends = _ENDS.search(text)
    return Script(number, entry.name.removesuffix(".sql"), text, 0 if ends is None else int(ends[1]))

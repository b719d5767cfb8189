"""What a database has to be: its schema, how durable commits are there, and what the doctor finds in it.

A new database gets ``store/schema.sql`` and ``schema.sql``; one of an earlier version gets the scripts of
``migrations`` that it lacks, each once, in order. Then both get ``functions.sql``, which replaces all functions. So a
change of a table stands in a schema and in a script, and a change of a function in ``functions.sql``, with a script
that raises the format.

Nodes of two versions may be at work on one database while they are exchanged, so a script leaves everything that older
nodes use as they know it. A script that older nodes cannot live with says ``-- ends: N``: those that know fewer than N
formats cannot work with what it leaves. A node that starts applies the first kind by itself; ``veilmq migrate`` applies
the second kind while no node is connected. A node that finds a newer schema goes on unless the scripts that made it say
that it cannot.

A durable connection commits as the operator has set, which may be more than the usual (``remote_apply``) or a bargain
with standbys (``remote_write``), and raises what would wait for less than the disk of the server and its synchronous
standbys (``off``, ``local``). A relaxed one waits for nothing: what it changes is in the log of the server within about
half a second. A durable commit makes everything durable that was committed before it.

The doctor changes nothing and may run beside nodes: it checks the invariants of ``doctor.sql`` in one snapshot.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, Self

import asyncpg

from veilmq.core.errors import VeilmqError
from veilmq.store.named_queries import load, schema
from veilmq.store.port import Finding, Report

SQL = load("veilmq.store.postgres", "durability.sql")

_SCRIPT = re.compile(r"(\d{3})_\w+\.sql")
_ENDS = re.compile(r"^-- ends: (\d{3})$", re.MULTILINE)
_TURN = 0x7665696C6D71  # "veilmq", the key of the advisory lock

_PREPARE = """
CREATE SCHEMA IF NOT EXISTS mq;
CREATE TABLE IF NOT EXISTS mq.migration (number int PRIMARY KEY, ends int NOT NULL DEFAULT 0);
"""
# A session that waits for a table holds up all that come after it, so none waits for long; and an index takes its time.
_PATIENCE = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '2s'"
_WORDS = {
    "id": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "name": 'text COLLATE "C"',
    "number": "bigint",
    "bytes": "bytea",
    "keyed": "",
}
_FOUND = "SELECT coalesce(max(number), 0), coalesce(max(ends), 0) FROM mq.migration"
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


class SchemaRefused(VeilmqError):
    """The database has a schema that this version cannot work with, or may not change."""


async def read_format(connection: Any, scripts: Sequence[Script] | None = None) -> tuple[int, list[Script]]:
    """Return the format of the database, 0 without a schema, and which of ``scripts`` (default: ours) it lacks.

    Raises ``SchemaRefused`` for a format of a later version that this one cannot work with, and for one that is older
    than the first that was released.
    """
    scripts = scripts or all_scripts()
    if not await connection.fetchval("SELECT to_regclass('mq.migration') IS NOT NULL"):
        return 0, [_whole(scripts)]
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
    return found, [script for script in scripts if script.number > found] if found else [_whole(scripts)]


async def migrate(
    connection: Any, scripts: Sequence[Script] | None = None, *, ending_older_nodes: bool = True
) -> list[Script]:
    """Bring the schema up to date, all of it or nothing; return what was applied. Raises ``SchemaRefused``.

    That is also when a table is in use for long, and when nodes of the version that made the schema could not go on:
    always where ``ending_older_nodes`` is false, and while one is connected where it is true.
    """
    if not (await read_format(connection, scripts))[1]:
        return []
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _TURN)
            await connection.execute(_PATIENCE)
            await connection.execute(_PREPARE)
            found, pending = await read_format(connection, scripts)
            ending = next((script.name for script in pending if 0 < found < script.ends), None)
            nodes = await connection.fetchval(_NODES) if ending and ending_older_nodes else 0
            if ending and (nodes or not ending_older_nodes):
                open_ones = f" ({nodes} connections are open)" if nodes else ""
                raise SchemaRefused(
                    f"Older servers cannot use this database (format {found}) after the upgrade {ending}: stop "
                    f"them all{open_ones}, run `veilmq migrate`, and start again."
                )
            for script in pending:
                await connection.execute(script.text)
                await connection.execute("INSERT INTO mq.migration VALUES ($1, $2)", script.number, script.ends)
            if pending:
                await connection.execute(_text("functions.sql"))
    except asyncpg.LockNotAvailableError as error:
        raise SchemaRefused("Nothing was upgraded: another session uses a table of the schema; try again.") from error
    return pending


async def require(connection: Any) -> None:
    """Raise ``SchemaRefused`` unless the schema has all that this version needs."""
    found, pending = await read_format(connection)
    if pending:
        raise SchemaRefused(
            f"The database has format {found}, this version needs {pending[-1].number}: run `veilmq migrate`, or start "
            "a server without no_migrate."
        )


@cache
def all_scripts() -> tuple[Script, ...]:
    """Return every script of this version, in order."""
    scripts = []
    for entry in files(__package__).joinpath("migrations").iterdir():
        if (match := _SCRIPT.fullmatch(entry.name)) is not None:
            text = entry.read_text(encoding="utf-8")
            ends = _ENDS.search(text)
            number, name = int(match[1]), entry.name.removesuffix(".sql")
            scripts.append(Script(number, name, text, 0 if ends is None else int(ends[1])))
    return tuple(sorted(scripts))


def _whole(scripts: Sequence[Script]) -> Script:
    """Return what makes a new database, which is all that ``scripts`` lead to."""
    text = "SET LOCAL search_path TO mq;\n" + schema(__package__, **_WORDS)
    return Script(scripts[-1].number, "schema", text, max(script.ends for script in scripts))


def _text(file: str) -> str:
    return files(__package__).joinpath(file).read_text(encoding="utf-8")


RELAXED = {"synchronous_commit": "off"}
"""The settings of relaxed connections, beside those that all have."""


class Durability(StrEnum):
    """What a crash of the database may undo; acknowledged sends never are.

    ``STRICT``: nothing that was acknowledged. ``STANDARD``: receives, changes of visibility and deletes of the last
    moment on standard queues; everything else waits as under ``STRICT``.
    """

    STRICT = "strict"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What is waited for on one server: ``waits`` and ``set_to`` are levels of ``synchronous_commit``.

    ``waits`` is that of durable connections, ``set_to`` what the operator has set; ``standbys`` are the synchronous
    ones as he named them, empty for none.
    """

    mode: Durability
    waits: str
    set_to: str
    standbys: str
    fsync: bool
    full_page_writes: bool

    @classmethod
    async def of(cls, connection: Any, mode: Durability) -> Self:
        """Ask the server of ``connection``, a durable one."""
        return cls(mode=mode, **await connection.fetchrow(SQL["promise"]))

    def __str__(self) -> str:
        """Name the mode, and what it means here."""
        where = f"here and on standbys ({self.standbys})" if self.standbys else "here, without waiting for a standby"
        text = f"{self.mode}: commits are durable {where} (synchronous_commit {self.waits})"
        if self.mode is Durability.STRICT:
            return text
        return f"{text}; receives, changes and deletes of standard queues may be undone by a crash of the database"

    @property
    def doubts(self) -> list[str]:
        """Return what the server is set to that the promise cannot be kept with, each with what to do."""
        harm = {"fsync": "lose everything", "full_page_writes": "ruin pages"}
        doubts = [
            f"{name} is off: a crash of the server's machine may {what}; ALTER SYSTEM SET {name} = on"
            for name, what in harm.items()
            if not getattr(self, name)
        ]
        if self.set_to != self.waits:
            doubts.append(
                f"synchronous_commit is {self.set_to} for this database or role: veilmq commits with {self.waits} "
                f"nevertheless; set it to {self.waits}, or run with the durability {Durability.STANDARD}"
            )
        return doubts


CHECKS = load("veilmq.store.postgres", "doctor.sql")
"""What is checked: queries that tell how many rows break it, and an example."""
_VERSION_MIN = 150_000
CONNECT_S = 5.0
"""How long to wait for a connection."""


async def examine(connection: Any, *, durability: Durability) -> Report:
    """Check the database; ``durability`` is that of the servers. Raises ``SchemaRefused`` and what ``asyncpg`` does."""
    promise = await Promise.of(connection, durability)
    version, standby, autovacuum = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('autovacuum')::bool"
    )
    asleep = "autovacuum is off, and tables grow for ever: ALTER SYSTEM SET autovacuum = on"
    found, pending = await read_format(connection)
    known, remedy = all_scripts()[-1].number, "run `veilmq migrate`, or start a server"
    lacks = f"it has {found}, this version needs {known}: {remedy}"
    of_server = {
        "the server is of a version that is supported": ""
        if version >= _VERSION_MIN
        else "its version is older than 15, which is not supported",
        "the server is the primary": "it is a standby" if standby else "",
        "autovacuum is on": "" if autovacuum else asleep,
        "what is acknowledged is durable": "; ".join(promise.doubts),
    }
    if not found:
        return Report(findings(of_server | {"there is a schema": remedy}), {})
    of_schema = {"the schema has all that this version needs": lacks if pending else ""}
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        of_rows = await invariants(connection)
        facts = dict(await connection.fetchrow(SQL["facts"]))
    return Report([*findings(of_server | of_schema), *of_rows], facts | {"durability": str(promise)})


async def invariants(connection: Any) -> list[Finding]:
    """Return whether what the database has agrees with itself."""
    details = {}
    for check, query in CHECKS.items():
        count, example = await connection.fetchrow(query)
        details[check] = f"{count} rows break this, the first at {example}" if count else ""
    return findings(details)


def findings(details: Mapping[str, str]) -> list[Finding]:
    """Return what was found of each check: nothing where it holds."""
    return [Finding(check, ok=not detail, detail=detail) for check, detail in details.items()]

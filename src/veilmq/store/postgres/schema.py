"""The schema of a database and its migration, the durability of commits, and the checks of the doctor.

A new database gets ``store/schema.sql`` and ``schema.sql``; an older one gets the missing scripts of ``migrations``, in
order. Then both get ``functions.sql``, which replaces all functions. So a change of a table stands in a schema and a
script; a change of a function in ``functions.sql``, with a script that raises the format.

During a rolling upgrade, nodes of two versions use one database. A script that older nodes cannot live with contains
``-- ends: N``: nodes that know fewer than N formats cannot use the result. A starting node applies the other scripts;
``veilmq migrate`` applies all, while no node is connected.

Durable connections use the operator's ``synchronous_commit`` (also ``remote_apply`` or ``remote_write``), but replace
``off`` and ``local``, which do not wait for the disks of the server and its synchronous standbys. Relaxed commits reach
the server's log within about half a second. A durable commit makes all earlier commits durable.

The doctor only reads, in one snapshot, and can run beside nodes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, Self

import asyncpg

from veilmq.core.errors import VeilmqError
from veilmq.store.named_queries import load, schema
from veilmq.store.port import Finding, Report, findings

SQL = load("veilmq.store.postgres", "durability.sql")
CONNECT_S = 5.0
"""Timeout of an attempt to connect."""
_TIMEOUTS = ("idle_in_transaction_session_timeout", "idle_session_timeout", "lock_timeout", "statement_timeout")
SESSION = {**dict.fromkeys(_TIMEOUTS, "0"), "search_path": "mq"}
"""Settings of every connection, which replace those of the role and of the database."""

_SCRIPT = re.compile(r"(\d{3})_\w+\.sql")
_ENDS = re.compile(r"^-- ends: (\d{3})$", re.MULTILINE)
_MIGRATION_LOCK = 0x7665696C6D71  # "veilmq", the key of the advisory lock

_PREPARE = """
CREATE SCHEMA IF NOT EXISTS mq;
CREATE TABLE IF NOT EXISTS mq.migration (number int PRIMARY KEY, ends int NOT NULL DEFAULT 0);
"""
# A session that waits for a table lock blocks all later ones, so the wait is short; an index may take long.
_WAIT_BRIEFLY = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '2s'"
_DIALECT = {
    "id": "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
    "name": 'text COLLATE "C"',
    "number": "bigint",
    "bytes": "bytea",
    "keyed": "",
}
_READ_FORMAT = "SELECT coalesce(max(number), 0), coalesce(max(ends), 0) FROM mq.migration"


class Script(NamedTuple):
    """A migration to the format ``number``; nodes that know fewer than ``ends`` formats cannot use the result."""

    number: int
    name: str
    text: str
    ends: int


class SchemaRefused(VeilmqError):
    """This version cannot use the schema of the database, or may not change it."""


async def connect(url: str, **settings: str) -> "asyncpg.Connection[Any]":
    """Open a connection for a command of an operator, without timeouts of statements."""
    return await asyncpg.connect(url, timeout=CONNECT_S, server_settings=SESSION | settings)


async def read_format(connection: Any, scripts: Sequence[Script] | None = None) -> tuple[int, list[Script]]:
    """Return the format of the database (0 without a schema) and the missing ``scripts`` (default: this version's).

    Raises ``SchemaRefused`` for a later format that this version cannot use, and for one that was never released.
    """
    scripts = scripts or all_scripts()
    if not await connection.fetchval("SELECT to_regclass('mq.migration') IS NOT NULL"):
        if (encoding := await connection.fetchval("SHOW server_encoding")) not in ("UTF8", "SQL_ASCII"):
            raise SchemaRefused(f"Its encoding {encoding} lacks characters of messages: create one with UTF8.")
        return 0, [_schema_script(scripts)]
    found, ends = await connection.fetchrow(_READ_FORMAT)
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
    return found, [script for script in scripts if script.number > found] if found else [_schema_script(scripts)]


async def migrate(
    connection: Any, scripts: Sequence[Script] | None = None, *, may_exclude_older_nodes: bool = True
) -> list[Script]:
    """Upgrade the schema in one transaction; return the applied scripts. Raises ``SchemaRefused``.

    A script that excludes older nodes requires ``may_exclude_older_nodes``, and that no node is connected. No table may
    be locked for longer than two seconds.
    """
    if not (await read_format(connection, scripts))[1]:
        return []
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _MIGRATION_LOCK)
            await connection.execute(_WAIT_BRIEFLY)
            await connection.execute(_PREPARE)
            found, pending = await read_format(connection, scripts)
            excluding = next((script.name for script in pending if 0 < found < script.ends), None)
            nodes = await connection.fetchval(SQL["nodes"]) if excluding and may_exclude_older_nodes else 0
            if excluding and (nodes or not may_exclude_older_nodes):
                open_ones = f" ({nodes} connections are open)" if nodes else ""
                raise SchemaRefused(
                    f"Older servers cannot use this database (format {found}) after the upgrade {excluding}: stop "
                    f"them all{open_ones}, run `veilmq migrate`, and start again."
                )
            for script in pending:
                await connection.execute(script.text)
                await connection.execute("INSERT INTO mq.migration VALUES ($1, $2)", script.number, script.ends)
            if pending:
                await connection.execute(files(__package__).joinpath("functions.sql").read_text(encoding="utf-8"))
    except asyncpg.LockNotAvailableError as error:
        raise SchemaRefused("Nothing was upgraded: another session uses a table of the schema; try again.") from error
    return pending


async def require(connection: Any) -> None:
    """Raise ``SchemaRefused`` unless the schema is complete for this version."""
    found, pending = await read_format(connection)
    if pending:
        raise SchemaRefused(
            f"The database has format {found}, this version needs {pending[-1].number}: run `veilmq migrate`, or start "
            "a server without no_migrate."
        )


@cache
def all_scripts() -> tuple[Script, ...]:
    """Return the scripts of this version, in order."""
    scripts = []
    for entry in files(__package__).joinpath("migrations").iterdir():
        if (match := _SCRIPT.fullmatch(entry.name)) is not None:
            text = entry.read_text(encoding="utf-8")
            ends = _ENDS.search(text)
            number, name = int(match[1]), entry.name.removesuffix(".sql")
            scripts.append(Script(number, name, text, 0 if ends is None else int(ends[1])))
    return tuple(sorted(scripts))


def _schema_script(scripts: Sequence[Script]) -> Script:
    """Return the script that creates the schema of the last format."""
    text = "SET LOCAL search_path TO mq;\n" + schema(__package__, **_DIALECT)
    return Script(scripts[-1].number, "schema", text, max(script.ends for script in scripts))


class Durability(StrEnum):
    """Which acknowledged commands a crash of the database may undo; never sends.

    ``STRICT``: none. ``STANDARD``: the last receives, visibility changes and deletes on standard queues.
    """

    STRICT = "strict"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitDurability:
    """The durability of commits on one server."""

    mode: Durability
    waits: str  # synchronous_commit of durable connections
    set_to: str  # synchronous_commit of the operator
    standbys: str  # synchronous_standby_names
    fsync: bool
    full_page_writes: bool

    @classmethod
    async def of(cls, connection: Any, mode: Durability) -> Self:
        """Read it from the server of ``connection``, a durable one."""
        return cls(mode=mode, **await connection.fetchrow(SQL["commit_durability"]))

    def __str__(self) -> str:
        where = f"here and on standbys ({self.standbys})" if self.standbys else "here, without waiting for a standby"
        text = f"{self.mode}: commits are durable {where} (synchronous_commit {self.waits})"
        if self.mode is Durability.STRICT:
            return text
        return f"{text}; receives, changes and deletes of standard queues may be undone by a crash of the database"

    @property
    def warnings(self) -> list[str]:
        """Server settings that weaken the durability, each with its remedy."""
        damage = {"fsync": "lose everything", "full_page_writes": "ruin pages"}
        warnings = [
            f"{name} is off: a crash of the server's machine may {what}; ALTER SYSTEM SET {name} = on"
            for name, what in damage.items()
            if not getattr(self, name)
        ]
        if self.set_to != self.waits:
            warnings.append(
                f"synchronous_commit is {self.set_to} for this database or role: veilmq commits with {self.waits} "
                f"nevertheless; set it to {self.waits}, or run with the durability {Durability.STANDARD}"
            )
        return warnings


CHECKS = load("veilmq.store.postgres", "doctor.sql")
"""Queries that return the number of rows that break an invariant, and an example."""
_VERSION_MIN = 150_000


async def examine(connection: Any, *, durability: Durability) -> Report:
    """Check the database; ``durability`` is that of the servers. Raises ``SchemaRefused`` and errors of ``asyncpg``."""
    commits = await CommitDurability.of(connection, durability)
    version, standby, autovacuum = await connection.fetchrow(
        "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(), current_setting('autovacuum')::bool"
    )
    found, pending = await read_format(connection)
    known, remedy = all_scripts()[-1].number, "run `veilmq migrate`, or start a server"
    missing = f"it has {found}, this version needs {known}: {remedy}"
    server_checks = {
        "the version of the server is supported": "" if version >= _VERSION_MIN else "its version is older than 15",
        "the server is the primary": "it is a standby" if standby else "",
        "autovacuum is on": "" if autovacuum else "tables grow for ever: ALTER SYSTEM SET autovacuum = on",
        "acknowledged commits are durable": "; ".join(commits.warnings),
    }
    if not found:
        return Report(findings(server_checks | {"there is a schema": remedy}), {})
    schema_checks = {"the schema is complete for this version": missing if pending else ""}
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        row_checks = await invariants(connection)
        facts = dict(await connection.fetchrow(SQL["facts"]))
    return Report([*findings(server_checks | schema_checks), *row_checks], facts | {"durability": str(commits)})


async def invariants(connection: Any) -> list[Finding]:
    """Check the invariants of the stored data."""
    details = {}
    for check, query in CHECKS.items():
        count, example = await connection.fetchrow(query)
        details[check] = f"{count} rows break this, the first at {example}" if count else ""
    return findings(details)

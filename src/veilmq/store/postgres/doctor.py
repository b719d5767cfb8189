"""The doctor: looks at a database and what it is set to, and changes nothing.

It may run beside nodes: all invariants are checked in one snapshot. They stand in ``doctor.sql``, one query each.
"""

import re
from importlib.resources import files
from typing import Any

import asyncpg

from veilmq.engines.examination import Finding, Report
from veilmq.store.postgres.durability import Durability, Promise
from veilmq.store.postgres.migrate import all_scripts, look

_PART = re.compile(r"^-- (check|fact): (.+)$", re.MULTILINE)
_VERSION_MIN = 150_000
_CONNECT_S = 5.0


async def examine(url: str, *, durability: Durability) -> Report:
    """Check the database; ``durability`` is that of the servers. Raises ``SchemaRefused`` and what ``asyncpg`` does."""
    connection = await asyncpg.connect(url, timeout=_CONNECT_S)
    try:
        findings = await _settings(connection, durability)
        schema = await look(connection)
        if not schema.found:
            return Report([*findings, Finding("there is a schema", ok=False, detail=_MIGRATE)], {})
        findings.append(_schema(schema.found, len(schema.pending)))
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            findings += await invariants(connection)
            facts = {name: await connection.fetchval(query) for name, query in _queries("fact")}
        promise = await Promise.of(connection, durability)
        return Report(findings, facts | {"durability": str(promise)})
    finally:
        await connection.close()


_MIGRATE = "run `veilmq migrate`, or start a server"


def _schema(found: int, pending: int) -> Finding:
    known = all_scripts()[-1].number
    detail = f"it has {found}, this version needs {known}: {_MIGRATE}" if pending else ""
    return Finding("the schema has all that this version needs", ok=not pending, detail=detail)


async def _settings(connection: Any, durability: Durability) -> list[Finding]:
    version = await connection.fetchval("SELECT current_setting('server_version_num')::int")
    standby = await connection.fetchval("SELECT pg_is_in_recovery()")
    autovacuum = await connection.fetchval("SELECT current_setting('autovacuum')::bool")
    doubts = (await Promise.of(connection, durability)).doubts
    old = "" if version >= _VERSION_MIN else "its version is older than 15, which nobody has tried"
    asleep = "" if autovacuum else "autovacuum is off, and tables grow for ever: ALTER SYSTEM SET autovacuum = on"
    return [
        Finding("the server is of a version that is supported", ok=not old, detail=old),
        Finding("the server is the primary", ok=not standby, detail="it is a standby" if standby else ""),
        Finding("autovacuum is on", ok=autovacuum, detail=asleep),
        Finding("what is acknowledged is durable", ok=not doubts, detail="; ".join(doubts)),
    ]


async def invariants(connection: Any) -> list[Finding]:
    """Return whether what the database has agrees with itself."""
    return [await _invariant(connection, name, query) for name, query in _queries("check")]


async def _invariant(connection: Any, check: str, query: str) -> Finding:
    count, example = await connection.fetchrow(query)
    detail = f"{count} rows break this, the first at {example}" if count else ""
    return Finding(check=check, ok=not count, detail=detail)


def _queries(kind: str) -> list[tuple[str, str]]:
    text = files(__package__).joinpath("doctor.sql").read_text(encoding="utf-8")
    _, *parts = _PART.split(text)
    return [
        (name, query) for found, name, query in zip(parts[::3], parts[1::3], parts[2::3], strict=True) if found == kind
    ]

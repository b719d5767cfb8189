"""The doctor: opens a data folder read-only and checks every invariant of the store.

It may run beside a server that has the folder open: it reads one snapshot. What it checks stands in ``doctor.sql``,
one query an invariant; SQLite's own check of the file comes first.
"""

import re
from importlib.resources import files
from pathlib import Path

import apsw

from veilmq.engines.embedded.folder import DATABASE_NAME, FolderError, check_format
from veilmq.engines.examination import Finding, Report

_CHECK = re.compile(r"^-- name: (.+)$", re.MULTILINE)


def examine(folder: Path) -> Report:
    """Check the data folder and change nothing; raises ``FolderError`` when it has no veilmq database."""
    path = folder / DATABASE_NAME
    if not path.is_file():
        raise FolderError(f"{folder} has no {DATABASE_NAME}: name a data folder with --data.")
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        check_format(connection, str(path))
        connection.execute("BEGIN")  # one snapshot for all checks
        return _examine(connection)
    except apsw.Error as error:
        raise FolderError(f"{path} cannot be read as a database: {error}. Restore it from a copy.") from error


def _examine(connection: apsw.Connection) -> Report:
    findings = [_integrity(connection)]
    findings += [_invariant(connection, check, query) for check, query in _invariants()]
    return Report(findings=findings, facts=_facts(connection))


def _integrity(connection: apsw.Connection) -> Finding:
    problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(10)")]
    ok = problems == ["ok"]
    return Finding(check="the database file is sound", ok=ok, detail="" if ok else "; ".join(problems))


def _invariant(connection: apsw.Connection, check: str, query: str) -> Finding:
    ((count, example),) = connection.execute(query)
    detail = f"{count} rows break this, the first at {example}" if count else ""
    return Finding(check=check, ok=not count, detail=detail)


def _invariants() -> list[tuple[str, str]]:
    text = files(__package__).joinpath("doctor.sql").read_text(encoding="utf-8")
    _, *parts = _CHECK.split(text)
    return list(zip(parts[::2], parts[1::2], strict=True))


def _facts(connection: apsw.Connection) -> dict[str, str | int]:
    counts = {
        f"{table}s": connection.execute(f"SELECT count(*) FROM {table}").get
        for table in ("queue", "lane", "message", "lease")
    }
    size = connection.pragma("page_count") * connection.pragma("page_size")
    return {
        "format": connection.pragma("user_version"),
        **counts,
        "database_bytes": size,
        "free_bytes": connection.pragma("freelist_count") * connection.pragma("page_size"),
    }

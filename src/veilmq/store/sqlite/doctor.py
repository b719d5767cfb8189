"""The doctor: opens a data folder read-only and checks every invariant of the store.

It may run beside a server that has the folder open: it reads one snapshot. What it checks stands in ``doctor.sql``,
one query an invariant, behind the views that they share; SQLite's own check of the file comes first.

The folder of a server that was killed has a write-ahead log, or a rollback journal, that belongs to the database. It is
read along with it, and everything stays as it is: the next start recovers it, not the doctor.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

import apsw

from veilmq.store.port import Finding, Report
from veilmq.store.sqlite.folder import FolderError, check_format, database_of, is_in_use

_CHECK = re.compile(r"^-- name: (.+)$", re.MULTILINE)


def examine(folder: Path) -> Report:
    """Check the data folder and change nothing; raises ``FolderError`` when it has no veilmq database."""
    path = database_of(folder)
    while True:
        in_use, before = is_in_use(folder), _state(path)
        try:
            with _opened(path, in_use=in_use) as connection:
                check_format(connection, str(path))
                connection.execute("BEGIN")  # one snapshot for all checks
                report = _examine(connection)
        except apsw.Error as error:
            if in_use or _state(path) == before:
                raise FolderError(f"{path} cannot be read as a database: {error}. Restore it from a copy.") from error
        else:
            if in_use or _state(path) == before:  # else a server has begun to write meanwhile
                return report


def _beside(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}-journal"), path.with_name(f"{path.name}-wal")


def _state(path: Path) -> list[tuple[int, int] | None]:
    files_there = [file.stat() if file.is_file() else None for file in (path, *_beside(path))]
    return [None if found is None else (found.st_size, found.st_mtime_ns) for found in files_there]


@contextmanager
def _opened(path: Path, *, in_use: bool) -> Iterator[apsw.Connection]:
    """Open the database so that nothing in its folder is made, changed or removed."""
    journal, log = _beside(path)
    if not in_use and journal.is_file() and journal.stat().st_size:
        with _copied(path, journal, log) as copy, closing(apsw.Connection(str(copy))) as connection:
            yield connection
        return
    how = "mode=ro" if in_use else "mode=ro&immutable=1"
    if not in_use and log.is_file() and log.stat().st_size:
        how = "mode=ro&vfs=unix-none"  # no other process is there, and a reader cannot have the lock that is needed
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with closing(apsw.Connection(f"{path.absolute().as_uri()}?{how}", flags=flags)) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        if not in_use:
            connection.pragma("locking_mode", "EXCLUSIVE")  # the index of the log in memory, instead of a file
        yield connection


@contextmanager
def _copied(path: Path, *others: Path) -> Iterator[Path]:
    """Copy the database to where a journal can be rolled back; one has a journal only until its first start is done."""
    with TemporaryDirectory(prefix="veilmq-doctor-") as folder:
        try:
            for file in (path, *others):
                if file.is_file():
                    shutil.copy(file, folder)
        except OSError as error:
            raise FolderError(
                f"{path} has a journal to roll back, which needs a copy in {folder}: {error.strerror}. "
                f"Name a folder with enough space in TMPDIR."
            ) from error
        yield Path(folder) / path.name


def _examine(connection: apsw.Connection) -> Report:
    views, *checks = _CHECK.split(files(__package__).joinpath("doctor.sql").read_text(encoding="utf-8"))
    list(connection.execute(views))
    problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check(10)")]
    ok = problems == ["ok"]
    findings = [Finding(check="the database file is sound", ok=ok, detail="" if ok else "; ".join(problems))]
    for check, query in zip(checks[::2], checks[1::2], strict=True):
        ((count, example),) = connection.execute(query)
        detail = f"{count} rows break this, the first at {example}" if count else ""
        findings.append(Finding(check=check, ok=not count, detail=detail))
    return Report(findings=findings, facts=_facts(connection))


def _facts(connection: apsw.Connection) -> dict[str, str | int]:
    counts = {f"{table}s": connection.execute(f"SELECT count(*) FROM {table}").get for table in ("queue", "message")}
    page_bytes = connection.pragma("page_size")
    return {
        "format": connection.pragma("user_version"),
        **counts,
        "database_bytes": connection.pragma("page_count") * page_bytes,
        "free_bytes": connection.pragma("freelist_count") * page_bytes,
    }

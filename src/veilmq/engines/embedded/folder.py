"""The data folder: one database, one lock, one format.

A folder belongs to one process at a time. Its format is the number of upgrade scripts that were run on it (SQLite's
``user_version``); creating a folder is running them all. An older format is brought up in one transaction, a newer one
is refused.
"""

import fcntl
import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Self

import apsw
from filelock import FileLock, Timeout

from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.store import StoreError

APPLICATION_ID = 0x7665696C  # "veil"
DATABASE_NAME = "veilmq.db"
_LOCK_NAME = "veilmq.lock"
_OWNER_NAME = "veilmq.pid"


class FolderError(StoreError):
    """The data folder cannot be used; the text says why and what to do."""


class FolderLock:
    """The right to use a data folder, held until ``release``."""

    def __init__(self, folder: Path) -> None:
        """Make the folder if need be and lock it; raises ``FolderError`` when another process has it."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise FolderError(f"The data folder {folder} cannot be made: {error.strerror}.") from error
        self._lock = FileLock(folder / _LOCK_NAME, timeout=0)
        self._owner = folder / _OWNER_NAME
        try:
            self._lock.acquire()
        except Timeout:
            raise FolderError(_in_use(folder, self._owner)) from None
        except OSError as error:
            raise FolderError(f"The data folder {folder} cannot be written: {error.strerror}.") from error
        with suppress(OSError):  # only a hint for people, and the disk may be full
            self._owner.write_text(f"{os.getpid()}\n", encoding="ascii")

    @classmethod
    def of_source(cls, folder: Path) -> Self:
        """Lock a folder to copy from; raises ``FolderError`` also where it has no store: none is made."""
        if not (folder / DATABASE_NAME).is_file():
            raise FolderError(f"{folder} has no {DATABASE_NAME}: name a data folder with --from.")
        return cls(folder)

    def release(self) -> None:
        """Let others have the folder."""
        self._owner.unlink(missing_ok=True)
        self._lock.release()


def is_in_use(folder: Path) -> bool:
    """Tell whether a process has the folder; nothing in it is changed."""
    try:
        lock = os.open(folder / _LOCK_NAME, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(lock)


def _in_use(folder: Path, owner: Path) -> str:
    try:
        pid = owner.read_text(encoding="ascii").strip()
    except OSError:
        pid = "unknown"
    return f"The data folder {folder} is in use by process {pid}: stop it, or choose another folder with --data."


def open_journal(folder: Path | None, options: EngineOptions) -> Journal:
    """Open the folder's database in the current format, or one in memory; raises ``FolderError``."""
    where = ":memory:" if folder is None else str(folder / DATABASE_NAME)
    try:
        if folder is not None:
            os.close(os.open(where, os.O_RDWR | os.O_CREAT, 0o600))  # messages and the receipts' key are private
        connection = apsw.Connection(where, vfs=options.vfs)
    except (OSError, apsw.Error) as error:
        raise FolderError(f"{where} cannot be opened: {error}. Check the folder's rights and its disk.") from error
    try:
        bring_up_to_date(connection, where)
        return Journal(connection, options=options)
    except apsw.NotADBError:
        connection.close()
        raise FolderError(_foreign(where)) from None
    except apsw.Error as error:
        connection.close()
        raise FolderError(f"{where} cannot be used: {error}. `veilmq doctor` says what is wrong with it.") from error
    except BaseException:
        connection.close()
        raise


def bring_up_to_date(connection: apsw.Connection, where: str) -> None:
    """Create or upgrade the tables in one transaction; raises ``FolderError`` for what is not ours or newer."""
    scripts = _upgrades()
    if not _is_empty(connection):
        check_format(connection, where)
    else:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only before the first table
    version = connection.pragma("user_version")
    if version == len(scripts):
        return
    with connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        for script in scripts[version:]:
            list(connection.execute(script))  # to its end: apsw stops at each row
        connection.execute(f"PRAGMA user_version = {len(scripts)}")


def check_format(connection: apsw.Connection, where: str) -> None:
    """Raise ``FolderError`` unless the database is veilmq's and not newer than this version."""
    if connection.pragma("application_id") != APPLICATION_ID:
        raise FolderError(_foreign(where))
    version, ours = connection.pragma("user_version"), len(_upgrades())
    if version > ours:
        raise FolderError(
            f"{where} has format {version}, and this version of veilmq knows up to {ours}: install a newer veilmq."
        )


def _foreign(where: str) -> str:
    return f"{where} is not a veilmq database: choose another folder with --data."


def _is_empty(connection: apsw.Connection) -> bool:
    return not connection.execute("SELECT count(*) FROM sqlite_schema").get


def _upgrades() -> list[str]:
    scripts = sorted(
        (entry for entry in files(__package__).joinpath("upgrades").iterdir() if entry.name.endswith(".sql")),
        key=lambda entry: entry.name,
    )
    return [entry.read_text(encoding="utf-8") for entry in scripts]

"""The data folder: one database, one lock, one format.

A folder belongs to one process at a time. A newer format is refused.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import apsw
from filelock import FileLock, Timeout

from veilmq.store.port import StoreError
from veilmq.store.sqlite.options import EngineOptions

APPLICATION_ID = 0x7665696D
DATABASE_NAME = "store.db"
OLD_NAME = "veilmq.db"
"""The database of the engine before, which ``conversion`` takes over."""

_FORMAT = 1
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


def open_connection(folder: Path | None, options: EngineOptions) -> apsw.Connection:
    """Open the folder's database, or one in memory; raises ``FolderError``."""
    where = ":memory:" if folder is None else str(folder / DATABASE_NAME)
    try:
        if folder is not None:
            os.close(os.open(where, os.O_RDWR | os.O_CREAT, 0o600))  # messages and the receipts' key are private
        connection = apsw.Connection(where, vfs=options.vfs, statementcachesize=256)
    except (OSError, apsw.Error) as error:
        raise FolderError(f"{where} cannot be opened: {error}. Check the folder's rights and its disk.") from error
    try:
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else a new value may have a statement parsed anew
        _bring_up(connection, where)
    except apsw.NotADBError:
        connection.close()
        raise FolderError(_foreign(where)) from None
    except apsw.Error as error:
        connection.close()
        raise FolderError(f"{where} cannot be used: {error}. `veilmq doctor` says what is wrong with it.") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _bring_up(connection: apsw.Connection, where: str) -> None:
    """Make the tables of a new database in one transaction; raises ``FolderError`` for what is not ours or newer."""
    if connection.execute("SELECT count(*) FROM sqlite_schema").get:
        check_format(connection, where)
        return
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only before the first table
    with connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        list(connection.execute(files(__package__).joinpath("schema.sql").read_text(encoding="utf-8")))
        connection.execute(f"PRAGMA user_version = {_FORMAT}")


def check_format(connection: apsw.Connection, where: str) -> None:
    """Raise ``FolderError`` unless the database is veilmq's and not newer than this version."""
    if connection.pragma("application_id") != APPLICATION_ID:
        raise FolderError(_foreign(where))
    version = connection.pragma("user_version")
    if version > _FORMAT:
        raise FolderError(
            f"{where} has format {version}, and this version of veilmq knows up to {_FORMAT}: install a newer one."
        )


def _foreign(where: str) -> str:
    return f"{where} is not a veilmq database: choose another folder with --data."


def database_of(folder: Path, option: str = "--data") -> Path:
    """Return the path of the database of a folder that ``option`` names; raises ``FolderError`` where there is none."""
    path = folder / DATABASE_NAME
    if path.is_file():
        return path
    if (folder / OLD_NAME).is_file():
        raise FolderError(
            f"{folder} has {OLD_NAME}, which an earlier version made: start veilmq serve with it, which converts it."
        )
    raise FolderError(f"{folder} has no {DATABASE_NAME}: name a data folder with {option}.")


def kept_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what is in the file at ``path``, for its owner alone, made whole with what ``make`` gives if need be.

    Raises ``FolderError``.
    """
    unfinished = path.with_suffix(".new")
    try:
        if path.exists():
            return path.read_bytes()
        content = make()
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(path)
    except OSError as error:
        raise FolderError(f"{path} cannot be read or written: {error.strerror}.") from None
    return content

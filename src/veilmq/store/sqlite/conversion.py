"""The conversion of a data folder of the engine before: its database becomes one of this format, beside it.

The new database is made under another name, and checked and synced before it takes its own, by one rename; a second one
sets the old database aside, where it stays until an operator removes it. A start that finds the old database alone
begins anew, whatever an earlier attempt left; one that finds both has the second rename left to do.
"""

import os
import shutil
from pathlib import Path

import apsw

from veilmq.store.copying import Told
from veilmq.store.sqlite.conversion_target import ConversionTarget
from veilmq.store.sqlite.folder import DATABASE_NAME, OLD_NAME, FolderError, FolderLock
from veilmq.store.sqlite.statements import SQL
from veilmq.store.sqlite.transaction import end
from veilmq.store.sqlite.unfinished import sync

SET_ASIDE = f"{OLD_NAME}.before-store"

_OLD_APPLICATION_ID = 0x7665696C
_OLD_FORMAT = 12
_SPARE_BYTES = 16 << 20
_INSTANT = "SELECT value FROM meta WHERE name = 'last_instant_ms'"


def is_old(folder: Path) -> bool:
    """Tell whether ``folder`` has an old database, which is to be converted, or to be set aside."""
    return (folder / OLD_NAME).is_file()


def convert(folder: Path, *, told: Told | None = None) -> None:
    """Convert the old database of ``folder``, or end a conversion that was interrupted.

    ``told`` is called with the messages that are converted and the messages in all. Raises ``FolderError``, which
    leaves the old database as it was, for a folder that is in use, of another format, or without enough space.
    """
    lock = FolderLock(folder)
    try:
        if (folder / SET_ASIDE).exists():
            raise FolderError(
                f"{folder} has {OLD_NAME} and {SET_ASIDE}, and nothing is replaced: move the latter away."
            )
        if (folder / DATABASE_NAME).is_file():
            _check_converted(folder)
        else:
            _look_at(folder)
            try:
                with ConversionTarget(folder / DATABASE_NAME) as target:
                    end(target.take_over(told))
            except (OSError, apsw.Error, FolderError) as error:
                raise FolderError(f"{folder / OLD_NAME} was not converted, nothing is changed: {error}") from error
        _set_aside(folder)
    finally:
        lock.release()


def _look_at(folder: Path) -> None:
    """Raise ``FolderError`` unless the old database can be converted; have all of it in one file."""
    path = folder / OLD_NAME
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            _check_format(connection, path)
            _check_space(connection, folder)
            ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
    except apsw.Error as error:
        raise FolderError(f"{path} cannot be read: {error}. If it is damaged, restore it from a copy.") from error
    if busy:
        raise FolderError(f"{path} is read by another process: end it, and start again.")


def _check_format(connection: apsw.Connection, path: Path) -> None:
    if connection.pragma("application_id") != _OLD_APPLICATION_ID:
        raise FolderError(f"{path} is not a veilmq database: choose another folder with --data.")
    version = connection.pragma("user_version")
    if version != _OLD_FORMAT:
        raise FolderError(
            f"{path} has format {version}, and only format {_OLD_FORMAT} is converted: "
            "open it with the last version before this one first."
        )


def _check_space(connection: apsw.Connection, folder: Path) -> None:
    """Raise ``FolderError`` where there is no room for the new database beside the old one and its log."""
    pages = connection.pragma("page_count") - connection.pragma("freelist_count")
    needed = pages * connection.pragma("page_size") * 3 // 2 + _SPARE_BYTES
    log = folder / f"{OLD_NAME}-wal"
    if log.is_file():
        needed += log.stat().st_size  # it is moved into the database first
    disk = os.statvfs(folder)
    left = sum(each.stat().st_size for each in _unfinished(folder).glob("*"))  # by an attempt that was interrupted
    free = disk.f_bavail * disk.f_frsize + left
    if free < needed:
        raise FolderError(
            f"{folder} is to be converted, which needs {needed} bytes, and its disk has {free} bytes free: "
            "make room, and start again. Nothing was changed."
        )


def _unfinished(folder: Path) -> Path:
    return folder / f"{DATABASE_NAME}.unfinished"


def _check_converted(folder: Path) -> None:
    """Raise ``FolderError`` where the old database was used again after its conversion."""
    instants = []
    for name, query in ((OLD_NAME, _INSTANT), (DATABASE_NAME, SQL["progress"])):
        connection = apsw.Connection(str(folder / name), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            instants.append(next(iter(connection.execute(query)), (0,))[0])
        finally:
            connection.close()
    if instants[0] > instants[1]:
        raise FolderError(
            f"{folder} has {OLD_NAME} and {DATABASE_NAME}, and the first one was changed after its conversion: "
            f"move {DATABASE_NAME} away to convert it again, or {OLD_NAME} to go on without these changes."
        )


def _set_aside(folder: Path) -> None:
    """Give the old database its other name."""
    shutil.rmtree(_unfinished(folder), ignore_errors=True)
    (folder / OLD_NAME).rename(folder / SET_ASIDE)
    for left in ("-wal", "-shm"):  # empty: it was moved into the database
        (folder / f"{OLD_NAME}{left}").unlink(missing_ok=True)
    sync(folder)

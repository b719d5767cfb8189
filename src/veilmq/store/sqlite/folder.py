"""The database of a data folder: made with its tables, or opened if it has our format."""

import os
from importlib.resources import files
from pathlib import Path

import apsw

from veilmq.engines.embedded.folder import FolderError
from veilmq.engines.embedded.options import EngineOptions

APPLICATION_ID = 0x7665696D
DATABASE_NAME = "store.db"
_FORMAT = 1


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
        connection.config(
            apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1
        )  # else a new value bound may have a statement parsed anew
        _bring_up(connection, where)
    except apsw.Error as error:
        connection.close()
        raise FolderError(f"{where} cannot be used: {error}.") from error
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
        raise FolderError(f"{where} is not a veilmq database: choose another folder with --data.")
    version = connection.pragma("user_version")
    if version > _FORMAT:
        raise FolderError(
            f"{where} has format {version}, and this version of veilmq knows up to {_FORMAT}: install a newer one."
        )

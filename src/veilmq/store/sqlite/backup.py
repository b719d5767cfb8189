"""A copy of a data folder, made while its server works: one snapshot of the database, read beside everything else.

The reader keeps one read transaction from the first page to the last, so the copy is the store as it was at one instant
between two batches, and what is committed meanwhile neither enters it nor has it begin anew. The server goes on; its
write-ahead log grows until the reader is done, by what is written in that time.

What was copied is checked as the doctor checks a folder, and takes its name only then: a backup that was interrupted,
or of a damaged folder, leaves nothing that looks like one.
"""

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import apsw

from veilmq.store.copying import Told
from veilmq.store.sqlite.folder import DATABASE_NAME, FolderError, check_format, database_of
from veilmq.store.sqlite.unfinished import Unfinished

PAGES_PER_STEP = 1_000

_OURS = ("veilmq.", DATABASE_NAME)  # the lock, the process, the database with its log
_UNFINISHED = ".new"


@dataclass(frozen=True, slots=True)
class Backup:
    """What was written: where, how many bytes, and what it holds by name, as the doctor tells it."""

    path: str
    database_bytes: int
    facts: dict[str, str | int]


def back_up(folder: Path, to: Path, *, told: Told | None = None) -> Backup:
    """Copy the store in ``folder``, whether or not it is served, to ``to``, which must not exist.

    ``to`` becomes a folder for ``serve --data``, or, where it ends in ``.db``, the one file that such a folder needs
    under the name ``store.db``, without what a server keeps beside it. ``told`` is called after each step with
    the pages that are copied and the pages in all. Raises ``FolderError`` when there is no store,
    the target exists, its disk is full, or the copy does not hold what the doctor asks for; nothing is left at ``to``
    then.
    """
    source = database_of(folder)
    unfinished = Unfinished(to)
    try:
        _copy(source, unfinished.database, told or _ignore)
        facts = unfinished.check()
        _copy_files(folder, unfinished.folder)
        unfinished.name()
    except (OSError, apsw.Error) as error:
        raise FolderError(f"{folder} cannot be copied to {to}: {error}. Check both disks and rights.") from error
    finally:
        unfinished.remove()
    return Backup(path=str(to), database_bytes=int(facts["database_bytes"]), facts=facts)


def _copy(source: Path, target: Path, told: Told) -> None:
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # messages and the receipts' key are private
    with (
        closing(apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)) as reader,
        closing(apsw.Connection(str(target))) as writer,
    ):
        check_format(reader, str(source))
        reader.execute("BEGIN")
        reader.pragma("schema_version")  # the snapshot is taken by the first read
        with writer.backup("main", reader, "main") as backup:
            while not backup.done:
                backup.step(PAGES_PER_STEP)
                told(backup.page_count - backup.remaining, backup.page_count)


def _copy_files(folder: Path, to: Path) -> None:
    """Copy what else is kept there, such as the key that signs pushes; what is being written has another name."""
    for path in folder.iterdir():
        if path.is_file() and not path.name.startswith(_OURS) and path.suffix != _UNFINISHED:
            shutil.copy2(path, to)


def _ignore(copied: int, pages: int) -> None:
    """Show no progress."""

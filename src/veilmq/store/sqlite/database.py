"""The database of a data folder: its lock and its format, one connection, the write-ahead log, and room on the disk.

A folder belongs to one process at a time. A newer format is refused. Once a second its files are compared with those
that are open: what is written to a removed file is lost, and without its lock a folder may have another owner.

``synchronous=FULL``: a commit is one sync. The commit that finds the log long moves it into the database, in place of
SQLite's own checkpoints. Another process that reads (a backup, the sqlite3 shell) keeps what it sees in the log; moving
it is then tried again once a second, since each try costs the more the longer the log is.

Sends are refused before room runs out, so that what is stored can still be received and deleted. The disk is inspected
after every commit, in the thread that committed: that costs about a microsecond. While room is short, refused sends and
the janitor inspect it again: nothing else may be committing.
"""

import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os.path import samestat
from pathlib import Path

import apsw
from filelock import FileLock, Timeout

from veilmq.core import limits
from veilmq.store.clock import stopwatch_s
from veilmq.store.named_queries import load, schema, shared
from veilmq.store.port import Metric, StoreError, gauge
from veilmq.store.transaction import Options

log = logging.getLogger(__name__)

APPLICATION_ID = 0x7665696D
DATABASE_NAME = "store.db"
OLD_NAME = "veilmq.db"
"""The database of the engine before, which ``conversion`` takes over."""

_FORMAT = 2
_WORDS = {
    "id": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "name": "text",
    "number": "INTEGER",
    "bytes": "blob",
    "keyed": " WITHOUT ROWID",
}
_LOCK_NAME = "veilmq.lock"
_OPEN = frozenset((_LOCK_NAME, DATABASE_NAME, DATABASE_NAME + "-wal"))
_BUSY_MS_MAX = 2_000
_PAGE_BYTES = 4_096
_FRAME_BYTES = 24 + _PAGE_BYTES  # a page in the log, with its head
_LONG_LOG = 4  # times the length at which the log is moved
_MOVE_AGAIN_S = 1.0
_LOG_PAGES_MIN = 250
_LOG_PAGES_MAX = 4_000
_PAGES_RESERVE_DIVISOR = 8
_ROOM_AGAIN_BYTES = 1_048_576
_FREE_PAGES_KEPT = 4_096
_PAGES_PER_SLICE = 500

LONG_LOG = (
    "The write-ahead log is too long: another process keeps reading the database, or the disk is full. End that "
    "process, or free space."
)

_PRAGMAS: dict[str, str | int] = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "journal_size_limit": 67_108_864,
    "cache_size": -61_440,
    "temp_store": "MEMORY",
}

_KINDS = {
    "standard": {
        "table": "visibility",
        "key": "partition = ?1 AND seq = ?3",
        "row": "visibility o WHERE o.partition = ?1 AND o.seq = ?2",
        "message": "visibility o CROSS JOIN message m ON m.seq = o.seq WHERE o.partition = ?1 AND o.seq = ?2",
        "lane": "o.lane",
        "hash": "o.grp",
        "together": "",
    },
    "ordered": {
        "table": "ordered",
        "key": "partition = ?1 AND grp = ?2 AND seq = ?3",
        "row": "{ordered_message} WHERE m.seq = ?2",
        "message": "{ordered_message} WHERE m.seq = ?2",
        "lane": "8",
        "hash": "(SELECT hash FROM message_group WHERE partition = ?1 AND number = m.grp)",
        "together": ", apart = 0",
    },
}
"""The words of the two kinds of queues in ``kinds.sql``."""


def _statements() -> dict[str, str]:
    """Return the statements of all files; a name in braces stands for a text from above."""
    found = {name: re.sub(r"\$(\d+)", r"?\1", _bare(text)) for name, text in shared().items()}
    for name, text in (load(__package__, "queries.sql") | load(__package__, "copies.sql")).items():
        found[name] = _bare(text).format_map(found)
    for name, text in load(__package__, "kinds.sql").items():
        for kind, words in _KINDS.items():
            found[f"{kind}_{name}"] = _bare(text).format_map(found | words).format_map(found)
    return found


def _bare(text: str) -> str:
    """Return a statement without comments and line ends: apsw hashes a text for each row."""
    return " ".join(re.sub("--.*", "", text).split()).rstrip(";")


SQL = _statements()
"""The statements of both dialects and of this one by name."""

_SIZE = "octet_length(m.body) + length(m.properties), NULL"
BARE = {name: text.replace("m.body, m.properties", _SIZE) for name, text in SQL.items()}
"""The same for a caller that needs the sizes of contents alone: of a long body the database reads all pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(Options):
    """What can be tuned in the store on SQLite; the defaults suit one machine.

    Below ``free_space_reserve_bytes`` of free disk, sends are refused. ``vfs`` names an apsw VFS to open the database
    with, and ``database_pages_max`` bounds its size.
    """

    free_space_reserve_bytes: int = limits.FREE_SPACE_RESERVE_BYTES
    vfs: str | None = None
    database_pages_max: int | None = None


# The folder.


class FolderError(StoreError):
    """The data folder cannot be used; the text says why and what to do."""


class FolderLock(AbstractContextManager["FolderLock"]):
    """The right to use a data folder, held until its context ends."""

    def __init__(self, folder: Path) -> None:
        """Make the folder if need be and lock it; raises ``FolderError`` when another process has it."""
        self._lock = FileLock(folder / _LOCK_NAME, timeout=0)
        self._owner = folder / "veilmq.pid"
        what = "made"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            what = "written"
            self._lock.acquire()
        except Timeout:
            pid = "unknown"
            with suppress(OSError):
                pid = self._owner.read_text(encoding="ascii").strip()
            raise FolderError(
                f"The data folder {folder} is in use by process {pid}: stop it, or choose another folder with --data."
            ) from None
        except OSError as error:
            raise FolderError(f"The data folder {folder} cannot be {what}: {error.strerror}.") from error
        with suppress(OSError):  # only a hint for people, and the disk may be full
            self._owner.write_text(f"{os.getpid()}\n", encoding="ascii")

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._owner.unlink()
        self._lock.release()


def is_in_use(folder: Path) -> bool:
    """Tell whether a process has the folder; nothing in it is changed."""
    try:
        with suppress(FileNotFoundError), (folder / _LOCK_NAME).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


@contextmanager
def usable(folder: Path | None) -> Iterator[None]:
    """Raise ``FolderError`` for an error of SQLite, with what to do."""
    try:
        yield
    except apsw.Error as error:
        where = ":memory:" if folder is None else str(folder / DATABASE_NAME)
        text = f"{where} cannot be used: {error}. `veilmq doctor` says what is wrong with it."
        if isinstance(error, apsw.NotADBError):
            text = _foreign(where)
        elif folder is not None and _free_bytes(folder) < _ROOM_AGAIN_BYTES:
            text = f"{where} cannot be opened, as its disk is full: free space, and start again."
        raise FolderError(text) from error


def open_connection(folder: Path | None, options: EngineOptions) -> apsw.Connection:
    """Open the folder's database, or one in memory; raises ``FolderError``."""
    where = ":memory:" if folder is None else str(folder / DATABASE_NAME)
    try:
        if folder is not None:
            os.close(os.open(where, os.O_RDWR | os.O_CREAT, 0o600))  # messages and the receipts' key are private
        connection = apsw.Connection(where, vfs=options.vfs, statementcachesize=256)
    except (OSError, apsw.Error) as error:
        raise FolderError(f"{where} cannot be opened: {error}. Check the folder's rights and its disk.") from error
    with ExitStack() as opened, usable(folder):
        opened.callback(connection.close)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else a new value may have a statement parsed anew
        if connection.execute("SELECT count(*) FROM sqlite_schema").get:
            check_format(connection, where)
        else:
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # takes effect only before the first table
            with connection:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                list(connection.execute(schema(__package__, **_WORDS)))
                connection.execute(f"PRAGMA user_version = {_FORMAT}")
        opened.pop_all()
    return connection


def check_format(connection: apsw.Connection, where: str) -> None:
    """Raise ``FolderError`` unless the database is veilmq's and of this version's format."""
    if connection.pragma("application_id") != APPLICATION_ID:
        raise FolderError(_foreign(where))
    version = connection.pragma("user_version")
    if version != _FORMAT:
        remedy = "install a newer one" if version > _FORMAT else "no release has it; use the version that created it"
        raise FolderError(f"{where} has format {version}, and this version of veilmq reads format {_FORMAT}: {remedy}.")


def _foreign(where: str) -> str:
    return f"{where} is not a veilmq database: choose another folder with --data."


def database_of(folder: Path, option: str = "--data") -> Path:
    """Return the path of the database of a folder that ``option`` names; raises ``FolderError`` where there is none."""
    path = folder / DATABASE_NAME
    if path.is_file():
        return path
    what = f"no {DATABASE_NAME}: name a data folder with {option}."
    if (folder / OLD_NAME).is_file():
        what = f"{OLD_NAME}, which an earlier version made: start veilmq serve with it, which converts it."
    raise FolderError(f"{folder} has {what}")


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def kept_file(path: Path, make: Callable[[], bytes]) -> bytes:
    """Return what the file at ``path`` has, made with what ``make`` gives if need be; raises ``FolderError``."""
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
        sync(path.parent)
    except OSError as error:
        raise FolderError(f"{path} cannot be read or written: {error.strerror}.") from None
    return content


# The open database.


class Database:
    """One connection, used by one thread at a time: ``commit`` and ``check_room`` may run in another."""

    def __init__(self, connection: apsw.Connection, folder: Path | None, *, options: EngineOptions) -> None:
        """``connection`` has the current format; ``folder`` lies on the file system that counts, if any does."""
        self._connection = connection
        for name, value in _PRAGMAS.items():
            connection.pragma(name, value)
        connection.set_busy_timeout(_BUSY_MS_MAX)
        connection.set_wal_hook(self._note_log)
        self._pragma = connection.pragma
        self._pragma("page_count")  # opens the log
        self._files = {} if folder is None else {path: path.stat() for path in folder.iterdir() if path.name in _OPEN}
        self._folder = folder
        self._reserve_bytes = options.free_space_reserve_bytes
        # Moving the log takes up to as much room again, which a nearly full disk must still have.
        self._log_pages_max = max(_LOG_PAGES_MIN, min(_LOG_PAGES_MAX, self._reserve_bytes // 4 // _PAGE_BYTES))
        self._log_pages = 0  # in the log, and not moved
        self._gave_back = False
        self._move_again_s = 0.0
        self.log_is_long = False  # much longer than it should be, as it could not be moved
        self._pages_max = options.database_pages_max
        if self._pages_max is not None:
            connection.pragma("max_page_count", self._pages_max)
        self._ran_out = False  # since then it takes more than no room at all, even with a reserve of 0
        self.in_batch = False  # one ran out of room, and not all of its commands are answered
        self.is_short = False
        """Whether there is so little room that no new messages are taken."""

    def commit(self) -> None:
        """Make the batch durable: returns after its sync. Blocks, without the GIL."""
        moves_log = self.moves_log
        self._connection.execute("COMMIT")
        if moves_log:
            self._move_log("PASSIVE")  # the next commit begins it anew

    def check_files(self) -> None:
        """Raise ``FolderError`` if a file that is open was removed or replaced."""
        for path, file in self._files.items():
            try:
                is_there = samestat(path.stat(), file)
            except OSError as error:
                is_there = error.errno not in (errno.ENOENT, errno.ENOTDIR)  # what cannot be seen may be there
            if not is_there:
                raise FolderError(f"{path} was removed or replaced while the server used it; start the server again.")

    @property
    def moves_log(self) -> bool:
        """Whether the next commit moves the log: it is long, or pages were given back, and the file shrinks by that."""
        is_due = self._gave_back or self._log_pages >= self._log_pages_max
        return is_due and (not self._move_again_s or stopwatch_s() >= self._move_again_s)

    def _move_log(self, how: str) -> None:
        """Move the log into the database; what another process hinders is tried again later."""
        self._gave_back = False
        try:
            ((is_busy, pages, moved),) = self._connection.execute(f"PRAGMA wal_checkpoint({how})")
        except (apsw.FullError, apsw.BusyError):  # the batch is durable all the same
            is_busy, pages, moved = True, self._log_pages, 0
        if moved == pages and not is_busy:
            self._log_pages, self._move_again_s = 0, 0.0
            if self.log_is_long:
                self.log_is_long = False
                log.warning("the write-ahead log was moved into the database")
            return
        self._move_again_s = stopwatch_s() + _MOVE_AGAIN_S
        if pages > _LONG_LOG * self._log_pages_max and not self.log_is_long:
            self.log_is_long = True
            log.warning("%s It has %d MB.", LONG_LOG, pages * _FRAME_BYTES // 1_000_000)

    def _note_log(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    # Room.

    def run_out(self) -> None:
        """Note that a batch found no room, whatever the numbers say; they count again when it has ended."""
        if not self.is_short:
            log.warning("the disk is full: sends are refused until there is room")
        self.is_short = self._ran_out = self.in_batch = True

    def recheck_room(self) -> bool:
        """Tell whether room is short; where it was, look anew."""
        if self.is_short and not self.in_batch:
            self.is_short = self._is_short()
        return self.is_short

    def check_room(self) -> None:
        """Measure the room on the disk; once it has become short, move the log while there is room for that."""
        was_short, self.is_short = self.is_short, (self.in_batch and self.is_short) or self._is_short()
        if self.is_short and not was_short:  # all of the log, whose file is cut; waits for no reader
            self._connection.set_busy_timeout(0)
            try:
                self._move_log("TRUNCATE")
            finally:
                self._connection.set_busy_timeout(_BUSY_MS_MAX)

    def metrics(self) -> list[Metric]:
        """Return what there is to tell of the file and its disk."""
        figures = [gauge("store_wal_bytes", "Bytes in the write-ahead log.", self._log_pages * _FRAME_BYTES)]
        with suppress(OSError):
            if self._folder is not None:
                free, reserve = _free_bytes(self._folder), self._reserve_bytes
                figures.append(gauge("store_disk_free_bytes", "Free bytes on the disk of the data folder.", free))
                figures.append(gauge("store_disk_reserve_bytes", "Free bytes below which sends are refused.", reserve))
        return figures

    def give_back(self, pages_max: int = _PAGES_PER_SLICE, kept: int = _FREE_PAGES_KEPT) -> bool:
        """Return empty pages to the disk with the open transaction, ``kept`` of them not; tell whether any were."""
        pages: int = self._pragma("freelist_count") - kept
        if pages > 0:
            list(self._connection.execute(f"PRAGMA incremental_vacuum({min(pages, pages_max)})"))
            self._gave_back = True
        return pages > 0

    def _is_short(self) -> bool:
        is_short = False
        try:
            if self._folder is not None:
                reserve_bytes = max(self._reserve_bytes, _ROOM_AGAIN_BYTES) if self._ran_out else self._reserve_bytes
                left_bytes = _free_bytes(self._folder) - reserve_bytes
                # What draining has freed inside the file is room, too: it does not shrink at once, and not to nothing.
                is_short = left_bytes < 0 and left_bytes + self._pragma("freelist_count") * _PAGE_BYTES < 0
            if self._pages_max is not None:
                left = self._pages_max - self._pragma("page_count") + self._pragma("freelist_count")
                is_short = is_short or left < self._pages_max // _PAGES_RESERVE_DIVISOR
        except (OSError, apsw.Error):
            self.check_files()  # the folder may be gone
            log.exception("the free disk space cannot be read")
            return self.is_short
        self._ran_out = self._ran_out and is_short
        return is_short


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def ran_out_of_room(error: BaseException) -> bool:
    """Whether a commit failed as the disk is full, so that the store can go on without it.

    Where the index of the log (``-shm``) cannot grow, the batch is in the log all the same, and a crash before the next
    commit, which is written over it, would keep it. So what was refused may have happened, as with any 5xx.
    """
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
    return isinstance(error, apsw.FullError)

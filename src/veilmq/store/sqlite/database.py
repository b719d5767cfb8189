"""The database of a data folder: its lock and format, its connection, the write-ahead log, and disk space.

A folder belongs to one process at a time. A newer format is refused. Once a second the folder's files are compared with
the open ones: writes to a removed file are lost, and a folder without its lock may have another owner.

``synchronous=FULL``: a commit is one sync. A commit that finds a long log then checkpoints it, in place of SQLite's
automatic checkpoints, and all commands wait: 14 ms for 16 MB of new messages. Only with slow syncs, of which a
checkpoint has two more, does the log grow that long. Another process that reads (a backup, the sqlite3 shell) keeps its
snapshot in the log; then the checkpoint is retried only once a second: each try costs more the longer the log is.

Sends are refused before the disk is full, so that stored messages can still be received and deleted. Free space is read
after every commit, in the thread that committed; that takes about a microsecond. While space is low, refused sends and
the janitor read it, too, because there may be no commits.
"""

import errno
import fcntl
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os.path import samestat
from pathlib import Path

import apsw

from veilmq.core import limits
from veilmq.store.clock import stopwatch_s
from veilmq.store.named_queries import load, schema, shared
from veilmq.store.port import Metric, StoreError, gauge
from veilmq.store.transaction import Options

log = logging.getLogger(__name__)

APPLICATION_ID = 0x7665696D
DATABASE_NAME = "store.db"
OLD_NAME = "veilmq.db"  # the database of an earlier version, which ``conversion`` converts
QUICK_S = 0.001  # a shorter sync is quick

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
_FRAME_BYTES = 24 + _PAGE_BYTES  # a page in the log, with its header
_LONG_LOG = 4  # times the greatest length at which it is checkpointed
_CHECKPOINT_RETRY_S = 1.0
_LOG_PAGES_MIN = 250
_LOG_PAGES_MAX = 4_000
_LOG_PAGES_QUICK = 1_000  # if syncs are quick
_PAGES_RESERVE_DIVISOR = 8
_SPACE_AFTER_FULL_BYTES = 1_048_576
_FREE_PAGES_KEPT = 4_096
_PAGES_PER_SLICE = 500
_FOREIGN = "{} is not a veilmq database: choose another folder with --data."

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

# The words that ``kinds.sql`` uses for each kind of queue.
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


def _statements() -> dict[str, str]:
    """Return the statements of all files; names in braces are replaced by the texts above or other statements."""
    found = {name: re.sub(r"\$(\d+)", r"?\1", _without_comments(text)) for name, text in shared().items()}
    for name, text in (load(__package__, "queries.sql") | load(__package__, "copies.sql")).items():
        found[name] = _without_comments(text).format_map(found)
    for name, text in load(__package__, "kinds.sql").items():
        for kind, words in _KINDS.items():
            found[f"{kind}_{name}"] = _without_comments(text).format_map(found | words).format_map(found)
    return found


def _without_comments(text: str) -> str:
    """Return a statement without comments and newlines: apsw hashes its text for each row."""
    return " ".join(re.sub("--.*", "", text).split()).rstrip(";")


SQL = _statements()  # all statements of this dialect by name, including the shared ones

_SIZE = "octet_length(m.body) + length(m.properties), NULL"
# The same for callers that only need the sizes of contents: reading a long body reads all its pages.
SQL_WITH_SIZES = {name: text.replace("m.body, m.properties", _SIZE) for name, text in SQL.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(Options):
    """The tunable options of the SQLite store; the defaults suit one machine.

    Sends are refused below ``free_space_reserve_bytes`` of free disk space. ``vfs`` is an apsw VFS for the database,
    ``database_pages_max`` limits its size.
    """

    free_space_reserve_bytes: int = limits.FREE_SPACE_RESERVE_BYTES
    vfs: str | None = None
    database_pages_max: int | None = None


# The folder.


class FolderError(StoreError):
    """The data folder cannot be used; the text gives the reason and the remedy."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder if missing, and lock it; raises ``FolderError`` if another process has locked it."""
    owner, pid, what = folder / "veilmq.pid", "unknown", "made"
    with ExitStack() as opened:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            what = "written"
            lock = opened.enter_context((folder / _LOCK_NAME).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(OSError):
                pid = owner.read_text(encoding="ascii").strip()
            raise FolderError(
                f"The data folder {folder} is in use by process {pid}: stop it, or choose another folder with --data."
            ) from None
        except OSError as error:
            raise FolderError(f"The data folder {folder} cannot be {what}: {error.strerror}.") from error
        with suppress(OSError):  # only informative, and the disk may be full
            owner.write_text(f"{os.getpid()}\n", encoding="ascii")
        try:
            yield
        finally:
            with suppress(OSError):
                owner.unlink()


def is_in_use(folder: Path) -> bool:
    """Return whether a process has locked the folder, without changing it."""
    try:
        with suppress(FileNotFoundError), (folder / _LOCK_NAME).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


@contextmanager
def usable(folder: Path | None) -> Iterator[None]:
    """Turn an error of SQLite into a ``FolderError`` with a remedy."""
    try:
        yield
    except apsw.Error as error:
        where = ":memory:" if folder is None else str(folder / DATABASE_NAME)
        text = f"{where} cannot be used: {error}. `veilmq doctor` says what is wrong with it."
        if isinstance(error, apsw.NotADBError):
            text = _FOREIGN.format(where)
        elif folder is not None and _free_bytes(folder) < _SPACE_AFTER_FULL_BYTES:
            text = f"{where} cannot be opened, as its disk is full: free space, and start again."
        raise FolderError(text) from error


def open_connection(folder: Path | None, options: EngineOptions) -> apsw.Connection:
    """Open the folder's database, or one in memory; raises ``FolderError``."""
    where = ":memory:" if folder is None else str(folder / DATABASE_NAME)
    try:
        if folder is not None:
            os.close(os.open(where, os.O_RDWR | os.O_CREAT, 0o600))  # messages and the receipts' key are private
            database_of(folder)
        connection = apsw.Connection(where, vfs=options.vfs, statementcachesize=256)
    except (OSError, apsw.Error) as error:
        raise FolderError(f"{where} cannot be opened: {error}. Check the folder's rights and its disk.") from error
    with ExitStack() as opened, usable(folder):
        opened.callback(connection.close)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)  # else a new value may cause a statement to be reparsed
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
    """Raise ``FolderError`` unless the database is veilmq's, in the current format."""
    if connection.pragma("application_id") != APPLICATION_ID:
        raise FolderError(_FOREIGN.format(where))
    version = connection.pragma("user_version")
    if version != _FORMAT:
        remedy = "install a newer one" if version > _FORMAT else "no release has it; use the version that created it"
        raise FolderError(f"{where} has format {version}, and this version of veilmq reads format {_FORMAT}: {remedy}.")


def database_of(folder: Path, option: str = "--data") -> Path:
    """Return the path of a folder's database; raises ``FolderError``, which names ``option``, if there is none."""
    path, wal = folder / DATABASE_NAME, folder / f"{DATABASE_NAME}-wal"
    if path.is_file():
        if not path.stat().st_size and wal.is_file() and wal.stat().st_size:  # SQLite would remove the log
            raise FolderError(f"{path} is empty, but its log {wal.name} is not: restore both from a copy.")
        return path
    what = f"no {DATABASE_NAME}: name a data folder with {option}."
    if (folder / OLD_NAME).is_file():
        what = f"{OLD_NAME}, which an earlier version made: start veilmq serve with it, which converts it."
    raise FolderError(f"{folder} has {what}")


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def load_or_create(path: Path, create: Callable[[], bytes]) -> bytes:
    """Return the content of the file at ``path``, created by ``create`` if missing; raises ``FolderError``."""
    unfinished = path.with_suffix(".new")
    try:
        if path.exists():
            return path.read_bytes()
        content = create()
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
    """One connection, used by one thread at a time; ``commit`` and ``check_space`` may run in another one."""

    def __init__(self, connection: apsw.Connection, folder: Path | None, *, options: EngineOptions) -> None:
        """``connection`` has the current format. Free space is that of the file system of ``folder``."""
        self._connection = connection
        for name, value in _PRAGMAS.items():
            connection.pragma(name, value)
        connection.set_busy_timeout(_BUSY_MS_MAX)
        connection.set_wal_hook(self._update_log_pages)
        self._pragma = connection.pragma
        self._pragma("page_count")  # opens the log
        self._files = {} if folder is None else {path: path.stat() for path in folder.iterdir() if path.name in _OPEN}
        self._folder = folder
        self._reserve_bytes = options.free_space_reserve_bytes
        # A checkpoint needs up to as much space again, which a nearly full disk must still have.
        self._log_pages_max = max(_LOG_PAGES_MIN, min(_LOG_PAGES_MAX, self._reserve_bytes // 4 // _PAGE_BYTES))
        self._log_pages = 0  # not checkpointed yet
        self.usual_sync_s = 0.0
        self._has_freed = False
        self._next_checkpoint_s = 0.0
        self.log_is_long = False  # much too long, because checkpoints failed
        self._pages_max = options.database_pages_max
        if self._pages_max is not None:
            connection.pragma("max_page_count", self._pages_max)
        self._was_full = False  # then sends need some free space even with a reserve of 0
        self.in_batch = False  # a batch found the disk full, and some of its commands have no result yet
        self.low_disk_space = False  # whether new messages are refused

    def commit(self) -> None:
        """Make the batch durable; blocks until its sync, without the GIL."""
        checkpoint_due = self.checkpoint_due
        self._connection.execute("COMMIT")
        if checkpoint_due:
            self._checkpoint("PASSIVE")  # the next commit restarts it

    def check_files(self) -> None:
        """Raise ``FolderError`` if an open file was removed or replaced."""
        for path, file in self._files.items():
            try:
                is_there = samestat(path.stat(), file)
            except OSError as error:
                is_there = error.errno not in (errno.ENOENT, errno.ENOTDIR)  # a file that cannot be read may exist
            if not is_there:
                raise FolderError(f"{path} was removed or replaced while the server used it; start the server again.")

    @property
    def checkpoint_due(self) -> bool:
        """Return whether the next commit checkpoints the log: it is long, or freed pages are to shrink the file."""
        pages_max = min(self._log_pages_max, _LOG_PAGES_QUICK) if self.usual_sync_s < QUICK_S else self._log_pages_max
        is_due = self._has_freed or self._log_pages >= pages_max
        return is_due and (not self._next_checkpoint_s or stopwatch_s() >= self._next_checkpoint_s)

    def _checkpoint(self, mode: str) -> None:
        self._has_freed = False
        try:
            ((is_busy, pages, moved),) = self._connection.execute(f"PRAGMA wal_checkpoint({mode})")
        except (apsw.FullError, apsw.BusyError):  # the batch is durable nevertheless
            is_busy, pages, moved = True, self._log_pages, 0
        if moved == pages and not is_busy:
            self._log_pages, self._next_checkpoint_s = 0, 0.0
            if self.log_is_long:
                self.log_is_long = False
                log.warning("the write-ahead log was moved into the database")
            return
        self._next_checkpoint_s = stopwatch_s() + _CHECKPOINT_RETRY_S
        if pages > _LONG_LOG * self._log_pages_max and not self.log_is_long:
            self.log_is_long = True
            log.warning("%s It has %d MB.", LONG_LOG, pages * _FRAME_BYTES // 1_000_000)

    def _update_log_pages(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    # Disk space.

    def mark_full(self) -> None:
        """Record that a batch found the disk full, whatever its numbers; they count again when the batch has ended."""
        if not self.low_disk_space:
            log.warning("the disk is full: sends are refused until there is room")
        self.low_disk_space = self._was_full = self.in_batch = True

    def recheck_space(self) -> bool:
        """Return whether space is low; read it again if it was."""
        if self.low_disk_space and not self.in_batch:
            self.low_disk_space = self._read_space()
        return self.low_disk_space

    def check_space(self) -> None:
        """Read the free space; when it becomes low, checkpoint the log while there is space for that."""
        was_low = self.low_disk_space
        self.low_disk_space = (self.in_batch and was_low) or self._read_space()
        if self.low_disk_space and not was_low:  # truncates the log; does not wait for readers
            log.warning("the disk is nearly full: sends are refused until there is room")
            self._connection.set_busy_timeout(0)
            try:
                self._checkpoint("TRUNCATE")
            finally:
                self._connection.set_busy_timeout(_BUSY_MS_MAX)

    def metrics(self) -> list[Metric]:
        """Return metrics of the file and its disk."""
        metrics = [gauge("store_wal_bytes", "Bytes in the write-ahead log.", self._log_pages * _FRAME_BYTES)]
        with suppress(OSError):
            if self._folder is not None:
                free, reserve = _free_bytes(self._folder), self._reserve_bytes
                metrics.append(gauge("store_disk_free_bytes", "Free bytes on the disk of the data folder.", free))
                metrics.append(gauge("store_disk_reserve_bytes", "Free bytes below which sends are refused.", reserve))
        return metrics

    def free_pages(self) -> bool:
        """Return a slice of the empty pages to the disk, in the open transaction; return whether there were any."""
        pages: int = self._pragma("freelist_count") - _FREE_PAGES_KEPT
        if pages > 0:
            list(self._connection.execute(f"PRAGMA incremental_vacuum({min(pages, _PAGES_PER_SLICE)})"))
            self._has_freed = True
        return pages > 0

    def _read_space(self) -> bool:
        low_disk_space = False
        try:
            if self._folder is not None:
                least_bytes = _SPACE_AFTER_FULL_BYTES if self._was_full else 0
                left_bytes = _free_bytes(self._folder) - max(self._reserve_bytes, least_bytes)
                # Free pages inside the file count, too: it shrinks neither at once nor completely.
                low_disk_space = left_bytes < 0 and left_bytes + self._pragma("freelist_count") * _PAGE_BYTES < 0
            if self._pages_max is not None:
                left = self._pages_max - self._pragma("page_count") + self._pragma("freelist_count")
                low_disk_space = low_disk_space or left < self._pages_max // _PAGES_RESERVE_DIVISOR
        except (OSError, apsw.Error):
            self.check_files()  # the folder may have been removed
            log.exception("the free disk space cannot be read")
            return self.low_disk_space
        self._was_full = self._was_full and low_disk_space
        return low_disk_space


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def disk_is_full(error: BaseException) -> bool:
    """Return whether a commit failed because the disk is full, after which the store continues.

    If the log's index (``-shm``) cannot grow, the batch is in the log, and a crash before the next commit, which
    overwrites it, would keep it: like after any 5xx, a refused command may have been applied.
    """
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
    return isinstance(error, apsw.FullError)

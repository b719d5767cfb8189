"""The database of a data folder: one connection, its transaction, its log and its space.

Write-ahead log, ``synchronous=FULL``: a commit is one sync. The log is moved into the database when it is long, by the
commit that finds it so, in place of SQLite's own checkpoints. Another process that reads (a backup, the sqlite3 shell)
keeps what it sees in the log, which then grows; moving it is tried again once a second, since each try costs the more
the longer the log is.
"""

import logging

import apsw

from veilmq.store.clock import stopwatch_s
from veilmq.store.sqlite.options import EngineOptions

log = logging.getLogger(__name__)

_BUSY_MS_MAX = 2_000
_SOME_LOG = 1  # pages: the file may take room, of an earlier run or because it is written anew, but has nothing to move
_PAGE_BYTES = 4_096
_FRAME_BYTES = 24 + _PAGE_BYTES  # a page in the log, with its head
_LONG_LOG = 4  # times the length at which the log is moved
_MOVE_AGAIN_S = 1.0
_LOG_PAGES_MIN = 250
_LOG_PAGES_MAX = 4_000

LONG_LOG = (
    "The write-ahead log is too long: another process that reads the database keeps it, or the disk is full. End what "
    "reads, or free space."
)

_PRAGMAS: dict[str, str | int] = {
    "journal_mode": "WAL",
    "synchronous": "FULL",
    "journal_size_limit": 67_108_864,
    "cache_size": -65_536,
    "temp_store": "MEMORY",
}


class Database:
    """One connection. Used by one thread at a time: ``commit`` may run in another."""

    def __init__(self, connection: apsw.Connection, *, options: EngineOptions) -> None:
        """``connection`` has the current format (see ``folder``)."""
        self._connection = connection
        for name, value in _PRAGMAS.items():
            connection.pragma(name, value)
        connection.set_busy_timeout(_BUSY_MS_MAX)
        connection.set_wal_hook(self._note_log)
        self._log_pages_max = _log_pages_max(options)
        self._log_pages = _SOME_LOG
        self._gave_back = False
        self._move_again_s = 0.0
        self.log_is_long = False
        """Whether the log has become much longer than it should be, as it could not be moved."""
        if options.database_pages_max is not None:
            connection.pragma("max_page_count", options.database_pages_max)

    def begin(self) -> apsw.Connection:
        """Open the batch's transaction unless it is open; return the connection for a statement."""
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
        return self._connection

    def commit(self) -> None:
        """Make the batch durable: returns after its sync. Blocks, without the GIL."""
        moves_log = self.moves_log
        self._connection.execute("COMMIT")
        if moves_log:
            self._move_log()

    @property
    def moves_log(self) -> bool:
        """Whether the next commit moves the write-ahead log into the database, which takes some milliseconds.

        It does when the log is long, and when pages were given back: the file shrinks when the log is moved into it.
        """
        is_due = self._gave_back or self._log_pages >= self._log_pages_max
        return is_due and (not self._move_again_s or stopwatch_s() >= self._move_again_s)

    @property
    def log_bytes(self) -> int:
        """Return the size of what is in the write-ahead log and not moved."""
        return 0 if self._log_pages == _SOME_LOG else self._log_pages * _FRAME_BYTES

    def _move_log(self) -> None:
        self._gave_back = False
        try:
            ((_, pages, moved),) = self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except (apsw.FullError, apsw.BusyError):  # the batch is durable all the same
            pages, moved = self._log_pages, 0
        if moved == pages:
            self._log_was_moved(_SOME_LOG)  # the next commit begins it anew
            return
        self._move_again_s = stopwatch_s() + _MOVE_AGAIN_S
        if pages > _LONG_LOG * self._log_pages_max and not self.log_is_long:
            self.log_is_long = True
            log.warning("%s It has %d MB.", LONG_LOG, pages * _FRAME_BYTES // 1_000_000)

    def _log_was_moved(self, pages: int) -> None:
        self._log_pages = pages
        self._move_again_s = 0.0
        if self.log_is_long:
            self.log_is_long = False
            log.warning("the write-ahead log was moved into the database")

    def _note_log(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    # Space.

    def headroom_pages(self, pages_max: int) -> int:
        """Return how many pages may still be used of ``pages_max``."""
        used = self._pragma("page_count") - self._pragma("freelist_count")
        return pages_max - used

    def free_pages(self) -> int:
        """Return how many pages of the file hold nothing."""
        return self._pragma("freelist_count")

    def shorten_log(self) -> bool:
        """Move the write-ahead log into the database; tell whether that gave any room back. Waits for no reader."""
        pages = self._log_pages
        self._connection.set_busy_timeout(0)
        try:
            ((busy, _, _),) = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (apsw.FullError, apsw.BusyError):
            return False
        finally:
            self._connection.set_busy_timeout(_BUSY_MS_MAX)
        if busy:  # somebody reads what is still in the log
            return False
        self._log_was_moved(0)
        return pages > 0

    def free_bytes(self) -> int:
        """Return the size of the pages of the file that hold nothing."""
        return self.free_pages() * self._pragma("page_size")

    def give_back(self, pages: int) -> None:
        """Return up to ``pages`` empty pages to the disk, with the open transaction."""
        list(self.begin().execute(f"PRAGMA incremental_vacuum({pages})"))
        self._gave_back = True

    def _pragma(self, name: str) -> int:
        value: int = self._connection.pragma(name)
        return value

    def close(self) -> None:
        """Check the log into the database and close."""
        self._connection.close()


def _log_pages_max(options: EngineOptions) -> int:
    """Return how long the log may become before it is moved into the database.

    Moving it takes up to as much room again, which a nearly full disk must still have: a quarter of the reserve.
    """
    return max(_LOG_PAGES_MIN, min(_LOG_PAGES_MAX, options.free_space_reserve_bytes // 4 // _PAGE_BYTES))


def ran_out_of_room(error: Exception) -> bool:
    """Whether a commit failed as the disk is full, so that the store can go on without it.

    Where the index of the log (``-shm``) cannot grow, the batch is in the log all the same, and a crash before the next
    commit, which is written over it, would keep it. So what was refused may have happened, as with any 5xx.
    """
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_SHMSIZE
    return isinstance(error, apsw.FullError)

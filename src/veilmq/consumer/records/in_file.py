"""Records in a file of SQLite, for the processes of one machine: they outlive a crash of each.

Every write is a transaction that is on the disk when it returns. Instants are the wall clock's, which is the one that
processes share and that goes on over a restart of the machine; a step of it moves the ends of records by as much.
How long a write waits for others is part of the time that it gives: no record outlives its lease by that.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from veilmq.consumer.clock import wall_s
from veilmq.consumer.records.port import Begun, Standing

BUSY_S_MAX = 10.0
"""How long a write waits for those of other processes."""

_SCHEMA = """
    CREATE TABLE IF NOT EXISTS record (key TEXT PRIMARY KEY, owner TEXT, expires_at_s REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS record_by_end ON record (expires_at_s);
"""
_FIND = "SELECT owner, expires_at_s FROM record WHERE key = ? AND expires_at_s > ?"
_PUT = "INSERT OR REPLACE INTO record (key, owner, expires_at_s) VALUES (?, ?, ?)"
_EXTEND = "UPDATE record SET expires_at_s = ? WHERE key = ? AND owner = ? AND expires_at_s > ?"
_FORGET = "DELETE FROM record WHERE key = ? AND owner = ?"
_DROP_ENDED = "DELETE FROM record WHERE key IN (SELECT key FROM record WHERE expires_at_s <= ? LIMIT 10)"


class InFile:
    """A ``RecordStore``; ``close`` it when no handler runs any more. The folder of the file must be there."""

    def __init__(self, path: str | Path, *, wall_s: Callable[[], float] = wall_s) -> None:
        """Open the file at ``path``, or make it. Raises ``sqlite3.Error`` for a file that is none of SQLite's."""
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def begin(self, key: str, *, owner: str, for_s: float) -> Begun:
        """Record that ``owner`` begins ``key``, unless it is done or being done; drops a few records that ended."""
        called_s = self._wall_s()
        with self._writing() as connection:
            now_s = self._wall_s()
            found = connection.execute(_FIND, (key, now_s)).fetchone()
            if found is not None:
                return Begun(Standing.DONE if found[0] is None else Standing.BUSY, found[1] - now_s)
            connection.execute(_DROP_ENDED, (now_s,))
            connection.execute(_PUT, (key, owner, called_s + for_s))
            return Begun(Standing.OURS)

    def extend(self, key: str, *, owner: str, for_s: float) -> bool:
        """Have the record last for ``for_s`` from now on, if it is ``owner``'s."""
        called_s = self._wall_s()
        with self._writing() as connection:
            return connection.execute(_EXTEND, (called_s + for_s, key, owner, self._wall_s())).rowcount == 1

    def finish(self, key: str, *, for_s: float) -> None:
        """Record that ``key`` is done."""
        with self._writing() as connection:
            connection.execute(_PUT, (key, None, self._wall_s() + for_s))

    def forget(self, key: str, *, owner: str) -> None:
        """Remove the record if it is ``owner``'s."""
        with self._writing() as connection:
            connection.execute(_FORGET, (key, owner))

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the file for one transaction; the lock is taken at its begin, so that none fails halfway."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

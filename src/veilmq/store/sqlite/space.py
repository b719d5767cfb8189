"""Room on the disk: sends are refused before it runs out, so that what is stored can still be received and deleted.

Asked after every commit, in the thread that committed: a look at the file system costs about a microsecond. While room
is short, a send that is refused and the janitor look again, at most once a second: nothing else may be committing.
"""

import logging
import os
from pathlib import Path

import apsw

from veilmq.core.limits import SECOND_MS
from veilmq.store.sqlite.database import Database
from veilmq.store.sqlite.options import EngineOptions

log = logging.getLogger(__name__)

_PAGES_RESERVE_DIVISOR = 8
_ROOM_AGAIN_BYTES = 1_048_576
_FREE_PAGES_KEPT = 4_096
_PAGES_PER_SLICE = 500


class Space:
    """Whether the store is so short of room that it takes no new messages."""

    def __init__(self, *, folder: Path | None, database: Database, options: EngineOptions) -> None:
        """``folder`` lies on the file system that counts, ``None`` for a store in memory."""
        self._folder = folder
        self._database = database
        self._reserve_bytes = options.free_space_reserve_bytes
        self._pages_max = options.database_pages_max
        self._look_again_ms = 0
        self._ran_out = False  # since then it takes more than no room at all, even with a reserve of 0
        self._in_batch = False
        self.is_short = False

    def run_out(self) -> None:
        """Take note that a batch found no room, whatever the numbers say; they count again when it has ended."""
        if not self.is_short:
            log.warning("the disk is full: sends are refused until there is room")
        self.is_short = self._ran_out = self._in_batch = True

    def end_batch(self) -> None:
        """Let the numbers count again."""
        self._in_batch = False

    def look_again(self, now_ms: int) -> bool:
        """Tell whether room is short; where it was, look anew if that is a second ago."""
        if self.is_short and now_ms >= self._look_again_ms and not self._in_batch:
            self._look_again_ms = now_ms + SECOND_MS
            self.is_short = self._is_short()
        return self.is_short

    def look(self) -> None:
        """Look again; when room has just become short, the log gives its own back while there is room to move it."""
        was_short = self.is_short
        self.is_short = self._is_short()
        if self.is_short and not was_short:
            self._database.shorten_log()

    def give_back(self) -> bool:
        """Return a slice of the pages that hold nothing to the disk, with the open transaction; tell whether any were.

        Some are kept for what comes next.
        """
        pages = self._database.free_pages() - _FREE_PAGES_KEPT
        if pages > 0:
            self._database.give_back(min(pages, _PAGES_PER_SLICE))
        return pages > 0

    def _is_short(self) -> bool:
        try:
            is_short = self._disk_is_short() or self._database_is_short()
        except (OSError, apsw.Error):
            log.exception("the room on the disk cannot be told")
            return self.is_short
        self._ran_out = self._ran_out and is_short
        return is_short

    def _disk_is_short(self) -> bool:
        if self._folder is None:
            return False
        reserve_bytes = max(self._reserve_bytes, _ROOM_AGAIN_BYTES) if self._ran_out else self._reserve_bytes
        disk = os.statvfs(self._folder)
        free_bytes = disk.f_bavail * disk.f_frsize
        # What draining has freed inside the file is room too: the file does not shrink at once, and not to nothing.
        return free_bytes < reserve_bytes and free_bytes + self._database.free_bytes() < reserve_bytes

    def _database_is_short(self) -> bool:
        if self._pages_max is None:
            return False
        return self._database.headroom_pages(self._pages_max) < self._pages_max // _PAGES_RESERVE_DIVISOR

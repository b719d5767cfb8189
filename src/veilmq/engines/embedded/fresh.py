"""The fresh run of a lane: messages never received, in the order they were sent.

The run goes from the first message in memory to the end of the lane's positions, and only ever forward: whatever lies
before it has a lease or is gone. Its beginning is kept in memory whole (the ready window, bounded in messages and
bytes, and in bytes together with all other lanes'); the rest is on disk and is read when the window is empty.
"""

from collections import deque
from itertools import islice
from typing import Protocol

from veilmq.core.limits import READY_WINDOW_BYTES
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.rows import MessageRow

ROW_BYTES = 250  # what a message takes in memory beside its content


class BodyCache:
    """The bytes that all ready windows together may still hold."""

    __slots__ = ("bytes_left",)

    def __init__(self, *, bytes_max: int) -> None:
        """Start empty."""
        self.bytes_left = bytes_max


class Fresh(Protocol):
    """What a lane needs of the messages that nobody has received yet, in whatever order they come."""

    def append(self, row: MessageRow) -> None:
        """Add a message behind all others."""

    def head(self) -> MessageRow | None:
        """Return the message that comes first, ``None`` when there is none to give."""

    def take(self) -> MessageRow:
        """Remove and return the head, which must be there."""

    def put_back(self, row: MessageRow) -> None:
        """Undo a ``take``, before anything else happens to the run."""

    def first(self, count: int) -> list[MessageRow]:
        """Return the first so many messages, which all stay."""

    def drop(self, positions: set[int]) -> None:
        """Forget the messages at ``positions``, which are deleted."""

    def skip_to(self, position: int) -> None:
        """Drop everything before ``position``."""

    def clear(self) -> None:
        """Let go of the memory."""


class FreshRun:
    """The messages of one lane that nobody has received yet."""

    __slots__ = ("_bytes", "_cache", "_journal", "_loaded_to", "_window", "_window_max", "end")

    def __init__(self, *, journal: Journal, cache: BodyCache, window_max: int, start: int, end: int) -> None:
        """The run covers positions from ``start`` up to, not including, ``end``; all of it is on disk."""
        self._journal = journal
        self._cache = cache
        self._window_max = window_max
        self._window: deque[MessageRow] = deque()
        self._bytes = 0
        self._loaded_to = start
        self.end = end

    def append(self, row: MessageRow) -> None:
        """Add the message at position ``end``; it stays in memory if all before it is there and there is room."""
        if self._loaded_to == self.end and len(self._window) < self._window_max and self._keep(row):
            self._loaded_to = self.end + 1
        self.end += 1

    def head(self) -> MessageRow | None:
        """Return the first message of the run, ``None`` when there is none."""
        if not self._window and self._loaded_to < self.end:
            self._refill()
        return self._window[0] if self._window else None

    def take(self) -> MessageRow:
        """Remove and return the head, which must be there."""
        row = self._window.popleft()
        size = ROW_BYTES + len(row.body) + len(row.properties)
        self._bytes -= size
        self._cache.bytes_left += size
        return row

    def put_back(self, row: MessageRow) -> None:
        """Undo a ``take``, before anything else happens to the run."""
        self._window.appendleft(row)
        self._count(row)

    def first(self, count: int) -> list[MessageRow]:
        """Return the first so many messages, which all stay; those behind the window are read and not kept."""
        rows = list(islice(self._window, count))
        if len(rows) < count and self._loaded_to < self.end:
            rows += self._journal.messages_between(self._loaded_to, self.end, count - len(rows))
        return rows

    def drop(self, positions: set[int]) -> None:
        """Forget the messages at ``positions``, which are deleted."""
        rows = list(self._window)
        self.clear()
        for row in rows:
            if row.position not in positions:
                self._window.append(row)
                self._count(row)

    def _count(self, row: MessageRow) -> None:
        size = ROW_BYTES + len(row.body) + len(row.properties)
        self._bytes += size
        self._cache.bytes_left -= size

    def skip_to(self, position: int) -> None:
        """Drop everything before ``position``."""
        while self._window and self._window[0].position < position:
            self.take()
        self._loaded_to = max(self._loaded_to, position)

    def clear(self) -> None:
        """Let go of the window."""
        while self._window:
            self.take()

    def _keep(self, row: MessageRow) -> bool:
        """Take the message into the window if there is room; there is for the first one: receives must go on."""
        size = ROW_BYTES + len(row.body) + len(row.properties)
        if self._window and (size > self._cache.bytes_left or self._bytes + size > READY_WINDOW_BYTES):
            return False
        self._window.append(row)
        self._bytes += size
        self._cache.bytes_left -= size
        return True

    def _refill(self) -> None:
        for row in self._journal.messages_between(self._loaded_to, self.end, self._window_max):
            if not self._keep(row):
                return
            self._loaded_to = row.position + 1
        if len(self._window) < self._window_max:
            self._loaded_to = self.end

"""What FIFO queues accepted lately, found by deduplication key: a log in the order of time, and chains through it.

Keys are hashes, so a table ordered by them would be written to at another page with each message. Here the entries of a
batch are appended as one row, and go with it when they are five minutes old. An entry is found through its chain: a
hash of the key names a slot, which has the number of the latest entry of that hash, and each entry has the number of
the one before it. Nearly all messages are no duplicates, and nearly always the slot says so without reading: it is
empty, or what it leads to is no longer there.

The slots, of a fixed number, are in memory alone; they are filled when the log is opened, which takes half a second for
each million entries.
"""

from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import NamedTuple, Protocol

import apsw

from veilmq.store.sqlite.statements import SQL

_ENTRY = Struct(">16s16sQQ")  # key, message id, sequence number, number of the entry before in the chain
_HASH = Struct(">I")  # the first bytes of a key
_HASH_OF_ENTRY = Struct(f">I{_ENTRY.size - _HASH.size}x")
_SHIFT = 11  # the hash is the first 21 bits: like the entries it is a part of the format, since chains are stored
_SLOTS = 1 << (32 - _SHIFT)
_ENTRIES_PER_ROW = 64  # then a row fits on a page


class Staged(Protocol):
    """Something with rows that are staged until the batch writes them."""

    def write(self) -> None:
        """Write what is staged into the open transaction."""

    def forget(self) -> None:
        """Go back to what was before the batch, which is rolled back."""


class Acceptance(NamedTuple):
    """The message that was accepted with a key, and when."""

    id: bytes
    sequence: int
    accepted_at_ms: int


class Accepted:
    """The log and its slots. Entries are numbered from 1 on; a row has the number of its first one."""

    __slots__ = ("_at_ms", "_changed", "_connection", "_first", "_next", "_slots", "_staged", "_undo", "_written")

    def __init__(self, connection: apsw.Connection, *, changed: Callable[[Staged], None]) -> None:
        """Read the log; ``changed`` is called when the first entry after a write is staged."""
        self._connection = connection
        self._changed = changed
        self._slots = memoryview(mmap(-1, 8 * _SLOTS)).cast("Q")  # takes no memory before it is written to
        self._staged: list[bytes] = []
        self._undo: list[tuple[int, int]] = []  # slots of the batch, and what they had before
        self._at_ms = 0
        self._first = self._next = 1  # the numbers of the first entry that is kept, and of the next one
        self._read()
        self._written = self._next  # entries from here on are staged

    def _read(self) -> None:
        slots = self._slots
        for number, entries in self._connection.execute(SQL["all_accepted"]):
            if self._next == 1:
                self._first = number
            for at, (key,) in enumerate(_HASH_OF_ENTRY.iter_unpack(entries), number):
                slots[key >> _SHIFT] = at
            self._next = at + 1

    def find(self, key: bytes) -> Acceptance | None:
        """Return the last message that was accepted with ``key``, ``None`` when there was none in five minutes."""
        number = self._slots[_HASH.unpack_from(key)[0] >> _SHIFT]
        while number >= self._first:
            found, message_id, sequence, before, accepted_at_ms = self._entry(number)
            if found == key:
                return Acceptance(message_id, sequence, accepted_at_ms)
            number = before
        return None

    def _entry(self, number: int) -> tuple[bytes, bytes, int, int, int]:
        if number >= self._written:
            return *_ENTRY.unpack(self._staged[number - self._written]), self._at_ms
        first, accepted_at_ms, entries = self._connection.execute(SQL["accepted_row"], (number,)).get
        return *_ENTRY.unpack_from(entries, (number - first) * _ENTRY.size), accepted_at_ms

    def add(self, key: bytes, message_id: bytes, sequence: int, now_ms: int) -> None:
        """Take note of a message; all of a batch have one instant."""
        if not self._staged:
            self._changed(self)
            self._at_ms = now_ms
        slot = _HASH.unpack_from(key)[0] >> _SHIFT
        before = self._slots[slot]
        self._undo.append((slot, before))
        self._staged.append(_ENTRY.pack(key, message_id, sequence, before))
        self._slots[slot] = self._next
        self._next += 1

    def write(self) -> None:
        """Append what is staged to the log, in the open transaction."""
        staged, self._staged = self._staged, []
        starts = range(0, len(staged), _ENTRIES_PER_ROW)
        rows = [(self._written + at, self._at_ms, b"".join(staged[at : at + _ENTRIES_PER_ROW])) for at in starts]
        self._connection.executemany(SQL["insert_accepted"], rows)
        self._written = self._next

    def keep(self) -> None:
        """Take note that the batch is durable."""
        self._undo = []

    @property
    def count(self) -> int:
        """Return how many entries the batch has so far."""
        return len(self._undo)

    def forget(self, kept: int = 0) -> None:
        """Take back the entries of the batch, staged or written, but the first ``kept`` ones, which are written."""
        undone = self._undo[kept:]
        for slot, before in reversed(undone):
            self._slots[slot] = before
        self._next -= len(undone)
        self._written = self._next
        self._staged, self._undo = [], self._undo[:kept]

    def cut(self) -> None:
        """Take note that the first rows were deleted; nothing may be staged."""
        first = self._connection.execute(SQL["first_accepted"]).fetchone()
        self._first = self._next if first is None else first[0]

"""The session: the connection, its caches, and the state that the operations of a batch share.

Operations read and write through the session, in the batch's open transaction. ``clear_caches`` drops all caches; the
next operation then reads the database. The deduplication log, in this file too, keeps an index in memory.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from mmap import mmap
from os import urandom
from struct import Struct
from typing import Any, NamedTuple

import apsw

from veilmq.core.commands import Command, Wake
from veilmq.core.errors import QueueNotFound, VeilmqError
from veilmq.core.limits import PRIORITY
from veilmq.core.messages import IdSource, group_hash
from veilmq.core.receipts import KEY_BYTES, Receipt, ReceiptCodec
from veilmq.store.cold import Scheduler
from veilmq.store.sqlite.database import SQL, Database, EngineOptions
from veilmq.store.sqlite.event_log import EventLog
from veilmq.store.sqlite.queues import SEQ_MAX, Queue
from veilmq.store.transaction import SEQ_SHIFT

_NUMBERS_MAX = 16_384
_FIRST_NUMBER: tuple[int, int] = (0, 0)

# An entry of the deduplication log: key, message id, sequence number, number of the chain's previous entry.
ENTRY = Struct(">16s16sQQ")
_HASH = Struct(">I")  # the first bytes of a key
_HASH_OF_ENTRY = Struct(f">I{ENTRY.size - _HASH.size}x")
_SHIFT = 11  # the hash is the first 21 bits, part of the stored format as chains depend on it
_SLOTS = 1 << (32 - _SHIFT)
_SLOT_MASK = (1 << 32) - 1
_ENTRIES_PER_ROW = 64  # fits on a page

Row = tuple[Any, ...]

# Columns of a candidate row, from statements that select messages to receive. ``EPOCH`` is ``None`` for a message of
# the ready list, ``FIRST_RECEIVED_AT`` for one never received in this queue, ``RECEIVES_BEFORE`` and
# ``FIRST_RECEIVED_BEFORE`` for one not moved here with its history.
SEQ, LANE, RECEIVE_COUNT, EPOCH, FIRST_RECEIVED_AT, ID, BODY, PROPERTIES, SOURCE = range(9)
RECEIVES_BEFORE, FIRST_RECEIVED_BEFORE, GROUP, VISIBLE_AT = range(9, 13)


class Session:
    """The state that the operations of one store share."""

    def __init__(self, connection: apsw.Connection, *, options: EngineOptions, database: Database) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.options = options
        self.database = database
        self.wakes: dict[str, Wake] = {}
        self.schedulers: dict[type[Command], Scheduler] = {}
        self.ids = IdSource()
        self._writes: dict[str, list[Row]] = {}
        key, is_copy = self.secret_key("receipt_key"), self.row("any_renumbered") is not None
        self.codec = _RenumberingCodec(self.execute, key=key) if is_copy else ReceiptCodec(key=key)
        self.group_numbers = GroupNumbers(self.execute, key=self.secret_key("group_key"))
        self.swept_to = 0  # number of the last queue that the janitor inspected
        self.now_ms = 0  # the instant of the batch
        self.ahead_ms = 0  # shown time minus store time
        self.read_bytes_left = 0  # the bytes of bodies that the batch may still read
        self.write_bytes_left = 0  # the bytes that it may still write; the command that exceeds them is the last one
        self.deduplication_log = DeduplicationLog(connection)
        self.events = EventLog(connection, options=options, database=database)
        self.clear_caches()

    def clear_caches(self) -> None:
        """Drop all caches, and what is staged."""
        self._writes = {}
        self.group_numbers.clear()
        self.events.clear()
        self._deleted: list[Row] = []
        self._leaving: defaultdict[int, list[Row]] = defaultdict(list)
        self.group_of: dict[int, int] = {}  # groups of recently received messages, by seq
        self.queues: dict[str, Queue] = {}
        self.dirty: set[Queue] = set()  # queues whose totals the batch has yet to write
        ((_, self.last_seq, _),) = self.execute(SQL["progress"])

    # The batch.

    def stage(self, query: str, rows: list[Row]) -> None:
        """Stage rows of a statement until the batch reads or ends.

        Rows of several queues share a statement, because none reads rows of another queue.
        """
        staged = self._writes.setdefault(query, rows)
        if staged is not rows:
            staged += rows

    def flush(self) -> None:
        """Run the staged statements."""
        writes, self._writes = self._writes, {}
        for query, rows in writes.items():
            self.executemany(query, rows)

    def finish(self) -> None:
        """Write the batch's staged state, and the current time and last seq."""
        if not self.write():
            self.execute(SQL["put_progress"], (self.now_ms, self.last_seq))

    def write(self) -> bool:
        """Write the batch's staged state so far; return whether that included totals."""
        self.flush()
        self.write_deletions()
        if self.deduplication_log.staged:
            self.deduplication_log.write()
        if self.events.staged:
            self.events.write(self.ahead_ms)
        dirty, self.dirty, last_seq = self.dirty, set(), self.last_seq
        if dirty:
            totals = [
                (q.messages, q.in_flight, q.delayed, q.counted_at_ms, q.floor_seq, last_seq, q.partition) for q in dirty
            ]
            self.executemany(SQL["put_totals"], totals)
        return bool(dirty)

    def roll_back(self) -> None:
        """Roll back a failed batch and clear the caches."""
        if self.connection.in_transaction:
            self.execute("ROLLBACK")
        self.deduplication_log.reload()
        self.clear_caches()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what was written inside if it raises a ``VeilmqError``."""
        self.write()
        changes_before = self.connection.total_changes()
        self.execute("SAVEPOINT cold")
        try:
            yield
        except VeilmqError:
            self.write()
            if self.connection.total_changes() > changes_before:
                self.execute("ROLLBACK TO cold")
                self.deduplication_log.reload()
                self.clear_caches()
            raise
        finally:
            if self.connection.in_transaction:
                self.execute("RELEASE cold")

    # Reading.

    def row(self, query: str, *values: Any) -> Row | None:
        """Return the first row of a named query."""
        rows = self.rows(query, *values)
        return rows[0] if rows else None

    def rows(self, query: str, *values: Any) -> list[Row]:
        """Return the rows of a named query."""
        if self._writes:
            self.flush()
        return self.execute(SQL[query], values).fetchall()

    run = rows  # for a query that changes something

    def run_many(self, query: str, rows: Sequence[Row]) -> None:
        """Run a named query that changes something once for each of ``rows``."""
        if self._writes:
            self.flush()
        if rows:
            self.executemany(SQL[query], rows)

    def change_many(self, query: str, rows: Iterable[Row]) -> list[int]:
        """Run a named query once for each of ``rows``; return how many rows of the table each run has changed."""
        changed: list[int] = []

        def values() -> Iterator[Row]:
            for row in rows:
                yield row
                changed.append(self.connection.changes())  # of the run with these values

        self.executemany(SQL[query], values())
        return changed

    def secret_key(self, name: str) -> bytes:
        """Return the secret ``name`` of the store, created if missing."""
        row = self.row("setting", name)
        key: bytes = urandom(KEY_BYTES) if row is None else row[0]
        if row is None:
            self.run("put_setting", name, key)
        return key

    # Queues.

    def find(self, name: str) -> Queue | None:
        """Return the queue of that full name, or ``None``."""
        queue = self.queues.get(name)
        if queue is None and (row := self.row("queue_by_name", name)) is not None:
            queue = self.queues[name] = Queue(row, self.options, self.wakes.get(name))
            lane = -1
            while not queue.fifo:
                ((lane,),) = self.rows("first_lane_after", queue.partition, lane)
                if lane is None:
                    break
                queue.lanes += (lane,)
                queue.has_groups = queue.has_groups or lane > PRIORITY.maximum
        return queue

    def queue(self, name: str) -> Queue:
        """Return the queue of that full name; raises ``QueueNotFound``."""
        queue = self.find(name)
        if queue is None:
            raise QueueNotFound(name)
        return queue

    def reload(self, queue: Queue) -> bool:
        """Apply the changed row of ``queue``; if it was deleted, uncache the queue and return ``False``."""
        row = self.row("queue_by_name", queue.name)
        if row is None:
            del self.queues[queue.name]
            self.dirty.discard(queue)
            return False
        queue.reload(row)
        return True

    # Seqs.

    def next_seq(self) -> int:
        """Return the seq of the next message without consuming it."""
        last_seq: int = self.last_seq
        return max(last_seq + 1, self.now_ms << SEQ_SHIFT)

    def delete_messages(self, partition: int, seqs: list[Row], *, ordered: bool) -> None:
        """Delete messages, given as rows of their seq, at the end of the batch; ``ordered``: of a FIFO queue."""
        self._deleted += seqs
        if ordered:
            self.leave_runs(partition, seqs)

    def leave_runs(self, partition: int, seqs: list[Row]) -> None:
        """Remove messages of a FIFO queue from their runs, at the end of the batch."""
        self._leaving[partition] += seqs

    def write_deletions(self) -> None:
        """Write what ``delete_messages`` and ``leave_runs`` have staged; a run without messages is deleted."""
        if self._deleted:
            deleted, self._deleted = self._deleted, []
            self.executemany(SQL["delete_message"], deleted)
        if not self._leaving:
            return
        leaving_seqs, self._leaving = self._leaving, defaultdict(list)
        for partition, seqs in leaving_seqs.items():
            runs = [[-1, 0, 0]]  # last seq, messages, messages that leave
            for (seq,) in sorted(seqs):
                if seq > runs[-1][0]:
                    (found,) = self.rows("ordered_run", partition, seq)
                    runs.append([*found, 0])
                runs[-1][2] += 1
            for last_seq, messages, leaving in runs[1:]:
                if leaving == messages:
                    self.execute(SQL["delete_ordered_run"], (partition, last_seq))
                else:
                    self.execute(SQL["shrink_ordered_run"], (leaving, partition, last_seq))


class GroupNumbers:
    """Numbers of FIFO message groups, by a hash of the name: the seq of the first message. Recent ones are cached."""

    def __init__(self, execute: Callable[..., Any], *, key: bytes) -> None:
        self._execute = execute
        self.key = key
        self._swept_to = _FIRST_NUMBER
        self.clear()

    def clear(self) -> None:
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, partition: int, name: str, seq: int) -> int:
        """Return the number of a group; a new group gets ``seq``, that of the message being stored."""
        number = self._numbers.get((partition, name))
        if number is None:
            if len(self._numbers) >= _NUMBERS_MAX:
                self._numbers.clear()
            number = self._numbers[partition, name] = self.get_or_add(partition, group_hash(name, self.key), seq)
        return number

    def get_or_add(self, partition: int, name_hash: int, seq: int) -> int:
        """Return the number of the group with that hash; a new group is stored with the number ``seq``."""
        row = self._execute(SQL["group_number"], (partition, name_hash)).fetchone()
        if row is not None:
            return int(row[0])
        self._execute(SQL["insert_group_number"], (partition, name_hash, seq))
        return seq

    def sweep(self, count: int) -> bool:
        """Delete the numbers of empty groups in a slice; return whether to continue at once.

        After the last slice it pauses: groups that return at once would keep it busy.
        """
        rows = self._execute(SQL["group_numbers_after"], (*self._swept_to, count)).fetchall()
        deleted = [row[:2] for row in rows if not row[2]]
        for group in deleted:
            self._execute(SQL["delete_group_number"], group)
        is_slice = len(rows) == count
        self._swept_to = rows[-1][:2] if is_slice else _FIRST_NUMBER
        if deleted:
            self.clear()
        return is_slice and len(deleted) * 2 > count


class _RenumberingCodec(ReceiptCodec):
    """The receipt codec of a copied store. ``renumbered`` maps positions in older receipts to seqs."""

    __slots__ = ("_execute",)

    def __init__(self, execute: Callable[..., Any], *, key: bytes) -> None:
        super().__init__(key=key)
        self._execute = execute

    def read(self, text: str) -> Receipt:
        receipt = super().read(text)
        row = self._execute(SQL["renumbered"], (receipt.queue, receipt.position)).fetchone()
        return receipt if row is None else receipt._replace(position=row[0])


# The deduplication log.


class Deduplication(NamedTuple):
    """The message that was accepted with a key, and when."""

    id: bytes
    sequence: int
    logged_at_ms: int


class DeduplicationLog:
    """The messages that FIFO queues accepted in the last five minutes, by deduplication key.

    Keys are hashes, so a table ordered by key would dirty another page for each message. Instead, the entries of a
    batch, numbered from 1, are appended as rows of up to 64 and deleted when they are five minutes old. A slot of a
    hash table has the number of the latest entry with that hash; each entry has the number of the previous one. For
    most messages, which are no duplicates, the slot alone gives the answer.

    The slots are in memory only, 32 bits of each number. After opening, or a rollback of entries, the janitor reads the
    log into them in slices, or the first message that needs them reads all of it: a million entries take a quarter of a
    second.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._at_ms = 0
        self._next = 0  # the number of the next entry
        self.reload()

    def reload(self) -> None:
        """Follow the table after opening or a rollback; the slots are read again if entries were undone."""
        self.staged: list[bytes] = []  # entries that the batch has yet to write
        before, self._next = self._next, 1
        for number, _, entries in self._connection.execute(SQL["accepted_row"], (SEQ_MAX,)):
            self._next = number + len(entries) // ENTRY.size
        self.refresh_first()
        if self._next != before:
            self._slots = memoryview(mmap(-1, 4 * _SLOTS)).cast("I")  # uses no memory until written
            self._unread = self._first if self._first < self._next else None  # the first entry not in the slots yet

    def read(self, rows_max: int) -> bool:
        """Read ``rows_max`` more rows into the slots, or all for -1; return whether there are more."""
        if self._unread is None:
            return False
        rows = 0
        for number, _, entries in self._connection.execute(SQL["accepted_from"], (self._unread, rows_max)):
            rows += 1
            for at, (key,) in enumerate(_HASH_OF_ENTRY.iter_unpack(entries), number):
                self._slots[key >> _SHIFT] = at & _SLOT_MASK
            self._unread = at + 1
        if rows != rows_max:
            self._unread = None
        return self._unread is not None

    def _latest(self, key: bytes) -> int:
        """Return the number of the latest entry in the slot of ``key``, or 0 if it was deleted."""
        if self._unread is not None:
            self.read(-1)
        slot: int = self._slots[_HASH.unpack_from(key)[0] >> _SHIFT]
        number = self._first + (slot - self._first & _SLOT_MASK)
        return number if number < self._next else 0

    def find(self, key: bytes) -> Deduplication | None:
        """Return the last message accepted with ``key``, or ``None`` if there was none in five minutes."""
        number = self._latest(key)
        while number >= self._first:
            at = number - self._next + len(self.staged)
            if at >= 0:
                logged_at_ms, entry = self._at_ms, ENTRY.unpack(self.staged[at])
            else:
                first, logged_at_ms, entries = self._connection.execute(SQL["accepted_row"], (number,)).get
                entry = ENTRY.unpack_from(entries, (number - first) * ENTRY.size)
            found, message_id, sequence, before = entry
            if found == key:
                return Deduplication(message_id, sequence, logged_at_ms)
            number = before
        return None

    def add(self, key: bytes, message_id: bytes, sequence: int, now_ms: int) -> None:
        """Log a message; all messages of a batch have the same ``now_ms``."""
        self._at_ms = now_ms
        self.staged.append(ENTRY.pack(key, message_id, sequence, self._latest(key)))
        self._slots[_HASH.unpack_from(key)[0] >> _SHIFT] = self._next & _SLOT_MASK
        self._next += 1

    def write(self) -> None:
        """Append the staged entries in the open transaction."""
        staged = self.staged
        first, starts = self._next - len(staged), range(0, len(staged), _ENTRIES_PER_ROW)
        rows = [(first + at, self._at_ms, b"".join(staged[at : at + _ENTRIES_PER_ROW])) for at in starts]
        self._connection.executemany(SQL["insert_accepted"], rows)
        self.staged = []

    def refresh_first(self) -> None:
        """Update the first number after rows were deleted."""
        first = self._connection.execute(SQL["accepted_from"], (1, 1)).fetchone()
        self._first = self._next - len(self.staged) if first is None else first[0]

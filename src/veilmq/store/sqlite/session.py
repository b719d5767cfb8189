"""The session: one connection, the caches above it, and what every operation of a batch shares.

An operation reads and writes through the session, inside the batch's open transaction. ``forget`` drops every cache:
the next operation reads what the database has. The deduplication log is here, too: what it has in memory is an index.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
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
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite.database import SQL, Database, EngineOptions
from veilmq.store.sqlite.event_log import EventLog

_NUMBERS_MAX = 16_384
_FIRST_NUMBER: tuple[int, int] = (0, 0)

ENTRY = Struct(">16s16sQQ")
"""Of the deduplication log: key, message id, sequence number, number of the entry before in the chain."""
_HASH = Struct(">I")  # the first bytes of a key
_HASH_OF_ENTRY = Struct(f">I{ENTRY.size - _HASH.size}x")
_SHIFT = 11  # the hash is the first 21 bits: like the entries it is a part of the format, since chains are stored
_SLOTS = 1 << (32 - _SHIFT)
_SLOT_MASK = (1 << 32) - 1
_ENTRIES_PER_ROW = 64  # then a row fits on a page

Row = tuple[Any, ...]


class Session:
    """What the operations of one store share."""

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
        key, is_copy = self.kept_key("receipt_key"), self.row("any_renumbered") is not None
        self.book = _RenumberingCodec(self.execute, key=key) if is_copy else ReceiptCodec(keys=[key])
        self.group_numbers = GroupNumbers(self.execute, key=self.kept_key("group_key"))
        self.swept_to = 0  # the number of the queue that the janitor inspected last
        self.now_ms = 0  # the instant of the batch
        self.ahead_ms = 0  # how far the instants that users see are ahead of the store's
        self.bytes_left = 0  # of bodies that the batch may still read
        self.write_bytes_left = 0  # that it may still write; the command that goes beyond is its last one that writes
        self.deduplication_log = DeduplicationLog(connection)
        self.events = EventLog(connection, options=options, database=database)
        self.forget()

    def forget(self) -> None:
        """Drop what is cached."""
        self._writes = {}
        self.group_numbers.forget()
        self.events.forget()
        self.has_ended = False
        """Whether ``settle_ended`` has something to write."""
        self._ended: list[Row] = []
        self._left: defaultdict[int, list[Row]] = defaultdict(list)
        self.group_of: dict[int, int] = {}  # of messages that were received lately, by seq
        self.queues: dict[str, Queue] = {}
        self._touched: list[Queue] = []
        ((_, self.last_seq, _),) = self.execute(SQL["progress"])

    # The batch.

    def mark_dirty(self, queue: Queue) -> None:
        """Write the totals of ``queue`` with the batch."""
        if not queue.dirty:
            queue.dirty = True
            self._touched.append(queue)

    def stage(self, query: str, rows: list[Row]) -> None:
        """Have a statement (its text) that changes something run for ``rows``, with those of other queues.

        Nothing reads the rows of another queue, so they wait until the batch reads its own again, or ends.
        """
        staged = self._writes.setdefault(query, rows)
        if staged is not rows:
            staged += rows

    def flush(self) -> None:
        """Run what is staged."""
        writes, self._writes = self._writes, {}
        for query, rows in writes.items():
            self.executemany(query, rows)

    def finish(self) -> None:
        """Write what the batch has gathered, and how far time and seqs have come."""
        if not self.write():
            self.execute(SQL["put_progress"], (self.now_ms, self.last_seq))

    def write(self) -> bool:
        """Write what the batch has gathered so far; tell whether that were totals."""
        self.flush()
        if self.has_ended:
            self.settle_ended()
        if self.deduplication_log.staged:
            self.deduplication_log.write()
        if self.events.staged:
            self.events.write(self.ahead_ms)
        touched, self._touched = self._touched, []
        rows: list[Row] = []
        for q in touched:
            q.dirty = False
            rows.append((q.messages, q.in_flight, q.delayed, q.counted_at_ms, q.floor_seq, self.last_seq, q.partition))
        if rows:
            self.executemany(SQL["put_totals"], rows)
        return bool(rows)

    def roll_back(self) -> None:
        """Undo and forget a batch that failed."""
        self.deduplication_log.forget()
        if self.connection.in_transaction:
            self.execute("ROLLBACK")
        self.forget()

    @contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo and forget what is written inside when that ends in a ``VeilmqError``."""
        self.write()
        accepted, changes_before = self.deduplication_log.count, self.connection.total_changes()
        self.execute("SAVEPOINT cold")
        try:
            yield
        except VeilmqError:
            waits = (
                self._writes or self.deduplication_log.staged or self.events.staged or self._touched or self.has_ended
            )
            if waits or self.connection.total_changes() > changes_before:
                self.execute("ROLLBACK TO cold")
                self.deduplication_log.forget(accepted)
                self.forget()
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

    run = rows
    """Run a named query that changes something."""

    def many(self, query: str, rows: Sequence[Row]) -> None:
        """Run a named query that changes something, once for each of ``rows``."""
        if self._writes:
            self.flush()
        if rows:
            self.executemany(SQL[query], rows)

    def kept_key(self, name: str) -> bytes:
        """Return the secret ``name`` of the store, made where there is none."""
        row = self.row("setting", name)
        key: bytes = urandom(KEY_BYTES) if row is None else row[0]
        if row is None:
            self.run("put_setting", name, key)
        return key

    # Queues.

    def find(self, name: str) -> Queue | None:
        """Return the queue of that full name, if there is one."""
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
        """Have ``queue`` follow its row, which was changed; forget it and return ``False`` where that was deleted."""
        row = self.row("queue_by_name", queue.name)
        if row is None:
            del self.queues[queue.name]
            if queue.dirty:
                self._touched.remove(queue)
            return False
        queue.reload(row, self.now_ms)
        return True

    # Seqs.

    def next_seq(self) -> int:
        """Return the seq of the next message, which is not used up by this."""
        last_seq: int = self.last_seq
        return max(last_seq + 1, self.now_ms << SEQ_SHIFT)

    def ended(self, partition: int, seqs: list[Row], *, ordered: bool) -> None:
        """Have messages (seq alone) deleted at the end of the batch; ``ordered``: they are of a FIFO queue."""
        self._ended += seqs
        self.has_ended = True
        if ordered:
            self.left(partition, seqs)

    def left(self, partition: int, seqs: list[Row]) -> None:
        """Have messages of a FIFO queue counted out of their runs at the end of the batch."""
        self._left[partition] += seqs
        self.has_ended = True

    def settle_ended(self) -> None:
        """Write what ``ended`` and ``left`` have gathered; a run without messages is deleted."""
        self.has_ended = False
        if self._ended:
            ended, self._ended = self._ended, []
            self.executemany(SQL["delete_message"], ended)
        if not self._left:
            return
        left, self._left = self._left, defaultdict(list)
        for partition, seqs in left.items():
            runs = [[-1, 0, 0]]  # last seq, messages, and how many of them have left
            for (seq,) in sorted(seqs):
                if seq > runs[-1][0]:
                    (found,) = self.rows("ordered_run", partition, seq)
                    runs.append([*found, 0])
                runs[-1][2] += 1
            for last_seq, messages, gone in runs[1:]:
                if gone == messages:
                    self.execute(SQL["delete_ordered_run"], (partition, last_seq))
                else:
                    self.execute(SQL["shrink_ordered_run"], (gone, partition, last_seq))


class GroupNumbers:
    """The numbers of message groups of FIFO queues: that of its first message, found by a hash of the group's name.

    There is a cache of those that were used lately. The janitor removes the numbers of groups without messages.
    """

    def __init__(self, execute: Callable[..., Any], *, key: bytes) -> None:
        self._execute = execute
        self.key = key
        self._swept_to = _FIRST_NUMBER
        self.forget()

    def forget(self) -> None:
        """Drop the cache."""
        self._numbers: dict[tuple[int, str], int] = {}

    def number(self, partition: int, name: str, seq: int) -> int:
        """Return the number of a group, which is ``seq`` if it has none yet: that of a message that is being stored."""
        number = self._numbers.get((partition, name))
        if number is None:
            if len(self._numbers) >= _NUMBERS_MAX:
                self._numbers.clear()
            number = self._numbers[partition, name] = self.of_hash(partition, group_hash(name, self.key), seq)
        return number

    def of_hash(self, partition: int, name_hash: int, seq: int) -> int:
        """Return the same of a group whose name is known by its hash."""
        row = self._execute(SQL["group_number"], (partition, name_hash)).fetchone()
        if row is not None:
            return int(row[0])
        self._execute(SQL["insert_group_number"], (partition, name_hash, seq))
        return seq

    def sweep(self, count: int) -> bool:
        """Remove the numbers of groups without messages from a slice of all; tell whether to go on with the next one.

        At the end of all it rests: groups that come back at once would keep it busy.
        """
        rows = self._execute(SQL["group_numbers_behind"], (*self._swept_to, count)).fetchall()
        ended = [row[:2] for row in rows if not row[2]]
        for group in ended:
            self._execute(SQL["delete_group_number"], group)
        is_slice = len(rows) == count
        self._swept_to = rows[-1][:2] if is_slice else _FIRST_NUMBER
        if ended:
            self.forget()
        return is_slice and len(ended) * 2 > count


class _RenumberingCodec(ReceiptCodec):
    """A book of a copy: receipts of the store that it was copied from name positions there; ``renumbered`` has both."""

    __slots__ = ("_execute",)

    def __init__(self, execute: Callable[..., Any], *, key: bytes) -> None:
        super().__init__(keys=[key])
        self._execute = execute

    def read(self, text: str) -> Receipt:
        """Return what ``text`` says, of the seq that its message has here; raises ``ReceiptInvalid``."""
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
    """What FIFO queues accepted lately, found by deduplication key: a log in the order of time, and chains through it.

    Keys are hashes, so a table ordered by them would be written to at another page with each message. Here the entries
    of a batch, numbered from 1 on, are appended as one row, and go with it when they are five minutes old. A hash of
    the key names a slot, which has the number of the latest entry of that hash, and each entry has the number of the
    one before it. For nearly all messages, which are no duplicates, the slot says so without reading.

    The slots are in memory alone, 32 bits of each number. What is in the log when it is opened is read into them by the
    janitor in slices, or whole by the first message that needs them: a million entries take a quarter of a second.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._slots = memoryview(mmap(-1, 4 * _SLOTS)).cast("I")  # takes no memory before it is written to
        self.staged: list[bytes] = []
        """The entries that the batch has still to write."""
        self._written: list[bytes] = []  # those that it has written, and that are not durable yet
        self._at_ms = 0
        self._first = self._next = 1  # the numbers of the first entry that is kept, and of the next one
        for number, _, entries in connection.execute(SQL["accepted_row"], (NEVER_MS,)):
            self._next = number + len(entries) // ENTRY.size
            self.cut()
        self._unread = self._first if self._first < self._next else None  # the first entry that no slot knows yet

    def read(self, rows_max: int) -> bool:
        """Read so many more rows into the slots, -1 for all; return whether there are more."""
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
        """Return the number of the latest entry that has the slot of ``key``; 0 if it is none of those kept."""
        if self._unread is not None:
            self.read(-1)
        slot: int = self._slots[_HASH.unpack_from(key)[0] >> _SHIFT]
        number = self._first + (slot - self._first & _SLOT_MASK)
        return number if number < self._next else 0

    def find(self, key: bytes) -> Deduplication | None:
        """Return the last message that was accepted with ``key``, ``None`` when there was none in five minutes."""
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
        """Take note of a message; all of a batch have one instant."""
        self._at_ms = now_ms
        self.staged.append(ENTRY.pack(key, message_id, sequence, self._latest(key)))
        self._slots[_HASH.unpack_from(key)[0] >> _SHIFT] = self._next & _SLOT_MASK
        self._next += 1

    def write(self) -> None:
        """Append what is staged to the log, in the open transaction."""
        staged = self.staged
        first, starts = self._next - len(staged), range(0, len(staged), _ENTRIES_PER_ROW)
        rows = [(first + at, self._at_ms, b"".join(staged[at : at + _ENTRIES_PER_ROW])) for at in starts]
        self._connection.executemany(SQL["insert_accepted"], rows)
        self._written += staged
        self.staged = []  # not before: what could not be written is taken back, too

    def keep(self) -> None:
        """Take note that the batch is durable."""
        self._written = []

    @property
    def count(self) -> int:
        """Return how many entries the batch has so far."""
        return len(self._written) + len(self.staged)

    def forget(self, kept: int = 0) -> None:
        """Take back the entries of the batch, staged or written, but the first ``kept`` ones, which are written."""
        undone = [*self._written, *self.staged][kept:]
        for entry in reversed(undone):
            self._slots[_HASH.unpack_from(entry)[0] >> _SHIFT] = ENTRY.unpack(entry)[3] & _SLOT_MASK
        self._next -= len(undone)
        self.staged, self._written = [], self._written[:kept]

    def cut(self) -> None:
        """Take note that the first rows were deleted; what is staged stays."""
        first = self._connection.execute(SQL["accepted_from"], (1, 1)).fetchone()
        self._first = self._next - len(self.staged) if first is None else first[0]

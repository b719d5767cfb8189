"""The session: one connection, the caches above it, and what every operation of a batch shares.

An operation reads and writes through the session, inside the batch's open transaction. ``forget`` drops every cache:
the next operation reads what the database has.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from os import urandom
from typing import Any

import apsw
import msgspec

from veilmq.core.errors import QueueNotFound
from veilmq.core.ids import IdSource
from veilmq.core.limits import PRIORITY
from veilmq.core.ports import Wake
from veilmq.core.receipts import KEY_BYTES, ReceiptBook
from veilmq.engines.embedded.accepted import Accepted
from veilmq.engines.embedded.keyed import Staged
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.space import Space
from veilmq.engines.named_sql import load
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue

SQL = load("veilmq.store.sqlite", "queries.sql")

_PUT_TOTALS = SQL["put_totals"]
_PUT_PROGRESS = SQL["put_progress"]
_SWEPT_AT_ONCE = 1_000
_GROUPS_REMEMBERED_MAX = 65_536
_FIRST_GROUP: tuple[int, int] = (0, 0)

Row = tuple[Any, ...]

Swept = Callable[["Session", Queue, list[Row], int], object]
"""Called with a queue's rows that were deleted as they passed their retention."""


class Session:
    """What the operations of one store share."""

    def __init__(self, connection: apsw.Connection, *, options: EngineOptions, space: Space) -> None:
        """``connection`` has the tables; ``space`` tells when the disk is nearly full."""
        self.connection = connection
        self.execute = connection.execute
        self.executemany = connection.executemany
        self.options = options
        self.space = space
        self.wakes: dict[str, Wake] = {}
        self.ids = IdSource()
        self._writes: dict[str, list[Row]] = {}
        self.book = ReceiptBook(keys=[self.kept_key("receipt_key")])
        self.group_key = self.kept_key("group_key")
        self._groups_swept_to = _FIRST_GROUP
        self.swept_to = 0
        """The number of the queue that the janitor looked at last."""
        self.unswept = True
        """Whether the janitor may find work."""
        self.bytes_left = 0
        """How many more bytes of bodies the batch may read."""
        self._staged: list[Staged] = []
        self.accepted = Accepted(connection, changed=self._staged.append)
        self.forget()

    def forget(self) -> None:
        """Drop what is cached."""
        self._writes = {}
        self._group_numbers: dict[tuple[int, str], int] = {}
        self.queues: dict[str, Queue] = {}
        self._touched: list[Queue] = []
        ((_, self.last_seq, _),) = self.execute(SQL["progress"])

    # The batch.

    def touch(self, queue: Queue) -> None:
        """Have the totals of ``queue`` written with the batch."""
        if not queue.touched:
            queue.touched = True
            self._touched.append(queue)

    def stage(self, query: str, rows: list[Row]) -> None:
        """Have a statement (its text) that changes something run for ``rows``, with those of other queues.

        Nothing reads the rows of another queue, so they wait until the batch reads its own again, or ends.
        """
        staged = self._writes.get(query)
        if staged is None:
            self._writes[query] = rows
        else:
            staged += rows

    def flush(self) -> None:
        """Run what is staged."""
        writes, self._writes = self._writes, {}
        for query, rows in writes.items():
            self.executemany(query, rows)

    def finish(self, now_ms: int) -> None:
        """Write what the batch has gathered."""
        self.flush()
        if self._staged:
            for table in self._staged:
                table.write()
            self._staged.clear()
        if self._touched:
            self.executemany(
                _PUT_TOTALS,
                [
                    (q.messages, q.in_flight, q.delayed, q.counted_at_ms, q.floor_seq, self.last_seq, q.partition)
                    for q in self._touched
                ],
            )
            for queue in self._touched:
                queue.touched = False
            self._touched = []
        else:
            self.execute(_PUT_PROGRESS, (now_ms, self.last_seq))

    def roll_back(self) -> None:
        """Forget a batch that failed."""
        self._staged.clear()
        self.accepted.forget()
        if self.connection.in_transaction:
            self.execute("ROLLBACK")
        self.forget()

    def undo(self, accepted: int) -> None:
        """Forget a command that was rolled back; the log has ``accepted`` entries of the batch before it."""
        self._staged.clear()
        self.accepted.forget(accepted)
        self.forget()

    # Reading.

    def row(self, query: str, *values: Any) -> Row | None:
        """Return the first row of a named query."""
        if self._writes:
            self.flush()
        found: Row | None = self.execute(SQL[query], values).fetchone()
        return found

    def rows(self, query: str, *values: Any) -> list[Row]:
        """Return the rows of a named query."""
        if self._writes:
            self.flush()
        return self.execute(SQL[query], values).fetchall()

    def run(self, query: str, *values: Any) -> None:
        """Run a named query that changes something."""
        if self._writes:
            self.flush()
        self.execute(SQL[query], values)

    def many(self, query: str, rows: list[Row]) -> None:
        """Run a named query that changes something, once for each of ``rows``."""
        if self._writes:
            self.flush()
        if rows:
            self.executemany(SQL[query], rows)

    def kept_key(self, name: str) -> bytes:
        """Return the secret ``name`` of the store, made where there is none."""
        row = self.row("setting", name)
        if row is None:
            row = (urandom(KEY_BYTES),)
            self.run("put_setting", name, row[0])
        key: bytes = row[0]
        return key

    # Queues.

    def find(self, name: str) -> Queue | None:
        """Return the queue of that full name, if there is one."""
        queue = self.queues.get(name)
        return self._load(name) if queue is None else queue

    def queue(self, name: str) -> Queue:
        """Return the queue of that full name; raises ``QueueNotFound``."""
        queue = self.queues.get(name) or self._load(name)
        if queue is None:
            raise QueueNotFound(name)
        return queue

    def _load(self, name: str) -> Queue | None:
        row: Any = self.row("queue_by_name", name)
        if row is None:
            return None
        queue = self.queues[name] = Queue(row, self.wakes.get(name))
        self.set_limit(queue)
        lane = -1
        while not queue.fifo and (found := self.row("first_lane_after", queue.partition, lane)) is not None:
            lane = found[0]
            queue.lanes += (lane,)
            queue.shares = queue.shares or lane > PRIORITY.maximum
        return queue

    def drop(self, queue: Queue) -> None:
        """Forget a queue that was deleted."""
        del self.queues[queue.name]
        if queue.touched:
            self._touched.remove(queue)

    def names(self, prefix: str, after: str, count: int) -> list[str]:
        """Return up to ``count`` full names that begin with ``prefix`` and follow ``after``, in order."""
        found = self.rows("queue_names", prefix, after, prefix + chr(0x10FFFF), count)
        return [name for (name,) in found]

    def set_limit(self, queue: Queue) -> None:
        """Put the in-flight limit in force."""
        own, options = queue.settings.in_flight_max, self.options
        theirs = options.fifo_in_flight_max if queue.fifo else options.in_flight_max
        queue.in_flight_max = theirs if own is None else own

    def change(self, queue: Queue, settings: Any, modified_at_ms: int) -> None:
        """Give ``queue`` other settings."""
        queue.follow(settings)
        queue.modified_at_ms = modified_at_ms
        self.set_limit(queue)
        encoded = msgspec.json.encode(settings)
        self.run("update_queue", encoded, settings.dead_letter_queue, modified_at_ms, queue.number)

    # Groups of FIFO queues.

    def group_number(self, partition: int, name: str, seq: int) -> int:
        """Return the number of a group, which is ``seq`` if it has none yet: that of a message that is being stored."""
        number = self._group_numbers.get((partition, name))
        if number is None:
            if len(self._group_numbers) >= _GROUPS_REMEMBERED_MAX:
                self._group_numbers.clear()
            number = self.number_of_hash(partition, group_hash(self.group_key, name), seq)
            self._group_numbers[partition, name] = number
        return number

    def number_of_hash(self, partition: int, name_hash: int, seq: int) -> int:
        """Return the same of a group whose name is known by its hash."""
        row = self.execute(SQL["group_number"], (partition, name_hash)).fetchone()
        if row is None:
            self.execute(SQL["insert_group_number"], (partition, name_hash, seq))
        return seq if row is None else int(row[0])

    def sweep_groups(self, count: int) -> bool:
        """Remove the numbers of groups without messages from a slice of all; tell whether many were found."""
        rows = self.rows("group_numbers_behind", *self._groups_swept_to, count)
        ended = [row[:2] for row in rows if not row[2]]
        self.many("delete_group_number", ended)
        self._groups_swept_to = rows[-1][:2] if len(rows) == count else _FIRST_GROUP
        if ended:
            self._group_numbers.clear()
        return len(ended) * 2 > count

    # Time.

    def next_seq(self, now_ms: int) -> int:
        """Return the seq of the next message, which is not used up by this."""
        last_seq: int = self.last_seq
        return max(last_seq + 1, now_ms << SEQ_SHIFT)

    def settle_time(self, queue: Queue, now_ms: int, swept: Swept) -> None:
        """Bring a queue to the present: totals, and a slice of what is past its retention.

        ``swept`` is told of the rows that were deleted, and notifies waiters.
        """
        if now_ms > queue.counted_at_ms:
            queue.catch_up(now_ms, self.count_due, self.next_hidden_ms)
        if now_ms >= queue.expires_at_ms:
            rows = self.sweep(queue, now_ms, _SWEPT_AT_ONCE)
            if rows:
                swept(self, queue, rows, now_ms)

    def sweep(self, queue: Queue, now_ms: int, rows_max: int) -> list[Row]:
        """Delete up to ``rows_max`` messages past their retention.

        Returns seq, visible_at, receive_count, group, and in a standard queue the lane of each.
        """
        kind = "ordered" if queue.fifo else "standard"
        rows = self.rows(f"{kind}_below", queue.partition, queue.floor(now_ms), rows_max)
        if rows:
            self.executemany(SQL[f"{kind}_delete"], [(queue.partition, row[0]) for row in rows])
            self.executemany(SQL["delete_message"], [(row[0],) for row in rows])
            for _, visible_at_ms, receive_count, *_ in rows:
                queue.unhide(visible_at_ms or 0, received=receive_count > 0)
            queue.messages -= len(rows)
            self.touch(queue)
        oldest = None if len(rows) == rows_max else self.row(f"{kind}_oldest", queue.partition)
        if len(rows) == rows_max:
            queue.expires_at_ms = now_ms
        else:
            queue.expires_at_ms = NEVER_MS if oldest is None else (oldest[0] >> SEQ_SHIFT) + queue.retention_ms
        return rows

    def count_due(self, queue: Queue, after_ms: int, until_ms: int) -> tuple[int, int]:
        """Count the messages that became visible in (after, until], and those of them that had been received."""
        if queue.fifo:
            ((due, received),) = self.rows("ordered_count_due", queue.partition, after_ms, until_ms)
            return due, received
        due = received = 0
        for lane in queue.lanes:
            ((count, leases),) = self.rows("standard_count_due", queue.partition, lane, after_ms, until_ms)
            due += count
            received += leases
        return due, received

    def next_hidden_ms(self, queue: Queue, after_ms: int) -> int:
        """Return when the next hidden message becomes visible after an instant; ``NEVER_MS`` when none does."""
        if queue.fifo:
            row = self.row("ordered_next_hidden", queue.partition, after_ms)
            return NEVER_MS if row is None else int(row[0])
        first_ms: int = NEVER_MS
        for lane in queue.lanes:
            row = self.row("standard_next_hidden", queue.partition, lane, after_ms)
            if row is not None and row[0] < first_ms:
                first_ms = row[0]
        return first_ms

    def next_place_ms(self, queue: Queue, now_ms: int) -> int:
        """Return when the next lease ends, or an instant before that at which to look again."""
        asks = (
            [("ordered_ends_after", ())] if queue.fifo else [("standard_ends_after", (lane,)) for lane in queue.lanes]
        )
        first_ms = NEVER_MS
        for query, lane in asks:
            ends = self.rows(query, queue.partition, *lane, now_ms)
            leases = (end_ms for end_ms, receive_count in ends if receive_count)
            first_ms = min(first_ms, next(leases, ends[-1][0] if ends else NEVER_MS))
        return first_ms


@lru_cache(maxsize=16_384)  # senders name the same groups again and again
def group_hash(key: bytes, group: str) -> int:
    """Return the number of a message group: a hash under the store's secret ``key``, so that nobody makes two equal."""
    return int.from_bytes(blake2b(group.encode(), key=key, digest_size=8).digest()) >> 1

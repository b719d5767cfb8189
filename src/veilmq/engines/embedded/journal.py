"""The journal: SQLite, written a batch at a time.

Changes of rows are staged in lists and written with ``executemany``; ``finish`` completes the transaction of a batch
but for its COMMIT, and ``commit`` makes it durable (WAL, ``synchronous=FULL``: one sync). Everything that reads first
writes what is staged into the open transaction, on the same connection, so that a read always sees its own batch, and
no read outlives one.

A row's life only goes forward (message, then lease, then neither) and a position is never given twice, so writing
messages, then first leases, then changed leases, then deletions gives the same rows as the order in which the batch
made them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import apsw
from msgspec.structs import astuple

from veilmq.core.limits import BATCH_ROW_BYTES
from veilmq.engines.embedded.accepted import Accepted
from veilmq.engines.embedded.database import Database
from veilmq.engines.embedded.keyed import KeyedTable, Staged
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.rows import LaneRow, Lease, MessageRow, QueueRow
from veilmq.engines.named_sql import load

SQL: dict[str, str] = {}
for _file in ("queries.sql", "events.sql", "topics.sql", "copies.sql"):
    SQL |= load("veilmq.engines.embedded", _file)

_LAST_INSTANT = "last_instant_ms"
_MARK = "clock_mark"


class Sent(NamedTuple):
    """Where a message stands and when it was sent."""

    position: int
    sent_at_ms: int


class StoredLane(Protocol):
    """What the journal needs of a lane: to be told once a batch, and its row."""

    touched: bool
    number: int

    def row(self) -> LaneRow:
        """Return the lane as it is to be stored."""


class Journal(Database):
    """A database and what is staged for it."""

    def __init__(self, connection: apsw.Connection, *, options: EngineOptions) -> None:
        """``connection`` has the current format (see ``folder``)."""
        super().__init__(connection, options=options)
        self._messages: list[MessageRow] = []
        self._first_leases: list[tuple[Any, ...]] = []
        self._leases: list[tuple[Any, ...]] = []
        self._gone: list[tuple[int]] = []
        self._lanes: list[StoredLane] = []
        self._staged: list[Staged] = []  # the tables with something staged
        self.turns = self._table("turn")
        self.accepted = Accepted(connection, changed=self._stage)
        self.attempts = self._table("attempt")
        self._accepted_before = 0
        self.batch_bytes = 0
        self._mark: bytes | None = None
        self._mark_alone = False

    def _table(self, name: str) -> KeyedTable:
        return KeyedTable(
            self._connection,
            put=SQL[f"put_{name}"],
            delete=SQL[f"delete_{name}"],
            select=SQL[f"{name}_at"],
            changed=self._stage,
        )

    def _stage(self, table: Staged) -> None:
        self._staged.append(table)

    # Staging: nothing here touches the database.

    def add_message(self, row: MessageRow) -> None:
        """Stage a new message."""
        self._messages.append(row)
        self.batch_bytes += BATCH_ROW_BYTES + len(row.body) + len(row.properties)

    def add_lease(self, lease: Lease) -> None:
        """Stage the lease of a message that has none in the store, which is written in two thirds of the time."""
        self._first_leases.append(astuple(lease))
        self.batch_bytes += BATCH_ROW_BYTES

    def put_lease(self, lease: Lease) -> None:
        """Stage the lease as it is now."""
        self._leases.append(astuple(lease))
        self.batch_bytes += BATCH_ROW_BYTES

    def remove(self, position: int) -> None:
        """Stage the deletion of a message and its lease."""
        self._gone.append((position,))
        self.batch_bytes += BATCH_ROW_BYTES

    def touch(self, lane: StoredLane) -> None:
        """Have the lane's row written with this batch."""
        if not lane.touched:
            lane.touched = True
            self._lanes.append(lane)

    def put_mark(self, mark: bytes, *, alone: bool = False) -> None:
        """Stage the clock's mark for the next batch that changes anything, or ``alone``."""
        self._mark, self._mark_alone = mark, self._mark_alone or alone

    # Writing.

    def write(self, query: str, *values: int | str | bytes | None) -> list[Any]:
        """Run one of the named queries that change something, now; return its rows."""
        self.flush()
        return list(self.begin().execute(SQL[query], values))

    def write_many(self, query: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run one of the named queries that change something, now, for each of ``rows``."""
        self.flush()
        self.begin().executemany(SQL[query], rows)

    def flush(self) -> None:
        """Write what is staged into the batch's transaction."""
        if not (self._messages or self._first_leases or self._leases or self._gone or self._staged):
            return
        connection = self.begin()
        if self._staged:
            self._write_staged()
        if self._messages:
            connection.executemany(SQL["insert_message"], self._messages)
            self._messages = []
        if self._first_leases:
            connection.executemany(SQL["insert_lease"], self._first_leases)
            self._first_leases = []
        if self._leases:
            connection.executemany(SQL["put_lease"], self._leases)
            self._leases = []
        if self._gone:
            connection.executemany(SQL["delete_message"], self._gone)
            connection.executemany(SQL["delete_lease"], self._gone)
            self._gone = []

    def _write_staged(self) -> None:
        for table in self._staged:
            table.write()
        self._staged = []

    def finish(self, now_ms: int) -> bool:
        """Write all that the batch changed, and its instant; tell whether there is anything to commit."""
        self.flush()
        if self._lanes:
            self.begin().executemany(SQL["put_lane"], [lane.row() for lane in self._lanes])
            self._untouch()
        if self._mark_alone:
            self.begin()
        if not self._connection.in_transaction:
            return False
        self._connection.execute(SQL["put_meta"], (_LAST_INSTANT, now_ms))
        if self._mark is not None:
            self._connection.execute(SQL["put_meta"], (_MARK, self._mark))
        return True

    def commit(self) -> None:
        """Make the batch durable; see ``Database.commit``."""
        super().commit()
        self._mark, self._mark_alone = None, False
        self.accepted.keep()

    def roll_back(self) -> None:
        """Forget the batch, staged or written."""
        self._forget_staged()
        self.accepted.forget()
        self._mark, self._mark_alone = None, False  # another one follows within a second
        self._gave_back = False
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def begin_savepoint(self) -> None:
        """Begin the part of the batch that ``roll_back_to_savepoint`` undoes; all before it must be finished."""
        self.begin().execute("SAVEPOINT command")
        self._accepted_before = self.accepted.count

    def roll_back_to_savepoint(self) -> bool:
        """Forget what came after the savepoint; tell whether what came before it is still there."""
        self._forget_staged()
        self.accepted.forget(self._accepted_before)
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK TO command")
            self.release_savepoint()
        return self._connection.in_transaction

    def release_savepoint(self) -> None:
        """Keep what came after the savepoint."""
        self._connection.execute("RELEASE command")

    def _forget_staged(self) -> None:
        self._messages, self._first_leases, self._leases, self._gone = [], [], [], []
        for table in self._staged:
            if table is not self.accepted:
                table.forget()
        self._staged = []
        self._untouch()

    def _untouch(self) -> None:
        for lane in self._lanes:
            lane.touched = False
        self._lanes = []

    # Reading: always behind what is staged.

    def rows(self, query: str, *values: int | str | bytes) -> list[Any]:
        """Return the rows of one of the named queries that only read."""
        self.flush()
        return list(self._connection.execute(SQL[query], values))

    def messages_between(self, start: int, end: int, count: int) -> Iterator[MessageRow]:
        """Yield up to ``count`` messages in order, from position ``start`` up to, not including, ``end``.

        Rows are read as they are asked for, so whoever stops early has not paid for the rest.
        """
        for row in self.stream("messages_between", start, end, count):
            yield MessageRow(*row)

    def stream(self, query: str, *values: int) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of one of the named queries, each read when it is asked for."""
        self.flush()
        cursor = self._connection.execute(SQL[query], values)
        try:
            yield from cursor
        finally:
            cursor.close()

    def message_at(self, position: int) -> MessageRow:
        """Return the message at ``position``, which must exist.

        Messages never change, so of what is staged only new messages can matter: nothing else is written first.
        """
        if self._messages:
            self.flush()
        (row,) = self._connection.execute(SQL["message_at"], (position,))
        return MessageRow(*row)

    def lease_at(self, position: int) -> Lease | None:
        """Return the lease at ``position``, if there is one."""
        rows = self.rows("lease_at", position)
        return Lease(*rows[0]) if rows else None

    def leases_after(
        self, lane: int, visible_at_ms: int, position: int, alive: tuple[int, int, int], count: int
    ) -> list[Lease]:
        """Return up to ``count`` leases behind the key ``(visible_at_ms, position)``, in that order.

        ``alive`` are the positions within their retention: from the third on, or from the first up to the second.
        """
        rows = self.rows("leases_at_instant", lane, visible_at_ms, position, *alive, count)
        if len(rows) < count:
            rows += self.rows("leases_after_instant", lane, visible_at_ms, *alive, count - len(rows))
        return [Lease(*row) for row in rows]

    def after_last_taken(self, begin: int, start: int, end: int) -> int:
        """Return the position behind the last one before ``end`` that has a lease, or is claimed; at least ``start``.

        Leases count from ``start`` on, claimed ranges that begin in ``[begin, end)``.
        """
        taken: list[tuple[int]] = self.rows("last_lease_between", start, end)
        taken += self.rows("last_claimed_between", begin, end)
        return max([start, *(position + 1 for (position,) in taken)])

    def first_sent(self, start: int, end: int) -> Sent | None:
        """Return the first message in ``[start, end)``; an empty range, as of a lane without delays, costs nothing."""
        rows = self.rows("first_sent_between", start, end) if start < end else ()
        return Sent(*rows[0]) if rows else None

    def moved_until(
        self, lane: int, first_sent_until_ms: int, after: tuple[int, int], start: int, end: int, count: int
    ) -> list[tuple[int, int]]:
        """Return up to ``count`` moved messages in ``[start, end)`` first sent up to that instant, ``after`` another.

        Each is the instant of its first sending and its position, in that order.
        """
        return self.rows("moved_until", lane, first_sent_until_ms, *after, start, end, count)

    def first_moved_ms(self, lane: int, after_ms: int, start: int) -> int | None:
        """Return when the first of the lane's moved messages was first sent; ``None`` when there is none.

        Of those before the position ``start`` only such count as were first sent after that instant.
        """
        rows = self.rows("first_moved", lane, after_ms, start)
        return rows[0][0] if rows else None

    def slice_from(self, start: int, end: int, count: int) -> tuple[int, int]:
        """Return where a slice of ``[start, end)`` ends, and what its messages count for: about ``count`` at the most.

        A small message counts for one, a large one for several, and a slice has one of them at least.
        """
        rows = self.rows("position_after", start, end, count)
        bound = rows[0][0] if rows else end
        weight = self._weight(start, bound)
        if weight <= count:
            return bound, weight
        rows = self.rows("position_after_weight", start, bound, count)
        if not rows:  # the last one made it too much
            return bound, weight
        return rows[0][0], self._weight(start, rows[0][0])

    def _weight(self, start: int, end: int) -> int:
        weight: int
        ((weight,),) = self.rows("weight_between", start, end)
        return weight

    def count_due(self, lane: int, after_ms: int, until_ms: int) -> tuple[int, int]:
        """Count the leases that ended in ``(after, until]``, and those of them that had been received."""
        ((due, received),) = self.rows("count_due", lane, after_ms, until_ms)
        return due, received

    def next_end_ms(self, lane: int, after_ms: int) -> int | None:
        """Return when the first lease of a received message ends after ``after_ms``; ``None`` when there is none.

        Behind many delayed messages it may be an earlier instant, from which on to ask again.
        """
        self.flush()
        cursor = self._connection.execute(SQL["ends_after"], (lane, after_ms))
        found_ms: int | None = None
        for found_ms, receive_count in cursor:  # noqa: B007 (the last one is the answer)
            if receive_count:
                break
        cursor.close()
        return found_ms

    def delete_between(self, start: int, end: int, hidden_after_ms: int) -> tuple[int, int, int]:
        """Delete the messages in ``[start, end)`` and their leases, now.

        Returns how many messages there were, and how many of them were delayed and in flight at ``hidden_after_ms``.
        """
        ((delayed, in_flight),) = self.rows("count_hidden_between", start, end, hidden_after_ms)
        self.write("delete_leases_between", start, end)
        self.write("delete_messages_between", start, end)
        return self._connection.changes(), delayed, in_flight

    # Queues, lanes and the store's own values: rare, so written at once.

    def insert_queue(self, name: str, settings: bytes, now_ms: int) -> int:
        """Add a queue; return its number, never given before."""
        number: int
        ((number,),) = self.write("insert_queue", name, settings, now_ms, now_ms)
        return number

    def update_queue(self, number: int, settings: bytes, now_ms: int) -> None:
        """Change a queue's settings."""
        self.write("update_queue", settings, now_ms, number)

    def delete_queue(self, number: int) -> None:
        """Remove a queue with its move tasks; its lanes are retired by themselves."""
        self.write("delete_queue", number)
        self.write("delete_moves_of", number)

    def delete_lane(self, lane: StoredLane) -> None:
        """Remove a lane's row for good."""
        if lane.touched:
            lane.touched = False
            self._lanes.remove(lane)
        self.write("delete_lane", lane.number)

    def put_meta(self, name: str, value: int | bytes) -> None:
        """Set one of the store's own values."""
        self.write("put_meta", name, value)

    def queues(self) -> list[QueueRow]:
        """Return all queues, by number."""
        return [QueueRow(*row) for row in self.rows("all_queues")]

    def count(self, table: str, which: str = "true") -> int:
        """Return how many rows a table has, or those of them of ``which``; both texts are ours."""
        self.flush()
        rows: int = self._connection.execute(f"SELECT count(*) FROM {table} WHERE {which}").get
        return rows

    def lanes(self) -> list[LaneRow]:
        """Return all lanes, by number."""
        return [LaneRow(*row) for row in self.rows("all_lanes")]

    def mark(self) -> bytes | None:
        """Return the clock's mark of the last run; ``None`` of a new store, and of one that never had any."""
        mark: bytes | None = self.meta().get(_MARK)
        return mark

    def last_instant_ms(self) -> int:
        """Return the instant of the last batch; 0 when there was none."""
        last_ms: int = self.meta().get(_LAST_INSTANT, 0)
        return last_ms

    def meta(self) -> dict[str, Any]:
        """Return the store's own values by name."""
        return dict(self.rows("all_meta"))

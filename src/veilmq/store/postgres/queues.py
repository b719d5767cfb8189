"""The cache of queues, and the statements on their messages.

A cached queue may be stale: another node may have changed, purged or deleted it. A statement on a retired partition
finds and stores nothing (``PartitionRetired``); then the queue is looked up again, and the command repeated.

Statements have variants, marked in the SQL files: the text after "lock:" locks, the text after "fifo:" or "fair:" is
for such queues. The text after "log:", used only for logged queues, writes an event for each receipt that the statement
ends (``mq.outcomes``); the receive's part of an event is stored with the message (``store.events``). Receipts that
ended without a deletion are kept for a day, for late deletes.
"""

import re
from asyncio import get_running_loop
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from veilmq.core.limits import PRIORITY, SECOND_MS
from veilmq.core.receipts import Receipt
from veilmq.core.settings import QueueSettings
from veilmq.store.events import is_logged
from veilmq.store.named_queries import load, shared
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.transaction import Lock, read_settings

STANDARD = load("veilmq.store.postgres", "messages.sql")


def with_lines(text: str, mark: str) -> str:
    """Return a statement with the lines after ``-- MARK:``, and without those that end with ``-- no MARK``."""
    return re.sub(rf"^.*-- no {mark}\n", "", text, flags=re.MULTILINE).replace(f"-- {mark}: ", "")


def fifo_variant(text: str) -> str:
    """Return the FIFO variant of a statement on messages of standard queues."""
    return with_lines(text, "fifo").replace("mq.msg", "mq.fifo_msg AS msg")


def locking_statement(statements: Mapping[str, str], columns: str) -> str:
    """Return a statement that locks the messages that a receive would return, without reading bodies."""
    return f"""
        SELECT {columns}, octet_length(body) + coalesce(octet_length(properties), 0) AS size_bytes
        FROM ({with_lines(statements["peek"], "lock")}
        ) AS ready
    """


def with_lock(text: str, lock: Lock | None) -> str:
    return text if lock is None else f"{text} FOR {lock.upper()}"


_SHARED = "bodies", "count", "end_receipts", "inspect", "lock_messages", "make_dead_letters", "received", "write_events"
FIFO = {
    **{name: fifo_variant(STANDARD[name]) for name in _SHARED},
    **load("veilmq.store.postgres", "fifo.sql"),
}
for _statements in (STANDARD, FIFO):
    _statements["lock_visible"] = locking_statement(_statements, "seq, id, source, properties")
FAIR = {"send": with_lines(STANDARD["send"], "fair"), **load("veilmq.store.postgres", "fair.sql")}
FAIR["receive"] += with_lines(STANDARD["receive"].partition("-- Leases:")[2], "fair").partition("\n")[2]
EVENTS = load("veilmq.store.postgres", "events.sql")
WAKEUPS = load("veilmq.store.postgres", "wakeups.sql")

SQL = {**shared(), **load("veilmq.store.postgres", "queues.sql")}
SQL["find_queues"] = SQL["find_queue"].replace("= $1", "= ANY($1::text[]) ORDER BY name")
EVENTS["lock_state"] = f"{SQL['event_state']} FOR UPDATE"


class Queue(NamedTuple):
    """One incarnation of a queue; ``number`` is in receipts, ``partition`` (qp) in every statement on its messages."""

    number: int
    name: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    partition: int
    origin: int  # the first partition, for rows that outlive a purge
    away: bool = False  # in another database; the partition is that of the outbox
    has_groups: bool = False  # of a standard queue, as of the lookup
    kept_longer_ms: int = 0  # added to the retention while the clock is doubted
    logs: bool = False  # its receipts


class Catalog:
    """The cache of queues of one database."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._entries: dict[str, tuple[Queue, float]] = {}
        self._forgotten = 0  # the calls of ``forget`` and ``clear``
        self._kept_longer_ms = 0
        self.shards: Any = None  # store.Shards
        self.outbox: Any = None  # outbox.Relay

    def fresh(self, name: str) -> Queue | None:
        """Return the cached queue unless it has expired."""
        entry = self._entries.get(name)
        return entry[0] if entry is not None and get_running_loop().time() < entry[1] else None

    async def look_up(self, connection: Any, name: str, lock: Lock | None = None) -> Queue | None:
        """Look the queue up, and lock its row; ``None`` if there is none."""
        self._entries.pop(name, None)
        forgotten = self._forgotten
        row = await connection.fetchrow(with_lock(SQL["find_queue"], lock), name)
        if row is None:
            return None
        queue = self.read(row)
        if forgotten == self._forgotten:  # otherwise the row may be from before a change
            self._entries[name] = queue, get_running_loop().time() + self._options.fresh_s
        return queue

    def read(self, row: Any) -> Queue:
        """Return the queue of a row of ``find_queue``."""
        return queue_of(row, self._options.event_log)._replace(kept_longer_ms=self._kept_longer_ms)

    def cached(self, name: str) -> Queue | None:
        """Return the cached queue, even if it has expired."""
        entry = self._entries.get(name)
        return None if entry is None else entry[0]

    def forget(self, name: str) -> None:
        """Look the queue up again at its next use; a lookup under way is not cached."""
        self._entries.pop(name, None)
        self._forgotten += 1

    def keep_longer(self, time_ms: int) -> None:
        """Add ``time_ms`` to the retention of all queues from now on."""
        if time_ms != self._kept_longer_ms:
            self._kept_longer_ms = time_ms
            self.clear()

    def clear(self) -> None:
        """Look all queues up again at their next use."""
        self._entries.clear()
        self._forgotten += 1


def queue_of(row: Any, event_log: str = "off") -> Queue:
    """Return the queue of a row of ``mq.queue``; ``event_log`` is the default of the setting."""
    number, name, encoded, created_at_ms, modified_at_ms, partition, origin, *more = row
    settings = read_settings(encoded)
    queue = Queue(number, name, settings, created_at_ms, modified_at_ms, partition, origin)
    return queue._replace(has_groups=more == [True], logs=is_logged(settings, event_log))


GENERATION_BITS = 32
_LANES = PRIORITY.maximum
BEGINNING = [0] * _LANES + [-1] * _LANES
"""Marks before every message: an instant for each priority, then a position for each priority."""


def retention_ms(queue: Queue) -> int:
    """Return the retention of the queue, longer while the clock is doubted."""
    return queue.settings.retention_s * SECOND_MS + queue.kept_longer_ms


class PartitionRetired(Exception):
    """The cached queue (its name is the argument) was purged or deleted; nothing was changed."""


def log_variants(statements: dict[str, str]) -> dict[str, str]:
    """Return the variants for logged queues."""
    return {name: with_lines(text, "log") for name, text in statements.items()}


_STANDARD_LOGGED = log_variants(STANDARD)


def sql(queue: Queue) -> dict[str, str]:
    """Return the statements for a queue; those that end receipts take its ``event_log_args`` last."""
    return FIFO if queue.settings.fifo else _STANDARD_LOGGED if queue.logs else STANDARD


def event_log_args(queue: Queue) -> tuple[Any, ...]:
    """Return the last arguments of a statement that ends receipts."""
    if queue.logs:
        return queue.origin, queue.name
    return (queue.origin, None) if queue.settings.fifo else ()


async def write_ended_receipts(connection: Any, queue: Queue, how: str, seqs: list[int]) -> None:
    """Write the events of receipts that are about to end, if the queue is logged; ``how`` as in ``mq.outcomes``."""
    if seqs and queue.logs:
        await connection.execute(sql(queue)["write_events"], queue.partition, how, seqs, queue.origin, queue.name)


async def write_late_deletes(
    connection: Any, queue: Queue, ended: Sequence[Receipt], *, superseded: Sequence[Receipt]
) -> None:
    """Write the events of deletes in a logged queue by receipts that have ended, or that another one superseded."""
    if not (ended or superseded):
        return
    end, args = sql(queue)["end_receipts"], (retention_ms(queue), queue.origin, queue.name)
    # First those whose end is not written; meanwhile a receive or the janitor may write it.
    left = await _not_ended(connection, ended, end, queue.partition, *args)
    left = await _not_ended(connection, left, EVENTS["delete_late"], queue.origin)
    await _not_ended(connection, superseded, EVENTS["delete_late"], queue.origin)
    if left:  # their partition may be retired
        for (partition,) in await connection.fetch(EVENTS["retired_parts"], queue.number):
            left = await _not_ended(connection, left, end, partition, *args)


async def _not_ended(
    connection: Any, receipts: Sequence[Receipt], statement: str, partition: int, *args: Any
) -> list[Receipt]:
    """Run a statement that returns the positions of the receipts that it ends; return the other receipts."""
    if not receipts:
        return []
    named = zip(*sorted({(each.position, each.generation) for each in receipts}), strict=True)
    ended = {seq for (seq,) in await connection.fetch(statement, partition, *named, *args)}
    return [each for each in receipts if each.position not in ended]


async def next_visible_rows(
    connection: Any, queues: Sequence[Queue], *, fifo: bool, behind: list[int] | None = None
) -> Sequence[Any]:
    """Return, for each queue of one kind, when its next message is visible, and whether its partition is in use."""
    partitions = [queue.partition for queue in queues]
    if fifo:
        rows: Sequence[Any] = await connection.fetch(WAKEUPS["awaited_groups"], partitions)
    else:
        rows = await connection.fetch(WAKEUPS["awaited"], partitions, list(map(retention_ms, queues)), behind)
    return rows


async def next_visible_ms(
    connection: Any, queue: Queue, behind: list[int] = BEGINNING, wait_ms_max: int | None = None
) -> int | None:
    """Return when the next message is visible, which may be now; ``None`` if none becomes visible without a send.

    A standard queue is searched ``behind`` the marks; the result is at most ``wait_ms_max`` from now.
    """
    (row,) = await next_visible_rows(connection, [queue], fifo=queue.settings.fifo, behind=behind)
    if not row["is_used"]:
        raise PartitionRetired(queue.name)
    instants = [] if row["visible_at"] is None else [max(row["now"], row["visible_at"])]
    if wait_ms_max is not None:
        instants.append(row["now"] + wait_ms_max)
    return min(instants, default=None)

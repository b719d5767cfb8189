"""The queues that a node knows, and the statements on them.

A queue is looked up when it is first named, and kept for a while. What a node knows may be old: another one may have
changed settings, purged or deleted the queue since. A statement on a partition that was retired finds nothing and
stores nothing (``PartitionRetired``); then the queue is looked up again, and the command repeated.

A statement has variants, whose lines are marked in the files of statements: behind "lock:" it locks, behind "fifo:" or
"fair:" it is on messages of such queues. On a logged queue it is another one than elsewhere, where nothing is paid:
with the lines behind "log:" it writes an event for each receipt that it ends (``mq.outcomes``). What an event says of
the receive stands with the message (``store.events``). Receipts that ended without a deletion are kept for a day, for
the delete that may come late.
"""

import re
from asyncio import get_running_loop
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from veilmq.core.errors import QueueNotFound, ReceiptState
from veilmq.core.limits import PRIORITY, SECOND_MS
from veilmq.core.receipts import Receipt
from veilmq.core.settings import QueueSettings
from veilmq.store.events import is_logged
from veilmq.store.named_queries import load, shared
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.transaction import Lock, read_settings

STANDARD = load("veilmq.store.postgres", "messages.sql")


def variant(text: str, mark: str) -> str:
    """Return a statement with what stands behind ``-- MARK:`` in it, and without its lines that say ``-- no MARK``."""
    return re.sub(rf"^.*-- no {mark}\n", "", text, flags=re.MULTILINE).replace(f"-- {mark}: ", "")


def of_fifo(text: str) -> str:
    """Return a statement on messages of standard queues as it is for those of FIFO queues."""
    return variant(text, "fifo").replace("mq.msg", "mq.fifo_msg AS msg")


def locking(statements: Mapping[str, str], columns: str) -> str:
    """Return what locks the messages that a receive would take, for another purpose, and reads no body."""
    return f"""
        SELECT {columns}, octet_length(body) + coalesce(octet_length(properties), 0) AS size_bytes
        FROM ({variant(statements["peek"], "lock")}
        ) AS ready
    """


def with_lock(text: str, lock: Lock | None) -> str:
    """Return a statement that locks the rows that it returns."""
    return text if lock is None else f"{text} FOR {lock.upper()}"


_ALIKE = ("bodies", "bury", "count", "end_receipts", "found", "inspect", "note", "received_at")
FIFO = {
    **{name: of_fifo(STANDARD[name]) for name in _ALIKE},
    **load("veilmq.store.postgres", "fifo.sql"),
}
for _statements in (STANDARD, FIFO):
    _statements["choose"] = locking(_statements, "seq, id, source, properties")
FAIR = {"send": variant(STANDARD["send"], "fair"), **load("veilmq.store.postgres", "fair.sql")}
FAIR["receive"] += variant(STANDARD["receive"].partition("-- Leases:")[2], "fair").partition("\n")[2]
EVENTS = load("veilmq.store.postgres", "events.sql")
WAKEUPS = load("veilmq.store.postgres", "wakeups.sql")

SQL = {**shared(), **load("veilmq.store.postgres", "queues.sql")}
EVENTS["lock_state"] = f"{SQL['event_state']} FOR UPDATE"


class Queue(NamedTuple):
    """One incarnation of a queue; ``number`` is in receipts, ``partition`` (qp) in every statement on its messages.

    ``origin`` was its first partition; it has what outlives a purge. One that is ``away`` is in another database, and
    the partition is one of the outbox, from where its messages go there. ``has_groups`` tells of a standard queue
    whether a message ever named one, as far as it was looked up. Messages are kept ``kept_longer_ms`` longer than its
    settings say while the clock is doubted.
    """

    number: int
    name: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    partition: int
    origin: int
    away: bool = False
    has_groups: bool = False
    kept_longer_ms: int = 0
    logs: bool = False
    """Whether its receipts are logged."""


class Catalog:
    """The queues of one store, as far as this node has met them."""

    def __init__(self, options: PostgresOptions) -> None:
        self._options = options
        self._known: dict[str, tuple[Queue, float]] = {}
        self._kept_longer_ms = 0
        self.elsewhere: Any = None
        """The databases of the store, where there may be several: ``store.Shards``."""
        self.outbox: Any = None
        """What goes to the other ones: ``outbox.Relay``."""

    def known(self, name: str) -> Queue | None:
        """Return what is known of that queue, if that is not too old."""
        known = self._known.get(name)
        return known[0] if known is not None and get_running_loop().time() < known[1] else None

    async def sure(self, connection: Any, name: str) -> Queue:
        """Look the queue up, whatever is known of it; raises ``QueueNotFound``."""
        queue = await self.find(connection, name)
        if queue is None:
            raise QueueNotFound(name)
        return queue

    async def find(self, connection: Any, name: str, lock: Lock | None = None) -> Queue | None:
        """Look the queue up, and lock its row; ``None`` when there is none of that name."""
        self.forget(name)
        row = await connection.fetchrow(with_lock(SQL["find_queue"], lock), name)
        if row is None:
            return None
        queue = queue_of(row, self._options.event_log)._replace(kept_longer_ms=self._kept_longer_ms)
        self._known[name] = queue, get_running_loop().time() + self._options.fresh_s
        return queue

    async def target(self, connection: Any, name: str, source: tuple[int, str]) -> Queue | None:
        """Look up a queue that messages are to be moved to, in the transaction that moves them, wherever it is.

        ``source`` is number and name of the queue that they leave, 0 and its name for a topic. Raises
        ``StoreUnavailable`` for one in another database about which nothing is known.
        """
        queue = await self.find(connection, name)
        if queue is None and self.outbox is not None:
            queue = await self.outbox.target(connection, name, source)
        return queue

    def seen(self, name: str) -> Queue | None:
        """Return what is known of the queue, however old; ``None`` when that is nothing."""
        known = self._known.get(name)
        return None if known is None else known[0]

    def forget(self, name: str) -> None:
        """Look that queue up again when it is named next."""
        self._known.pop(name, None)

    def keep_longer(self, time_ms: int) -> None:
        """Have the messages of all queues kept longer, from now on."""
        if time_ms != self._kept_longer_ms:
            self._kept_longer_ms = time_ms
            self.clear()

    def clear(self) -> None:
        """Look all of them up again."""
        self._known.clear()


def queue_of(row: Any, event_log: str = "off") -> Queue:
    """Return the queue of a row of ``mq.queue``; ``event_log`` is for those that do not say it."""
    number, name, encoded, created_at_ms, modified_at_ms, partition, origin, *more = row
    settings = read_settings(encoded)
    queue = Queue(number, name, settings, created_at_ms, modified_at_ms, partition, origin)
    return queue._replace(has_groups=more == [True], logs=is_logged(settings, event_log))


GENERATION_BITS = 32
_LANES = PRIORITY.maximum
BEGINNING = [0] * _LANES + [-1] * _LANES
"""What is before every message: an instant and a position for each priority, first all instants, then the positions."""


def retention_ms(queue: Queue) -> int:
    """Return how long a message is kept from its sending."""
    return queue.settings.retention_s * SECOND_MS + queue.kept_longer_ms


class PartitionRetired(Exception):
    """What the node knows of the queue of that name is old: it was purged or deleted, and nothing was done."""


async def hold(connection: Any, queue: Queue) -> None:
    """Hold off a purge until the end of the transaction; raises ``PartitionRetired``."""
    if await connection.fetchrow(STANDARD["hold"], queue.partition) is None:
        raise PartitionRetired(queue.name)


def logged(statements: dict[str, str]) -> dict[str, str]:
    """Return the statements as they are for logged queues."""
    return {name: variant(text, "log") for name, text in statements.items()}


_STANDARD_LOGGED = logged(STANDARD)


def sql(queue: Queue) -> dict[str, str]:
    """Return the statements on messages of such a queue; those that end receipts have its ``terms_of_log`` last."""
    return FIFO if queue.settings.fifo else _STANDARD_LOGGED if queue.logs else STANDARD


def terms_of_log(queue: Queue) -> tuple[Any, ...]:
    """Return the last terms of a statement on messages of a queue."""
    if queue.logs:
        return queue.origin, queue.name
    return (queue.origin, None) if queue.settings.fifo else ()


async def note_ends(connection: Any, queue: Queue, how: str, seqs: list[int]) -> None:
    """Write the ends of the receipts of messages, if they are logged; ``how`` is for ``mq.outcomes``."""
    if seqs and queue.logs:
        await connection.execute(sql(queue)["note"], queue.partition, how, seqs, queue.origin, queue.name)


async def note_late(
    connection: Any, queue: Queue, useless: Mapping[ReceiptState, Sequence[Receipt]], *, earlier: Sequence[Receipt]
) -> None:
    """Write what deletes that do nothing tell of their receipts, which are given by what they were.

    ``earlier`` are superseded ones that did delete.
    """
    if not (queue.logs and (useless or earlier)):
        return
    end, terms = sql(queue)["end_receipts"], (retention_ms(queue), queue.origin, queue.name)
    # Those that it does not end were superseded by a receive since they were looked at.
    superseded = await _left(connection, useless.get(ReceiptState.EXPIRED, ()), end, queue.partition, *terms)
    superseded += [*useless.get(ReceiptState.SUPERSEDED, ()), *earlier]
    await _left(connection, superseded, EVENTS["correct"], queue.origin)
    left = await _left(connection, useless.get(ReceiptState.GONE, ()), EVENTS["correct"], queue.origin)
    if left:  # what ended them may not have been seen yet
        rows = await connection.fetch(EVENTS["retired_parts"], queue.number)
        for partition in (queue.partition, *(number for (number,) in rows)):
            left = await _left(connection, left, end, partition, *terms)


async def _left(
    connection: Any, receipts: Sequence[Receipt], statement: str, partition: int, *terms: Any
) -> list[Receipt]:
    """Run a statement on receipts, which tells the positions of those whose end it writes; return the others."""
    if not receipts:
        return []
    named = zip(*sorted({(each.position, each.generation) for each in receipts}), strict=True)
    ended = {seq for (seq,) in await connection.fetch(statement, partition, *named, *terms)}
    return [each for each in receipts if each.position not in ended]


async def awaited(
    connection: Any, queues: Sequence[Queue], *, fifo: bool, behind: list[int] | None = None
) -> Sequence[Any]:
    """Return of each queue, all of one kind, when it has its next message, and whether its partition is in use."""
    partitions = [queue.partition for queue in queues]
    if fifo:
        rows: Sequence[Any] = await connection.fetch(WAKEUPS["awaited_groups"], partitions)
    else:
        rows = await connection.fetch(WAKEUPS["awaited"], partitions, list(map(retention_ms, queues)), behind)
    return rows


async def next_visible_ms(
    connection: Any, queue: Queue, behind: list[int] = BEGINNING, again_ms: int | None = None
) -> int | None:
    """Return the instant from which there is a message, the present if there is one; ``None``: none comes by itself.

    Of a standard queue what is ``behind`` the marks is looked at; the instant is ``again_ms`` from now at the latest.
    """
    (row,) = await awaited(connection, [queue], fifo=queue.settings.fifo, behind=behind)
    if not row["is_used"]:
        raise PartitionRetired(queue.name)
    instants = [] if row["visible_at"] is None else [max(row["now"], row["visible_at"])]
    if again_ms is not None:
        instants.append(row["now"] + again_ms)
    return min(instants, default=None)

"""The port through which a cold command reads and writes: one transaction of a store, in either dialect.

A cold command (everything but send, receive, delete and change) is written once, as an ``async`` function that takes a
``Transaction`` and the command, returns the result or raises a ``VeilmqError``, which undoes what it has written.

On SQLite nothing suspends, and nothing comes between: the function is driven to its end inside the batch. On PostgreSQL
it waits at each statement, other transactions go on meanwhile, and what two of them may not do at a time is guarded by
locks. There a function may be called again when two transactions were in each other's way.

A query is named. One text serves both dialects where it can (``store/queries``); its parameters are ``$1``, ``$2``, ….
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from veilmq.core import limits
from veilmq.core.commands import Command, MaySend, MessageState, QueueCounts, SendOptions, SentMessage
from veilmq.core.errors import QueueNotFound
from veilmq.core.messages import IdSource, NewMessage
from veilmq.core.receipts import Receipt, ReceiptCodec
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT, QueueSettings

Cold = Callable[[Any, Any], Coroutine[Any, Any, Any]]
"""A cold command: called with a ``Transaction`` and the command, returns the result or raises a ``VeilmqError``."""
COLD: dict[type[Command], Cold] = {}
"""All cold commands by type (the decorators add them); importing ``store.cold`` makes it complete."""
READS: set[type[Command]] = set()
"""Those that change nothing, so that they may be repeated when an answer was lost."""
SNAPSHOTS: set[type[Command]] = set()
"""Those of them whose statements all see the store as it is at one instant. (One may find something to change.)"""
AnyCold = TypeVar("AnyCold", bound=Cold)


def changes(cold: AnyCold) -> AnyCold:
    """Register a cold command that may change something, by the type of its second argument."""
    COLD[cold.__annotations__["command"]] = cold
    return cold


def reads(cold: AnyCold) -> AnyCold:
    """Register a cold command that changes nothing."""
    READS.add(cold.__annotations__["command"])
    return changes(cold)


def snapshot(cold: AnyCold) -> AnyCold:
    """Register a cold command that changes nothing, and reads what the queue or topic has that it has found.

    (Where that is only counted, ``reads`` will do: on PostgreSQL a transaction costs half as much again as a count.)
    """
    SNAPSHOTS.add(cold.__annotations__["command"])
    return reads(cold)


Lock = Literal["update", "share", "update skip locked"]
"""How rows are locked until the end of the transaction: once no other one has them locked, or has to change them, or as
far as none has."""

Row = Sequence[Any]
"""The columns of a query, in its order."""

LAST = chr(0x10FFFF)
"""Sorts behind every name with the same beginning."""

Made = TypeVar("Made", bound=msgspec.Struct)
read_settings = msgspec.json.Decoder(QueueSettings).decode


def made_of(row: Row, kind: type[Made]) -> Made:
    """Return the value of that kind of a row that has its fields in their order."""
    return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What can be tuned in a store of either dialect.

    ``in_flight_max``, ``fifo_in_flight_max`` and ``event_log`` are for queues that set none of their own. A queue rests
    for ``purge_pause_s`` after a purge, the name of a deleted one for ``queue_name_pause_s``. ``claimed_max`` messages
    of a queue may be claimed, ``claim_slice_rows`` bounds what one transaction does for claims. ``may_send`` decides
    whether move tasks go on (``None``: they do). The text of the message attribute ``routing_attribute`` is the key of
    events, of which ``events_waiting_max`` may wait to be exported.
    """

    in_flight_max: int = limits.IN_FLIGHT.default
    fifo_in_flight_max: int = limits.FIFO_IN_FLIGHT.default
    purge_pause_s: int = limits.PURGE_PAUSE_S
    queue_name_pause_s: int = limits.QUEUE_NAME_PAUSE_S
    claimed_max: int = limits.CLAIMED.default
    claim_slice_rows: int = limits.CLAIM_SLICE_ROWS
    may_send: MaySend | None = None
    event_log: str = "off"
    routing_attribute: str = ROUTING_ATTRIBUTE_DEFAULT
    events_waiting_max: int = limits.EVENTS_WAITING_MAX


class QueueRow(Protocol):
    """A queue as a transaction sees it; cold commands do not write to it.

    No other queue ever has its ``number``, and ``name`` has the account. ``partition`` has its messages; what outlives
    a purge stands under ``origin``, its first one.
    """

    number: int
    name: str
    partition: int
    origin: int
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int


class Waiting(NamedTuple):
    """A visible message; ``source`` is the queue that a dead letter comes from, ``row`` is the dialect's."""

    seq: int
    source: str | None
    size_bytes: int
    """What body and properties take."""
    row: Any


class Given(SendOptions, frozen=True, kw_only=True, gc=False):
    """The options of messages that the store itself sends: they were checked, and have ids."""

    ids: tuple[bytes, ...]


class StoredMessage(NamedTuple):
    """A message of a queue as it is at ``read_at_ms``; it has a ``body`` where that is said.

    ``visible_at_ms`` includes a delay of the queue. ``receive_count`` and what follows a receive are of this queue,
    ``receives_before`` of the queue ``source`` that a dead letter came from, and ``first_received_at_ms`` of the first
    receive in either. ``log`` is as in ``events``.
    """

    seq: int
    id: bytes
    properties: bytes
    body_bytes: int
    priority: int
    source: str | None
    sent_at_ms: int
    visible_at_ms: int
    receive_count: int
    receives_before: int
    generation: int
    epoch: int
    received_at_ms: int
    first_received_at_ms: int | None
    log: int
    is_claimed: bool
    read_at_ms: int
    body: str = ""

    @property
    def state(self) -> MessageState:
        """Return where it is."""
        if not self.is_claimed and self.visible_at_ms <= self.read_at_ms:
            return MessageState.VISIBLE
        return MessageState.IN_FLIGHT if self.receive_count or self.is_claimed else MessageState.DELAYED

    def receipt(self, queue: QueueRow) -> Receipt:
        """Return its latest receipt in that queue."""
        return Receipt(queue.number, self.seq, self.generation, self.epoch, self.visible_at_ms)


class Transaction(Protocol):
    """An open transaction of a store."""

    ids: IdSource
    book: ReceiptCodec
    options: Options

    # Rows.

    async def rows(self, query: str, *values: Any, lock: Lock | None = None) -> Sequence[Row]:
        """Return the rows of a named query, as they are when they are locked."""

    async def run(self, query: str, *values: Any) -> None:
        """Run a named query that changes something."""

    async def many(self, query: str, rows: Sequence[Row]) -> None:
        """Run a named query that changes something, once for each of ``rows``."""

    async def lock(self, kind: str, *key: Any) -> None:
        """Wait until no other transaction has this lock, and keep it until the end: query ``lock_<kind>``."""

    async def now(self) -> int:
        """Return the present instant of the store, in ms."""

    def shown(self, at_ms: int) -> int:
        """Return an instant of the store as users see it."""

    async def row(self, query: str, *values: Any) -> Row | None:
        """Return the first row of a named query."""
        return next(iter(await self.rows(query, *values)), None)

    async def value(self, query: str, *values: Any) -> Any:
        """Return the first column of the first row of a named query; ``None`` where there is no row."""
        rows = await self.rows(query, *values)
        return rows[0][0] if rows else None

    # Queues. What may be in another database of the store raises ``StoreUnavailable`` where that cannot be reached.

    async def find(self, name: str, lock: Lock | None = None) -> QueueRow | None:
        """Look up the queue of that full name in this database, as it is when its row is locked.

        ``"update"``: to change it. ``"share"``: so that it is not purged or deleted meanwhile.
        """

    async def queue(self, name: str, *, lock: Lock | None = None) -> QueueRow:
        """Do so; raises ``QueueNotFound``."""
        found = await self.find(name, lock)
        if found is None:
            raise QueueNotFound(name)
        return found

    async def of_origin(self, origin: int) -> QueueRow | None:
        """Return the queue of that origin, unless it was deleted."""
        name = await self.value("queue_of_origin", origin)
        return None if name is None else await self.find(name)

    async def target(self, name: str, source: tuple[int, str]) -> QueueRow | None:
        """Return the queue to which messages go, in any database.

        ``source`` is number and name of the queue that they leave, 0 and its name for a topic.
        """
        return await self.find(name)

    async def settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue, in any database."""
        found = await self.find(name)
        return None if found is None else found.settings

    async def has_sources(self, name: str) -> bool:
        """Return whether it is the dead-letter queue of any queue, in any database."""
        return bool(await self.rows("queue_sources", name, "", 1))

    async def counts(self, queue: QueueRow) -> QueueCounts:
        """Count the messages of a queue by state."""

    async def retire(self, queue: QueueRow, *, is_deleted: bool) -> None:
        """Note that the partition of a queue is retired; ``is_deleted``: the queue is about to be deleted."""

    async def change(self, queue: QueueRow, settings: QueueSettings, modified_at_ms: int) -> None:
        """Give a queue, whose row is locked, other settings.

        What the old retention has ended stays ended, and leases keep their deadlines. Messages of a FIFO queue without
        a delay of their own follow the new delay.
        """

    def changed(self, queue: QueueRow) -> None:
        """Have every node read the row of a queue again, which was changed or deleted, and waiters receive again."""

    # Messages; waiters are notified of what becomes visible or free. Until the end of the transaction no other one
    # receives, changes or deletes what it has chosen or leased.

    def need_room(self) -> None:
        """Raise ``StoreFull`` where the disk is nearly full."""

    async def store(self, queue: QueueRow, messages: Sequence[NewMessage], ids: Sequence[bytes]) -> list[SentMessage]:
        """Store messages that were checked as if they were sent now.

        Each has an id of 16 bytes, and in a FIFO queue its deduplication id; a message that repeats another one is not
        stored, and answered as that one was. ``queue`` may be in another database: then repeated ones are known
        by their ids.
        """

    async def choose(self, queue: QueueRow, count: int) -> tuple[list[Waiting], bool]:
        """Return up to ``count`` visible messages in the order of receives, and whether there may be more behind them.

        Those that another transaction has locked, or whose group it has, are passed over.
        """

    async def move(self, queue: QueueRow, target: QueueRow, messages: Sequence[Waiting]) -> int:
        """Move chosen messages to another queue of the type as new ones, visible at once.

        They have an id of their own there, were sent now, and were never received. Returns how many were moved: all
        that are still there.
        """

    async def leased(self, queue: QueueRow, seqs: Sequence[int]) -> list[StoredMessage]:
        """Return those of some messages (in order) that are in a queue and were received or have their own delay.

        They have their bodies.
        """

    async def delete(self, queue: QueueRow, messages: Sequence[StoredMessage]) -> None:
        """Delete messages in flight as their receipts do."""

    async def bury(
        self, queue: QueueRow, target: QueueRow, messages: Sequence[StoredMessage], new: Sequence[NewMessage]
    ) -> list[SentMessage]:
        """Do so, and make them dead letters of ``queue`` in another queue of its type, visible at once.

        They keep their ids, their receives count on, and in a standard queue they keep their age; ``new`` says what
        else they are.
        """

    # Inspection: nothing changes by it.

    async def inspect(
        self, queue: QueueRow, state: MessageState | None, count: int, passed_max: int
    ) -> Sequence[StoredMessage]:
        """Find the first ``count`` messages in the order of sending, or of those in ``state``, in any order.

        Those come first that become or became visible first, and claimed ones last; of a FIFO queue, the visible ones
        that were sent first. Of messages in other states at most ``passed_max`` are passed over.
        """

    async def inspect_at(self, queue: QueueRow, seqs: Sequence[int]) -> Sequence[StoredMessage]:
        """Find those of the messages ``seqs`` that are in the queue and were received, in this order."""

    async def offered(self, queue: QueueRow, count: int) -> Sequence[StoredMessage]:
        """Find what a receive of ``count`` would take of a queue without limits, in its order; dead letters too."""

    async def bodies(self, queue: QueueRow, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the bodies of messages of the queue by seq, without those that are gone."""

    # What follows when the transaction is committed, or on SQLite is bound to be.

    def schedule(self, step: type[Command]) -> None:
        """Have slices of that work in the background done (``store.cold.STEPS``)."""

    def notify(self, name: str) -> None:
        """Notify the watches on a queue, here and at other nodes."""

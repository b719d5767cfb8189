"""The port for cold commands: one transaction of a store, in either dialect.

A cold command (everything but send, receive, delete and change) is written once, as an ``async`` function that takes a
``Transaction`` and the command. It returns the result or raises a ``VeilmqError``, which rolls back its writes.

On SQLite the function never suspends and runs alone inside the batch. On PostgreSQL it awaits each statement while
other transactions run; locks protect what must not run concurrently. After a conflict of two transactions, the
function may be called again.

Queries have names. Where possible, both dialects share one text (``store/queries``) with parameters ``$1``, ``$2``, ….
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from veilmq.core import limits
from veilmq.core.commands import Command, MaySend, MessageState, QueueCounts, SendOptions, SentMessage
from veilmq.core.errors import DeduplicationIdMissing, GroupMissing, MessageTooLong, QueueNotFound, VeilmqError
from veilmq.core.messages import IdSource, NewMessage
from veilmq.core.receipts import Receipt, ReceiptCodec
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT, QueueSettings

Cold = Callable[[Any, Any], Coroutine[Any, Any, Any]]  # called with a ``Transaction`` and the command
# All cold commands by type. The decorators below add them; complete after ``store.cold`` is imported.
COLD: dict[type[Command], Cold] = {}
READS: set[type[Command]] = set()  # commands that change nothing, and can be retried when a reply is lost
# The ``READS`` whose statements must all see the store at the same instant. (One may still find something to change.)
SNAPSHOTS: set[type[Command]] = set()
AnyCold = TypeVar("AnyCold", bound=Cold)


def changes(cold: AnyCold) -> AnyCold:
    """Register a cold command that may change something, by the type of its ``command`` argument."""
    COLD[cold.__annotations__["command"]] = cold
    return cold


def reads(cold: AnyCold) -> AnyCold:
    """Register a cold command that changes nothing."""
    READS.add(cold.__annotations__["command"])
    return changes(cold)


def snapshot(cold: AnyCold) -> AnyCold:
    """Register a cold command that reads data of a queue or topic that it finds.

    A command that only counts uses ``reads``: on PostgreSQL a transaction costs half as much again as a count.
    """
    SNAPSHOTS.add(cold.__annotations__["command"])
    return reads(cold)


# How rows are locked until the end of the transaction: "update" waits for all other locks, "share" for changes, and
# "update skip locked" skips locked rows.
Lock = Literal["update", "share", "update skip locked"]

Row = Sequence[Any]  # the columns of a query, in its order

NEVER_MS = (1 << 62) - 1
SEQ_SHIFT = 20  # A seq is the millisecond of sending, shifted by this, plus a number within that millisecond.
FIFO_PRIORITY = limits.PRIORITY.default  # of all messages of a FIFO queue, so that a group has one order

AFTER_NAMES = chr(0x10FFFF)  # sorts after every name with the same prefix

T = TypeVar("T", bound=msgspec.Struct)
read_settings = msgspec.json.Decoder(QueueSettings).decode


def checked(
    messages: Sequence[NewMessage], options: SendOptions | None, settings: QueueSettings
) -> list[NewMessage | VeilmqError]:
    """Return the messages to store, and errors in place of invalid ones.

    With ``all_or_nothing`` the first error is raised, without options a missing group or deduplication id.
    """
    decode = options.decode if options is not None and settings.smq_base64 else None
    needs_id = settings.fifo and not (settings.content_deduplication or (options and options.dedup_id_optional))
    found: list[NewMessage | VeilmqError] = []
    for new in messages:
        try:
            if settings.fifo and new.group is None:
                raise GroupMissing
            if needs_id and new.dedup_id is None:
                raise DeduplicationIdMissing
            if new.size_bytes > settings.message_bytes_max:
                raise MessageTooLong(settings.message_bytes_max)
            found.append(new if decode is None else decode(new))
        except VeilmqError as error:
            if options.all_or_nothing if options is not None else not isinstance(error, MessageTooLong):
                raise
            found.append(error)
    return found


def to_struct(row: Row, kind: type[T]) -> T:
    """Return a struct of ``kind`` from a row that has its fields in order."""
    return msgspec.convert(dict(zip(kind.__struct_fields__, row, strict=True)), kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The tunable options of a store, in either dialect.

    ``in_flight_max``, ``fifo_in_flight_max`` and ``event_log`` apply to queues without such a setting.
    ``purge_pause_s`` is the cooldown of a queue after a purge, ``queue_name_pause_s`` that of the name of a deleted
    queue. ``claimed_max`` limits the claimed messages of a queue, ``claim_slice_rows`` the rows that one transaction
    changes for claims. ``may_send`` decides whether a move task may continue (``None``: always). The message attribute
    ``routing_attribute`` is the key of events; at most ``events_waiting_max`` events wait to be exported.
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
    """A queue as seen by a transaction; cold commands do not write to it.

    ``number`` is never reused. ``name`` includes the account. ``partition`` holds the messages. ``origin``, the first
    partition, identifies everything that survives a purge.
    """

    number: int
    name: str
    partition: int
    origin: int
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int


class VisibleMessage(NamedTuple):
    """A visible message. ``source`` is the queue that a dead letter came from, ``row`` belongs to the dialect."""

    seq: int
    source: str | None
    size_bytes: int  # of body and properties
    row: Any


class StoredMessage(NamedTuple):
    """A message of a queue as of ``read_at_ms``; ``body`` is filled only where stated.

    ``visible_at_ms`` includes a delay of the queue. ``receive_count`` and the receive's other fields refer to this
    queue, ``receives_before`` to the queue ``source`` that a dead letter came from. ``first_received_at_ms`` is the
    first receive in either. ``log`` is as in ``events``.
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
        """Return the state at ``read_at_ms``."""
        if not self.is_claimed and self.visible_at_ms <= self.read_at_ms:
            return MessageState.VISIBLE
        return MessageState.IN_FLIGHT if self.receive_count or self.is_claimed else MessageState.DELAYED

    def receipt(self, queue: QueueRow) -> Receipt:
        return Receipt(queue.number, self.seq, self.generation, self.epoch, self.visible_at_ms)


class Transaction(Protocol):
    """An open transaction of a store."""

    ids: IdSource
    codec: ReceiptCodec
    options: Options

    # Rows.

    async def rows(self, query: str, *values: Any, lock: Lock | None = None) -> Sequence[Row]:
        """Return the rows of a named query, as they are once they are locked."""

    async def run(self, query: str, *values: Any) -> None:
        """Run a named query that changes something."""

    async def run_many(self, query: str, rows: Sequence[Row]) -> None:
        """Run a named query that changes something once for each of ``rows``."""

    async def lock(self, kind: str, *key: Any) -> None:
        """Acquire a lock until the end of the transaction, by the query ``lock_<kind>``."""

    async def now(self) -> int:
        """Return the current store time in ms."""

    def shown(self, at_ms: int) -> int:
        """Convert an instant of the store to shown time."""

    async def row(self, query: str, *values: Any) -> Row | None:
        """Return the first row of a named query."""
        return next(iter(await self.rows(query, *values)), None)

    async def value(self, query: str, *values: Any) -> Any:
        """Return the first column of the first row of a named query, or ``None`` without a row."""
        rows = await self.rows(query, *values)
        return rows[0][0] if rows else None

    # Queues. Methods that may use another database of the store raise ``StoreUnavailable`` if it cannot be reached.

    async def find(self, name: str, lock: Lock | None = None) -> QueueRow | None:
        """Find a queue of this database by its full name, as it is once its row is locked.

        Lock ``"update"`` to change the queue, ``"share"`` to prevent a purge or deletion.
        """

    async def find_all(self, names: Sequence[str]) -> Sequence[QueueRow]:
        """Return the queues of these names that this database has."""
        return [queue for name in names if (queue := await self.find(name)) is not None]

    async def queue(self, name: str, *, lock: Lock | None = None) -> QueueRow:
        """Find a queue like ``find``; raises ``QueueNotFound``."""
        found = await self.find(name, lock)
        if found is None:
            raise QueueNotFound(name)
        return found

    async def find_by_origin(self, origin: int) -> QueueRow | None:
        """Return the queue of that origin, or ``None`` if it was deleted."""
        name = await self.value("queue_of_origin", origin)
        return None if name is None else await self.find(name)

    async def find_target(self, name: str, source: tuple[int, str]) -> QueueRow | None:
        """Return the target of messages, in any database; ``source`` is a queue's number and name, or 0 and a topic."""
        return await self.find(name)

    async def settings(self, name: str) -> QueueSettings | None:
        """Return the settings of a queue, in any database."""
        found = await self.find(name)
        return None if found is None else found.settings

    async def has_sources(self, name: str) -> bool:
        """Return whether any queue, in any database, uses it as its dead-letter queue."""
        return bool(await self.rows("queue_sources", name, "", 1))

    async def counts(self, counted: Sequence[QueueRow], *, recent: bool = False) -> list[QueueCounts]:
        """Count the messages of each queue by state; ``recent`` permits an older count where counting takes long."""

    async def retire(self, queue: QueueRow, *, is_deleted: bool) -> None:
        """Record that the partition of a queue is retired; ``is_deleted``: the queue is about to be deleted."""

    async def change(self, queue: QueueRow, settings: QueueSettings, modified_at_ms: int) -> None:
        """Change the settings of a queue whose row is locked.

        Expired messages stay expired, leases keep their deadlines, and FIFO messages without their own delay get the
        new one.
        """

    def invalidate(self, queue: QueueRow) -> None:
        """Make every node reload the row of a changed or deleted queue, and waiters receive again."""

    # Messages. Waiters are notified of messages and groups that become available. Until the end of the transaction,
    # no other transaction receives, changes or deletes messages that this one has selected or found leased.

    def require_space(self) -> None:
        """Raise ``StoreFull`` if the disk is nearly full."""

    async def store(self, queue: QueueRow, messages: Sequence[NewMessage], ids: Sequence[bytes]) -> list[SentMessage]:
        """Store checked messages as if sent now; the result of a duplicate is that of the original.

        Ids have 16 bytes; messages of a FIFO queue have deduplication ids. If ``queue`` is in another database,
        duplicates are found by their ids.
        """

    async def select_visible(self, queue: QueueRow, count: int) -> tuple[list[VisibleMessage], bool]:
        """Return up to ``count`` visible, unlocked messages in receive order, and whether there may be more."""

    async def move(self, queue: QueueRow, target: QueueRow, messages: Sequence[VisibleMessage]) -> int:
        """Move selected messages that still exist to another queue, visible at once; return how many.

        They become new messages there: with new ids, sent now and never received.
        """

    async def find_leased(self, queue: QueueRow, seqs: Sequence[int]) -> list[StoredMessage]:
        """Return, in order and with bodies, the given messages that were received or have their own delay."""

    async def delete(self, queue: QueueRow, messages: Sequence[StoredMessage]) -> None:
        """Delete messages in flight, as their receipts would."""

    async def dead_letter(
        self, queue: QueueRow, target: QueueRow, messages: Sequence[StoredMessage], new: Sequence[NewMessage]
    ) -> list[SentMessage]:
        """Move messages in flight to a dead-letter queue, visible at once; ``new`` has their content.

        They keep their ids and receive counts, and in a standard queue their age.
        """

    # Inspection, which changes nothing.

    async def inspect(
        self, queue: QueueRow, state: MessageState | None, count: int, passed_max: int
    ) -> Sequence[StoredMessage]:
        """Return the first ``count`` messages in sending order or, unsorted, of those in ``state``.

        With a state, the messages with the earliest ``visible_at_ms`` are the first, and claimed ones the last; of the
        visible messages of a FIFO queue, those sent first. At most ``passed_max`` messages in other states are skipped.
        """

    async def inspect_at(self, queue: QueueRow, seqs: Sequence[int]) -> Sequence[StoredMessage]:
        """Return those of the messages ``seqs`` that are in the queue and were received, in this order."""

    async def receivable(self, queue: QueueRow, count: int) -> Sequence[StoredMessage]:
        """Return what a receive of ``count`` would give, in its order, without limits and including dead letters."""

    async def bodies(self, queue: QueueRow, seqs: Sequence[int]) -> Mapping[int, str]:
        """Return the bodies of messages by seq, without deleted messages."""

    # Effects after the commit; on SQLite they may precede it, within the batch.

    def schedule(self, step: type[Command]) -> None:
        """Schedule background slices of that command (``store.cold.STEPS``)."""

    def notify(self, name: str) -> None:
        """Notify the watches on a queue, on this node and others."""

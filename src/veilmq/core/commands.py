"""Commands on queues and messages, their results, and the ports ``Engine`` and ``Clock``; the same for every protocol.

The full name of a queue is ``"account/name"``. Commands carry no time: the engine stamps them. The wire checks the
limits of its protocol; an engine relies on the widest values in ``core.limits`` and on the settings of its queues. A
batch is one command with several entries, each of which succeeds or fails alone.

Results are frozen values, with instants in milliseconds since the epoch. The commands of topics, forwards, claims,
publications and the event log are in ``core.topics``, ``core.claims`` and ``core.receipts``.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from veilmq.core import Value, limits
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import NewMessage
from veilmq.core.settings import AccountSettings, QueueSettings, SettingValue


class Command(Value, gc=False):
    """Base class of all commands."""


class QueueCommand(Command):
    """A command on ``queue``. All but ``CreateQueue`` fail with ``QueueNotFound`` if it does not exist."""

    queue: str


# Queues.


class QueueCounts(Value, gc=False):
    """Messages by state at one instant, and totals; ``oldest_sent_at_ms`` is that of the oldest stored message.

    States are exact, except while many messages expire by retention at once (``docs/lifecycle.md``). Totals begin at 0
    when the engine is opened or reloads its state from disk:

    - ``sent``: messages stored by sends, topics, publications and forwards; no duplicates, dead letters or moved
      messages.
    - ``received``: deliveries by receives and claims; a repeated receive attempt does not count. ``redelivered`` are
      those of messages that had been received before.
    - ``deleted``: by receipts, forwards and acknowledged claims; not by retention or a purge.
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_sent_at_ms: int | None
    redelivered: int = 0
    sent: int = 0
    received: int = 0
    deleted: int = 0


class QueueView(Value):
    """One queue; ``is_new`` if the command created it."""

    queue: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    counts: QueueCounts | None = None
    is_new: bool = False


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of queue names without the account, in order; ``more`` if another page follows.

    ``views`` has these queues with their counts, if requested, without those that the caller may not see.
    """

    names: list[str]
    more: bool
    views: list[QueueView] = []


class CreateQueue(QueueCommand):
    """Create ``queue``, or return it if it exists with the given ``settings``. Result: ``QueueView``.

    A new queue gets ``tags``, and ``defaults`` for absent settings; neither is compared with an existing queue. With
    ``skip_name_pause`` (SMQ) the name of a deleted queue is free immediately. Errors: ``QueueExists``,
    ``QueueDeletedRecently``, and those of ``SetQueue``.
    """

    settings: Mapping[str, SettingValue] = {}
    defaults: Mapping[str, SettingValue] = {}
    tags: Mapping[str, str] = {}
    skip_name_pause: bool = False


class DeleteQueue(QueueCommand):
    """Delete ``queue`` and its messages, in constant time. Result: ``None``."""


class PurgeQueue(QueueCommand):
    """Delete all messages of ``queue``, in constant time. Result: ``None``.

    Error: ``PurgeInProgress`` if the last purge was less than ``limits.PURGE_PAUSE_S`` ago.
    """


class SetQueue(QueueCommand):
    """Change the given settings of ``queue``; current leases keep their deadlines. Result: ``None``.

    Errors: ``SettingsConflict`` if settings contradict each other or a setting cannot change;
    ``DeadLetterQueueRefused`` if the dead-letter queue is missing, of another type, or does not allow this source.
    """

    settings: Mapping[str, SettingValue]


class EditQueue(QueueCommand):
    """Replace a text setting by ``edit(text)``, atomically: no concurrent change is lost. Result: ``None``.

    ``edit`` is pure and may be called more than once; it raises ``EditRefused`` to cancel the change.
    """

    setting: str
    edit: Callable[[str], str]


class TagQueue(QueueCommand):
    """Remove the tags ``removed``, then set ``tags``. Result: ``None``. Error: ``TooManyTags``, without any change."""

    tags: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()


class ShowQueue(QueueCommand):
    """Return the settings of ``queue``, and with ``counts`` its counts. Result: ``QueueView``."""

    counts: bool = False


class ListQueues(Command):
    """List up to ``count`` queues of ``account`` by name, from the first name after ``after``. Result: ``QueuePage``.

    Names begin with ``prefix``. ``views`` adds a view of each queue.
    """

    account: str
    prefix: str = ""
    after: str = ""
    count: int = limits.SQS_LIST_RESULTS.default
    views: bool = False


class ShowAccount(Command):
    """Return the ``AccountSettings`` of ``account``."""

    account: str


class SetAccount(Command):
    """Replace the settings of ``account``. Result: ``None``."""

    account: str
    settings: AccountSettings


# Messages.


class SentMessage(msgspec.Struct, frozen=True, gc=False):
    """A stored message; ``id`` has 16 bytes (an RFC 9562 version 4 UUID).

    ``sequence`` increases strictly in a FIFO queue, also across purges; it is ``None`` in standard queues. ``receipt``
    is that of a delayed message, if requested.
    """

    id: bytes
    sequence: int | None = None
    receipt: str | None = None


class SendOptions(Value, gc=False):
    """Where sends over SMQ differ from SQS (SMQ reference, sections 4.6, 4.7 and 6).

    - ``receipts``: a delayed message gets a receipt, to delete it or change its delay before it becomes visible.
    - ``all_or_nothing``: the error of one message fails the command, and nothing is stored.
    - ``dedup_id_optional``: a message without a deduplication id is stored even if its queue requires one.
    - ``decode`` converts each message for a queue with ``smq_base64``; it is pure and may raise ``BodyUnreadable``.
    """

    receipts: bool = False
    all_or_nothing: bool = False
    dedup_id_optional: bool = False
    decode: Callable[[NewMessage], NewMessage] | None = None


class Send(QueueCommand):
    """Store messages. Result: a list with a ``SentMessage`` or an error (``MessageTooLong``) for each.

    In a FIFO queue, ``GroupMissing`` and ``DeduplicationIdMissing`` fail the whole command and nothing is stored; with
    ``options`` they are errors of a message. A duplicate within ``limits.DEDUPLICATION_S`` is not stored; its result is
    that of the first message. Without ``options`` the rules of SQS apply.
    """

    messages: tuple[NewMessage, ...]
    options: SendOptions | None = None


class ReceivedMessage(Value, gc=False):
    """A message and its lease: no other receive returns the message before ``visible_at_ms``.

    ``source`` is the full name of a dead letter's original queue. ``properties``, encoded, include the group and the
    deduplication id.
    """

    id: bytes
    receipt: str
    body: str
    properties: bytes
    sent_at_ms: int
    first_received_at_ms: int
    receive_count: int
    visible_at_ms: int
    priority: int
    sequence: int | None = None
    source: str | None = None


class Received(Value, gc=False):
    """The messages of one receive, and when the queue has, or may have, the next one.

    ``next_due_ms`` is not after now if more messages are visible, and ``None`` if no stored message will become
    visible. If messages are returned, it is exact only while the queue is watched; otherwise it may be now.
    ``receive_wait_s`` and ``smq_base64`` are settings of the queue. ``over_limit``: the in-flight limit of a standard
    queue is reached.
    """

    messages: list[ReceivedMessage]
    next_due_ms: int | None
    receive_wait_s: int
    over_limit: bool = False
    smq_base64: bool = False


class Receive(QueueCommand):
    """Lease up to ``count`` visible messages for ``timeout_s`` (``None``: the queue's setting). Result: ``Received``.

    The result is immediate and may be empty; long polls use ``Engine.watch``. The maximum lease (``lease_s_max``;
    ``None``, of SMQ, for none) counts from ``requested_at_ms``, the start of a long poll (``None``: now). In FIFO
    queues, a receive that repeats an ``attempt_id`` within ``limits.ATTEMPT_S`` returns the same messages and receipts
    again, unless one of the messages has changed.

    Error: ``ReceivesThrottled`` for more than ``receives_per_s_max`` of the queue in a second. A long poll counts
    once, at its start.
    """

    count: int = 1
    timeout_s: int | None = None
    requested_at_ms: int | None = None
    lease_s_max: int | None = limits.LEASE_S_MAX
    attempt_id: str | None = None


class ReceiptCommand(QueueCommand):
    """A command with receipts: a live receipt acts; a superseded one, or one of a deleted message, does nothing.

    An expired receipt acts until the message is received again, except with ``only_live`` (SMQ) or in FIFO queues. With
    ``any_epoch`` a receipt that was superseded only by a change counts as live (lenient handles of SMQ). With
    ``any_receive`` a superseded receipt of a standard queue acts as the latest one does, unless a claim has the message
    (the rule of AWS).
    """

    only_live: bool = False
    any_epoch: bool = False
    any_receive: bool = False


class Delete(ReceiptCommand, kw_only=True):
    """Delete the messages of ``receipts``. Result: a ``ReceiptState`` or ``ReceiptInvalid`` for each."""

    receipts: tuple[str, ...]


class VisibilityChange(Value, gc=False):
    """Hide the message of ``receipt`` for ``timeout_s`` from now; 0 makes it visible immediately."""

    receipt: str
    timeout_s: int


class ChangeVisibility(ReceiptCommand, kw_only=True):
    """Change the deadlines of leases. Result: a ``LeaseChange``, ``ReceiptInvalid`` or ``LeaseTooLong`` for each.

    With ``renew_receipt`` (SMQ) each change issues a new receipt and supersedes the old one. ``lease_s_max`` limits the
    whole lease; ``None`` (SMQ) for no maximum.
    """

    changes: tuple[VisibilityChange, ...]
    renew_receipt: bool = False
    lease_s_max: int | None = limits.LEASE_S_MAX


class LeaseChange(Value, gc=False):
    """The state of the receipt before the change, and the lease after it.

    ``visible_at_ms`` is the new deadline, ``hidden_for_ms`` the time from the change to it, ``receipt`` the new
    receipt, if requested. All are ``None`` if the receipt did not act.
    """

    state: ReceiptState
    visible_at_ms: int | None = None
    hidden_for_ms: int | None = None
    receipt: str | None = None


# Dead letters and move tasks.


class ListDeadLetterSources(QueueCommand):
    """List up to ``count`` queues whose dead-letter queue is ``queue``, by full name, from the first after ``after``.

    Result: ``QueuePage``.
    """

    after: str = ""
    count: int = limits.SQS_LIST_RESULTS.default


class MoveStatus(enum.Enum):
    """The status of a move task."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class MoveTask(Value):
    """A task that moves dead letters; ``id`` has 16 bytes.

    ``messages_to_move`` is the size of ``source`` at the start; ``failure`` is one of the constants below.
    """

    id: bytes
    source: str
    destination: str | None
    moves_per_s_max: int | None
    status: MoveStatus
    messages_moved: int
    messages_to_move: int
    started_at_ms: int
    failure: str | None = None


SOURCE_UNKNOWN = "source unknown"
"""The failure of a move: a message has no original queue; it was sent to the dead-letter queue directly."""

QUEUE_MISSING = "queue missing"
"""The failure of a move: a destination does not exist, or is of another type (FIFO or standard)."""

NOT_ALLOWED = "not allowed"
"""The failure of a move: the starter of the task may not send to a destination."""


class StartMove(Command):
    """Start to move dead letters of ``source`` to their original queues, or to ``destination``. Result: ``MoveTask``.

    ``moves_per_s_max`` of ``None`` is no limit. ``starter`` is the ARN of the principal that must be allowed to send to
    the destinations, ``None`` without permissions. Errors: ``QueueNotFound`` (either queue), ``NotADeadLetterQueue``,
    ``MoveTaskRunning``, ``DestinationRefused``.
    """

    source: str
    destination: str | None = None
    moves_per_s_max: int | None = None
    starter: str | None = None


class CancelMove(Command):
    """Stop a running move task of ``source``; moved messages stay moved. Result: ``MoveTask``.

    Errors: ``QueueNotFound``; ``MoveTaskNotFound`` for a task of another queue or one that has ended.
    """

    source: str
    task: bytes


class ListMoves(Command):
    """List up to ``count`` move tasks of ``source``, newest first. Result: a list of ``MoveTask``."""

    source: str
    count: int = limits.SQS_MOVE_TASK_RESULTS.default


# Inspection is read-only: it begins no lease and counts no receive. States are those of one instant.


class MessageState(enum.Enum):
    """The state of a message at an instant (``docs/lifecycle.md``); a claimed message is in flight."""

    VISIBLE = "visible"
    IN_FLIGHT = "in flight"
    DELAYED = "delayed"


class InspectQueue(QueueCommand):
    """List up to ``count`` messages of ``queue``, oldest first. Result: a list of ``SeenMessage``.

    ``state`` selects messages in that state, by ``visible_at_ms``, claimed ones last. If no index gives that order, at
    most ``limits.INSPECT_SCANNED_MAX`` messages of other states are scanned, and messages may be missing. ``id``
    selects one message. The list ends with the message whose body reaches ``bytes_max``.

    With ``receipts`` each message in flight has its latest receipt. A receipt can release, extend and delete the
    message, so only operators may see it.
    """

    count: int = limits.INSPECTED_MAX
    state: MessageState | None = None
    receipts: bool = False
    id: bytes | None = None
    bytes_max: int | None = None


class SeenMessage(Value, gc=False):
    """An inspected message; ``properties`` are encoded.

    ``visible_at_ms`` is the end of its last delay or lease, past or to come; ``None`` if it had none or is claimed.
    ``received_at_ms`` is its last receive (as in ``SeenLease``), ``first_received_at_ms`` its first, counting those in
    a dead letter's original queue; both are ``None`` before the first receive and for claimed messages. ``receipt``, if
    requested, acts while the message is in flight; claimed messages have none.
    """

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    receive_count: int
    state: MessageState
    visible_at_ms: int | None
    received_at_ms: int | None
    first_received_at_ms: int | None
    group: str | None
    priority: int
    receipt: str | None = None


class InspectLeases(QueueCommand):
    """List up to ``count`` leases of ``queue`` by deadline, those of claims excluded. Result: a list of ``SeenLease``.

    The cost depends on ``count`` only, not on the number of messages in the queue or in flight. Leases are not found if
    more than ``limits.INSPECT_SCANNED_MAX`` delayed messages become visible before they end.

    ``also`` has positions from earlier results. Their messages are appended while they are in the queue, even if their
    leases have ended: so a caller that follows leases can see which messages were deleted.
    """

    count: int = limits.INSPECTED_MAX
    also: tuple[int, ...] = ()


class SeenLease(Value, gc=False):
    """The lease of a message, from its receive (``received_at_ms``) to ``visible_at_ms``.

    ``position`` identifies the message for ``also``. The lease of such a message may have ended; that of a claimed
    message has. ``generation`` identifies the receive; ``receive_count`` counts those in this queue. ``extensions``
    counts the changes of the deadline since; ``None`` without an event log. Without an event log, ``received_at_ms`` of
    a message received more than once is the start of the last receive, before its wait.
    """

    message_id: bytes
    position: int
    generation: int
    received_at_ms: int
    visible_at_ms: int
    receive_count: int
    extensions: int | None = None
    group: str | None = None


class Peek(QueueCommand):
    """Return up to ``count`` messages that a receive would return now, in its order (SMQ reference, section 4.12).

    In a FIFO queue, messages behind a message of their group are not among them. The cost is that of a receive. The
    list ends with the message whose body reaches ``bytes_max``. Result: ``Peeked``.
    """

    count: int = 1
    bytes_max: int | None = None


class PeekedMessage(Value, gc=False):
    """A visible message; before its first receive, ``receive_count`` is 0 and ``first_received_at_ms`` is ``None``.

    ``source`` is the full name of a dead letter's original queue.
    """

    id: bytes
    body: str
    properties: bytes
    sent_at_ms: int
    first_received_at_ms: int | None
    receive_count: int
    priority: int
    source: str | None = None


class Peeked(Value, gc=False):
    """The messages of a peek; ``smq_base64`` is the queue's setting."""

    messages: list[PeekedMessage]
    smq_base64: bool = False


# Browsing lists the queues of an account in any order, with counts and rates. Rates need earlier counts, so the server
# (``server/queue_statistics.py``) handles this command, not the engine.


class QueueOrder(enum.Enum):
    """The order of queues, and by name where they are equal."""

    NAME = "name"
    VISIBLE = "visible"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    OLDEST = "oldest"
    SENT = "sent"
    RECEIVED = "received"
    DELETED = "deleted"


class BrowseQueues(Command):
    """List up to ``count`` queues of ``account`` from the index ``first``. Result: ``BrowsedQueues``.

    ``search`` selects names that contain it, ignoring case; ``names`` (without the account) selects up to
    ``limits.BROWSED_QUEUES_MAX`` queues. ``OLDEST`` sorts by the age of the oldest message; ``SENT``, ``RECEIVED`` and
    ``DELETED`` by the recent rate. ``history`` adds earlier counts. Queues for which ``may_see`` is false have only a
    name; without ``may_see`` all are shown.

    The queues on the page are counted for the reply; their order, unless by name, is that of the previous counts.
    Queues selected by ``names`` are counted as often as time allows.
    """

    account: str
    search: str = ""
    names: tuple[str, ...] | None = None
    order: QueueOrder = QueueOrder.NAME
    descending: bool = False
    first: int = 0
    count: int = 50
    history: bool = True
    may_see: Callable[[QueueView], bool] | None = None


class BrowsedQueue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One queue, by its name without the account; all other fields are ``None`` if the caller may not see it.

    ``sent``, ``received`` and ``deleted`` are the totals of ``QueueCounts``. Rates cover some seconds before
    ``counted_at_ms``; they are ``None`` before the second count. ``history`` has (instant in ms, visible messages) of
    earlier counts, oldest first.
    """

    name: str
    fifo: bool | None = None
    dead_letter_queue: str | None = None
    visible: int | None = None
    in_flight: int | None = None
    delayed: int | None = None
    oldest_sent_at_ms: int | None = None
    sent: int | None = None
    received: int | None = None
    deleted: int | None = None
    sent_per_s: float | None = None
    received_per_s: float | None = None
    deleted_per_s: float | None = None
    counted_at_ms: int | None = None
    history: list[tuple[int, int]] = []


class BrowsedQueues(Value):
    """A page of queues; ``in_all`` queues match, of which ``counted`` have counts so far."""

    queues: list[BrowsedQueue]
    in_all: int
    counted: int


# Ports. ``Engine`` is the whole interface between a server and a store; ``Clock`` is the only source of time.

Done = Callable[[Any], object]
"""Called once, in the event loop, with the result or the ``VeilmqError`` of a command, when it is durable."""

Wake = Callable[[int], object]
"""Called with the instant (ms) at which a watched queue has, or may have, a message."""

MaySend = Callable[[str, str, str], bool]
"""(principal ARN, full name of a queue, its policy) → whether the principal may send to the queue."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call; does nothing after the call."""


class Clock(Protocol):
    """The time of a store in whole milliseconds; it never goes backwards.

    Timers and ``next_due_ms`` use it. Instants in results whose names end in ``_at_ms`` or ``_until_ms`` are *shown
    time*, for users; compare them with ``shown_ms()``.
    """

    def now_ms(self) -> int:
        """Return the current store time."""

    def shown_ms(self, at_ms: int | None = None) -> int:
        """Return the store time ``at_ms``, by default the current one, as shown time since the epoch."""

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in the event loop once ``now_ms()`` is at least ``at_ms``."""


class Engine(Protocol):
    """Runs commands, atomically and durably. All methods are called in the thread of the event loop; none blocks."""

    @property
    def token_key(self) -> bytes:
        """A secret of 32 bytes, stored with the data, for tokens that a protocol issues."""

    def submit(self, command: Command, done: Done) -> None:
        """Run ``command``, then call ``done``."""

    def withdraw(self, matches: Callable[[Done], bool]) -> list[Done]:
        """Cancel the commands that have not begun and whose ``done`` matches, and return each ``done``."""

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` when ``queue`` may have a message before its last ``next_due_ms``; one watch for each queue.

        ``wake`` is called between two commands. On SQLite, a command that it submits is applied next, in the same
        batch. Deleting the queue wakes too; the next receive fails with ``QueueNotFound``.
        """

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""

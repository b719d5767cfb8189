"""Commands on queues, their results, and the ports of the store: the same for every protocol.

A queue is named by ``"account/name"``. Commands carry no time: the engine stamps them. The wire checks ranges that
belong to a protocol; an engine relies on ``core.limits``' widest values and on its own queues' settings. A batch action
of a protocol is one command with several entries, and each entry succeeds or fails alone.

Results are frozen values, instants in milliseconds since the epoch. The commands of topics, forwards, claims,
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
    """The root of all commands."""


class QueueCommand(Command):
    """A command on ``queue``. Error of all but ``CreateQueue``: ``QueueNotFound``."""

    queue: str


# Queues.


class QueueCounts(Value, gc=False):
    """How many messages are in which state at one instant; ``oldest_sent_at_ms`` is of the oldest not deleted.

    Exact, but for many messages that passed their retention at once (``docs/lifecycle.md``). The others are totals
    since the engine was opened, or had to read its state from disk again:

    - ``sent``: stored by sends, topics, publications and forwards; no duplicates, dead letters or moved messages.
    - ``received``: returned by receives or bound by claims, each time; a repeated receive counts nothing.
      ``redelivered`` is how many of them had been received before.
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
    """One queue as its owner sees it; ``is_new`` if the command created it."""

    queue: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    counts: QueueCounts | None = None
    is_new: bool = False


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a listing: names without the account, in order; ``more`` if any follow.

    ``views`` are of the same queues, with their counts, where they were requested and may be seen.
    """

    names: list[str]
    more: bool
    views: list[QueueView] = []


class CreateQueue(QueueCommand):
    """Create ``queue``, or find it with the same supplied settings. Result: ``QueueView``.

    A new queue gets ``tags``, and ``defaults`` for what ``settings`` leave out; neither is compared with an existing
    queue. With ``skip_name_pause`` (SMQ) the name of a deleted queue is free immediately. Errors: ``QueueExists``,
    ``QueueDeletedRecently``, and those of ``SetQueue``.
    """

    settings: Mapping[str, SettingValue] = {}
    defaults: Mapping[str, SettingValue] = {}
    tags: Mapping[str, str] = {}
    skip_name_pause: bool = False


class DeleteQueue(QueueCommand):
    """Delete ``queue`` and all its messages, at a cost that does not depend on them. Result: ``None``."""


class PurgeQueue(QueueCommand):
    """Delete all messages of ``queue``, at a cost that does not depend on them. Result: ``None``.

    Error ``PurgeInProgress`` when the last purge was less than ``limits.PURGE_PAUSE_S`` ago.
    """


class SetQueue(QueueCommand):
    """Change the supplied settings of ``queue``; leases in flight keep their deadlines. Result: ``None``.

    Errors: ``SettingsConflict`` where settings contradict each other or cannot change any more,
    ``DeadLetterQueueRefused`` where the dead-letter queue is missing, of another type, or does not allow this source.
    """

    settings: Mapping[str, SettingValue]


class EditQueue(QueueCommand):
    """Replace one setting, a text, by the result of ``edit``; concurrent changes are not lost. Result: ``None``.

    ``edit`` is pure, may be called more than once, and raises ``EditRefused`` to leave everything as it was.
    """

    setting: str
    edit: Callable[[str], str]


class TagQueue(QueueCommand):
    """Remove the tags named in ``removed``, then put ``tags``. Result: ``None``. Error ``TooManyTags``: no change."""

    tags: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()


class ShowQueue(QueueCommand):
    """Return the settings, and with ``counts`` the counts, of ``queue``: a ``QueueView``."""

    counts: bool = False


class ListQueues(Command):
    """Return a ``QueuePage``: at most ``count`` queues of ``account`` whose names begin with ``prefix``, by name.

    The page begins behind the name ``after``; ``views`` adds a view of each queue.
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
    """A message that is stored; ``id`` has 16 bytes (an RFC 9562 version 4 UUID).

    ``sequence`` rises strictly with each message of a FIFO queue, also across purges; ``None`` in standard queues.
    ``receipt`` is of a delayed message, where one was requested.
    """

    id: bytes
    sequence: int | None = None
    receipt: str | None = None


class SendOptions(Value, gc=False):
    """The rules of SMQ that differ from those of SQS (SMQ reference, sections 4.6, 4.7 and 6).

    ``receipts``: a delayed message gets a receipt, by which it can be deleted, or its delay changed, before it is
    visible. ``all_or_nothing``: the error of one message is that of the command, and nothing is stored.
    ``dedup_id_optional``: a message without a deduplication id is stored even if its queue needs one. ``decode`` is
    pure, returns the message to store for each one sent to a queue with ``smq_base64``, and may raise
    ``BodyUnreadable``.
    """

    receipts: bool = False
    all_or_nothing: bool = False
    dedup_id_optional: bool = False
    decode: Callable[[NewMessage], NewMessage] | None = None


class Send(QueueCommand):
    """Store messages. Result: a list with a ``SentMessage`` or an error for each.

    The error of a message is ``MessageTooLong``. In a FIFO queue ``GroupMissing`` and ``DeduplicationIdMissing`` are
    errors of the whole command, and nothing is stored; with ``options`` they are errors of a message. A duplicate
    within ``limits.DEDUPLICATION_S`` is not stored; its result is that of the first message.

    ``options`` is ``None`` for the rules of SQS.
    """

    messages: tuple[NewMessage, ...]
    options: SendOptions | None = None


class ReceivedMessage(Value, gc=False):
    """A message and its lease: no other receive returns it before ``visible_at_ms``.

    ``source`` is the full name of the queue that a dead letter came from. Group and deduplication id are among the
    ``properties``.
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
    """The messages of one receive, and the instant at which the queue has, or may have, the next one.

    ``next_due_ms`` is not later than now when more messages are visible, ``None`` when none becomes visible by itself.
    After messages it is exact only while the queue is watched; otherwise it may be now. ``receive_wait_s`` and
    ``smq_base64`` are settings of the queue. ``over_limit``: the in-flight limit of a standard queue is reached.
    """

    messages: list[ReceivedMessage]
    next_due_ms: int | None
    receive_wait_s: int
    over_limit: bool = False
    smq_base64: bool = False


class Receive(QueueCommand):
    """Take up to ``count`` visible messages and hide them for ``timeout_s`` (``None``: the queue's own).

    Result: ``Received``, at once and possibly empty; a caller that waits uses ``Engine.watch``. ``requested_at_ms`` is
    when a receive that waited was requested, ``None`` for now: the longest lease counts from there. ``lease_s_max``
    bounds it, ``None`` (SMQ) for no maximum. In FIFO queues a receive with the ``attempt_id`` of an earlier one whose
    messages are unchanged returns the same messages and receipts again (``limits.ATTEMPT_S``).

    Error ``ReceivesThrottled`` beyond the queue's ``receives_per_s_max`` in a second. A receive that waits counts once,
    when it is requested.
    """

    count: int = 1
    timeout_s: int | None = None
    requested_at_ms: int | None = None
    lease_s_max: int | None = limits.LEASE_S_MAX
    attempt_id: str | None = None


class ReceiptCommand(QueueCommand):
    """A command by receipts: a live one acts, one that is superseded or whose message is gone does nothing.

    An expired receipt of a message not received again acts too, unless ``only_live`` (SMQ) or the queue is FIFO. With
    ``any_epoch`` a receipt that only a change superseded is live (SMQ's lenient handles). With ``any_receive`` a
    superseded receipt of a standard queue acts as the latest one does, unless a claim has the message (Amazon's rule).
    """

    only_live: bool = False
    any_epoch: bool = False
    any_receive: bool = False


class Delete(ReceiptCommand, kw_only=True):
    """Delete the messages of ``receipts``. Result: a ``ReceiptState`` or ``ReceiptInvalid`` for each."""

    receipts: tuple[str, ...]


class VisibilityChange(Value, gc=False):
    """Hide the message of ``receipt`` for ``timeout_s`` from now on; 0 makes it visible at once."""

    receipt: str
    timeout_s: int


class ChangeVisibility(ReceiptCommand, kw_only=True):
    """Move deadlines. Result: a ``LeaseChange``, ``ReceiptInvalid`` or ``LeaseTooLong`` for each change.

    With ``renew_receipt`` (SMQ) each change issues a new receipt and supersedes the old one. ``lease_s_max`` bounds the
    whole lease, ``None`` (SMQ) for no maximum.
    """

    changes: tuple[VisibilityChange, ...]
    renew_receipt: bool = False
    lease_s_max: int | None = limits.LEASE_S_MAX


class LeaseChange(Value, gc=False):
    """One change of visibility: the state that the receipt was in, and the lease after it.

    ``visible_at_ms`` is the deadline in force, ``hidden_for_ms`` the same from the change on, and ``receipt`` a new
    receipt where one was requested; all are ``None`` where the receipt did not act.
    """

    state: ReceiptState
    visible_at_ms: int | None = None
    hidden_for_ms: int | None = None
    receipt: str | None = None


# Dead letters and move tasks.


class ListDeadLetterSources(QueueCommand):
    """Return a ``QueuePage`` of at most ``count`` queues whose dead-letter queue is ``queue``, by full name.

    The page begins behind the name ``after``.
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
    """A move of dead letters; ``id`` has 16 bytes and names the running task.

    ``messages_to_move`` is what ``source`` had when the task began; ``failure`` says why it failed.
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
"""A failure: a message was sent to the dead-letter queue directly, so there is no way back."""

QUEUE_MISSING = "queue missing"
"""A failure: the queue that a message should go to does not exist, or cannot take messages of this type."""

NOT_ALLOWED = "not allowed"
"""A failure: the task's starter may not send to the queue that a message should go to."""


class StartMove(Command):
    """Begin to move the dead letters of ``source`` back to where they came from, or to ``destination``.

    At most ``moves_per_s_max`` a second, ``None`` for no limit. ``starter`` is the ARN of the principal that must be
    allowed to send to the destination, ``None`` without permissions. Result: the ``MoveTask``. Errors:
    ``QueueNotFound`` (either queue), ``NotADeadLetterQueue``, ``MoveTaskRunning``, ``DestinationRefused``.
    """

    source: str
    destination: str | None = None
    moves_per_s_max: int | None = None
    starter: str | None = None


class CancelMove(Command):
    """Stop the move task ``task`` of ``source``; moved messages stay moved. Result: the ``MoveTask``.

    Errors: ``QueueNotFound``, ``MoveTaskNotFound`` for a task that is not of this queue or does not run any more.
    """

    source: str
    task: bytes


class ListMoves(Command):
    """Return the latest move tasks of ``source``, newest first: a list of at most ``count`` ``MoveTask``."""

    source: str
    count: int = limits.SQS_MOVE_TASK_RESULTS.default


# Inspection changes nothing: no lease begins and no receive is counted. States are those of one instant.


class MessageState(enum.Enum):
    """The state of a message at an instant (``docs/lifecycle.md``); a claimed message is in flight."""

    VISIBLE = "visible"
    IN_FLIGHT = "in flight"
    DELAYED = "delayed"


class InspectQueue(QueueCommand):
    """Return up to ``count`` messages of ``queue`` in the order of sending: a list of ``SeenMessage``.

    With ``state``: only messages in that state, by ``visible_at_ms``, claimed ones last. Where no index gives that
    order, at most ``limits.INSPECT_SCANNED_MAX`` messages of other states are scanned, and some may be missing.

    With ``id``: only that message, if it is among them. With ``bytes_max`` the list ends with the message whose body
    reaches it. With ``receipts`` each message in flight has its latest receipt; a receipt can release, extend and
    delete the message, so only operators may see it.
    """

    count: int = limits.INSPECTED_MAX
    state: MessageState | None = None
    receipts: bool = False
    id: bytes | None = None
    bytes_max: int | None = None


class SeenMessage(Value, gc=False):
    """A message of an inspection; ``properties`` are encoded.

    ``visible_at_ms`` is when its last hiding ends or ended: ``None`` for one that was never hidden, or is claimed.
    ``received_at_ms`` is its last receive (as of ``SeenLease``), ``first_received_at_ms`` its first one, also in the
    queue that a dead letter came from; both are ``None`` before the first one, and of a claimed message. ``receipt``
    acts while the message is in flight, where it was requested; claimed messages have none.
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
    """Return up to ``count`` leases of ``queue``, by their ends: a list of ``SeenLease``. Claims have no leases.

    The cost depends on ``count`` alone, not on how many messages the queue has or are in flight. Leases behind more
    than ``limits.INSPECT_SCANNED_MAX`` delayed messages that become visible sooner are not found.

    ``also`` are positions from earlier results: their messages are appended while they are in the queue, whatever
    became of their leases, so a caller that follows leases sees which messages are deleted.
    """

    count: int = limits.INSPECTED_MAX
    also: tuple[int, ...] = ()


class SeenLease(Value, gc=False):
    """A message in flight, by its lease: from its receive, at ``received_at_ms``, to ``visible_at_ms``.

    ``position`` identifies the message for ``also``; the lease of such a message may have ended, and has ended by now
    where a claim has the message. ``generation`` identifies the receive, ``receive_count`` counts those in this queue.
    ``extensions`` counts the changes of the deadline since; ``None`` without an event log. Without one, the last of
    several receives began when it was requested: its wait is included.
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
    """Return up to ``count`` visible messages in the order of receives: a ``Peeked`` (SMQ reference, section 4.12).

    Of a FIFO queue, only what a receive could return now, not what waits behind a message of its group. The cost is
    that of a receive. With ``bytes_max`` it ends with the message whose body reaches it.
    """

    count: int = 1
    bytes_max: int | None = None


class PeekedMessage(Value, gc=False):
    """A visible message: ``receive_count`` is 0 and ``first_received_at_ms`` ``None`` before its first receive.

    ``source`` is the full name of the queue that a dead letter came from.
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


# Browsing: a page of the queues of an account in any order, with counts and rates. Rates need earlier counts, so the
# server answers (``server/queue_statistics.py``), not the engine.


class QueueOrder(enum.Enum):
    """The order of queues; equals by name."""

    NAME = "name"
    VISIBLE = "visible"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    OLDEST = "oldest"
    SENT = "sent"
    RECEIVED = "received"
    DELETED = "deleted"


class BrowseQueues(Command):
    """Return up to ``count`` queues of ``account``, from the index ``first`` on: a ``BrowsedQueues``.

    ``search`` selects names that contain it, ignoring case; ``names`` (without the account) selects at most
    ``limits.BROWSED_QUEUES_MAX`` by name. ``OLDEST`` sorts by the age of the oldest message; ``SENT``, ``RECEIVED`` and
    ``DELETED`` by the recent rate. ``history`` adds earlier counts. Queues that ``may_see`` denies have only a name;
    ``None`` denies nothing.

    The queues of the page are counted for it; the order, unless by name, is that of the last counts. Queues asked for
    by name are counted as often as time allows.
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
    """A queue of a page: its name without the account; all else is ``None`` where it is denied.

    ``sent``, ``received`` and ``deleted`` are the totals of ``QueueCounts``; rates are of some seconds before
    ``counted_at_ms``, ``None`` before the second count. ``history`` has the visible messages of earlier counts, as
    pairs of an instant (ms) and a number, oldest first.
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
    """A page of queues; ``in_all`` match, and ``counted`` of those have been counted yet."""

    queues: list[BrowsedQueue]
    in_all: int
    counted: int


# The ports: ``Engine`` is all that a server knows of a store, ``Clock`` the one source of time. Tests replace both.

Done = Callable[[Any], object]
"""Called once with the result or the ``VeilmqError`` of a command, in the event loop, once that is durable."""

Wake = Callable[[int], object]
"""Called with the instant (ms) at which a watched queue has, or may have, a message."""

MaySend = Callable[[str, str, str], bool]
"""Whether a principal (its ARN) may send to a queue (its full name) that has this policy."""


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> object:
        """Cancel the call; harmless when it has happened."""


class Clock(Protocol):
    """The time of a store, which never runs backwards, in whole milliseconds.

    Timers and ``next_due_ms`` are in it. Instants in results whose names end in ``_at_ms`` or ``_until_ms`` are shown
    time, for users: their age is the difference to ``shown_ms()``.
    """

    def now_ms(self) -> int:
        """Return the present instant of the store."""

    def shown_ms(self, at_ms: int | None = None) -> int:
        """Return the instant ``at_ms``, by default the present one, as users see it, since the epoch."""

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in the event loop once ``now_ms()`` is at least ``at_ms``."""


class Engine(Protocol):
    """Commands made atomic and durable. All methods are called in the event loop's thread, and none blocks."""

    @property
    def token_key(self) -> bytes:
        """A secret of 32 bytes, kept as long as the data: for tokens that a protocol issues."""

    def submit(self, command: Command, done: Done) -> None:
        """Run ``command``; call ``done`` with its result or error once that is durable."""

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not begun; its client has disconnected."""

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` whenever ``queue`` may have a message sooner than its last receive said; one watch a queue.

        It is called between two commands: a command that ``wake`` submits is applied next, in the same batch. The
        deletion of the queue wakes too; the next receive has ``QueueNotFound``.
        """

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""

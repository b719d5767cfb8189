"""What can be asked of an engine: one frozen struct per command, the same for every protocol.

A queue is named by ``"account/name"``. Commands carry no time: the engine stamps them. Ranges that belong to a
protocol are checked at the wire; an engine relies on ``core.limits``' widest values and on its own queues' settings.
A batch action of a protocol is one command with several entries, and each entry succeeds or fails alone.

Results are plain frozen values, instants in milliseconds since the epoch. ``Engine`` is all that a server knows of a
store.
"""

import enum
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from veilmq.core import limits
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import NewMessage
from veilmq.core.settings import AccountSettings, QueueSettings, SettingValue


class SentMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message that is stored; ``id`` has 16 bytes (an RFC 9562 version 4 UUID).

    ``sequence`` rises strictly with each message of a FIFO queue, also across purges; ``None`` in standard queues.
    ``receipt`` is of a delayed message, where one was asked for.
    """

    id: bytes
    sequence: int | None = None
    receipt: str | None = None


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message and its lease: hidden from everyone else until ``visible_at_ms``.

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


class Received(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The messages of one receive, and the instant at which the queue has, or may have, the next one.

    ``next_due_ms`` is not later than now when more is visible already, ``None`` when nothing is coming by itself. After
    messages it is exact only while the queue is watched; nobody else needs to know, and the present is always right.
    ``receive_wait_s`` is the queue's own setting, for a caller that named no wait. ``over_limit`` tells that there is
    nothing because a standard queue has as many messages in flight as it may. ``smq_base64`` is the queue's, too.
    """

    messages: list[ReceivedMessage]
    next_due_ms: int | None
    receive_wait_s: int
    over_limit: bool = False
    smq_base64: bool = False


class LeaseChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One change of visibility: the state that the receipt was in, and what holds now.

    ``visible_at_ms`` is the deadline now in force, ``hidden_for_ms`` the same as counted from the change, and
    ``receipt`` a new receipt where one was asked for; all are ``None`` where the receipt did not act.
    """

    state: ReceiptState
    visible_at_ms: int | None = None
    hidden_for_ms: int | None = None
    receipt: str | None = None


class QueueCounts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How many messages are in which state at one instant; ``oldest_sent_at_ms`` is of the oldest not deleted.

    ``redelivered`` is how often messages were received that had been received before, since the engine was opened
    (or had to go back to what is on disk). ``sent``, ``received`` and ``deleted`` are running totals since then, too:
    messages stored by sends, topics, publications and forwards, but not dead letters or what move tasks brought;
    messages given by receives or bound by claims, each time; messages deleted by their receipts, by forwards or with
    acknowledged claims, but not by retention or a purge. A duplicate is not stored, a repeated receive gives nothing.
    Exact, but for many messages that passed their retention at once (``docs/lifecycle.md``).
    """

    visible: int
    in_flight: int
    delayed: int
    oldest_sent_at_ms: int | None
    redelivered: int = 0
    sent: int = 0
    received: int = 0
    deleted: int = 0


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue as its owner sees it; ``is_new`` where the command has just made it."""

    queue: str
    settings: QueueSettings
    created_at_ms: int
    modified_at_ms: int
    counts: QueueCounts | None = None
    is_new: bool = False


class QueuePage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a listing: names without the account, in order; ``more`` tells whether any follow.

    ``views`` are of the same queues, with their counters, where they were asked for and may be seen.
    """

    names: list[str]
    more: bool
    views: list[QueueView] = []


class MoveStatus(enum.Enum):
    """How a move task stands."""

    RUNNING = "running"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class MoveTask(msgspec.Struct, frozen=True, kw_only=True):
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
"""The failure of a move task: a message was sent to the dead-letter queue directly, so there is no way back."""

QUEUE_MISSING = "queue missing"
"""The failure of a move task: the queue that a message should go to is gone, or cannot take messages of this kind."""

NOT_ALLOWED = "not allowed"
"""The failure of a move task: its starter may not send to the queue that a message should go to, or not any more."""


class Command(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The root of all commands."""


class CreateQueue(Command, frozen=True, kw_only=True):
    """Create ``queue``, or find it with the same supplied settings. Answers ``QueueView``.

    ``tags`` are those of a new queue, and ``defaults`` the settings it has where ``settings`` say nothing; neither
    tells an existing one apart. ``at_once`` (SMQ) takes the name of a queue that was deleted just now. Errors:
    ``QueueExists``, ``QueueDeletedRecently``, and those of ``SetQueue`` for its settings.
    """

    queue: str
    settings: Mapping[str, SettingValue] = {}
    defaults: Mapping[str, SettingValue] = {}
    tags: Mapping[str, str] = {}
    at_once: bool = False


class DeleteQueue(Command, frozen=True, kw_only=True):
    """Delete ``queue`` and all its messages, at a cost that does not depend on them. Answers ``None``."""

    queue: str


class PurgeQueue(Command, frozen=True, kw_only=True):
    """Delete all messages of ``queue``, at a cost that does not depend on them. Answers ``None``.

    Error ``PurgeInProgress`` when the last purge was less than ``limits.PURGE_PAUSE_S`` ago.
    """

    queue: str


class SetQueue(Command, frozen=True, kw_only=True):
    """Change the supplied settings of ``queue``; leases in flight keep their deadlines. Answers ``None``.

    Errors: ``SettingsConflict`` where the settings would contradict each other or cannot change any more,
    ``DeadLetterQueueRefused`` where the dead-letter queue is missing, of another kind, or does not allow this source.
    """

    queue: str
    settings: Mapping[str, SettingValue]


class EditQueue(Command, frozen=True, kw_only=True):
    """Replace one setting of ``queue``, a text, by what ``edit`` makes of it: nobody else's change gets lost between.

    ``edit`` is pure, may be called more than once, and raises ``EditRefused`` to leave everything as it was. Answers
    ``None``. What one setting says about another is not looked at.
    """

    queue: str
    setting: str
    edit: Callable[[str], str]


class TagQueue(Command, frozen=True, kw_only=True):
    """Remove the tags named in ``removed`` from ``queue``, then put ``tags``. Answers ``None``.

    Error ``TooManyTags``; the tags are then as they were.
    """

    queue: str
    tags: Mapping[str, str] = {}
    removed: tuple[str, ...] = ()


class ShowQueue(Command, frozen=True, kw_only=True):
    """Tell the settings, and with ``counts`` the counters, of ``queue``. Answers ``QueueView``."""

    queue: str
    counts: bool = False


class ListQueues(Command, frozen=True, kw_only=True):
    """List queues of ``account`` whose names begin with ``prefix``, by name, after the name ``after``.

    Answers ``QueuePage`` with at most ``count`` names (without the account), and with ``views`` what each queue is.
    """

    account: str
    prefix: str = ""
    after: str = ""
    count: int = limits.SQS_LIST_RESULTS.default
    views: bool = False


class SendOptions(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Send(Command, frozen=True, kw_only=True):
    """Store messages. Result: a list with a ``SentMessage`` or an error for each.

    The error of a message is ``MessageTooLong``. In a FIFO queue ``GroupMissing`` and ``DeduplicationIdMissing`` are
    errors of the whole command, and nothing is stored; with ``options`` they are errors of a message. A duplicate
    within ``limits.DEDUPLICATION_S`` is not stored; its result is that of the first message.

    ``options`` is ``None`` for the rules of SQS.
    """

    queue: str
    messages: tuple[NewMessage, ...]
    options: SendOptions | None = None


class Receive(Command, frozen=True, kw_only=True):
    """Take up to ``count`` visible messages and hide them for ``timeout_s`` (``None``: the queue's own).

    Answers ``Received``, at once and possibly empty: waiting is the caller's business, see ``ports.Engine.watch``.
    ``requested_at_ms`` is when a receive that waited was asked for, ``None`` for now: the longest lease is counted from
    there. ``lease_s_max`` bounds it, ``None`` (SMQ) for not at all. In FIFO queues a receive with the ``attempt_id`` of
    an earlier one, whose messages are all as it left them, gives the same messages and receipts again
    (``limits.ATTEMPT_S``).

    Error ``ReceivesThrottled`` where the queue's ``receives_per_s_max`` receives were asked within a second before. One
    that waited was counted when it was asked, and only then.
    """

    queue: str
    count: int = 1
    timeout_s: int | None = None
    requested_at_ms: int | None = None
    lease_s_max: int | None = limits.LEASE_S_MAX
    attempt_id: str | None = None


class Delete(Command, frozen=True, kw_only=True):
    """Delete the messages that ``receipts`` name. Answers a ``ReceiptState`` or ``ReceiptInvalid`` for each.

    A live receipt deletes; an expired one of a message not received again deletes too unless ``only_live`` (the rule of
    SMQ) or the queue is FIFO; a superseded one and one of a message that is gone do nothing. With ``any_epoch``, what
    only a change superseded is still live (SMQ's lenient handles). With ``any_receive``, a superseded one of a standard
    queue acts as the latest one does, unless a claim has the message (Amazon's rule).
    """

    queue: str
    receipts: tuple[str, ...]
    only_live: bool = False
    any_epoch: bool = False
    any_receive: bool = False


class VisibilityChange(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Hide the message of ``receipt`` for ``timeout_s`` from now on; 0 makes it visible at once."""

    receipt: str
    timeout_s: int


class ChangeVisibility(Command, frozen=True, kw_only=True):
    """Move deadlines. Answers a ``LeaseChange``, ``ReceiptInvalid`` or ``LeaseTooLong`` for each change.

    Which receipts act is as for ``Delete``. With ``renew_receipt`` (SMQ) each change issues a new receipt and
    supersedes the old one. ``lease_s_max`` bounds the whole lease, ``None`` (SMQ) for not at all.
    """

    queue: str
    changes: tuple[VisibilityChange, ...]
    only_live: bool = False
    any_epoch: bool = False
    any_receive: bool = False
    renew_receipt: bool = False
    lease_s_max: int | None = limits.LEASE_S_MAX


class ListDeadLetterSources(Command, frozen=True, kw_only=True):
    """List the queues whose dead-letter queue is ``queue``, by full name, after the name ``after``.

    Answers ``QueuePage`` with at most ``count`` full names.
    """

    queue: str
    after: str = ""
    count: int = limits.SQS_LIST_RESULTS.default


class StartMove(Command, frozen=True, kw_only=True):
    """Begin to move the dead letters of ``source`` back to where they came from, or to ``destination``.

    At most ``moves_per_s_max`` a second, ``None`` for as fast as it goes. ``starter`` is the ARN of the principal that
    must be allowed to send to the destination, ``None`` where there is nothing to be allowed. Answers the ``MoveTask``.
    Errors: ``QueueNotFound`` (either queue), ``NotADeadLetterQueue``, ``MoveTaskRunning``, ``DestinationRefused``.
    """

    source: str
    destination: str | None = None
    moves_per_s_max: int | None = None
    starter: str | None = None


class CancelMove(Command, frozen=True, kw_only=True):
    """Stop the move task ``task`` of ``source``; what is moved stays moved. Answers the ``MoveTask``.

    Errors: ``QueueNotFound``, ``MoveTaskNotFound`` for a task that is not of this queue or does not run any more.
    """

    source: str
    task: bytes


class ListMoves(Command, frozen=True, kw_only=True):
    """Tell the latest move tasks of ``source``, newest first. Answers a list of at most ``count`` ``MoveTask``."""

    source: str
    count: int = limits.SQS_MOVE_TASK_RESULTS.default


class ShowAccount(Command, frozen=True, kw_only=True):
    """Tell what ``account`` has set. Answers ``AccountSettings``."""

    account: str


class SetAccount(Command, frozen=True, kw_only=True):
    """Give ``account`` other settings. Answers ``None``."""

    account: str
    settings: AccountSettings


# Inspection changes nothing: no lease begins and no receive is counted. States are those of one instant.


class MessageState(enum.Enum):
    """Where a message is at an instant (``docs/lifecycle.md``); a claimed message is in flight."""

    VISIBLE = "visible"
    IN_FLIGHT = "in flight"
    DELAYED = "delayed"


class InspectQueue(Command, frozen=True, kw_only=True):
    """Return up to ``count`` messages of ``queue`` in the order of sending: a list of ``SeenMessage``.

    With ``state``: only messages in that state, by ``visible_at_ms``, claimed ones last. Where no index gives that
    order, at most ``limits.INSPECT_SCANNED_MAX`` messages of other states are scanned, and some may be missing.

    With ``id``: only that message, if it is among them. With ``bytes_max`` the list ends with the message whose body
    reaches it. With ``receipts`` each message in flight has its latest receipt; a receipt can release, extend and
    delete the message, so only operators may see it. Error ``QueueNotFound``.
    """

    queue: str
    count: int = limits.INSPECTED_MAX
    state: MessageState | None = None
    receipts: bool = False
    id: bytes | None = None
    bytes_max: int | None = None


class InspectLeases(Command, frozen=True, kw_only=True):
    """Return up to ``count`` leases of ``queue``, by their ends: a list of ``SeenLease``. Claims have no leases.

    The cost depends on ``count`` alone, not on how many messages the queue has or are in flight. Leases behind more
    than ``limits.INSPECT_SCANNED_MAX`` delayed messages that become visible sooner are not found.

    ``also`` are positions from earlier results: their messages are appended while they are in the queue, whatever
    became of their leases, so a caller that follows leases sees which messages are deleted. Error ``QueueNotFound``.
    """

    queue: str
    count: int = limits.INSPECTED_MAX
    also: tuple[int, ...] = ()


class SeenLease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message in flight, by its lease: from its receive, at ``received_at_ms``, to ``visible_at_ms``.

    ``position`` is where the message stands, to be asked for again; of one that was asked for the lease may have ended,
    as it has, now at the latest, where a claim has the message. ``generation`` tells the receives of one message apart,
    ``receive_count`` counts those in this queue. ``extensions`` is how often the deadline was moved since the receive;
    ``None`` where nobody has counted, as the queue has no event log. Without one, the receive of a message that was
    received before is when it was asked for: a wait for the message is not taken off.
    """

    message_id: bytes
    position: int
    generation: int
    received_at_ms: int
    visible_at_ms: int
    receive_count: int
    extensions: int | None = None
    group: str | None = None


class Peek(Command, frozen=True, kw_only=True):
    """Show up to ``count`` visible messages of ``queue`` in the order in which receives would give them.

    Answers ``Peeked``. Of a FIFO queue, what a receive could give now: not what waits behind a message of its group.
    Costs what a receive of that many costs. With ``bytes_max`` it ends with the message whose body brings all of them
    there. Error ``QueueNotFound``. (SMQ reference, section 4.12)
    """

    queue: str
    count: int = 1
    bytes_max: int | None = None


class PeekedMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


class Peeked(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a peek shows; ``smq_base64`` is the queue's setting."""

    messages: list[PeekedMessage]
    smq_base64: bool = False


class SeenMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as a look shows it; ``properties`` is ``core.properties`` encoded.

    ``visible_at_ms`` is when its last hiding ends or ended: ``None`` for one that was never hidden, or is claimed.
    ``received_at_ms`` is its last receive (as of ``SeenLease``), ``first_received_at_ms`` its first one, also in the
    queue that a dead letter came from; both are ``None`` before there was one, and of a claimed message. ``receipt`` is
    the one that acts while the message is in flight, where it was asked for; claimed messages have none.
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


# Browsing: a page of the queues of an account in any order, with counts and rates. Rates need earlier counts, so the
# server answers (``server/queue_statistics.py``), not the engine.


class QueueOrder(enum.Enum):
    """By what queues are sorted; equals by name."""

    NAME = "name"
    VISIBLE = "visible"
    IN_FLIGHT = "in_flight"
    DELAYED = "delayed"
    OLDEST = "oldest"
    SENT = "sent"
    RECEIVED = "received"
    DELETED = "deleted"


class BrowseQueues(Command, frozen=True, kw_only=True):
    """Return up to ``count`` queues of ``account``, from the index ``first`` on: a ``BrowsedQueues``.

    ``search`` selects names that contain it, ignoring case; ``names`` (without the account) selects at most
    ``limits.BROWSED_QUEUES_MAX`` by name. ``OLDEST`` sorts by the age of the oldest message; ``SENT``, ``RECEIVED`` and
    ``DELETED`` by the recent rate. Queues that ``may_see`` denies have only a name; ``None`` denies nothing.

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
    """A queue as a listing shows it: its name without the account; nothing else is known where that is denied.

    ``sent``, ``received`` and ``deleted`` are the totals of ``QueueCounts``. What is per second is taken over some
    seconds before ``counted_at_ms``, ``None`` where nobody had looked. The ``history`` is what was visible when
    somebody looked, as pairs of an instant (ms) and a number, oldest first.
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


class BrowsedQueues(msgspec.Struct, frozen=True, kw_only=True):
    """A page of queues; ``in_all`` match, and ``counted`` of those have been counted yet, whenever that was."""

    queues: list[BrowsedQueue]
    in_all: int
    counted: int


# What the outside gives the engine and what an engine gives the outside: two small ports.
#
# ``Engine`` is all that a server knows of a store. ``Clock`` is the one source of time; tests put a virtual one in.

Done = Callable[[Any], object]
"""Called once with the result or the ``VeilmqError`` of a command, in the event loop, once that is durable."""

Wake = Callable[[int], object]
"""Called with the instant (ms) at which a watched queue has, or may have, a message."""

MaySend = Callable[[str, str, str], bool]
"""Whether a principal (its ARN) may send to a queue (its full name) that has this policy."""


class Timer(Protocol):
    """A call that was arranged and can be called off."""

    def cancel(self) -> object:
        """Call it off; harmless when it has happened."""


class Clock(Protocol):
    """The time of a store, which never runs backwards, in whole milliseconds.

    Timers and ``next_due_ms`` are in it; a server tells its users the shown one. Instants in results whose names end in
    ``_at_ms`` or ``_until_ms`` are shown ones, as users see them: their age is reckoned from ``shown_ms()``.
    """

    def now_ms(self) -> int:
        """Return the present instant of the store."""

    def shown_ms(self, at_ms: int | None = None) -> int:
        """Return the instant ``at_ms``, the present one without it, as users see it, since the epoch."""

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` in the event loop once ``now_ms()`` is at least ``at_ms``."""


class Engine(Protocol):
    """Commands made atomic and durable. All methods are called in the event loop's thread, and none blocks."""

    @property
    def token_key(self) -> bytes:
        """Return a secret of 32 bytes, kept as long as the data: for what a protocol hands out and takes back."""

    def submit(self, command: Command, done: Done) -> None:
        """Take ``command``; call ``done`` with its result or error once that is durable."""

    def withdraw(self, done: Done) -> None:
        """Drop the command submitted with ``done`` if it has not been begun; its client has gone."""

    def watch(self, queue: str, wake: Wake) -> None:
        """Call ``wake`` whenever ``queue`` may have a message sooner than its last receive said.

        Called between a command and the next one: a command that ``wake`` submits is the next to be applied, in the
        same batch. Deletion of the queue wakes too (the next receive answers ``QueueNotFound``). One watch a queue.
        """

    def unwatch(self, queue: str) -> None:
        """End the watch on ``queue``."""

"""What can be asked of an engine: one frozen struct per command, the same for every protocol.

A queue is named by ``"account/name"``. Commands carry no time: the engine stamps them. Ranges that belong to a
protocol are checked at the wire; an engine relies on ``core.limits``' widest values and on its own queues' settings.
A batch action of a protocol is one command with several entries, and each entry succeeds or fails alone.
"""

from collections.abc import Callable, Mapping

import msgspec

from veilmq.core import limits
from veilmq.core.settings import SettingValue


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


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message to be sent.

    ``properties`` is ``core.properties`` encoded, empty when there are none; ``size_bytes`` counts the body in UTF-8
    and the names, types and values of the user's attributes; ``delay_s`` is ``None`` for the queue's own delay.
    ``group`` is the message group: the unit of order in a FIFO queue, of fairness in a standard one. ``dedup_id`` means
    something in FIFO queues alone.
    """

    body: str
    size_bytes: int
    properties: bytes = b""
    delay_s: int | None = None
    priority: int = limits.PRIORITY.default
    group: str | None = None
    dedup_id: str | None = None


class Send(Command, frozen=True, kw_only=True):
    """Store messages. Answers a list with a ``SentMessage`` or an error for each.

    The error of a message is ``MessageTooLong``. In a FIFO queue ``GroupMissing`` and ``DeduplicationIdMissing`` are
    errors of the whole command, and nothing is stored; under ``terms`` they are those of a message. A duplicate within
    ``limits.DEDUPLICATION_S`` is not stored and answered as the first one was.

    What SMQ does otherwise is said in ``terms``, ``None`` for the rules of SQS.
    """

    queue: str
    messages: tuple[NewMessage, ...]
    terms: "SendTerms | None" = None


class SendTerms(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How messages are sent where the protocol has other rules than SQS (SMQ reference, sections 4.6, 4.7 and 6).

    ``receipts``: a delayed message is answered with a receipt, by which it can be deleted, or its delay changed, before
    it is visible. ``together``: the error of one message is that of the command, and nothing is stored.
    ``unrepeated``: a message without a deduplication id is stored even if its queue asks for one. ``decode`` is pure,
    makes the message to store of each one that was sent to a queue whose ``smq_base64`` is set, and may raise
    ``BodyUnreadable``.
    """

    receipts: bool = False
    together: bool = False
    unrepeated: bool = False
    decode: Callable[[NewMessage], NewMessage] | None = None


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

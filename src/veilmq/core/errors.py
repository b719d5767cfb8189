"""What can go wrong with a command: a small closed set.

The engine raises or returns these; each protocol gives them its own codes and statuses at the wire. An error is its
fields and a sentence that says what to do.
"""

import enum
from dataclasses import dataclass
from typing import ClassVar, dataclass_transform


class ReceiptState(enum.Enum):
    """What a genuine receipt was when the command met it (``docs/lifecycle.md``, the receipt table)."""

    LIVE = "live"
    EXPIRED = "expired"
    EARLIER = "earlier"
    """Superseded, and acts all the same, where the command has ``any_receive``."""
    SUPERSEDED = "superseded"
    GONE = "gone"


class VeilmqError(Exception):
    """The root of all errors that veilmq itself raises; ``str()`` is a sentence for a person."""


@dataclass_transform()
class CommandError(VeilmqError):
    """An error with the annotated fields of its class; ``text`` has their names in braces."""

    text: ClassVar[str]

    def __init_subclass__(cls) -> None:
        dataclass(eq=False, repr=False)(cls)

    def __str__(self) -> str:
        return self.text.format(**vars(self))


# Queues. ``queue`` is a full name, account included; ``setting`` a field of ``QueueSettings``; ``why`` a sentence.


class QueueNotFound(CommandError):
    """The queue does not exist, or was deleted while the command waited."""

    text = "The queue {queue} does not exist; create it first."
    queue: str


class QueueExists(CommandError):
    """A queue of that name exists; ``setting`` is the first one whose supplied value differs."""

    text = "The queue {queue} exists with another {setting}; leave it out, or change the queue's settings first."
    queue: str
    setting: str


class QueueDeletedRecently(CommandError):
    """The name of a deleted queue cannot be used again for ``pause_s`` seconds."""

    text = "The queue {queue} was deleted; wait {pause_s} seconds before creating one of that name."
    queue: str
    pause_s: int


class PurgeInProgress(CommandError):
    """A queue that was purged cannot be purged again for ``pause_s`` seconds."""

    text = "The queue {queue} was purged less than {pause_s} seconds ago; wait that long."
    queue: str
    pause_s: int


class SettingsConflict(CommandError):
    """Settings contradict each other, or ``setting`` cannot change any more."""

    text = "{why}"
    setting: str
    why: str


class EditRefused(CommandError):
    """The ``edit`` of an ``EditQueue`` refuses; ``reason`` is for its caller, the engine only returns it."""

    text = "{reason}"
    reason: Exception


class TooManyTags(CommandError):
    """The queue would have more than ``tags_max`` tags."""

    text = "A queue may have {tags_max} tags; remove some first."
    tags_max: int


class DeadLetterQueueRefused(CommandError):
    """``queue`` cannot be the dead-letter queue of this source: ``missing``, of another type, or not allowed."""

    text = "{why}"
    queue: str
    why: str
    missing: bool = False


class ReceivesThrottled(CommandError):
    """The queue got more than ``per_s_max`` receives in a second."""

    text = "The queue allows {per_s_max} receives a second; ask for more messages at once, or later."
    per_s_max: int


# Messages and receipts.


class MessageTooLong(CommandError):
    """Body and attributes together exceed ``bytes_max``, the queue's ``message_bytes_max``."""

    text = "The message is too long: body and attributes may have {bytes_max} bytes together."
    bytes_max: int


class BodyUnreadable(CommandError):
    """The queue takes bodies in base64 over this protocol, and this one is no such text."""

    text = "The body is no base64 of UTF-8 text, which this queue takes bodies in: encode it, or unset smq_base64."


class GroupMissing(CommandError):
    """A message of a FIFO queue must name its group."""

    text = "The message has no group; a FIFO queue needs one for each message."


class DeduplicationIdMissing(CommandError):
    """A message of this FIFO queue must have a deduplication id."""

    text = "The message has no deduplication id; give one, or turn content-based deduplication on."


class ReceiptInvalid(CommandError):
    """The receipt is malformed, forged, of another queue or server, or of a message never received: not said which."""

    text = "The receipt handle is not valid for this queue; use the one of the latest receive."


class LeaseTooLong(CommandError):
    """The change would keep the message in flight for more than ``seconds_max`` after its receive."""

    text = "The total visibility timeout would exceed {seconds_max} seconds since the receive."
    seconds_max: int


_ENDED = {
    ReceiptState.EXPIRED: "The receipt's timeout has ended",
    ReceiptState.SUPERSEDED: "The message has been received again",
    ReceiptState.GONE: "The message is no longer in the queue",
}


class ReceiptEnded(CommandError):
    """Only a live receipt forwards; the message of this one was not sent."""

    text = "{why}, so nothing was forwarded; forward what the next receive gives."
    state: ReceiptState

    def __str__(self) -> str:
        return self.text.format(why=_ENDED[self.state])


class GroupHeld(CommandError):
    """An earlier message of the group was not forwarded; this one would overtake it."""

    text = "An earlier message of the group was not forwarded: forward that one first."


# Move tasks.


class NotADeadLetterQueue(CommandError):
    """Only the messages of a dead-letter queue can be moved by a task."""

    text = "No queue names {queue} as its dead-letter queue; only dead letters can be moved."
    queue: str


class MoveTaskRunning(CommandError):
    """A source has one move task at a time."""

    text = "A move task for {queue} is running; wait for its end or cancel it."
    queue: str


class MoveTaskNotFound(CommandError):
    """The move task does not exist, or does not run any more."""

    text = "There is no such running move task; list the tasks of the source."


class DestinationRefused(CommandError):
    """Messages cannot be moved or forwarded to ``queue``."""

    text = "{why}"
    queue: str
    why: str


# Claims and publications. ``source`` is the reader's own name, ``number`` that of a claim.


class SourceNotFound(CommandError):
    """The queue has no such source: it was never opened, or an operator closed it."""

    text = "The queue has no source {source}; open it first."
    source: str


class ConsumerTaken(CommandError):
    """Another source of the same consumer has open claims."""

    text = (
        "The source {source} of the consumer {consumer} has open claims. Let it end, or take its place over: its "
        "claims are then released and their messages delivered again."
    )
    consumer: str
    source: str


class EpochFenced(CommandError):
    """The source was opened again: a reader with an older epoch than ``current`` must stop."""

    text = "The epoch {epoch} is over, {current} is in force: another reader opened the source; stop."
    epoch: int
    current: int


class ClaimGap(CommandError):
    """The number is behind the next claim of the source; ``last`` is the last number bound."""

    text = "Claim {number} cannot be: the last one is {last}. The checkpoint is not of this source."
    number: int
    last: int


class ClaimAcknowledged(CommandError):
    """All claims up to ``acknowledged`` are acknowledged: their messages are deleted."""

    text = "Claim {number} was acknowledged (all up to {acknowledged} are); its messages are deleted."
    number: int
    acknowledged: int


class ClaimLost(CommandError):
    """The claim's messages went back to the queue or were purged, or the claim is unknown."""

    text = (
        "Claim {number} is lost: its hold ended without a heartbeat, or the queue was purged. Messages that went back "
        "to the queue are delivered again."
    )
    number: int


class ClaimReleased(CommandError):
    """An operator or a takeover returned the claim's messages to the queue."""

    text = "Claim {number} was released: its messages are delivered again."
    number: int


class ShardNotFound(CommandError):
    """The claim has only ``shards`` shards."""

    text = "The claim has no shard {shard}; they are 0 to {last}."
    shard: int
    shards: int

    def __str__(self) -> str:
        return self.text.format(shard=self.shard, last=self.shards - 1)


class CursorInvalid(CommandError):
    """No page of a claim has this cursor."""

    text = "The cursor is not valid; use the one of the page before, or none for the first page."


class MessageNotClaimed(CommandError):
    """The message is not in that claim."""

    text = "Claim {number} has no such message; read it to see the ids of its messages."
    number: int


class StageRefused(CommandError):
    """The message ``index`` of the call, from 0, cannot be sent, so none of them was staged."""

    text = "Message {index} was refused, and nothing staged: {reason}"
    index: int
    reason: VeilmqError

    @property
    def why(self) -> str:
        """The name of the reason's type."""
        return type(self.reason).__name__

    @property
    def bytes_max(self) -> int | None:
        """The limit that the message exceeds."""
        return getattr(self.reason, "bytes_max", None)


class StageMissing(CommandError):
    """An attempt that is to be published has staged ``messages`` and not ``wanted``."""

    text = "The attempt {attempt} has staged {messages} messages, not {wanted}; stage the batch again."
    attempt: str
    messages: int
    wanted: int


# Topics and subscriptions; ``topic`` is a full name.


class TopicNotFound(CommandError):
    """The topic does not exist."""

    text = "The topic {topic} does not exist; create it first."
    topic: str


class TopicExists(CommandError):
    """A topic of that name exists; ``setting`` is the first one whose supplied value differs."""

    text = "The topic {topic} exists with another {setting}; leave it out, or change the topic first."
    topic: str
    setting: str


class SubscriptionNotFound(CommandError):
    """The topic has no such subscription."""

    text = "The topic {topic} has no subscription {subscription}; subscribe first."
    topic: str
    subscription: str


class SubscriptionExists(CommandError):
    """A subscription of that name exists; ``setting`` is the first field of ``Subscription`` that differs."""

    text = "The subscription {subscription} of {topic} exists with another {setting}; end it first, or name another."
    topic: str
    subscription: str
    setting: str


class TooManySubscriptions(CommandError):
    """The topic would have more than ``subscriptions_max`` subscriptions."""

    text = "A topic may have {subscriptions_max} subscriptions; end some first."
    subscriptions_max: int


class EndpointRefused(CommandError):
    """Messages cannot, or may not, be pushed to ``endpoint``; ``why`` says what is wrong and what to do."""

    text = "Nothing can be pushed to {endpoint!r}: {why}."
    endpoint: str
    why: str

    def __str__(self) -> str:
        return self.text.format(endpoint=self.endpoint[:200], why=self.why)


# The store and the server.


class StoreFull(CommandError):
    """The disk is full, or nearly: nothing of the command was kept. Receives, changes and deletes go on."""

    text = "The disk that keeps the messages is (nearly) full: free space or drain queues, then send again."


class StoreUnavailable(CommandError):
    """The database cannot be reached, or has no time: nothing of the command was done. Retry."""

    text = "The database cannot be reached, or has no time for this; nothing was done. Try again."


class OutcomeUnknown(CommandError):
    """The store failed after the commit was begun: the command may or may not have been kept.

    A retry is safe for everything but an exactly-once send.
    """

    text = "The store failed while it was making this durable; it may have happened. Try again."


class ShuttingDown(CommandError):
    """The server is draining; nothing of the command was done. Retry on the next connection."""

    text = "The server is shutting down; try again."


class InternalError(CommandError):
    """A defect of ours: the command failed alone and changed nothing; the log has the traceback."""

    text = "The server failed on this request; the log has the details."

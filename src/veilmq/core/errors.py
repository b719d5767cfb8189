"""The errors of commands, a closed set. An engine raises or returns them; the wire assigns codes and statuses."""

import enum
from typing import Any, ClassVar, dataclass_transform


class ReceiptState(enum.Enum):
    """The state of a genuine receipt at a command (``docs/lifecycle.md``, the receipt table)."""

    LIVE = "live"
    EXPIRED = "expired"
    EARLIER = "earlier"
    """Superseded, but acts because the command has ``any_receive``."""
    SUPERSEDED = "superseded"
    GONE = "gone"


class VeilmqError(Exception):
    """Base class of the errors of veilmq; ``str()`` is a sentence for users that includes what to do."""


@dataclass_transform()
class CommandError(VeilmqError):
    """An error whose constructor takes the annotated fields of its class; ``text`` has their names in braces."""

    text: ClassVar[str]
    _fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls._fields = (*cls._fields, *cls.__annotations__)

    def __init__(self, *values: Any, **named: Any) -> None:
        super().__init__(*values)
        vars(self).update(zip(self._fields, values, strict=False), **named)

    def __str__(self) -> str:
        return self.text.format(**vars(self))


# Queues. ``queue`` is a full name; ``setting`` is the first field of the settings that differs or must be corrected;
# ``why`` is a sentence.


class QueueNotFound(CommandError):
    text = "The queue {queue} does not exist; create it first."
    queue: str


class QueueExists(CommandError):
    text = "The queue {queue} exists with another {setting}; leave it out, or change the queue's settings first."
    queue: str
    setting: str


class QueueDeletedRecently(CommandError):
    text = "The queue {queue} was deleted; wait {pause_s} seconds before creating one of that name."
    queue: str
    pause_s: int


class PurgeInProgress(CommandError):
    text = "The queue {queue} was purged less than {pause_s} seconds ago; wait that long."
    queue: str
    pause_s: int


class SettingsConflict(CommandError):
    """Settings contradict each other, or ``setting`` cannot change any more."""

    text = "{why}"
    setting: str
    why: str


class EditRefused(CommandError):
    """The ``edit`` of an ``EditQueue`` cancelled the change; the engine passes ``reason`` on to the caller."""

    text = "{reason}"
    reason: Exception


class TooManyTags(CommandError):
    text = "A queue may have {tags_max} tags; remove some first."
    tags_max: int


class DeadLetterQueueRefused(CommandError):
    """``queue`` cannot be the dead-letter queue: it is ``missing``, of another type, or does not allow the source."""

    text = "{why}"
    queue: str
    why: str
    missing: bool = False


class ReceivesThrottled(CommandError):
    text = "The queue allows {per_s_max} receives a second; request more messages at a time, or retry later."
    per_s_max: int


# Messages and receipts.


class MessageTooLong(CommandError):
    text = "The message is too long: body and attributes may have {bytes_max} bytes together."
    bytes_max: int


class BodyUnreadable(CommandError):
    text = "This queue takes bodies in base64 of UTF-8 text: encode the body, or unset smq_base64."


class GroupMissing(CommandError):
    text = "The message has no group; a FIFO queue needs one for each message."


class DeduplicationIdMissing(CommandError):
    text = "The message has no deduplication id; give one, or turn content-based deduplication on."


class ReceiptInvalid(CommandError):
    """The receipt is malformed, forged, of another queue or server, or of a message never received: not shown which."""

    text = "The receipt handle is not valid for this queue; use the one of the latest receive."


class LeaseTooLong(CommandError):
    text = "The total visibility timeout would exceed {seconds_max} seconds since the receive."
    seconds_max: int


_ENDED = {
    ReceiptState.EXPIRED: "The receipt's timeout has ended",
    ReceiptState.SUPERSEDED: "The message has been received again",
    ReceiptState.GONE: "The message is no longer in the queue",
}


class ReceiptEnded(CommandError):
    """A forward with a receipt that is not live; the message was not sent."""

    text = "{why}, so nothing was forwarded; forward the message of the next receive."
    state: ReceiptState

    def __str__(self) -> str:
        return self.text.format(why=_ENDED[self.state])


class GroupHeld(CommandError):
    text = "An earlier message of the group was not forwarded: forward that one first."


# Move tasks.


class NotADeadLetterQueue(CommandError):
    text = "No queue names {queue} as its dead-letter queue; only dead letters can be moved."
    queue: str


class MoveTaskRunning(CommandError):
    text = "A move task for {queue} is running; wait for its end or cancel it."
    queue: str


class MoveTaskNotFound(CommandError):
    text = "There is no such running move task; list the tasks of the source."


class DestinationRefused(CommandError):
    """Messages cannot be moved or forwarded to ``queue``."""

    text = "{why}"
    queue: str
    why: str


# Claims and publications. ``source`` is the reader's own name, ``number`` that of a claim.


class SourceNotFound(CommandError):
    text = "The queue has no source {source}; open it first."
    source: str


class ConsumerTaken(CommandError):
    text = (
        "The source {source} of the consumer {consumer} has open claims. Wait for its end, or open with takeover: its "
        "claims are then released and their messages delivered again."
    )
    consumer: str
    source: str


class EpochFenced(CommandError):
    text = "The epoch {epoch} has ended: another reader opened the source, with epoch {current}; stop."
    epoch: int
    current: int


class ClaimGap(CommandError):
    """The number is greater than that of the next claim; ``last`` is the last bound number."""

    text = "Claim {number} cannot be bound: the last one is {last}. The checkpoint belongs to another source."
    number: int
    last: int


class ClaimAcknowledged(CommandError):
    text = "Claim {number} was acknowledged (all up to {acknowledged} are); its messages are deleted."
    number: int
    acknowledged: int


class ClaimLost(CommandError):
    text = (
        "Claim {number} is lost: its hold ended without a heartbeat, or the queue was purged. Messages that returned "
        "to the queue are delivered again."
    )
    number: int


class ClaimReleased(CommandError):
    text = "Claim {number} was released: its messages are delivered again."
    number: int


class ShardNotFound(CommandError):
    text = "The claim has no shard {shard}; its shards are 0 to {last}."
    shard: int
    shards: int

    def __str__(self) -> str:
        return self.text.format(shard=self.shard, last=self.shards - 1)


class CursorInvalid(CommandError):
    text = "The cursor is not valid; use the one of the page before, or none for the first page."


class MessageNotClaimed(CommandError):
    text = "Claim {number} has no such message; read it to see the ids of its messages."
    number: int


class StageRefused(CommandError):
    """The message at ``index`` (from 0) cannot be sent, so no message of the call was staged."""

    text = "Message {index} was refused, and nothing staged: {reason}"
    index: int
    reason: VeilmqError

    @property
    def why(self) -> str:
        """The name of the error type of ``reason``."""
        return type(self.reason).__name__

    @property
    def bytes_max(self) -> int | None:
        """The limit that the message exceeds, if it is too long."""
        return getattr(self.reason, "bytes_max", None)


class StageMissing(CommandError):
    text = "The attempt {attempt} has staged {messages} messages, not {wanted}; stage the batch again."
    attempt: str
    messages: int
    wanted: int


# Topics and subscriptions; ``topic`` is a full name.


class TopicNotFound(CommandError):
    text = "The topic {topic} does not exist; create it first."
    topic: str


class TopicExists(CommandError):
    text = "The topic {topic} exists with another {setting}; leave it out, or change the topic first."
    topic: str
    setting: str


class SubscriptionNotFound(CommandError):
    text = "The topic {topic} has no subscription {subscription}; subscribe first."
    topic: str
    subscription: str


class SubscriptionExists(CommandError):
    text = "The subscription {subscription} of {topic} exists with another {setting}; end it, or use another name."
    topic: str
    subscription: str
    setting: str


class TooManySubscriptions(CommandError):
    text = "A topic may have {subscriptions_max} subscriptions; unsubscribe some first."
    subscriptions_max: int


class EndpointRefused(CommandError):
    """Messages cannot, or may not, be pushed to ``endpoint``; ``why`` has the reason and the remedy."""

    text = "Nothing can be pushed to {endpoint!r}: {why}."
    endpoint: str
    why: str

    def __str__(self) -> str:
        return self.text.format(endpoint=self.endpoint[:200], why=self.why)


# The store and the server.


class StoreFull(CommandError):
    """The disk is full, or nearly: nothing was stored. Receives, changes and deletes still work."""

    text = "The disk that keeps the messages is (nearly) full: free space or drain queues, then send again."


class StoreUnavailable(CommandError):
    """The database is unreachable or overloaded; nothing was changed, so the command can be retried."""

    text = "The database is unreachable or too busy; nothing was done. Try again."


class OutcomeUnknown(CommandError):
    """The store failed during the commit: the command may or may not be stored.

    A retry is safe, except for an exactly-once send.
    """

    text = "The store failed during the commit, so the outcome is unknown. Try again."


class ShuttingDown(CommandError):
    text = "The server is shutting down; try again."


class InternalError(CommandError):
    """A bug in veilmq: only this command failed, without any change; the log has the traceback."""

    text = "The server failed on this request; the log has the details."

"""What can go wrong with a command: a small closed set.

The engine raises or returns these; each protocol gives them its own codes and statuses at the wire. Every message says
what to do about it.
"""

import enum


class ReceiptState(enum.Enum):
    """What a genuine receipt was when the command met it (``docs/lifecycle.md``, the receipt table)."""

    LIVE = "live"
    EXPIRED = "expired"
    EARLIER = "earlier"
    """Superseded, and acts all the same, where the command has ``any_receive``."""
    SUPERSEDED = "superseded"
    GONE = "gone"


_ENDED = {
    ReceiptState.EXPIRED: "The receipt's timeout has ended",
    ReceiptState.SUPERSEDED: "The message was received again since, by whoever has it now",
    ReceiptState.GONE: "The message is no longer in the queue",
}


class VeilmqError(Exception):
    """The root of all errors that veilmq itself raises; ``str()`` is a sentence for a person."""


class QueueNotFound(VeilmqError):
    """The named queue does not exist, or was deleted while the command waited."""

    def __init__(self, queue: str) -> None:
        """``queue`` is the full name, account included."""
        super().__init__(f"The queue {queue} does not exist; create it first.")
        self.queue = queue


class QueueExists(VeilmqError):
    """A queue of that name exists with another value of ``setting`` (a field of ``QueueSettings``)."""

    def __init__(self, queue: str, setting: str) -> None:
        """``setting`` is the first field whose supplied value differs."""
        super().__init__(
            f"The queue {queue} exists with another {setting}; leave it out, or change the queue's settings first."
        )
        self.queue = queue
        self.setting = setting


class MessageTooLong(VeilmqError):
    """Body and attributes together exceed the queue's ``message_bytes_max``."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max`` is the limit in force, in bytes."""
        super().__init__(f"The message is too long: body and attributes may have {bytes_max} bytes together.")
        self.bytes_max = bytes_max


class ReceiptInvalid(VeilmqError):
    """The receipt was not issued by this server for this queue: malformed, forged, foreign, or never received."""

    def __init__(self) -> None:
        """Say no more than that: which check failed is nobody's business."""
        super().__init__("The receipt handle is not valid for this queue; use the one of the latest receive.")


class LeaseTooLong(VeilmqError):
    """The change would keep the message in flight for more than 12 hours after its receive."""

    def __init__(self, seconds_max: int) -> None:
        """``seconds_max`` is the whole lease's maximum, in seconds."""
        super().__init__(f"The total visibility timeout would exceed {seconds_max} seconds since the receive.")
        self.seconds_max = seconds_max


class QueueDeletedRecently(VeilmqError):
    """A queue of that name was deleted so lately that the name may not be used again yet."""

    def __init__(self, queue: str, pause_s: int) -> None:
        """``pause_s`` is how long a name rests, in seconds."""
        super().__init__(f"The queue {queue} was deleted; wait {pause_s} seconds before creating one of that name.")
        self.queue = queue
        self.pause_s = pause_s


class PurgeInProgress(VeilmqError):
    """The queue was purged so lately that it may not be purged again yet."""

    def __init__(self, queue: str, pause_s: int) -> None:
        """``pause_s`` is how long a queue rests, in seconds."""
        super().__init__(f"The queue {queue} was purged less than {pause_s} seconds ago; wait that long.")
        self.queue = queue
        self.pause_s = pause_s


class SettingsConflict(VeilmqError):
    """The settings would contradict each other, or ``setting`` cannot change any more."""

    def __init__(self, setting: str, why: str) -> None:
        """``setting`` is the field of ``QueueSettings`` to correct, ``why`` a sentence."""
        super().__init__(why)
        self.setting = setting


class EditRefused(VeilmqError):
    """Whoever edits a setting found that it cannot be done."""

    def __init__(self, reason: Exception) -> None:
        """``reason`` is for whoever asked: the engine only hands it back."""
        super().__init__(str(reason))
        self.reason = reason


class TooManyTags(VeilmqError):
    """The queue would have more tags than it may."""

    def __init__(self, tags_max: int) -> None:
        """``tags_max`` is the limit in force."""
        super().__init__(f"A queue may have {tags_max} tags; remove some first.")
        self.tags_max = tags_max


class DeadLetterQueueRefused(VeilmqError):
    """The dead-letter queue cannot serve this source: missing, of another kind, or it does not allow it."""

    def __init__(self, queue: str, why: str, *, missing: bool = False) -> None:
        """``queue`` is the dead-letter queue's full name, ``why`` a sentence; ``missing``: it does not exist."""
        super().__init__(why)
        self.queue = queue
        self.missing = missing


class GroupMissing(VeilmqError):
    """A message of a FIFO queue must name its group."""

    def __init__(self) -> None:
        """The remedy is in the sentence."""
        super().__init__("The message has no group; a FIFO queue needs one for each message.")


class DeduplicationIdMissing(VeilmqError):
    """A message of this FIFO queue must bring its deduplication id."""

    def __init__(self) -> None:
        """The remedy is in the sentence."""
        super().__init__("The message has no deduplication id; give one, or turn content-based deduplication on.")


class NotADeadLetterQueue(VeilmqError):
    """Only the messages of a dead-letter queue can be moved by a task."""

    def __init__(self, queue: str) -> None:
        """``queue`` is the source's full name."""
        super().__init__(f"No queue names {queue} as its dead-letter queue; only dead letters can be moved.")
        self.queue = queue


class MoveTaskRunning(VeilmqError):
    """A source has one move task at a time."""

    def __init__(self, queue: str) -> None:
        """``queue`` is the source's full name."""
        super().__init__(f"A move task for {queue} is running; wait for its end or cancel it.")
        self.queue = queue


class MoveTaskNotFound(VeilmqError):
    """The move task does not exist, or does not run any more."""

    def __init__(self) -> None:
        """The remedy is in the sentence."""
        super().__init__("There is no such running move task; list the tasks of the source.")


class DestinationRefused(VeilmqError):
    """Messages cannot be moved to that queue."""

    def __init__(self, queue: str, why: str) -> None:
        """``queue`` is the destination's full name, ``why`` a sentence."""
        super().__init__(why)
        self.queue = queue


class SourceNotFound(VeilmqError):
    """The queue has no such source: it was never opened, or an operator closed it."""

    def __init__(self, source: str) -> None:
        """``source`` is the reader's name for itself."""
        super().__init__(f"The queue has no source {source}; open it first.")
        self.source = source


class ConsumerTaken(VeilmqError):
    """Another source of the same consumer has open claims."""

    def __init__(self, consumer: str, source: str) -> None:
        """``source`` is the other one."""
        super().__init__(
            f"The source {source} of the consumer {consumer} has open claims. Let it end, or take its place over: its "
            "claims are then released and their messages delivered again."
        )
        self.consumer = consumer
        self.source = source


class EpochFenced(VeilmqError):
    """The source was opened again since: whoever uses the older epoch must stop."""

    def __init__(self, epoch: int, current: int) -> None:
        """``current`` is the epoch in force."""
        super().__init__(f"The epoch {epoch} is over, {current} is in force: another reader opened the source; stop.")
        self.epoch = epoch
        self.current = current


class ClaimGap(VeilmqError):
    """The number is behind the next claim of the source."""

    def __init__(self, number: int, last: int) -> None:
        """``last`` is the last number bound."""
        super().__init__(f"Claim {number} cannot be: the last one is {last}. The checkpoint is not of this source.")
        self.number = number
        self.last = last


class ClaimAcknowledged(VeilmqError):
    """The claim was acknowledged: its messages are deleted."""

    def __init__(self, number: int, acknowledged: int) -> None:
        """``acknowledged`` is up to where the source is."""
        super().__init__(f"Claim {number} was acknowledged (all up to {acknowledged} are); its messages are deleted.")
        self.number = number
        self.acknowledged = acknowledged


class ClaimLost(VeilmqError):
    """The claim's messages went back to the queue, or were purged: its hold ended, or nobody knows of it."""

    def __init__(self, number: int) -> None:
        """``number`` is the claim's."""
        super().__init__(
            f"Claim {number} is lost: its hold ended without a heartbeat, or the queue was purged. Messages that went "
            "back to the queue are delivered again."
        )
        self.number = number


class ClaimReleased(VeilmqError):
    """The claim's messages were given back by an operator or by a takeover."""

    def __init__(self, number: int) -> None:
        """``number`` is the claim's."""
        super().__init__(f"Claim {number} was released: its messages are delivered again.")
        self.number = number


class ShardNotFound(VeilmqError):
    """The claim has fewer shards."""

    def __init__(self, shard: int, shards: int) -> None:
        """``shards`` is how many the claim has."""
        super().__init__(f"The claim has no shard {shard}; they are 0 to {shards - 1}.")
        self.shard = shard
        self.shards = shards


class CursorInvalid(VeilmqError):
    """The cursor is not one that a page of a claim named."""

    def __init__(self) -> None:
        """The remedy is in the sentence."""
        super().__init__("The cursor is not valid; use the one of the page before, or none for the first page.")


class MessageNotClaimed(VeilmqError):
    """The message is not in that claim."""

    def __init__(self, number: int) -> None:
        """``number`` is the claim's."""
        super().__init__(f"Claim {number} has no such message; read it to see the ids of its messages.")
        self.number = number


class ReceiptEnded(VeilmqError):
    """Only a live receipt forwards; this one is not, and its message was not sent."""

    def __init__(self, state: ReceiptState) -> None:
        """``state`` is any but live."""
        super().__init__(f"{_ENDED[state]}, so nothing was forwarded; forward what the next receive gives.")
        self.state = state


class GroupHeld(VeilmqError):
    """A message of the same group, before this one, was not forwarded; this one would overtake it."""

    def __init__(self) -> None:
        """The remedy is in the sentence."""
        super().__init__("An earlier message of the group was not forwarded: forward that one first.")


class StageRefused(VeilmqError):
    """One of the messages cannot be sent, so none of them was staged."""

    def __init__(self, index: int, reason: VeilmqError) -> None:
        """``index`` counts the messages of the call from 0."""
        super().__init__(f"Message {index} was refused, and nothing staged: {reason}")
        self.index = index
        self.reason = reason
        self.why = type(reason).__name__
        self.bytes_max: int | None = getattr(reason, "bytes_max", None)


class StageMissing(VeilmqError):
    """An attempt that is to be published has not staged what it should have."""

    def __init__(self, attempt: str, messages: int, wanted: int) -> None:
        """``messages`` is what is there."""
        super().__init__(f"The attempt {attempt} has staged {messages} messages, not {wanted}; stage the batch again.")
        self.attempt = attempt
        self.messages = messages
        self.wanted = wanted


class BodyUnreadable(VeilmqError):
    """The queue takes bodies in base64 over this protocol, and this one is no such text."""

    def __init__(self) -> None:
        """The remedy is in the sentence."""
        super().__init__(
            "The body is no base64 of UTF-8 text, which this queue takes bodies in: encode it, or unset smq_base64."
        )


class ReceivesThrottled(VeilmqError):
    """More receives were asked of the queue in a second than it allows."""

    def __init__(self, per_s_max: int) -> None:
        """``per_s_max`` is the limit in force, in receives a second."""
        super().__init__(f"The queue allows {per_s_max} receives a second; ask for more messages at once, or later.")
        self.per_s_max = per_s_max


class StoreFull(VeilmqError):
    """The disk is full, or nearly: nothing of the command was kept. Receives, changes and deletes go on."""

    def __init__(self) -> None:
        """The remedy is the operator's: free space, or drain queues."""
        super().__init__(
            "The disk that keeps the messages is (nearly) full: free space or drain queues, then send again."
        )


class StoreUnavailable(VeilmqError):
    """The database cannot be reached, or has no time: nothing of the command was done. Retry."""

    def __init__(self) -> None:
        """Clients retry this by themselves; the operator looks at the log."""
        super().__init__("The database cannot be reached, or has no time for this; nothing was done. Try again.")


class OutcomeUnknown(VeilmqError):
    """The store failed after the commit was begun: the command may or may not have been kept. Retry."""

    def __init__(self) -> None:
        """A retry is safe for everything but an exactly-once send."""
        super().__init__("The store failed while it was making this durable; it may have happened. Try again.")


class ShuttingDown(VeilmqError):
    """The server is draining; nothing of the command was done. Retry on the next connection."""

    def __init__(self) -> None:
        """Clients retry this by themselves."""
        super().__init__("The server is shutting down; try again.")


class InternalError(VeilmqError):
    """A defect of ours: the command failed alone and changed nothing; the log has the traceback."""

    def __init__(self) -> None:
        """The details stay in the log."""
        super().__init__("The server failed on this request; the log has the details.")


# Topics and subscriptions.


class TopicNotFound(VeilmqError):
    """The named topic does not exist."""

    def __init__(self, topic: str) -> None:
        """``topic`` is the full name, account included."""
        super().__init__(f"The topic {topic} does not exist; create it first.")
        self.topic = topic


class TopicExists(VeilmqError):
    """A topic of that name exists with another value of ``setting`` (a field of ``TopicSettings``)."""

    def __init__(self, topic: str, setting: str) -> None:
        """``setting`` is the first field whose supplied value differs."""
        super().__init__(f"The topic {topic} exists with another {setting}; leave it out, or change the topic first.")
        self.topic = topic
        self.setting = setting


class SubscriptionNotFound(VeilmqError):
    """The topic has no such subscription."""

    def __init__(self, topic: str, subscription: str) -> None:
        """``topic`` is the full name, ``subscription`` its own."""
        super().__init__(f"The topic {topic} has no subscription {subscription}; subscribe first.")
        self.topic = topic
        self.subscription = subscription


class SubscriptionExists(VeilmqError):
    """A subscription of that name exists with another value of ``setting`` (a field of ``Subscription``)."""

    def __init__(self, topic: str, subscription: str, setting: str) -> None:
        """``setting`` is the first field that differs."""
        super().__init__(
            f"The subscription {subscription} of {topic} exists with another {setting}; end it first, or name another."
        )
        self.topic = topic
        self.subscription = subscription
        self.setting = setting


class TooManySubscriptions(VeilmqError):
    """The topic would have more subscriptions than it may."""

    def __init__(self, subscriptions_max: int) -> None:
        """``subscriptions_max`` is the limit in force."""
        super().__init__(f"A topic may have {subscriptions_max} subscriptions; end some first.")
        self.subscriptions_max = subscriptions_max


class EndpointRefused(VeilmqError):
    """Messages cannot, or may not, be pushed to ``endpoint``."""

    def __init__(self, endpoint: str, why: str) -> None:
        """``why`` says what is wrong, and what to do, as words behind a colon."""
        super().__init__(f"Nothing can be pushed to {endpoint[:200]!r}: {why}.")
        self.endpoint = endpoint
        self.why = why

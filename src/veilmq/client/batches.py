"""Batches on the wire: every entry has an id of its own, which here is its place in the batch.

The server answers the entries that succeeded and those that failed in two lists, in any order; these functions put them
back into the order in which they were asked.
"""

from collections.abc import Mapping, Sequence

from veilmq.client.errors import RECEIPT_SUPERSEDED, ClientError
from veilmq.client.messages import Hidden, NewMessage, SentMessage
from veilmq.client.translation import write_attributes
from veilmq.client.transport import UNEXPECTED_REPLY
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SECOND_MS
from veilmq.wire.sqs.members import BatchResultErrorEntry, ChangedResultEntry, SendMessageBatchResultEntry, Shape
from veilmq.wire.sqs.messages import ChangeMessageVisibilityBatchEntry, DeleteMessageBatchEntry, SendMessageBatchEntry


class SentEntriesReply(Shape, frozen=True, kw_only=True):
    """The answer to a batch of sends."""

    successful: list[SendMessageBatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class EntriesReply(Shape, frozen=True, kw_only=True):
    """The answer to a batch of deletes or changes."""

    successful: list[ChangedResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


def sends(messages: Sequence[NewMessage]) -> list[SendMessageBatchEntry]:
    """Return the entries that send ``messages``."""
    return [
        SendMessageBatchEntry(
            id=str(place),
            message_body=message.body,
            delay_seconds=message.delay_s,
            message_attributes=write_attributes(message.attributes),
            message_group_id=message.group,
            message_deduplication_id=message.dedup_id,
        )
        for place, message in enumerate(messages)
    ]


def deletes(receipts: Sequence[str]) -> list[DeleteMessageBatchEntry]:
    """Return the entries that delete the messages of ``receipts``."""
    return [DeleteMessageBatchEntry(id=str(place), receipt_handle=receipt) for place, receipt in enumerate(receipts)]


def changes(wanted: Sequence[VisibilityChange]) -> list[ChangeMessageVisibilityBatchEntry]:
    """Return the entries that make the ``wanted`` changes."""
    return [
        ChangeMessageVisibilityBatchEntry(
            id=str(place), receipt_handle=change.receipt, visibility_timeout=change.timeout_s
        )
        for place, change in enumerate(wanted)
    ]


def sent(reply: SentEntriesReply, count: int) -> list[SentMessage | ClientError]:
    """Return what became of each of ``count`` messages, in order."""
    stored = {
        entry.id: SentMessage(id=entry.message_id, sequence=entry.sequence_number) for entry in reply.successful or []
    }
    failed = _failures(reply.failed or [])
    return [stored.get(place) or failed.get(place) or _unanswered() for place in map(str, range(count))]


def done(reply: EntriesReply, count: int) -> list[ClientError | None]:
    """Return the error of each of ``count`` deletes, in order, ``None`` where there was none."""
    succeeded = {entry.id for entry in reply.successful or []}
    failed = _failures(reply.failed or [])
    return [None if place in succeeded else failed.get(place) or _unanswered() for place in map(str, range(count))]


def changed(reply: EntriesReply, count: int) -> list[ClientError | Hidden | None]:
    """Return what became of each of ``count`` changes, in order: its error, or what is known of its success.

    An entry that succeeded by the rules of SQS although another consumer has received the message since is an error
    here: ``RECEIPT_SUPERSEDED``. Only veilmq's server reports it.
    """
    made = {entry.id: _made(entry) for entry in reply.successful or []}
    failed = _failures(reply.failed or [])
    return [made[place] if place in made else failed.get(place) or _unanswered() for place in map(str, range(count))]


def _made(entry: ChangedResultEntry) -> ClientError | Hidden | None:
    if entry.veilmq_receipt is not None:
        return _superseded()
    return None if entry.veilmq_hidden_for_ms is None else Hidden(entry.veilmq_hidden_for_ms / SECOND_MS)


def _failures(entries: Sequence[BatchResultErrorEntry]) -> Mapping[str, ClientError]:
    return {entry.id: ClientError(entry.code, entry.message, 400 if entry.sender_fault else 500) for entry in entries}


def _superseded() -> ClientError:
    return ClientError(RECEIPT_SUPERSEDED, "Another consumer has received the message since.", 200)


def _unanswered() -> ClientError:
    return ClientError(UNEXPECTED_REPLY, "The server said nothing about this entry of the batch.", 200)

"""What clients are answered: one struct per action that answers anything (the others answer an empty object).

Empty lists and maps are left out altogether, as AWS does: ``Messages`` of an empty receive, ``Failed`` of a batch
without failures. ``queueUrls`` and ``Results`` are there always: clients rely on them.
"""

import msgspec

from veilmq.wire.sqs.shapes import AttributeValue, Shape


class QueueUrlResult(Shape, frozen=True, kw_only=True):
    """CreateQueue and GetQueueUrl."""

    queue_url: str


class ListQueuesResult(Shape, frozen=True, kw_only=True):
    """ListQueues."""

    queue_urls: list[str] | None = None
    next_token: str | None = None


class GetQueueAttributesResult(Shape, frozen=True, kw_only=True):
    """GetQueueAttributes; every value is a string."""

    attributes: dict[str, str] | None = None


class ListQueueTagsResult(Shape, frozen=True, kw_only=True):
    """ListQueueTags."""

    tags: dict[str, str] | None = msgspec.field(default=None, name="Tags")


class ListDeadLetterSourceQueuesResult(Shape, frozen=True, kw_only=True):
    """ListDeadLetterSourceQueues; the service model begins its first member with a small letter."""

    queue_urls: list[str] = msgspec.field(name="queueUrls")
    next_token: str | None = None


class StartMessageMoveTaskResult(Shape, frozen=True, kw_only=True):
    """StartMessageMoveTask."""

    task_handle: str


class CancelMessageMoveTaskResult(Shape, frozen=True, kw_only=True):
    """CancelMessageMoveTask."""

    approximate_number_of_messages_moved: int


class MoveTaskEntry(Shape, frozen=True, kw_only=True):
    """One move task; it has a handle as long as it runs. ``started_timestamp`` is in milliseconds."""

    task_handle: str | None = None
    status: str
    source_arn: str
    destination_arn: str | None = None
    max_number_of_messages_per_second: int | None = None
    approximate_number_of_messages_moved: int
    approximate_number_of_messages_to_move: int
    failure_reason: str | None = None
    started_timestamp: int


class ListMessageMoveTasksResult(Shape, frozen=True, kw_only=True):
    """ListMessageMoveTasks."""

    results: list[MoveTaskEntry]


class SendMessageResult(Shape, frozen=True, kw_only=True):
    """SendMessage."""

    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    message_id: str
    sequence_number: str | None = None


class SendMessageBatchResultEntry(SendMessageResult, frozen=True, kw_only=True):
    """One message of SendMessageBatch that was stored."""

    id: str


class BatchResultEntry(Shape, frozen=True, kw_only=True):
    """One entry of DeleteMessageBatch or ChangeMessageVisibilityBatch that succeeded."""

    id: str


class ChangedResultEntry(BatchResultEntry, frozen=True, kw_only=True):
    """The same of ChangeMessageVisibilityBatch and DeleteMessageBatch, with members of ours that clients of SQS ignore.

    ``veilmq_hidden_for_ms`` is there where a change was made, and says for how long from then on; ``veilmq_receipt`` is
    ``superseded``, of a delete also ``gone``, where the entry succeeded by the rules of SQS and nothing was done, and
    ``earlier`` where it was done although another consumer has received the message since.
    """

    veilmq_hidden_for_ms: int | None = None
    veilmq_receipt: str | None = None


class BatchResultErrorEntry(Shape, frozen=True, kw_only=True):
    """One entry of a batch that failed."""

    id: str
    sender_fault: bool
    code: str
    message: str


class BatchResult(Shape, frozen=True, kw_only=True):
    """The three batch actions."""

    successful: list[SendMessageBatchResultEntry] | list[BatchResultEntry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class Message(Shape, frozen=True, kw_only=True):
    """One received message."""

    message_id: str
    receipt_handle: str
    md5_of_body: str
    body: str
    attributes: dict[str, str] | None = None
    md5_of_message_attributes: str | None = None
    message_attributes: dict[str, AttributeValue] | None = None


class ReceiveMessageResult(Shape, frozen=True, kw_only=True):
    """ReceiveMessage."""

    messages: list[Message] | None = None

"""What clients are answered: one struct per action that answers anything (the others answer an empty object).

Empty lists and maps are left out altogether, as AWS does: ``Messages`` of an empty receive, ``Failed`` of a batch
without failures.
"""

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


class SendMessageResult(Shape, frozen=True, kw_only=True):
    """SendMessage."""

    md5_of_message_body: str
    md5_of_message_attributes: str | None = None
    md5_of_message_system_attributes: str | None = None
    message_id: str


class SendMessageBatchResultEntry(SendMessageResult, frozen=True, kw_only=True):
    """One message of SendMessageBatch that was stored."""

    id: str


class BatchResultEntry(Shape, frozen=True, kw_only=True):
    """One entry of DeleteMessageBatch or ChangeMessageVisibilityBatch that succeeded."""

    id: str


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

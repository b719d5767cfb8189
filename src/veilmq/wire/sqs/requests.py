"""What clients ask: one struct per action, with the members of the service model (2012-11-05).

Every member may be absent here; each action says which ones it needs, so that a missing one gets its own error.
"""

import msgspec

from veilmq.wire.sqs.shapes import AttributeValue, Integer, Shape


class QueueRequest(Shape, frozen=True, kw_only=True):
    """A request about one queue: DeleteQueue, PurgeQueue, ListQueueTags, and the root of the others."""

    queue_url: str | None = None


class CreateQueueRequest(Shape, frozen=True, kw_only=True):
    """CreateQueue."""

    queue_name: str | None = None
    attributes: dict[str, str] | None = None
    tags: dict[str, str] | None = None


class GetQueueUrlRequest(Shape, frozen=True, kw_only=True):
    """GetQueueUrl."""

    queue_name: str | None = None
    queue_owner_aws_account_id: str | None = None


class ListQueuesRequest(Shape, frozen=True, kw_only=True):
    """ListQueues."""

    queue_name_prefix: str | None = None
    next_token: str | None = None
    max_results: Integer | None = None


class GetQueueAttributesRequest(QueueRequest, frozen=True, kw_only=True):
    """GetQueueAttributes."""

    attribute_names: list[str] | None = None


class SetQueueAttributesRequest(QueueRequest, frozen=True, kw_only=True):
    """SetQueueAttributes."""

    attributes: dict[str, str] | None = None


class TagQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """TagQueue; its member begins with a capital letter, that of CreateQueue does not."""

    tags: dict[str, str] | None = msgspec.field(default=None, name="Tags")


class UntagQueueRequest(QueueRequest, frozen=True, kw_only=True):
    """UntagQueue."""

    tag_keys: list[str] | None = None


class ListDeadLetterSourceQueuesRequest(QueueRequest, frozen=True, kw_only=True):
    """ListDeadLetterSourceQueues."""

    next_token: str | None = None
    max_results: Integer | None = None


class StartMessageMoveTaskRequest(Shape, frozen=True, kw_only=True):
    """StartMessageMoveTask."""

    source_arn: str | None = None
    destination_arn: str | None = None
    max_number_of_messages_per_second: Integer | None = None


class CancelMessageMoveTaskRequest(Shape, frozen=True, kw_only=True):
    """CancelMessageMoveTask."""

    task_handle: str | None = None


class ListMessageMoveTasksRequest(Shape, frozen=True, kw_only=True):
    """ListMessageMoveTasks."""

    source_arn: str | None = None
    max_results: Integer | None = None


class AddPermissionRequest(QueueRequest, frozen=True, kw_only=True):
    """AddPermission."""

    label: str | None = None
    aws_account_ids: list[str] | None = None
    actions: list[str] | None = None


class RemovePermissionRequest(QueueRequest, frozen=True, kw_only=True):
    """RemovePermission."""

    label: str | None = None


class MessageToSend(Shape, frozen=True, kw_only=True):
    """What SendMessage and each entry of SendMessageBatch have in common."""

    message_body: str | None = None
    delay_seconds: Integer | None = None
    message_attributes: dict[str, AttributeValue] | None = None
    message_system_attributes: dict[str, AttributeValue] | None = None
    message_deduplication_id: str | None = None
    message_group_id: str | None = None


class SendMessageRequest(MessageToSend, frozen=True, kw_only=True):
    """SendMessage."""

    queue_url: str | None = None


class SendMessageBatchEntry(MessageToSend, frozen=True, kw_only=True):
    """One message of SendMessageBatch."""

    id: str | None = None


class SendMessageBatchRequest(QueueRequest, frozen=True, kw_only=True):
    """SendMessageBatch."""

    entries: list[SendMessageBatchEntry] | None = None


class ReceiveMessageRequest(QueueRequest, frozen=True, kw_only=True):
    """ReceiveMessage; an attempt id means nothing on a standard queue and is ignored there, as on AWS."""

    attribute_names: list[str] | None = None
    message_system_attribute_names: list[str] | None = None
    message_attribute_names: list[str] | None = None
    max_number_of_messages: Integer | None = None
    visibility_timeout: Integer | None = None
    wait_time_seconds: Integer | None = None
    receive_request_attempt_id: str | None = None


class DeleteMessageRequest(QueueRequest, frozen=True, kw_only=True):
    """DeleteMessage."""

    receipt_handle: str | None = None


class DeleteMessageBatchEntry(Shape, frozen=True, kw_only=True):
    """One receipt of DeleteMessageBatch."""

    id: str | None = None
    receipt_handle: str | None = None


class DeleteMessageBatchRequest(QueueRequest, frozen=True, kw_only=True):
    """DeleteMessageBatch."""

    entries: list[DeleteMessageBatchEntry] | None = None


class ChangeMessageVisibilityRequest(QueueRequest, frozen=True, kw_only=True):
    """ChangeMessageVisibility."""

    receipt_handle: str | None = None
    visibility_timeout: Integer | None = None


class ChangeMessageVisibilityBatchEntry(Shape, frozen=True, kw_only=True):
    """One change of ChangeMessageVisibilityBatch."""

    id: str | None = None
    receipt_handle: str | None = None
    visibility_timeout: Integer | None = None


class ChangeMessageVisibilityBatchRequest(QueueRequest, frozen=True, kw_only=True):
    """ChangeMessageVisibilityBatch."""

    entries: list[ChangeMessageVisibilityBatchEntry] | None = None

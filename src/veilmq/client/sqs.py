"""A ``QueueClient`` that speaks SQS through the shapes that the server's own codec reads and writes.

How a call is carried is left to a ``Caller``: our own HTTP, or an SDK that the user brings. A queue's URL is asked for
once and then remembered.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol, Self

import msgspec

from veilmq.client import batches, translation
from veilmq.client.batches import EntriesReply, SentEntriesReply
from veilmq.client.errors import ClientError
from veilmq.client.messages import Hidden, NewMessage, ReceivedMessage, SentMessage
from veilmq.client.moves import Move
from veilmq.client.status import QueueStatus
from veilmq.client.transport import UNEXPECTED_REPLY, Reply, Transport
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SQS_LIST_RESULTS, SQS_MOVE_TASK_RESULTS, SQS_RECEIVE_WAIT_S
from veilmq.core.properties import Attribute
from veilmq.core.settings import SettingValue
from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs.members import QueueRequest, SendMessageResult, Shape
from veilmq.wire.sqs.messages import (
    ChangeMessageVisibilityBatchRequest,
    ChangeMessageVisibilityRequest,
    DeleteMessageBatchRequest,
    DeleteMessageRequest,
    ReceiveMessageRequest,
    ReceiveMessageResult,
    SendMessageBatchRequest,
    SendMessageRequest,
)
from veilmq.wire.sqs.moves import (
    CancelMessageMoveTaskRequest,
    CancelMessageMoveTaskResult,
    ListMessageMoveTasksRequest,
    ListMessageMoveTasksResult,
    StartMessageMoveTaskRequest,
    StartMessageMoveTaskResult,
)
from veilmq.wire.sqs.queue_attributes import ALL, QUEUE_ARN
from veilmq.wire.sqs.queues import (
    CreateQueueRequest,
    GetQueueAttributesRequest,
    GetQueueAttributesResult,
    GetQueueUrlRequest,
    ListDeadLetterSourceQueuesRequest,
    ListDeadLetterSourceQueuesResult,
    ListQueuesRequest,
    ListQueuesResult,
    ListQueueTagsResult,
    QueueUrlResult,
    SetQueueAttributesRequest,
    TagQueueRequest,
    UntagQueueRequest,
)

_CANNOT_MOVE = frozenset({UNEXPECTED_REPLY, "UnknownRoute", "InvalidRequest", "DestinationRefused"})
"""What a server answers that knows no dead letters of clients, or not between these queues."""

_Page = ListQueuesResult | ListDeadLetterSourceQueuesResult


class Caller(Protocol):
    """Carries one action of SQS to a server, and its answer back."""

    def call(
        self,
        action: str,
        request: msgspec.Struct,
        reply_type: type[Reply],
        *,
        wait_s: int = 0,
        patience_s: float | None = None,
    ) -> Reply:
        """Ask for ``action`` and return the answer; raises ``ClientError`` and ``Unreachable``.

        ``wait_s`` is how long the server may take on purpose. With ``patience_s`` the call is tried once, and given up
        after so many seconds.
        """

    def hang_up(self) -> None:
        """End the calls that the server keeps waiting on purpose."""

    def close(self) -> None:
        """Close the idle connections."""


class Nothing(Shape, frozen=True):
    """The answer of an action that has nothing to tell."""


class SqsQueueClient:
    """A client through a ``Caller``; close it, or use it as a context manager. Threads may share it.

    A queue is named by its plain name, or by its URL, as one of another account must be.
    """

    def __init__(self, caller: Caller) -> None:
        """Send nothing yet."""
        self._caller = caller
        self._urls: dict[str, str] = {}

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._caller.close()

    def hang_up(self) -> None:
        """End the receives that wait for messages: the server answers them now, with what it has."""
        self._caller.hang_up()

    def create_queue(
        self,
        queue: str,
        settings: Mapping[str, SettingValue] | None = None,
        *,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Create ``queue``, or find it with the same settings (fields of ``QueueSettings``); answers its URL.

        Settings name other queues by their plain names. ``tags`` are those of a new queue.
        """
        attributes = self._attributes(settings or {})
        request = CreateQueueRequest(queue_name=queue, attributes=attributes or None, tags=dict(tags or {}) or None)
        return self._caller.call("CreateQueue", request, QueueUrlResult).queue_url

    def queue_url(self, queue: str) -> str:
        """Return the URL of ``queue``."""
        request = GetQueueUrlRequest(queue_name=queue)
        return self._caller.call("GetQueueUrl", request, QueueUrlResult).queue_url

    def list_queues(self, prefix: str = "") -> list[str]:
        """Return the names of all queues that begin with ``prefix``, in order, page by page."""
        return self._names(partial(self._page, prefix))

    def show(self, queue: str) -> QueueStatus:
        """Return the settings and the counters of ``queue``; its tags are told by ``tags``."""
        url = self._url(queue)
        request = GetQueueAttributesRequest(queue_url=url, attribute_names=[ALL])
        reply = self._caller.call("GetQueueAttributes", request, GetQueueAttributesResult)
        return translation.read_status(queue, url, reply.attributes or {})

    def set(self, queue: str, settings: Mapping[str, SettingValue]) -> None:
        """Change the supplied settings of ``queue``; messages in flight keep their deadlines."""
        attributes = self._attributes(settings)
        request = SetQueueAttributesRequest(queue_url=self._url(queue), attributes=attributes)
        self._caller.call("SetQueueAttributes", request, Nothing)

    def purge(self, queue: str) -> None:
        """Delete all messages of ``queue``."""
        self._caller.call("PurgeQueue", QueueRequest(queue_url=self._url(queue)), Nothing)

    def delete_queue(self, queue: str) -> None:
        """Delete ``queue`` and all its messages."""
        self._caller.call("DeleteQueue", QueueRequest(queue_url=self._url(queue)), Nothing)

    def tags(self, queue: str) -> dict[str, str]:
        """Return the tags of ``queue``."""
        request = QueueRequest(queue_url=self._url(queue))
        return self._caller.call("ListQueueTags", request, ListQueueTagsResult).tags or {}

    def tag(self, queue: str, tags: Mapping[str, str]) -> None:
        """Put ``tags`` on ``queue``, beside those that are there."""
        request = TagQueueRequest(queue_url=self._url(queue), tags=dict(tags))
        self._caller.call("TagQueue", request, Nothing)

    def untag(self, queue: str, keys: Sequence[str]) -> None:
        """Remove the tags with these ``keys`` from ``queue``."""
        request = UntagQueueRequest(queue_url=self._url(queue), tag_keys=list(keys))
        self._caller.call("UntagQueue", request, Nothing)

    def dead_letter_sources(self, queue: str) -> list[str]:
        """Return the names of the queues whose dead letters go to ``queue``, in order, page by page."""
        return self._names(partial(self._sources_page, self._url(queue)))

    def start_move(self, queue: str, *, destination: str | None = None, moves_per_s_max: int | None = None) -> str:
        """Begin to move the dead letters of ``queue`` to ``destination`` (``None``: to where each one came from).

        Answers the handle that cancels it.
        """
        request = StartMessageMoveTaskRequest(
            source_arn=self._arn(queue),
            destination_arn=self._arn(destination) if destination is not None else None,
            max_number_of_messages_per_second=moves_per_s_max,
        )
        return self._caller.call("StartMessageMoveTask", request, StartMessageMoveTaskResult).task_handle

    def cancel_move(self, handle: str) -> int:
        """Stop a move, and return how many messages it has moved."""
        request = CancelMessageMoveTaskRequest(task_handle=handle)
        reply = self._caller.call("CancelMessageMoveTask", request, CancelMessageMoveTaskResult)
        return reply.approximate_number_of_messages_moved

    def moves(self, queue: str) -> list[Move]:
        """Return the latest moves of the dead letters of ``queue``, newest first."""
        request = ListMessageMoveTasksRequest(source_arn=self._arn(queue), max_results=SQS_MOVE_TASK_RESULTS.maximum)
        reply = self._caller.call("ListMessageMoveTasks", request, ListMessageMoveTasksResult)
        return [translation.read_move(entry) for entry in reply.results]

    def send(
        self,
        queue: str,
        body: str,
        *,
        attributes: Mapping[str, Attribute] | None = None,
        delay_s: int | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
    ) -> SentMessage:
        """Store one message; if a reply was lost, it may be stored twice, but not in a FIFO queue."""
        request = SendMessageRequest(
            queue_url=self._url(queue),
            message_body=body,
            delay_seconds=delay_s,
            message_attributes=translation.write_attributes(attributes or {}),
            message_group_id=group,
            message_deduplication_id=dedup_id,
        )
        sent = self._caller.call("SendMessage", request, SendMessageResult)
        return SentMessage(id=sent.message_id, sequence=sent.sequence_number)

    def send_batch(self, queue: str, messages: Sequence[NewMessage]) -> list[SentMessage | ClientError]:
        """Store up to ten messages; if a reply was lost, they may be stored twice."""
        request = SendMessageBatchRequest(queue_url=self._url(queue), entries=batches.sends(messages))
        reply = self._caller.call("SendMessageBatch", request, SentEntriesReply)
        return batches.sent(reply, len(messages))

    def receive(
        self,
        queue: str,
        *,
        count: int = 1,
        timeout_s: int | None = None,
        wait_s: int | None = None,
        attempt_id: str | None = None,
    ) -> list[ReceivedMessage]:
        """Take up to ``count`` messages and hide them for ``timeout_s``, waiting up to ``wait_s`` for the first.

        ``None`` stands for the queue's own setting. On a FIFO queue a receive whose answer was lost can be repeated
        with the same ``attempt_id``.
        """
        request = ReceiveMessageRequest(
            queue_url=self._url(queue),
            message_system_attribute_names=[ALL],
            message_attribute_names=[ALL],
            max_number_of_messages=count,
            visibility_timeout=timeout_s,
            wait_time_seconds=wait_s,
            receive_request_attempt_id=attempt_id,
        )
        patience_s = SQS_RECEIVE_WAIT_S.maximum if wait_s is None else wait_s
        reply = self._caller.call("ReceiveMessage", request, ReceiveMessageResult, wait_s=patience_s)
        return [translation.read_message(message) for message in reply.messages or []]

    def delete(self, queue: str, receipt: str) -> None:
        """Delete the message of ``receipt``."""
        request = DeleteMessageRequest(queue_url=self._url(queue), receipt_handle=receipt)
        self._caller.call("DeleteMessage", request, Nothing)

    def dead_letter(self, queue: str, receipt: str, target: str, reasons: Mapping[str, str]) -> bool:
        """Move the message of ``receipt`` to ``target`` as a dead letter of ``queue``; returns whether it could."""
        from veilmq.client.forwards import Forwards  # noqa: PLC0415 - workers of Spark need none

        if not isinstance(self._caller, Transport):
            return False
        forwards = Forwards(self._caller.endpoint, self._url(queue), transport=self._caller)
        try:
            answer = forwards.dead_letter(receipt, target, reasons)
        except ClientError as error:
            answer = error
        if isinstance(answer, ClientError) and answer.code not in _CANNOT_MOVE:
            raise answer
        return not isinstance(answer, ClientError)

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        """Delete the messages of up to ten receipts; ``None`` for each that succeeded."""
        request = DeleteMessageBatchRequest(queue_url=self._url(queue), entries=batches.deletes(receipts))
        reply = self._caller.call("DeleteMessageBatch", request, EntriesReply)
        return batches.done(reply, len(receipts))

    def change_visibility(self, queue: str, receipt: str, timeout_s: int) -> None:
        """Hide the message of ``receipt`` for ``timeout_s`` from now on; 0 makes it visible at once."""
        request = ChangeMessageVisibilityRequest(
            queue_url=self._url(queue), receipt_handle=receipt, visibility_timeout=timeout_s
        )
        self._caller.call("ChangeMessageVisibility", request, Nothing)

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, patience_s: float | None = None
    ) -> Sequence[ClientError | Hidden | None]:
        """Make up to ten changes; no error for each that succeeded: ``Hidden`` where the server says more than SQS.

        With ``patience_s`` the request is tried once and given up after so many seconds.
        """
        entries = batches.changes(changes)
        request = ChangeMessageVisibilityBatchRequest(queue_url=self._url(queue), entries=entries)
        reply = self._caller.call("ChangeMessageVisibilityBatch", request, EntriesReply, patience_s=patience_s)
        return batches.changed(reply, len(changes))

    def _names(self, page_of: Callable[[str | None], _Page]) -> list[str]:
        names: list[str] = []
        token: str | None = None
        while True:
            page = page_of(token)
            names += [url.rpartition("/")[2] for url in page.queue_urls or []]
            token = page.next_token
            if not token:
                return names

    def _sources_page(self, url: str, token: str | None) -> ListDeadLetterSourceQueuesResult:
        request = ListDeadLetterSourceQueuesRequest(
            queue_url=url, next_token=token, max_results=SQS_LIST_RESULTS.maximum
        )
        return self._caller.call("ListDeadLetterSourceQueues", request, ListDeadLetterSourceQueuesResult)

    def _page(self, prefix: str, token: str | None) -> ListQueuesResult:
        request = ListQueuesRequest(
            queue_name_prefix=prefix or None, next_token=token, max_results=SQS_LIST_RESULTS.maximum
        )
        return self._caller.call("ListQueues", request, ListQueuesResult)

    def _attributes(self, settings: Mapping[str, SettingValue]) -> dict[str, str]:
        """Return ``settings`` as the wire has them, with the ARNs of the queues that they name."""
        named = dict(settings)
        context = RequestContext(base_url="")
        if isinstance(queue := settings.get("dead_letter_queue"), str) and queue:
            context, named["dead_letter_queue"] = self._place(queue)
        if isinstance(sources := settings.get("redrive_sources"), tuple) and sources:
            places = [self._place(source) for source in sources]
            context, named["redrive_sources"] = places[0][0], tuple(place[1] for place in places)
        return translation.write_settings(named, context)

    def _place(self, queue: str) -> tuple[RequestContext, str]:
        return translation.place_of(self._arn(queue))

    def _arn(self, queue: str) -> str:
        request = GetQueueAttributesRequest(queue_url=self._url(queue), attribute_names=[QUEUE_ARN])
        reply = self._caller.call("GetQueueAttributes", request, GetQueueAttributesResult)
        return (reply.attributes or {}).get(QUEUE_ARN, "")

    def _url(self, queue: str) -> str:
        if "/" in queue:
            return queue
        url = self._urls.get(queue)
        if url is None:
            url = self._urls[queue] = self.queue_url(queue)
        return url

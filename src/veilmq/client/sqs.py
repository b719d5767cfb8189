"""The queue client: SQS over AWS JSON 1.0, with the request and result types of the server.

A batch call is one request, whose entries succeed or fail alone: it returns a result or an error for each entry, in
order. Every call raises ``ClientError`` for an error reply and ``Unreachable`` without a usable reply.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from time import time
from typing import Any, Generic, TypeVar

from veilmq.client.messages import (
    RECEIPT_SUPERSEDED,
    ClientError,
    Hidden,
    Move,
    NewMessage,
    QueueStatus,
    ReceivedMessage,
    SentMessage,
    is_transient,
)
from veilmq.client.transport import UNEXPECTED_REPLY, Client, SigningKey, Transport, without_none
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SECOND_MS, SQS_LIST_RESULTS, SQS_MOVE_TASK_RESULTS, SQS_RECEIVE_WAIT_S, Range
from veilmq.core.messages import Attribute
from veilmq.core.settings import QueueSettings, SettingValue
from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import (
    DEDUPLICATION,
    GROUP,
    TRACE_HEADER,
    BatchResultErrorEntry,
    ChangedResultEntry,
    QueueUrlResult,
    SendMessageBatchResultEntry,
    SendMessageResult,
    Shape,
    write_attributes,
)
from veilmq.wire.sqs.messages import Message, ReceiveMessageResult
from veilmq.wire.sqs.moves import CancelMessageMoveTaskResult, ListMessageMoveTasksResult, StartMessageMoveTaskResult
from veilmq.wire.sqs.queue_attributes import ALL, QUEUE_ARN, SETTINGS, Setting, number, write_settings
from veilmq.wire.sqs.queues import (
    GetQueueAttributesResult,
    ListDeadLetterSourceQueuesResult,
    ListQueuesResult,
    ListQueueTagsResult,
)

_NO_DEAD_LETTERS = frozenset({UNEXPECTED_REPLY, "UnknownRoute", "InvalidRequest", "DestinationRefused"})
"""Error codes of servers that do not support dead letters from clients, or not between these queues."""
_ANY = Range(minimum=0, maximum=10**10, default=0)
_READ_SETTINGS: dict[str, Setting] = {
    name: number(setting.fields[0], _ANY) if setting.is_number else setting for name, setting in SETTINGS.items()
}
"""Queue attribute → its setting, with any number, because SMQ has other ranges."""
_ARN = re.compile(r"arn:[^:]+:sqs:(?P<region>[^:]*):(?P<account>[^:/]+):(?P<name>[^:/]+)")

Entry = TypeVar("Entry", bound=SendMessageBatchResultEntry | ChangedResultEntry)
Result = TypeVar("Result")


class _Entries(Shape, Generic[Entry]):
    """The result of a batch."""

    successful: list[Entry] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class QueueClient(Client):
    """A client of a server; close it, or use it as a context manager. Threads may share it.

    A queue is given by its name or its URL; a queue of another account by its URL.
    """

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self._call = transport.call
        self._urls: dict[str, str] = {}

    def hang_up(self) -> None:
        """End waiting receives at shutdown: the server replies now. Connections of boto3 are not affected."""
        self._transport.hang_up()

    # ------------------------------------------------------------------------------------------------- queues

    def create_queue(
        self, queue: str, settings: Mapping[str, SettingValue] | None = None, *, tags: Mapping[str, str] | None = None
    ) -> str:
        """Create ``queue``, or return it if it has the given settings (fields of ``QueueSettings``); returns its URL.

        Settings name other queues by their names. ``tags`` are for a new queue.
        """
        attributes = self._attributes(settings or {}) or None
        members = without_none(QueueName=queue, Attributes=attributes, tags=dict(tags or {}) or None)
        return self._call("CreateQueue", members, QueueUrlResult).queue_url

    def queue_url(self, queue: str, *, call_timeout_s: float | None = None) -> str:
        """Return the URL of ``queue``; with ``call_timeout_s``, the request is tried once."""
        reply = self._call("GetQueueUrl", {"QueueName": queue}, QueueUrlResult, call_timeout_s=call_timeout_s)
        return reply.queue_url

    def list_queues(self, prefix: str = "") -> list[str]:
        """Return the names of all queues that begin with ``prefix``, in order."""
        return self._list_names("ListQueues", ListQueuesResult, QueueNamePrefix=prefix or None)

    def show(self, queue: str) -> QueueStatus:
        """Return the settings and the counts of ``queue``, without its tags."""
        url = self._url(queue)
        members = {"QueueUrl": url, "AttributeNames": [ALL]}
        attributes = self._call("GetQueueAttributes", members, GetQueueAttributesResult).attributes or {}
        try:
            context, full_name = _queue_of(attributes[QUEUE_ARN])
            settings: dict[str, SettingValue] = {}
            for name, kind in _READ_SETTINGS.items():
                if name in attributes:
                    settings |= kind.read(name, attributes[name], full_name, context)
            return QueueStatus(
                queue=queue,
                url=url,
                settings=QueueSettings().changed(settings),
                visible=int(attributes["ApproximateNumberOfMessages"]),
                in_flight=int(attributes["ApproximateNumberOfMessagesNotVisible"]),
                delayed=int(attributes["ApproximateNumberOfMessagesDelayed"]),
                created_at_ms=int(attributes["CreatedTimestamp"]) * SECOND_MS,
                modified_at_ms=int(attributes["LastModifiedTimestamp"]) * SECOND_MS,
            )
        except (KeyError, ValueError, SqsError) as error:
            raise ClientError(UNEXPECTED_REPLY, f"The queue's attributes lack a usable {error}.", 200) from error

    def set(self, queue: str, settings: Mapping[str, SettingValue]) -> None:
        """Change the given settings of ``queue``; current leases keep their deadlines."""
        self._execute("SetQueueAttributes", queue, Attributes=self._attributes(settings))

    def purge(self, queue: str) -> None:
        """Delete all messages of ``queue``."""
        self._execute("PurgeQueue", queue)

    def delete_queue(self, queue: str) -> None:
        """Delete ``queue`` and all its messages."""
        self._execute("DeleteQueue", queue)

    def tags(self, queue: str) -> dict[str, str]:
        """Return the tags of ``queue``."""
        return self._call("ListQueueTags", {"QueueUrl": self._url(queue)}, ListQueueTagsResult).tags or {}

    def tag(self, queue: str, tags: Mapping[str, str]) -> None:
        """Add ``tags`` to those of ``queue``."""
        self._execute("TagQueue", queue, Tags=dict(tags))

    def untag(self, queue: str, keys: Sequence[str]) -> None:
        """Remove the tags with these ``keys`` from ``queue``."""
        self._execute("UntagQueue", queue, TagKeys=list(keys))

    def dead_letter_sources(self, queue: str) -> list[str]:
        """Return the names of the queues whose dead-letter queue is ``queue``, in order."""
        action, url = "ListDeadLetterSourceQueues", self._url(queue)
        return self._list_names(action, ListDeadLetterSourceQueuesResult, QueueUrl=url)

    def _list_names(self, action: str, reply_type: type[Any], **members: Any) -> list[str]:
        """Return the names of the queues on all pages of a listing."""
        urls, token = list[str](), None
        while True:
            page_members = without_none(**members, NextToken=token, MaxResults=SQS_LIST_RESULTS.maximum)
            page = self._call(action, page_members, reply_type)
            urls += page.queue_urls or []
            token = page.next_token
            if not token:
                return [url.rpartition("/")[2] for url in urls]

    def start_move(self, queue: str, *, destination: str | None = None, moves_per_s_max: int | None = None) -> str:
        """Start to move the dead letters of ``queue`` to ``destination``, by default to their original queues.

        Returns the handle for ``cancel_move``.
        """
        members = without_none(
            SourceArn=self._arn(queue),
            DestinationArn=self._arn(destination) if destination is not None else None,
            MaxNumberOfMessagesPerSecond=moves_per_s_max,
        )
        return self._call("StartMessageMoveTask", members, StartMessageMoveTaskResult).task_handle

    def cancel_move(self, handle: str) -> int:
        """Stop a move task; return how many messages it has moved."""
        reply = self._call("CancelMessageMoveTask", {"TaskHandle": handle}, CancelMessageMoveTaskResult)
        return reply.approximate_number_of_messages_moved

    def moves(self, queue: str) -> list[Move]:
        """Return the latest move tasks of ``queue``, newest first."""
        members = {"SourceArn": self._arn(queue), "MaxResults": SQS_MOVE_TASK_RESULTS.maximum}
        reply = self._call("ListMessageMoveTasks", members, ListMessageMoveTasksResult)
        return [
            Move(
                handle=entry.task_handle,
                status=entry.status.lower(),
                destination=_name_of(entry.destination_arn),
                moves_per_s_max=entry.max_number_of_messages_per_second,
                messages_moved=entry.approximate_number_of_messages_moved,
                messages_to_move=entry.approximate_number_of_messages_to_move,
                started_at_ms=entry.started_timestamp,
                failure=entry.failure_reason,
            )
            for entry in reply.results
        ]

    # ------------------------------------------------------------------------------------------------- messages

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
        """Send one message; if a reply is lost, it may be stored twice, but not in a FIFO queue."""
        message = NewMessage(body=body, attributes=attributes or {}, delay_s=delay_s, group=group, dedup_id=dedup_id)
        sent = self._call("SendMessage", _send_members(message, QueueUrl=self._url(queue)), SendMessageResult)
        return SentMessage(id=sent.message_id, sequence=sent.sequence_number)

    def send_batch(self, queue: str, messages: Sequence[NewMessage]) -> list[SentMessage | ClientError]:
        """Send up to ten messages; if a reply is lost, they may be stored twice, but not in a FIFO queue."""
        return self._batch(
            "SendMessageBatch",
            queue,
            [_send_members(message) for message in messages],
            _Entries[SendMessageBatchResultEntry],
            lambda entry: SentMessage(id=entry.message_id, sequence=entry.sequence_number),
        )

    def receive(
        self,
        queue: str,
        *,
        count: int = 1,
        timeout_s: int | None = None,
        wait_s: int | None = None,
        attempt_id: str | None = None,
    ) -> list[ReceivedMessage]:
        """Receive up to ``count`` messages and hide them for ``timeout_s``; wait up to ``wait_s`` for the first.

        ``None`` is the setting of the queue. On a FIFO queue, a receive whose reply was lost can be repeated with the
        same ``attempt_id``.
        """
        members = without_none(
            QueueUrl=self._url(queue),
            MessageSystemAttributeNames=[ALL],
            MessageAttributeNames=[ALL],
            MaxNumberOfMessages=count,
            VisibilityTimeout=timeout_s,
            WaitTimeSeconds=wait_s,
            ReceiveRequestAttemptId=attempt_id,
        )
        wait_s = SQS_RECEIVE_WAIT_S.maximum if wait_s is None else wait_s
        reply = self._call("ReceiveMessage", members, ReceiveMessageResult, wait_s=wait_s)
        return list(map(_received_message, reply.messages or []))

    def delete(self, queue: str, receipt: str) -> None:
        """Delete the message of ``receipt``."""
        self._execute("DeleteMessage", queue, ReceiptHandle=receipt)

    def dead_letter(self, queue: str, receipt: str, target: str, reasons: Mapping[str, str]) -> bool:
        """Move the message of ``receipt`` to the queue ``target`` as a dead letter, with ``reasons`` as attributes.

        Return false, without a change, if the server does not support that: another server than veilmq, or queues of
        different types.
        """
        from veilmq.client.api import Forwards  # noqa: PLC0415 - Spark workers do not need it

        try:
            result = Forwards(self._transport, self._url(queue)).dead_letter(receipt, target, reasons)
        except ClientError as error:
            result = error
        if isinstance(result, ClientError) and (result.code not in _NO_DEAD_LETTERS or is_transient(result)):
            raise result
        return not isinstance(result, ClientError)

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        """Delete the messages of up to ten receipts; return ``None`` or an error for each."""
        entries = [{"ReceiptHandle": receipt} for receipt in receipts]
        return self._batch("DeleteMessageBatch", queue, entries, _Entries[ChangedResultEntry], lambda entry: None)

    def change_visibility(self, queue: str, receipt: str, timeout_s: int) -> None:
        """Hide the message of ``receipt`` for ``timeout_s`` from now; 0 makes it visible immediately."""
        self._execute("ChangeMessageVisibility", queue, ReceiptHandle=receipt, VisibilityTimeout=timeout_s)

    def change_visibility_batch(
        self, queue: str, changes: Sequence[VisibilityChange], *, call_timeout_s: float | None = None
    ) -> Sequence[ClientError | Hidden | None]:
        """Make up to ten changes; return ``Hidden`` (from veilmq), ``None`` (from other servers) or an error for each.

        If another consumer has received the message since, which SQS accepts but veilmq reports, the error is
        ``RECEIPT_SUPERSEDED``. With ``call_timeout_s`` the request is tried once, with this timeout.
        """
        entries = [{"ReceiptHandle": each.receipt, "VisibilityTimeout": each.timeout_s} for each in changes]
        action, batch = "ChangeMessageVisibilityBatch", _Entries[ChangedResultEntry]
        return self._batch(action, queue, entries, batch, _change_result, call_timeout_s=call_timeout_s)

    def _attributes(self, settings: Mapping[str, SettingValue]) -> dict[str, str]:
        """Return ``settings`` as queue attributes, with ARNs of other queues."""
        named = dict(settings)
        context = RequestContext(base_url="")
        if isinstance(queue := settings.get("dead_letter_queue"), str) and queue:
            context, named["dead_letter_queue"] = _queue_of(self._arn(queue))
        if isinstance(sources := settings.get("redrive_sources"), tuple) and sources:
            queues = [_queue_of(self._arn(source)) for source in sources]
            context, named["redrive_sources"] = queues[0][0], tuple(name for _, name in queues)
        return write_settings(named, context)

    def _arn(self, queue: str) -> str:
        members = {"QueueUrl": self._url(queue), "AttributeNames": [QUEUE_ARN]}
        reply = self._call("GetQueueAttributes", members, GetQueueAttributesResult)
        return (reply.attributes or {}).get(QUEUE_ARN, "")

    def _batch(
        self,
        action: str,
        queue: str,
        entries: Sequence[Mapping[str, Any]],
        reply_type: type["_Entries[Entry]"],
        result_of: "Callable[[Entry], Result | ClientError]",
        *,
        call_timeout_s: float | None = None,
    ) -> "list[Result | ClientError]":
        """Run a batch action on ``entries``, with their indices as ids; return their results in order."""
        numbered = [{"Id": str(number), **entry} for number, entry in enumerate(entries)]
        members = {"QueueUrl": self._url(queue, call_timeout_s), "Entries": numbered}
        reply = self._call(action, members, reply_type, call_timeout_s=call_timeout_s)
        results: dict[str, Result | ClientError] = {
            entry.id: ClientError(entry.code, entry.message, 400 if entry.sender_fault else 500)
            for entry in reply.failed or []
        }
        results |= {entry.id: result_of(entry) for entry in reply.successful or []}
        missing = ClientError(UNEXPECTED_REPLY, "The reply has no result for this entry of the batch.", 200)
        return [results.get(number, missing) for number in map(str, range(len(entries)))]

    def _execute(self, action: str, queue: str, **members: Any) -> None:
        """Run an action on ``queue`` without a result."""
        self._call(action, {"QueueUrl": self._url(queue), **members}, dict)

    def _url(self, queue: str, call_timeout_s: float | None = None) -> str:
        if "/" in queue:
            return queue
        if queue not in self._urls:
            self._urls[queue] = self.queue_url(queue, call_timeout_s=call_timeout_s)
        return self._urls[queue]


class HttpQueueClient(QueueClient):
    """A client of one endpoint, over HTTP."""

    def __init__(self, endpoint: str, *, key: SigningKey | None = None, wall_s: Callable[[], float] = time) -> None:
        """``endpoint`` is a URL like ``http://127.0.0.1:9324``; raises ``ValueError`` for another form.

        A server with a credentials file requires a ``key`` with its region. ``wall_s`` is the clock for signatures, in
        seconds since the epoch.
        """
        super().__init__(Transport(endpoint, key=key, wall_s=wall_s))


def _send_members(message: NewMessage, **members: Any) -> dict[str, Any]:
    return without_none(
        **members,
        MessageBody=message.body,
        DelaySeconds=message.delay_s,
        MessageAttributes=write_attributes(message.attributes) or None,
        MessageGroupId=message.group,
        MessageDeduplicationId=message.dedup_id,
    )


def _change_result(entry: ChangedResultEntry) -> ClientError | Hidden | None:
    if entry.veilmq_receipt is not None:
        return ClientError(RECEIPT_SUPERSEDED, "Another consumer has received the message since.", 200)
    return None if entry.veilmq_hidden_for_ms is None else Hidden(entry.veilmq_hidden_for_ms / SECOND_MS)


def _received_message(message: Message) -> ReceivedMessage:
    system = message.attributes or {}
    try:
        return ReceivedMessage(
            id=message.message_id,
            receipt=message.receipt_handle,
            body=message.body,
            attributes={
                name: Attribute(type=value.data_type or "", text=value.string_value, data=value.binary_value)
                for name, value in (message.message_attributes or {}).items()
            },
            sent_at_ms=int(system["SentTimestamp"]),
            first_received_at_ms=int(system["ApproximateFirstReceiveTimestamp"]),
            receive_count=int(system["ApproximateReceiveCount"]),
            group=system.get(GROUP),
            dedup_id=system.get(DEDUPLICATION),
            sequence=system.get("SequenceNumber"),
            source=_name_of(system.get("DeadLetterQueueSourceArn")),
            trace_header=system.get(TRACE_HEADER),
        )
    except (KeyError, ValueError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The message's attributes lack a usable {error}.", 200) from error


def _name_of(arn: str | None) -> str | None:
    return arn.rpartition(":")[2] if arn else None


def _queue_of(arn: str) -> tuple[RequestContext, str]:
    """Return (context with the region, full name) of ``arn``, of any length; raises ``ValueError``."""
    match = _ARN.fullmatch(arn)
    if match is None:
        raise ValueError(arn)
    return RequestContext(base_url="", region=match["region"]), f"{match['account']}/{match['name']}"

"""The routes of publications and of forwards."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict, replace

from veilmq.core import Value, errors, limits
from veilmq.core.claims import Abandon, ListWriters, Publish, Published, Stage, Staged, WriterView
from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.core.messages import Attribute, NewMessage, Properties, attributes_bytes, encode_properties
from veilmq.core.topics import Forward, Forwarded, ForwardEntry
from veilmq.wire.exchange import REGION_PATTERN, SENDER_ID, Caller, Reply, RequestContext, id_text
from veilmq.wire.sqs import members
from veilmq.wire.sqs.errors import SqsError, too_many_attributes
from veilmq.wire.sqs.members import AttributeValue, check_text, checked_id, read_attributes
from veilmq.wire.v1 import request as api
from veilmq.wire.v1.claims import STRING
from veilmq.wire.v1.request import INVALID_REQUEST, ApiCall, ApiRequest, Route, as_json, command_plan, fields_of

SLICE_ROWS = 100


class OutgoingRow(Value, forbid_unknown_fields=True, gc=False):
    """One message; ``delay_s`` of null is the delay of the queue."""

    body: str
    attributes: dict[str, str] | None = None
    attribute_types: dict[str, str] | None = None
    group: str | None = None
    dedup_id: str | None = None
    delay_s: int | None = None


MessageSlices = Iterator[tuple[NewMessage, ...]]
"""Messages in small slices."""


def in_slices(count: int, make: Callable[[int, int], tuple[NewMessage, ...]], *, offset: int = 0) -> MessageSlices:
    """Yield ``make(first, end)`` for slices of ``count`` rows; ``offset`` rows before them count in errors."""
    for first in range(0, count, SLICE_ROWS):
        try:
            yield make(first, min(first + SLICE_ROWS, count))
        except api.RowRefused as error:
            raise api.RowRefused(offset + first + error.index, error.reason) from None


class Outgoing:
    """Makes messages of ``caller``, if known."""

    def __init__(self, caller: Caller | None) -> None:
        self._sent = b"" if caller is None else caller.sender_properties
        self._system: dict[str, Attribute] = {} if caller is None else {SENDER_ID: caller.sender}

    def from_rows(self, rows: Sequence[OutgoingRow]) -> tuple[NewMessage, ...]:
        """Return the messages of ``rows``; raises ``RowRefused`` for the first invalid one."""
        messages = []
        for index, row in enumerate(rows):
            try:
                messages.append(self._message(row))
            except SqsError as error:
                raise api.RowRefused(index, error) from None
        return tuple(messages)

    def from_bodies(self, bodies: Sequence[str]) -> tuple[NewMessage, ...]:
        """Return messages with ``bodies`` only; raises ``RowRefused``."""
        joined = "".join(bodies)
        if joined.isascii() and all(bodies) and members.is_legal(joined):
            return tuple([NewMessage(body=body, size_bytes=len(body), properties=self._sent) for body in bodies])
        return self.from_rows([OutgoingRow(body=body) for body in bodies])  # one by one, to find the invalid one

    def _message(self, row: OutgoingRow) -> NewMessage:
        body = row.body
        if not body:
            raise SqsError(INVALID_REQUEST, "It has no body; a message has at least one character.")
        check_text(body, "the message body")
        size_bytes = len(body) if body.isascii() else len(body.encode())
        delay_s = row.delay_s
        if delay_s is not None and not limits.DELAY_S.holds(delay_s):
            raise SqsError(INVALID_REQUEST, f"delay_s must be 0 to {limits.DELAY_S.maximum}, and is {delay_s}.")
        if not (row.attributes or row.attribute_types or row.group is not None or row.dedup_id is not None):
            return NewMessage(body=body, size_bytes=size_bytes, properties=self._sent, delay_s=delay_s)
        attributes = _attributes(row.attributes or {}, row.attribute_types or {})
        group = checked_id(members.GROUP, row.group)
        dedup_id = checked_id(members.DEDUPLICATION, row.dedup_id)
        properties = Properties(attributes=attributes, system=self._system, group=group, dedup_id=dedup_id)
        return NewMessage(
            body=body,
            size_bytes=size_bytes + attributes_bytes(attributes),
            properties=encode_properties(properties),
            delay_s=delay_s,
            group=group,
            dedup_id=dedup_id,
        )


def _attributes(texts: Mapping[str, str], types: Mapping[str, str]) -> dict[str, Attribute]:
    if len(texts) > limits.SMQ_PROPERTIES_MAX:  # a message of SMQ may have more than one of SQS
        raise too_many_attributes(len(texts), limits.SMQ_PROPERTIES_MAX)
    for name in types:
        if name not in texts:
            raise SqsError(INVALID_REQUEST, f"attribute_types has {name[:64]!r}, which is not in attributes.")
    values = {name: _value(name, text, types.get(name, STRING)) for name, text in texts.items()}
    return read_attributes(values, limits.SMQ_PROPERTIES_MAX)


def _value(name: str, text: str, label: str) -> AttributeValue:
    if label.partition(".")[0] != "Binary":
        return AttributeValue(string_value=text, data_type=label)
    try:
        return AttributeValue(binary_value=b64decode(text, validate=True), data_type=label)
    except (NotBase64, ValueError):
        raise SqsError(INVALID_REQUEST, f"The attribute {name[:64]!r} is binary and must be Base64.") from None


class BulkStage(Command):
    """Decode the messages of a request in slices, between other requests, and stage them.

    The result is that of ``Stage``, or the ``SqsError`` of decoding. ``first`` is the command without messages;
    ``read`` starts decoding, which may take long, as it may import pyarrow.
    """

    first: Stage
    read: Callable[[], MessageSlices]

    @property
    def queue(self) -> str:
        return self.first.queue

    def with_messages(self, messages: list[NewMessage]) -> Stage:
        """Return the command with ``messages``; raises ``SqsError`` if they are too large."""
        size_bytes = sum([message.size_bytes for message in messages])
        if size_bytes > limits.STAGE_BYTES_MAX:
            raise SqsError(
                INVALID_REQUEST,
                f"{size_bytes:,} bytes of messages are too many for one call; "
                f"send {limits.STAGE_BYTES_MAX:,} at the most.",
            )
        return replace(self.first, messages=tuple(messages))


# The fields of the routes are those of the commands in ``core.claims``, except the queue, which is in the path.

ARROW_TYPE = b"application/vnd.apache.arrow.stream"


class MessagesFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of ``stage``."""

    messages: Annotated[list[OutgoingRow], Meta(max_length=limits.STAGE_MESSAGES_MAX)]


class Writers(msgspec.Struct, frozen=True):
    """The writers of a queue."""

    writers: list[WriterView]


def _stage(request: ApiRequest, fields: Any, context: RequestContext) -> ApiCall:
    outgoing = Outgoing(context.caller)

    def read() -> MessageSlices:
        rows = api.from_json(request.body, MessagesFields).messages
        return in_slices(len(rows), lambda first, end: outgoing.from_rows(rows[first:end]))

    if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() == ARROW_TYPE:
        read = api.with_arrow("staged_messages", request.body, outgoing, instead="send JSON")
    first = Stage(queue=request.queue, messages=(), **asdict(fields))
    return ApiCall(BulkStage(first=first, read=read))


# Forwards.

Target = Annotated[str, Meta(pattern=rf"\A([0-9]{{12}}(@{REGION_PATTERN})?/)?{api.NAMES}\Z")]
Reason = Annotated[str, Meta(min_length=1, max_length=2_000, pattern=rf"\A[{members.LEGAL}]*\Z")]
ReasonName = Annotated[str, Meta(pattern=r"\Aveilmq-[a-z-]{1,50}\Z")]


class EntryFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message; ``target`` is the name of a queue in the account of the intake, or ``account/name``.

    With ``reasons``, which become attributes, the message becomes a dead letter of the intake.
    """

    receipt: str
    target: Target
    reasons: dict[ReasonName, Reason] | None = None


class ForwardFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of ``forward``; a request without entries tests whether the server supports forwards."""

    entries: Annotated[list[EntryFields], Meta(max_length=limits.SQS_BATCH_ENTRIES_MAX)]


class ForwardedEntry(Value):
    """A forwarded message; see ``core.topics.Forwarded``."""

    id: str
    sequence_number: str | None = None
    duplicate: bool = False


class EntryResult(Value):
    """The result for one message: its ``id`` in the target, or the ``code`` and ``status`` of an error."""

    id: str | UnsetType = UNSET
    sequence_number: str | UnsetType | None = UNSET
    duplicate: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    status: int | UnsetType = UNSET


class EntryResults(msgspec.Struct, frozen=True):
    """The result for each message, in order."""

    entries: list[EntryResult]


def _forward(request: ApiRequest, fields: ForwardFields, context: RequestContext) -> ApiCall:
    entries = []
    for entry in fields.entries:
        account, _, name = entry.target.rpartition("/")
        target = f"{api.namespace_of(account, context) if account else request.account}/{name}"
        entries.append(ForwardEntry(receipt=entry.receipt, target=target, reasons=entry.reasons))

    def respond(results: list[Forwarded | VeilmqError]) -> Reply:
        replies: list[Any] = []
        for result in results:
            if isinstance(result, VeilmqError):
                status, content = api.error_members(result)
                replies.append(content | {"status": status})
            else:
                sequence = members.sequence_text(result.sequence)
                entry = ForwardedEntry(id=id_text(result.id), sequence_number=sequence, duplicate=result.duplicate)
                replies.append(entry)
        return api.json_reply(200, {"entries": replies})

    return ApiCall(Forward(queue=request.queue, entries=tuple(entries)), respond)


_OF_FORWARD = (
    errors.ReceiptEnded,
    errors.ReceiptInvalid,
    errors.GroupHeld,
    errors.DestinationRefused,
    errors.MessageTooLong,
)
_get, _post = partial(Route, b"GET", b"publications"), partial(Route, b"POST", b"publications")

# fmt: off
ROUTES = (
    _get(b"", "SendMessage", "List the writers of a queue.",
         command_plan(ListWriters, lambda views: as_json(Writers(views))), query=api.NoFields, result=Writers),
    _post(b"stage", "SendMessage", "Stage messages for a later publication.", _stage,
          query=fields_of(Stage, without=("messages",)),
          body=MessagesFields, result=Staged, errors=(errors.StageRefused,), arrow=True),
    _post(b"publish", "SendMessage", "Publish the staged messages, once.", command_plan(Publish),
          body=fields_of(Publish), result=Published, errors=(errors.StageMissing,)),
    _post(b"abandon", "SendMessage", "Delete the staged messages of a batch.", command_plan(Abandon),
          body=fields_of(Abandon)),
    # requires DeleteMessage too, and SendMessage on the targets (server.permissions)
    Route(b"POST", b"queues", b"forward", "ReceiveMessage",
          'Move messages in flight to other queues, each by itself: ``{"entries": [...]}``, in order.', _forward,
          body=ForwardFields, result=EntryResults, errors=_OF_FORWARD),
)
# fmt: on

"""The routes of claims, and claimed messages in JSON."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

import msgspec
from msgspec.structs import asdict

from veilmq.core import Value, claims, errors, limits
from veilmq.core.claims import ClaimedMessage, ReadClaim
from veilmq.core.commands import Command
from veilmq.core.messages import Attribute, decode_properties
from veilmq.wire.exchange import Reply, RequestContext, id_text
from veilmq.wire.sqs.members import sequence_text
from veilmq.wire.v1 import request as api
from veilmq.wire.v1.request import ApiCall, ApiRequest, Route, as_json, command_plan, fields_of

STRING = "String"


class MessageRow(Value, gc=False):
    """One message. Instants are milliseconds since the epoch; ``queue`` is the name without the account."""

    id: str
    body: str
    attributes: dict[str, str]
    attribute_types: dict[str, str] | None
    group: str | None
    sent_at_ms: int
    received_at_ms: int
    receive_count: int
    sequence_number: str | None
    queue: str


def texts(attributes: dict[str, Attribute]) -> dict[str, str]:
    """Return the values of ``attributes`` as text, binary ones in base64."""
    return {
        name: value.text if value.text is not None else b64encode(value.data or b"").decode()
        for name, value in attributes.items()
    }


def types(attributes: dict[str, Attribute]) -> dict[str, str] | None:
    """Return the types of ``attributes`` other than String, ``None`` if there are none."""
    return {name: value.type for name, value in attributes.items() if value.type != STRING} or None


def row(message: ClaimedMessage, queue: str) -> MessageRow:
    """Return ``message`` of ``queue``, a name without the account."""
    properties = decode_properties(message.properties)
    return MessageRow(
        id=id_text(message.id),
        body=message.body,
        attributes=texts(properties.attributes),
        attribute_types=types(properties.attributes),
        group=properties.group,
        sent_at_ms=message.sent_at_ms,
        received_at_ms=message.received_at_ms,
        receive_count=message.receive_count,
        sequence_number=sequence_text(message.sequence),
        queue=queue,
    )


# Bulk reads of a claim. One reply contains several pages of the engine. The server passes a few messages at a time to a
# writer, so that no step takes long, until the reply is large enough.

CURSOR = "x-veilmq-cursor"
"""The header of a reply with the cursor of the next one; absent after the last."""


class Writer(Protocol):
    """Encodes the body of a reply."""

    content_type: bytes

    @property
    def size_bytes(self) -> int:
        """The approximate size of the body so far."""

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        """Append messages."""

    def finish(self) -> bytes:
        """Return the body; called once."""


class BulkRead(Command):
    """Read pages of a claim, from ``first``, into one reply. Result: ``Reply``, or an error of ``ReadClaim``.

    ``writer`` makes the writer; the first call may take long, as it may import pyarrow.
    """

    first: ReadClaim
    writer: Callable[[], Writer]

    @property
    def queue(self) -> str:
        return self.first.queue


def bulk_reply(body: bytes, content_type: bytes, cursor: str) -> Reply:
    """Return the reply of a bulk read; ``cursor`` is that of the next one, empty after the last."""
    headers = b"Content-Type: %b\r\n" % content_type
    if cursor:
        headers += f"{CURSOR}: {cursor}\r\n".encode()
    return Reply(200, headers, body)


class JsonWriter:
    """Writes ``{"messages": [...]}`` of ``queue``, a name without the account."""

    content_type = b"application/json"

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def add(self, messages: Sequence[ClaimedMessage]) -> None:
        """Append messages."""
        if messages:
            self._parts.append(_encode([row(message, self._queue) for message in messages])[1:-1])
            self.size_bytes += len(self._parts[-1])

    def finish(self) -> bytes:
        """Return the body."""
        return b'{"messages":[%b]}' % b",".join(self._parts)


_encode = msgspec.json.Encoder().encode


# The fields of the routes are those of the commands in ``core.claims``, except the queue, which is in the path.


class Sources(msgspec.Struct, frozen=True):
    """The sources of a queue."""

    sources: list[claims.SourceView]


class ClaimedMessages(msgspec.Struct, frozen=True):
    """Messages of a claim; if there are more, the header ``x-veilmq-cursor`` has the cursor of the next page."""

    messages: list[MessageRow]


def _claim(request: ApiRequest, fields: Any, context: RequestContext) -> ApiCall:
    values = asdict(fields)
    wait_s = values.pop("wait_s")
    return ApiCall(claims.Claim(queue=request.queue, **values), wait_s=wait_s)


def _read(request: ApiRequest, fields: Any, context: RequestContext) -> ApiCall:
    values, name = asdict(fields), request.queue.partition("/")[2]
    writer: Callable[[], Writer] = partial(JsonWriter, name)
    if values.pop("format") == "arrow":
        writer = api.with_arrow("ArrowWriter", name, instead="ask for format=json")
    return ApiCall(BulkRead(first=ReadClaim(queue=request.queue, **values), writer=writer), lambda reply: reply)


def _evict(request: ApiRequest, fields: Any, context: RequestContext) -> ApiCall:
    values = asdict(fields) | {"message": fields.message.bytes}
    return ApiCall(claims.EvictMessage(queue=request.queue, **values))


_ENDED = (errors.ClaimAcknowledged, errors.ClaimLost, errors.ClaimReleased)
_FENCED = (errors.SourceNotFound, errors.EpochFenced)
_OF_RELEASE = (errors.SourceNotFound, errors.ClaimAcknowledged, errors.ClaimLost)
_OF_EVICTION = (errors.SourceNotFound, *_ENDED, errors.MessageNotClaimed, errors.DeadLetterQueueRefused)
_CLAIM = fields_of(claims.Claim, wait_s=(Annotated[int, limits.SQS_RECEIVE_WAIT_S.constraint], 0))
_READ = fields_of(ReadClaim, without=("messages_max",), format=(Literal["arrow", "json"], "json"))
_EVICT = fields_of(claims.EvictMessage, message=(UUID,))  # 16 bytes in the command
_get, _post = partial(Route, b"GET", b"claims"), partial(Route, b"POST", b"claims")

# fmt: off
ROUTES = (
    _get(b"", "ReceiveMessage", "List the sources of a queue.",
         command_plan(claims.ListSources, lambda views: as_json(Sources(views))), query=api.NoFields, result=Sources),
    _get(b"read", "ReceiveMessage", "Read messages of one shard of a claim, as many as fit into one reply.", _read,
         query=_READ, result=ClaimedMessages, errors=(*_ENDED, errors.ShardNotFound, errors.CursorInvalid),
         arrow=True),
    _post(b"open", "ReceiveMessage", "Begin a new epoch of a source.", command_plan(claims.OpenSource),
          body=fields_of(claims.OpenSource), result=claims.SourceView, errors=(errors.ConsumerTaken,)),
    _post(b"claim", "ReceiveMessage", "Bind a claim, or return it if it is bound; wait up to ``wait_s`` for a message.",
          _claim, body=_CLAIM, result=claims.Bound, errors=(*_FENCED, *_ENDED, errors.ClaimGap)),
    _post(b"heartbeat", "ReceiveMessage", "Renew lease and hold of a source.", command_plan(claims.Heartbeat),
          body=fields_of(claims.Heartbeat), result=claims.SourceView, errors=_FENCED),
    _post(b"acknowledge", "DeleteMessage", "Delete the messages of all open claims up to a number.",
          command_plan(claims.AcknowledgeClaims),
          body=fields_of(claims.AcknowledgeClaims), result=claims.Acknowledged, errors=(*_FENCED, errors.ClaimGap)),
    _post(b"release", "ChangeMessageVisibility", "Return the messages of a claim to the queue.",
          command_plan(claims.ReleaseClaim), body=fields_of(claims.ReleaseClaim), result=claims.SourceView,
          errors=_OF_RELEASE),
    _post(b"evict", "DeleteMessage", "Move one message of a claim to the dead-letter queue.", _evict,
          body=_EVICT, result=claims.SourceView, errors=_OF_EVICTION),
    _post(b"close", "DeleteMessage", "Release all claims of a source and delete it.", command_plan(claims.CloseSource),
          body=fields_of(claims.CloseSource), errors=(errors.SourceNotFound,)),
)
# fmt: on

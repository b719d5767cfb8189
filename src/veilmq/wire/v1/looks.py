"""The routes that show messages and leases of a queue and change nothing: no lease begins, no receive is counted.

A message looks as a claimed one does (``wire.v1.messages``), with what else is known of it. An answer ends with the
message that brings it to ``limits.LOOK_BYTES``; whoever wants many messages has their bodies cut.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Meta

from veilmq.core import limits, properties
from veilmq.core.limits import Range
from veilmq.core.looks import (
    LookAtLeases,
    LookAtQueue,
    MessageState,
    Peek,
    Peeked,
    PeekedMessage,
    SeenLease,
    SeenMessage,
)
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import id_text
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import INVALID_REQUEST, json_reply
from veilmq.wire.v1.messages import texts, types
from veilmq.wire.v1.request import ApiRequest, from_query

Looked = TypeVar("Looked", SeenMessage, PeekedMessage)
State = Literal["visible", "in_flight", "delayed"]

_STATES: dict[State, MessageState] = {
    "visible": MessageState.VISIBLE,
    "in_flight": MessageState.IN_FLIGHT,
    "delayed": MessageState.DELAYED,
}
_POSITION = re.compile("[0-9]{1,19}")
_POSITIONS_END = 1 << 63
_WORDS = {state: word for word, state in _STATES.items()}


def _within(allowed: Range) -> Meta:
    return Meta(ge=allowed.minimum, le=allowed.maximum)


Messages = Annotated[int, _within(limits.LOOK_MESSAGES)]
Leases = Annotated[int, _within(limits.LOOK_LEASES)]
Characters = Annotated[int, Meta(ge=0, le=limits.MESSAGE_BYTES.maximum)]


class PeekFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of ``peek``, and some of the list's. Longer bodies are cut to ``body_characters_max``."""

    count: Messages = limits.LOOK_MESSAGES.default
    body_characters_max: Characters | None = None


class LookFields(PeekFields, frozen=True, kw_only=True):
    """The parameters of the list; of the messages that the others ask for, ``id`` shows one alone."""

    state: State | None = None
    receipts: bool = False
    id: UUID | None = None


class LeaseFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the list of leases; ``also`` are positions, apart by commas."""

    count: Leases = limits.LOOK_LEASES.default
    also: str = ""


class ShownMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What every look shows of a message; ``body_bytes`` is the size of the whole body.

    ``attributes`` and ``system_attributes`` are texts, binary ones in Base64; types other than String are in
    ``attribute_types``, which is null where there are none. Instants are milliseconds since the epoch.
    """

    id: str
    body: str
    body_bytes: int
    attributes: dict[str, str]
    attribute_types: dict[str, str] | None
    system_attributes: dict[str, str]
    group: str | None
    dedup_id: str | None
    priority: int
    sent_at_ms: int
    first_received_at_ms: int | None
    receive_count: int


class ListedMessage(ShownMessage, frozen=True, kw_only=True):
    """A message with its state; see ``core.looks.SeenMessage``. ``receipt`` is null where none was asked for."""

    state: State
    visible_at_ms: int | None
    received_at_ms: int | None
    receipt: str | None


class PeekedRow(ShownMessage, frozen=True, kw_only=True):
    """A visible message; ``source`` is the full name of the queue that a dead letter came from."""

    source: str | None


class ListedMessages(msgspec.Struct, frozen=True):
    """Messages; ``is_cut`` where there are more that would have made the answer too long."""

    messages: list[ListedMessage]
    is_cut: bool


class PeekedMessages(msgspec.Struct, frozen=True):
    """The same of a peek."""

    messages: list[PeekedRow]
    is_cut: bool


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A message in flight, by its lease: ``core.looks.SeenLease``. The position is a text, as it may be long."""

    message_id: str
    position: str
    generation: int
    received_at_ms: int
    visible_at_ms: int
    receive_count: int
    extensions: int | None
    group: str | None


class ListedLeases(msgspec.Struct, frozen=True):
    """The leases that end first, those first; behind them what else was asked for and is still in the queue."""

    leases: list[Lease]


def list_messages(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Show messages without receiving them: those sent first, or those of one state in the order of its instants."""
    fields = from_query(request.query, LookFields)
    state = None if fields.state is None else _STATES[fields.state]
    command = LookAtQueue(
        queue=request.queue,
        count=fields.count,
        state=state,
        receipts=fields.receipts,
        id=None if fields.id is None else fields.id.bytes,
        bytes_max=limits.LOOK_READ_BYTES,
    )

    def answer(seen: list[SeenMessage]) -> Reply:
        shown, is_cut = _bounded(seen, fields)
        return json_reply(200, ListedMessages([_listed(*each) for each in shown], is_cut))

    return ApiCall(command, answer)


def peek(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Show what a receive would give now, in that order, without receiving it."""
    fields = from_query(request.query, PeekFields)

    def answer(peeked: Peeked) -> Reply:
        shown, is_cut = _bounded(peeked.messages, fields)
        rows = [PeekedRow(source=each.source, **_fields(each, body)) for each, body in shown]
        return json_reply(200, PeekedMessages(rows, is_cut))

    return ApiCall(Peek(queue=request.queue, count=fields.count, bytes_max=limits.LOOK_READ_BYTES), answer)


def list_leases(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Show the leases of a queue that end first: what was received and is in flight."""
    fields = from_query(request.query, LeaseFields)
    return ApiCall(LookAtLeases(queue=request.queue, count=fields.count, also=_positions(fields.also)), _leases)


def _positions(text: str) -> tuple[int, ...]:
    """Return the positions that ``text`` has; raises ``SqsError``."""
    texts = text.split(",") if text else []
    if len(texts) > limits.LOOK_ALSO_MAX:
        raise SqsError(INVALID_REQUEST, f"also: may be {limits.LOOK_ALSO_MAX} positions at once.")
    if not all(_POSITION.fullmatch(each) and int(each) < _POSITIONS_END for each in texts):
        raise SqsError(INVALID_REQUEST, "also: must be positions as a list of leases tells them, apart by commas.")
    return tuple(map(int, texts))


def _leases(seen: list[SeenLease]) -> Reply:
    return json_reply(200, ListedLeases([_lease(each) for each in seen]))


def _lease(seen: SeenLease) -> Lease:
    return Lease(
        message_id=id_text(seen.message_id),
        position=str(seen.position),
        generation=seen.generation,
        received_at_ms=seen.received_at_ms,
        visible_at_ms=seen.visible_at_ms,
        receive_count=seen.receive_count,
        extensions=seen.extensions,
        group=seen.group,
    )


def _bounded(messages: Sequence[Looked], fields: PeekFields) -> tuple[list[tuple[Looked, str]], bool]:
    """Return the messages that an answer holds, each with as much of its body as was asked for; and if more may be left
    out, here or by the engine.
    """
    shown: list[tuple[Looked, str]] = []
    size_bytes = read_bytes = 0
    for message in messages:
        if size_bytes >= limits.LOOK_BYTES:
            return shown, True
        body = message.body[: fields.body_characters_max]
        shown.append((message, body))
        size_bytes += len(body.encode()) + len(message.properties)
        read_bytes += len(message.body.encode())
    return shown, read_bytes >= limits.LOOK_READ_BYTES


def _listed(message: SeenMessage, body: str) -> ListedMessage:
    return ListedMessage(
        state=_WORDS[message.state],
        visible_at_ms=message.visible_at_ms,
        received_at_ms=message.received_at_ms,
        receipt=message.receipt,
        **_fields(message, body),
    )


def _fields(message: SeenMessage | PeekedMessage, body: str) -> dict[str, Any]:
    """Return the fields of ``ShownMessage``."""
    carried = properties.decode(message.properties)
    return {
        "id": id_text(message.id),
        "body": body,
        "body_bytes": len(message.body.encode()),
        "attributes": texts(carried.attributes),
        "attribute_types": types(carried.attributes),
        "system_attributes": texts(carried.system),
        "group": carried.group,
        "dedup_id": carried.dedup_id,
        "priority": message.priority,
        "sent_at_ms": message.sent_at_ms,
        "first_received_at_ms": message.first_received_at_ms,
        "receive_count": message.receive_count,
    }

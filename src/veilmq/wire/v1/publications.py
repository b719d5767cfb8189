"""The routes of publications: the fields of each request, and the command that they make."""

from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from veilmq.core import limits, publications
from veilmq.core.commands import NewMessage
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import ARROW_MISSING, INVALID_REQUEST, json_reply
from veilmq.wire.v1.outgoing import Outgoing, OutgoingRow
from veilmq.wire.v1.request import ApiRequest, from_json, from_query

ARROW_TYPE = b"application/vnd.apache.arrow.stream"

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Rate = Annotated[int, Meta(ge=limits.PUBLISH_PER_S.minimum, le=limits.PUBLISH_PER_S.maximum)]
Attempts = Annotated[list[tuple[Name, Count]], Meta(max_length=limits.PUBLISH_ATTEMPTS_MAX)]


class BatchFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of ``abandon``, and of all others."""

    writer: Name
    batch: Count


class StageFields(BatchFields, frozen=True, kw_only=True):
    """The parameters of ``stage``; the messages are the body."""

    attempt: Name
    part: Annotated[int, Meta(ge=0, le=2**31)]


class PublishFields(BatchFields, frozen=True, kw_only=True):
    """The fields of ``publish``: ``attempts`` are pairs of a name and a number of messages."""

    attempts: Attempts
    messages_per_s_max: Rate | None = None


class MessagesFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``stage`` where it is JSON."""

    messages: Annotated[list[OutgoingRow], Meta(max_length=limits.STAGE_MESSAGES_MAX)]


class NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of the list: none."""


def stage(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Keep messages for a later publication."""
    fields = asdict(from_query(request.query, StageFields))
    outgoing = Outgoing(queue=request.queue, caller=context.caller)
    messages = _read(request, outgoing)
    size_bytes = sum([message.size_bytes for message in messages])
    if size_bytes > limits.STAGE_BYTES_MAX:
        raise SqsError(
            INVALID_REQUEST,
            f"{size_bytes:,} bytes of messages are too many for one call; send {limits.STAGE_BYTES_MAX:,} at the most.",
        )
    return ApiCall(publications.Stage(queue=request.queue, messages=messages, **fields))


def _read(request: ApiRequest, outgoing: Outgoing) -> tuple[NewMessage, ...]:
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != ARROW_TYPE:
        return outgoing.from_rows(from_json(request.body, MessagesFields).messages)
    try:
        from veilmq.wire.v1 import arrow_rows  # noqa: PLC0415 (an extra)
    except ImportError:
        raise SqsError(ARROW_MISSING, "The server has no pyarrow: install veilmq[arrow] there, or send JSON.") from None
    return arrow_rows.messages(request.body, outgoing)


def publish(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Send what was staged, once."""
    fields = from_json(request.body, PublishFields)
    command = publications.Publish(
        queue=request.queue,
        writer=fields.writer,
        batch=fields.batch,
        attempts=tuple(fields.attempts),
        messages_per_s_max=fields.messages_per_s_max,
    )
    return ApiCall(command)


def abandon(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Drop what is staged for a batch."""
    return ApiCall(publications.Abandon(queue=request.queue, **asdict(from_json(request.body, BatchFields))))


def _writers(views: list[publications.WriterView]) -> Reply:
    return json_reply(200, {"writers": views})


def list_writers(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Tell the writers of a queue, as ``{"writers": [...]}``."""
    from_query(request.query, NoFields)
    return ApiCall(publications.ListWriters(queue=request.queue), _writers)

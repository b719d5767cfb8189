"""The routes of publications: the fields of each request, and the command that they make."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from veilmq.core import limits, publications
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import ARROW_MISSING, json_reply
from veilmq.wire.v1.outgoing import Outgoing, OutgoingRow, Pieces, in_pieces
from veilmq.wire.v1.request import ApiRequest, from_json, from_query
from veilmq.wire.v1.staging import BulkStage

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
    first = publications.Stage(queue=request.queue, messages=(), **fields)
    return ApiCall(BulkStage(first=first, read=_reader(request, Outgoing(queue=request.queue, caller=context.caller))))


def _reader(request: ApiRequest, outgoing: Outgoing) -> Callable[[], Pieces]:
    kind = request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if kind != ARROW_TYPE:
        return partial(_read_json, request.body, outgoing)
    if find_spec("pyarrow") is None:
        raise SqsError(ARROW_MISSING, "The server has no pyarrow: install veilmq[arrow] there, or send JSON.")
    return partial(_read_arrow, request.body, outgoing)


def _read_json(body: bytes, outgoing: Outgoing) -> Pieces:
    rows = from_json(body, MessagesFields).messages
    return in_pieces(len(rows), lambda first, end: outgoing.from_rows(rows[first:end]))


def _read_arrow(body: bytes, outgoing: Outgoing) -> Pieces:
    """Read Arrow; the first time imports pyarrow, which is an extra and takes its time."""
    from veilmq.wire.v1 import arrow_rows  # noqa: PLC0415

    return arrow_rows.messages(body, outgoing)


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

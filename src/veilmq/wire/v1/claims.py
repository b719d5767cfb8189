"""The routes of claims: the fields of each request, and the command that they make.

Fields are those of the commands of ``core.claims``, without the queue, which is in the path. What is out of range or
unknown is refused here, so that an engine may rely on it.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from veilmq.core import claims, limits
from veilmq.core.limits import Range
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1 import reads
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import ARROW_MISSING, json_reply
from veilmq.wire.v1.request import ApiRequest, from_json, from_query


def _within(allowed: Range) -> Meta:
    return Meta(ge=allowed.minimum, le=allowed.maximum)


Source = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]
Consumer = Annotated[str, Meta(pattern=r"\A[^\x00-\x1f\x7f]{0,256}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[int, Meta(ge=1, le=2**62)]
Hold = Annotated[int, _within(limits.CLAIM_HOLD_S)]
Lease = Annotated[int, _within(limits.CLAIM_LEASE_S)]
Messages = Annotated[int, _within(limits.CLAIM_MESSAGES)]
Wait = Annotated[int, _within(limits.SQS_RECEIVE_WAIT_S)]
Cursor = Annotated[str, Meta(max_length=64)]


class Fields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The root of what requests have."""

    source: Source


class OpenFields(Fields, frozen=True, kw_only=True):
    """The fields of ``open``."""

    consumer: Consumer = ""
    takeover: bool = False
    hold_s: Hold = limits.CLAIM_HOLD_S.default
    lease_s: Lease = limits.CLAIM_LEASE_S.default


class ClaimFields(Fields, frozen=True, kw_only=True):
    """The fields of ``claim``; ``wait_s`` is how long to wait for a first message."""

    epoch: Count
    number: Number
    messages_max: Messages = limits.CLAIM_MESSAGES.default
    shard_messages: Messages = limits.CLAIM_SHARD_MESSAGES
    bytes_max: Annotated[int, _within(limits.CLAIM_BYTES)] | None = None
    wait_s: Wait = 0


class HeartbeatFields(Fields, frozen=True, kw_only=True):
    """The fields of ``heartbeat``."""

    epoch: Count
    lease_s: Lease | None = None
    hold_s: Hold | None = None


class AcknowledgeFields(Fields, frozen=True, kw_only=True):
    """The fields of ``acknowledge``; 0 acknowledges nothing."""

    epoch: Count
    number: Count


class ReadFields(Fields, frozen=True, kw_only=True):
    """The parameters of ``read``."""

    number: Number
    shard: Count = 0
    cursor: Cursor = ""
    format: Literal["arrow", "json"] = "json"


class ReleaseFields(Fields, frozen=True, kw_only=True):
    """The fields of ``release``."""

    number: Number


class EvictFields(Fields, frozen=True, kw_only=True):
    """The fields of ``evict``; ``message`` is an id as a UUID is written."""

    number: Number
    message: UUID


class NoFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of the list: none."""


def open_source(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Begin a new epoch of a source."""
    return ApiCall(claims.OpenSource(queue=request.queue, **asdict(from_json(request.body, OpenFields))))


def claim(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Bind a claim, or tell what it has; waits for a message if asked to."""
    fields = asdict(from_json(request.body, ClaimFields))
    wait_s = fields.pop("wait_s")
    return ApiCall(claims.Claim(queue=request.queue, **fields), wait_s=wait_s)


def heartbeat(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Renew lease and hold of a source."""
    return ApiCall(claims.Heartbeat(queue=request.queue, **asdict(from_json(request.body, HeartbeatFields))))


def acknowledge(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Delete the messages of all open claims up to a number."""
    return ApiCall(claims.AcknowledgeClaims(queue=request.queue, **asdict(from_json(request.body, AcknowledgeFields))))


def read(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Read messages of one shard of a claim, as many as one answer holds."""
    fields = asdict(from_query(request.query, ReadFields))
    kind = _WRITERS[fields.pop("format")]
    queue = request.queue.partition("/")[2]
    return ApiCall(
        reads.BulkRead(first=claims.ReadClaim(queue=request.queue, **fields), writer=kind(queue)), reads.answer
    )


def release(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Give the messages of a claim back."""
    return ApiCall(claims.ReleaseClaim(queue=request.queue, **asdict(from_json(request.body, ReleaseFields))))


def evict(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Move one message of a claim to the dead-letter queue."""
    fields = from_json(request.body, EvictFields)
    command = claims.EvictMessage(
        queue=request.queue, source=fields.source, number=fields.number, message=fields.message.bytes
    )
    return ApiCall(command)


def close(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Release all claims of a source and forget it."""
    return ApiCall(claims.CloseSource(queue=request.queue, **asdict(from_json(request.body, Fields))))


def _json(queue: str) -> Callable[[], reads.Writer]:
    return partial(reads.JsonWriter, queue)


def _arrow(queue: str) -> Callable[[], reads.Writer]:
    if find_spec("pyarrow") is None:
        raise SqsError(ARROW_MISSING, _NO_ARROW)
    return partial(_arrow_writer, queue)


def _arrow_writer(queue: str) -> reads.Writer:
    """Return a writer; the first one imports pyarrow, which is an extra and takes its time."""
    from veilmq.wire.v1.arrow import ArrowWriter  # noqa: PLC0415

    return ArrowWriter(queue)


_WRITERS: dict[str, Callable[[str], Callable[[], reads.Writer]]] = {"arrow": _arrow, "json": _json}
_NO_ARROW = (
    "This server has no pyarrow, which writes Arrow: ask for format=json, or have its operator "
    "pip install 'veilmq[arrow]'."
)


def _sources(views: list[claims.SourceView]) -> Reply:
    return json_reply(200, {"sources": views})


def list_sources(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Tell the sources of a queue, as ``{"sources": [...]}``."""
    from_query(request.query, NoFields)
    return ApiCall(claims.ListSources(queue=request.queue), _sources)

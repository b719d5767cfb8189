"""The route that forwards received messages to other queues."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from veilmq.core.errors import VeilmqError
from veilmq.core.forwards import Forward, Forwarded, ForwardEntry
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX
from veilmq.wire.sqs.context import REGION_PATTERN, RequestContext
from veilmq.wire.sqs.names import id_text
from veilmq.wire.sqs.parameters import sequence_text
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1.call import ApiCall
from veilmq.wire.v1.errors import failure, json_reply
from veilmq.wire.v1.request import NAMES, ApiRequest, from_json

_NAME = rf"\A([0-9]{{12}}(@{REGION_PATTERN})?/)?{NAMES}\Z"

Target = Annotated[str, Meta(pattern=_NAME)]


_SENDABLE = r"\A[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*\Z"

Reason = Annotated[str, Meta(min_length=1, max_length=2_000, pattern=_SENDABLE)]
ReasonName = Annotated[str, Meta(pattern=r"\Aveilmq-[a-z-]{1,50}\Z")]


class EntryFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message; ``target`` is the name of a queue of the intake's account, or ``account/name``.

    With ``reasons`` it goes as a dead letter of the intake: they are added to its attributes.
    """

    receipt: str
    target: Target
    reasons: dict[ReasonName, Reason] | None = None


class ForwardFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fields of ``forward``; without entries it tells that the server can."""

    entries: Annotated[list[EntryFields], Meta(max_length=SQS_BATCH_ENTRIES_MAX)]


class ForwardedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message that is in its target now; see ``core.forwards.Forwarded``."""

    id: str
    sequence_number: str | None = None
    duplicate: bool = False


def forward(request: ApiRequest, context: RequestContext) -> ApiCall:
    """Move messages in flight to other queues, each by itself: ``{"entries": [...]}``, in order."""
    entries = from_json(request.body, ForwardFields).entries
    account = request.queue.partition("/")[0]
    wanted = [
        ForwardEntry(receipt=each.receipt, target=_full(each.target, account), reasons=each.reasons) for each in entries
    ]
    return ApiCall(Forward(queue=request.queue, entries=tuple(wanted)), _answer)


def _full(name: str, account: str) -> str:
    return name if "/" in name else f"{account}/{name}"


def _answer(results: list[Forwarded | VeilmqError]) -> Reply:
    return json_reply(200, {"entries": [_entry(each) for each in results]})


def _entry(result: Forwarded | VeilmqError) -> Any:
    if isinstance(result, VeilmqError):
        status, told = failure(result)
        return told | {"status": status}
    return ForwardedEntry(
        id=id_text(result.id), sequence_number=sequence_text(result.sequence), duplicate=result.duplicate
    )

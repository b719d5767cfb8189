"""What an error is answered with: a status, the name of its class, its sentence, and what of it programs may want.

Errors of core are rows here; a row names the attributes that the answer tells. What is refused before it is a command
(bad input, an unknown key, a policy) is a ``SqsError``, as everywhere on the wire, and answers with its older code.
"""

from typing import Any, Self

import msgspec

from veilmq.core import errors as core
from veilmq.core.errors import VeilmqError
from veilmq.wire.sqs.errors import Code, SqsError
from veilmq.wire.sqs.reply import Reply

DEAD_LETTER_QUEUE_REFUSED = Code("veilmq#DeadLetterQueueRefused", "DeadLetterQueueRefused")
INVALID_REQUEST = Code("veilmq#InvalidRequest", "InvalidRequest")
UNKNOWN_ROUTE = Code("veilmq#UnknownRoute", "UnknownRoute", 404)
STAGE_REFUSED = Code("veilmq#StageRefused", "StageRefused")
ARROW_MISSING = Code("veilmq#ArrowMissing", "ArrowMissing", 501, "Receiver")

CODES = (INVALID_REQUEST, UNKNOWN_ROUTE, STAGE_REFUSED, ARROW_MISSING)
"""What any request may be answered with, beside the errors of authentication and permissions."""


class RowRefused(SqsError):
    """One of several messages cannot be sent, so none is taken: ``core.errors.StageRefused``, seen on the wire."""

    def __init__(self, index: int, reason: SqsError) -> None:
        """``index`` counts the messages of the request from 0."""
        super().__init__(STAGE_REFUSED, f"Message {index} was refused, and nothing staged: {reason.message}")
        self.index = index
        self.reason = reason

    def behind(self, count: int) -> Self:
        """Return the error for the same message behind ``count`` others."""
        return type(self)(self.index + count, self.reason)


ANSWERS: dict[type[VeilmqError], tuple[int, tuple[str, ...]]] = {
    core.QueueNotFound: (404, ("queue",)),
    core.SourceNotFound: (404, ("source",)),
    core.ShardNotFound: (404, ("shard", "shards")),
    core.MessageNotClaimed: (404, ("number",)),
    core.EpochFenced: (409, ("epoch", "current")),
    core.ClaimGap: (409, ("number", "last")),
    core.ConsumerTaken: (409, ("consumer", "source")),
    core.StageMissing: (409, ("attempt", "messages", "wanted")),
    core.ClaimAcknowledged: (410, ("number", "acknowledged")),
    core.ClaimLost: (410, ("number",)),
    core.ClaimReleased: (410, ("number",)),
    core.GroupHeld: (409, ()),
    core.ReceiptEnded: (410, ("state",)),
    core.ReceiptInvalid: (400, ()),
    core.DestinationRefused: (400, ("queue",)),
    core.MessageTooLong: (400, ("bytes_max",)),
    core.StageRefused: (400, ("index", "why", "bytes_max")),
    core.CursorInvalid: (400, ()),
    core.DeadLetterQueueRefused: (400, ("queue",)),
    core.SettingsConflict: (400, ("setting",)),
    core.QueueExists: (409, ("queue", "setting")),
    core.QueueDeletedRecently: (409, ("queue", "pause_s")),
    core.StoreFull: (503, ()),
    core.StoreUnavailable: (503, ()),
    core.OutcomeUnknown: (503, ()),
    core.ShuttingDown: (503, ()),
    core.InternalError: (500, ()),
}
"""Error of core → the status of its answer, and the attributes that are fields of it."""

_JSON = b"Content-Type: application/json\r\n"
_encode = msgspec.json.Encoder().encode


def json_reply(status: int, value: Any, *, headers: bytes = b"", code: str = "OK") -> Reply:
    """Return ``value`` as a reply; ``headers`` are whole lines, ``code`` the name under which it is counted."""
    return Reply(status, _JSON + headers, _encode(value), code)


def encode_failure(error: VeilmqError) -> Reply:
    """Return the reply for an error of core."""
    status, told = failure(error)
    return json_reply(status, told, code=told["code"])


def failure(error: VeilmqError) -> tuple[int, dict[str, Any]]:
    """Return status and members of an error of core; one that no row knows is a defect, and says no more than that."""
    known = ANSWERS.get(type(error))
    if known is None:
        error, known = core.InternalError(), ANSWERS[core.InternalError]
    status, fields = known
    told = {"code": type(error).__name__, "message": str(error)}
    return status, told | {field: getattr(error, field) for field in fields}


def encode_error(error: SqsError) -> Reply:
    """Return the reply for a request that was refused."""
    code = error.code.query
    told: dict[str, Any] = {"code": code, "message": error.message}
    if isinstance(error, RowRefused):
        told |= {"index": error.index, "why": error.reason.code.query}
    return json_reply(error.code.status, told, code=code)

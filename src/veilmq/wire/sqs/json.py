"""AWS JSON 1.0: the codec of today's AWS SDKs.

The action's name comes from the header ``X-Amz-Target: AmazonSQS.<name>`` (the server takes it apart), the request is
a JSON object, and so is the reply. An error names its shape in ``__type`` and carries the older Query code in
``x-amzn-query-error``: SQS declares itself compatible with its Query protocol, so AWS SDKs take the error's code from
that header and its exception class from ``__type``.

Requests are decoded straight into their structs by decoders that are made once, large ones after a look at how many
values they hold (``widths``). What cannot be converted is answered
with SerializationException in the words of AWS's own framework, and the place in the document.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.core.commands import Command
from veilmq.core.limits import JSON_LARGE_BODY_BYTES
from veilmq.wire.sqs import request_id
from veilmq.wire.sqs.actions import ACTIONS, unknown_action
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import INVALID_ADDRESS, NO_QUEUE, QUEUE_DOES_NOT_EXIST, SERIALIZATION, SqsError
from veilmq.wire.sqs.mismatch import explain
from veilmq.wire.sqs.plan import Plan, Respond
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.sqs.shapes import Shape
from veilmq.wire.sqs.widths import Narrow, narrowing

CONTENT_TYPE = b"application/x-amz-json-1.0"

_EMPTY = b"{}"
_encode = msgspec.json.Encoder().encode

_HEADERS = b"Content-Type: %b\r\nx-amzn-RequestId: %b" % (CONTENT_TYPE, request_id.BEGINNING.encode()) + b"%012x\r\n"
_request_numbers = request_id.ENDINGS

_Decode = Callable[[bytes], Shape]
_MakePlan = Callable[[Any, RequestContext], Plan]
_ROWS: dict[str | bytes, tuple[_Decode, _MakePlan, Narrow]] = {}
for _row in ACTIONS.values():
    _ROWS[_row.name] = _ROWS[_row.name.encode()] = (
        msgspec.json.Decoder(_row.request).decode,
        _row.plan,
        narrowing(_row.request),
    )


class JsonCall(msgspec.Struct, frozen=True, gc=False):
    """A request that was understood; see ``call.Call``."""

    command: Command
    wait_s: int | None
    respond: Respond

    def encode(self, result: Any) -> Reply:
        """Return the reply for the command's result or its ``VeilmqError``."""
        try:
            response = self.respond(result)
        except SqsError as error:
            return encode_error(error)
        body = _EMPTY if response is None else _encode(response)
        return Reply(200, _HEADERS % next(_request_numbers), body)


def decode(action: str | bytes, body: bytes, context: RequestContext) -> JsonCall:
    """Return what ``body`` asks of ``action``; raises ``SqsError``, and nothing else, whatever the bytes are."""
    row = _ROWS.get(action)
    if row is None:
        raise unknown_action(action)
    decode_request, make_plan, narrow = row
    try:
        request = decode_request(body if len(body) <= JSON_LARGE_BODY_BYTES else narrow(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(SERIALIZATION, _why(error, body)) from None
    plan = make_plan(request, context)
    return JsonCall(plan.command, plan.wait_s, plan.respond)


def encode_error(error: SqsError) -> Reply:
    """Return the reply for a request that was refused. What names no queue names one that does not exist."""
    if error.code is INVALID_ADDRESS:
        error = SqsError(QUEUE_DOES_NOT_EXIST, f"{NO_QUEUE} {error.message}")
    code = error.code
    headers = _HEADERS % next(_request_numbers) + f"x-amzn-query-error: {code.query};{code.fault}\r\n".encode()
    return Reply(code.status, headers, _encode({"__type": code.shape, "message": error.message}), code.name)


_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}", re.DOTALL
)


def _why(error: Exception, body: bytes) -> str:
    if isinstance(error, RecursionError):
        return "The request body is nested too deeply."
    if isinstance(error, UnicodeDecodeError):
        return "The request body is not valid UTF-8."
    return explain(error) or _unreadable(error, body)


def _unreadable(error: Exception, body: bytes) -> str:
    """Say what is no JSON; the decoder calls an empty body and some of the halves of pairs truncated."""
    if not body.strip():
        return "The request body is empty; it must be a JSON object."
    doubtful = "surrogate" in str(error) or "truncated" in str(error)
    half = _HALF.search(body.replace(rb"\\", b"  ")) if doubtful else None
    if half is not None:
        return (
            f"The request body cannot be read: {half[0].decode()} at byte {half.start()} is half of a surrogate pair, "
            "and no character without the other half."
        )
    return f"The request body cannot be read: {error}."

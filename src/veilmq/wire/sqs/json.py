"""AWS JSON 1.0, the protocol of current AWS SDKs.

The server takes the name of the action from the header ``X-Amz-Target: AmazonSQS.<name>``. Request and reply are JSON
objects. An error has its shape in ``__type`` and the older Query code in ``x-amzn-query-error``: SQS declares itself
compatible with its Query protocol, so AWS SDKs take the error code from that header and the exception class from
``__type``.

Each request is decoded directly into its struct; the values of a large request are counted first. The error for values
that cannot be converted is SerializationException in the words of AWS's framework, with the location in the document.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from veilmq.core import limits
from veilmq.core.errors import VeilmqError
from veilmq.wire.exchange import REQUEST_IDS, Plan, Reply, RequestContext
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.actions import ACTIONS, unknown_action
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.members import Request

CheckLargeBody = Callable[[bytes], bytes]
"""Body → the same object without unknown members.

Raises ``SqsError`` if a member has too many values, and ``MsgspecError`` if the body is not valid.
"""

_TOO_MANY: dict[str, tuple[int, Callable[[str], SqsError]]] = {
    "Entries": (limits.SQS_BATCH_ENTRIES_MAX, errors.too_many_entries),
    "MessageAttributes": (limits.SQS_MESSAGE_ATTRIBUTES_MAX, errors.too_many_attributes),
}
_PUNCTUATION = re.compile(rb'(?>(?:[^"\[\]{},]++|"[^"]*+")*)([\[\]{},])')
_OPENING = (b"[", b"{")
_ABSENT = msgspec.Raw()


def large_body_check(request: type[Request]) -> CheckLargeBody:
    """Return a function that checks a body of ``request`` before it is decoded into objects."""
    fields = msgspec.structs.fields(request)
    members = msgspec.defstruct(
        "Members",
        [(field.name, msgspec.Raw, _ABSENT) for field in fields],
        rename={field.name: field.encode_name for field in fields},
        omit_defaults=True,
    )
    decode_members = msgspec.json.Decoder(members).decode
    encode_members = msgspec.json.Encoder().encode

    def check_large_body(body: bytes) -> bytes:
        decoded = decode_members(body)
        for field in fields:
            value = getattr(decoded, field.name)
            if memoryview(value)[:1] in _OPENING:
                _refuse_too_many_values(field.encode_name, bytes(value))
        return encode_members(decoded)

    return check_large_body


def _refuse_too_many_values(member: str, value: bytes) -> None:
    """Raise ``SqsError`` if ``value``, a list or a map, has more values than any valid request."""
    depth = items = 0
    # Without escapes, a string ends at the next quotation mark.
    plain = value.replace(rb"\\", b"").replace(rb"\"", b"")
    for count, match in enumerate(_PUNCTUATION.finditer(plain)):
        if count == limits.JSON_PUNCTUATION_MAX:
            if member in _TOO_MANY:
                items_max, too_many = _TOO_MANY[member]
                if items > items_max:
                    raise too_many(f"more than {items}")
            raise errors.invalid(f"The parameter {member} holds more values than any valid request has; send fewer.")
        mark = match[1]
        if mark == b",":
            items += depth == 1
        else:
            depth += 1 if mark in _OPENING else -1


CONTENT_TYPE = b"application/x-amz-json-1.0"

_EMPTY = b"{}"
_encode = msgspec.json.Encoder().encode

_HEADERS = b"Content-Type: %b\r\nx-amzn-RequestId: " % CONTENT_TYPE

_ROWS: dict[bytes, tuple[Callable[[bytes], Request], Callable[[Any, RequestContext], Plan], CheckLargeBody]] = {
    name.encode(): (msgspec.json.Decoder(row.request).decode, row.request.plan, large_body_check(row.request))
    for name, row in ACTIONS.items()
}


def decode(action: bytes, body: bytes, context: RequestContext) -> Plan:
    """Decode a request of ``action``; raises only ``SqsError``, for any bytes."""
    row = _ROWS.get(action)
    if row is None:
        raise unknown_action(action)
    decode_request, make_plan, check_large_body = row
    try:
        request = decode_request(body if len(body) <= limits.JSON_LARGE_BODY_BYTES else check_large_body(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SqsError(errors.SERIALIZATION, _reason(error, body)) from None
    return make_plan(request, context)


def encode(plan: Plan, result: Any) -> Reply:
    """Return the reply for the result or the ``VeilmqError`` of the command of ``plan``."""
    try:
        response = plan.respond(result)
    except SqsError as error:
        return encode_error(error)
    headers = b"".join((_HEADERS, next(REQUEST_IDS), b"\r\n"))
    return Reply(200, headers, _EMPTY if response is None else _encode(response))


def encode_error(error: SqsError | VeilmqError) -> Reply:
    """Return an error reply; an invalid queue address becomes QueueDoesNotExist, as on AWS."""
    if isinstance(error, VeilmqError):
        error = errors.from_core(error)
    if error.code is errors.INVALID_ADDRESS:
        error = SqsError(errors.QUEUE_DOES_NOT_EXIST, f"{errors.NO_SUCH_QUEUE} {error.message}")
    code = error.code
    query_error = f"x-amzn-query-error: {code.query};{code.fault}\r\n".encode()
    headers = b"".join((_HEADERS, next(REQUEST_IDS), b"\r\n", query_error))
    return Reply(code.status, headers, _encode({"__type": code.shape, "message": error.message}), code.name)


_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}", re.DOTALL
)


def _reason(error: Exception, body: bytes) -> str:
    """Return the error text. For an empty body and some lone surrogates, the decoder's own would be "truncated"."""
    if isinstance(error, RecursionError):
        return "The request body is nested too deeply."
    if isinstance(error, UnicodeDecodeError) or str(error).startswith("Invalid UTF-8"):  # as msgspec 0.23 raises
        return "The request body is not valid UTF-8."
    if reason := errors.conversion_error(error):
        return reason
    if not body.strip():
        return "The request body is empty; it must be a JSON object."
    may_be_surrogate = "surrogate" in str(error) or "truncated" in str(error)
    surrogate = _LONE_SURROGATE.search(body.replace(rb"\\", b"  ")) if may_be_surrogate else None
    if surrogate is not None:
        return (
            f"The request body cannot be read: {surrogate[0].decode()} at byte {surrogate.start()} is half of a "
            "surrogate pair, and no character without the other half."
        )
    return f"The request body cannot be read: {error}."

"""From a request to its call, by the table of routes, and from an answer to the bytes of the reply.

The names of the headers leave as they stand here, byte for byte: SDKs look for them case-sensitively (reference,
section 0).
"""

from dataclasses import replace
from typing import Any

import msgspec

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.wire.smq import content_md5, request_id
from veilmq.wire.smq.errors import (
    INVALID_CONTENT_TYPE,
    INVALID_REQUEST_URL,
    INVALID_VERSION_HEADER,
    REFUSED,
    SmqError,
    from_core,
    from_sqs,
)
from veilmq.wire.smq.plan import Answer, Respond
from veilmq.wire.smq.request import VERSION, VERSION_HEADER, SmqRequest
from veilmq.wire.smq.routes import ROUTES
from veilmq.wire.smq.xml_writing import CONTENT_TYPE, document, element
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.reply import Reply

_XML = frozenset({b"text/xml", b"application/xml"})
_VERSION = b"x-mns-version: %b\r\n" % VERSION


class SmqCall(msgspec.Struct, frozen=True, gc=False):
    """A request that was understood; see ``wire.sqs.call.Call``. ``base_url`` is the host that errors name."""

    command: Command
    wait_s: int | None
    respond: Respond
    base_url: str

    def encode(self, result: Any) -> Reply:
        """Return the reply for the command's result or its ``VeilmqError``."""
        try:
            answer = self.respond(result)
        except SmqError as error:
            return encode_error(error, self.base_url)
        return _reply(answer, request_id.new())


def decode(action: bytes, request: SmqRequest, context: RequestContext) -> SmqCall:
    """Return what ``request`` asks of the route ``action``; raises ``SmqError``, and nothing else, whatever that is."""
    if request.flaw is not None:
        raise request.flaw
    _check_headers(request)
    content_md5.check(request.headers, request.body)
    route = ROUTES.get(action)
    if route is None:
        raise SmqError(INVALID_REQUEST_URL)
    plan = route.plan(request, context)
    return SmqCall(plan.command, plan.wait_s, plan.respond, context.base_url)


def _check_headers(request: SmqRequest) -> None:
    """Raise ``SmqError`` for another version of the API, and for a body that says that it is no XML."""
    if request.headers.get(VERSION_HEADER, VERSION) != VERSION:
        raise SmqError(INVALID_VERSION_HEADER)
    kind = request.headers.get(b"content-type")
    if request.body and kind is not None and kind.partition(b";")[0].strip().lower() not in _XML:
        raise SmqError(INVALID_CONTENT_TYPE)


def encode_error(error: SmqError | SqsError, base_url: str) -> Reply:
    """Return the reply for a request that was refused at ``base_url``, perhaps by what all protocols share."""
    refused = error if isinstance(error, SmqError) else from_sqs(error)
    identifier = request_id.new()
    told = {"Code": refused.code.name, "Message": refused.message, "RequestId": identifier, "HostId": base_url}
    body = document("Error", "".join(element(name, text) for name, text in told.items()))
    return _reply(Answer(refused.code.status, body, code=refused.code.name), identifier)


def encode_failure(error: VeilmqError, base_url: str) -> Reply:
    """Return the reply for an error of core."""
    return encode_error(from_core(error), base_url)


def encode_refusal(status: int, text: str, base_url: str) -> Reply:
    """Return the reply for a request that was refused with an HTTP status before it was read as one of SMQ."""
    return encode_error(SmqError(replace(REFUSED.get(status, INVALID_REQUEST_URL), status=status), text), base_url)


def _reply(answer: Answer, identifier: str) -> Reply:
    headers = CONTENT_TYPE if answer.body else b""
    headers += b"x-mns-request-id: %b\r\n" % identifier.encode() + _VERSION
    if answer.location:
        headers += b"Location: %b\r\n" % answer.location.encode()
    return Reply(answer.status, headers, answer.body, answer.code)

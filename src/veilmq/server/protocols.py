"""The protocols that one port serves, as a table.

The first row that recognises a request by its head serves it.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from veilmq.core.errors import InternalError
from veilmq.server.http_parser import Refusal, RenderedReply, Request, render_text
from veilmq.server.metrics import Metrics
from veilmq.wire.exchange import Plan, Reply, RequestContext
from veilmq.wire.smq import errors as smq_errors
from veilmq.wire.smq import request as smq_request
from veilmq.wire.smq import routes as smq
from veilmq.wire.smq.signatures import Verifier as SmqVerifier
from veilmq.wire.sqs import json as sqs_json
from veilmq.wire.sqs import query as sqs_query
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.signatures import Verifier as SigV4Verifier
from veilmq.wire.v1 import request as v1
from veilmq.wire.v1.routes import ROUTES, route_key
from veilmq.wire.v1.routes import decode as decode_v1

log = logging.getLogger(__name__)

_FORM = b"application/x-www-form-urlencoded"


class Protocol(NamedTuple):
    """One protocol.

    ``recognises`` decides by method, target and headers. ``read`` returns the action's name and the input of
    ``decode``; ``None`` if the request names no action. ``decode`` may raise ``refused``; its context has the address
    that the client used. ``refuse`` encodes such errors, the ``SqsError`` of checks that all protocols share, and
    errors of core. ``encode`` makes the reply from a plan and its result; it may be called more than once. ``labels``
    has the names of actions in metrics; ``permissions``, by label, the action that policies check if its name differs.
    ``mark`` is a header that foreign pages cannot send, and that clients of the protocol send always or if they sign.
    """

    recognises: Callable[[Request], bool]
    read: Callable[[Request], tuple[bytes, Any] | None]
    decode: Callable[[bytes, Any, RequestContext], Plan]
    encode: Callable[[Any, Any], Reply]
    refused: type[Exception]
    refuse: Callable[[Any, str], Reply]
    verifier: type[SigV4Verifier | SmqVerifier]
    labels: dict[bytes, str]
    methods: frozenset[bytes] = frozenset({b"POST"})
    mark: bytes = b""
    permissions: Mapping[str, str] = {}


def _is_form(request: Request, untyped: bytes = _FORM) -> bool:
    """Return whether the body is a form; ``untyped`` is the type to assume without a Content-Type."""
    return request.headers.get(b"content-type", untyped).partition(b";")[0].strip().lower() == _FORM


SQS_JSON = Protocol(
    # AWS JSON services name the action in this header, but a form is Query even with it.
    recognises=lambda request: b"x-amz-target" in request.headers and not _is_form(request, b""),
    read=lambda request: (request.headers[b"x-amz-target"].removeprefix(b"AmazonSQS."), request.body),
    decode=sqs_json.decode,
    encode=sqs_json.encode,
    refused=SqsError,
    refuse=lambda error, _: sqs_json.encode_error(error),
    verifier=SigV4Verifier,
    labels={name.encode(): name for name in ACTIONS},
)


def _read_query(request: Request) -> tuple[bytes, Any] | None:
    form = sqs_query.form_of(request.target, request.body if _is_form(request) else b"")
    action = sqs_query.action_of(form)
    return None if action is None else (action, form)


def _is_query(request: Request) -> bool:
    return _is_form(request) or b"Action=" in request.target


def _query(recognises: Callable[[Request], bool], reply_format: sqs_query.ReplyFormat) -> Protocol:
    return SQS_JSON._replace(
        recognises=recognises,
        read=_read_query,
        decode=partial(sqs_query.decode, reply_format=reply_format),
        encode=lambda plan, result: plan.respond(result),
        refuse=lambda error, _: sqs_query.encode_error(error, reply_format),
        methods=frozenset({b"GET", b"POST"}),
        mark=b"x-amz-date",
    )


SQS_QUERY = _query(_is_query, sqs_query.XML)


def _reading(parse: Callable[..., Any], action_of: Callable[[Any], bytes]) -> Callable[[Request], tuple[bytes, Any]]:
    def read(request: Request) -> tuple[bytes, Any]:
        parsed = parse(request.method, request.target, request.headers, request.body)
        return action_of(parsed), parsed

    return read


SMQ = Protocol(
    recognises=lambda request: smq_request.is_smq(request.target, request.headers),
    read=_reading(smq_request.read_request, smq.route_of),
    decode=smq.decode,
    encode=lambda plan, result: plan.respond(result),
    refused=smq_errors.SmqError,
    refuse=smq.encode_error,
    verifier=SmqVerifier,
    labels={action: route.label for action, route in smq.ROUTES.items()},
    methods=frozenset({b"GET", b"PUT", b"POST", b"DELETE"}),
    mark=smq_request.VERSION_HEADER,
    permissions={route.label: route.permission for route in smq.ROUTES.values()},
)

PROTOCOLS = (
    SQS_JSON,
    SMQ,
    SQS_JSON._replace(
        recognises=lambda request: request.target.startswith(v1.PREFIX),
        read=_reading(v1.read_request, route_key),
        decode=decode_v1,
        encode=v1.ApiCall.encode,
        refuse=lambda error, _: v1.encode_error(error),
        labels={key: route.label for key, route in ROUTES.items()},
        methods=frozenset({b"GET", b"POST"}),
        permissions={route.label: route.permission for route in ROUTES.values()},
    ),
    _query(
        lambda request: (
            request.method == b"GET" and request.headers.get(b"accept") == b"application/json" and _is_query(request)
        ),
        sqs_query.JSON,
    ),
    SQS_QUERY,
)


def protocol_of(request: Request) -> Protocol | None:
    """Return the protocol of a request, whose body may not have arrived."""
    return next((protocol for protocol in PROTOCOLS if protocol.recognises(request)), None)


def render_refusal(refusal: Refusal, target: bytes, headers: Mapping[bytes, bytes], base_url: str) -> RenderedReply:
    """Return the reply to a request that is refused before its protocol reads it.

    SMQ clients get XML: one of their SDKs treats everything else as success. Others get a sentence.
    """
    if not smq_request.is_smq(target, headers):
        return render_text(refusal, headers)
    reply = smq.encode_refusal(refusal.status, refusal.text, base_url)
    return RenderedReply(refusal.extra_headers + reply.headers, reply.body)


class Exchange(msgspec.Struct, eq=False):
    """A recognised request; ``base_url`` is the address that the client used, ``plan`` the decoded request."""

    request: Request
    metrics: Metrics
    protocol: Protocol
    action: str
    started_s: float
    base_url: str = ""
    plan: Plan | None = None

    @property
    def permission(self) -> str:
        """The action that queue policies check."""
        return self.protocol.permissions.get(self.action, self.action)

    def done(self, result: Any) -> None:
        """Reply with the result or the ``VeilmqError`` of the command."""
        assert self.plan is not None, "only a decoded request reaches the store"
        try:
            reply = self.protocol.encode(self.plan, result)
        except Exception:
            log.exception("the reply to %s could not be encoded", self.action)
            reply = self.protocol.refuse(InternalError(), self.base_url)
        self.request.respond(reply.status, reply.headers, reply.body)
        self.metrics.count(self.action, reply.code, perf_counter() - self.started_s)

    def finish(self, result: Any) -> None:
        """Reply with the result, or with the ``Reply`` that refuses a parked poll."""
        if type(result) is Reply:
            self.reply(result)
        else:
            self.done(result)

    def reply(self, reply: Reply) -> None:
        """Write and count the reply."""
        self.request.respond(reply.status, reply.headers, reply.body)
        self.metrics.count(self.action, reply.code, perf_counter() - self.started_s)

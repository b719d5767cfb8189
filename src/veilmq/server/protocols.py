"""The protocols that one port speaks: a row each, which recognises its requests and takes them apart.

The first row that recognises a request by its head serves it. A new protocol is a new row.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from veilmq.core.errors import VeilmqError
from veilmq.server import authentication
from veilmq.server.http_parser import Refusal, Request, Worded, as_text
from veilmq.wire import smq
from veilmq.wire.exchange import Call, Reply, RequestContext
from veilmq.wire.sqs import json as sqs_json
from veilmq.wire.sqs import query as sqs_query
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.errors import ACCESS_DENIED, SqsError, from_core
from veilmq.wire.sqs.query import action_of, form_of
from veilmq.wire.v1.request import PREFIX, read_request
from veilmq.wire.v1.request import encode_error as encode_api_error
from veilmq.wire.v1.request import encode_failure as encode_api_failure
from veilmq.wire.v1.routes import ROUTES, route_key
from veilmq.wire.v1.routes import decode as decode_api


class Denial(Exception):
    """A caller may not do something to a queue; ``str()`` says who, what, to which queue, and why not."""

    def __init__(self, *, caller: str, action: str, queue: str, explicit: bool) -> None:
        """``caller`` and ``queue`` are ARNs, ``action`` is one of SQS; ``explicit``: a policy forbids it."""
        reason = (
            "with an explicit deny in a resource-based policy"
            if explicit
            else f"because no resource-based policy allows the sqs:{action} action"
        )
        super().__init__(f"User: {caller} is not authorized to perform: sqs:{action} on resource: {queue} {reason}")


_SQS_TARGET = b"AmazonSQS."
_FORM = b"application/x-www-form-urlencoded"


class Recognised(NamedTuple):
    """What a protocol has found in a request of its own: the action's name, and what ``decode`` is to read."""

    action: bytes
    content: Any


class Protocol(NamedTuple):
    """One protocol.

    ``recognises`` decides by method, target and headers whether a request is of this protocol; ``read`` looks into its
    body too, and returns ``None`` where that names no action. ``decode`` may raise ``refused``, which
    ``refuse`` answers, as it does the ``SqsError`` of what all protocols share; ``fail`` answers an error of ours
    before there is a call; both get the address that the client used. ``deny`` words what a policy forbids, to
    be refused. ``labels`` has the names under which actions are counted. ``methods`` are those of HTTP that it uses.
    ``mark`` is a header of its own that all its clients send, if there is one. ``permissions`` has, by label, the
    action on which policies decide, where that has another name. ``verifier`` makes what finds out who signed.
    """

    name: str
    recognises: Callable[[Request], bool]
    read: Callable[[Request], Recognised | None]
    decode: Callable[[bytes, Any, RequestContext], Call]
    refused: type[Exception]
    refuse: Callable[[Any, str], Reply]
    fail: Callable[[VeilmqError, str], Reply]
    deny: Callable[[Denial], Exception]
    verifier: authentication.Make
    labels: dict[bytes, str]
    methods: frozenset[bytes] = frozenset({b"POST"})
    mark: bytes = b""
    permissions: Mapping[str, str] = {}


def _sqs_denied(denial: Denial) -> SqsError:
    return SqsError(ACCESS_DENIED, str(denial))


def _is_sqs_json(request: Request) -> bool:
    """Every AWS JSON service names its action in this header; a form is Query all the same."""
    return b"x-amz-target" in request.headers and not _is_form(request.headers.get(b"content-type", b""))


def _is_form(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == _FORM


def _sqs_json(request: Request) -> Recognised:
    """Actions of other services are unknown here."""
    return Recognised(request.headers[b"x-amz-target"].removeprefix(_SQS_TARGET), request.body)


def _sqs_json_refuse(error: SqsError, base_url: str) -> Reply:
    return sqs_json.encode_error(error)


def _sqs_json_fail(error: VeilmqError, base_url: str) -> Reply:
    return sqs_json.encode_error(from_core(error))


SQS_JSON = Protocol(
    name="sqs-json",
    recognises=_is_sqs_json,
    read=_sqs_json,
    decode=sqs_json.decode,
    refused=SqsError,
    refuse=_sqs_json_refuse,
    fail=_sqs_json_fail,
    deny=_sqs_denied,
    verifier=authentication.sigv4,
    labels={name.encode(): name for name in ACTIONS},
)


def _is_sqs_query(request: Request) -> bool:
    """A form, what does not say what it is, and what names an action in its target."""
    return _is_form(request.headers.get(b"content-type", _FORM)) or b"Action=" in request.target


def _sqs_query(request: Request) -> Recognised | None:
    """A body counts if it is a form, or does not say what it is."""
    form = form_of(request.target, request.body if _is_form(request.headers.get(b"content-type", _FORM)) else b"")
    action = action_of(form)
    return None if action is None else Recognised(action, form)


def _sqs_query_refuse(error: SqsError, base_url: str, written: sqs_query.Format = sqs_query.XML) -> Reply:
    return sqs_query.encode_error(error, written)


def _sqs_query_fail(error: VeilmqError, base_url: str, written: sqs_query.Format = sqs_query.XML) -> Reply:
    return sqs_query.encode_error(from_core(error), written)


def _is_sqs_query_for_json(request: Request) -> bool:
    wants_json = request.method == b"GET" and request.headers.get(b"accept") == b"application/json"
    return wants_json and _is_sqs_query(request)


SQS_QUERY = Protocol(
    name="sqs-query",
    recognises=_is_sqs_query,
    read=_sqs_query,
    decode=sqs_query.decode,
    refused=SqsError,
    refuse=_sqs_query_refuse,
    fail=_sqs_query_fail,
    deny=_sqs_denied,
    verifier=authentication.sigv4,
    labels={name.encode(): name for name in ACTIONS},
    methods=frozenset({b"GET", b"POST"}),
)


SQS_QUERY_FOR_JSON = SQS_QUERY._replace(
    recognises=_is_sqs_query_for_json,
    decode=partial(sqs_query.decode, written=sqs_query.JSON),
    refuse=partial(_sqs_query_refuse, written=sqs_query.JSON),
    fail=partial(_sqs_query_fail, written=sqs_query.JSON),
)


def _is_api(request: Request) -> bool:
    return request.target.startswith(PREFIX)


def _api(request: Request) -> Recognised:
    parsed = read_request(request.method, request.target, request.headers, request.body)
    return Recognised(route_key(parsed), parsed)


def _api_refuse(error: SqsError, base_url: str) -> Reply:
    return encode_api_error(error)


def _api_fail(error: VeilmqError, base_url: str) -> Reply:
    return encode_api_failure(error)


API = Protocol(
    name="v1",
    recognises=_is_api,
    read=_api,
    decode=decode_api,
    refused=SqsError,
    refuse=_api_refuse,
    fail=_api_fail,
    deny=_sqs_denied,
    verifier=authentication.sigv4,
    labels={key: route.label for key, route in ROUTES.items()},
    methods=frozenset({b"GET", b"POST"}),
    permissions={route.label: route.permission for route in ROUTES.values()},
)


def _smq_denied(denial: Denial) -> smq.SmqError:
    return smq.SmqError(smq.ACCESS_DENIED)


def _is_smq(request: Request) -> bool:
    return smq.is_smq(request.target, request.headers)


def _smq(request: Request) -> Recognised:
    parsed = smq.read_request(request.method, request.target, request.headers, request.body)
    return Recognised(smq.route_of(parsed), parsed)


SMQ = Protocol(
    name="smq",
    recognises=_is_smq,
    read=_smq,
    decode=smq.decode,
    refused=smq.SmqError,
    refuse=smq.encode_error,
    fail=smq.encode_failure,
    deny=_smq_denied,
    verifier=authentication.smq,
    labels={action: route.label for action, route in smq.ROUTES.items()},
    methods=frozenset({b"GET", b"PUT", b"POST", b"DELETE"}),
    mark=smq.VERSION_HEADER,
    permissions={route.label: route.permission for route in smq.ROUTES.values()},
)


def worded_for(refusal: Refusal, target: bytes, headers: Mapping[bytes, bytes], base_url: str) -> Worded:
    """Return what refuses a request before its protocol has seen it, in words that who sent it understands.

    That is a sentence, but for clients of SMQ: one of their SDKs takes everything that is no XML for success.
    """
    if not smq.is_smq(target, headers):
        return as_text(refusal, headers)
    reply = smq.encode_refusal(refusal.status, refusal.text, base_url)
    return Worded(refusal.extra_headers + reply.headers, reply.body)


PROTOCOLS = (SQS_JSON, SMQ, API, SQS_QUERY_FOR_JSON, SQS_QUERY)
"""All rows, in the order in which they are tried."""


def protocol_of(request: Request) -> Protocol | None:
    """Return the protocol of a request, whose body may not be there yet."""
    return next((protocol for protocol in PROTOCOLS if protocol.recognises(request)), None)

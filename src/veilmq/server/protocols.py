"""The protocols that one port speaks: a row each, which knows its own requests and takes them apart.

The first row that recognises a request serves it. A new protocol is a new row.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from veilmq.core.errors import VeilmqError
from veilmq.server.http_request import Request
from veilmq.wire.sqs import json as sqs_json
from veilmq.wire.sqs import query as sqs_query
from veilmq.wire.sqs.actions import ACTIONS
from veilmq.wire.sqs.call import Call
from veilmq.wire.sqs.context import RequestContext
from veilmq.wire.sqs.errors import SqsError, from_core
from veilmq.wire.sqs.query_form import Form, action_of, form_of
from veilmq.wire.sqs.reply import Reply
from veilmq.wire.v1 import codec as api
from veilmq.wire.v1.request import PREFIX, ApiRequest, read_request
from veilmq.wire.v1.routes import ROUTES, route_key

_SQS_TARGET = b"AmazonSQS."
_FORM = b"application/x-www-form-urlencoded"


class Protocol(NamedTuple):
    """One protocol.

    ``recognise`` returns the name of the action, or ``None`` where the request is of another protocol; ``decode`` may
    raise ``Refused``'s type, which ``refuse`` answers; ``fail`` answers an error of ours before there is a call.
    ``labels`` has the names under which actions are counted. ``methods`` are those of HTTP that it uses; ``read``
    returns what ``decode`` gets of a request, and is ``None`` where that is the body alone. ``permissions`` has, by
    label, the action on which policies decide, where that has another name.
    """

    name: str
    recognise: Callable[[Request], bytes | None]
    decode: Callable[[bytes, Any, RequestContext], Call]
    refused: type[Exception]
    refuse: Callable[[Any], Reply]
    fail: Callable[[VeilmqError], Reply]
    labels: dict[bytes, str]
    methods: frozenset[bytes] = frozenset({b"POST"})
    read: Callable[[Request], Any] | None = None
    permissions: Mapping[str, str] = {}


def _sqs_json_action(request: Request) -> bytes | None:
    """Every AWS JSON service names its action in this header; those of other services are unknown actions here."""
    target = request.headers.get(b"x-amz-target")
    return target if target is None else target.removeprefix(_SQS_TARGET)


def _sqs_json_fail(error: VeilmqError) -> Reply:
    return sqs_json.encode_error(from_core(error))


SQS_JSON = Protocol(
    name="sqs-json",
    recognise=_sqs_json_action,
    decode=sqs_json.decode,
    refused=SqsError,
    refuse=sqs_json.encode_error,
    fail=_sqs_json_fail,
    labels={name.encode(): name for name in ACTIONS},
)


def _sqs_query_form(request: Request) -> Form:
    """Return where the parameters are; a body counts if it is a form, or does not say what it is."""
    kind = request.headers.get(b"content-type", _FORM).partition(b";")[0].strip().lower()
    return form_of(request.target, request.body if kind == _FORM else b"")


def _sqs_query_action(request: Request) -> bytes | None:
    return action_of(_sqs_query_form(request))


def _sqs_query_fail(error: VeilmqError) -> Reply:
    return sqs_query.encode_error(from_core(error))


SQS_QUERY = Protocol(
    name="sqs-query",
    recognise=_sqs_query_action,
    decode=sqs_query.decode,
    refused=SqsError,
    refuse=sqs_query.encode_error,
    fail=_sqs_query_fail,
    labels={name.encode(): name for name in ACTIONS},
    methods=frozenset({b"GET", b"POST"}),
    read=_sqs_query_form,
)


def _api_request(request: Request) -> ApiRequest:
    return read_request(request.method, request.target, request.headers, request.body)


def _api_route(request: Request) -> bytes | None:
    return route_key(_api_request(request)) if request.target.startswith(PREFIX) else None


API = Protocol(
    name="v1",
    recognise=_api_route,
    decode=api.decode,
    refused=SqsError,
    refuse=api.encode_error,
    fail=api.encode_failure,
    labels={key: route.label for key, route in ROUTES.items()},
    methods=frozenset({b"GET", b"POST"}),
    read=_api_request,
    permissions={route.label: route.permission for route in ROUTES.values()},
)

PROTOCOLS = (SQS_JSON, API, SQS_QUERY)
"""All rows, in the order in which they are tried."""

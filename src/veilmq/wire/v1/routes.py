"""The table of routes: method, noun and verb, the function that reads the request, and the permission that it needs.

A new route is a row. ``permission`` is the SQS action on which a queue's policy decides. The description of the API is
made of this table, too.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from inspect import cleandoc, getdoc
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from veilmq.core import errors
from veilmq.core.claims import Acknowledged, Bound, Published, SourceView, Staged, WriterView
from veilmq.core.commands import BrowsedQueues
from veilmq.core.errors import VeilmqError
from veilmq.wire.exchange import REGION_PATTERN, RequestContext
from veilmq.wire.sqs import members, messages, moves, queues
from veilmq.wire.sqs.actions import ACTIONS, Action
from veilmq.wire.sqs.errors import ACCESS_DENIED, SqsError
from veilmq.wire.sqs.members import BatchResultErrorEntry, QueueUrlResult, Shape
from veilmq.wire.sqs.names import account_of
from veilmq.wire.v1 import claims, publications
from veilmq.wire.v1.claims import MessageRow
from veilmq.wire.v1.publications import ARROW_TYPE, ForwardFields, forward
from veilmq.wire.v1.queues import (
    RANGES,
    CreatedQueue,
    CreateFields,
    InspectFields,
    LeaseFields,
    ListedLeases,
    ListedMessages,
    ListFields,
    PeekedMessages,
    PeekFields,
    SettingFields,
    ShownQueue,
    change,
    create,
    list_leases,
    list_messages,
    list_queues,
    peek,
    show,
)
from veilmq.wire.v1.request import ANSWERS, INVALID_REQUEST, NAMES, UNKNOWN_ROUTE, ApiCall, ApiRequest, of_account

_GET = b"GET"
_POST = b"POST"


class Route(NamedTuple):
    """One route; ``verb`` is empty for the noun itself. ``plan`` raises ``SqsError`` for what it cannot take.

    ``errors`` are those of core that it may be answered with, beside ``EVERYWHERE``. A route ``of_account`` is of all
    that the caller's own account has of the noun: its path has no queue, and no verb.
    """

    method: bytes
    noun: bytes
    verb: bytes
    plan: Callable[[ApiRequest, RequestContext], ApiCall]
    permission: str
    errors: tuple[type[VeilmqError], ...] = ()
    of_account: bool = False

    @property
    def key(self) -> bytes:
        """Return under which key it is in ``ROUTES``."""
        return _key(self.method, self.noun, self.verb, of_account=self.of_account)

    @property
    def path(self) -> str:
        """Return its path, with its parameters in braces."""
        queue = "" if self.of_account else "/{queue}"
        return f"/v1/{self.noun.decode()}/{{account}}{queue}" + (f"/{self.verb.decode()}" if self.verb else "")

    @property
    def label(self) -> str:
        """Return the name under which requests are counted."""
        return f"{self.noun.decode()}.{self.verb.decode() or 'list'}"


EVERYWHERE: tuple[type[VeilmqError], ...] = (
    errors.QueueNotFound,
    errors.StoreFull,
    errors.StoreUnavailable,
    errors.OutcomeUnknown,
    errors.ShuttingDown,
    errors.InternalError,
)
"""What every route may be answered with."""

_FENCED = (errors.SourceNotFound, errors.EpochFenced)
_SETTINGS = (errors.SettingsConflict, errors.DeadLetterQueueRefused)
_ENDED = (errors.ClaimAcknowledged, errors.ClaimLost, errors.ClaimReleased)

_ROWS = (
    Route(_GET, b"claims", b"", claims.list_sources, "ReceiveMessage"),
    Route(
        _GET, b"claims", b"read", claims.read, "ReceiveMessage", (*_ENDED, errors.ShardNotFound, errors.CursorInvalid)
    ),
    Route(_POST, b"claims", b"open", claims.open_source, "ReceiveMessage", (errors.ConsumerTaken,)),
    Route(_POST, b"claims", b"claim", claims.claim, "ReceiveMessage", (*_FENCED, *_ENDED, errors.ClaimGap)),
    Route(_POST, b"claims", b"heartbeat", claims.heartbeat, "ReceiveMessage", _FENCED),
    Route(_POST, b"claims", b"acknowledge", claims.acknowledge, "DeleteMessage", (*_FENCED, errors.ClaimGap)),
    Route(
        _POST,
        b"claims",
        b"release",
        claims.release,
        "ChangeMessageVisibility",
        (errors.SourceNotFound, errors.ClaimAcknowledged, errors.ClaimLost),
    ),
    Route(
        _POST,
        b"claims",
        b"evict",
        claims.evict,
        "DeleteMessage",
        (errors.SourceNotFound, *_ENDED, errors.MessageNotClaimed, errors.DeadLetterQueueRefused),
    ),
    Route(_POST, b"claims", b"close", claims.close, "DeleteMessage", (errors.SourceNotFound,)),
    Route(_GET, b"leases", b"", list_leases, "ReceiveMessage"),
    Route(_GET, b"messages", b"", list_messages, "ReceiveMessage"),  # with receipts PurgeQueue, too
    Route(_GET, b"messages", b"peek", peek, "ReceiveMessage"),
    Route(_GET, b"publications", b"", publications.list_writers, "SendMessage"),
    Route(_POST, b"publications", b"stage", publications.stage, "SendMessage", (errors.StageRefused,)),
    Route(_POST, b"publications", b"publish", publications.publish, "SendMessage", (errors.StageMissing,)),
    Route(_POST, b"publications", b"abandon", publications.abandon, "SendMessage"),
    Route(
        _POST,
        b"queues",
        b"create",
        create,
        "CreateQueue",
        (errors.QueueExists, errors.QueueDeletedRecently, *_SETTINGS),
    ),
    Route(_GET, b"queues", b"", list_queues, "ListQueues", of_account=True),
    Route(_GET, b"queues", b"show", show, "GetQueueAttributes"),
    Route(_POST, b"queues", b"set", change, "SetQueueAttributes", _SETTINGS),
    Route(  # needs DeleteMessage too, and SendMessage on the targets (server.permissions)
        _POST,
        b"queues",
        b"forward",
        forward,
        "ReceiveMessage",
        (
            errors.ReceiptEnded,
            errors.ReceiptInvalid,
            errors.GroupHeld,
            errors.DestinationRefused,
            errors.MessageTooLong,
        ),
    ),
)


def _key(method: bytes, noun: bytes, verb: bytes, *, of_account: bool) -> bytes:
    return b"%b %b" % (method, noun) if of_account else b"%b %b/%b" % (method, noun, verb)


ROUTES: dict[bytes, Route] = {row.key: row for row in _ROWS}
"""Every route, by method, noun and verb."""


def route_key(request: ApiRequest) -> bytes:
    """Return under which key the route of ``request`` is, if there is one."""
    return _key(request.method, request.noun, request.verb, of_account=not request.queue)


# From a request to its call, by the table of routes.


_NO_ROUTE = (
    "There is no such route. Paths are /v1/{noun}/{account}/{queue}/{verb}, with an account of twelve digits, or - for "
    "your own, and without queue and verb for what is of a whole account; reading and listing are GET, everything else "
    "is POST."
)


def decode(key: bytes, request: ApiRequest, context: RequestContext) -> ApiCall:
    """Return the call of the route ``key`` for ``request``; raises ``SqsError``, and nothing else."""
    route = ROUTES.get(key)
    if route is None:
        raise SqsError(UNKNOWN_ROUTE, _NO_ROUTE)
    addressed = of_account(request, context)
    if route.of_account and account_of(addressed.account) != account_of(context.account):
        raise SqsError(ACCESS_DENIED, f"What an account has is for itself alone; the caller's is {context.account}.")
    return route.plan(addressed, context)


# What each route is given and what it answers, as types: what the description of the API is made of.
#
# The planners decode into these types and encode them; here they are put beside the routes, by their labels.


class Nothing(msgspec.Struct, frozen=True):
    """Nothing."""


class Sources(msgspec.Struct, frozen=True):
    """The sources of a queue."""

    sources: list[SourceView]


class Writers(msgspec.Struct, frozen=True):
    """The writers of a queue."""

    writers: list[WriterView]


class ClaimedMessages(msgspec.Struct, frozen=True):
    """Messages of a claim; where there are more, the header ``x-veilmq-cursor`` says where they begin."""

    messages: list[MessageRow]


class EntryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one message: its ``id`` in its target, or the ``code`` and ``status`` of why it is not there."""

    id: str | UnsetType = UNSET
    sequence_number: str | UnsetType | None = UNSET
    duplicate: bool | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    status: int | UnsetType = UNSET


class EntryAnswers(msgspec.Struct, frozen=True):
    """What became of each message, in order."""

    entries: list[EntryAnswer]


class BatchAnswer(Shape, frozen=True, kw_only=True):
    """The answer to a batch action of SQS; the members of a success depend on the action."""

    successful: list[dict[str, Any]] | None = None
    failed: list[BatchResultErrorEntry] | None = None


class RouteShape(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters, the body and the answer of a route; ``arrow`` where a body or answer may be Arrow, too."""

    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] = Nothing
    arrow: bool = False


SHAPES: dict[str, RouteShape] = {
    "claims.list": RouteShape(answer=Sources),
    "claims.read": RouteShape(query=claims.ReadFields, answer=ClaimedMessages, arrow=True),
    "claims.open": RouteShape(body=claims.OpenFields, answer=SourceView),
    "claims.claim": RouteShape(body=claims.ClaimFields, answer=Bound),
    "claims.heartbeat": RouteShape(body=claims.HeartbeatFields, answer=SourceView),
    "claims.acknowledge": RouteShape(body=claims.AcknowledgeFields, answer=Acknowledged),
    "claims.release": RouteShape(body=claims.ReleaseFields, answer=SourceView),
    "claims.evict": RouteShape(body=claims.EvictFields, answer=SourceView),
    "claims.close": RouteShape(body=claims.Fields),
    "leases.list": RouteShape(query=LeaseFields, answer=ListedLeases),
    "messages.list": RouteShape(query=InspectFields, answer=ListedMessages),
    "messages.peek": RouteShape(query=PeekFields, answer=PeekedMessages),
    "publications.list": RouteShape(answer=Writers),
    "publications.stage": RouteShape(
        query=publications.StageFields, body=publications.MessagesFields, answer=Staged, arrow=True
    ),
    "publications.publish": RouteShape(body=publications.PublishFields, answer=Published),
    "publications.abandon": RouteShape(body=publications.BatchFields),
    "queues.list": RouteShape(query=ListFields, answer=BrowsedQueues),
    "queues.create": RouteShape(body=CreateFields, answer=CreatedQueue),
    "queues.show": RouteShape(answer=ShownQueue),
    "queues.set": RouteShape(body=SettingFields),
    "queues.forward": RouteShape(body=ForwardFields, answer=EntryAnswers),
}
"""Every route's, by its label."""


# The description of the API of the operator's port, OpenAPI 3.1: made of the tables of routes and of actions of SQS,
# and of the types that requests are decoded into and answers are encoded from. So it cannot be of another API.
#
# (OpenAPI Specification 3.1.1; https://spec.openapis.org/oas/v3.1.1)


JSON = "application/json"
SQS_JSON = "application/x-amz-json-1.0"

Document = dict[str, Any]
Schemas = dict[type[msgspec.Struct], Document]

_REFERENCE = "#/components/schemas/"
_ARROW = ARROW_TYPE.decode()
_ABOUT = """The queues of one server, for programs. What the console shows and does, it shows and does through these
endpoints, and as its caller: policies of queues decide. `-` stands for the caller's own account, and
`/api/{noun}` for `/api/{noun}/-`. Instants are milliseconds since the epoch. The port of the queues has the same
routes under `/v1/`, for signed requests."""

_RESULTS: dict[str, type[msgspec.Struct]] = {
    "CreateQueue": QueueUrlResult,
    "GetQueueUrl": QueueUrlResult,
    "SendMessageBatch": BatchAnswer,
    "DeleteMessageBatch": BatchAnswer,
    "ChangeMessageVisibilityBatch": BatchAnswer,
}

_SCHEMES: Document = {
    "key": {
        "type": "http",
        "scheme": "basic",
        "description": "An access key's id and secret, over TLS or from the server's own machine.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": "veilmq_9325",
        "description": "The console's session; the name of the cookie ends with the port.",
    },
    "token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-CSRF-Token",
        "description": "The token of the session's forms, which a change needs.",
    },
}
_OF_THE_PORT: dict[int, tuple[str, ...]] = {
    401: ("AccessDenied",),
    413: ("InvalidRequest",),
    429: ("AccessDenied",),
    503: ("AuditLogUnavailable",),
}
_OPEN: Document = {}  # where the server has no accounts, requests need no key
_READING = [{"key": []}, {"session": []}, _OPEN]
_CHANGING = [{"key": []}, {"session": [], "token": []}, _OPEN]

_PLACES: Document = {
    "account": {
        "name": "account",
        "in": "path",
        "required": True,
        "description": "Twelve digits, and @ and a region where that is not the server's own; - for the caller's own.",
        "schema": {"type": "string", "pattern": f"^([0-9]{{12}}(@{REGION_PATTERN})?|-)$"},
    },
    "queue": {"name": "queue", "in": "path", "required": True, "schema": {"type": "string", "pattern": f"^{NAMES}$"}},
}
_ERRORS: Document = {
    "Error": {
        "type": "object",
        "required": ["code", "message"],
        "description": "What went wrong; some codes have further members (docs/protocols).",
        "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
    },
    "SqsError": {
        "type": "object",
        "required": ["__type", "message"],
        "properties": {"__type": {"type": "string"}, "message": {"type": "string"}},
    },
}


def described() -> bytes:
    """Return the document as JSON."""
    return msgspec.json.encode(document())


def document() -> Document:
    """Return the document."""
    schemas, components = msgspec.json.schema_components(_types(), ref_template=_REFERENCE + "{name}")
    shown: Schemas = dict(zip(_types(), schemas, strict=True))
    _bound(components["SettingFields"]["properties"])
    paths: Document = {}
    for route in ROUTES.values():
        operations = paths.setdefault(place_of(route), {"parameters": _path_parameters(route)})
        operations[route.method.decode().lower()] = _of_route(route, SHAPES[route.label], shown, components)
    for action in ACTIONS.values():
        paths[f"/api/sqs/{action.name}"] = {"post": _of_action(action, shown)}
    made: Document = {
        "openapi": "3.1.0",
        "info": {
            "title": "veilmq",
            "version": "1",
            "description": _ABOUT,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components | _ERRORS, "parameters": _PLACES, "securitySchemes": _SCHEMES},
    }
    plain: Document = _in_plain_words(made)
    return plain


def _bound(settings: Document) -> None:
    """Give settings the ranges that are checked apart from their types."""
    for name, allowed in RANGES.items():
        for kind in settings[name].get("anyOf", [settings[name]]):
            if kind["type"] == "integer":
                kind |= {"minimum": allowed.minimum, "maximum": allowed.maximum}


def place_of(route: Route) -> str:
    """Return the path of ``route`` on the operator's port."""
    return route.path.replace("/v1/", "/api/", 1)


def _types() -> list[type[msgspec.Struct]]:
    """Return every type that a request or an answer has, each once."""
    of_routes = [kind for shape in SHAPES.values() for kind in (shape.query, shape.body, shape.answer) if kind]
    of_actions = [kind for action in ACTIONS.values() for kind in (action.request, _result(action))]
    return list(dict.fromkeys([*of_routes, *of_actions]))


def _result(action: Action) -> type[msgspec.Struct]:
    name = f"{action.name}Result"
    found = (getattr(module, name) for module in (queues, messages, members, moves) if hasattr(module, name))
    return _RESULTS.get(action.name) or next(found, Nothing)


def _path_parameters(route: Route) -> list[Document]:
    names = ["account"] if route.of_account else ["account", "queue"]
    return [{"$ref": f"#/components/parameters/{name}"} for name in names]


def _of_route(route: Route, shape: RouteShape, shown: Schemas, components: Document) -> Document:
    is_read = route.method == b"GET"
    operation: Document = {
        "operationId": route.label,
        "tags": [route.noun.decode()],
        "summary": (getdoc(route.plan) or "").partition("\n")[0],
        "description": f"Needs the permission {route.permission}.",
        "security": _READING if is_read else _CHANGING,
        "responses": {"200": _content("Done.", shown[shape.answer], arrow=shape.arrow and is_read), **_refusals(route)},
    }
    if shape.query is not None:
        operation["parameters"] = _query_parameters(shown[shape.query], components)
    if shape.body is not None:
        operation["requestBody"] = {"required": True, **_content("", shown[shape.body], arrow=shape.arrow)}
        del operation["requestBody"]["description"]
    return operation


def _of_action(action: Action, shown: Schemas) -> Document:
    return {
        "operationId": f"sqs.{action.name}",
        "tags": ["sqs"],
        "summary": f"{action.name}, as Amazon SQS has it.",
        "security": _CHANGING,
        "requestBody": {"required": True, "content": {JSON: {"schema": shown[action.request]}}},
        "responses": {
            "200": _content("Done.", shown[_result(action)], kind=SQS_JSON),
            **_errors(_OF_THE_PORT),
            "default": _content("Refused.", {"$ref": _REFERENCE + "SqsError"}, kind=SQS_JSON),
        },
    }


def _content(text: str, schema: Document, *, kind: str = JSON, arrow: bool = False) -> Document:
    content: Document = {kind: {"schema": schema}}
    if arrow:
        content[_ARROW] = {}
    return {"description": text, "content": content}


def _query_parameters(schema: Document, components: Document) -> list[Document]:
    fields = components[schema["$ref"].removeprefix(_REFERENCE)]
    required = fields.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": kind}
        for name, kind in fields["properties"].items()
    ]


def _refusals(route: Route) -> Document:
    """Return the answers of a route to what it does not do, by status."""
    codes: dict[int, list[str]] = {status: list(names) for status, names in _OF_THE_PORT.items()}
    for error in (*route.errors, *EVERYWHERE):
        if not (route.of_account and error.__name__ == "QueueNotFound"):
            codes.setdefault(ANSWERS[error][0], []).append(error.__name__)
    for code in (INVALID_REQUEST, ACCESS_DENIED):
        codes.setdefault(code.status, []).append(code.query)
    return _errors(codes)


def _errors(codes: Mapping[int, Iterable[str]]) -> Document:
    schema = {"$ref": _REFERENCE + "Error"}
    return {
        str(status): _content(f"{HTTPStatus(status).phrase}: {', '.join(dict.fromkeys(names))}.", schema)
        for status, names in sorted(codes.items())
    }


def _in_plain_words(value: Any, name: str = "") -> Any:
    """Return ``value`` with patterns as JSON Schema knows them, and descriptions in CommonMark."""
    if isinstance(value, dict):
        return {key: _in_plain_words(each, key) for key, each in value.items()}
    if isinstance(value, list):
        return [_in_plain_words(each) for each in value]
    if name == "pattern" and isinstance(value, str):
        return re.sub(r"\\Z$", "$", re.sub(r"^\\A", "^", value))
    if name in {"description", "summary"} and isinstance(value, str):
        return cleandoc(value).replace("``", "`")
    return value

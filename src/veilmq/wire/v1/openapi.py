"""The description of the API of the operator's port, OpenAPI 3.1: made of the tables of routes and of actions of SQS,
and of the types that requests are decoded into and answers are encoded from. So it cannot be of another API.

(OpenAPI Specification 3.1.1; https://spec.openapis.org/oas/v3.1.1)
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from inspect import cleandoc, getdoc
from typing import Any

import msgspec

from veilmq.wire.sqs import responses
from veilmq.wire.sqs.actions import ACTIONS, Action
from veilmq.wire.sqs.context import REGION_PATTERN
from veilmq.wire.sqs.errors import ACCESS_DENIED
from veilmq.wire.v1.errors import ANSWERS, INVALID_REQUEST
from veilmq.wire.v1.publications import ARROW_TYPE
from veilmq.wire.v1.queue_settings import RANGES
from veilmq.wire.v1.request import NAMES
from veilmq.wire.v1.routes import EVERYWHERE, ROUTES, Route
from veilmq.wire.v1.shapes import SHAPES, BatchAnswer, Nothing, RouteShape

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
    "CreateQueue": responses.QueueUrlResult,
    "GetQueueUrl": responses.QueueUrlResult,
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
_OPEN: Document = {}  # where the server has no accounts, nobody is asked who he is
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
    "queue": {
        "name": "queue",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": f"^{NAMES}$"},
    },
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
    found: type[msgspec.Struct] = getattr(responses, f"{action.name}Result", Nothing)
    return _RESULTS.get(action.name, found)


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
        operation["requestBody"] = {
            "required": True,
            **_content("", shown[shape.body], arrow=shape.arrow),
        }
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

"""The table of all routes, the codec, and the OpenAPI description, generated from the table.

A new route is a row in the file of its noun.
"""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from inspect import cleandoc
from typing import Any

import msgspec

from veilmq.core import errors
from veilmq.core.errors import VeilmqError
from veilmq.wire.exchange import REGION_PATTERN, RequestContext
from veilmq.wire.sqs.actions import ACTIONS, Action
from veilmq.wire.sqs.errors import ACCESS_DENIED, SqsError
from veilmq.wire.sqs.members import BatchResult, BatchResultErrorEntry, Shape
from veilmq.wire.sqs.names import account_of
from veilmq.wire.v1 import claims, publications, queues
from veilmq.wire.v1 import request as api
from veilmq.wire.v1.publications import ARROW_TYPE
from veilmq.wire.v1.request import ApiCall, ApiRequest, NoFields, Nothing, Route

COMMON_ERRORS: tuple[type[VeilmqError], ...] = (
    errors.QueueNotFound,
    errors.StoreFull,
    errors.StoreUnavailable,
    errors.OutcomeUnknown,
    errors.ShuttingDown,
    errors.InternalError,
)
"""The errors of core that every route may return."""

ROUTES: dict[bytes, Route] = {row.key: row for row in (*claims.ROUTES, *queues.ROUTES, *publications.ROUTES)}
"""Routes by method, noun and verb."""


def route_key(request: ApiRequest) -> bytes:
    """Return the key of the route of ``request``; there may be no such route."""
    return b"%b %b" % (request.method, request.noun) + (b"/" + request.verb if request.queue else b"")


_NO_ROUTE = (
    "There is no such route. Paths are /v1/{noun}/{account}/{queue}/{verb}, or /v1/{noun}/{account} for a whole "
    "account, which has twelve digits (- is your own). Use GET to read and list, and POST for everything else."
)


def decode(key: bytes, request: ApiRequest, context: RequestContext) -> ApiCall:
    """Decode ``request`` for the route ``key``; raises only ``SqsError``."""
    route = ROUTES.get(key)
    if route is None:
        raise SqsError(api.UNKNOWN_ROUTE, _NO_ROUTE)
    resolved = api.resolve_account(request, context)
    if route.of_account and account_of(resolved.account) != account_of(context.account):
        raise SqsError(ACCESS_DENIED, f"A caller can see only its own account, which is {context.account}.")
    fields = None
    if route.query is not None:
        fields = api.from_query(resolved.query, route.query)
    elif route.body is not None:
        fields = api.from_json(resolved.body, route.body)
    return route.plan(resolved, fields, context)


# The OpenAPI description of the API on the admin port (OpenAPI Specification 3.1.1;
# https://spec.openapis.org/oas/v3.1.1). It is generated from the tables of routes and of SQS actions, and from the
# types of requests and replies, so it matches the implementation.

JSON = "application/json"
SQS_JSON = "application/x-amz-json-1.0"

Document = dict[str, Any]
Schemas = dict[type[msgspec.Struct], Document]

_REFERENCE = "#/components/schemas/"
_DESCRIPTION = """The queues of one server, for programs. The console uses the same endpoints, with the permissions of
its user. `-` stands for the caller's own account, and `/api/{noun}` for `/api/{noun}/-`. Instants are milliseconds
since the epoch. The port of the queues has the same routes under `/v1/`, for signed requests."""


class BatchActionResult(Shape):
    """The result of a batch action of SQS; the members of a success depend on the action."""

    successful: list[dict[str, Any]] | None = None
    failed: list[BatchResultErrorEntry] | None = None


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
_ADMIN_PORT_ERRORS: dict[int, tuple[str, ...]] = {
    401: ("AccessDenied",),
    413: ("InvalidRequest",),
    429: ("AccessDenied",),
    503: ("AuditLogUnavailable",),
}
_NO_SECURITY: Document = {}  # a server without accounts requires no key
_READ_SECURITY = [{"key": []}, {"session": []}, _NO_SECURITY]
_WRITE_SECURITY = [{"key": []}, {"session": [], "token": []}, _NO_SECURITY]

_PATH_PARAMETERS: Document = {
    "account": {
        "name": "account",
        "in": "path",
        "required": True,
        "description": "Twelve digits, followed by @ and a region other than the server's own; - for the caller's own.",
        "schema": {"type": "string", "pattern": f"^([0-9]{{12}}(@{REGION_PATTERN})?|-)$"},
    },
    "queue": {
        "name": "queue",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": f"^{api.NAMES}$"},
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


def openapi_document() -> bytes:
    """Return the OpenAPI description as JSON."""
    of_routes = [kind for row in ROUTES.values() for kind in (row.query, row.body, row.result)]
    of_actions = [kind for action in ACTIONS.values() for kind in (action.request, _result(action))]
    types = [kind for kind in dict.fromkeys([*of_routes, *of_actions]) if kind is not None and kind is not NoFields]
    references, components = msgspec.json.schema_components(types, ref_template=_REFERENCE + "{name}")
    schemas: Schemas = dict(zip(types, references, strict=True))
    settings = components["SettingFields"]["properties"]
    for name, allowed in queues.RANGES.items():  # checked by the route, not by the types
        for kind in settings[name].get("anyOf", [settings[name]]):
            if kind["type"] == "integer":
                kind |= {"minimum": allowed.minimum, "maximum": allowed.maximum}
    paths: Document = {}
    for route in ROUTES.values():
        names = ["account"] if route.of_account else ["account", "queue"]
        parameters = [{"$ref": f"#/components/parameters/{name}"} for name in names]
        operations = paths.setdefault(admin_path(route), {"parameters": parameters})
        operations[route.method.decode().lower()] = _of_route(route, schemas, components)
    for name, action in ACTIONS.items():
        paths[f"/api/sqs/{name}"] = {"post": _of_action(name, action, schemas)}
    licence = {"name": "Apache 2.0", "identifier": "Apache-2.0"}
    openapi: Document = {
        "openapi": "3.1.0",
        "info": {"title": "veilmq", "version": "1", "description": _DESCRIPTION, "license": licence},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": components | _ERRORS, "parameters": _PATH_PARAMETERS, "securitySchemes": _SCHEMES},
    }
    return msgspec.json.encode(_in_json_schema(openapi))


def admin_path(route: Route) -> str:
    """Return the path of ``route`` on the admin port."""
    return route.path.replace("/v1/", "/api/", 1)


def _result(action: Action) -> type[msgspec.Struct]:
    return BatchActionResult if action.result is BatchResult else action.result or Nothing


def _of_route(route: Route, schemas: Schemas, components: Document) -> Document:
    is_read = route.method == b"GET"
    codes: dict[int, list[str]] = {status: list(names) for status, names in _ADMIN_PORT_ERRORS.items()}
    for error in (*route.errors, *COMMON_ERRORS):
        if not (route.of_account and error.__name__ == "QueueNotFound"):
            codes.setdefault(api.CORE_ERRORS[error][0], []).append(error.__name__)
    for code in (api.INVALID_REQUEST, ACCESS_DENIED, *route.codes, *([api.ARROW_MISSING] if route.arrow else ())):
        codes.setdefault(code.status, []).append(code.query)
    operation: Document = {
        "operationId": route.label,
        "tags": [route.noun.decode()],
        "summary": route.summary,
        "description": f"Needs the permission {route.permission}.",
        "security": _READ_SECURITY if is_read else _WRITE_SECURITY,
        "responses": {"200": _content("Done.", schemas[route.result], arrow=route.arrow and is_read), **_errors(codes)},
    }
    if route.query is not None and route.query is not NoFields:
        fields = components[schemas[route.query]["$ref"].removeprefix(_REFERENCE)]
        required = fields.get("required", [])
        operation["parameters"] = [
            {"name": name, "in": "query", "required": name in required, "schema": kind}
            for name, kind in fields["properties"].items()
        ]
    if route.body is not None:
        content = _content("", schemas[route.body], arrow=route.arrow)["content"]
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _of_action(name: str, action: Action, schemas: Schemas) -> Document:
    return {
        "operationId": f"sqs.{name}",
        "tags": ["sqs"],
        "summary": f"{name}, as Amazon SQS has it.",
        "security": _WRITE_SECURITY,
        "requestBody": {"required": True, "content": {JSON: {"schema": schemas[action.request]}}},
        "responses": {
            "200": _content("Done.", schemas[_result(action)], kind=SQS_JSON),
            **_errors(_ADMIN_PORT_ERRORS),
            "default": _content("Refused.", {"$ref": _REFERENCE + "SqsError"}, kind=SQS_JSON),
        },
    }


def _content(text: str, schema: Document, *, kind: str = JSON, arrow: bool = False) -> Document:
    content = {kind: {"schema": schema}} | ({ARROW_TYPE.decode(): {}} if arrow else {})
    return {"description": text, "content": content}


def _errors(codes: Mapping[int, Iterable[str]]) -> Document:
    schema = {"$ref": _REFERENCE + "Error"}
    return {
        str(status): _content(f"{HTTPStatus(status).phrase}: {', '.join(dict.fromkeys(names))}.", schema)
        for status, names in sorted(codes.items())
    }


def _in_json_schema(value: Any, name: str = "") -> Any:
    """Return ``value`` with patterns in the syntax of JSON Schema and descriptions in CommonMark."""
    if isinstance(value, dict):
        return {key: _in_json_schema(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_json_schema(item) for item in value]
    if name == "pattern" and isinstance(value, str):
        return re.sub(r"\\Z$", "$", re.sub(r"^\\A", "^", value))
    if name in {"description", "summary"} and isinstance(value, str):
        return cleandoc(value).replace("``", "`")
    return value

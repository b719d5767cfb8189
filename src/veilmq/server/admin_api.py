"""The API of the admin port, ``/api/``: routes of its own and the actions of SQS, with the accounts of the console.

``/api/queues`` is ``/v1/queues/-`` of the queue port, ``/api/queues/{account}/{queue}/show`` is
``/v1/queues/{account}/{queue}/show``, and so on; ``POST /api/sqs/{Action}`` takes an action's JSON. Programs
authenticate with the id and the secret of an access key (HTTP Basic, RFC 7617), over TLS or from this machine only
(``origin``); pages with a session. A change in a session also needs the token of its forms, which foreign pages cannot
read.

``InProcessClient`` passes the requests to the dispatcher without a socket or a signature: protocol, policies, errors,
audit log and metrics are the same as for every other request.
"""

import asyncio
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from veilmq.console.api_client import ApiReply, ApiRequest, SendRequest
from veilmq.console.audit import Auditing, AuditLogError
from veilmq.console.sign_ins import SignIns, SignInsPaused
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import HTTP_BODY_BYTES_MAX
from veilmq.server.authentication import Security
from veilmq.server.dispatch import Dispatcher
from veilmq.server.http import Connections
from veilmq.server.http_parser import Request as QueueRequest
from veilmq.server.long_polling import LongPolls
from veilmq.server.metrics import Metrics, TopicCounts
from veilmq.server.permissions import PolicyDecisions
from veilmq.server.settings import ServerSettings
from veilmq.store.port import Store
from veilmq.wire.exchange import Caller
from veilmq.wire.sqs.json import CONTENT_TYPE
from veilmq.wire.v1.routes import openapi_document

if TYPE_CHECKING:
    from veilmq.console.sessions import Session  # which needs an extra

TOKEN_HEADER = "x-csrf-token"
CHALLENGE = 'Basic realm="veilmq", charset="UTF-8"'
UNAUTHORIZED = 401
READING = frozenset({"GET", "HEAD"})

WRONG_KEY = "No valid key has this id and secret. Expired and temporary keys are not accepted."
CREDENTIALS_REQUIRED = (
    "Send an access key's id and secret as user and password (HTTP Basic), or sign in to the console."
)
OPERATOR_ONLY = "Only the root user of the server's own account may do this: send the id and secret of its access key."
TOKEN_REQUIRED = (
    "A change in a console session needs the header X-CSRF-Token with the token of the session's forms; programs send "
    "an access key's id and secret (HTTP Basic) instead."
)


SessionOf = Callable[[Request], tuple["Session", Caller | None] | None]
"""Returns the session and caller of a request; ``None`` without a valid session."""


class CallerUnknown(Exception):
    """The caller is refused; ``str()`` says what to send.

    ``status`` is 401, 403 for a session without its token or a caller without permission, or 429 after too many wrong
    keys.
    """

    def __init__(self, message: str, *, status: int = 401, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {"www-authenticate": CHALLENGE} if status == UNAUTHORIZED else headers or {}


DRAINING = "The server is draining: it is about to stop."


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """A server, as its admin port and console use it.

    ``send_request`` runs requests; ``exports`` is the ``events.exporter.Exporter``, if any; ``data_port`` is the port
    of the queues; ``started_at_ms`` is in store time.
    """

    settings: ServerSettings
    security: Security
    decisions: PolicyDecisions
    engine: Store
    polls: LongPolls
    connections: Connections
    exports: Any
    metrics: Metrics
    topics: TopicCounts
    send_request: SendRequest
    data_port: int
    started_at_ms: int

    async def readiness_failures(self) -> list[str]:
        """Return why the server should not get requests, as sentences; empty if it is ready."""
        draining = [DRAINING] if self.connections.draining else []
        return draining + await self.engine.readiness_failures()


PREFIX = b"/api/"
TRUST_CLOCK = "/api/clock/trust"

_SQS = re.compile(rb"sqs/([A-Za-z]{1,64})")
_NOUN = re.compile(rb"[a-z]+")
_PORT = re.compile(rb":[0-9]{1,5}\Z")
_FORWARDED_HEADERS = frozenset({b"content-encoding", b"content-type", b"user-agent"})
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_TOO_LONG = f"The body may have {HTTP_BODY_BYTES_MAX:,} bytes; send less at a time."


def _refusal(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"code": code, "message": message}, status, {**(headers or {}), **_HEADERS})


@dataclass(slots=True)
class AdminApi:
    """ASGI application of ``server``; ``auditing`` runs and logs requests.

    Without accounts, ``sign_ins`` is ``None``, and so is every caller. ``session_of`` is the console's, if it is
    installed. The root user of the server's account operates the server.
    """

    server: AdminContext
    auditing: Auditing
    sign_ins: SignIns | None
    session_of: SessionOf | None
    description: bytes = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._respond(Request(scope, receive), receive)
        except CallerUnknown as unknown:
            response = _refusal(unknown.status, "AccessDenied", str(unknown), unknown.headers)
        except ClientDisconnect:
            return
        if response is not None:
            await response(scope, receive, send)

    async def _respond(self, request: Request, receive: Receive) -> Response | None:
        raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
        path = raw.partition(b"?")[0].removeprefix(PREFIX)  # not decoded
        if path == b"openapi.json" and request.method in READING:
            if not self.description:
                self.description = await asyncio.to_thread(openapi_document)  # some 50 ms, once
            return Response(self.description, headers=_HEADERS, media_type="application/json")
        caller = self._caller(request)
        if request.scope["path"] == TRUST_CLOCK and request.method == "POST":
            return await self._trust_clock(request, caller)
        forwarded = self._queue_request(path, request, caller)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > HTTP_BODY_BYTES_MAX:
                return _refusal(413, "InvalidRequest", _TOO_LONG)
        return await self._until_disconnect(forwarded._replace(body=bytes(body)), receive)

    async def _trust_clock(self, request: Request, caller: Caller | None) -> Response:
        if caller is not None and not (caller.is_root and caller.account == self.server.settings.account):
            raise CallerUnknown(OPERATOR_ONLY, status=403)
        peer = None if request.client is None else request.client.host
        try:
            message = await self.auditing.operation(caller, peer, "TrustClock", self.server.engine.trust_clock)
        except (VeilmqError, AuditLogError) as error:
            return JSONResponse({"code": type(error).__name__, "message": str(error)}, status_code=503)
        return JSONResponse({"message": message})

    def _caller(self, request: Request) -> Caller | None:
        """Return the caller of ``request``, ``None`` without accounts; raises ``CallerUnknown``."""
        if self.sign_ins is None:
            return None
        authorization = request.headers.get("authorization")
        if authorization is not None:
            scheme, _, credentials = authorization.partition(" ")
            try:
                key_id, colon, secret = b64decode(credentials.strip(), validate=True).decode().partition(":")
            except ValueError:
                raise CallerUnknown(CREDENTIALS_REQUIRED) from None
            if scheme.lower() != "basic" or not colon:
                raise CallerUnknown(CREDENTIALS_REQUIRED)
            try:
                caller = self.sign_ins(key_id, secret, None if request.client is None else request.client.host)
            except SignInsPaused as paused:
                headers = {"retry-after": str(paused.retry_after_s)}
                raise CallerUnknown(str(paused), status=429, headers=headers) from None
            if caller is None:
                raise CallerUnknown(WRONG_KEY)
            return caller
        found = None if self.session_of is None else self.session_of(request)
        if found is None:
            raise CallerUnknown(CREDENTIALS_REQUIRED)
        session, caller = found
        if request.method not in READING and not session.has(request.headers.get(TOKEN_HEADER, "")):
            raise CallerUnknown(TOKEN_REQUIRED, status=403)
        return caller

    def _queue_request(self, path: bytes, request: Request, caller: Caller | None) -> ApiRequest:
        """Return the request as for the queue port, without its body."""
        headers = {name: value for name, value in request.headers.raw if name in _FORWARDED_HEADERS}
        host = request.headers.get("host", "").encode("latin-1")
        if host:
            headers[b"host"] = _PORT.sub(b"", host) + b":%d" % self.server.data_port
        peer = None if request.client is None else request.client.host
        forwarded = ApiRequest(request.method.encode(), b"/", headers, b"", caller, peer)
        action = _SQS.fullmatch(path)
        if action is not None:
            # not a form, which could name another action than the path, for which the audit log has a line
            headers |= {b"x-amz-target": b"AmazonSQS." + action[1], b"content-type": CONTENT_TYPE}
            return forwarded
        query: bytes = request.scope["query_string"]
        whole = path + b"/-" if _NOUN.fullmatch(path) else path
        return forwarded._replace(target=b"/v1/" + whole + (b"?" + query if query else b""))

    async def _until_disconnect(self, forwarded: ApiRequest, receive: Receive) -> Response | None:
        """Run a request; withdraw it if the client disconnects, which is all that ``receive`` can return now."""
        tasks = (asyncio.ensure_future(self.auditing(forwarded)), asyncio.ensure_future(receive()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                return None
            reply = tasks[0].result()
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        lines = [line.partition(":") for line in reply.headers.decode("latin-1").split("\r\n") if ":" in line]
        headers = {name.strip().lower(): value.strip() for name, _, value in lines}
        return Response(reply.body, reply.status, headers | _HEADERS)


class InProcessClient:
    """Sends requests to the dispatcher without a socket."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._in_progress: set[_InProcessRequest] = set()
        if dispatcher.authentication is not None:
            dispatcher.authentication.on_reload = self.hurry

    def hurry(self) -> None:
        """Answer waiting requests as soon as possible: the server is closing, or a caller may have lost its key."""
        for request in list(self._in_progress):
            if request.pending is not None:
                request.pending.hurry()

    async def send(self, forwarded: ApiRequest) -> ApiReply:
        """Return the reply to a request; cancellation withdraws it, like a disconnect.

        Raises ``PermissionError`` if there are accounts but no caller: a defect must not grant access.
        """
        if forwarded.caller is None and self._dispatcher.authentication is not None:
            raise PermissionError("This server has accounts, and the request has no caller.")
        headers = dict(forwarded.headers)
        program = headers.pop(b"user-agent", None)
        no_connection: Any = None  # _InProcessRequest overrides all methods that use the connection
        request = _InProcessRequest(no_connection, forwarded.method, forwarded.target, headers, forwarded.body, True)
        request.peer, request.program = forwarded.peer, None if program is None else program.decode("latin-1")
        request.future = asyncio.get_running_loop().create_future()
        self._in_progress.add(request)
        try:
            request.pending = self._dispatcher.handle(request, forwarded.caller)
            return await request.future
        except asyncio.CancelledError:
            if request.pending is not None:
                request.pending.withdraw()
            raise
        finally:
            self._in_progress.discard(request)


class _InProcessRequest(QueueRequest, eq=False):
    """A request whose reply is awaited in the process and never encoded as HTTP.

    ``program`` is only for policies: as a header, a browser's would cause a refusal here.
    """

    future: "asyncio.Future[ApiReply] | None" = None
    peer: str | None = None
    program: str | None = None

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Set the reply, exactly once; dropped if the caller was cancelled."""
        assert self.future is not None, "set before it is sent"
        assert self.reply is None, "a request has one reply"
        self.pending, self.reply = None, body
        if not self.future.done():
            self.future.set_result(ApiReply(status, headers, body))

    def source_ip(self) -> str | None:
        return self.peer

    def client(self) -> tuple[str | None, str | None]:
        return self.peer, self.program

    def run_in_turn(self, run: Callable[[], None]) -> None:
        run()

"""The API of the operator's port, ``/api/``: routes of its own and the actions of SQS, for callers of the console.

``/api/queues`` is ``/v1/queues/-`` of the queues' port, ``/api/queues/{account}/{queue}/show`` is
``/v1/queues/{account}/{queue}/show``, and so on; ``POST /api/sqs/{Action}`` takes an action's JSON. A caller is
identified by a password, as programs send it, or by a session, as pages have it. A password is the id and the secret of
an access key (HTTP Basic, RFC 7617), over TLS or from this machine alone (``origin``). A change in a session also needs
the token of its forms, which no page of another site knows.

Requests then go to the queues by ``InProcessClient``, without a socket and without a signature: their protocol, their
policies, their errors, the audit log and the metrics are the same as for every other request.
"""

import asyncio
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from veilmq.console.asking import Answer, Ask, Asked
from veilmq.console.sign_ins import SignIns, SignInsPaused
from veilmq.core.limits import HTTP_BODY_BYTES_MAX
from veilmq.server.dispatch import Dispatcher
from veilmq.server.http_parser import Request as QueueRequest
from veilmq.wire.exchange import Caller
from veilmq.wire.v1.routes import described

TOKEN_HEADER = "x-csrf-token"
CHALLENGE = b'Basic realm="veilmq", charset="UTF-8"'
UNAUTHORIZED = 401
TOO_MANY_REQUESTS = 429
READING = frozenset({"GET", "HEAD"})

WRONG_KEY = "There is no key with this id and secret that may sign in; temporary keys may not, and keys may have ended."
NOBODY = "Say who you are: an access key's id and secret as user and password (HTTP Basic), or sign in to the console."
OPERATOR_ONLY = "Only the root user of the server's own account may do this: send the id and secret of its access key."
TOKENLESS = (
    "A change that comes with a session needs the header X-CSRF-Token, with the token of the session's forms; "
    "programs send an access key's id and secret (HTTP Basic) instead."
)


class Session(Protocol):
    """Someone at a browser."""

    def has(self, token: str) -> bool:
        """Tell whether ``token`` is the session's own."""


SessionOf = Callable[[Request], tuple[Session, Caller | None] | None]
"""Answers in which session a request came and who has it; ``None`` for no session that holds."""


class CallerUnknown(Exception):
    """Nobody is let in so; ``str()`` says what to send.

    ``status`` is 401, 403 for a session without its token or a caller without the right, or 429 after too many wrong
    keys; ``headers`` are whole lines.
    """

    def __init__(self, message: str, *, status: int = 401, headers: bytes = b"") -> None:
        """``status`` is that of HTTP."""
        super().__init__(message)
        self.status = status
        self.headers = b"WWW-Authenticate: %b\r\n" % CHALLENGE if status == UNAUTHORIZED else headers


class AdminCallers:
    """Identifies callers; where there are no accounts, no caller is identified."""

    def __init__(self, sign_ins: SignIns | None, *, account: str, session_of: SessionOf | None = None) -> None:
        """``sign_ins`` is ``None`` where there are no accounts; ``session_of`` is the console's, if there is one.

        The root user of ``account`` operates the server.
        """
        self._sign_ins = sign_ins
        self._account = account
        self._session_of = session_of

    def operator(self, request: Request) -> Caller | None:
        """Return who sent ``request``, as ``caller`` does; raises ``CallerUnknown`` unless he operates the server."""
        caller = self.caller(request)
        if caller is not None and not (caller.is_root and caller.account == self._account):
            raise CallerUnknown(OPERATOR_ONLY, status=403)
        return caller

    def caller(self, request: Request) -> Caller | None:
        """Return who sent ``request``, ``None`` where there are no accounts; raises ``CallerUnknown``."""
        if self._sign_ins is None:
            return None
        given = request.headers.get("authorization")
        if given is not None:
            return self._by_password(self._sign_ins, given, None if request.client is None else request.client.host)
        found = None if self._session_of is None else self._session_of(request)
        if found is None:
            raise CallerUnknown(NOBODY)
        session, caller = found
        if request.method not in READING and not session.has(request.headers.get(TOKEN_HEADER, "")):
            raise CallerUnknown(TOKENLESS, status=403)
        return caller

    def _by_password(self, sign_ins: SignIns, given: str, peer: str | None) -> Caller:
        try:
            caller = sign_ins(*_key(given), peer)
        except SignInsPaused as paused:
            later = b"Retry-After: %d\r\n" % paused.retry_after_s
            raise CallerUnknown(str(paused), status=TOO_MANY_REQUESTS, headers=later) from None
        if caller is None:
            raise CallerUnknown(WRONG_KEY)
        return caller


def _key(given: str) -> tuple[str, str]:
    """Return id and secret of an ``Authorization`` header; raises ``CallerUnknown`` for one of another kind."""
    scheme, _, credentials = given.partition(" ")
    try:
        key_id, colon, secret = b64decode(credentials.strip(), validate=True).decode().partition(":")
    except ValueError:
        raise CallerUnknown(NOBODY) from None
    if scheme.lower() != "basic" or not colon:
        raise CallerUnknown(NOBODY)
    return key_id, secret


PREFIX = b"/api/"

_SQS = re.compile(rb"sqs/([A-Za-z]{1,64})")
_NOUN = re.compile(rb"[a-z]+")
_PORT = re.compile(rb":[0-9]{1,5}\Z")
_DESCRIPTION = b"openapi.json"
_PASSED_ON = frozenset({b"content-type", b"user-agent", b"x-veilmq"})
_JSON = b"application/json"
_ALWAYS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
)
_TOO_LONG = f"The body may have {HTTP_BODY_BYTES_MAX:,} bytes; send less at a time."


class AdminApi:
    """An ASGI application. ``ask`` carries requests out, ``callers`` identifies their callers."""

    def __init__(self, *, ask: Ask, callers: AdminCallers, data_port: int) -> None:
        """``data_port`` is that of the queues, whose URLs get the host name that the caller uses."""
        self._ask = ask
        self._callers = callers
        self._data_port = data_port
        self._description = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        request = Request(scope, receive)
        try:
            answer = await self._answer(request, receive)
        except CallerUnknown as unknown:
            answer = _refusal(unknown.status, "AccessDenied", str(unknown), headers=unknown.headers)
        except ClientDisconnect:
            return
        if answer is not None:
            await _send(answer, send, empty=request.method == "HEAD")

    async def _answer(self, request: Request, receive: Receive) -> Answer | None:
        """Return the answer to a request, ``None`` where its client has gone."""
        path = _path(request.scope)
        if path == _DESCRIPTION and request.method in {"GET", "HEAD"}:
            if not self._description:
                self._description = await asyncio.to_thread(described)  # some 50 ms, once
            return Answer(200, b"", self._description)
        caller = self._callers.caller(request)
        forwarded = self._forwarded(path, request, caller)
        body = await _body(request)
        if body is None:
            return _refusal(413, "InvalidRequest", _TOO_LONG)
        return await self._unless_gone(forwarded._replace(body=body), receive)

    def _forwarded(self, path: bytes, request: Request, caller: Caller | None) -> Asked:
        """Return a request as the queues' port would have got it, without its body."""
        headers = {name: value for name, value in request.headers.raw if name in _PASSED_ON}
        host = request.headers.get("host", "").encode("latin-1")
        if host:
            headers[b"host"] = _PORT.sub(b"", host) + b":%d" % self._data_port
        peer = None if request.client is None else request.client.host
        forwarded = Asked(request.method.encode(), b"/", headers, b"", caller, peer)
        action = _SQS.fullmatch(path)
        if action is not None:
            return forwarded._replace(headers=headers | {b"x-amz-target": b"AmazonSQS." + action[1]})
        query: bytes = request.scope["query_string"]
        whole = path + b"/-" if _NOUN.fullmatch(path) else path
        return forwarded._replace(target=b"/v1/" + whole + (b"?" + query if query else b""))

    async def _unless_gone(self, forwarded: Asked, receive: Receive) -> Answer | None:
        """Ask, and take it back when the client goes: ``receive`` says so, and has nothing else to say any more."""
        asking = asyncio.ensure_future(self._ask(forwarded))
        going = asyncio.ensure_future(receive())
        try:
            await asyncio.wait((asking, going), return_when=asyncio.FIRST_COMPLETED)
            return asking.result() if asking.done() else None
        finally:
            for task in (asking, going):
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


def _path(scope: Scope) -> bytes:
    """Return what stands behind the prefix, as it was sent."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].removeprefix(PREFIX)


async def _body(request: Request) -> bytes | None:
    """Return the body, ``None`` for one that is too long."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > HTTP_BODY_BYTES_MAX:
            return None
    return bytes(body)


def _refusal(status: int, code: str, message: str, *, headers: bytes = b"") -> Answer:
    return Answer(status, headers, msgspec.json.encode({"code": code, "message": message}))


def _lines(headers: bytes) -> Iterator[tuple[bytes, bytes]]:
    for line in headers.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            yield name.strip().lower(), value.strip()


async def _send(answer: Answer, send: Send, *, empty: bool) -> None:
    headers = {b"content-type": _JSON, **dict(_lines(answer.headers))}
    headers[b"content-length"] = b"%d" % len(answer.body)
    await send({"type": "http.response.start", "status": answer.status, "headers": [*headers.items(), *_ALWAYS]})
    await send({"type": "http.response.body", "body": b"" if empty else answer.body})


_NO_LINE: Any = None  # what a request needs of its connection, ``_Awaited`` does itself


class InProcessClient:
    """Asks the queues of one server."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        """``dispatcher`` is the handler of the requests that come by sockets."""
        self._dispatcher = dispatcher
        self._awaited: set[_Awaited] = set()

    def __len__(self) -> int:
        """Return how many requests have no answer yet."""
        return len(self._awaited)

    def hurry(self) -> None:
        """Have what waits answered as soon as possible: the server is closing."""
        for request in list(self._awaited):
            if request.pending is not None:
                request.pending.hurry()

    async def ask(self, forwarded: Asked) -> Answer:
        """Return the answer to a request.

        Whoever is cancelled takes the request back, as a client that hangs up does. Raises ``PermissionError`` for no
        caller where there are accounts: a defect of ours, that must not open the door.
        """
        if forwarded.caller is None and self._dispatcher.signed:
            raise PermissionError("This server has accounts, and the request has no caller.")
        headers = dict(forwarded.headers)
        program = headers.pop(b"user-agent", None)
        request = _Awaited(_NO_LINE, forwarded.method, forwarded.target, headers, forwarded.body, True)
        request.peer, request.program = forwarded.peer, program
        request.answer = asyncio.get_running_loop().create_future()
        self._awaited.add(request)
        try:
            request.pending = self._dispatcher.handle(request, forwarded.caller)
            return await request.answer
        except asyncio.CancelledError:
            if request.pending is not None:
                request.pending.withdraw()
            raise
        finally:
            self._awaited.discard(request)


class _Awaited(QueueRequest, eq=False):
    """A request whose reply is awaited in the process; it is never written as bytes of HTTP.

    ``program`` is for policies alone: as a header it would make the request one of a browser, which is refused here.
    """

    answer: "asyncio.Future[Answer] | None" = None
    peer: str | None = None
    program: bytes | None = None

    def respond(self, status: int, headers: bytes, body: bytes) -> None:
        """Answer, exactly once; a cancelled caller gets nothing."""
        assert self.answer is not None, "set before it is sent"
        assert self.reply is None, "a request is answered once"
        self.pending, self.reply = None, body
        if not self.answer.done():
            self.answer.set_result(Answer(status, headers, body))

    def source_ip(self) -> str | None:
        """Return the address of the client of the other port."""
        return self.peer

    def user_agent(self) -> str | None:
        """Return the program of the client of the other port."""
        return None if self.program is None else self.program.decode("latin-1")

    def in_turn(self, begin: Callable[[], None]) -> None:
        """Begin at once: nothing is before it."""
        begin()

    def end_connection(self) -> None:
        """Do nothing: there is no connection."""

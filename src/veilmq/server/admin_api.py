"""The API of the operator's port, ``/api/``: our own routes and the actions of SQS, for those the console lets in.

``/api/queues`` is ``/v1/queues/-`` of the queues' port, ``/api/queues/{account}/{queue}/show`` is
``/v1/queues/{account}/{queue}/show``, and so for every route; ``POST /api/sqs/{Action}`` takes an action's JSON. What
is asked goes the way of the console's own requests: the same policies decide, and changes are in the audit log.
"""

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from veilmq.console.asking import Answer, Ask, Asked
from veilmq.core.limits import HTTP_BODY_BYTES_MAX
from veilmq.server.admin_callers import AdminCallers, CallerUnknown
from veilmq.wire.exchange import Caller
from veilmq.wire.v1.routes import described

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
    """An ASGI application. ``ask`` carries requests out, ``callers`` says whose they are."""

    def __init__(self, *, ask: Ask, callers: AdminCallers, data_port: int) -> None:
        """``data_port`` is that of the queues, whose URLs are told under the host name that the caller knows."""
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
        """Return the answer to a request, ``None`` where nobody waits for it any more."""
        path = _path(request.scope)
        if path == _DESCRIPTION and request.method in {"GET", "HEAD"}:
            if not self._description:
                self._description = await asyncio.to_thread(described)  # some 50 ms, once
            return Answer(200, b"", self._description)
        caller = self._callers.caller(request)
        asked = self._asked(path, request, caller)
        body = await _body(request)
        if body is None:
            return _refusal(413, "InvalidRequest", _TOO_LONG)
        return await self._unless_gone(asked._replace(body=body), receive)

    def _asked(self, path: bytes, request: Request, caller: Caller | None) -> Asked:
        """Return a request as the queues' port would have got it, without its body."""
        headers = {name: value for name, value in request.headers.raw if name in _PASSED_ON}
        host = request.headers.get("host", "").encode("latin-1")
        if host:
            headers[b"host"] = _PORT.sub(b"", host) + b":%d" % self._data_port
        peer = None if request.client is None else request.client.host
        asked = Asked(request.method.encode(), b"/", headers, b"", caller, peer)
        action = _SQS.fullmatch(path)
        if action is not None:
            return asked._replace(headers=headers | {b"x-amz-target": b"AmazonSQS." + action[1]})
        query: bytes = request.scope["query_string"]
        whole = path + b"/-" if _NOUN.fullmatch(path) else path
        return asked._replace(target=b"/v1/" + whole + (b"?" + query if query else b""))

    async def _unless_gone(self, asked: Asked, receive: Receive) -> Answer | None:
        """Ask, and take it back when the client goes: ``receive`` says so, and has nothing else to say any more."""
        asking = asyncio.ensure_future(self._ask(asked))
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
    told = {b"content-type": _JSON, **dict(_lines(answer.headers))}
    told[b"content-length"] = b"%d" % len(answer.body)
    await send({"type": "http.response.start", "status": answer.status, "headers": [*told.items(), *_ALWAYS]})
    await send({"type": "http.response.body", "body": b"" if empty else answer.body})

"""The API client of pages: requests as the page's caller, by the actions of SQS and the routes of veilmq's API.

So a page shows and does only what its account may see and do, and nothing that a program could not.
"""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from veilmq.wire.exchange import Caller


class ApiRequest(NamedTuple):
    """A request to the queues; ``headers`` have lower-case names.

    ``caller`` is ``None`` without authentication; ``peer`` is the address for conditions of policies.
    """

    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes
    caller: Caller | None
    peer: str | None


class ApiReply(NamedTuple):
    """A reply: HTTP status, complete header lines, and body."""

    status: int
    headers: bytes
    body: bytes


SendRequest = Callable[[ApiRequest], Coroutine[Any, Any, ApiReply]]
"""Runs a request in the process, without a signature; raises only cancellation."""


class ApiError(Exception):
    """An error reply: ``code`` is its name, ``str()`` a sentence for a person."""

    def __init__(self, code: str, message: str, status: int, fields: Mapping[str, Any] | None = None) -> None:
        """``fields`` has further fields of the reply, such as the ``setting`` to correct."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.fields = fields or {}

    @property
    def is_denied(self) -> bool:
        return self.code in {"AccessDenied", "AccessDeniedException"}

    @property
    def is_missing(self) -> bool:
        """Whether the queue does not exist."""
        return self.code in {"QueueDoesNotExist", "QueueNotFound", "AWS.SimpleQueueService.NonExistentQueue"}


class ApiClient:
    """Sends requests of one caller."""

    def __init__(
        self,
        send_request: SendRequest,
        *,
        caller: Caller | None,
        peer: str | None,
        host: str,
        program: str | None = None,
    ) -> None:
        """``host`` is the ``Host`` header, used in URLs of queues; ``program`` is the browser's user agent."""
        self._send = send_request
        self._caller = caller
        self._peer = peer
        self._always = {b"host": host.encode("latin-1")}
        if program is not None:
            self._always[b"user-agent"] = program.encode("latin-1")

    async def sqs(self, action: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Run an action of SQS; fields and results have the names of its JSON API. Raises ``ApiError``."""
        headers = {b"x-amz-target": b"AmazonSQS." + action.encode(), b"content-type": b"application/x-amz-json-1.0"}
        reply: dict[str, Any] = await self._request(b"POST", b"/", headers, msgspec.json.encode(fields))
        return reply

    async def api(
        self, method: str, path: str, *, query: Mapping[str, Any] | None = None, fields: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a route of veilmq's API (``docs/protocols``), whose path begins with ``/v1/``. Raises ``ApiError``."""
        target = path + ("?" + urlencode(query) if query else "")
        body = b"" if fields is None else msgspec.json.encode(fields)
        return await self._request(method.encode(), target.encode(), {}, body)

    async def _request(self, method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes) -> Any:
        reply = await self._send(ApiRequest(method, target, self._always | headers, body, self._caller, self._peer))
        if reply.status >= 400:
            raise error_in(reply)
        return msgspec.json.decode(reply.body) if reply.body else {}


def api_path(noun: str, queue: str, verb: str = "") -> str:
    """Return the path of a route of veilmq's API for a queue, by its full name."""
    return f"/v1/{noun}/{quote(queue, safe='/@')}" + (f"/{verb}" if verb else "")


def error_in(reply: ApiReply) -> ApiError:
    """Return the error in a reply of SQS or of veilmq's API."""
    try:
        fields = msgspec.json.decode(reply.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return ApiError("InternalError", reply.body.decode("utf-8", "replace")[:500].strip(), reply.status)
    code = str(fields.get("code") or fields.get("__type", "InternalError"))
    return ApiError(code.rpartition("#")[2], str(fields.get("message", "")), reply.status, fields)

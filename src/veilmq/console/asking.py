"""The API client of pages: requests as the page's caller, by the actions of SQS and the routes of veilmq's API.

So a page shows and does only what its account may see and do, and nothing that a program could not.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from veilmq.wire.exchange import Caller


class Asked(NamedTuple):
    """A request to the queues; ``headers`` have lower-case names.

    ``caller`` is ``None`` without authentication; ``peer`` is the address for conditions of policies.
    """

    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes
    caller: Caller | None
    peer: str | None


class Answer(NamedTuple):
    """A reply: HTTP status, complete header lines, and body."""

    status: int
    headers: bytes
    body: bytes


Ask = Callable[[Asked], Awaitable[Answer]]
"""Runs a request in the process, without a signature; raises only cancellation."""


class Refused(Exception):
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
        """Whether a policy forbids the request."""
        return self.code in {"AccessDenied", "AccessDeniedException"}

    @property
    def is_missing(self) -> bool:
        """Whether the queue does not exist."""
        return self.code in {"QueueDoesNotExist", "QueueNotFound", "AWS.SimpleQueueService.NonExistentQueue"}


class Asking:
    """Sends requests of one caller."""

    def __init__(
        self, ask: Ask, *, caller: Caller | None, peer: str | None, host: str, program: str | None = None
    ) -> None:
        """``host`` is the ``Host`` header, used in URLs of queues; ``program`` is the browser's user agent."""
        self._ask = ask
        self._caller = caller
        self._peer = peer
        self._always = {b"host": host.encode("latin-1")}
        if program is not None:
            self._always[b"user-agent"] = program.encode("latin-1")

    async def sqs(self, action: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Run an action of SQS; fields and results have the names of its JSON API. Raises ``Refused``."""
        headers = {b"x-amz-target": b"AmazonSQS." + action.encode(), b"content-type": b"application/x-amz-json-1.0"}
        found: dict[str, Any] = await self._answer(b"POST", b"/", headers, msgspec.json.encode(fields))
        return found

    async def api(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a route of veilmq's API (``docs/protocols``), whose path begins with ``/v1/``. Raises ``Refused``."""
        target = path + ("?" + urlencode(query) if query else "")
        body = b"" if fields is None else msgspec.json.encode(fields)
        return await self._answer(method.encode(), target.encode(), {}, body)

    async def _answer(self, method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes) -> Any:
        answer = await self._ask(Asked(method, target, self._always | headers, body, self._caller, self._peer))
        if answer.status >= 400:
            raise refusal(answer)
        return msgspec.json.decode(answer.body) if answer.body else {}


def refusal(answer: Answer) -> Refused:
    """Return the error in a reply of SQS or of veilmq's API."""
    try:
        told = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return Refused("InternalError", answer.body.decode("utf-8", "replace")[:500].strip(), answer.status)
    code = str(told.get("code") or told.get("__type", "InternalError"))
    return Refused(code.rpartition("#")[2], str(told.get("message", "")), answer.status, told)

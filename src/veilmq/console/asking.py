"""How a page asks: as its caller, by the actions of SQS and the routes of our own API, which anybody may use.

So what a page shows and does is what its account may see and do, and nothing that a program could not.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import msgspec

from veilmq.wire.exchange import Caller


class Asked(NamedTuple):
    """A request to the queues; ``headers`` are by lower-case name.

    ``caller`` is ``None`` where nobody is asked who he is; ``peer`` is the address that policies see.
    """

    method: bytes
    target: bytes
    headers: Mapping[bytes, bytes]
    body: bytes
    caller: Caller | None
    peer: str | None


class Answer(NamedTuple):
    """What comes back: an HTTP status, whole header lines, and a body."""

    status: int
    headers: bytes
    body: bytes


Ask = Callable[[Asked], Awaitable[Answer]]
"""Carries a request to the queues without a socket and without a signature; raises nothing but cancellation."""


class Refused(Exception):
    """The request was answered with an error: ``code`` names it, ``str()`` is its sentence, for a person."""

    def __init__(self, code: str, message: str, status: int, fields: Mapping[str, Any] | None = None) -> None:
        """``status`` is that of HTTP; ``fields`` is what else the answer told, as the ``setting`` to correct."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.fields = fields or {}

    @property
    def is_denied(self) -> bool:
        """Whether a policy forbids it."""
        return self.code in {"AccessDenied", "AccessDeniedException"}

    @property
    def is_missing(self) -> bool:
        """Whether there is no such queue."""
        return self.code in {"QueueDoesNotExist", "QueueNotFound", "AWS.SimpleQueueService.NonExistentQueue"}


class Asking:
    """What one caller asks."""

    def __init__(
        self, ask: Ask, *, caller: Caller | None, peer: str | None, host: str, program: str | None = None
    ) -> None:
        """``host`` is the ``Host`` header under which URLs of queues are told, ``program`` the browser's name."""
        self._ask = ask
        self._caller = caller
        self._peer = peer
        self._always = {b"host": host.encode("latin-1")}
        if program is not None:
            self._always[b"user-agent"] = program.encode("latin-1")

    async def sqs(self, action: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Have an action of SQS carried out; answers and fields have the names of its JSON. Raises ``Refused``.

        (SQS API Reference, "Actions")
        """
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
        """Ask a route of our own API (``docs/protocols``), whose path begins with ``/v1/``. Raises ``Refused``."""
        target = path + ("?" + urlencode(query) if query else "")
        body = b"" if fields is None else msgspec.json.encode(fields)
        return await self._answer(method.encode(), target.encode(), {}, body)

    async def _answer(self, method: bytes, target: bytes, headers: dict[bytes, bytes], body: bytes) -> Any:
        answer = await self._ask(Asked(method, target, self._always | headers, body, self._caller, self._peer))
        if answer.status >= 400:
            raise refusal(answer)
        return msgspec.json.decode(answer.body) if answer.body else {}


def refusal(answer: Answer) -> Refused:
    """Return what an answer of SQS or of our API says that went wrong."""
    try:
        told = msgspec.json.decode(answer.body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return Refused("InternalError", answer.body.decode("utf-8", "replace")[:500].strip(), answer.status)
    code = str(told.get("code") or told.get("__type", "InternalError"))
    return Refused(code.rpartition("#")[2], str(told.get("message", "")), answer.status, told)

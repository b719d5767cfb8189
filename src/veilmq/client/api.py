"""One queue through veilmq's own API (``/v1/…``): paths, JSON, and errors by the names of their classes.

A queue is named by its URL, or by its plain name where it is one of the caller's own account: the server is then asked
once for the URL, whose path says the account.
"""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

import msgspec

from veilmq.client.errors import ClientError
from veilmq.client.signing import SigningKey
from veilmq.client.transport import Answer, Reply, Transport, decode, unexpected
from veilmq.wire.sqs.names import full_name
from veilmq.wire.sqs.queues import GetQueueUrlRequest, QueueUrlResult

_JSON = "application/json"


class _ErrorReply(msgspec.Struct, frozen=True):
    code: str
    message: str


class QueueApi:
    """The root of clients of one ``noun`` of a queue; close them, or use them as context managers.

    Threads may share one.
    """

    noun: ClassVar[str]

    def __init__(
        self, endpoint: str, queue: str, *, key: SigningKey | None = None, transport: Transport | None = None
    ) -> None:
        """``queue`` is a name or a URL; raises ``ValueError`` for an ``endpoint`` that is none.

        ``transport`` is one that is there already, and is used in place of a new one.
        """
        self._transport = transport or Transport(endpoint, key=key)
        self._queue = queue
        self._path = ""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._transport.close()

    def post(self, verb: str, fields: Mapping[str, Any], reply_type: type[Reply], *, wait_s: int = 0) -> Reply:
        """Return the answer to ``fields``; raises ``ClientError`` and ``Unreachable``."""
        body = msgspec.json.encode(fields)
        return decode(self.ask("POST", verb, body=body, content_type=_JSON, wait_s=wait_s), reply_type)

    def get(self, verb: str, parameters: Mapping[str, Any], reply_type: type[Reply]) -> Reply:
        """Return the answer to ``parameters``; raises ``ClientError`` and ``Unreachable``."""
        return decode(self.ask("GET", verb, parameters=parameters), reply_type)

    def ask(
        self,
        method: str,
        verb: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        body: bytes = b"",
        content_type: str = "",
        wait_s: int = 0,
    ) -> Answer:
        """Return the answer as it came, of status 200; raises ``ClientError`` and ``Unreachable``."""
        target = self._target() + (f"/{verb}" if verb else "")
        if parameters:
            target += "?" + urlencode(parameters)
        headers = {"Content-Type": content_type} if content_type else {}
        answer = self._transport.ask(method, target, headers=headers, body=body, wait_s=wait_s)
        if answer.status != 200:
            raise _error(answer)
        return answer

    def _target(self) -> str:
        if not self._path:
            self._path = f"/v1/{self.noun}/{self._place()}"
        return self._path

    def _place(self) -> str:
        """Return account and name of the queue, as they are in a path."""
        url = self._queue
        if "/" not in url:
            request = GetQueueUrlRequest(queue_name=url)
            url = self._transport.call("GetQueueUrl", request, QueueUrlResult).queue_url
        return full_name(url)


def _error(answer: Answer) -> ClientError:
    try:
        reply = msgspec.json.decode(answer.data, type=_ErrorReply)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return unexpected(answer)
    return ClientError(reply.code, reply.message, answer.status, fields=msgspec.json.decode(answer.data))

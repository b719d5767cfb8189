"""One request and its answer over HTTP, through a pool of kept-alive connections: ``call`` speaks AWS JSON 1.0.

A request is tried up to three times: again after a failed connection, a reply that was cut off or did not come in time,
and a status of 500, 502, 503 or 504, with a growing pause between. Deletes, changes and settings have the same effect
twice. A send whose reply was lost may already be stored, and is sent again all the same, as the clients of standard
queues do: delivery is at least once anyway. A receive whose reply was lost leaves its messages hidden until their
timeout ends.

A signed request that is refused with a date minutes away from ours is signed anew by that date, and tried once more: a
machine whose clock is wrong can work all the same.
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic, time
from typing import Any, TypeVar

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError, NameResolutionError, ReadTimeoutError
from urllib3.util import Retry, Timeout, Url, parse_url

from veilmq.client.errors import ClientError, Unreachable
from veilmq.client.signing import Signer, SigningKey

CONNECT_S_MAX = 5.0
ANSWER_S_MAX = 10.0
ATTEMPTS_MAX = 3
PAUSE_S_MAX = 2.0
CONNECTIONS_KEPT = 10

UNEXPECTED_REPLY = "UnexpectedReply"
"""Our own code for an answer that no queue server gives."""

_TARGET = "AmazonSQS."
_CONTENT_TYPE = "application/x-amz-json-1.0"
_RETRIED_STATUSES = (500, 502, 503, 504)
_REFUSED_STATUSES = (400, 401, 403)
_REST_S_MIN = 0.05
_SHOWN_CHARACTERS_MAX = 200
_ONCE = Retry(total=0, raise_on_status=False)

Reply = TypeVar("Reply")
Answer = urllib3.BaseHTTPResponse
"""Status, headers and the body (``data``)."""


class _ErrorReply(msgspec.Struct, frozen=True):
    """The body of an error."""

    type: str = msgspec.field(name="__type")
    message: str = ""


class Waits:
    """The connections of one pool on which a server takes its time on purpose; used by several threads.

    A thread that waits for an answer cannot be stopped. So the sending half of its connection is closed, and the
    reading half stays open: a server that notices answers what was asked, with what it has, or closes; veilmq answers
    at once. A message that was handed out at that very moment still arrives, and can be released; a connection that is
    closed whole would take it along.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._here = threading.local()
        self._lock = threading.Lock()
        self._waiting: set[Any] = set()

    @contextmanager
    def during(self, wait_s: int) -> Iterator[None]:
        """Have this thread's calls be such that can be hung up on, where ``wait_s`` is not 0."""
        self._here.waits = wait_s > 0
        try:
            yield
        finally:
            self._here.waits = False

    def watched(self, connection_class: type[Any]) -> type[Any]:
        """Return the pool's class of connections, which from then on says when one of them waits for an answer."""
        waits = self

        class Watched(connection_class):  # type: ignore[misc]
            """A connection that can be hung up on, and is not used again then."""

            is_hung_up = False

            @property
            def is_connected(self) -> bool:
                """Whether the pool may give it out."""
                return not self.is_hung_up and bool(super().is_connected)

            def close(self) -> None:
                """Close it; the next request opens it anew."""
                super().close()
                self.is_hung_up = False

            def getresponse(self) -> Answer:
                """Wait for the answer."""
                if not getattr(waits._here, "waits", False):
                    return super().getresponse()  # type: ignore[no-any-return]
                with waits._lock:
                    waits._waiting.add(self)
                try:
                    return super().getresponse()  # type: ignore[no-any-return]
                finally:
                    with waits._lock:
                        waits._waiting.discard(self)

        return Watched

    def hang_up(self) -> None:
        """Close the sending half of those that wait now."""
        with self._lock:
            for connection in self._waiting:
                connection.is_hung_up = True
                with suppress(OSError, AttributeError):  # it is closed, or its socket is the response's by now
                    socket.socket.shutdown(connection.sock, socket.SHUT_WR)  # past TLS, whose shutdown is another's


class Transport:
    """A pool of connections to one endpoint, shared by threads."""

    def __init__(self, endpoint: str, *, key: SigningKey | None = None, wall_s: Callable[[], float] = time) -> None:
        """``endpoint`` is like ``http://127.0.0.1:9324``; raises ``ValueError`` for anything else.

        With a ``key`` requests are signed, with the date that ``wall_s`` gives in seconds since the epoch.
        """
        self.endpoint = endpoint
        self._signer = None if key is None else Signer(key, wall_s)
        self._path = _path_of(endpoint)
        self._host = parse_url(endpoint).netloc or ""
        self._waits = Waits()
        self._pool = urllib3.connection_from_url(endpoint, maxsize=CONNECTIONS_KEPT, retries=_retries())
        self._pool.ConnectionCls = self._waits.watched(self._pool.ConnectionCls)

    def call(
        self,
        action: str,
        request: msgspec.Struct,
        reply_type: type[Reply],
        *,
        wait_s: int = 0,
        patience_s: float | None = None,
    ) -> Reply:
        """Ask for ``action`` and return the answer; ``wait_s`` and ``patience_s`` are those of ``ask``.

        Raises ``ClientError`` and ``Unreachable``.
        """
        headers = {"Content-Type": _CONTENT_TYPE, "X-Amz-Target": _TARGET + action}
        answer = self.ask(
            "POST", "", headers=headers, body=msgspec.json.encode(request), wait_s=wait_s, patience_s=patience_s
        )
        if answer.status != 200:
            raise _error(answer)
        return decode(answer, reply_type)

    def hang_up(self) -> None:
        """End the calls that the server keeps waiting on purpose (``wait_s``): it answers now, or closes."""
        self._waits.hang_up()

    def close(self) -> None:
        """Close the idle connections; the transport can still be used and opens new ones."""
        self._pool.close()

    def ask(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        wait_s: int = 0,
        patience_s: float | None = None,
    ) -> Answer:
        """Send a request and return the answer, whatever its status; raises ``Unreachable``.

        ``target`` is a path, perhaps with a query, below that of the endpoint; empty for that one itself. ``wait_s`` is
        how long the server may take on purpose. With ``patience_s`` the request is tried once and given up after that.
        """
        target = self._path.rstrip("/") + target if target else self._path
        send = partial(self._send, method, target, body=body, wait_s=wait_s)
        signer = self._signer
        if signer is None:
            return send(headers=headers, patience_s=patience_s)
        began_s, at_s = monotonic(), signer.now_s()
        signed = partial(signer.sign, target, {**headers, "Host": self._host}, body, method=method)
        answer = send(headers=signed(at_s=at_s), patience_s=patience_s)
        refused = answer.status in _REFUSED_STATUSES
        if not refused or not signer.is_set_right(answer.headers.get("Date"), signed_at_s=at_s):
            return answer
        rest_s = None if patience_s is None else max(_REST_S_MIN, patience_s - (monotonic() - began_s))
        return send(headers=signed(at_s=signer.now_s()), patience_s=rest_s)

    def _send(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        wait_s: int,
        patience_s: float | None,
    ) -> Answer:
        try:
            with self._waits.during(wait_s):
                return self._pool.urlopen(
                    method,
                    target,
                    body=body,
                    headers=headers,
                    timeout=_timeout(wait_s, patience_s),
                    retries=None if patience_s is None else _ONCE,
                    redirect=False,
                    assert_same_host=False,
                )
        except HTTPError as error:
            raise Unreachable(self.endpoint, _reason(error)) from error


def _path_of(endpoint: str) -> str:
    """Return the path that all requests go to; raises ``ValueError`` when ``endpoint`` is no endpoint."""
    try:
        url = parse_url(endpoint)
    except LocationParseError:
        url = Url()
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise ValueError(f"{endpoint!r} is not an endpoint; it must look like http://127.0.0.1:9324")
    return url.path or "/"


def _timeout(wait_s: int, patience_s: float | None) -> Timeout:
    if patience_s is None:
        return Timeout(connect=CONNECT_S_MAX, read=wait_s + ANSWER_S_MAX)
    return Timeout(connect=min(CONNECT_S_MAX, patience_s), total=patience_s)


def _retries() -> Retry:
    return Retry(
        total=ATTEMPTS_MAX - 1,
        status_forcelist=_RETRIED_STATUSES,
        allowed_methods=None,  # a POST too
        backoff_factor=0.1,
        backoff_max=PAUSE_S_MAX,
        raise_on_status=False,  # the last answer says why
        respect_retry_after_header=False,  # a server must not be able to stop a client for hours
    )


def decode(answer: Answer, reply_type: type[Reply]) -> Reply:
    """Return what the JSON of ``answer`` says; raises ``ClientError`` for what is none, or another."""
    try:
        return msgspec.json.decode(answer.data or b"{}", type=reply_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The answer is not that of a queue server: {error}.", 200) from error


def _error(answer: Answer) -> ClientError:
    try:
        reply = msgspec.json.decode(answer.data, type=_ErrorReply)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return unexpected(answer)
    return ClientError(reply.type.rpartition("#")[2], reply.message, answer.status)


def unexpected(answer: Answer) -> ClientError:
    """Return the error for an answer that no queue server gives."""
    text = answer.data[:_SHOWN_CHARACTERS_MAX].decode(errors="replace")
    return ClientError(UNEXPECTED_REPLY, f"The answer is not that of a queue server: {text!r}.", answer.status)


def _reason(error: BaseException) -> str:
    """Say in a few words why there was no answer."""
    if isinstance(error, MaxRetryError) and error.reason is not None:
        return _reason(error.reason)
    if isinstance(error, ReadTimeoutError):
        return "no answer in time"
    if isinstance(error, NameResolutionError):
        return "no such host"
    return _cause(error)


def _cause(error: BaseException) -> str:
    """Return the operating system's words for what is at the bottom of ``error``, else its own."""
    cause = error.__cause__ or error.__context__
    if cause is not None:
        return _cause(cause)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)

"""HTTP requests over pools of keep-alive connections, signed with AWS Signature Version 4 if there is a key.

A request is tried up to three times, with backoff: again after a failed connection, a truncated or late reply, or a
status of 500, 502, 503 or 504. Deletes, changes and settings are idempotent. A send whose reply was lost is repeated
although it may be stored, as by other clients of standard queues: delivery is at least once anyway. A receive whose
reply was lost leaves its messages hidden until their timeout.

Servers refuse a signature whose date is minutes off. Such a request is signed again with the date of the error reply
and tried once more, so machines with a wrong clock work.
"""

import os
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import sha256
from hmac import digest
from queue import Empty, Full, LifoQueue
from ssl import SSLCertVerificationError, SSLError
from time import monotonic, time
from typing import Any, Self, TypeVar
from weakref import WeakSet

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError, NameResolutionError, ReadTimeoutError
from urllib3.poolmanager import pool_classes_by_scheme
from urllib3.util import Retry, Timeout, Url, parse_url

from veilmq.client.messages import ClientError, Unreachable
from veilmq.wire.exchange import DEFAULT_REGION
from veilmq.wire.sqs.signatures import ALGORITHM, canonical_path, canonical_query, query_pairs, signing_key

CONNECT_S_MAX = 5.0
REPLY_S_MAX = 10.0
ATTEMPTS_MAX = 3
BACKOFF_S_MAX = 2.0
CONNECTIONS_KEPT = 100  # urllib3 closes further ones, and logs a warning for each

UNEXPECTED_REPLY = "UnexpectedReply"
"""A code of this client: the reply is not that of a queue server."""

_TARGET = "AmazonSQS."
_CONTENT_TYPE = "application/x-amz-json-1.0"
RETRIED_STATUSES = (500, 502, 503, 504)
_REFUSED_STATUSES = (400, 401, 403)
_REMAINING_S_MIN = 0.05
_SHOWN_CHARACTERS_MAX = 200
_ONCE = Retry(total=0, raise_on_status=False)
_RETRIES = Retry(
    total=ATTEMPTS_MAX - 1,
    status_forcelist=RETRIED_STATUSES,
    allowed_methods=None,  # a POST too
    backoff_factor=0.1,
    backoff_max=BACKOFF_S_MAX,
    raise_on_status=False,  # the last reply has the error
    respect_retry_after_header=False,  # a server must not stop a client for hours
)

Reply = TypeVar("Reply")
HttpReply = urllib3.BaseHTTPResponse
"""Status, headers and the body (``data``)."""


class _ErrorReply(msgspec.Struct, frozen=True):
    """The body of an error: SQS has a ``type``, veilmq's own API a ``code`` and further fields."""

    type: str = msgspec.field(name="__type", default="")
    code: str = ""
    message: str = ""


SKEW_S_MIN = 120.0
"""Services refuse dates that are 5 or 15 minutes off; a date off by less than this was not the reason of an error."""
YEARS = range(2000, 2100)
"""The years of valid dates of servers; another date could make signing impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """An access key; ``repr()`` omits the secret and the token."""

    id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str = DEFAULT_REGION

    def sign(
        self, target: str, headers: Mapping[str, str], body: bytes, *, now: datetime, method: str = "POST"
    ) -> dict[str, str]:
        """Return ``headers``, which include ``Host``, with the date and the signature of a request for ``target``.

        ``target`` is a path with an optional query; ``now`` is in UTC.
        """
        date = now.strftime("%Y%m%dT%H%M%SZ")
        signed_headers = {**headers, "X-Amz-Date": date}
        if self.session_token is not None:
            signed_headers["X-Amz-Security-Token"] = self.session_token
        lines = sorted((name.lower(), value) for name, value in signed_headers.items())
        names = ";".join(name for name, _ in lines)
        path, _, query = target.encode().partition(b"?")
        request = b"%b\n%b\n%b\n%b\n%b\n%b" % (
            method.encode(),
            canonical_path(path),
            canonical_query(query_pairs(query)),
            "".join(f"{name}:{value}\n" for name, value in lines).encode(),
            names.encode(),
            sha256(body).hexdigest().encode(),
        )
        scope = f"{date[:8]}/{self.region}/sqs/aws4_request"
        text = f"{ALGORITHM.decode()}\n{date}\n{scope}\n{sha256(request).hexdigest()}"
        signature = digest(signing_key(self.secret.encode(), scope.encode()), text.encode(), "sha256").hex()
        credential = f"Credential={self.id}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**signed_headers, "Authorization": f"{ALGORITHM.decode()} {credential}"}


class ServerTime:
    """Wall clock time, adjusted to the server after it refuses a date."""

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._offset_s = 0.0

    def now_s(self) -> float:
        """Return the estimated time of the server, in seconds since the epoch."""
        return self._wall_s() + self._offset_s

    def adjust(self, date: str | None, *, signed_at_s: float) -> bool:
        """Adjust the clock to ``date``, of an error reply, if ``signed_at_s`` was minutes off; return whether it was.

        Then a retry may succeed. A missing or implausible ``date`` is ignored.
        """
        try:
            found = parsedate_to_datetime(date or "")
        except (ValueError, OverflowError):
            return False
        if found.year not in YEARS:
            return False
        server_s = found.replace(tzinfo=found.tzinfo or UTC).timestamp()
        if abs(server_s - signed_at_s) < SKEW_S_MIN:
            return False
        self._offset_s = server_s - self._wall_s()
        return True


def key_from(environment: Mapping[str, str]) -> SigningKey | None:
    """Return the access key in the environment variables of AWS tools, if any."""
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "REGION", "DEFAULT_REGION")
    # A variable that is read from a file often ends with a newline.
    key_id, secret, token, region, default = (environment.get(f"AWS_{name}", "").strip() for name in names)
    if not key_id or not secret:
        return None
    return SigningKey(id=key_id, secret=secret, session_token=token or None, region=region or default or DEFAULT_REGION)


DEFAULT_ENDPOINT = "http://127.0.0.1:9324"
ENDPOINT_VARIABLES = ("VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL")
"""The first of these variables that is not empty has the default endpoint."""


def endpoint_variable(environment: Mapping[str, str]) -> str | None:
    """Return the name of the variable that has the endpoint, if any."""
    return next((name for name in ENDPOINT_VARIABLES if environment.get(name)), None)


def endpoint_from(environment: Mapping[str, str]) -> str:
    """Return the endpoint in ``environment``, by default that of a server on this machine."""
    variable = endpoint_variable(environment)
    return DEFAULT_ENDPOINT if variable is None else environment[variable]


class _Idle(LifoQueue[Any]):
    """The idle connections of a pool, without a lock: urllib3 would wait at exit for one that Ctrl-C left locked."""

    def put(self, item: Any, block: bool = False, timeout: float | None = None) -> None:
        if len(self.queue) >= self.maxsize:
            raise Full
        self.queue.append(item)

    def get(self, block: bool = False, timeout: float | None = None) -> Any:
        try:
            return self.queue.pop()
        except IndexError:
            raise Empty from None


_POOLS = {scheme: type(each.__name__, (each,), {"QueueCls": _Idle}) for scheme, each in pool_classes_by_scheme.items()}


def new_pools(**options: Any) -> urllib3.PoolManager:
    """Return pools of connections that trust the authority in ``AWS_CA_BUNDLE``, as boto3 does."""
    pools = urllib3.PoolManager(ca_certs=os.environ.get("AWS_CA_BUNDLE"), **options)
    pools.pool_classes_by_scheme = _POOLS
    return pools


class LongPolls:
    """The connections of long polls, of several threads.

    A thread that waits for a reply cannot be stopped. To end its poll, the sending half of the connection is closed:
    the server replies (veilmq immediately) or closes. The reading half stays open, so a message that was received at
    that moment still arrives and can be released; closing both halves would lose it.
    """

    def __init__(self, pool: urllib3.HTTPConnectionPool) -> None:
        self._connections, self._is_closed = set[Any](), threading.Event()
        self.use(pool)

    def use(self, pool: urllib3.HTTPConnectionPool) -> None:
        """Open new connections from ``pool``, and track them."""
        connections, is_closed = self._connections, self._is_closed

        class TrackedConnection(pool.ConnectionCls):  # type: ignore[name-defined,misc]  # that of the scheme
            # No reference to the pool: it would never be collected, and urllib3 would not close its connections.
            def connect(self) -> None:
                super().connect()
                connections.add(self)
                if is_closed.is_set():
                    raise ConnectionAbortedError

            def close(self) -> None:
                connections.discard(self)
                super().close()

        pool.ConnectionCls = TrackedConnection
        self.pool = pool

    def hang_up(self) -> None:
        """Close the sending half of each connection, now or once it is open, and use none again."""
        self._is_closed.set()
        for connection in self._connections.copy():
            with suppress(OSError, TypeError):  # it is closed, or the response owns the socket
                socket.socket.shutdown(connection.sock, socket.SHUT_WR)  # of TCP, not of TLS
        self.pool.close()


class Transport:
    """The connections to one endpoint, shared by threads: a pool, and another for long polls."""

    def __init__(self, endpoint: str, *, key: SigningKey | None = None, wall_s: Callable[[], float] = time) -> None:
        """``endpoint`` is a URL like ``http://127.0.0.1:9324``; raises ``ValueError`` for another form.

        With a ``key`` requests are signed. ``wall_s`` is the clock for signatures, in seconds since the epoch.
        """
        self.endpoint = endpoint
        self._key = key
        self._time = ServerTime(wall_s)
        try:
            url = parse_url(endpoint)
        except LocationParseError:
            url = Url()
        if url.auth:
            raise ValueError("an endpoint has no user name and no password; AWS_ACCESS_KEY_ID names a key")
        if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
            raise ValueError(f"{endpoint!r} is not an endpoint; it must look like http://127.0.0.1:9324")
        self._path = url.path or "/"
        self._host = url.netloc or ""
        self._open()
        _transports.add(self)

    def call(
        self,
        action: str,
        members: Mapping[str, Any],
        reply_type: type[Reply],
        *,
        wait_s: int = 0,
        call_timeout_s: float | None = None,
    ) -> Reply:
        """Run an SQS ``action`` (AWS JSON 1.0) by a ``request``; raises ``ClientError`` and ``Unreachable``."""
        headers = {"Content-Type": _CONTENT_TYPE, "X-Amz-Target": _TARGET + action}
        body = msgspec.json.encode(members)
        reply = self.request("POST", "", headers=headers, body=body, wait_s=wait_s, call_timeout_s=call_timeout_s)
        if reply.status != 200:
            raise client_error(reply)
        return decode(reply, reply_type)

    def _open(self) -> None:
        """Create new, empty pools."""
        self._pool, self._polls = self._new_pool(), LongPolls(self._new_pool())

    def hang_up(self) -> None:
        """End the current long polls (calls with ``wait_s``)."""
        polls, self._polls = self._polls, LongPolls(self._new_pool())
        polls.hang_up()

    def close(self) -> None:
        """Close the idle connections; the transport can still be used, with new ones."""
        closed = self._pool, self._polls.pool
        self._pool = self._new_pool()
        self._polls.use(self._new_pool())
        for pool in closed:
            pool.close()

    def _new_pool(self) -> urllib3.HTTPConnectionPool:
        return new_pools(maxsize=CONNECTIONS_KEPT, retries=_RETRIES).connection_from_url(self.endpoint)

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        wait_s: int = 0,
        call_timeout_s: float | None = None,
    ) -> HttpReply:
        """Send a request and return the reply of any status; raises ``Unreachable``.

        ``target`` is a path with an optional query below the endpoint, or empty. A long poll has a ``wait_s``, which is
        added to the timeout. With ``call_timeout_s`` the request is tried once, with this timeout.
        """
        target = self._path.rstrip("/") + target if target else self._path
        send = partial(self._send, method, target, body, wait_s)
        if self._key is None:
            return send(headers, call_timeout_s)
        sign, headers = partial(self._key.sign, target, method=method, body=body), {**headers, "Host": self._host}
        began_s, at_s = monotonic(), self._time.now_s()
        reply = send(sign(headers, now=datetime.fromtimestamp(at_s, UTC)), call_timeout_s)
        refused = reply.status in _REFUSED_STATUSES
        if not refused or not self._time.adjust(reply.headers.get("Date"), signed_at_s=at_s):
            return reply
        if call_timeout_s is not None:
            call_timeout_s = max(_REMAINING_S_MIN, call_timeout_s - (monotonic() - began_s))
        return send(sign(headers, now=datetime.fromtimestamp(self._time.now_s(), UTC)), call_timeout_s)

    def _send(
        self,
        method: str,
        target: str,
        body: bytes,
        wait_s: int,
        headers: Mapping[str, str],
        call_timeout_s: float | None,
    ) -> HttpReply:
        options: dict[str, Any] = {"timeout": Timeout(connect=CONNECT_S_MAX, read=wait_s + REPLY_S_MAX)}
        if call_timeout_s is not None:
            options = {"timeout": Timeout(connect=CONNECT_S_MAX, total=call_timeout_s), "retries": _ONCE}
        options |= {"body": body, "headers": headers, "redirect": False, "assert_same_host": False}
        try:
            return (self._polls.pool if wait_s else self._pool).urlopen(method, target, **options)
        except HTTPError as error:
            raise Unreachable(self.endpoint, root_cause(error)) from error


class Client:
    """Base class of clients over a transport; close them, or use them as context managers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._transport.close()


_transports: WeakSet[Transport] = WeakSet()


def _open_all() -> None:
    for transport in list(_transports):
        transport._open()


if hasattr(os, "register_at_fork"):  # a child process inherits connections of its parent and locks that stay locked
    os.register_at_fork(after_in_child=_open_all)


def without_none(**members: Any) -> dict[str, Any]:
    """Return the ``members`` that are not ``None``."""
    return {name: value for name, value in members.items() if value is not None}


def decode(reply: HttpReply, reply_type: type[Reply]) -> Reply:
    """Decode the JSON of ``reply`` to ``reply_type``; raises ``ClientError``."""
    try:
        return msgspec.json.decode(reply.data or b"{}", type=reply_type)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The reply is not that of a queue server: {error}.", 200) from error


def client_error(reply: HttpReply) -> ClientError:
    """Return the error in ``reply``."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = msgspec.json.decode(reply.data, type=_ErrorReply)
        if error.code:
            return ClientError(error.code, error.message, reply.status, fields=msgspec.json.decode(reply.data))
        if error.type:
            return ClientError(error.type.rpartition("#")[2], error.message, reply.status)
    return unexpected_reply(reply)


def unexpected_reply(reply: HttpReply) -> ClientError:
    """Return the error for a reply that is not that of a queue server."""
    text = reply.data[:_SHOWN_CHARACTERS_MAX].decode(errors="replace")
    return ClientError(UNEXPECTED_REPLY, f"The reply is not that of a queue server: {text!r}.", reply.status)


def root_cause(error: BaseException) -> str:
    """Return the root cause of ``error`` in a few words, those of the operating system if possible."""
    if isinstance(error, MaxRetryError) and error.reason is not None:
        return root_cause(error.reason)
    if isinstance(error, ReadTimeoutError):
        return "no answer in time"
    if isinstance(error, NameResolutionError):
        return "no such host"
    if isinstance(error, SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); AWS_CA_BUNDLE can name its authority's"
    if isinstance(error, SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "it does not use TLS; write http:// for https://"
    if isinstance(error, FileNotFoundError):
        return "AWS_CA_BUNDLE does not name a file"
    cause = error.__cause__ or error.__context__ or next(reversed(error.args), None)  # ProtocolError: in args
    if isinstance(cause, BaseException):
        return root_cause(cause)
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)

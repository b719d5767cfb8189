"""Requests over HTTP, through pools of kept-alive connections, signed (AWS Signature Version 4) where there is a key.

A request is tried up to three times: again after a failed connection, a reply that was cut off or late, and a status of
500, 502, 503 or 504, with a growing pause between. Deletes, changes and settings are idempotent. A send whose reply was
lost may be stored already, and is repeated all the same, as the clients of standard queues do: delivery is at least
once anyway. A receive whose reply was lost leaves its messages hidden until their timeout ends.

Servers refuse a signature whose date is minutes off. Such a request is signed anew by the date of the refusal and tried
once more, so that a machine whose clock is wrong can work.
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
from time import monotonic, time
from typing import Any, TypeVar
from weakref import WeakSet

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, LocationParseError, MaxRetryError, NameResolutionError, ReadTimeoutError
from urllib3.util import Retry, Timeout, Url, parse_url

from veilmq.client.messages import ClientError, Unreachable
from veilmq.wire.exchange import DEFAULT_REGION
from veilmq.wire.sqs.signatures import ALGORITHM, canonical_path, canonical_query, query_pairs, signing_key

CONNECT_S_MAX = 5.0
REPLY_S_MAX = 10.0
ATTEMPTS_MAX = 3
PAUSE_S_MAX = 2.0
CONNECTIONS_KEPT = 10

UNEXPECTED_REPLY = "UnexpectedReply"
"""Our own code for a reply that no queue server sends."""

_TARGET = "AmazonSQS."
_CONTENT_TYPE = "application/x-amz-json-1.0"
RETRIED_STATUSES = (500, 502, 503, 504)
_REFUSED_STATUSES = (400, 401, 403)
_REST_S_MIN = 0.05
_SHOWN_CHARACTERS_MAX = 200
_ONCE = Retry(total=0, raise_on_status=False)
_RETRIES = Retry(
    total=ATTEMPTS_MAX - 1,
    status_forcelist=RETRIED_STATUSES,
    allowed_methods=None,  # a POST too
    backoff_factor=0.1,
    backoff_max=PAUSE_S_MAX,
    raise_on_status=False,  # the last reply says why
    respect_retry_after_header=False,  # a server must not be able to stop a client for hours
)

Reply = TypeVar("Reply")
HttpReply = urllib3.BaseHTTPResponse
"""Status, headers and the body (``data``)."""


class _ErrorReply(msgspec.Struct, frozen=True):
    """The body of an error: of SQS it has a ``type``, of our own API a ``code`` and further fields."""

    type: str = msgspec.field(name="__type", default="")
    code: str = ""
    message: str = ""


OFF_S_MIN = 120.0
"""Services refuse dates that are 5 minutes off, or 15; one that is off by less than this was not refused for it."""
YEARS = range(2000, 2100)
"""Of a date that is believed: a date far from all clocks could make signing impossible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """An access key; its representation shows neither secret nor token."""

    id: str
    secret: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    region: str = DEFAULT_REGION

    def sign(
        self, target: str, headers: Mapping[str, str], body: bytes, *, now: datetime, method: str = "POST"
    ) -> dict[str, str]:
        """Return ``headers`` of a request for ``target`` (a path, perhaps with a query) with date and signature.

        ``Host`` is among them, ``now`` in UTC.
        """
        date = now.strftime("%Y%m%dT%H%M%SZ")
        whole = {**headers, "X-Amz-Date": date}
        if self.session_token is not None:
            whole["X-Amz-Security-Token"] = self.session_token
        lines = sorted((name.lower(), value) for name, value in whole.items())
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
        return {**whole, "Authorization": f"{ALGORITHM.decode()} {credential}"}


class ServerTime:
    """The seconds since the epoch by a clock of this machine, put right where a server refuses them."""

    def __init__(self, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._behind_s = 0.0

    def now_s(self) -> float:
        """Return the present instant, as far as is known."""
        return self._wall_s() + self._behind_s

    def adjust(self, date: str | None, *, signed_at_s: float) -> bool:
        """Take ``date``, that of a refusal, for the present if the request's was minutes off; return whether it was.

        Then another try may succeed. A ``date`` that is none, or cannot be now, changes nothing.
        """
        try:
            found = parsedate_to_datetime(date or "")
        except (ValueError, OverflowError):
            return False
        if found.year not in YEARS:
            return False
        server_s = found.replace(tzinfo=found.tzinfo or UTC).timestamp()
        if abs(server_s - signed_at_s) < OFF_S_MIN:
            return False
        self._behind_s = server_s - self._wall_s()
        return True


def key_of(environment: Mapping[str, str]) -> SigningKey | None:
    """Return the key that the variables of AWS's tools name, ``None`` where they name none."""
    key_id, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
    if not key_id or not secret:
        return None
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    token = environment.get("AWS_SESSION_TOKEN") or None
    return SigningKey(id=key_id, secret=secret, session_token=token, region=region)


DEFAULT_ENDPOINT = "http://127.0.0.1:9324"
ENDPOINT_VARIABLES = ("VEILMQ_ENDPOINT", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL")
"""The first of these environment variables that is set and not empty names the server where no endpoint is given."""


def endpoint_variable(environment: Mapping[str, str]) -> str | None:
    """Return the name of the variable that names the server, ``None`` where none does."""
    return next((name for name in ENDPOINT_VARIABLES if environment.get(name)), None)


def endpoint_of(environment: Mapping[str, str]) -> str:
    """Return the URL of the server that the variables name, else that of a server on this machine."""
    variable = endpoint_variable(environment)
    return DEFAULT_ENDPOINT if variable is None else environment[variable]


class LongPolls:
    """The connections on which a server waits on purpose; used by several threads.

    A thread that waits for a reply cannot be stopped. So the sending half of its connection is closed, and the reading
    half stays open: a server that notices replies with what it has, or closes; veilmq replies at once. A message that
    was received at that very moment still arrives, and can be released; closing both halves would lose it.
    """

    def __init__(self, pool: urllib3.HTTPConnectionPool) -> None:
        """``pool`` makes them all."""
        self._connections, self._over = set[Any](), threading.Event()
        self.use(pool)

    def use(self, pool: urllib3.HTTPConnectionPool) -> None:
        """Have ``pool`` make those to come."""
        connections, over = self._connections, self._over

        class Kept(pool.ConnectionCls):  # type: ignore[name-defined,misc]  # that of the scheme
            # It names no pool: urllib3 closes the connections of a pool that is gone, and that one would never go.
            def connect(self) -> None:
                super().connect()
                connections.add(self)
                if over.is_set():
                    raise ConnectionAbortedError

            def close(self) -> None:
                connections.discard(self)
                super().close()

        pool.ConnectionCls = Kept
        self.pool = pool

    def hang_up(self) -> None:
        """Close the sending half of each, and use none again; one that is being opened is closed when it is open."""
        self._over.set()
        for connection in self._connections.copy():
            with suppress(OSError, TypeError):  # it is closed, or its socket is the response's by now
                socket.socket.shutdown(connection.sock, socket.SHUT_WR)  # past TLS, whose shutdown is another's
        self.pool.close()


class Transport:
    """The connections to one endpoint, shared by threads: a pool of them, and another for long polls."""

    def __init__(self, endpoint: str, *, key: SigningKey | None = None, wall_s: Callable[[], float] = time) -> None:
        """``endpoint`` is like ``http://127.0.0.1:9324``; raises ``ValueError`` for anything else.

        With a ``key`` requests are signed, with the date that ``wall_s`` gives in seconds since the epoch.
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
        patience_s: float | None = None,
    ) -> Reply:
        """Carry out ``action`` (AWS JSON 1.0) with ``members`` of its request.

        ``wait_s`` and ``patience_s`` are those of ``request``. Raises ``ClientError`` and ``Unreachable``.
        """
        headers = {"Content-Type": _CONTENT_TYPE, "X-Amz-Target": _TARGET + action}
        body = msgspec.json.encode(members)
        reply = self.request("POST", "", headers=headers, body=body, wait_s=wait_s, patience_s=patience_s)
        if reply.status != 200:
            raise refusal(reply)
        return decode(reply, reply_type)

    def _open(self) -> None:
        """Begin without connections."""
        self._pool, self._polls = self._made_pool(), LongPolls(self._made_pool())

    def hang_up(self) -> None:
        """End the calls that the server keeps waiting on purpose (``wait_s``): it replies now, or closes."""
        polls, self._polls = self._polls, LongPolls(self._made_pool())
        polls.hang_up()

    def close(self) -> None:
        """Close the idle connections; the transport can still be used and opens new ones."""
        closed = self._pool, self._polls.pool
        self._pool = self._made_pool()
        self._polls.use(self._made_pool())
        for pool in closed:
            pool.close()

    def _made_pool(self) -> urllib3.HTTPConnectionPool:
        return urllib3.connection_from_url(self.endpoint, maxsize=CONNECTIONS_KEPT, retries=_RETRIES)

    def request(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        wait_s: int = 0,
        patience_s: float | None = None,
    ) -> HttpReply:
        """Send a request and return the reply of any status; raises ``Unreachable``.

        ``target`` is a path, perhaps with a query, below that of the endpoint; empty for the endpoint itself. The
        server may take ``wait_s`` on purpose. With ``patience_s`` the request is tried once, for so many seconds.
        """
        target = self._path.rstrip("/") + target if target else self._path
        send = partial(self._send, method, target, body, wait_s)
        if self._key is None:
            return send(headers, patience_s)
        sign, whole = partial(self._key.sign, target, method=method, body=body), {**headers, "Host": self._host}
        began_s, at_s = monotonic(), self._time.now_s()
        reply = send(sign(whole, now=datetime.fromtimestamp(at_s, UTC)), patience_s)
        refused = reply.status in _REFUSED_STATUSES
        if not refused or not self._time.adjust(reply.headers.get("Date"), signed_at_s=at_s):
            return reply
        rest_s = None if patience_s is None else max(_REST_S_MIN, patience_s - (monotonic() - began_s))
        return send(sign(whole, now=datetime.fromtimestamp(self._time.now_s(), UTC)), rest_s)

    def _send(
        self, method: str, target: str, body: bytes, wait_s: int, headers: Mapping[str, str], patience_s: float | None
    ) -> HttpReply:
        how: dict[str, Any] = {"timeout": Timeout(connect=CONNECT_S_MAX, read=wait_s + REPLY_S_MAX)}
        if patience_s is not None:
            timeout = Timeout(connect=min(CONNECT_S_MAX, patience_s), total=patience_s)
            how = {"timeout": timeout, "retries": _ONCE}
        how |= {"body": body, "headers": headers, "redirect": False, "assert_same_host": False}
        try:
            return (self._polls.pool if wait_s else self._pool).urlopen(method, target, **how)
        except HTTPError as error:
            raise Unreachable(self.endpoint, _reason(error)) from error


_transports: WeakSet[Transport] = WeakSet()


def _open_all() -> None:
    for transport in list(_transports):
        transport._open()


if hasattr(os, "register_at_fork"):  # a child has the connections of its parent, and locks that nothing releases
    os.register_at_fork(after_in_child=_open_all)


def given(**members: Any) -> dict[str, Any]:
    """Return the ``members`` of a request that are not ``None``."""
    return {name: value for name, value in members.items() if value is not None}


def decode(reply: HttpReply, reply_type: type[Reply]) -> Reply:
    """Return the JSON of ``reply`` as a ``reply_type``; raises ``ClientError`` where it is none."""
    try:
        return msgspec.json.decode(reply.data or b"{}", type=reply_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClientError(UNEXPECTED_REPLY, f"The reply is not that of a queue server: {error}.", 200) from error


def refusal(reply: HttpReply) -> ClientError:
    """Return the error that ``reply`` is."""
    try:
        error = msgspec.json.decode(reply.data, type=_ErrorReply)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return unexpected(reply)
    if error.code:
        return ClientError(error.code, error.message, reply.status, fields=msgspec.json.decode(reply.data))
    return ClientError(error.type.rpartition("#")[2], error.message, reply.status) if error.type else unexpected(reply)


def unexpected(reply: HttpReply) -> ClientError:
    """Return the error for a reply that no queue server sends."""
    text = reply.data[:_SHOWN_CHARACTERS_MAX].decode(errors="replace")
    return ClientError(UNEXPECTED_REPLY, f"The reply is not that of a queue server: {text!r}.", reply.status)


def _reason(error: BaseException) -> str:
    """Say in a few words why there was no reply: of what is at the bottom of ``error``, in those of the system."""
    if isinstance(error, MaxRetryError) and error.reason is not None:
        return _reason(error.reason)
    if isinstance(error, ReadTimeoutError):
        return "no answer in time"
    if isinstance(error, NameResolutionError):
        return "no such host"
    cause = error.__cause__ or error.__context__
    if cause is not None:
        return _reason(cause)
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)

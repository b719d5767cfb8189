"""Faults of requests on purpose: one fault, one value, and a plan that says when they happen.

A fault decides whether a request is carried out, and what its client sees. ``RunningServer`` puts the handler that
plays them in front of the server's own. All of this runs in the server's thread, by the server's clock.

Where a reply is held back, late or lost, the fault takes the place of the request's connection, and so gets the reply.
The request keeps its place on the connection until it has its reply again or is hung up on.
"""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from veilmq.core.commands import Clock, Timer
from veilmq.core.limits import SECOND_MS
from veilmq.server.http import Http1Connection
from veilmq.server.http_parser import Date, Handler, Pending, Request
from veilmq.server.protocols import PROTOCOLS, Protocol, protocol_of
from veilmq.wire.sqs.errors import INTERNAL_FAILURE, SERVICE_UNAVAILABLE, Code, SqsError


def hang_up(request: Request) -> None:
    """Break the connection of ``request`` without an answer."""
    cast(Http1Connection, request.connection).abort()


class Held:
    """A request without a reply; a ``Pending``."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def withdraw(self) -> None:
        """Do nothing: the client has given up, and what it sent may be on its way."""

    def hurry(self) -> None:
        """Hang up: the server ends, or the client has given up."""
        hang_up(self.request)


class Intercepted(Held):
    """A request whose reply a fault takes: a ``Connection`` in front of its own, and its ``Pending``."""

    def __init__(self, request: Request, then: Callable[["Intercepted"], object]) -> None:
        """``then`` is called when there is a ``reply``."""
        super().__init__(request)
        self.connection, request.connection = cast(Http1Connection, request.connection), self
        self.date: Date = self.connection.date
        self.authenticated = False
        self.reply: bytes | None = None
        self._then = then
        self._waiting: Pending | None = None

    def begin(self, handler: Handler) -> Pending:
        """Have the server answer the request."""
        self._waiting = handler(self.request)
        return self

    def deliver(self) -> None:
        """Let the request have its reply; a connection that is gone takes no notice."""
        self.request.pending, self.request.reply = None, self.reply
        self.connection.reply_ready()

    def withdraw(self) -> None:
        """Forget it: the client has gone."""
        if self._waiting is not None:
            self._waiting.withdraw()

    # What the request calls.

    def reply_ready(self) -> None:
        """Take the reply."""
        self.reply, self.request.reply = self.request.reply, None
        self.request.pending, self._waiting = self, None
        self._then(self)

    def peer(self) -> str | None:
        """Return the address of the client."""
        return self.connection.peer()

    def start_first(self) -> None:
        """Let the request wait for its turn."""
        self.connection.start_first()

    def abort(self) -> None:
        """Break the connection."""
        self.connection.abort()


_JSON_HEADERS = b"Content-Type: application/x-amz-json-1.0\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_WITHOUT_RESULT = frozenset({"DeleteMessage", "ChangeMessageVisibility"})
_BATCH = "Batch"
_FAILED = {"SenderFault": False, "Code": "InternalError", "Message": "The entry failed; try again."}
_NO_BATCH = "The scripted fault is for batch actions of SQS over JSON (boto3 1.28 or newer)."
_HAS_RESULT = "The scripted fault is for deletes and changes of visibility of SQS over JSON (boto3 1.28 or newer)."


def _content(request: Request) -> dict[str, Any]:
    if b"x-amz-target" not in request.headers:
        return {}
    content: dict[str, Any] = json.loads(request.body)
    return content


def _respond(request: Request, answer: dict[str, Any]) -> None:
    request.respond(200, _JSON_HEADERS, json.dumps(answer).encode())


def _explain(request: Request, text: str) -> None:
    request.respond(501, b"Content-Type: text/plain; charset=utf-8\r\n", text.encode())


class Scene(NamedTuple):
    """One request and all that a fault needs to play on it.

    ``happened`` is called once, before the client can notice anything.
    """

    request: Request
    handler: Handler
    clock: Clock
    protocol: Protocol
    happened: Callable[[], object]

    def later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Arrange for ``call`` by the server's clock."""
        return self.clock.call_at(self.clock.now_ms() + round(seconds * SECOND_MS), call)


class Fault(NamedTuple):
    """A fault by its name, which is shown, and how it goes; it has ``happened`` before that unless it says so later."""

    name: str
    play: Callable[[Scene], Pending | None]
    later: bool = False

    def __repr__(self) -> str:
        return self.name


_THROTTLED = "com.amazonaws.sqs#RequestThrottled"
_THROTTLED_TEXT = "The request was denied due to request throttling."


def _refuse(code: Code, text: str, scene: Scene) -> None:
    host = scene.request.headers.get(b"host", b"").decode("latin-1")
    reply = scene.protocol.refuse(SqsError(code, text), f"http://{host}")
    scene.request.respond(reply.status, reply.headers, reply.body)


def _fail_entries(places: tuple[int, ...], scene: Scene) -> Pending | None:
    """Have the batch carried out without its entries at ``places``, and add these to the answer as failed."""
    content = _content(scene.request)
    if "Entries" not in content:
        _explain(scene.request, _NO_BATCH)
        return None
    entries = content["Entries"]
    failed = [{"Id": entry["Id"], **_FAILED} for place, entry in enumerate(entries) if place in places]
    content["Entries"] = [entry for place, entry in enumerate(entries) if place not in places]
    if not content["Entries"]:
        _respond(scene.request, {"Successful": [], "Failed": failed})
        return None

    def reply_ready(taken: Intercepted) -> None:
        assert taken.reply is not None, "called when it is answered"
        head, _, body = taken.reply.partition(_END_OF_HEAD)
        if not head.startswith(b"HTTP/1.1 200"):
            taken.deliver()
            return
        answer = json.loads(body)
        taken.request.connection = taken.connection
        _respond(taken.request, answer | {"Failed": answer.get("Failed", []) + failed})

    scene.request.body = json.dumps(content).encode()
    return Intercepted(scene.request, reply_ready).begin(scene.handler)


def _ignore(scene: Scene) -> None:
    """Answer as after success."""
    request = scene.request
    action = request.headers.get(b"x-amz-target", b"").decode().rpartition(".")[2]
    if action.removesuffix(_BATCH) not in _WITHOUT_RESULT:
        _explain(request, _HAS_RESULT)
    elif action.endswith(_BATCH):
        _respond(request, {"Successful": [{"Id": entry["Id"]} for entry in _content(request)["Entries"]], "Failed": []})
    else:
        _respond(request, {})


def _answered(then: Callable[[Scene, Intercepted], object]) -> Callable[[Scene], Pending]:
    """Return how a fault goes whose request is carried out; ``then`` takes the place of its answer."""

    def play(scene: Scene) -> Pending:
        def reply_ready(taken: Intercepted) -> None:
            scene.happened()
            then(scene, taken)

        return Intercepted(scene.request, reply_ready).begin(scene.handler)

    return play


UNAVAILABLE = Fault("UNAVAILABLE", partial(_refuse, SERVICE_UNAVAILABLE, "The server is not available; try again."))
"""503 ``ServiceUnavailable``; nothing is carried out."""

FAILED = Fault("FAILED", partial(_refuse, INTERNAL_FAILURE, "The request failed; try again."))
"""500 ``InternalFailure``; nothing is carried out."""

THROTTLED = Fault("THROTTLED", partial(_refuse, Code(_THROTTLED, "RequestThrottled"), _THROTTLED_TEXT))
"""400 ``RequestThrottled``; nothing is carried out."""

THROTTLED_403 = Fault("THROTTLED_403", partial(_refuse, Code(_THROTTLED, "RequestThrottled", 403), _THROTTLED_TEXT))
"""403 ``RequestThrottled``; nothing is carried out."""

REQUEST_DROPPED = Fault("REQUEST_DROPPED", lambda scene: hang_up(scene.request))
"""The connection breaks; nothing is carried out."""

ANSWER_DROPPED = Fault("ANSWER_DROPPED", _answered(lambda scene, taken: taken.abort()), later=True)
"""It is carried out; then the connection breaks instead of an answer."""

REQUEST_LOST = Fault("REQUEST_LOST", lambda scene: Held(scene.request))
"""A black hole: no answer ever, the connection stays open; nothing is carried out."""

ANSWER_LOST = Fault("ANSWER_LOST", _answered(lambda scene, taken: None), later=True)
"""It is carried out; no answer ever, the connection stays open."""

IGNORED = Fault("IGNORED", _ignore)
"""200 as after success, and nothing is carried out; for deletes and changes of visibility, over JSON."""


def late_request(*, seconds: float) -> Fault:
    """Return the fault that has a request arrive so much later by the server's clock, client or no client."""

    def play(scene: Scene) -> Pending:
        request = scene.request
        scene.later(seconds, lambda: setattr(request, "pending", scene.handler(request)))
        return Held(request)

    return Fault(f"late_request(seconds={seconds:g})", play)


def late_answer(*, seconds: float) -> Fault:
    """Return the fault that has a request carried out at once and answered so much later, on the server's clock."""

    play = _answered(lambda scene, taken: scene.later(seconds, taken.deliver))
    return Fault(f"late_answer(seconds={seconds:g})", play, later=True)


def failed_entries(*places: int) -> Fault:
    """Return the fault of a batch whose entries at ``places`` (from 0) fail and are not carried out, over JSON."""
    return Fault(f"failed_entries{places}", partial(_fail_entries, places))


ANY = "*"
"""Every action."""

ACTIONS = frozenset(label for protocol in PROTOCOLS for label in protocol.labels.values())
"""The names of all actions: those of Amazon SQS, of SMQ (``smq.SendMessage``), and of the API under ``/v1/``."""


class Happened(NamedTuple):
    """A fault that was played, and the action on which."""

    action: str
    fault: Fault


@dataclass(slots=True)
class _Row:
    action: str
    fault: Fault
    left: int | None


class FaultPlan:
    """The faults of one server. Tests may write it from any thread while the server plays it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: list[_Row] = []
        self._happened: list[Happened] = []

    def script(self, action: str, fault: Fault, *, times: int | None = 1) -> None:
        """Play ``fault`` on the next ``times`` requests of ``action``, behind what is scripted for it already.

        ``None`` plays it until ``clear``. ``action`` is as clients name it, ``ANY`` for each. Raises ``ValueError``.
        """
        if action != ANY and action not in ACTIONS:
            raise ValueError(f"no action is called {action!r}; there are {', '.join(sorted(ACTIONS))}")
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for always, not {times}")
        with self._lock:
            self._rows.append(_Row(action, fault, times))

    def clear(self, action: str = ANY) -> None:
        """Forget what is scripted for ``action``, or all; requests that are held or late stay so."""
        with self._lock:
            self._rows = [row for row in self._rows if action not in (ANY, row.action)]

    @property
    def happened(self) -> list[Happened]:
        """Return what was played so far, in order.

        A late answer, or one that never comes, is listed once the request is carried out, a late request once it waits:
        then ``RunningServer.advance`` finds it.
        """
        return list(self._happened)

    @property
    def left(self) -> list[str]:
        """Return what is still to be played, a line each: for assertions, and their messages."""
        with self._lock:
            return [f"{row.action}: {row.fault} × {row.left or 'always'}" for row in self._rows]

    # What the server calls.

    def around(self, handler: Handler) -> Handler:
        """Return the handler that plays this plan in front of ``handler``."""

        def handle(request: Request) -> Pending | None:
            protocol = protocol_of(request) if self._rows else None
            found = None if protocol is None else protocol.read(request)
            if protocol is None or found is None or found[0] not in protocol.labels:
                return handler(request)
            action = protocol.labels[found[0]]
            with self._lock:
                row = next((row for row in self._rows if row.action in (ANY, action)), None)
                if row is not None and row.left is not None:
                    row.left -= 1
                    if not row.left:
                        self._rows.remove(row)
            if row is None:
                return handler(request)
            happened = partial(self._happened.append, Happened(action, row.fault))
            if not row.fault.later:
                happened()
            return row.fault.play(Scene(request, handler, self._clock, protocol, happened))

        return handle

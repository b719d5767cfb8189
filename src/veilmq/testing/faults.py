"""Fault injection: faults, and the plan of the requests to which they apply.

A fault determines whether a request is executed and which reply the client gets. ``RunningServer`` wraps the server's
handler with the plan's. Faults run in the server's thread, by the server's clock.

To delay, change or lose a reply, a fault replaces the connection of the request, and so gets the reply. The request
keeps its place on the real connection until the reply is delivered or the connection is closed.
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
    """Close the connection of ``request`` without a reply."""
    cast(Http1Connection, request.connection).abort()


class Held:
    """The ``Pending`` of a request without a reply."""

    def __init__(self, request: Request) -> None:
        self.request = request

    def withdraw(self) -> None:
        """Do nothing: the client has disconnected, but its request may still arrive."""

    def hurry(self) -> None:
        """Close the connection, because the server stops."""
        hang_up(self.request)


class Intercepted(Held):
    """The ``Connection`` and the ``Pending`` of a request whose reply a fault intercepts."""

    def __init__(self, request: Request, then: Callable[["Intercepted"], object]) -> None:
        """``then`` is called once ``reply`` is set."""
        super().__init__(request)
        self.connection, request.connection = cast(Http1Connection, request.connection), self
        self.date: Date = self.connection.date
        self.authenticated = False
        self.reply: bytes | None = None
        self._then = then
        self._waiting: Pending | None = None

    def begin(self, handler: Handler) -> Pending:
        """Pass the request to the server."""
        self._waiting = handler(self.request)
        return self

    def deliver(self) -> None:
        """Send the reply on the real connection; a closed one ignores it."""
        self.request.pending, self.request.reply = None, self.reply
        self.connection.reply_ready()

    def withdraw(self) -> None:
        if self._waiting is not None:
            self._waiting.withdraw()

    # The interface of a connection

    def reply_ready(self) -> None:
        """Intercept the reply."""
        self.reply, self.request.reply = self.request.reply, None
        self.request.pending, self._waiting = self, None
        self._then(self)

    def peer(self) -> str | None:
        """Return the address of the client."""
        return self.connection.peer()

    def run_next_in_turn(self) -> None:
        """Run the request when it is the first one of its connection."""
        self.connection.run_next_in_turn()

    def abort(self) -> None:
        """Close the connection."""
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


def _respond(request: Request, reply: dict[str, Any]) -> None:
    request.respond(200, _JSON_HEADERS, json.dumps(reply).encode())


def _explain(request: Request, text: str) -> None:
    request.respond(501, b"Content-Type: text/plain; charset=utf-8\r\n", text.encode())


class Scene(NamedTuple):
    """One request, and what a fault needs to act on it.

    The fault calls ``happened`` once, before the client can observe it.
    """

    request: Request
    handler: Handler
    clock: Clock
    protocol: Protocol
    happened: Callable[[], object]

    def later(self, seconds: float, call: Callable[[], object]) -> Timer:
        """Schedule ``call`` on the server's clock."""
        return self.clock.call_at(self.clock.now_ms() + round(seconds * SECOND_MS), call)


class Fault(NamedTuple):
    """A fault and its name for output. ``happened`` is called before ``play``; if ``later``, ``play`` calls it."""

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
    """Execute the batch without its entries at ``places``, and add these to the reply as failed."""
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

    def reply_ready(intercepted: Intercepted) -> None:
        assert intercepted.reply is not None, "set before this is called"
        head, _, body = intercepted.reply.partition(_END_OF_HEAD)
        if not head.startswith(b"HTTP/1.1 200"):
            intercepted.deliver()
            return
        reply = json.loads(body)
        intercepted.request.connection = intercepted.connection
        _respond(intercepted.request, reply | {"Failed": reply.get("Failed", []) + failed})

    scene.request.body = json.dumps(content).encode()
    return Intercepted(scene.request, reply_ready).begin(scene.handler)


def _ignore(scene: Scene) -> None:
    """Reply with success."""
    request = scene.request
    action = request.headers.get(b"x-amz-target", b"").decode().rpartition(".")[2]
    if action.removesuffix(_BATCH) not in _WITHOUT_RESULT:
        _explain(request, _HAS_RESULT)
    elif action.endswith(_BATCH):
        _respond(request, {"Successful": [{"Id": entry["Id"]} for entry in _content(request)["Entries"]], "Failed": []})
    else:
        _respond(request, {})


def _executed(then: Callable[[Scene, Intercepted], object]) -> Callable[[Scene], Pending]:
    """Return the ``play`` of a fault that executes the request and calls ``then`` instead of replying."""

    def play(scene: Scene) -> Pending:
        def reply_ready(intercepted: Intercepted) -> None:
            scene.happened()
            then(scene, intercepted)

        return Intercepted(scene.request, reply_ready).begin(scene.handler)

    return play


UNAVAILABLE = Fault("UNAVAILABLE", partial(_refuse, SERVICE_UNAVAILABLE, "The server is not available; try again."))
"""503 ``ServiceUnavailable``; the request is not executed."""

FAILED = Fault("FAILED", partial(_refuse, INTERNAL_FAILURE, "The request failed; try again."))
"""500 ``InternalFailure``; the request is not executed."""

THROTTLED = Fault("THROTTLED", partial(_refuse, Code(_THROTTLED, "RequestThrottled"), _THROTTLED_TEXT))
"""400 ``RequestThrottled``; the request is not executed."""

THROTTLED_403 = Fault("THROTTLED_403", partial(_refuse, Code(_THROTTLED, "RequestThrottled", 403), _THROTTLED_TEXT))
"""403 ``RequestThrottled``; the request is not executed."""

REQUEST_DROPPED = Fault("REQUEST_DROPPED", lambda scene: hang_up(scene.request))
"""The connection is closed; the request is not executed."""

ANSWER_DROPPED = Fault("ANSWER_DROPPED", _executed(lambda scene, intercepted: intercepted.abort()), later=True)
"""The request is executed; then the connection is closed without a reply."""

REQUEST_LOST = Fault("REQUEST_LOST", lambda scene: Held(scene.request))
"""There is no reply, and the connection stays open; the request is not executed."""

ANSWER_LOST = Fault("ANSWER_LOST", _executed(lambda scene, intercepted: None), later=True)
"""The request is executed; there is no reply, and the connection stays open."""

IGNORED = Fault("IGNORED", _ignore)
"""The reply is 200, but the request is not executed; for deletes and changes of visibility over JSON."""


def late_request(*, seconds: float) -> Fault:
    """Return a fault that delays the request on the server's clock, even if the client disconnects."""

    def play(scene: Scene) -> Pending:
        request = scene.request
        scene.later(seconds, lambda: setattr(request, "pending", scene.handler(request)))
        return Held(request)

    return Fault(f"late_request(seconds={seconds:g})", play)


def late_answer(*, seconds: float) -> Fault:
    """Return a fault that executes the request and delays the reply on the server's clock."""
    play = _executed(lambda scene, intercepted: scene.later(seconds, intercepted.deliver))
    return Fault(f"late_answer(seconds={seconds:g})", play, later=True)


def failed_entries(*places: int) -> Fault:
    """Return a fault that fails the entries of a batch at ``places`` (from 0) without executing them; over JSON."""
    return Fault(f"failed_entries{places}", partial(_fail_entries, places))


ANY = "*"
"""Every action."""

ACTIONS = frozenset(label for protocol in PROTOCOLS for label in protocol.labels.values())
"""The names of all actions: those of Amazon SQS, of SMQ (``smq.SendMessage``), and of the API under ``/v1/``."""


class Happened(NamedTuple):
    """A fault that was applied, and the action of the request."""

    action: str
    fault: Fault


@dataclass(slots=True)
class _Row:
    action: str
    fault: Fault
    left: int | None


class FaultPlan:
    """The planned faults of one server. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: list[_Row] = []
        self._happened: list[Happened] = []

    def script(self, action: str, fault: Fault, *, times: int | None = 1) -> None:
        """Apply ``fault`` to the next ``times`` requests of ``action``, after the faults already planned for it.

        ``times=None`` applies it until ``clear``. ``action`` is a name from ``ACTIONS`` or ``ANY``. Raises
        ``ValueError`` and ``TypeError``.
        """
        if action != ANY and action not in ACTIONS:
            raise ValueError(f"no action is called {action!r}; there are {', '.join(sorted(ACTIONS))}")
        if not isinstance(fault, Fault):
            raise TypeError(f"{fault!r} is not a fault; call late_request, late_answer and failed_entries to get one")
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1, or None for always, not {times}")
        with self._lock:
            self._rows.append(_Row(action, fault, times))

    def clear(self, action: str = ANY) -> None:
        """Remove the planned faults of ``action``, or all. Requests that are held or late are unaffected."""
        with self._lock:
            self._rows = [row for row in self._rows if action not in (ANY, row.action)]

    @property
    def happened(self) -> list[Happened]:
        """The applied faults in order.

        A fault that delays or loses the reply is listed once the request is executed, a late request once it waits.
        From then on ``RunningServer.advance`` affects it.
        """
        return list(self._happened)

    @property
    def left(self) -> list[str]:
        """The remaining faults as text, one line for each, for assertions."""
        with self._lock:
            return [f"{row.action}: {row.fault} × {row.left or 'always'}" for row in self._rows]

    def wrap_handler(self, handler: Handler) -> Handler:
        """Wrap the server's ``handler`` so that planned faults are applied."""

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

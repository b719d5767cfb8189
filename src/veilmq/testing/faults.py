"""What can happen to a request on purpose: one fault, one value.

A fault says two things: whether what was asked is carried out, and what its client sees. The handler that plays them is
put in front of the server's own by ``RunningServer``; a server that nobody tests has none. ``script`` says when they
happen. All of this runs in the server's thread; time is the server's clock, virtual or not.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.server.http_parser import Handler, Pending, Request
from veilmq.server.protocols import Protocol
from veilmq.testing.batch_faults import answer_without_doing, leave_out
from veilmq.testing.shadow import Delayed, Held, Shadow, hang_up
from veilmq.wire.sqs.errors import INTERNAL_FAILURE, SERVICE_UNAVAILABLE, Code, SqsError


class Scene(NamedTuple):
    """One request and all that a fault needs to play on it.

    ``happened`` is called once: before the client can notice anything, and once nothing but time has to come.
    """

    request: Request
    handler: Handler
    clock: Clock
    protocol: Protocol
    happened: Callable[[], object]

    def later(self, delay_ms: int, call: Callable[[], object]) -> Timer:
        """Arrange for ``call`` by the server's clock."""
        return self.clock.call_at(self.clock.now_ms() + delay_ms, call)


class Fault(NamedTuple):
    """A fault by its name, which is shown, and how it goes."""

    name: str
    play: Callable[[Scene], Pending | None]

    def __repr__(self) -> str:
        """Return the name."""
        return self.name


_THROTTLED = "com.amazonaws.sqs#RequestThrottled"
_THROTTLED_TEXT = "The request was denied due to request throttling."


def _refuse(code: Code, text: str, scene: Scene) -> None:
    scene.happened()
    host = scene.request.headers.get(b"host", b"").decode("latin-1")
    reply = scene.protocol.refuse(SqsError(code, text), f"http://{host}")
    scene.request.respond(reply.status, reply.headers, reply.body)


def _drop_request(scene: Scene) -> None:
    scene.happened()
    hang_up(scene.request)


def _lose_request(scene: Scene) -> Pending:
    scene.happened()
    return Held(scene.request)


def _drop_answer(scene: Scene) -> Pending:
    def answered(shadow: Shadow) -> None:
        scene.happened()
        hang_up(shadow.outer)

    return Shadow(scene.request, answered=answered).begin(scene.handler)


def _lose_answer(scene: Scene) -> Pending:
    return Shadow(scene.request, answered=lambda shadow: scene.happened()).begin(scene.handler)


def _delay_request(delay_ms: int, scene: Scene) -> Pending:
    delayed = Delayed(scene.request, scene.handler)
    scene.later(delay_ms, delayed.arrive)
    scene.happened()
    return delayed


def _delay_answer(delay_ms: int, scene: Scene) -> Pending:
    def answered(shadow: Shadow) -> None:
        shadow.timer = scene.later(delay_ms, shadow.deliver)
        scene.happened()

    return Shadow(scene.request, answered=answered).begin(scene.handler)


def _fail_entries(places: tuple[int, ...], scene: Scene) -> Pending | None:
    scene.happened()
    return leave_out(scene.request, scene.handler, places)


def _ignore(scene: Scene) -> None:
    scene.happened()
    answer_without_doing(scene.request)


UNAVAILABLE = Fault("UNAVAILABLE", partial(_refuse, SERVICE_UNAVAILABLE, "The server is not available; try again."))
"""503 ``ServiceUnavailable``; nothing is carried out."""

FAILED = Fault("FAILED", partial(_refuse, INTERNAL_FAILURE, "The request failed; try again."))
"""500 ``InternalFailure``; nothing is carried out."""

THROTTLED = Fault("THROTTLED", partial(_refuse, Code(_THROTTLED, "RequestThrottled"), _THROTTLED_TEXT))
"""400 ``RequestThrottled``; nothing is carried out."""

THROTTLED_403 = Fault("THROTTLED_403", partial(_refuse, Code(_THROTTLED, "RequestThrottled", 403), _THROTTLED_TEXT))
"""403 ``RequestThrottled``; nothing is carried out."""

REQUEST_DROPPED = Fault("REQUEST_DROPPED", _drop_request)
"""The connection breaks; nothing is carried out."""

ANSWER_DROPPED = Fault("ANSWER_DROPPED", _drop_answer)
"""It is carried out; then the connection breaks instead of an answer."""

REQUEST_LOST = Fault("REQUEST_LOST", _lose_request)
"""A black hole: no answer ever, the connection stays open; nothing is carried out."""

ANSWER_LOST = Fault("ANSWER_LOST", _lose_answer)
"""It is carried out; no answer ever, the connection stays open."""

IGNORED = Fault("IGNORED", _ignore)
"""200 as after success, and nothing is carried out; for deletes and changes of visibility, over JSON."""


def late_request(*, seconds: float) -> Fault:
    """Return the fault that has a request arrive so much later by the server's clock, client or no client."""
    return Fault(f"late_request(seconds={seconds:g})", partial(_delay_request, round(seconds * SECOND_MS)))


def late_answer(*, seconds: float) -> Fault:
    """Return the fault that has a request carried out at once and answered so much later, on the server's clock."""
    return Fault(f"late_answer(seconds={seconds:g})", partial(_delay_answer, round(seconds * SECOND_MS)))


def failed_entries(*places: int) -> Fault:
    """Return the fault of a batch whose entries at ``places`` (from 0) fail and are not carried out, over JSON."""
    return Fault(f"failed_entries{places}", partial(_fail_entries, places))

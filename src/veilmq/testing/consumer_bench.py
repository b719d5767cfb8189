"""A test bench for consumers: handlers with a server of their own, and one virtual time for both.

Handlers and leases use one stepped clock, and clients call the server without a socket. ``advance`` moves from one due
instant to the next, and each time waits until all threads are idle: the event loop waits, the renewer sleeps, and each
busy thread waits for a reply that needs time to pass.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, sleep
from types import SimpleNamespace
from typing import Any, NamedTuple, Self
from weakref import finalize

from urllib3 import HTTPResponse

from veilmq.client.messages import Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import ATTEMPTS_MAX, REPLY_S_MAX, RETRIED_STATUSES, HttpReply, Transport
from veilmq.consumer import Consumer, Context, Running
from veilmq.consumer.clock import Span, span_s
from veilmq.consumer.handlers import body_of
from veilmq.consumer.runner import Runner
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import Attribute
from veilmq.core.settings import SettingValue
from veilmq.server.http_parser import Request
from veilmq.testing.clocks import SteppedAlarm, SteppedClock, VirtualClock, VirtualLoop
from veilmq.testing.faults import FaultPlan
from veilmq.testing.running_server import RunningQueue, RunningServer

RETRY_PAUSE_S = 0.1


class DirectTransport(Transport):
    """A ``Transport`` to ``server`` without a socket, with the usual retries, on ``clock``."""

    def __init__(self, server: RunningServer, clock: SteppedClock) -> None:
        super().__init__(server.endpoint)
        self._server = server
        self._clock = clock
        self._alarms = threading.local()
        self._waiting: set[Call] = set()

    def _send(
        self,
        method: str,
        target: str,
        body: bytes,
        wait_s: int,
        headers: Mapping[str, str],
        call_timeout_s: float | None,
    ) -> HttpReply:
        limit_s = wait_s + REPLY_S_MAX if call_timeout_s is None else call_timeout_s
        tries = ATTEMPTS_MAX if call_timeout_s is None else 1
        while True:
            tries -= 1
            call = Call(method, target, headers, body, self._alarm())
            if wait_s:
                self._waiting.add(call)
            until_s = self._clock.now_s() + limit_s
            self._server.handle(call.request)
            while not call.is_over and self._clock.now_s() < until_s:
                call.alarm.wait_until(until_s)
            if not call.is_over:
                self._server.withdraw(call.request)
            self._waiting.discard(call)
            if call.reply is not None and (call.reply.status not in RETRIED_STATUSES or not tries):
                return call.reply
            if not tries:
                raise Unreachable(self.endpoint, "connection reset by peer" if call.is_over else "no answer in time")
            until_s = self._clock.now_s() + RETRY_PAUSE_S
            while self._clock.now_s() < until_s:
                self._alarm().wait_until(until_s)

    def hang_up(self) -> None:
        for call in list(self._waiting):
            self._server.hurry(call.request)

    def _alarm(self) -> SteppedAlarm:
        if not hasattr(self._alarms, "own"):
            self._alarms.own = self._clock.alarm()
        alarm: SteppedAlarm = self._alarms.own
        return alarm


class Call:
    """One request, and its ``Connection``, which has no other requests."""

    def __init__(self, method: str, target: str, headers: Mapping[str, str], body: bytes, alarm: SteppedAlarm) -> None:
        """``alarm`` rings at the reply or when the connection is closed."""
        self.alarm = alarm
        self.date: Any = SimpleNamespace(line=b"Date: -\r\n")  # in a head that nothing reads
        self.authenticated = False
        self.reply: HttpReply | None = None
        self.is_over = False
        encoded = {name.lower().encode(): value.encode() for name, value in headers.items()}
        self.request = Request(self, method.encode(), target.encode(), encoded, body, True)

    # The interface of a connection, in the server's thread

    def reply_ready(self) -> None:
        """Parse the reply and end the call."""
        assert self.request.reply is not None, "set before this is called"
        head, _, body = self.request.reply.partition(b"\r\n\r\n")
        self.reply = HTTPResponse(body=body, status=int(head.split(maxsplit=2)[1]))
        self.abort()

    def abort(self) -> None:
        """End the call."""
        self.is_over = True
        self.alarm.ring()

    def peer(self) -> str | None:
        """Return no address."""
        return None

    def run_next_in_turn(self) -> None:
        """Run the request at once: there is no earlier one."""
        run, self.request.in_turn = self.request.in_turn, None
        assert run is not None, "set before this is called"
        run()


PATIENCE_S = 30.0
CLOSE_S_MAX = 60.0
_CHECK_S = 0.0002
_CLOSE_STEP_S = 1.0
_RENEWER_THREADS = 1
_BUSY = (
    "a handler in a thread or a process is still at work, or waits for something else than time: virtual time stands "
    "still meanwhile, so let it return, or make it async"
)


class Renewal(NamedTuple):
    """A renewal of a lease: its time, in seconds since the test began, and the length of the lease."""

    at_s: float
    for_s: int


class BenchTime:
    """Runs the handlers of ``app`` against ``server``, both in virtual time."""

    def __init__(self, app: Consumer, server: RunningServer) -> None:
        self.clock = SteppedClock()
        self.renewals: list[Renewal] = []
        self._app = app
        self._server = server
        self._origin_ms = server.clock.now_ms()
        self._loop = VirtualLoop(self.clock)
        self._thread = threading.Thread(target=self._run, name="veilmq-bench", daemon=True)
        self._started: Future[Running] = Future()
        self._stop = asyncio.Event()

    @property
    def runners(self) -> Sequence[Runner]:
        """The runners of the handlers; none before the first ``advance``."""
        started = self._started.done() and self._started.exception() is None
        return self._started.result().runners if started else ()

    def advance(self, duration_s: float) -> None:
        """Move by ``duration_s``, instant by instant. Raises ``TimeoutError`` and the consumer's failure."""
        until_s = self.clock.now_s() + duration_s
        self._start()
        self._settle()
        while (next_s := self._next_s()) is not None and next_s <= until_s:
            self._move(next_s)
            self._settle()
        self._move(until_s)
        self._settle()

    def close(self) -> None:
        """Stop the consumer in order, moving time as it needs, then the server."""
        if self._thread.ident is None:
            self._loop.close()  # it has never run
        else:
            with suppress(RuntimeError):  # the consumer has ended, and its loop is closed
                self._loop.call_soon_threadsafe(self._stop.set)
            deadline_s = monotonic() + CLOSE_S_MAX
            while self._thread.is_alive() and monotonic() < deadline_s:
                if self._loop.is_idle:
                    soon_s, next_s = self.clock.now_s() + _CLOSE_STEP_S, self._next_s()
                    self._move(soon_s if next_s is None else min(soon_s, next_s))
                sleep(_CHECK_S)
        self._server.stop()

    def _start(self) -> None:
        """Create missing queues, and begin to receive."""
        if self._thread.ident is None:
            for handler in self._app.handlers:
                self._server.queue(handler.options.queue)
                if handler.options.dead_letter is not None:
                    self._server.queue(handler.options.dead_letter)
            self._thread.start()
        self._started.result(PATIENCE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._consume())

    async def _consume(self) -> None:
        try:
            running = self._app.make(
                connect=lambda: QueueClient(DirectTransport(self._server, self.clock)),
                clock=self.clock,
                draw=lambda: 0.0,  # no jitter: renewals are as late as the policy allows
                renewals_at_once=1,
                more_hooks={"renew": self._renewed},
            )
            async with running:
                self._started.set_result(running)
                await self._stop.wait()
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def _renewed(self, context: Context) -> None:
        lease = context.lease
        self.renewals.append(Renewal(lease.renewed_at_s, round(lease.expires_at_s - lease.renewed_at_s)))

    def _next_s(self) -> float | None:
        """Return the next due instant of the server, the leases or the event loop, or ``None``."""
        due_ms = self._server.next_due_ms()
        server_s = None if due_ms is None else (due_ms - self._origin_ms) / SECOND_MS
        return min(
            (at_s for at_s in (server_s, self.clock.next_s(), self._loop.next_s) if at_s is not None), default=None
        )

    def _move(self, at_s: float) -> None:
        """Move all clocks to ``at_s`` at once."""
        at_s = max(at_s, self.clock.now_s())
        at_ms = self._origin_ms + int(at_s * SECOND_MS + 1e-6)
        self._server.move_to(at_ms, first=lambda: self.clock.set(at_s))
        with suppress(RuntimeError):  # the loop is closed
            self._loop.wake()

    def _settle(self) -> None:
        """Wait until all threads are idle at this instant."""
        deadline_s = monotonic() + PATIENCE_S
        while True:
            sleeps = self.clock.sleeps
            if self._is_idle():
                self._server.settle()
                if self._is_idle() and self.clock.sleeps == sleeps:  # no thread woke while requests were finished
                    break
            if monotonic() > deadline_s:
                raise TimeoutError(f"the consumer has not come to rest: {_BUSY}")
            sleep(_CHECK_S)
        failure = self._started.result().failure
        if failure is not None:
            raise failure

    def _is_idle(self) -> bool:
        busy = _RENEWER_THREADS + self._loop.in_executor + sum(runner.threads_at_work for runner in self.runners)
        return self._loop.is_idle and self.clock.sleepers == busy


_SETTLED = ("acked", "dropped", "rejected")


class ConsumerBench:
    """Runs the handlers of ``app`` with a server of their own. Receiving begins with the first ``advance``.

    ``async with`` stops both in order; without it, garbage collection does.
    """

    def __init__(self, app: Consumer, clock: VirtualClock | None = None) -> None:
        self.server = RunningServer(clock=clock or VirtualClock()).__enter__()
        self._app = app
        self._time = BenchTime(app, self.server)
        self._close = finalize(self, self._time.close)
        self._close.atexit = False  # at exit its daemon threads cannot stop in order

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._close)

    @property
    def faults(self) -> FaultPlan:
        """The plan of faults for requests."""
        return self.server.faults

    @property
    def now_s(self) -> float:
        """Seconds since the test began."""
        return self._time.clock.now_s()

    @property
    def events(self) -> Counter[str]:
        """The counts of events, summed over all handlers."""
        return sum((runner.counts.events for runner in self._time.runners), Counter())

    @property
    def deleted(self) -> int:
        """The number of messages that left the queue: done, dropped or rejected."""
        return sum(self.events[name] for name in _SETTLED)

    @property
    def renewals(self) -> list[Renewal]:
        """The successful renewals in order; they equal tuples ``(at_s, for_s)``."""
        return list(self._time.renewals)

    def queue(self, name: str | None = None, **settings: SettingValue) -> RunningQueue:
        """Return the queue ``name`` (default: the first handler's), created with ``settings`` if it is missing."""
        return self.server.queue(name or self._app.handlers[0].options.queue, **settings)

    def send(
        self,
        payload: object,
        *,
        queue: str | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        delay: Span | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
    ) -> str:
        """Send ``payload``, unaffected by faults, and return the message's id. An ``advance`` makes it visible.

        A ``str`` is sent as the body, ``bytes`` as UTF-8, any other type as JSON, the encoding that handlers read.
        """
        delay_s = None if delay is None else int(span_s(delay))
        to = self.queue(queue)
        return to.send(body_of(payload), attributes=attributes, delay_s=delay_s, group=group, dedup_id=dedup_id)

    async def advance(self, span: Span) -> None:
        """Let ``span`` pass, and return once all threads are idle.

        Raises the error that makes a queue impossible to consume, and ``TimeoutError`` if a handler in a thread or
        process stays busy, because virtual time stands still meanwhile.
        """
        await asyncio.to_thread(self._time.advance, span_s(span))

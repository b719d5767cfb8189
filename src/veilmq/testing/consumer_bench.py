"""A consumer under test: its handlers, a server of its own, and one virtual time for both.

The handlers run on an event loop whose time stands still, the leases on the same clock, and the clients reach the
server without a socket. ``advance`` goes from one instant at which anything is due to the next, and each time waits
until no thread has anything left to do: the loop waits, the renewer sleeps, and each thread at work waits for a reply
that only time brings.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple, Self
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
from veilmq.server.http_parser import Date, Request
from veilmq.testing.clocks import SteppedAlarm, SteppedClock, VirtualClock, VirtualLoop
from veilmq.testing.faults import FaultPlan
from veilmq.testing.running_server import RunningQueue, RunningServer

RETRY_PAUSE_S = 0.1
_END_OF_HEAD = b"\r\n\r\n"


class DirectTransport(Transport):
    """``Transport`` to ``server``; what is tried again is the same, at instants of ``clock``."""

    def __init__(self, server: RunningServer, clock: SteppedClock) -> None:
        super().__init__(server.endpoint)
        self._server = server
        self._clock = clock
        self._alarms = threading.local()
        self._waiting: set[Call] = set()

    def _send(
        self, method: str, target: str, body: bytes, wait_s: int, headers: Mapping[str, str], patience_s: float | None
    ) -> HttpReply:
        limit_s = wait_s + REPLY_S_MAX if patience_s is None else patience_s
        tries = ATTEMPTS_MAX if patience_s is None else 1
        while True:
            tries -= 1
            call = Call(method, target, headers, body, self._alarm())
            if wait_s:
                self._waiting.add(call)
            until_s = self._clock.now_s() + limit_s
            self._server.hand(call.request)
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
        """Have the server answer now those that wait on purpose."""
        for call in list(self._waiting):
            self._server.hurry(call.request)

    def _alarm(self) -> SteppedAlarm:
        """Return the alarm of this thread."""
        if not hasattr(self._alarms, "own"):
            self._alarms.own = self._clock.alarm()
        alarm: SteppedAlarm = self._alarms.own
        return alarm


class Call:
    """One request and the line that it came by, which carries nothing else."""

    def __init__(self, method: str, target: str, headers: Mapping[str, str], body: bytes, alarm: SteppedAlarm) -> None:
        """``alarm`` rings when it is answered or hung up on."""
        self.alarm = alarm
        self.date: Date = _Undated()
        self.authenticated = False
        self.reply: HttpReply | None = None
        self.is_over = False
        sent = {name.lower().encode(): value.encode() for name, value in headers.items()}
        self.request = Request(self, method.encode(), target.encode(), sent, body, True)

    # What the request calls, in the server's thread.

    def reply_ready(self) -> None:
        """Take the reply."""
        assert self.request.reply is not None, "called when it is answered"
        head, _, body = self.request.reply.partition(_END_OF_HEAD)
        self.reply = HTTPResponse(body=body, status=int(head.split(maxsplit=2)[1]))
        self.abort()

    def abort(self) -> None:
        """Be over, with a reply or without one."""
        self.is_over = True
        self.alarm.ring()

    def peer(self) -> str | None:
        """Return nothing: it came by no network."""
        return None

    def start_first(self) -> None:
        """Have it begin at once: there is nothing before it."""
        start, self.request.start_when_first = self.request.start_when_first, None
        assert start is not None, "set by what waits"
        start()


class _Undated:
    """No ``Date`` line."""

    line = b"Date: -\r\n"

    def renew(self) -> bytes:
        return self.line


PATIENCE_S = 30.0
CLOSE_S_MAX = 60.0
_CHECK_S = 0.0002
_HURRY_S = 1.0
_RENEWER = 1
_BUSY = (
    "a handler in a thread or a process is still at work, or waits for something else than time: virtual time stands "
    "still meanwhile, so let it return, or make it async"
)


class Renewal(NamedTuple):
    """A lease that was renewed: when, in seconds since the test began, and for how long."""

    at_s: float
    for_s: int


class BenchTime:
    """Runs the handlers of ``app`` against ``server``, both in a time that ``advance`` moves."""

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
        """Return what runs the handlers; nothing before the first ``advance``."""
        started = self._started.done() and self._started.exception() is None
        return self._started.result().runners if started else ()

    def advance(self, duration_s: float) -> None:
        """Move everything by ``duration_s``, from instant to instant; raises ``TimeoutError``, and what failed."""
        until_s = self.clock.now_s() + duration_s
        self._start()
        self._settle()
        while (next_s := self._next_s()) is not None and next_s <= until_s:
            self._move(next_s)
            self._settle()
        self._move(until_s)
        self._settle()

    def close(self) -> None:
        """Stop the consumer in order, letting time pass as it needs it, and then the server."""
        if self._thread.ident is None:
            self._loop.close()  # it has never run
        else:
            with suppress(RuntimeError):  # it has ended by itself, and its loop is closed
                self._loop.call_soon_threadsafe(self._stop.set)
            give_up_at_s = monotonic() + CLOSE_S_MAX
            while self._thread.is_alive() and monotonic() < give_up_at_s:
                if self._loop.is_idle:
                    soon_s, next_s = self.clock.now_s() + _HURRY_S, self._next_s()
                    self._move(soon_s if next_s is None else min(soon_s, next_s))
                sleep(_CHECK_S)
        self._server.stop()

    def _start(self) -> None:
        """Make the queues that are missing, and begin to receive."""
        if self._thread.ident is None:
            for handler in self._app.handlers:
                self._server.queue(handler.options.queue)
                if handler.options.dead_letter is not None:
                    self._server.queue(handler.options.dead_letter)
            self._thread.start()
        self._started.result(PATIENCE_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._work())

    async def _work(self) -> None:
        try:
            running = self._app.make(
                connect=lambda: QueueClient(DirectTransport(self._server, self.clock)),
                clock=self.clock,
                draw=lambda: 0.0,  # never early: renewals come when the policy says at the latest
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

    # ------------------------------------------------------------------------------------------------- instants

    def _next_s(self) -> float | None:
        """Return the next instant at which anything is due."""
        due_ms = self._server.next_due_ms()
        server_s = None if due_ms is None else (due_ms - self._origin_ms) / SECOND_MS
        return min(
            (at_s for at_s in (server_s, self.clock.next_s(), self._loop.next_s) if at_s is not None), default=None
        )

    def _move(self, at_s: float) -> None:
        """Have everything stand at ``at_s``, at one stroke."""
        at_s = max(at_s, self.clock.now_s())
        at_ms = self._origin_ms + int(at_s * SECOND_MS + 1e-6)
        self._server.move_to(at_ms, first=lambda: self.clock.set(at_s))
        with suppress(RuntimeError):  # it is closed
            self._loop.wake()

    # ------------------------------------------------------------------------------------------------- quiet

    def _settle(self) -> None:
        """Wait until no thread has anything left to do at this instant."""
        give_up_at_s = monotonic() + PATIENCE_S
        while True:
            sleeps = self.clock.sleeps
            if self._all_wait():
                self._server.settle()
                if self._all_wait() and self.clock.sleeps == sleeps:  # none has woken while requests were finished
                    break
            if monotonic() > give_up_at_s:
                raise TimeoutError(f"the consumer has not come to rest: {_BUSY}")
            sleep(_CHECK_S)
        failure = self._started.result().failure
        if failure is not None:
            raise failure

    def _all_wait(self) -> bool:
        at_work = _RENEWER + self._loop.in_executor + sum(runner.threads_at_work for runner in self.runners)
        return self._loop.is_idle and self.clock.sleepers == at_work


_SETTLED = ("acked", "dropped", "rejected")


class ConsumerBench:
    """Handlers beside a server of their own. Receiving begins with the first ``advance``.

    ``async with`` stops it in order. Without that it stops when it is garbage-collected.
    """

    def __init__(self, app: Consumer, clock: VirtualClock | None = None) -> None:
        """Start a server with ``clock``."""
        self.server = RunningServer(clock=clock or VirtualClock()).__enter__()
        self._app = app
        self._time = BenchTime(app, self.server)
        self._closed = finalize(self, self._time.close)
        self._closed.atexit = False  # at exit it cannot stop in order: its threads are daemons

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the consumer as a program would, and then the server."""
        await asyncio.to_thread(self._closed)

    @property
    def faults(self) -> FaultPlan:
        """Return the plan of what happens to requests."""
        return self.server.faults

    @property
    def now_s(self) -> float:
        """Return the seconds since the test began."""
        return self._time.clock.now_s()

    @property
    def events(self) -> Counter[str]:
        """Return how often which event has happened, of all handlers."""
        return sum((runner.counts.events for runner in self._time.runners), Counter())

    @property
    def deleted(self) -> int:
        """Return how many messages were deleted: done, dropped or rejected."""
        return sum(self.events[name] for name in _SETTLED)

    @property
    def renewals(self) -> list[Renewal]:
        """Return the renewals that succeeded, in order; equal to tuples of when and for how long."""
        return list(self._time.renewals)

    def queue(self, name: str | None = None, **settings: SettingValue) -> RunningQueue:
        """Return the first handler's queue, or the one called ``name``, made with ``settings`` if there is none."""
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
        """Send ``payload``, unaffected by faults, and return the message's id; it is visible after an ``advance``.

        A ``str`` is the body, ``bytes`` its UTF-8, anything else its JSON, as handlers read it.
        """
        delay_s = None if delay is None else int(span_s(delay))
        to = self.queue(queue)
        return to.send(body_of(payload), attributes=attributes, delay_s=delay_s, group=group, dedup_id=dedup_id)

    async def advance(self, span: Span) -> None:
        """Let so much time pass; when it returns, no thread has anything left to do.

        Raises what made a queue impossible to consume, and ``TimeoutError`` if a handler in a thread or a process is
        at work for so long: time stands still for that.
        """
        await asyncio.to_thread(self._time.advance, span_s(span))

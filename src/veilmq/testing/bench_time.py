"""One time for a consumer and its server: the event loop of the handlers, the leases, and the server's clock.

They are moved together, from one instant at which anything is due to the next, and only when nobody has anything left
to do: the loop waits, the renewer sleeps, and each thread that is at work waits for an answer that only time brings.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple

from veilmq.client.sqs import QueueClient
from veilmq.consumer.app import Consumer
from veilmq.consumer.lease_table import Asked
from veilmq.consumer.renewals import Renewals
from veilmq.consumer.runner import Runner
from veilmq.consumer.running import Running
from veilmq.consumer.verdicts import Verdict
from veilmq.core.limits import SECOND_MS
from veilmq.testing.direct_transport import DirectTransport
from veilmq.testing.running_server import RunningServer
from veilmq.testing.stepped_clock import SteppedClock
from veilmq.testing.virtual_loop import VirtualLoop

PATIENCE_S = 30.0
CLOSE_S_MAX = 60.0
_LOOK_S = 0.0002
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
        """Start nothing yet."""
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
            self._end()
        self._server.stop()

    def _end(self) -> None:
        with suppress(RuntimeError):  # it has ended by itself, and its loop is closed
            self._loop.call_soon_threadsafe(self._stop.set)
        give_up_at_s = monotonic() + CLOSE_S_MAX
        while self._thread.is_alive() and monotonic() < give_up_at_s:
            if self._loop.is_idle:
                self._move(self._soon_s())
            sleep(_LOOK_S)

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
            running = self._app.make(connect=self._connect, clock=self.clock, draw=_never_early, renewals_at_once=1)
            running.renewals = _Noted(self.renewals.append)
            running.start()
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            self._started.set_exception(error)
            return
        self._started.set_result(running)
        await self._stop.wait()
        await running.stop()

    def _connect(self) -> QueueClient:
        return QueueClient(DirectTransport(self._server, self.clock))

    # ------------------------------------------------------------------------------------------------- instants

    def _next_s(self) -> float | None:
        """Return the next instant at which anything is due."""
        due_ms = self._server.next_due_ms()
        server_s = None if due_ms is None else (due_ms - self._origin_ms) / SECOND_MS
        return min(
            (at_s for at_s in (server_s, self.clock.next_s(), self._loop.next_s) if at_s is not None), default=None
        )

    def _soon_s(self) -> float:
        now_s, next_s = self.clock.now_s(), self._next_s()
        return max(now_s, min(now_s + _HURRY_S, next_s if next_s is not None else now_s + _HURRY_S))

    def _move(self, at_s: float) -> None:
        """Have everything stand at ``at_s``, at one stroke."""
        at_s = max(at_s, self.clock.now_s())
        at_ms = self._origin_ms + int(at_s * SECOND_MS + 1e-6)
        self._server.move_to(at_ms, first=lambda: self.clock.set(at_s))
        with suppress(RuntimeError):  # it is closed
            self._loop.wake()

    # ------------------------------------------------------------------------------------------------- quiet

    def _settle(self) -> None:
        """Wait until nobody has anything left to do at this instant."""
        give_up_at_s = monotonic() + PATIENCE_S
        while not self._is_quiet():
            if monotonic() > give_up_at_s:
                raise TimeoutError(f"the consumer has not come to rest: {_BUSY}")
            sleep(_LOOK_S)
        failure = self._started.result().failure
        if failure is not None:
            raise failure

    def _is_quiet(self) -> bool:
        """Tell whether all wait for time, and nobody has woken while the server finished what it was asked."""
        sleeps = self.clock.sleeps
        if not self._all_wait():
            return False
        self._server.settle()
        return self._all_wait() and self.clock.sleeps == sleeps

    def _all_wait(self) -> bool:
        at_work = _RENEWER + self._loop.in_executor + sum(runner.threads_at_work for runner in self.runners)
        return self._loop.is_idle and self.clock.sleepers == at_work


class _Noted(Renewals):
    """Notes the renewals that succeed, and counts."""

    __slots__ = ("_note",)

    def __init__(self, note: Callable[[Renewal], object]) -> None:
        super().__init__()
        self._note = note

    def called(self, asked: Sequence[Asked], verdicts: Sequence[Verdict], took_s: float) -> None:
        for one, verdict in zip(asked, verdicts, strict=True):
            if verdict in (Verdict.RENEWED, Verdict.PROVEN):
                self._note(Renewal(one.sent_at_s, one.for_s))
        super().called(asked, verdicts, took_s)


def _never_early() -> float:
    """Draw the same, so that renewals come when the policy says at the latest."""
    return 0.0

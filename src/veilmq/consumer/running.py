"""All handlers of a consumer at work, and how they stop.

In this order: no new receives, while the last polls are answered; what no handler has begun, and what those polls
bring, is released; handlers go on for the grace, their leases renewed; then they are cancelled and have two seconds;
what is still held is released; deletes are flushed and confirmed; last of all the renewer ends. Whoever is in a hurry
(``hurry``: the second signal) goes on to the cancelling at once.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from veilmq.client.sqs import QueueClient
from veilmq.consumer.clock import Clock
from veilmq.consumer.handlers import Handler
from veilmq.consumer.hooks import Hooks
from veilmq.consumer.lease_table import Asked, LeaseTable
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.policies import Draw
from veilmq.consumer.renewals import Renewals
from veilmq.consumer.renewer import Renewer
from veilmq.consumer.runner import Runner
from veilmq.consumer.spans import Span, span_s
from veilmq.consumer.tracing import tracing
from veilmq.consumer.verdicts import Verdict

DONE, FAILED, ABANDONED = 0, 1, 3
"""Exit codes: all was settled; a queue could not be consumed; a handler did not stop, or a message was not settled."""

CANCEL_S = 2.0
SETTLE_S_MAX = 30.0
_LOOK_EVERY_S = 0.05

_log = logging.getLogger("veilmq.consumer")


class Running:
    """Made by ``Consumer.running`` and ``Consumer.run``."""

    def __init__(
        self,
        handlers: Sequence[Handler],
        connect: Callable[[], QueueClient],
        clock: Clock,
        *,
        hooks: Hooks,
        grace_s: float,
        create: bool = False,
        draw: Draw = random.random,
        renewals_at_once: int = 4,
    ) -> None:
        """``connect`` gives a client for each handler, and one for the renewer; ``draw`` the jitter of renewals.

        With ``create`` the queues that handlers name are made where they are missing.
        """
        self.table = LeaseTable(clock, watcher=self, draw=draw)
        self.renewals = Renewals()
        self._hooks = hooks
        self._tracing = tracing()
        self._clients = [connect() for _ in range(len(handlers) + 1)]
        self._renewer = Renewer(self.table, self._clients[-1], meter=self, calls_max=renewals_at_once)
        self.runners = [
            Runner(handler, client, self.table, hooks=hooks, failed=self._failed, tracing=self._tracing, create=create)
            for handler, client in zip(handlers, self._clients, strict=False)
        ]
        self._grace_s = grace_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopped = False
        self.failure: Exception | None = None

    @property
    def exit_code(self) -> int:
        """How it went, as a process tells it; complete when ``stop`` has returned."""
        if self.failure is not None:
            return FAILED
        return ABANDONED if any(runner.abandoned or runner.held for runner in self.runners) else DONE

    @property
    def stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._stop.is_set()

    def start(self) -> None:
        """Begin to receive; within a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._renewer.start()
        for runner in self.runners:
            runner.start()

    async def wait(self) -> None:
        """Return when ``request_stop`` was called, or a queue cannot be consumed."""
        await self._stop.wait()

    def request_stop(self) -> None:
        """Begin to stop; called again, be in a hurry."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def drained(self, timeout: Span | None = None) -> None:  # noqa: ASYNC109 - people look for it there
        """Return when the queues have nothing visible and nothing is in our hands; raises ``TimeoutError``.

        Raises, too, what makes a queue impossible to consume or to look at. What others have in flight, and what is
        delayed, is not waited for; but where anything is in flight, the polls of that moment are, for it may be ours.
        On Amazon SQS the counts are approximate.
        """
        async with asyncio.timeout(None if timeout is None else span_s(timeout)):
            while not await self._is_drained():  # noqa: ASYNC110 - the queue tells nobody
                await asyncio.sleep(_LOOK_EVERY_S)

    async def stop(self) -> None:
        """Stop in the order that this module tells; harmless when it has been done."""
        if self._stopped:
            return
        self._stopped = True
        self._stop.set()
        _log.info("stopping")
        polls = asyncio.gather(*(runner.stop_intake() for runner in self.runners))
        if not await self._within(self._grace_s, Runner.worked, impatient=True):
            for runner in self.runners:
                runner.cancel()
            if not await self._within(CANCEL_S, Runner.worked):
                await asyncio.gather(*(runner.abandon() for runner in self.runners))
        await self._polls_answered(polls)
        if not await self._within(SETTLE_S_MAX, Runner.settled):
            _log.error("%d messages were not settled", sum(runner.held for runner in self.runners))
        await asyncio.to_thread(self._renewer.stop)
        for runner in self.runners:
            runner.close()
        for client in self._clients:
            client.close()

    def changed(self, lease: Lease, state: LeaseState) -> None:
        """Hand on what the renewer found out, to the event loop's thread."""
        if self._tracing is not None:
            self._tracing.changed(lease, state)
        self._tell(lease, lambda runner: runner.lease_changed(lease, state))

    def ending(self, lease: Lease, left_s: float) -> None:
        """Hand on that the twelve hours of a message are nearly over."""
        self._tell(lease, lambda runner: runner.lease_ending(lease, left_s))

    def sending(self, asked: Sequence[Asked]) -> None:
        """Count it."""
        self.renewals.sending(asked)

    def failed(self, errors: Sequence[Exception]) -> None:
        """Count them."""
        self.renewals.failed(errors)

    def called(self, asked: Sequence[Asked], verdicts: Sequence[Verdict], took_s: float) -> None:
        """Count a call of the renewer, and tell who watches renewals."""
        self.renewals.called(asked, verdicts, took_s)
        if self._tracing is not None:
            self._tracing.renewed(asked, verdicts)
        if self._hooks.has("renew"):
            for one, verdict in zip(asked, verdicts, strict=True):
                if verdict in (Verdict.RENEWED, Verdict.PROVEN):
                    self._tell(one.lease, partial(Runner.lease_renewed, lease=one.lease))

    def _tell(self, lease: Lease, tell: Callable[[Runner], object]) -> None:
        (runner,) = [runner for runner in self.runners if runner.owns(lease)]
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
                self._loop.call_soon_threadsafe(tell, runner)

    def _failed(self, error: Exception) -> None:
        _log.error("the queue cannot be consumed, stopping: %s", error)
        self.failure = error
        self._stop.set()

    async def _is_drained(self) -> bool:
        if self.failure is not None:
            raise self.failure
        drained = await asyncio.gather(*(runner.is_drained() for runner in self.runners))
        return all(drained) and not any(runner.held for runner in self.runners)

    async def _polls_answered(self, polls: "asyncio.Future[Any]") -> None:
        """Wait for the last polls; in a hurry, no longer than cancelled handlers have."""
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait([polls, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await asyncio.wait([polls], timeout=CANCEL_S)

    async def _within(
        self, seconds: float, what: Callable[[Runner], Awaitable[None]], *, impatient: bool = False
    ) -> bool:
        """Wait for ``what`` of all runners, and return whether it came in time; a hurry ends it if ``impatient``."""
        awaited = asyncio.gather(*(what(runner) for runner in self.runners))
        waiting: list[asyncio.Future[Any]] = [awaited]
        hurry = asyncio.ensure_future(self._hurry.wait())
        if impatient:
            waiting.append(hurry)
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        done = awaited.done()
        awaited.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await awaited
        return done

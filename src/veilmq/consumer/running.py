"""A consumer at work, and the order in which it stops.

Start-up functions come first, then receives. At the stop: no new receives, while the last polls are answered; what no
handler has begun, and what those polls bring, is released; handlers go on for the grace, their leases renewed; then
they are cancelled and have two seconds; what is still held is released; deletes are flushed and confirmed; the renewer
ends; last of all the shutdown functions are called. A second signal skips the grace.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, contextmanager
from importlib import import_module
from typing import Any, Self

import msgspec

from veilmq.client.sqs import QueueClient
from veilmq.consumer.clock import Clock, Span, span_s
from veilmq.consumer.context import Batch, Context
from veilmq.consumer.handlers import Hooks, Lifespan
from veilmq.consumer.leases import LeaseTable, Renewer
from veilmq.consumer.metrics import exported, is_installed
from veilmq.consumer.renewal_policies import Draw
from veilmq.consumer.runner import Runner
from veilmq.consumer.status import WorkerStatus, announced, consumer_metrics, status_of

_log = logging.getLogger("veilmq.consumer")

DONE, FAILED, ABANDONED = 0, 1, 3
"""Exit codes: all was settled; a queue could not be consumed; a handler did not stop, or a message was not settled."""

CANCEL_S = 2.0
SETTLE_S_MAX = 30.0
_CHECK_EVERY_S = 0.05


class Running:
    """Made by ``Consumer.running`` and ``Consumer.run``; as a context manager it runs, and is stopped in any case."""

    def __init__(
        self,
        lifespan: Lifespan,
        connect: Callable[[], QueueClient],
        clock: Clock,
        *,
        hooks: Hooks,
        grace_s: float,
        objects: Mapping[type, object] | None = None,
        create: bool = False,
        draw: Draw = random.random,
        renewals_at_once: int = 4,
    ) -> None:
        """``lifespan`` has the handlers. ``connect`` gives a client for each of them, and one for the renewer.

        With ``create`` missing queues of handlers are made. ``objects`` take the place of those that the start-up
        functions return. ``draw`` gives the jitter of renewals, which make up to ``renewals_at_once`` calls at a time.
        Raises ``TypeError`` where a parameter has a type that no start-up function returns.
        """
        self._lifespan = lifespan
        handlers = lifespan.handlers
        self._state: dict[Any, object] = dict(objects or {})
        lifespan.check(self._state)
        self.undo = AsyncExitStack()
        """What is left when it has stopped: what the start-up functions have begun, for one."""
        self.table = LeaseTable(clock, draw=draw)
        self.renewals = self.table.metrics
        traces = tracing()
        self._clients = [connect() for _ in range(len(handlers) + 1)]
        change = self._clients[-1].change_visibility_batch
        self._renewer = Renewer(self.table, change, calls_max=renewals_at_once)
        self.runners = [
            Runner(
                handler,
                client,
                self.table,
                hooks=hooks,
                failed=self._failed,
                middleware=lifespan.around[Context if handler.batching is None else Batch],
                state=self._state,
                tracing=traces,
                create=create,
            )
            for handler, client in zip(handlers, self._clients, strict=False)
        ]
        self._grace_s = grace_s
        self._starting: asyncio.Task[Any] | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._stopped = False
        self.failure: Exception | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def exit_code(self) -> int:
        """The exit code of a process; final when ``stop`` has returned."""
        if self.failure is not None:
            return FAILED
        return ABANDONED if any(runner.abandoned or runner.held for runner in self.runners) else DONE

    @property
    def stopping(self) -> bool:
        """Whether it has begun to stop."""
        return self._stop.is_set()

    def status(self) -> WorkerStatus:
        """Return what it is doing; may be called in any thread."""
        return status_of(self.runners, self.table, stopping=self.stopping)

    async def start(self) -> None:
        """Call the start-up functions, and begin to receive; raises what they raise. ``stop`` it in any case.

        ``request_stop`` cancels a start-up function that waits; then nothing is received.
        """
        self._starting = asyncio.current_task()
        try:
            await self.undo.enter_async_context(self._lifespan.entered(self._state))
        except asyncio.CancelledError:
            if self._starting is None or not self.stopping:
                raise
            self._starting.uncancel()
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._starting = None
        if self.stopping:
            return
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
        elif self._starting is not None:
            self._starting.cancel()
        self._stop.set()

    async def drained(self, timeout: Span | None = None) -> None:  # noqa: ASYNC109 - people look for it there
        """Return when the queues have nothing visible and no message is held here; raises ``TimeoutError``.

        Raises, too, what makes a queue impossible to consume or to inspect. What others have in flight, and what is
        delayed, is not waited for; but where anything is in flight, the polls of that moment are, for it may be ours.
        On Amazon SQS the counts are approximate.
        """
        async with asyncio.timeout(None if timeout is None else span_s(timeout)):
            while True:
                if self.failure is not None:
                    raise self.failure
                drained = await asyncio.gather(*(runner.is_drained() for runner in self.runners))
                if all(drained) and not any(runner.held for runner in self.runners):
                    return
                await asyncio.sleep(_CHECK_EVERY_S)

    async def stop(self) -> None:
        """Stop in the order that this module describes; harmless when it has been done."""
        if self._stopped:
            return
        self._stopped = True
        self._stop.set()
        _log.info("stopping")
        polls: asyncio.Future[Any] = asyncio.gather(*(runner.stop_intake() for runner in self.runners))
        hurry: asyncio.Future[Any] = asyncio.ensure_future(self._hurry.wait())
        if not await self._within(self._grace_s, Runner.worked, hurry):
            for runner in self.runners:
                runner.cancel()
            if not await self._within(CANCEL_S, Runner.worked):
                await asyncio.gather(*(runner.abandon() for runner in self.runners))
        await asyncio.wait([polls, hurry], return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await asyncio.wait([polls], timeout=CANCEL_S)  # in a hurry, as long as cancelled handlers have
        if not await self._within(SETTLE_S_MAX, Runner.settled):
            _log.error("%d messages were not settled", sum(runner.held for runner in self.runners))
        await asyncio.to_thread(self._renewer.stop)
        for runner in self.runners:
            runner.close()
        for client in self._clients:
            client.close()
        await self.undo.aclose()

    def _failed(self, error: Exception) -> None:
        _log.error("the queue cannot be consumed, stopping: %s", error)
        self.failure = error
        self._stop.set()

    async def _within(self, for_s: float, what: Callable[[Runner], Awaitable[None]], *end: asyncio.Future[Any]) -> bool:
        """Wait for ``what`` of all runners, and return whether it came in time, and before any of ``end``."""
        awaited: asyncio.Future[Any] = asyncio.gather(*(what(runner) for runner in self.runners))
        await asyncio.wait([awaited, *end], timeout=for_s, return_when=asyncio.FIRST_COMPLETED)
        done = awaited.done()
        awaited.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await awaited
        return done


def tracing() -> Any:
    """Return the ``Tracing`` of this process, ``None`` where OpenTelemetry is not installed or not configured."""
    return import_module("veilmq.consumer.tracing").configured() if is_installed("opentelemetry.trace") else None


_seen: list[Running] = []


@contextmanager
def watched(running: Running, *, seen: bool) -> Iterator[None]:
    """Export the metrics of ``running``; ``seen`` shows its status to ``veilmq top``."""
    with ExitStack() as stack:
        stack.enter_context(exported(consumer_metrics(running.runners, running.renewals)))
        if seen:
            _seen.append(running)
            stack.callback(_seen.remove, running)
            stack.enter_context(announced(lambda: msgspec.json.encode([running.status()])))
        yield


def statuses() -> list[WorkerStatus]:
    """Return the status of each consumer of this process that may be seen."""
    return [running.status() for running in list(_seen)]

"""A consumer at work, and the order in which it stops.

Start-up functions come first, then receives. At the stop: no new receives, while the last polls are answered; what no
handler has begun, and what those polls bring, is released; handlers go on for the grace, their leases renewed; then
they are cancelled and have two seconds; what is still held is released; deletes are flushed and confirmed; the renewer
ends; last of all the shutdown functions are called. A second signal skips the grace.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import Any, Self

from veilmq.client.sqs import QueueClient
from veilmq.consumer.clock import Clock, Span, span_s
from veilmq.consumer.context import Batch, Context
from veilmq.consumer.handlers import Hooks, Lifespan
from veilmq.consumer.leases import LeaseTable, Renewer
from veilmq.consumer.metrics import is_installed
from veilmq.consumer.renewal_policies import Draw
from veilmq.consumer.runner import CHECK_EVERY_S, Runner
from veilmq.consumer.status import WorkerStatus, status_of

_log = logging.getLogger("veilmq.consumer")

DONE, FAILED, ABANDONED = 0, 1, 3
"""Exit codes: all was settled; a queue could not be consumed; a handler did not stop, or a message was not settled."""


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
                handler=handler,
                client=client,
                table=self.table,
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
        self._requested = False
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Lock()
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
        """Whether it has begun to stop, or is about to."""
        return self._requested or self._stop.is_set()

    def status(self) -> WorkerStatus:
        """Return what it is doing; may be called in any thread."""
        return status_of(self.runners, self.table, stopping=self.stopping)

    async def start(self) -> None:
        """Call the start-up functions, and begin to receive; raises what they raise. ``stop`` it in any case.

        ``request_stop`` cancels a start-up function that waits; then nothing is received.
        """
        self._loop, self._starting = asyncio.get_running_loop(), asyncio.current_task()
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
        """Begin to stop; called again, be in a hurry. For any thread, and for signal handlers; harmless at the end."""
        again, self._requested = self.stopping, True
        if self._loop is None:
            self._stop.set()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._begin_to_stop, again)

    def _begin_to_stop(self, again: bool) -> None:
        if again:
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
                await asyncio.sleep(CHECK_EVERY_S)

    async def stop(self) -> None:
        """Stop in the order that this module describes; called again, return when that has been done."""
        async with self._ending:
            if self._stopped:
                return
            self._stop.set()
            _log.info("stopping")
            await asyncio.gather(*(runner.stop(grace_s=self._grace_s, hurry=self._hurry) for runner in self.runners))
            await asyncio.to_thread(self._renewer.stop)
            for runner in self.runners:
                runner.close()
            for client in self._clients:
                client.close()
            await self.undo.aclose()
            self._stopped = True

    def _failed(self, error: Exception) -> None:
        _log.error("the queue cannot be consumed, stopping: %s", error)
        self.failure = error
        self._stop.set()


def tracing() -> Any:
    """Return the ``Tracing`` of this process, ``None`` where OpenTelemetry is not installed or not configured."""
    return import_module("veilmq.consumer.tracing").configured() if is_installed("opentelemetry.trace") else None

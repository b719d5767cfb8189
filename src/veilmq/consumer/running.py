"""A running consumer, and the order in which it stops.

A start calls the start-up functions, then begins to receive. A stop:

1. ends the polls, and releases the messages that they return and those that no handler has started;
2. lets handlers continue for the grace period, with their leases renewed (a second signal skips this);
3. cancels them, waits two seconds, and releases what is still held;
4. waits until the last deletes are confirmed;
5. ends the renewer;
6. calls the shutdown functions.
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
"""Exit codes: all settled; a queue could not be consumed; a handler did not stop, or a message was not settled."""


class Running:
    """A consumer at work: its runners, leases and renewer. Its context manager starts and stops it."""

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
        """``connect`` returns a client: one for each handler of ``lifespan``, and one for the renewer.

        ``objects`` replace the results of start-up functions. With ``create`` missing queues are created. ``draw``
        returns the jitter of renewals; up to ``renewals_at_once`` of their calls run at a time. Raises ``TypeError``
        for a parameter whose type no start-up function returns.
        """
        self._lifespan = lifespan
        self._state: dict[Any, object] = dict(objects or {})
        lifespan.check(self._state)
        self.shutdown_stack = AsyncExitStack()  # closed last; calls the shutdown functions
        self.table = LeaseTable(clock, draw=draw)
        self.renewals = self.table.metrics
        traces = import_module("veilmq.consumer.tracing").tracing() if is_installed("opentelemetry.trace") else None
        self._clients = [connect() for _ in range(len(lifespan.handlers) + 1)]
        change = self._clients[-1].change_visibility_batch
        self._renewer = Renewer(self.table, change, calls_max=renewals_at_once)
        self.runners = [
            Runner(
                handler=handler,
                client=client,
                table=self.table,
                hooks=hooks,
                failed=self._failed,
                middleware=lifespan.middleware_of[Context if handler.batching is None else Batch],
                state=self._state,
                tracing=traces,
                create=create,
            )
            for handler, client in zip(lifespan.handlers, self._clients, strict=False)
        ]
        self._grace_s = grace_s
        self._starting: asyncio.Task[Any] | None = None
        self._requested = False
        self._stop_event = asyncio.Event()
        self._skip_grace = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_lock = asyncio.Lock()
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
        """The exit code of the process; final once ``stop`` has returned."""
        if self.failure is not None:
            return FAILED
        return ABANDONED if any(runner.abandoned or runner.held for runner in self.runners) else DONE

    @property
    def stopping(self) -> bool:
        """Whether a stop has begun or was requested."""
        return self._requested or self._stop_event.is_set()

    def status(self) -> WorkerStatus:
        """Return the current status. Thread-safe."""
        return status_of(self.runners, self.table, stopping=self.stopping)

    async def start(self) -> None:
        """Call the start-up functions, whose errors are raised, and begin to receive. Call ``stop`` even on errors.

        ``request_stop`` cancels a waiting start-up function; then nothing is received.
        """
        self._loop, self._starting = asyncio.get_running_loop(), asyncio.current_task()
        try:
            await self.shutdown_stack.enter_async_context(self._lifespan.started(self._state))
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
        """Wait until ``request_stop`` is called or a queue cannot be consumed."""
        await self._stop_event.wait()

    def request_stop(self) -> None:
        """Begin to stop; a second call skips the grace period. Safe in any thread, in signal handlers, and later."""
        again, self._requested = self.stopping, True

        def stop() -> None:
            if again:
                self._skip_grace.set()
            elif self._starting is not None:
                self._starting.cancel()
            self._stop_event.set()

        if self._loop is None:
            self._stop_event.set()
        else:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(stop)

    async def drained(self, timeout: Span | None = None) -> None:  # noqa: ASYNC109 - the usual place
        """Wait until the queues have no visible message and none is held here. Raises ``TimeoutError``.

        Messages that are delayed, or in flight to other consumers, are not waited for; if any is in flight, current
        polls are, because it may be in their replies. Raises the error that makes a queue impossible to consume or to
        inspect. On Amazon SQS the counts are approximate.
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
        """Stop in the order that this module describes. Further calls wait until that is done."""
        async with self._stop_lock:
            if self._stopped:
                return
            self._stop_event.set()
            _log.info("stopping")
            grace_s, skip_grace = self._grace_s, self._skip_grace
            await asyncio.gather(*(runner.stop(grace_s=grace_s, skip_grace=skip_grace) for runner in self.runners))
            await asyncio.to_thread(self._renewer.stop)
            for runner in self.runners:
                runner.close()
            for client in self._clients:
                client.close()
            await self.shutdown_stack.aclose()
            self._stopped = True

    def _failed(self, error: Exception) -> None:
        self.failure = error
        self._stop_event.set()


def refuse_loop(instead: str) -> None:
    """Raise ``RuntimeError`` if an event loop runs in this thread, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"an event loop is running in this thread; use {instead}")

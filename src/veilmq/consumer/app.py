"""The consumer: handlers declared on plain functions, a program that runs them, and the order in which they stop.

No new receives, while the last polls are answered; what no handler has begun, and what those polls bring, is released;
handlers go on for the grace, their leases renewed; then they are cancelled and have two seconds; what is still held is
released; deletes are flushed and confirmed; last of all the renewer ends. A second signal skips the grace.
"""

import asyncio
import contextlib
import logging
import math
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from importlib import import_module
from typing import Any, TypeVar, overload

import msgspec

from veilmq.client import HttpQueueClient, SigningKey
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import endpoint_of, key_of
from veilmq.consumer.clock import Clock, Span, SystemClock, span_s
from veilmq.consumer.context import Backoff, about
from veilmq.consumer.handlers import (
    OUTSTANDING_BYTES_MAX,
    Batching,
    Handler,
    Hook,
    Hooks,
    OnLost,
    Options,
    make_handler,
    pool_of,
    timeout_of,
)
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable, RenewalRequest, Watcher
from veilmq.consumer.metrics import exported, is_installed
from veilmq.consumer.records import Idempotency
from veilmq.consumer.renewal_policies import Adaptive, Draw, Fixed, RenewalResult
from veilmq.consumer.renewer import Renewer
from veilmq.consumer.runner import Runner
from veilmq.consumer.status import WorkerStatus, announced, consumer_metrics, status_of
from veilmq.core.limits import SQS_RECEIVE_WAIT_S
from veilmq.wire.sqs.names import is_fifo

_log = logging.getLogger("veilmq.consumer")

DONE, FAILED, ABANDONED = 0, 1, 3
"""Exit codes: all was settled; a queue could not be consumed; a handler did not stop, or a message was not settled."""

CANCEL_S = 2.0
SETTLE_S_MAX = 30.0
_CHECK_EVERY_S = 0.05


class Running(Watcher):
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
        renewed: Callable[[RenewalRequest], object] | None = None,
    ) -> None:
        """``connect`` gives a client for each handler, and one for the renewer; ``draw`` the jitter of renewals.

        With ``create`` missing queues of handlers are made. ``renewed`` is called for each renewal that succeeds, in
        the renewer's threads, which make up to ``renewals_at_once`` calls at a time.
        """
        self.table = LeaseTable(clock, watcher=self, draw=draw)
        self.renewals = self.table.metrics
        self._hooks = hooks
        self._on_renewed = renewed
        self._tracing: Any = tracing()
        self._clients = [connect() for _ in range(len(handlers) + 1)]
        self._renewer = Renewer(self.table, self._clients[-1], renewed=self._renewed, calls_max=renewals_at_once)
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
        if not await self._within(self._grace_s, Runner.worked, impatient=True):
            for runner in self.runners:
                runner.cancel()
            if not await self._within(CANCEL_S, Runner.worked):
                await asyncio.gather(*(runner.abandon() for runner in self.runners))
        hurry = asyncio.ensure_future(self._hurry.wait())
        first: list[asyncio.Future[Any]] = [polls, hurry]
        await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
        hurry.cancel()
        await asyncio.wait([polls], timeout=CANCEL_S)  # in a hurry, as long as cancelled handlers have
        if not await self._within(SETTLE_S_MAX, Runner.settled):
            _log.error("%d messages were not settled", sum(runner.held for runner in self.runners))
        await asyncio.to_thread(self._renewer.stop)
        for runner in self.runners:
            runner.close()
        for client in self._clients:
            client.close()

    def changed(self, lease: Lease, state: LeaseState) -> None:
        """Call the runner, in the event loop's thread."""
        if self._tracing is not None:
            self._tracing.changed(lease, state)
        self._notify(lease, lambda runner: runner.lease_changed(lease, state))

    def ending(self, lease: Lease, left_s: float) -> None:
        """Warn that the twelve hours of a message are nearly over; call the hooks in the event loop's thread."""
        text = "message %s: its lease ends for good in %.0f s"
        _log.warning(text, lease.message.id, left_s, extra=about(lease))
        self._notify(lease, lambda runner: runner.call_hooks("ending", lease, left_s))

    def _renewed(self, requests: Sequence[RenewalRequest], results: Sequence[RenewalResult]) -> None:
        if self._tracing is not None:
            self._tracing.renewed(requests, results)
        for request, result in zip(requests, results, strict=True):
            if result in (RenewalResult.RENEWED, RenewalResult.PROVEN):
                if self._on_renewed is not None:
                    self._on_renewed(request)
                if self._hooks.has("renew"):
                    self._notify(request.lease, partial(Runner.call_hooks, name="renew", lease=request.lease))

    def _notify(self, lease: Lease, call: Callable[[Runner], object]) -> None:
        (runner,) = [runner for runner in self.runners if runner.subscription is lease.subscription]
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call, runner)

    def _failed(self, error: Exception) -> None:
        _log.error("the queue cannot be consumed, stopping: %s", error)
        self.failure = error
        self._stop.set()

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


Function = TypeVar("Function", bound=Callable[..., Any])

GRACE = "25s"
_BATCH_SIZE_MAX = 1_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SIGNALLED = 128


class Consumer:
    """Handlers for the messages of one queue, or of several.

    A program is ``Consumer("orders")``, a function under ``@app.handler``, and ``app.run()``.
    """

    def __init__(
        self,
        queue: str,
        *,
        endpoint: str | None = None,
        key: SigningKey | None = None,
        client: QueueClient | None = None,
        grace: Span = GRACE,
        clock: Clock | None = None,
        seen: bool = True,
        create: bool = False,
    ) -> None:
        """``queue`` (a name or a URL) is that of handlers which name no other. Nothing is sent yet.

        The server is at ``endpoint``, else where ``VEILMQ_ENDPOINT``, ``AWS_ENDPOINT_URL_SQS`` or ``AWS_ENDPOINT_URL``
        says, else on this machine; with ``create`` the queues that handlers name are made where they are missing.
        Requests are signed with ``key``, else with the one that AWS's variables name, if they do. ``client`` takes the
        place of our own HTTP, for example ``BotoQueueClient``. ``grace`` is how long handlers may go on after a stop.
        ``seen=False`` keeps ``veilmq top`` from seeing it.
        """
        self.queue = queue
        self.seen = seen
        self.create = create
        self.handlers: list[Handler] = []
        self._hooks = Hooks()
        self._grace_s = span_s(grace)
        self._clock = clock or SystemClock()
        signing_key, server = key or key_of(os.environ), endpoint or endpoint_of(os.environ)
        self._connect = lambda: HttpQueueClient(server, key=signing_key) if client is None else client

    @overload
    def handler(self, function: Function, /) -> Function: ...

    @overload
    def handler(self, /, **options: Any) -> Callable[[Function], Function]: ...

    def handler(self, function: Function | None = None, /, **options: Any) -> Function | Callable[[Function], Function]:
        """Declare ``function`` as the handler of a queue; it stays an ordinary function, for tests to call.

        The options are those of ``declare``. Raises ``TypeError`` and ``ValueError`` for what cannot work.
        """
        if function is not None:
            return self.declare(function)
        return lambda declared: self.declare(declared, **options)

    def batch(
        self,
        *,
        max_size: int = 100,
        linger: Span = "200ms",
        group_by: Callable[[Any], object] | None = None,
        **options: Any,
    ) -> Callable[[Function], Function]:
        """Declare a handler that takes a ``Batch`` of up to ``max_size`` messages that came within ``linger``.

        ``group_by`` takes an ``Item`` and gives a key; messages of different keys share no batch. Each message that
        does not ``fail`` is done when the handler returns. Not for FIFO queues, nor in the process pool.
        """
        size_max = _checked(1, _BATCH_SIZE_MAX, max_size=max_size)
        batching = Batching(size_max=size_max, linger_s=span_s(linger), key=group_by)
        return lambda declared: self.declare(declared, batching=batching, **{"concurrency": 1, **options})

    def declare(
        self,
        function: Function,
        *,
        queue: str | None = None,
        concurrency: int = 16,
        prefetch: int | None = None,
        max_outstanding_bytes: int = OUTSTANDING_BYTES_MAX,
        polls: int = 6,
        wait: Span = SQS_RECEIVE_WAIT_S.maximum,
        pool: str | None = None,
        lease: object = "auto",
        strict: bool = False,
        timeout: Span = "1h",
        stall: Span | None = None,
        retry: Backoff | None = None,
        dead_letter: str | None = None,
        on_lost: OnLost = "cancel",
        kill_on_lost: bool = False,
        idempotency: Idempotency | None = None,
        batching: Batching | None = None,
    ) -> Function:
        """Make ``function`` a handler with these options, which ``docs/consumer.md`` explains; returns it unchanged."""
        policy: Any = lease  # a policy, by its one method that nothing else has
        if not hasattr(lease, "renew_at_s"):
            policy = Adaptive() if lease == "auto" else Fixed(policy)
        chosen = Options(
            queue=queue or self.queue,
            concurrency=_checked(1, concurrency=concurrency),
            prefetch=None if prefetch is None else _checked(0, prefetch=prefetch),
            max_outstanding_bytes=_checked(1, max_outstanding_bytes=max_outstanding_bytes),
            polls=_checked(1, polls=polls),
            wait_s=_checked(1, SQS_RECEIVE_WAIT_S.maximum, wait_s=int(span_s(wait))),
            pool=pool_of(function, pool),
            policy=policy,
            strict=strict,
            timeout_s=timeout_of(timeout),
            stall_s=None if stall is None else timeout_of(stall),
            retry=retry or Backoff(),
            dead_letter=dead_letter,
            on_lost=on_lost,
            kill_on_lost=kill_on_lost,
            idempotency=idempotency,
        )
        _check(chosen, batching, taken=[handler.options.queue for handler in self.handlers])
        self.handlers.append(make_handler(function, chosen, batching))
        return function

    def on(self, name: str, hook: Hook) -> None:
        """Call ``hook`` at each ``name``: receive, start, settle, renew, suspect, lost, ending, release.

        It is given the message's ``Context``; ``settle`` also the ``Ending``, ``ending`` the seconds that are left.
        """
        self._hooks.add(name, hook)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Running]:
        """Run the handlers inside a program's own event loop; stops them in order at the end of the block.

        Raises what made a queue impossible to consume.
        """
        running = self.make()
        with watched(running, seen=self.seen):
            running.start()
            try:
                yield running
            finally:
                await running.stop()
        if running.failure is not None:
            raise running.failure

    def run(self) -> int:
        """Run the handlers until SIGTERM or SIGINT, and return an exit code (``running``).

        A second signal cancels the handlers at once, a third ends the process on the spot.
        """
        return asyncio.run(self._run())

    async def _run(self) -> int:
        running = self.make()
        loop = asyncio.get_running_loop()
        received = 0

        def signalled(number: int) -> None:
            nonlocal received
            received += 1
            if received > len(("stop", "hurry")):
                os._exit(_SIGNALLED + number)
            running.request_stop()

        for number in _SIGNALS:
            loop.add_signal_handler(number, signalled, number)
        with watched(running, seen=self.seen), contextlib.ExitStack() as handled:
            for number in _SIGNALS:
                handled.callback(loop.remove_signal_handler, number)
            running.start()
            await running.wait()
            await running.stop()
        return running.exit_code

    def make(
        self, *, connect: Callable[[], QueueClient] | None = None, clock: Clock | None = None, **how: Any
    ) -> Running:
        """Return what runs the handlers, not started; to run them otherwise than ``run`` and ``running`` do.

        ``connect`` gives clients; ``how`` has the last arguments of ``Running``.
        """
        if not self.handlers:
            raise ValueError("this consumer has no handler; declare one with @app.handler")
        return Running(
            self.handlers,
            connect or self._connect,
            clock or self._clock,
            hooks=self._hooks,
            grace_s=self._grace_s,
            create=self.create,
            **how,
        )


def _checked(least: int, most: float = math.inf, **option: int) -> int:
    ((name, value),) = option.items()
    if not least <= value <= most:
        bounds = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} is {value}; it must be {bounds}")
    return value


def _check(options: Options, batching: Batching | None, *, taken: list[str]) -> None:
    if options.queue in taken:
        raise ValueError(f"the queue {options.queue!r} has a handler already; name another with queue=")
    if batching is not None and is_fifo(options.queue):
        raise ValueError("a FIFO queue's messages are handled one by one; use @app.handler")
    if batching is not None and options.pool == "process":
        raise ValueError("a batch handler runs in the async or the thread pool")
    if options.kill_on_lost and options.pool != "process":
        raise ValueError("kill_on_lost needs pool='process': neither a task nor a thread can be killed")
    if isinstance(options.on_lost, str) and options.on_lost not in ("cancel", "continue"):
        raise ValueError(f'on_lost is {options.on_lost!r}; use "cancel", "continue", or a function')

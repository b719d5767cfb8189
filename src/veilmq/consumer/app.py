"""``Consumer``: declares handlers on plain functions, runs them and sends messages.

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
import math
import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Concatenate, Self, TypedDict, TypeVar, Unpack, overload

import msgspec

from veilmq.client import HttpQueueClient, SentMessage, SigningKey
from veilmq.client.messages import traced
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import endpoint_from, key_from
from veilmq.consumer.clock import Clock, Span, SystemClock, refuse_loop, span_s
from veilmq.consumer.context import Batch, Context
from veilmq.consumer.handlers import (
    Batching,
    Function,
    HandlerOptions,
    Hook,
    Hooks,
    Lifespan,
    attributes_of,
    body_of,
    checked,
    make_handler,
)
from veilmq.consumer.leases import LeaseTable, Renewer
from veilmq.consumer.metrics import exported, is_installed, served
from veilmq.consumer.processes import SIGNALLED, process_number
from veilmq.consumer.records import refuse_async
from veilmq.consumer.renewal_policies import Draw
from veilmq.consumer.runner import CANCEL_S, CHECK_EVERY_S, Runner
from veilmq.consumer.status import WorkerStatus, announced, consumer_metrics, status_of
from veilmq.consumer.test_client import TestClient
from veilmq.core.limits import SQS_MESSAGE_ATTRIBUTES_MAX
from veilmq.core.messages import Attribute

_log = logging.getLogger("veilmq.consumer")

Payload = TypeVar("Payload")

GRACE = "25s"
_BATCH_SIZE_MAX = 1_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

To = str | Callable[[Batch[Payload]], object] | Callable[Concatenate[Payload, ...], object]
"""The target of a message: a queue, or a handler with a matching payload type (also a batch handler)."""


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


_announced: list[Running] = []


def statuses() -> list[WorkerStatus]:
    """Return the status of each running consumer of this process, except those with ``seen=False``."""
    return [running.status() for running in list(_announced)]


class SendOptions(TypedDict, total=False):
    """Options of ``Consumer.send``. The default of ``delay`` is the queue's."""

    attributes: Mapping[str, Attribute | str]
    delay: Span
    group: str
    dedup_id: str


class Consumer(Lifespan):
    """Handlers for the messages of one or more queues.

    A program is ``app = Consumer("orders")``, a function under ``@app.handler``, and ``app.run()``.
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
        metrics_port: int | None = None,
        opentelemetry: bool = False,
    ) -> None:
        """The constructor sends no request.

        - ``queue``: the default queue of handlers, a name or a URL.
        - ``endpoint``: the server; default: ``VEILMQ_ENDPOINT``, ``AWS_ENDPOINT_URL_SQS`` or ``AWS_ENDPOINT_URL``,
          else this machine.
        - ``key``: signs requests; default: the key in AWS's variables, if any.
        - ``client``: replaces the built-in HTTP client, for example ``BotoQueueClient``.
        - ``grace``: how long handlers may continue after a stop.
        - ``seen=False``: hides the consumer from ``veilmq top``.
        - ``create``: creates missing queues of handlers.
        - ``metrics_port``: serves Prometheus metrics while it runs. 0 selects a free port and logs it; of several
          processes, each uses the next port.
        - ``opentelemetry``: exports spans and metrics by OTLP, configured by OpenTelemetry's variables.
        """
        super().__init__()
        self.queue = queue
        self.seen = seen
        self.create = create
        self.metrics_port = metrics_port
        self.opentelemetry = opentelemetry
        self._hooks = Hooks()
        self._grace_s = span_s(grace)
        self._clock = clock or SystemClock()
        signing_key, server = key or key_from(os.environ), endpoint or endpoint_from(os.environ)
        self._connect: Callable[[], QueueClient] = lambda: client or HttpQueueClient(server, key=signing_key)
        self._has_tracing = is_installed("opentelemetry.trace")
        self._sender_lock = threading.Lock()
        self.sender: QueueClient | None = None

    @overload
    def handler(self, function: Function, /) -> Function: ...

    @overload
    def handler(self, /, **options: Unpack[HandlerOptions]) -> Callable[[Function], Function]: ...

    def handler(
        self, function: Function | None = None, /, **options: Unpack[HandlerOptions]
    ) -> Function | Callable[[Function], Function]:
        """Declare ``function`` as the handler of a queue and return it unchanged, so that tests can call it.

        Raises ``TypeError`` and ``ValueError`` for invalid functions and options.
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
        **options: Unpack[HandlerOptions],
    ) -> Callable[[Function], Function]:
        """Declare a handler of a ``Batch`` of up to ``max_size`` messages that arrive within ``linger``.

        ``group_by`` maps an ``Item`` to a key; messages with different keys do not share a batch. When the handler
        returns, each message that did not ``fail`` is deleted. Not available for FIFO queues or in the process pool.
        """
        refuse_async("group_by", group_by)
        size_max = checked(1, _BATCH_SIZE_MAX, "max_size", max_size)
        batching = Batching(size_max=size_max, linger_s=span_s(linger), key=group_by)
        options.setdefault("concurrency", 1)
        return lambda declared: self.declare(declared, batching=batching, **options)

    def declare(
        self, function: Function, *, batching: Batching | None = None, **options: Unpack[HandlerOptions]
    ) -> Function:
        """Make ``function`` a handler and return it unchanged; ``docs/consumer.md`` describes the options."""
        options["queue"] = options.get("queue") or self.queue
        if options["queue"] in (handler.options.queue for handler in self.handlers):
            raise ValueError(f"the queue {options['queue']!r} has a handler already; name another with queue=")
        self.handlers.append(make_handler(function, batching=batching, **options))
        return function

    def send(self, to: To[Payload], message: Payload, **options: Unpack[SendOptions]) -> SentMessage:
        """Send ``message`` to ``to``: the name or URL of a queue, or a handler of this consumer. Blocks.

        A ``str`` is sent as the body, ``bytes`` as UTF-8, any other type as JSON, the encoding that handlers read. The
        current OpenTelemetry span, if any, is attached.

        Raises ``ClientError``, ``Unreachable``, ``TypeError`` if JSON cannot represent the message, and ``ValueError``
        if ``to`` is a function but not a handler.
        """
        queue = self.queue_of(to)
        with self._sender_lock:
            sender = self.sender = self.sender or self._connect()
        attributes = attributes_of(options.get("attributes", {}))
        if self._has_tracing and len(with_span := traced(attributes)) <= SQS_MESSAGE_ATTRIBUTES_MAX:
            attributes = with_span
        return sender.send(
            queue,
            body_of(message),
            attributes=attributes,
            delay_s=math.ceil(span_s(options["delay"])) if "delay" in options else None,
            group=options.get("group"),
            dedup_id=options.get("dedup_id"),
        )

    async def send_async(self, to: To[Payload], message: Payload, **options: Unpack[SendOptions]) -> SentMessage:
        """``send`` in a thread, for async functions."""
        return await asyncio.to_thread(partial(self.send, to, message, **options))

    def queue_of(self, to: str | Callable[..., object]) -> str:
        """Return the queue of the handler ``to``, or ``to`` if it is a queue. Raises ``ValueError`` otherwise."""
        queue = next((each.options.queue for each in self.handlers if each.function == to), to)
        if not isinstance(queue, str):
            raise ValueError(f"{queue!r} has no handler in this consumer; name a queue")
        return queue

    def test_client(self, objects: Mapping[Any, object] | None = None) -> TestClient:
        """Return a sync and async context manager with which a test sends messages to handlers without a server.

        ``objects`` (by type) replace the results of start-up functions.
        """
        return TestClient(partial(self.make, objects=objects), self.queue_of)

    def on(self, name: str, hook: Hook) -> None:
        """Call ``hook`` at each event ``name``: receive, start, settle, renew, suspect, lost, ending or release.

        The hook gets the message's ``Context``; ``settle`` also gets the ``Ending``, and ``ending`` the seconds left.
        """
        self._hooks.add(name, hook)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Running]:
        """Run the handlers in the current event loop, and shut down in order at the end of the block.

        Raises the error that made a queue impossible to consume, or that a start-up function raised.
        """
        running = self.make()
        async with self._started(running):
            yield running
        if running.failure is not None:
            raise running.failure

    def run(self) -> int:
        """Run the handlers until SIGTERM or SIGINT, and return the exit code (``DONE``, ``FAILED``, ``ABANDONED``).

        A second signal cancels the handlers, a third ends the process.
        """
        refuse_loop("async with app.running()")
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._run())
        finally:  # asyncio.run would wait forever for a handler that does not stop
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_S))
            for number in _SIGNALS:
                loop.call_soon(loop.remove_signal_handler, number)  # uvloop's close does not
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _run(self) -> int:
        running = self.make()
        loop = asyncio.get_running_loop()
        signals = 0

        def on_signal(number: int) -> None:
            nonlocal signals
            signals += 1
            if signals > 2:  # the first begins the grace period, the second ends it
                os._exit(SIGNALLED + number)
            running.request_stop()

        def on_supervisor_exit() -> None:
            loop.remove_reader(sys.stdin)
            running.request_stop()

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal, number)
        if process_number() is not None:
            loop.add_reader(sys.stdin, on_supervisor_exit)
        try:
            async with self._started(running):
                await running.wait()
        except Exception:
            if running.failure is None:
                raise
            _log.exception("the consumer could not start")
        return running.exit_code

    @asynccontextmanager
    async def _started(self, running: Running) -> AsyncIterator[None]:
        with ExitStack() as stack:
            stack.enter_context(served(self.metrics_port, statuses))
            stack.enter_context(exported(consumer_metrics(running.runners, running.renewals)))
            if self.seen:
                _announced.append(running)
                stack.callback(_announced.remove, running)
                stack.enter_context(announced(lambda: msgspec.json.encode([running.status()])))
            if self.opentelemetry:
                stack.callback(import_module("veilmq.consumer.tracing").flush)
            async with running:
                yield

    def make(
        self,
        *,
        connect: Callable[[], QueueClient] | None = None,
        clock: Clock | None = None,
        more_hooks: Mapping[str, Hook] = MappingProxyType({}),
        **options: Any,
    ) -> Running:
        """Return a ``Running`` that is not started, for callers that need more than ``run`` and ``running``.

        ``connect`` returns clients; one of them serves ``send`` until the stop. ``options`` are arguments of
        ``Running``.
        """
        if multiprocessing.current_process().name.startswith("veilmq-"):  # in pools.py
            raise RuntimeError("the process pool imports this module: start below if __name__ == '__main__'")
        if not self.handlers:
            raise ValueError("this consumer has no handler; declare one with @app.handler")
        if self.opentelemetry:
            try:
                import_module("veilmq.consumer.tracing").configure()
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError("opentelemetry=True needs pip install 'veilmq[otlp]'") from error
        hooks = Hooks(self._hooks)
        for name, hook in more_hooks.items():
            hooks.add(name, hook)
        running = Running(
            self,
            connect or self._connect,
            clock or self._clock,
            hooks=hooks,
            grace_s=self._grace_s,
            create=self.create,
            **options,
        )
        if connect is not None:
            self.sender = connect()
            running.shutdown_stack.callback(setattr, self, "sender", None)
        return running

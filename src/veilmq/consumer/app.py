"""The consumer: handlers declared on plain functions, what surrounds them, and the program that runs them."""

import asyncio
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Concatenate, TypedDict, TypeVar, Unpack, overload

import msgspec

from veilmq.client import HttpQueueClient, SentMessage, SigningKey
from veilmq.client.messages import traced
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import endpoint_of, key_of
from veilmq.consumer.clock import Clock, Span, SystemClock, span_s
from veilmq.consumer.context import Batch
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
from veilmq.consumer.metrics import exported, is_installed, served
from veilmq.consumer.processes import SIGNALLED, process_number
from veilmq.consumer.runner import CANCEL_S
from veilmq.consumer.running import Running
from veilmq.consumer.status import WorkerStatus, announced, consumer_metrics
from veilmq.consumer.test_client import TestClient
from veilmq.core.messages import Attribute

_log = logging.getLogger("veilmq.consumer")

Payload = TypeVar("Payload")

GRACE = "25s"
_BATCH_SIZE_MAX = 1_000
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_ATTRIBUTES_MAX = 10

To = str | Callable[[Batch[Payload]], object] | Callable[Concatenate[Payload, ...], object]
"""Where a message goes: a queue, or a handler that takes it, also in batches."""


_seen: list[Running] = []


def statuses() -> list[WorkerStatus]:
    """Return the status of each consumer of this process that may be seen."""
    return [running.status() for running in list(_seen)]


class SendOptions(TypedDict, total=False):
    """What ``Consumer.send`` takes beside the message; ``delay`` is that of the queue unless given."""

    attributes: Mapping[str, Attribute | str]
    delay: Span
    group: str
    dedup_id: str


class Consumer(Lifespan):
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
        metrics_port: int | None = None,
        opentelemetry: bool = False,
    ) -> None:
        """``queue`` (a name or a URL) is the default for handlers. The constructor sends no request.

        The server is at ``endpoint``, else where ``VEILMQ_ENDPOINT``, ``AWS_ENDPOINT_URL_SQS`` or ``AWS_ENDPOINT_URL``
        says, else on this machine; with ``create`` the queues that handlers name are made where they are missing.
        Requests are signed with ``key``, else with the one that AWS's variables name, if they do. ``client`` takes the
        place of our own HTTP, for example ``BotoQueueClient``. ``grace`` is how long handlers may go on after a stop.
        ``seen=False`` keeps ``veilmq top`` from seeing it. While it runs, Prometheus finds metrics at ``metrics_port``
        (0: any, which the log names; of several processes, each has the next one). With ``opentelemetry`` spans and
        metrics are exported by OTLP, as the variables of OpenTelemetry say.
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
        signing_key, server = key or key_of(os.environ), endpoint or endpoint_of(os.environ)
        self._connect: Callable[[], QueueClient] = lambda: client or HttpQueueClient(server, key=signing_key)
        self._traces = is_installed("opentelemetry.trace")
        self._connecting = threading.Lock()
        self.sender: QueueClient | None = None

    @overload
    def handler(self, function: Function, /) -> Function: ...

    @overload
    def handler(self, /, **options: Unpack[HandlerOptions]) -> Callable[[Function], Function]: ...

    def handler(
        self, function: Function | None = None, /, **options: Unpack[HandlerOptions]
    ) -> Function | Callable[[Function], Function]:
        """Declare ``function`` as the handler of a queue; it stays an ordinary function, for tests to call.

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
        """Declare a handler that takes a ``Batch`` of up to ``max_size`` messages that came within ``linger``.

        ``group_by`` takes an ``Item`` and gives a key; messages of different keys share no batch. Each message that
        does not ``fail`` is done when the handler returns. Not for FIFO queues, nor in the process pool.
        """
        size_max = checked(1, _BATCH_SIZE_MAX, "max_size", max_size)
        batching = Batching(size_max=size_max, linger_s=span_s(linger), key=group_by)
        options.setdefault("concurrency", 1)
        return lambda declared: self.declare(declared, batching=batching, **options)

    def declare(
        self, function: Function, *, batching: Batching | None = None, **options: Unpack[HandlerOptions]
    ) -> Function:
        """Make ``function`` a handler with these options, which ``docs/consumer.md`` explains; returns it unchanged."""
        options["queue"] = options.get("queue") or self.queue
        if options["queue"] in (handler.options.queue for handler in self.handlers):
            raise ValueError(f"the queue {options['queue']!r} has a handler already; name another with queue=")
        self.handlers.append(make_handler(function, batching=batching, **options))
        return function

    def send(self, to: To[Payload], message: Payload, **options: Unpack[SendOptions]) -> SentMessage:
        """Send ``message`` to a queue, by its name or URL, or to the queue of a handler of this consumer.

        A ``str`` is the body, ``bytes`` its UTF-8, anything else its JSON, as handlers read it. The message names the
        current span of OpenTelemetry, if there is one. Blocks.

        Raises ``ClientError`` and ``Unreachable``, ``TypeError`` for what JSON cannot be, and ``ValueError`` for a
        function that is no handler.
        """
        queue = self.queue_of(to)
        with self._connecting:
            sender = self.sender = self.sender or self._connect()
        attributes = attributes_of(options.get("attributes", {}))
        if self._traces and len(named := traced(attributes)) <= _ATTRIBUTES_MAX:
            attributes = named
        return sender.send(
            queue,
            body_of(message),
            attributes=attributes,
            delay_s=math.ceil(span_s(options["delay"])) if "delay" in options else None,
            group=options.get("group"),
            dedup_id=options.get("dedup_id"),
        )

    async def send_async(self, to: To[Payload], message: Payload, **options: Unpack[SendOptions]) -> SentMessage:
        """``send`` for async functions, in a thread."""
        return await asyncio.to_thread(partial(self.send, to, message, **options))

    def queue_of(self, to: str | Callable[..., object]) -> str:
        """Return the queue of the handler ``to``, or ``to`` itself; raises ``ValueError`` for another function."""
        queue = next((each.options.queue for each in self.handlers if each.function == to), to)
        if not isinstance(queue, str):
            raise ValueError(f"{queue!r} has no handler in this consumer; name a queue")
        return queue

    def test_client(self, objects: Mapping[Any, object] | None = None) -> TestClient:
        """Return a context manager, async or not, through which a test sends messages to handlers, without a server.

        ``objects``, by type, replace the results of start-up functions.
        """
        return TestClient(partial(self.make, objects=objects), self.queue_of)

    def on(self, name: str, hook: Hook) -> None:
        """Call ``hook`` at each ``name``: receive, start, settle, renew, suspect, lost, ending, release.

        It gets the message's ``Context``; ``settle`` also gets the ``Ending``, ``ending`` the remaining seconds.
        """
        self._hooks.add(name, hook)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Running]:
        """Run the handlers inside a program's own event loop; stops them in order at the end of the block.

        Raises what made a queue impossible to consume, and what a start-up function raised.
        """
        running = self.make()
        async with self._working(running):
            yield running
        if running.failure is not None:
            raise running.failure

    def run(self) -> int:
        """Run the handlers until SIGTERM or SIGINT, and return an exit code (``running``).

        A second signal cancels the handlers at once, a third ends the process immediately.
        """
        loop = asyncio.new_event_loop()
        try:
            return loop.run_until_complete(self._run())
        finally:  # not as asyncio.run does, which waits for ever for a handler that does not stop
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_S))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()

    async def _run(self) -> int:
        running = self.make()
        loop = asyncio.get_running_loop()
        received = 0

        def signalled(number: int) -> None:
            nonlocal received
            received += 1
            if received > 2:  # stop, hurry
                os._exit(SIGNALLED + number)
            running.request_stop()

        def supervisor_gone() -> None:
            loop.remove_reader(sys.stdin)
            running.request_stop()

        for number in _SIGNALS:
            loop.add_signal_handler(number, signalled, number)
        if process_number() is not None:
            loop.add_reader(sys.stdin, supervisor_gone)
        try:
            async with self._working(running):
                await running.wait()
        except Exception:
            if running.failure is None:
                raise
            _log.exception("the consumer could not start")
        return running.exit_code

    @asynccontextmanager
    async def _working(self, running: Running) -> AsyncIterator[None]:
        with ExitStack() as stack:
            stack.enter_context(served(self.metrics_port, statuses))
            stack.enter_context(exported(consumer_metrics(running.runners, running.renewals)))
            if self.seen:
                _seen.append(running)
                stack.callback(_seen.remove, running)
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
        watching: Mapping[str, Hook] = MappingProxyType({}),
        **how: Any,
    ) -> Running:
        """Return what runs the handlers, not started; to run them otherwise than ``run`` and ``running`` do.

        ``connect`` gives clients, one of them to ``send`` until it has stopped; ``watching`` has more
        hooks, by name; ``how`` the last arguments of ``Running``.
        """
        if not self.handlers:
            raise ValueError("this consumer has no handler; declare one with @app.handler")
        if self.opentelemetry:
            try:
                import_module("veilmq.consumer.tracing").configure()
            except ModuleNotFoundError as error:
                raise ModuleNotFoundError("opentelemetry=True needs pip install 'veilmq[otlp]'") from error
        hooks = Hooks(self._hooks)
        for name, hook in watching.items():
            hooks.add(name, hook)
        running = Running(
            self,
            connect or self._connect,
            clock or self._clock,
            hooks=hooks,
            grace_s=self._grace_s,
            create=self.create,
            **how,
        )
        if connect is not None:
            self.sender = connect()
            running.undo.callback(setattr, self, "sender", None)
        return running

"""The consumer: handlers declared on plain functions, and a program that runs them."""

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from veilmq.client import HttpQueueClient, SigningKey
from veilmq.client.sqs import QueueClient
from veilmq.client.transport import endpoint_of, key_of
from veilmq.consumer.backoff import Backoff
from veilmq.consumer.clock import Clock, SystemClock
from veilmq.consumer.handlers import (
    Batching,
    Handler,
    OnLost,
    Options,
    make_handler,
    policy_of,
    pool_of,
    timeout_of,
)
from veilmq.consumer.hooks import Hook, Hooks
from veilmq.consumer.outstanding import OUTSTANDING_BYTES_MAX
from veilmq.consumer.policies import Draw
from veilmq.consumer.records.idempotency import Idempotency
from veilmq.consumer.running import Running
from veilmq.consumer.spans import Span, span_s
from veilmq.consumer.watched import watched
from veilmq.core.limits import SQS_RECEIVE_WAIT_S

if TYPE_CHECKING:  # the test kit is above us: a consumer that is not tested knows nothing of it
    from veilmq.testing.consumer_bench import ConsumerBench
    from veilmq.testing.virtual_clock import VirtualClock

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
        if client is not None:
            shared = client
            self._connect: Callable[[], QueueClient] = lambda: shared
        else:
            signing_key = key or key_of(os.environ)
            server = endpoint or endpoint_of(os.environ)
            self._connect = lambda: HttpQueueClient(server, key=signing_key)

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
        is not told to ``fail`` is done when the handler returns. Not for FIFO queues, nor in the process pool.
        """
        if not 1 <= max_size <= _BATCH_SIZE_MAX:
            raise ValueError(f"max_size is {max_size}; it must be from 1 to {_BATCH_SIZE_MAX}")
        batching = Batching(size_max=max_size, linger_s=span_s(linger), key=group_by)
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
        chosen = Options(
            queue=queue or self.queue,
            concurrency=_at_least(1, concurrency=concurrency),
            prefetch=None if prefetch is None else _at_least(0, prefetch=prefetch),
            max_outstanding_bytes=_at_least(1, max_outstanding_bytes=max_outstanding_bytes),
            polls=_at_least(1, polls=polls),
            wait_s=_wait_s(wait),
            pool=pool_of(function, pool),
            policy=policy_of(lease),
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
        self,
        *,
        connect: Callable[[], QueueClient] | None = None,
        clock: Clock | None = None,
        draw: Draw = random.random,
        renewals_at_once: int = 4,
    ) -> Running:
        """Return what runs the handlers, not started; for whoever runs them otherwise than ``run`` and ``running`` do.

        ``connect`` gives clients, ``draw`` the jitter of renewals, in up to ``renewals_at_once`` calls at a time.
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
            draw=draw,
            renewals_at_once=renewals_at_once,
        )

    def testing(self, *, clock: "VirtualClock | None" = None) -> "ConsumerBench":
        """Return a bench for tests: these handlers with a server of their own, in a time that the test moves.

        See ``docs/testing.md``. It needs what the server needs: ``pip install 'veilmq[server]'``.
        """
        from veilmq.testing.consumer_bench import ConsumerBench  # noqa: PLC0415 - only tests need a server

        return ConsumerBench(self, clock)


def _at_least(least: int, **option: int) -> int:
    ((name, value),) = option.items()
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")
    return value


def _wait_s(wait: Span) -> int:
    wait_s = int(span_s(wait))
    if not 1 <= wait_s <= SQS_RECEIVE_WAIT_S.maximum:
        raise ValueError(f"wait is {wait_s} s; a poll waits for 1 to {SQS_RECEIVE_WAIT_S.maximum} seconds")
    return wait_s


def _check(options: Options, batching: Batching | None, *, taken: list[str]) -> None:
    if options.queue in taken:
        raise ValueError(f"the queue {options.queue!r} has a handler already; name another with queue=")
    if batching is not None and options.queue.endswith(".fifo"):
        raise ValueError("a FIFO queue's messages are handled one by one; use @app.handler")
    if batching is not None and options.pool == "process":
        raise ValueError("a batch handler runs in the async or the thread pool")
    if options.kill_on_lost and options.pool != "process":
        raise ValueError("kill_on_lost needs pool='process': neither a task nor a thread can be killed")
    if isinstance(options.on_lost, str) and options.on_lost not in ("cancel", "continue"):
        raise ValueError(f'on_lost is {options.on_lost!r}; use "cancel", "continue", or a function')

"""A real server for tests, in its own thread and event loop, with sockets on free loopback ports.

With the virtual clock (the default) time passes only in ``advance``, which moves from one due instant to the next and
waits until the server is idle, so that tests observe a definite state.

Tests may call it from threads and from coroutines of other event loops: no call waits for a client.
"""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Self, TypeVar

from veilmq.core.commands import (
    Command,
    Delete,
    InspectQueue,
    MessageState,
    QueueCounts,
    Receive,
    Received,
    ReceivedMessage,
    SeenMessage,
    ShowQueue,
)
from veilmq.core.errors import ReceiptInvalid, VeilmqError
from veilmq.core.limits import INSPECTED_MAX, SECOND_MS
from veilmq.core.messages import Attribute
from veilmq.core.settings import SettingValue
from veilmq.server.app import Bound, serve
from veilmq.server.http_parser import Handler, Request
from veilmq.server.process import loop_factory
from veilmq.server.settings import ServerSettings
from veilmq.store.clock import SystemClock, wall_s
from veilmq.store.port import execute
from veilmq.testing.clocks import VirtualClock
from veilmq.testing.faults import FaultPlan
from veilmq.wire.exchange import RequestContext
from veilmq.wire.sqs.members import Request as SqsRequest
from veilmq.wire.sqs.members import write_attributes
from veilmq.wire.sqs.messages import SendMessage
from veilmq.wire.sqs.names import is_fifo
from veilmq.wire.sqs.queue_attributes import write_settings
from veilmq.wire.sqs.queues import CreateQueue


class RunningQueue:
    """A queue with its ``name`` and ``url``; ``str()`` is the URL.

    Its methods bypass clients, sockets and faults; requests that the server received earlier are finished first.
    """

    def __init__(self, server: "RunningServer", *, name: str, url: str, account: str) -> None:
        self.name = name
        self.url = url
        self.full_name = f"{account}/{name}"
        self._server = server

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        counts = self.counts
        return f"<queue {self.name}: {counts.visible} visible, {counts.in_flight} in flight, {counts.delayed} delayed>"

    def send(
        self,
        body: str,
        *,
        delay_s: int | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Send a message and return its id; ``delay_s`` defaults to the queue's delay. Raises ``SqsError``."""
        request = SendMessage(
            queue_url=self.url,
            message_body=body,
            delay_seconds=delay_s,
            message_attributes=write_attributes(attributes or {}) or None,
            message_group_id=group,
            message_deduplication_id=dedup_id,
        )
        return str(self._server.answer(request).message_id)

    def receive(self, count: int = 1, *, timeout_s: int | None = None) -> list[ReceivedMessage]:
        """Receive up to ``count`` visible messages without waiting, and hide them for ``timeout_s``.

        The default is the queue's visibility timeout. A message has ``body``, ``receipt``, ``receive_count`` and
        ``visible_at_ms``, the end of its lease.
        """
        received: Received = self._server.do(Receive(queue=self.full_name, count=count, timeout_s=timeout_s))
        return received.messages

    def delete(self, message: ReceivedMessage) -> None:
        """Delete a received message, unless it was received again. Raises ``ReceiptInvalid`` for another queue's."""
        (outcome,) = self._server.do(Delete(queue=self.full_name, receipts=(message.receipt,)))
        if isinstance(outcome, ReceiptInvalid):
            raise outcome

    @property
    def counts(self) -> QueueCounts:
        """The number of visible, in-flight and delayed messages, and the send time of the oldest."""
        counts: QueueCounts = self._server.do(ShowQueue(queue=self.full_name, counts=True)).counts
        return counts

    def messages(self, state: MessageState | None = None, *, count: int = INSPECTED_MAX) -> list[SeenMessage]:
        """Return up to ``count`` messages (in ``state``) in the order of sending, without receiving them."""
        wanted = MessageState if state is None else (MessageState(state),)  # a text would select none
        seen: list[SeenMessage] = self._server.do(InspectQueue(queue=self.full_name, count=count))
        return [message for message in seen if message.state in wanted]

    @property
    def bodies(self) -> list[str]:
        """The bodies of all messages, in the order of sending."""
        return [message.body for message in self.messages()]

    @property
    def visible(self) -> list[SeenMessage]:
        """The messages that a receive may return now."""
        return self.messages(MessageState.VISIBLE)

    @property
    def in_flight(self) -> list[SeenMessage]:
        """The messages in flight."""
        return self.messages(MessageState.IN_FLIGHT)

    @property
    def delayed(self) -> list[SeenMessage]:
        """The messages that were sent with a delay and have not been visible yet."""
        return self.messages(MessageState.DELAYED)


T = TypeVar("T")

Follow = Callable[[int], Awaitable[object]]
"""Sets another clock to an instant (ms)."""

Following = Callable[[], AbstractAsyncContextManager[Follow]]

_PATIENCE_S = 60.0
_STEPS_MAX = 50  # of one advance with a database, while no poll waits
_CHECK_S = 0.001


class RunningServer:
    """A context manager that runs a server.

    ``data`` is a folder; with ``None`` everything is in memory. ``clock`` defaults to a ``VirtualClock``; ``wall_s``,
    to which dates of signatures are compared, is the system's even then. ``settings`` are fields of ``ServerSettings``.
    The plan ``faults`` applies to requests.

    If ``settings`` has a database as ``store``, the database has its own clock. ``follow`` returns a context manager,
    entered in the server's event loop, whose value sets that clock before the virtual one moves.
    """

    def __init__(
        self,
        *,
        data: Path | None = None,
        clock: SystemClock | None = None,
        wall_s: Callable[[], float] = wall_s,
        follow: Following | None = None,
        **settings: Any,
    ) -> None:
        self._following = follow
        self._follow: Follow | None = None
        self.clock: SystemClock = clock or VirtualClock()
        self.faults = FaultPlan(self.clock)
        self._wall_s = wall_s
        self._settings = ServerSettings(**{"port": 0, "admin_port": 0, "data": data, **settings})
        self._thread = threading.Thread(target=self._run, name="veilmq-server", daemon=True)
        self._ready: Future[tuple[Bound, asyncio.AbstractEventLoop]] = Future()
        self._ended: Future[None] = Future()
        self._lock, self._admin_open = threading.Lock(), self._settings.metrics_port is not None

    def __enter__(self) -> Self:
        """Start the server. Raises the errors of ``serve``."""
        self._thread.start()
        self.bound, self._loop = self._ready.result(_PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """The URL for queue clients."""
        return self.bound.endpoint

    @property
    def admin_endpoint(self) -> str:
        """The URL of health, metrics and the console. The first access opens the port."""
        with self._lock:
            if not self._admin_open:
                self._call(self.bound.open_admin())
                self._admin_open = True
        return self.bound.admin_endpoint

    def stop(self) -> None:
        """Drain and stop, like SIGTERM, if the server runs. Raises the error that has ended it, if any."""
        self.request_stop()
        if self._thread.is_alive() or self._ended.done():  # else not started, or forked
            self._ended.result(_PATIENCE_S)
            self._thread.join(_PATIENCE_S)

    def request_stop(self) -> None:
        """Begin to drain without waiting for the end. A second call aborts requests in progress."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the server has ended, and its loop is closed
                self._loop.call_soon_threadsafe(self.bound.stop)

    def fail(self, error: BaseException) -> None:
        """End the server like a failure of its store; ``stop`` then raises the error of ``serve``."""
        self._loop.call_soon_threadsafe(self.bound.fail, error)

    def reload(self) -> None:
        """Reload credentials and certificate, like SIGHUP."""
        self._in_loop(self.bound.reload)

    def advance(self, ms: int = 0, *, seconds: float = 0) -> None:
        """Move the virtual clock, and return once the server is idle.

        Raises ``TypeError`` if the server has another clock, ``ValueError`` for a move backwards.
        """
        clock = self._virtual()
        try:
            passing_ms = ms + round(seconds * SECOND_MS)
        except TypeError:
            text = "the clock moves by a number: advance(30_000), in milliseconds, or advance(seconds=30)"
            raise TypeError(text) from None
        if passing_ms < 0:
            raise ValueError(f"the clock cannot go back by {-passing_ms} ms")
        with self._lock:  # of several threads, one after the other
            self._call(self._advance(clock, clock.now_ms() + passing_ms))

    def settle(self) -> None:
        """Wait until all requests received so far have a reply or are parked."""
        self._call(self._settle())

    @property
    def parked(self) -> int:
        """The number of receives that wait for a message."""
        self.settle()
        return self._in_loop(lambda: self.bound.polls.parked)

    def wait_until(self, condition: Callable[[], object], *, patience_s: float = _PATIENCE_S) -> None:
        """Wait until ``condition()`` is true. Raises ``TimeoutError`` after ``patience_s`` real seconds.

        For effects of threads, tasks and processes of the test. A coroutine whose event loop must continue meanwhile
        awaits ``asyncio.to_thread(server.wait_until, condition)``.
        """
        deadline_s = monotonic() + patience_s
        while not condition():
            if monotonic() > deadline_s:
                raise TimeoutError(f"not so within {patience_s:g} seconds: {condition}")
            sleep(_CHECK_S)

    def wait_parked(self, count: int = 1) -> None:
        """Wait until at least ``count`` receives wait for a message. Raises ``TimeoutError``, like ``wait_until``.

        For long polls in other threads or tasks, which must have begun before ``advance``.
        """
        self.wait_until(lambda: self.parked >= count)

    def queue(self, name: str, **settings: SettingValue) -> RunningQueue:
        """Return the queue ``name``; create it if it does not exist, as a FIFO queue if the name ends with ``.fifo``.

        ``settings`` are fields of ``QueueSettings``, with the name of a ``dead_letter_queue``. Without settings any
        existing queue is accepted. Raises ``ValueError`` for an unknown setting, ``SqsError`` for an invalid value.
        """
        context = self._context()
        if settings.pop("fifo", False) or is_fifo(name):  # SQS refuses the attribute for a standard queue
            settings["fifo"] = True
        if "dead_letter_queue" in settings:
            settings["dead_letter_queue"] = f"{context.account}/{settings['dead_letter_queue']}"
        attributes = write_settings(settings, context)
        found = self.answer(CreateQueue(queue_name=name, attributes=attributes or None))
        return RunningQueue(self, name=name, url=found.queue_url, account=context.account)

    # For `ConsumerBench`: requests without a socket, and a shared virtual time

    def handle(self, request: Request) -> None:
        """Handle ``request`` like one from a connection."""
        self._loop.call_soon_threadsafe(lambda: setattr(request, "pending", self._handler(request)))

    def withdraw(self, request: Request) -> None:
        """Cancel ``request``, because its client has disconnected."""
        self._loop.call_soon_threadsafe(lambda: request.pending and request.pending.withdraw())

    def hurry(self, request: Request) -> None:
        """End the long poll ``request`` now, because its client is about to stop."""
        self._loop.call_soon_threadsafe(lambda: request.pending and request.pending.hurry())

    def next_due_ms(self) -> int | None:
        """Return the instant of the next timer on the virtual clock, or ``None``."""
        return self._in_loop(self._virtual().next_timer_ms)

    def move_to(self, at_ms: int, *, first: Callable[[], object]) -> None:
        """Call ``first``, move the virtual clock to ``at_ms`` and run due timers, without waiting for their effects."""
        clock = self._virtual()

        async def move() -> None:
            await self._set_database_clock(at_ms)
            first()
            clock.set(max(at_ms, clock.now_ms()))

        self._call(move())

    def _virtual(self) -> VirtualClock:
        if not isinstance(self.clock, VirtualClock):
            raise TypeError("only a virtual clock can be moved")
        return self.clock

    def _context(self) -> RequestContext:
        return RequestContext(base_url=self.endpoint, account=self._settings.account, region=self._settings.region)

    def _around(self, handler: Handler) -> Handler:
        self._handler = self.faults.wrap_handler(handler)
        return self._handler

    async def _advance(self, clock: VirtualClock, until_ms: int) -> None:
        await self._settle()
        step_ms = 0 if self._follow is None else (until_ms - clock.now_ms()) // _STEPS_MAX
        while (at_ms := clock.next_timer_ms()) is not None and at_ms <= until_ms:
            if not self.bound.polls.parked:  # the remaining timers are the node's own, one each second
                at_ms = min(until_ms, max(at_ms, clock.now_ms() + step_ms))
            await self._set_database_clock(at_ms)
            clock.set(max(at_ms, clock.now_ms()))
            await self._settle()
        await self._set_database_clock(until_ms)
        clock.set(max(until_ms, clock.now_ms()))  # the store may have moved it further
        await self._settle()

    async def _set_database_clock(self, at_ms: int) -> None:
        if self._follow is not None:
            await self._follow(max(at_ms, self.clock.now_ms()))

    async def _settle(self) -> None:
        """Wait for the engine's results until no poll waits for one."""
        await self.bound.engine.drain()
        while self.bound.polls.submitted:
            await self.bound.engine.drain()

    def answer(self, request: SqsRequest) -> Any:
        """Return the result of an SQS action, unaffected by faults. Raises ``SqsError``."""
        plan = request.plan(self._context())
        try:
            result = self.do(plan.command)
        except VeilmqError as error:
            result = error
        return plan.respond(result)

    def do(self, command: Command) -> Any:
        """Execute ``command`` after all requests received earlier, and return its result."""
        return self._call(execute(self.bound.engine, command))

    def _in_loop(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return self._call(run())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the server does not run in this process: it has stopped, or runs in the parent process")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            failed = self._ended if self._ready.done() else self._ready
            failed.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        if isinstance(self.clock, VirtualClock):
            self.clock.clear()
        async with contextlib.AsyncExitStack() as closing:
            if self._following is not None:
                self._follow = await closing.enter_async_context(self._following())
            await self._set_database_clock(self.clock.now_ms())
            await serve(
                self._settings,
                clock=self.clock,
                wall_s=self._wall_s,
                ready=lambda bound: self._ready.set_result((bound, asyncio.get_running_loop())),
                wrap_handler=self._around,
                admin_on_request=not self._admin_open,
            )

"""A real server for tests: its own thread, its own event loop, real sockets on free loopback ports.

With the virtual clock (the default) nothing becomes due until ``advance``, which goes from one instant to the next at
which something is due and lets the server finish what follows, so that a test sees the state of that moment.

Tests call it from their own threads, or from coroutines of their own event loops: no call waits for a client.
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
    """A queue and its ``name`` and ``url``. ``str()`` is the URL.

    Its methods bypass clients, sockets and faults, and see everything that the server received before.
    """

    def __init__(self, server: "RunningServer", *, name: str, url: str, account: str) -> None:
        self.name = name
        self.url = url
        self.full_name = f"{account}/{name}"
        self._server = server

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        """Return name and counts, for messages of failed assertions."""
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
        """Store a message and return its id; ``None`` is the queue's own delay. Raises ``SqsError``."""
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
        """Take up to ``count`` visible messages at once, none if there is none, and hide them for ``timeout_s``.

        ``None`` is the queue's own visibility timeout. A message has ``body``, ``receipt``, ``receive_count`` and
        ``visible_at_ms``, the instant at which its lease ends.
        """
        received: Received = self._server.do(Receive(queue=self.full_name, count=count, timeout_s=timeout_s))
        return received.messages

    def delete(self, message: ReceivedMessage) -> None:
        """Delete a received message; one that was received again stays. Raises ``ReceiptInvalid``."""
        (outcome,) = self._server.do(Delete(queue=self.full_name, receipts=(message.receipt,)))
        if isinstance(outcome, ReceiptInvalid):  # of another queue
            raise outcome

    @property
    def counts(self) -> QueueCounts:
        """Return how many messages are visible, in flight and delayed now, and the instant of the oldest."""
        counts: QueueCounts = self._server.do(ShowQueue(queue=self.full_name, counts=True)).counts
        return counts

    def messages(self, state: MessageState | None = None, *, count: int = INSPECTED_MAX) -> list[SeenMessage]:
        """Return up to ``count`` messages in the order of sending, in ``state`` or in any; nothing is received."""
        seen: list[SeenMessage] = self._server.do(InspectQueue(queue=self.full_name, count=count))
        return [message for message in seen if state in (None, message.state)]

    @property
    def bodies(self) -> list[str]:
        """Return the bodies of all messages, in the order of sending."""
        return [message.body for message in self.messages()]

    @property
    def visible(self) -> list[SeenMessage]:
        """Return the messages that a receive may get now."""
        return self.messages(MessageState.VISIBLE)

    @property
    def in_flight(self) -> list[SeenMessage]:
        """Return the messages in flight, each with the instant at which it becomes visible."""
        return self.messages(MessageState.IN_FLIGHT)

    @property
    def delayed(self) -> list[SeenMessage]:
        """Return the messages that were sent with a delay and were never visible."""
        return self.messages(MessageState.DELAYED)


T = TypeVar("T")

Follow = Callable[[int], Awaitable[object]]
"""Has another clock stand at an instant (ms)."""

Following = Callable[[], AbstractAsyncContextManager[Follow]]

_PATIENCE_S = 60.0
_SLOTS = 50  # into which a move of the clock is divided at most, while no poll waits for a message
_CHECK_S = 0.001


class RunningServer:
    """A context manager: the server runs inside it.

    ``data`` is a folder that outlives the server, ``None`` keeps everything in memory. ``clock`` is a ``VirtualClock``
    unless another one is given; ``wall_s``, with which the dates of signatures are compared, is the machine's all the
    same. ``settings`` are fields of ``ServerSettings``. What is written into ``faults`` happens to requests.

    A ``store`` among them names a database, which has a clock of its own: ``follow`` gives a call, to be used in the
    server's event loop as long as the context lasts, that puts the clock of the database where the virtual one is about
    to stand.
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
        self._admin_lock, self._admin_open = threading.Lock(), self._settings.metrics_port is not None

    def __enter__(self) -> Self:
        """Start the server; raises what ``serve`` raises."""
        self._thread.start()
        self.bound, self._loop = self._ready.result(_PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server as SIGTERM would, and wait for its end."""
        self.stop()

    @property
    def endpoint(self) -> str:
        """Return the URL that queue clients use."""
        return self.bound.endpoint

    @property
    def admin_endpoint(self) -> str:
        """Return the URL of health, metrics and the console, which are served from the first call on."""
        with self._admin_lock:
            if not self._admin_open:
                self._call(self.bound.open_admin())
                self._admin_open = True
        return self.bound.admin_endpoint

    def stop(self) -> None:
        """Drain and stop; harmless when it has stopped. Raises what ended the server if that was an error."""
        self.request_stop()
        self._ended.result(_PATIENCE_S)
        self._thread.join(_PATIENCE_S)

    def request_stop(self) -> None:
        """Begin to drain, and do not wait for the end; called again, cut off what is under way."""
        if not self._ended.done():
            with contextlib.suppress(RuntimeError):  # it is ending by itself, and its loop is closed
                self._loop.call_soon_threadsafe(self.bound.stop)

    def fail(self, error: BaseException) -> None:
        """End the server as a failure of its store would; ``stop`` then raises what ``serve`` raised."""
        self._loop.call_soon_threadsafe(self.bound.fail, error)

    def reload(self) -> None:
        """Have credentials and certificate read again, as SIGHUP does; returns when they are."""
        self._in_loop(self.bound.reload)

    def advance(self, ms: int = 0, *, seconds: float = 0) -> None:
        """Move the virtual clock; returns when everything that became due has been answered.

        Raises ``TypeError`` when the server runs on another clock, ``ValueError`` for a move backwards.
        """
        clock = self._virtual()
        passing_ms = ms + round(seconds * SECOND_MS)
        if passing_ms < 0:
            raise ValueError(f"the clock cannot go back by {-passing_ms} ms")
        self._call(self._advance(clock, clock.now_ms() + passing_ms))

    def settle(self) -> None:
        """Wait until everything that the server has received so far is answered or parked."""
        self._call(self._settle())

    @property
    def parked(self) -> int:
        """Return how many receives wait for a message."""
        self.settle()
        return self._in_loop(lambda: self.bound.polls.parked)

    def wait_until(self, condition: Callable[[], object], *, patience_s: float = _PATIENCE_S) -> None:
        """Return when ``condition()`` is true; raises ``TimeoutError`` when it is not after so many real seconds.

        For what threads, tasks and processes beside the test do. A coroutine whose own event loop has to go on
        meanwhile awaits ``asyncio.to_thread(server.wait_until, condition)``.
        """
        give_up_at_s = monotonic() + patience_s
        while not condition():
            if monotonic() > give_up_at_s:
                raise TimeoutError(f"not so within {patience_s:g} seconds: {condition}")
            sleep(_CHECK_S)

    def wait_parked(self, count: int = 1) -> None:
        """Return when at least ``count`` receives wait for a message; raises ``TimeoutError``, as ``wait_until`` does.

        For long polls that begin beside the test: ``advance`` answers what waits, not what is yet to come.
        """
        self.wait_until(lambda: self.parked >= count)

    def queue(self, name: str, **settings: SettingValue) -> RunningQueue:
        """Return the queue called ``name``, made if there is none; a name that ends with ``.fifo`` makes a FIFO queue.

        ``settings`` are fields of ``QueueSettings``; a ``dead_letter_queue`` is given by its name. Without settings an
        existing queue is taken as it is. Raises ``ValueError`` for an unknown setting, ``SqsError`` for a bad value.
        """
        context = self._context()
        if is_fifo(name):
            settings["fifo"] = True
        if "dead_letter_queue" in settings:
            settings["dead_letter_queue"] = f"{context.account}/{settings['dead_letter_queue']}"
        attributes = write_settings(settings, context)
        found = self.answer(CreateQueue(queue_name=name, attributes=attributes or None))
        return RunningQueue(self, name=name, url=found.queue_url, account=context.account)

    # For a consumer in the same process, which needs no socket (``DirectTransport``).

    def hand(self, request: Request) -> None:
        """Have ``request`` handled as if it had come by a connection."""
        self._loop.call_soon_threadsafe(lambda: setattr(request, "pending", self._handler(request)))

    def withdraw(self, request: Request) -> None:
        """Take back ``request``: its client has given up."""
        self._loop.call_soon_threadsafe(lambda: request.pending and request.pending.withdraw())

    def hurry(self, request: Request) -> None:
        """Have ``request`` answered now, with what there is: its client is about to stop."""
        self._loop.call_soon_threadsafe(lambda: request.pending and request.pending.hurry())

    def next_due_ms(self) -> int | None:
        """Return the instant at which something is due next on the virtual clock."""
        return self._in_loop(self._virtual().next_timer_ms)

    def move_to(self, at_ms: int, *, first: Callable[[], object]) -> None:
        """Have the virtual clock stand at ``at_ms`` right after ``first`` was called, and do what is due then.

        What follows from that goes on beside the caller.
        """
        clock = self._virtual()

        async def move() -> None:
            await self._lead(at_ms)
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
        self._handler = self.faults.around(handler)
        return self._handler

    async def _advance(self, clock: VirtualClock, until_ms: int) -> None:
        await self._settle()
        slot_ms = 0 if self._follow is None else (until_ms - clock.now_ms()) // _SLOTS
        while (at_ms := clock.next_timer_ms()) is not None and at_ms <= until_ms:
            if not self.bound.polls.parked:  # only the node itself does anything, once a second
                at_ms = min(until_ms, max(at_ms, clock.now_ms() + slot_ms))
            await self._lead(at_ms)
            clock.set(max(at_ms, clock.now_ms()))
            await self._settle()
        await self._lead(until_ms)
        clock.set(max(until_ms, clock.now_ms()))  # time that was held back may have been applied
        await self._settle()

    async def _lead(self, at_ms: int) -> None:
        """Have the clock of the database be where ours is going to be."""
        if self._follow is not None:
            await self._follow(max(at_ms, self.clock.now_ms()))

    async def _settle(self) -> None:
        """Wait for the engine's answers, until no poll waits for one."""
        await self.bound.engine.drain()
        while self.bound.polls.submitted:
            await self.bound.engine.drain()

    def answer(self, request: SqsRequest) -> Any:
        """Return the result of an action of SQS, unaffected by faults; raises ``SqsError``."""
        plan = request.plan(self._context())
        try:
            result = self.do(plan.command)
        except VeilmqError as error:
            result = error
        return plan.respond(result)

    def do(self, command: Command) -> Any:
        """Carry out ``command``, once all that the server received before is done, and return its result."""
        return self._call(execute(self.bound.engine, command))

    def _in_loop(self, call: Callable[[], T]) -> T:
        async def run() -> T:
            return call()

        return self._call(run())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - it belongs to the thread that waits
            failed = self._ended if self._ready.done() else self._ready
            failed.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        async with contextlib.AsyncExitStack() as closing:
            if self._following is not None:
                self._follow = await closing.enter_async_context(self._following())
            await self._lead(self.clock.now_ms())
            await serve(
                self._settings,
                clock=self.clock,
                wall_s=self._wall_s,
                ready=lambda bound: self._ready.set_result((bound, asyncio.get_running_loop())),
                wrap_handler=self._around,
                admin_on_request=not self._admin_open,
            )

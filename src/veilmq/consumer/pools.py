"""Pools that run handlers: on the event loop, in threads, or in processes.

``Pool.run`` calls the middleware and the handler, and sets the ending of each message. Meanwhile ``Context.interrupt``
stops the call: it cancels the task, sets the flag that a handler in a thread checks, or sends a message to the process.
"""

import asyncio
import multiprocessing
import os
import queue
import signal
import threading
import traceback
from collections.abc import AsyncGenerator, Awaitable, Generator, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from veilmq.consumer.clock import Threads
from veilmq.consumer.context import (
    LOSSES,
    Batch,
    Cause,
    Context,
    Drop,
    Ending,
    EndingKind,
    Failed,
    Item,
    Outcome,
    Reject,
    RetryLater,
    ending_of,
)
from veilmq.consumer.handlers import Handler, Middleware, State, make_handler
from veilmq.consumer.leases import LeaseLost, LeaseState

Subject = Context | Batch[Any]


class Pool:
    """Calls a handler for one message, or for a batch. This class awaits async functions in the current task."""

    def __init__(self, handler: Handler, middleware: Sequence[Middleware], state: State) -> None:
        """``middleware`` is ordered from the outermost; ``state`` is filled before the first call."""
        self._handler = handler
        self._middleware = middleware
        self._state = state
        self._threads = Threads(f"veilmq-{handler.name}", handler.options.concurrency)  # started on demand
        self._process_id = os.getpid()

    async def call(self, deliveries: Sequence[Context], subject: Subject) -> object:
        """Call the handler, and return its result or raise its error. May replace ``Context.interrupt``."""
        return await self._handler.call(subject, self._state)

    def close(self) -> None:
        """Stop the threads or processes of the pool."""
        self._threads.close()

    async def run(self, deliveries: Sequence[Context]) -> None:
        """Make one call and set the ending of each delivery. Raises only if the event loop is closing."""
        task = asyncio.current_task()
        assert task is not None

        def cancel(cause: Cause) -> None:
            """Cancel the call, unless ``cause`` concerns one message of a batch alone."""
            if len(deliveries) > 1:
                if cause in LOSSES:
                    return
                for delivery in deliveries:
                    delivery.stop(cause)
            task.cancel(f"veilmq: {cause.value}")

        for delivery in deliveries:
            delivery.interrupt = cancel
        single = self._handler.batching is None
        items = [] if single else [*filter(None, map(self._item, deliveries))]
        try:
            if single or items:
                await self._call_next(deliveries, deliveries[0] if single else Batch(items))
        except BaseException as raised:  # also SystemExit: one message must not end the consumer
            _end_fork(self._process_id, raised)
            interrupted = any(delivery.cause is not None for delivery in deliveries)
            is_closing = isinstance(raised, asyncio.CancelledError) and task.cancelling() and not interrupted
            # The task does not run while its coroutine is closed; otherwise the handler has raised GeneratorExit.
            is_closed = asyncio.current_task(task.get_loop()) is not task
            if is_closing or is_closed or isinstance(raised, KeyboardInterrupt):
                raise  # the event loop is closing
            while task.cancelling():
                task.uncancel()
            for delivery in deliveries:
                delivery.ending = delivery.ending or ending_of(raised, delivery.cause)
        outcomes = {item.context: item.outcome for item in items}
        for delivery in deliveries:  # those without an ending were handled
            delivery.ending = delivery.ending or ending_of(outcomes.get(delivery))

    def _item(self, delivery: Context) -> Item[object] | None:
        """Decode one message of a batch. If that fails, set its ending and return ``None``."""
        try:
            return Item(self._handler.decode(delivery.message), delivery)
        except Exception as error:  # noqa: BLE001 - any library may decode
            delivery.ending = ending_of(error)
            return None

    async def _call_next(self, deliveries: Sequence[Context], subject: Subject, index: int = 0) -> None:
        """Call the middleware at ``index``, or after the last one the handler. A returned outcome is raised."""
        if index == len(self._middleware):
            interrupt = deliveries[0].interrupt
            try:
                result = await self.call(deliveries, subject)
            finally:
                for delivery in deliveries:
                    delivery.interrupt = interrupt
        else:
            result = await self._middleware[index](subject, partial(self._call_next, deliveries, subject, index + 1))
        _check(result)


def _check(result: object) -> None:
    """Raise ``result`` if it is an outcome or its class. Raise ``TypeError`` for an awaitable that nothing runs."""
    if isinstance(result, Outcome) or (isinstance(result, type) and issubclass(result, Outcome)):
        raise result
    if isinstance(result, Awaitable | Generator | AsyncGenerator) and not asyncio.isfuture(result):  # a task does run
        raise TypeError(f"the handler returned a {type(result).__name__}, and nothing runs it; await it in the handler")


def _end_fork(process_id: int, result: object) -> None:
    """End this process with ``result`` if the handler has forked it, so that it does not act as the consumer, too."""
    if os.getpid() == process_id:
        return
    code = result.code if isinstance(result, SystemExit) else None
    if isinstance(result, BaseException) and not isinstance(result, SystemExit):
        traceback.print_exception(result)
        code = 1
    os._exit(code if isinstance(code, int) else code is not None)


class ThreadPool(Pool):
    """Runs plain functions in threads. A thread cannot be stopped: the handler must check its ``Context``."""

    async def call(self, deliveries: Sequence[Context], subject: Subject) -> object:
        for delivery in deliveries:
            _ = delivery.cancelled  # create the event here; in the thread, its creation would race with its set
            delivery.interrupt = lambda cause: None  # the event suffices
        return await self._threads.run(copy_context().run, _call, self._handler, subject, self._state, self._process_id)


def _call(handler: Handler, subject: Subject, state: State, process_id: int) -> object:
    try:
        return handler.call(subject, state)
    except BaseException as error:
        _end_fork(process_id, error)
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise Failed(ending_of(error)) from error  # a future cannot raise it, and SystemExit would end the event loop


# Messages to a child and from it.
CALL, STOP, REPLY = "call", "stop", "reply"
ENDED, FENCE, PROGRESS, LEASE = "ended", "fence", "progress", "lease"

PARENT_DIED = 70


class Child:
    """Runs a handler in a child process; the parent does all I/O.

    The parent sends calls (a message) through the pipe, and stops while a call runs. The child sends fence requests,
    progress and the ending. A thread reads the pipe, so that a stop arrives while the handler runs. If the parent
    dies, the pipe closes and the child exits. To the handler, ``Child`` is also the lease, which the parent holds.
    """

    def __init__(self, pipe: Connection, handler: Handler) -> None:
        self._pipe = pipe
        self._handler = handler
        self._calls: queue.SimpleQueue[Context] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._context: Context | None = None  # of the latest call
        self._process_id = os.getpid()

    # The interface of a lease

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed."""
        return self._request(LEASE)[0]

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT, LOST or ENDED."""
        return LeaseState(self._request(LEASE)[1])

    def confirm(self) -> None:
        """Renew the lease, and return once the server has confirmed it. Raises ``LeaseLost``."""
        state = LeaseState(self._request(FENCE)[1])
        if state is not LeaseState.HELD:
            raise LeaseLost(state)

    async def confirmed(self) -> None:
        """Blocks: this pool has no async handlers."""
        self.confirm()

    def _request(self, what: str) -> tuple[float, str]:
        self._pipe.send((what, None))
        reply: tuple[float, str] = self._replies.get()
        return reply

    # The process

    def run(self) -> None:
        """Handle messages until the parent dies."""
        threading.Thread(target=self._read, daemon=True).start()
        while True:
            self._pipe.send((ENDED, self._handle(self._calls.get())))

    def _handle(self, context: Context) -> Ending:
        result: object
        try:
            result = self._handler.call(context, {})
            _check(result)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            result = error
        _end_fork(self._process_id, result)
        return ending_of(result, context.cause)

    def _read(self) -> None:
        lease: Any = self
        try:
            while True:
                kind, value = self._pipe.recv()
                if kind == CALL:
                    self._context = Context(value, lease, lambda done: self._pipe.send((PROGRESS, done)))
                    self._calls.put(self._context)
                elif kind != STOP:
                    self._replies.put(value)
                elif self._context is not None:  # the parent repeats a stop that overtakes its call
                    self._context.stop(value)
        except (EOFError, OSError):
            os._exit(PARENT_DIED)


def run_child(pipe: Connection, function: Any, queue: str) -> None:
    """Run the child. The parent handles the signals of a terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Child(pipe, make_handler(function, queue=queue, pool="process")).run()


def _error_of(ending: Ending) -> Exception:
    """Return the outcome of a handler in a child process as an exception; for any other error ``Failed``."""
    if ending.trace:
        return Failed(ending)
    if ending.error == RetryLater.__name__:
        return RetryLater(ending.after_s, ending.reason)
    outcome = {EndingKind.REJECT: Reject, EndingKind.DROPPED: Drop}.get(ending.kind)
    return Failed(ending) if outcome is None else outcome(ending.reason)


TERM_S = 2.0  # between SIGTERM and SIGKILL

_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold


class ProcessPool(Pool):
    """Runs plain functions in processes: for work that holds the GIL or must be killable.

    There is a process for each slot of the handler's concurrency, started on first use; a thread passes it one message
    at a time. With ``kill_on_lost``, the process of a lost message gets SIGTERM, then SIGKILL, and is replaced. If a
    process dies, its message fails as by an exception.
    """

    def __init__(self, handler: Handler, middleware: Sequence[Middleware], state: State) -> None:
        """The handler's function must be importable by its name."""
        super().__init__(handler, middleware, state)
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()

    async def call(self, deliveries: Sequence[Context], subject: Subject) -> object:
        (delivery,) = deliveries
        worker = self._take()
        delivery.interrupt = worker.stop
        handled = self._threads.submit(partial(worker.handle, delivery))
        handled.add_done_callback(lambda _: self._idle.append(worker))  # even if a middleware no longer waits
        ending = await asyncio.wrap_future(handled)
        if ending.kind is not EndingKind.DONE:
            raise _error_of(ending)
        return None

    def _take(self) -> "Worker":
        while self._idle:
            worker = self._idle.pop()
            if not worker.has_ended:
                return worker
            self._workers.remove(worker)  # it died while idle, so no message fails
        self._workers.add(worker := Worker(self._handler))
        return worker

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        super().close()


class Worker:
    """The parent's side of a child process."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._process: Any = None
        self._pipe: Connection | None = None
        self._sending = threading.Lock()
        self._killed = False

    @property
    def has_ended(self) -> bool:
        """Whether the process accepts no more messages."""
        return self._killed or (self._process is not None and not self._process.is_alive())

    def handle(self, delivery: Context) -> Ending:
        """Handle one message in the process, and serve the requests of the handler meanwhile. Blocks."""
        try:
            pipe = self._start()
            self._send(CALL, delivery.message)
            while True:
                if delivery.cause is not None:
                    self._send(STOP, delivery.cause)
                kind, value = pipe.recv()
                if kind == ENDED:
                    break
                self._serve(delivery, kind, value)
            ending: Ending = value
            if delivery.cause is not None and ending.error in ("Cancelled", "LeaseLost"):
                return ending_of(RuntimeError(ending.reason), delivery.cause)
            return ending  # the handler's own result counts, even after a stop
        except Exception as error:  # noqa: BLE001 - it died, could not be started, or pickle failed
            died = isinstance(error, EOFError | OSError) and self._process is not None
            if died:
                self._process.join(TERM_S)
            self.kill()
            if not died or delivery.cause is not None:
                return ending_of(error, delivery.cause)
            reason = f"The handler's process died with code {self._process.exitcode}."
            return Ending(kind=EndingKind.RETRY, reason=reason, error="ProcessDied")

    def stop(self, cause: Cause) -> None:
        """Stop the handler; kill its process if the message is lost and ``kill_on_lost`` is set."""
        if cause is Cause.LOST and self._handler.options.kill_on_lost:
            self._killed = True
            threading.Thread(target=self.kill, daemon=True).start()
        else:
            with suppress(OSError):  # the process died; `handle` fails its message
                self._send(STOP, cause, wait=False)

    def kill(self) -> None:
        """End the process. Blocks for up to ``TERM_S``, unless the system itself hangs."""
        self._killed = True
        if self._process is not None:
            self._process.terminate()
            self._process.join(TERM_S)
            self._process.kill()

    def _serve(self, delivery: Context, kind: str, value: Any) -> None:
        if kind == PROGRESS:
            delivery.progress(value)
            return
        lease = delivery.lease
        try:
            if kind == FENCE:
                lease.confirm()
            self._send(REPLY, (lease.remaining, lease.state.value))
        except LeaseLost as lost:
            self._send(REPLY, (lease.remaining, lost.state.value))

    def _start(self) -> Connection:
        if self._pipe is None:
            self._pipe, child_end = _SPAWN.Pipe()
            handler = self._handler
            arguments = (child_end, handler.function, handler.options.queue)  # other options may not be picklable
            name = f"veilmq-{handler.name}"  # already while it imports the main module; see Consumer.make
            process = _SPAWN.Process(target=run_child, args=arguments, name=name, daemon=True)
            process.start()
            self._process = process  # only now `kill` can kill it
            child_end.close()
        return self._pipe

    def _send(self, kind: str, value: object, *, wait: bool = True) -> None:
        # A process that is starting does not read; the thread that waits for that sends a stop of the event loop, too.
        if self._pipe is not None and self._sending.acquire(blocking=wait):
            try:
                self._pipe.send((kind, value))
            finally:
                self._sending.release()


POOLS: dict[str, type[Pool]] = {"async": Pool, "thread": ThreadPool, "process": ProcessPool}

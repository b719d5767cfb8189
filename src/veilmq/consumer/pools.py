"""Where handlers run: on the event loop, in threads, or in processes; and what becomes of a call.

``Pool.run`` goes through the middleware to the handler, and notes how each message ended. While that lasts,
``Context.interrupt`` stops it: by cancelling the task, and while a thread or a process is at work in their ways, by the
flag that a thread checks, by a message to the process.
"""

import asyncio
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import AsyncGenerator, Awaitable, Generator, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from veilmq.client.messages import ReceivedMessage
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
"""What a call is for: one message, or several where the handler takes batches."""


class Pool:
    """Makes the calls of a handler, each for one message, or for several at once where the handler takes batches.

    This one makes them in the task of the event loop that handles the messages, for async functions.
    """

    def __init__(self, handler: Handler, middleware: Sequence[Middleware], state: State) -> None:
        """``middleware`` is from the outside in; ``state`` is filled before the first call."""
        self._handler = handler
        self._middleware = middleware
        self._state = state

    async def call(self, deliveries: Sequence[Context], subject: Subject) -> object:
        """Return what the handler returned; raises what it raised. May set what interrupts it."""
        return await self._handler.call(subject, self._state)

    def close(self) -> None:
        """End what the pool has started."""

    async def run(self, deliveries: Sequence[Context]) -> None:
        """Make one call, and note how each ended; raises nothing but that the event loop is being closed."""
        task = asyncio.current_task()
        assert task is not None

        def cancel(cause: Cause) -> None:
            """Cancel the call. A cause of one message of a batch goes to its own context only: the others go on."""
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
                await self._go_on(deliveries, deliveries[0] if single else Batch(items))
        except BaseException as raised:  # ``SystemExit``, too: one message does not end the consumer
            is_ours = any(delivery.cause is not None for delivery in deliveries)
            is_closing = isinstance(raised, asyncio.CancelledError) and task.cancelling() and not is_ours
            if is_closing or isinstance(raised, KeyboardInterrupt | GeneratorExit):
                raise  # the event loop itself is being closed
            while task.cancelling():
                task.uncancel()
            for delivery in deliveries:
                delivery.ending = delivery.ending or ending_of(raised, delivery.cause)
        outcomes = {item.context: item.outcome for item in items}
        for delivery in deliveries:  # those without an ending were handled
            delivery.ending = delivery.ending or ending_of(outcomes.get(delivery))

    def _item(self, delivery: Context) -> Item[object] | None:
        """Decode one message of a batch: one that cannot be decoded is left out of it, and has its ending."""
        try:
            return Item(self._handler.decode(delivery.message), delivery)
        except Exception as error:  # noqa: BLE001 - any library may decode
            delivery.ending = ending_of(error)
            return None

    async def _go_on(self, deliveries: Sequence[Context], subject: Subject, place: int = 0) -> None:
        """Call the middleware at ``place``, or after the last one the handler; a verb that it returns is raised."""
        if place == len(self._middleware):
            interrupt = deliveries[0].interrupt
            try:
                result = await self.call(deliveries, subject)
            finally:
                for delivery in deliveries:
                    delivery.interrupt = interrupt
        else:
            result = await self._middleware[place](subject, partial(self._go_on, deliveries, subject, place + 1))
        _check(result)


def _check(result: object) -> None:
    """Raise the verb that ``result`` is, also as a class, and ``TypeError`` where it is work that nothing has done."""
    if isinstance(result, Outcome) or (isinstance(result, type) and issubclass(result, Outcome)):
        raise result
    if isinstance(result, Awaitable | Generator | AsyncGenerator) and not asyncio.isfuture(result):  # a task runs
        raise TypeError(f"the handler returned a {type(result).__name__}, and nothing runs it; await it in the handler")


class ThreadPool(Pool):
    """Plain handlers, each in a thread. A thread cannot be stopped: the handler checks its ``Context``."""

    def __init__(self, handler: Handler, middleware: Sequence[Middleware], state: State) -> None:
        super().__init__(handler, middleware, state)
        self._threads = Threads(f"veilmq-{handler.name}", handler.options.concurrency)

    def close(self) -> None:
        """Let the threads end after what they do."""
        self._threads.close()

    async def call(self, deliveries: Sequence[Context], subject: Subject) -> object:
        """Return what the handler returned."""
        for delivery in deliveries:
            _ = delivery.cancelled  # made here, so that no thread makes it at the moment in which it is set
            delivery.interrupt = lambda cause: None  # the flag of the context does it
        return await self._threads.run(copy_context().run, _call, self._handler, subject, self._state)


def _call(handler: Handler, subject: Subject, state: State) -> object:
    try:
        return handler.call(subject, state)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        raise Failed(ending_of(error)) from error  # a future cannot raise it, and SystemExit would end the event loop


CALL, STOP, ANSWER = "call", "stop", "answer"
ENDED, FENCE, PROGRESS, LEASE = "ended", "fence", "progress", "lease"

PARENT_GONE = 70


class Child:
    """The process in which a handler runs: it knows no queue, its parent does all input and output.

    Over its pipe come calls (a message) and, while one runs, a request to stop; back go requests for a fence, reports
    of progress, and the ending. A thread reads the pipe, so that a stop arrives while the handler computes; when the
    parent is gone, the pipe ends and so does the process. It stands for the lease of the message, too, which the parent
    keeps.
    """

    def __init__(self, pipe: Connection, handler: Handler) -> None:
        """``pipe`` is our end."""
        self._pipe = pipe
        self._handler = handler
        self._calls: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._context: Context | None = None

    # What a handler sees of its lease.

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed."""
        return self._request(LEASE)[0]

    @property
    def state(self) -> LeaseState:
        """HELD, SUSPECT, LOST, or ENDED."""
        return LeaseState(self._request(LEASE)[1])

    def confirm(self) -> None:
        """Renew the lease now and return when that proved it; raises ``LeaseLost``."""
        state = LeaseState(self._request(FENCE)[1])
        if state is not LeaseState.HELD:
            raise LeaseLost(state)

    async def confirmed(self) -> None:
        """``confirm``, as no handler of this pool is async."""
        self.confirm()

    def _request(self, what: str) -> tuple[float, str]:
        self._pipe.send((what, None))
        answer: tuple[float, str] = self._answers.get()
        return answer

    # What its process does.

    def run(self) -> None:
        """Handle one message after the other."""
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            message = self._calls.get()
            self._pipe.send((ENDED, self._handle(message)))

    def _handle(self, message: ReceivedMessage) -> Ending:
        lease: Any = self
        context = Context(message, lease, lambda done: self._pipe.send((PROGRESS, done)))
        self._context = context
        result: object
        try:
            result = self._handler.call(context, {})
            _check(result)
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            result = error
        self._context = None
        return ending_of(result, context.cause)

    def _listen(self) -> None:
        try:
            while True:
                kind, value = self._pipe.recv()
                if kind == CALL:
                    self._calls.put(value)
                elif kind == STOP:
                    if (context := self._context) is not None:
                        context.stop(value)
                else:
                    self._answers.put(value)
        except (EOFError, OSError):
            os._exit(PARENT_GONE)


def run_child(pipe: Connection, function: Any, queue: str) -> None:
    """Run the child; the parent handles signals of the terminal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Child(pipe, make_handler(function, queue=queue, pool="process")).run()


def _error_of(ending: Ending) -> Exception:
    """Return what stands for what a handler raised, or returned, in its process: the verb, else ``Failed``."""
    if ending.trace:
        return Failed(ending)
    if ending.error == RetryLater.__name__:
        return RetryLater(ending.after_s, ending.reason)
    verb = {EndingKind.REJECT: Reject, EndingKind.DROPPED: Drop}.get(ending.kind)
    return Failed(ending) if verb is None else verb(ending.reason)


TERM_S = 2.0
"""Between SIGTERM and SIGKILL."""

_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy locks that our threads hold


class ProcessPool(Pool):
    """Plain handlers in processes: for work that keeps the interpreter to itself, or must be killable.

    As many processes as the handler's concurrency, each started when it is first needed and fed by a thread of ours,
    one message at a time. With ``kill_on_lost`` a process whose message is lost is ended, by SIGTERM and then by
    SIGKILL, and replaced. A process that dies by itself fails its message, as an exception would.
    """

    def __init__(self, handler: Handler, middleware: Sequence[Middleware], state: State) -> None:
        """Start nothing yet; the handler's function must be one that a module has under its name."""
        super().__init__(handler, middleware, state)
        self._threads = Threads(f"veilmq-{handler.name}", handler.options.concurrency)
        self._idle: list[Worker] = []
        self._workers: set[Worker] = set()

    async def call(self, deliveries: Sequence[Context], subject: Subject) -> object:
        """Return once the handler has; this pool takes one message at a time."""
        (delivery,) = deliveries
        while self._idle and self._idle[-1].has_ended:  # while it had nothing to do: that is no attempt
            self._workers.discard(self._idle.pop())
        worker = self._idle.pop() if self._idle else Worker(self._handler)
        self._workers.add(worker)
        delivery.interrupt = worker.stop
        ending = await self._threads.run(worker.handle, delivery)
        if worker.has_ended:
            self._workers.discard(worker)
        else:
            self._idle.append(worker)
        if ending.kind is not EndingKind.DONE:
            raise _error_of(ending)
        return None

    def close(self) -> None:
        """End the processes, those too whose handlers did not stop, and then the threads."""
        for worker in self._workers:
            worker.kill()
        self._threads.close()


class Worker:
    """One process, with the parent's end of its pipe."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._process: Any = None
        self._pipe: Connection | None = None
        self._sending = threading.Lock()
        self._killed = False

    @property
    def has_ended(self) -> bool:
        """Whether the process takes no more messages."""
        return self._killed or (self._process is not None and not self._process.is_alive())

    def handle(self, delivery: Context) -> Ending:
        """Have the process handle one message, and carry out its requests meanwhile. Blocks."""
        try:
            pipe = self._started()
            self._send(CALL, delivery.message)
            if delivery.cause is not None:
                self._send(STOP, delivery.cause)
            while True:
                kind, value = pipe.recv()
                if kind == ENDED:
                    break
                self._answer(delivery, kind, value)
            ending: Ending = value
            if delivery.cause is not None and ending.error in ("Cancelled", "LeaseLost"):
                return ending_of(RuntimeError(ending.reason), delivery.cause)
            return ending  # one that a handler reached by itself stands
        except Exception as error:  # noqa: BLE001 - it died, it could not be started, or what it is given not be pickled
            died = isinstance(error, EOFError | OSError) and self._process is not None
            if died:
                self._process.join(TERM_S)
            self.kill()
            if not died or delivery.cause is not None:
                return ending_of(error, delivery.cause)
            reason = f"The handler's process died with code {self._process.exitcode}."
            return Ending(kind=EndingKind.RETRY, reason=reason, error="ProcessDied")

    def stop(self, cause: Cause) -> None:
        """Stop the handler; end its process where the message is lost and ``kill_on_lost`` is set."""
        if cause is Cause.LOST and self._handler.options.kill_on_lost:
            self._killed = True
            threading.Thread(target=self.kill, daemon=True).start()
        else:
            with suppress(OSError):  # it has just died, and its message fails for that
                self._send(STOP, cause)

    def kill(self) -> None:
        """End the process. Blocks for ``TERM_S`` at most, unless the system itself hangs."""
        self._killed = True
        if self._process is not None:
            self._process.terminate()
            self._process.join(TERM_S)
            self._process.kill()

    def _answer(self, delivery: Context, kind: str, value: Any) -> None:
        """Carry out a request of the process; after a fence the lease was renewed at once, or is lost."""
        if kind == PROGRESS:
            delivery.progress(value)
            return
        lease = delivery.lease
        try:
            if kind == FENCE:
                lease.confirm()
            self._send(ANSWER, (lease.remaining, lease.state.value))
        except LeaseLost as lost:
            self._send(ANSWER, (lease.remaining, lost.state.value))

    def _started(self) -> Connection:
        if self._pipe is None:
            self._pipe, theirs = _SPAWN.Pipe()
            handler = self._handler
            arguments = (theirs, handler.function, handler.options.queue)  # other options may not be picklable
            name = f"veilmq-{handler.name}"
            process = _SPAWN.Process(target=run_child, args=arguments, name=name, daemon=True)
            process.start()
            self._process = process  # there is one to kill only now
            theirs.close()
        return self._pipe

    def _send(self, kind: str, value: object) -> None:
        with self._sending:
            if self._pipe is not None:
                self._pipe.send((kind, value))


POOLS: dict[str, type[Pool]] = {"async": Pool, "thread": ThreadPool, "process": ProcessPool}

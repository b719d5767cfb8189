"""Plain handlers in processes: for work that keeps the interpreter to itself, and for work that must be killable.

Each process is fed by a thread of ours, one message at a time, and is started when it is first needed. With
``kill_on_lost`` a process whose message is lost is ended, by SIGTERM and then by SIGKILL, and replaced. A process that
dies by itself fails its message, as an exception would.
"""

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from veilmq.consumer import process_child as child
from veilmq.consumer.delivery import Delivery
from veilmq.consumer.handlers import Handler
from veilmq.consumer.leases import LeaseLost
from veilmq.consumer.outcomes import Cause, Ending, Kind, ending_of
from veilmq.consumer.threads import Threads

TERM_S = 2.0
"""Between SIGTERM and SIGKILL."""

_SPAWN = multiprocessing.get_context("spawn")  # a fork would copy locks that our threads hold


class ProcessPool:
    """As many processes as the handler's concurrency."""

    def __init__(self, handler: Handler) -> None:
        """Start nothing yet; the handler's function must be one that a module has under its name."""
        self._handler = handler
        self._threads = Threads(f"veilmq-{handler.name}", handler.options.concurrency)
        self._idle: list[Worker] = []
        self._all: list[Worker] = []
        self._lock = threading.Lock()

    async def run(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        """Return how it ended; this pool takes one message at a time."""
        (delivery,) = deliveries
        worker = self._worker()
        delivery.interrupt = worker.stop
        future: Future[Ending] = self._threads.submit(partial(worker.handle, delivery))
        ending = await asyncio.wrap_future(future)
        if not worker.dead:
            with self._lock:
                self._idle.append(worker)
        return [ending]

    def close(self) -> None:
        """End the processes, those too whose handlers did not stop, and then the threads."""
        with self._lock:
            workers, self._all = self._all, []
        for worker in workers:
            worker.kill()
        self._threads.close()

    def _worker(self) -> "Worker":
        with self._lock:
            if self._idle:
                return self._idle.pop()
            worker = Worker(self._handler)
            self._all = [*(known for known in self._all if not known.dead), worker]
            return worker


class Worker:
    """One process, with the parent's end of its pipe."""

    def __init__(self, handler: Handler) -> None:
        """Start nothing yet."""
        self._handler = handler
        self._process: Any = None
        self._pipe: Connection | None = None
        self._sending = threading.Lock()
        self.dead = False

    def handle(self, delivery: Delivery) -> Ending:
        """Have the process handle one message, answering what it asks meanwhile. Blocks."""
        try:
            pipe = self._started()
            self._send(child.CALL, delivery.message)
            if delivery.cause is not None:
                self._send(child.STOP, delivery.cause)
            while True:
                kind, value = pipe.recv()
                if kind == child.ENDED:
                    return _with_cause(value, delivery.cause)
                _ANSWERS[kind](self, delivery, value)
        except (EOFError, OSError) as error:
            return self._died(delivery, error)
        except Exception as error:  # noqa: BLE001 - a function that cannot be pickled, for one
            self.kill()
            return ending_of(error, delivery.cause)

    def stop(self, cause: Cause) -> None:
        """Tell the handler to stop; end its process where the message is lost and that was asked for."""
        if cause is Cause.LOST and self._handler.options.kill_on_lost:
            self.dead = True
            threading.Thread(target=self.kill, daemon=True).start()
        else:
            with suppress(OSError):  # it has just died, and its message fails for that
                self._send(child.STOP, cause)

    def kill(self) -> None:
        """End the process. Blocks for ``TERM_S`` at most, unless the system itself hangs."""
        self.dead = True
        if self._process is not None:
            self._process.terminate()
            self._process.join(TERM_S)
            self._process.kill()

    def answer(self, delivery: Delivery) -> None:
        """Tell the process what is known of the lease."""
        lease = delivery.context.lease
        self._send(child.ANSWER, (lease.remaining, lease.state.value))

    def fence(self, delivery: Delivery) -> None:
        """Renew the lease at once, and tell the process what is known then."""
        lease = delivery.context.lease
        try:
            lease.confirm()
        except LeaseLost as lost:
            self._send(child.ANSWER, (lease.remaining, lost.state.value))
        else:
            self.answer(delivery)

    def _started(self) -> Connection:
        if self._pipe is None:
            self._pipe, theirs = _SPAWN.Pipe()
            function, options = self._handler.function, self._handler.options
            self._process = _SPAWN.Process(
                target=child.main,
                args=(theirs, function, _plain(options)),
                name=f"veilmq-{self._handler.name}",
                daemon=True,
            )
            self._process.start()
            theirs.close()
        return self._pipe

    def _send(self, kind: str, value: object) -> None:
        with self._sending:
            if self._pipe is not None:
                self._pipe.send((kind, value))

    def _died(self, delivery: Delivery, error: Exception) -> Ending:
        self.dead = True
        self._process.join(TERM_S)
        if delivery.cause is not None:
            return ending_of(error, delivery.cause)
        code = self._process.exitcode
        return Ending(kind=Kind.RETRY, reason=f"The handler's process died with code {code}.", error="ProcessDied")


def _with_cause(ending: Ending, cause: Cause | None) -> Ending:
    """Return ``ending``; one that a handler reached by itself stands, whatever came after."""
    if cause is not None and ending.kind is Kind.RETRY and ending.error in ("Cancelled", "LeaseLost"):
        return ending_of(RuntimeError(ending.reason), cause)
    return ending


def _plain(options: Any) -> Any:
    """Return the options that matter in the process: none of them, and what may not be sent is left out."""
    return type(options)(queue=options.queue, pool=options.pool)


def _answer(worker: Worker, delivery: Delivery, _: object) -> None:
    worker.answer(delivery)


def _fence(worker: Worker, delivery: Delivery, _: object) -> None:
    worker.fence(delivery)


def _progress(worker: Worker, delivery: Delivery, done: float) -> None:
    delivery.context.progress(done)


_ANSWERS: dict[str, Callable[[Worker, Delivery, Any], None]] = {
    child.LEASE: _answer,
    child.FENCE: _fence,
    child.PROGRESS: _progress,
}

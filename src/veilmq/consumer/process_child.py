"""The process in which a handler of the process pool runs. It knows no queue: its parent does all input and output.

Over its pipe come calls (a message) and, while one runs, a word to stop; back go requests for a fence, reports of
progress, and the ending. A thread reads the pipe, so that the word to stop arrives while the handler computes; when the
parent is gone, the pipe ends and so does the process.
"""

import os
import queue
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.context import Context
from veilmq.consumer.handlers import Handler, Options, make_handler
from veilmq.consumer.leases import LeaseLost, LeaseState
from veilmq.consumer.outcomes import Cause, Ending, ending_of

CALL, STOP, ANSWER = "call", "stop", "answer"
ENDED, FENCE, PROGRESS, LEASE = "ended", "fence", "progress", "lease"

PARENT_GONE = 70


class PipedLease:
    """A ``LeaseView`` that asks the parent."""

    def __init__(self, pipe: Connection, answers: "queue.SimpleQueue[Any]") -> None:
        """``answers`` is where the parent's answers arrive."""
        self._pipe = pipe
        self._answers = answers

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends unless it is renewed."""
        remaining: float = self._ask(LEASE)[0]
        return remaining

    @property
    def state(self) -> LeaseState:
        """The state at this instant."""
        return LeaseState(self._ask(LEASE)[1])

    def confirm(self) -> None:
        """Renew the lease now and return when that proved it; raises ``LeaseLost``."""
        state = LeaseState(self._ask(FENCE)[1])
        if state is not LeaseState.HELD:
            raise LeaseLost(state)

    async def confirmed(self) -> None:
        """``confirm``, as no handler of this pool is async."""
        self.confirm()

    def _ask(self, what: str) -> tuple[float, str]:
        self._pipe.send((what, None))
        answer: tuple[float, str] = self._answers.get()
        return answer


class Child:
    """Works until the pipe ends."""

    def __init__(self, pipe: Connection, handler: Handler) -> None:
        """``pipe`` is our end."""
        self._pipe = pipe
        self._handler = handler
        self._calls: queue.SimpleQueue[ReceivedMessage] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._context: Context | None = None
        self._cause: Cause | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Handle one message after the other."""
        threading.Thread(target=self._listen, daemon=True).start()
        while True:
            message = self._calls.get()
            self._pipe.send((ENDED, self._handle(message)))

    def _handle(self, message: ReceivedMessage) -> Ending:
        context = Context(message, PipedLease(self._pipe, self._answers), self._report)
        with self._lock:
            self._context, self._cause = context, None
        result: object
        try:
            payload = self._handler.decode(message)
            result = self._handler.function(*self._handler.arguments(payload, context))
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            result = error
        with self._lock:
            self._context = None
            return ending_of(result, self._cause)

    def _report(self, done: float) -> None:
        self._pipe.send((PROGRESS, done))

    def _listen(self) -> None:
        try:
            while True:
                kind, value = self._pipe.recv()
                if kind == CALL:
                    self._calls.put(value)
                elif kind == STOP:
                    self._stop(value)
                else:
                    self._answers.put(value)
        except (EOFError, OSError):
            os._exit(PARENT_GONE)

    def _stop(self, cause: Cause) -> None:
        with self._lock:
            if self._context is not None:
                self._cause = cause
                self._context.stop(cause)


def main(pipe: Connection, function: Any, options: Options) -> None:
    """Be the child; signals of the terminal are the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    Child(pipe, make_handler(function, options)).run()

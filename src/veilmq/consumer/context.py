"""The context that a handler gets with its message, and the outcomes of handlers.

If a handler returns, its message is deleted, unless it returns or raises an outcome: ``RetryLater``, ``Reject`` or
``Drop``. Any other exception is retried with the handler's backoff. If a handler is cancelled, the cause decides:
shutdown releases the message, a lost lease leaves it alone, a timeout retries it with the backoff.
"""

import math
import random
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, TypeVar

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.clock import Span, span_s
from veilmq.consumer.leases import Lease, LeaseLost, LeaseState
from veilmq.core.limits import LEASE_S_MAX, SECOND_MS
from veilmq.core.messages import Attribute

TRACE_CHARACTERS_MAX = 16_000


class Outcome(Exception):
    """Raised or returned by a handler whose message is not simply done."""


class RetryLater(Outcome):
    """Hide the message and deliver it again later."""

    def __init__(self, after: Span | None = None, reason: str = "") -> None:
        """``after`` defaults to the handler's backoff. Raises ``ValueError`` if it is malformed."""
        super().__init__(after, reason)
        self.after_s = None if after is None else min(span_s(after), float(LEASE_S_MAX))
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or "The handler requested a later retry."


class Reject(Outcome):
    """Move the message, which cannot be handled, to the dead-letter queue now, with the reason."""

    def __init__(self, reason: str = "The handler rejected it.") -> None:
        super().__init__(reason)


class Drop(Outcome):
    """Delete the message, which is of no use, and count it as dropped; the reason is logged."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Cancelled(Exception):
    """Raised by ``Context.check`` in a handler that should stop: because of a shutdown or its timeout."""


class Undecodable(Exception):
    """The body does not match the type of the handler's payload."""


class Failed(Exception):
    """Replaces an exception that cannot be raised here: from another process, or ``SystemExit``."""

    def __init__(self, ending: "Ending") -> None:
        super().__init__(ending)
        self.ending = ending

    def __str__(self) -> str:
        return self.ending.reason


class Cause(Enum):
    """Why a handler was cancelled."""

    SHUTDOWN = "shutdown"
    LOST = "lost"
    ENDED = "ended"
    TIMEOUT = "timeout"


class EndingKind(Enum):
    """The fate of a message."""

    DONE = "done"
    DROPPED = "dropped"
    RETRY = "retry"
    REJECT = "reject"
    RELEASE = "release"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The fate of one message, as plain values that another process can send.

    ``after_s`` is ``None`` until the backoff is applied. ``error`` is the name of an exception's class, ``trace`` the
    end of its traceback.
    """

    kind: EndingKind
    after_s: float | None = None
    reason: str = ""
    error: str = ""
    trace: str = ""

    @property
    def outcome(self) -> str:
        """The fate of the message: deleted, dropped, retried, rejected, released or left."""
        return _OUTCOMES[self.kind]


DONE = Ending(kind=EndingKind.DONE)
_OUTCOMES = dict(zip(EndingKind, ("deleted", "dropped", "retried", "rejected", "released", "left"), strict=True))

_BY_CAUSE = {
    Cause.SHUTDOWN: Ending(kind=EndingKind.RELEASE, reason="The consumer shut down."),
    Cause.LOST: Ending(kind=EndingKind.LEFT, reason="The lease was lost."),
    Cause.ENDED: Ending(kind=EndingKind.LEFT, reason="The lease reached its limit of twelve hours."),
    Cause.TIMEOUT: Ending(kind=EndingKind.RETRY, reason="The handler timed out.", error="TimeoutError"),
}


def ending_of(result: object, cause: Cause | None = None) -> Ending:
    """Return the ending for ``result``, which a handler returned or raised; ``cause`` is set if it was cancelled."""
    if isinstance(result, RetryLater):
        return Ending(kind=EndingKind.RETRY, after_s=result.after_s, reason=_text(str, result), error="RetryLater")
    if isinstance(result, Reject | Drop):
        kind = EndingKind.REJECT if isinstance(result, Reject) else EndingKind.DROPPED
        return Ending(kind=kind, reason=_text(str, result), error=type(result).__name__)
    if isinstance(result, Failed):
        return result.ending
    if not isinstance(result, BaseException):
        return DONE
    if cause is not None:
        return _BY_CAUSE[cause]
    kind = EndingKind.REJECT if isinstance(result, Undecodable) else EndingKind.RETRY
    first = result.__traceback__  # outside of this package, if it was raised there
    while first is not None and first.tb_frame.f_globals.get("__name__", "").startswith(__package__):
        first = first.tb_next
    trace = _text(traceback.format_exception, type(result), result, first or result.__traceback__)
    error = type(result).__name__
    return Ending(kind=kind, reason=_text(str, result), error=error, trace=trace[-TRACE_CHARACTERS_MAX:])


def _text(write: Callable[..., Iterable[str]], *arguments: object) -> str:
    try:
        return "".join(write(*arguments))
    except Exception as failure:  # noqa: BLE001 - from the user's class
        return f"<its {write.__name__}() raises {type(failure).__name__}>"


_DOUBLINGS_MAX = 40


class Backoff:
    """Full jitter: uniform between 0 and a ceiling that doubles with each attempt, up to ``cap``."""

    def __init__(
        self,
        base: Span = "1s",
        *,
        cap: Span = "15m",
        jitter: str = "full",
        attempts: int | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """After ``attempts`` the message is rejected; ``None`` leaves this to the queue's dead-letter rule.

        ``jitter`` is ``"full"`` or ``"none"``; ``draw`` returns numbers from 0 to 1. Raises ``ValueError``.
        """
        if jitter not in ("full", "none"):
            raise ValueError(f'jitter is {jitter!r}; use "full" or "none"')
        if attempts is not None and attempts < 1:
            raise ValueError(f"attempts is {attempts}; it must be at least 1")
        self.base_s = span_s(base)
        self.cap_s = min(span_s(cap), float(LEASE_S_MAX))
        self.attempts = attempts
        self._draw = draw if jitter == "full" else lambda: 1.0

    def after_s(self, attempt: int) -> int:
        """Return for how many seconds to hide a message after failed attempt number ``attempt`` (1, 2, …)."""
        ceiling_s = min(self.cap_s, self.base_s * 2 ** float(min(attempt - 1, _DOUBLINGS_MAX)))
        return math.ceil(ceiling_s * self._draw())

    def decide(self, ending: Ending, attempt: int) -> Ending:
        """Return ``ending`` with the delay of a retry, in whole seconds.

        A retry without a delay of its own becomes a rejection after the last attempt.
        """
        if ending.kind is not EndingKind.RETRY:
            return ending
        if ending.after_s is not None:
            return replace(ending, after_s=math.ceil(ending.after_s))
        if self.attempts is not None and attempt >= self.attempts:
            return replace(ending, kind=EndingKind.REJECT)
        return replace(ending, after_s=self.after_s(attempt))


LOSSES = (Cause.LOST, Cause.ENDED)
"""Causes of one message alone; their values are those of ``LeaseState``."""


class Context:
    """One delivery of a message: its metadata, its lease, and whether the handler should stop."""

    __slots__ = ("_cancelled", "abandoned", "cause", "ending", "interrupt", "lease", "message", "on_progress")

    def __init__(
        self, message: ReceivedMessage, lease: Lease, on_progress: Callable[[float], object] | None = None
    ) -> None:
        self.message = message
        self.lease = lease
        self.cause: Cause | None = None
        """Why the handler should stop; ``None`` while it may continue."""
        self._cancelled: threading.Event | None = None
        self.on_progress = on_progress
        # The runtime uses these in the event loop.
        self.ending: Ending | None = None
        self.interrupt: Callable[[Cause], object] | None = None  # stops the handler; set while it runs
        self.abandoned = False  # the consumer stopped before the handler did: its result is ignored

    @property
    def message_id(self) -> str:
        """The id of the message, the same in each delivery."""
        return self.message.id

    @property
    def attempt(self) -> int:
        """The number of the delivery, from 1."""
        return self.message.receive_count

    @property
    def group(self) -> str | None:
        """The message's group, if any."""
        return self.message.group

    @property
    def sent_at(self) -> float:
        """Seconds since the epoch."""
        return self.message.sent_at_ms / SECOND_MS

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """The message's attributes by name."""
        return self.message.attributes

    @property
    def cancelled(self) -> threading.Event:
        """Set when the handler should stop; threads may wait for it."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self.cause is not None:
                self._cancelled.set()
        return self._cancelled

    def check(self) -> None:
        """Raise ``LeaseLost`` or ``Cancelled`` if the handler should stop. Cheap enough for loops in threads."""
        if self.cause in LOSSES:
            raise LeaseLost(LeaseState(self.cause.value))
        if self.cause is not None:
            raise Cancelled(f"The handler was cancelled: {self.cause.value}.")
        state = self.lease.state
        if state in (LeaseState.LOST, LeaseState.ENDED):
            raise LeaseLost(state)

    def fence(self) -> "Fence":
        """Return a sync and async context manager that renews the lease on entry, and raises ``LeaseLost`` on failure.

        Use it around a side effect that must not happen twice.
        """
        return Fence(self)

    def progress(self, done: float) -> None:
        """Report progress; ``done`` is the finished share. Required if the handler has ``stall``."""
        if self.on_progress is not None:
            self.on_progress(done)

    def stop(self, cause: Cause) -> None:
        """Set the cause and ``cancelled``, without interrupting the handler; the first cause counts. Internal."""
        if self.cause is None:
            self.cause = cause
            if self._cancelled is not None:
                self._cancelled.set()

    def cancel(self, cause: Cause) -> None:
        """Stop and interrupt the handler if it runs; the first cause counts. Internal."""
        if self.interrupt is not None and self.cause is None:
            self.stop(cause)
            self.interrupt(cause)


class Fence(nullcontext[Context]):
    """The context manager of ``Context.fence``."""

    def __enter__(self) -> Context:
        self.enter_result.check()
        self.enter_result.lease.confirm()
        return self.enter_result

    async def __aenter__(self) -> Context:
        self.enter_result.check()
        await self.enter_result.lease.confirmed()
        return self.enter_result


T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Item(Generic[T]):
    """One message of a batch."""

    body: T
    context: Context
    outcome: Outcome | None = None

    def fail(self, outcome: Outcome | type[Outcome]) -> None:
        """End this message with ``outcome``; the others of the batch are unaffected. Raises ``TypeError``."""
        outcome = outcome() if isinstance(outcome, type) else outcome
        if not isinstance(outcome, BaseException):
            raise TypeError(f"{outcome!r} is no outcome; use RetryLater, Reject or Drop")
        self.outcome = outcome


class Batch(tuple[Item[T], ...]):
    """The messages of a batch handler, in order of arrival.

    If the handler returns, all messages that did not ``fail`` are done; if it raises, none is.
    """

    __slots__ = ()

    @property
    def bodies(self) -> list[T]:
        """The payloads, in order."""
        return [item.body for item in self]

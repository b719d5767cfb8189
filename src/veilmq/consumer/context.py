"""What a handler sees of its message, and how it ends the work on it.

A handler that returns has done its work: the message is deleted. Otherwise it raises, or returns, one of three verbs:
``RetryLater``, ``Reject``, ``Drop``. Any other exception is a ``RetryLater`` with the handler's own backoff. For a
cancelled handler the cause decides: shutdown releases the message, a lost lease leaves it alone, the handler's timeout
backs off.
"""

import math
import random
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Generic, Self, TypeVar

from veilmq.client.messages import ReceivedMessage
from veilmq.consumer.clock import Span, span_s
from veilmq.consumer.leases import Lease, LeaseLost, LeaseState
from veilmq.core.limits import LEASE_S_MAX, SECOND_MS
from veilmq.core.messages import Attribute

TRACE_CHARACTERS_MAX = 16_000


class Outcome(Exception):
    """What a handler raises or returns to say more than "done"."""


class RetryLater(Outcome):
    """Deliver this message again later; until then it stays hidden."""

    def __init__(self, after: Span | None = None, reason: str = "") -> None:
        """``after`` is how long to hide it, without it the handler's backoff decides; ``ValueError`` when malformed."""
        super().__init__(reason or "The handler requested a later retry.")
        self.after_s = None if after is None else min(span_s(after), float(LEASE_S_MAX))


class Reject(Outcome):
    """This message cannot be handled: it goes to the dead-letter queue now, with the reason."""

    def __init__(self, reason: str = "The handler rejected it.") -> None:
        """``reason`` is for the readers of the dead letters."""
        super().__init__(reason)


class Drop(Outcome):
    """This message is of no use: delete it, and count it as dropped."""

    def __init__(self, reason: str = "") -> None:
        """``reason`` is logged."""
        super().__init__(reason)


class Cancelled(Exception):
    """Raised by ``Context.check`` in a handler that should stop: the process shuts down, or its time is over."""


class Undecodable(Exception):
    """The body is not what the handler is annotated with."""


class Failed(Exception):
    """Stands for what a handler raised where it cannot be raised: it ended in another process, or by ``SystemExit``."""

    def __init__(self, ending: "Ending") -> None:
        """``ending`` is how the handler's work ended."""
        super().__init__(ending.reason)
        self.ending = ending


class Cause(Enum):
    """Why a handler was cancelled."""

    SHUTDOWN = "shutdown"
    LOST = "lost"
    ENDED = "ended"
    TIMEOUT = "timeout"


class EndingKind(Enum):
    """What is to become of a message."""

    DONE = "done"
    DROPPED = "dropped"
    RETRY = "retry"
    REJECT = "reject"
    RELEASE = "release"
    LEFT = "left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the work on one message ended; plain values, so that it can come from another process.

    ``after_s`` is ``None`` where the backoff decides, until it has. ``error`` is the name of an exception's class,
    ``trace`` the last characters of its traceback.
    """

    kind: EndingKind
    after_s: float | None = None
    reason: str = ""
    error: str = ""
    trace: str = ""

    @property
    def outcome(self) -> str:
        """What becomes of the message: deleted, dropped, retried, rejected, released, or left alone."""
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
    """Return what ``result`` means: what a handler returned or raised, cancelled before by ``cause`` or not."""
    if isinstance(result, RetryLater):
        return Ending(kind=EndingKind.RETRY, after_s=result.after_s, reason=str(result), error="RetryLater")
    if isinstance(result, Outcome):
        kind = EndingKind.REJECT if isinstance(result, Reject) else EndingKind.DROPPED
        return Ending(kind=kind, reason=str(result), error=type(result).__name__)
    if isinstance(result, Failed):
        return result.ending
    if not isinstance(result, BaseException):
        return DONE
    if cause is not None:
        return _BY_CAUSE[cause]
    kind = EndingKind.REJECT if isinstance(result, Undecodable) else EndingKind.RETRY
    trace = "".join(traceback.format_exception(result))[-TRACE_CHARACTERS_MAX:]
    return Ending(kind=kind, reason=str(result), error=type(result).__name__, trace=trace)


_DOUBLINGS_MAX = 40


class Backoff:
    """Full jitter: uniform from nothing to a ceiling that doubles with each attempt, up to ``cap``."""

    def __init__(
        self,
        base: Span = "1s",
        *,
        cap: Span = "15m",
        jitter: str = "full",
        attempts: int | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """After ``attempts`` the message is rejected; ``None``: never, the queue's own dead-letter rule decides.

        ``jitter`` is ``"full"`` or ``"none"``, ``draw`` gives numbers from 0 to 1. Raises ``ValueError``.
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
        """Return for how many whole seconds to hide a message whose attempt number ``attempt`` (1, 2, …) failed."""
        ceiling_s = min(self.cap_s, self.base_s * 2 ** float(min(attempt - 1, _DOUBLINGS_MAX)))
        return math.ceil(ceiling_s * self._draw())

    def exhausted(self, attempt: int) -> bool:
        """Return whether attempt number ``attempt`` was the last one."""
        return self.attempts is not None and attempt >= self.attempts

    def decide(self, ending: Ending, attempt: int) -> Ending:
        """Return ``ending`` of attempt number ``attempt`` as it is carried out.

        A retry has its time then, in whole seconds; one without a time of its own is rejected after the last attempt.
        """
        if ending.kind is not EndingKind.RETRY:
            return ending
        if ending.after_s is not None:
            return replace(ending, after_s=math.ceil(ending.after_s))
        if self.exhausted(attempt):
            return replace(ending, kind=EndingKind.REJECT)
        return replace(ending, after_s=self.after_s(attempt))


LOSSES = (Cause.LOST, Cause.ENDED)
"""Causes that concern one message alone, and have the names of the states of its lease."""


class Context:
    """One delivery of a message: the message without its body, the state of its lease, and whether to stop."""

    __slots__ = ("_cancelled", "cause", "ending", "given_up", "interrupt", "lease", "message", "on_progress")

    def __init__(
        self, message: ReceivedMessage, lease: Lease, on_progress: Callable[[float], object] | None = None
    ) -> None:
        """``on_progress`` is called with what the handler reports."""
        self.message = message
        self.lease = lease
        self.cause: Cause | None = None
        """Why the handler should stop; ``None`` while it may go on."""
        self._cancelled: threading.Event | None = None
        self.on_progress = on_progress
        # For the runtime, in the event loop: how the work ended, what stops the handler while it runs, and whether the
        # consumer stopped before the handler did, so that its end decides nothing any more.
        self.ending: Ending | None = None
        self.interrupt: Callable[[Cause], object] | None = None
        self.given_up = False

    @property
    def message_id(self) -> str:
        """The id of the message, the same in every delivery."""
        return self.message.id

    @property
    def attempt(self) -> int:
        """The number of the delivery, 1 for the first."""
        return self.message.receive_count

    @property
    def group(self) -> str | None:
        """The message's group, if it has one."""
        return self.message.group

    @property
    def sent_at(self) -> float:
        """When the message was sent, in seconds since the epoch."""
        return self.message.sent_at_ms / SECOND_MS

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        """The message's attributes by name."""
        return self.message.attributes

    @property
    def cancelled(self) -> threading.Event:
        """Set when the handler should stop, for any cause; a thread may wait for it."""
        if self._cancelled is None:
            self._cancelled = threading.Event()
            if self.cause is not None:
                self._cancelled.set()
        return self._cancelled

    def check(self) -> None:
        """Return if the work may go on; raises ``LeaseLost`` or ``Cancelled``. Cheap: for loops in threads."""
        if self.cause in LOSSES:
            raise LeaseLost(LeaseState(self.cause.value))
        if self.cause is not None:
            raise Cancelled(f"The handler was cancelled: {self.cause.value}.")
        state = self.lease.state
        if state in (LeaseState.LOST, LeaseState.ENDED):
            raise LeaseLost(state)

    def fence(self) -> "Fence":
        """Return a context manager, async or not, that is entered only when a fresh renewal has proved the lease.

        It raises ``LeaseLost`` otherwise. It is for the step before a side effect that must not happen twice.
        """
        return Fence(self)

    def progress(self, done: float) -> None:
        """Report progress; ``done`` is the finished share. A handler with ``stall`` must call it."""
        if self.on_progress is not None:
            self.on_progress(done)

    def stop(self, cause: Cause) -> None:
        """Have the handler stop, for the first ``cause``; for the runtime."""
        if self.cause is None:
            self.cause = cause
            if self._cancelled is not None:
                self._cancelled.set()

    def cancel(self, cause: Cause) -> None:
        """Stop the handler if it runs; the first cause counts; for the runtime."""
        if self.interrupt is not None and self.cause is None:
            self.stop(cause)
            self.interrupt(cause)


class Fence:
    """Entered by ``with`` or ``async with``; see ``Context.fence``."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> Self:
        self._context.check()
        self._context.lease.confirm()
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    async def __aenter__(self) -> Self:
        self._context.check()
        await self._context.lease.confirmed()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""


T = TypeVar("T")


class Item(Generic[T]):
    """One message of a batch."""

    __slots__ = ("body", "context", "outcome")

    def __init__(self, body: T, context: Context) -> None:
        """It succeeds unless ``fail`` is called."""
        self.body = body
        self.context = context
        self.outcome: Outcome | None = None

    def fail(self, outcome: Outcome) -> None:
        """End this message by ``outcome``; the others are not touched."""
        self.outcome = outcome


class Batch(Sequence[Item[T]]):
    """The messages of a batch handler. When it returns, all that did not ``fail`` are done; if it raises, none is."""

    def __init__(self, items: Sequence[Item[T]]) -> None:
        """``items`` in the order of arrival."""
        self._items = tuple(items)

    @property
    def bodies(self) -> list[T]:
        """The payloads, in order."""
        return [item.body for item in self._items]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item[T]]:
        return iter(self._items)

    def __getitem__(self, place: int) -> Item[T]:  # type: ignore[override]  # no slices
        return self._items[place]

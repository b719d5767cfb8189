"""How the work on a message ends, and what that means for the message.

A handler that returns has done its work: the message is deleted. Otherwise it raises, or returns, one of three verbs:
``RetryLater``, ``Reject``, ``Drop``. Any other exception is a ``RetryLater`` with the handler's own backoff. A handler
that was cancelled is judged by the cause: shutdown releases the message, a lost lease leaves it alone, the handler's
timeout backs off.
"""

import traceback
from dataclasses import dataclass
from enum import Enum

from veilmq.consumer.spans import Span, span_s

TRACE_CHARACTERS_MAX = 16_000


class Outcome(Exception):
    """What a handler raises or returns to say more than "done"."""


class RetryLater(Outcome):
    """Come back with this message; until then nobody has it."""

    def __init__(self, after: Span | None = None, reason: str = "") -> None:
        """``after`` is how long to hide it, without it the handler's backoff decides; ``ValueError`` when malformed."""
        super().__init__(reason or "The handler asked for this message again, later.")
        self.after_s = None if after is None else span_s(after)


class Reject(Outcome):
    """This message cannot be handled: it goes to the dead-letter queue now, with the reason."""

    def __init__(self, reason: str = "The handler rejected it.") -> None:
        """``reason`` is for whoever reads the dead letters."""
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


class Cause(Enum):
    """Why a handler was cancelled."""

    SHUTDOWN = "shutdown"
    LOST = "lost"
    ENDED = "ended"
    TIMEOUT = "timeout"


class Kind(Enum):
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

    ``after_s`` is ``None`` where the backoff decides. ``error`` is the name of an exception's class, ``trace`` the last
    characters of its traceback.
    """

    kind: Kind
    after_s: float | None = None
    reason: str = ""
    error: str = ""
    trace: str = ""


DONE = Ending(kind=Kind.DONE)

_BY_CAUSE = {
    Cause.SHUTDOWN: Ending(kind=Kind.RELEASE, reason="The consumer shut down."),
    Cause.LOST: Ending(kind=Kind.LEFT, reason="The lease was lost."),
    Cause.ENDED: Ending(kind=Kind.LEFT, reason="The twelve hours of the lease were over."),
    Cause.TIMEOUT: Ending(kind=Kind.RETRY, reason="The handler's time was over.", error="TimeoutError"),
}


def ending_of(result: object, cause: Cause | None = None) -> Ending:
    """Return what ``result`` means: what a handler returned or raised, cancelled before by ``cause`` or not."""
    if isinstance(result, Outcome):
        return _of_outcome(result)
    if not isinstance(result, BaseException):
        return DONE
    if cause is not None:
        return _BY_CAUSE[cause]
    kind = Kind.REJECT if isinstance(result, Undecodable) else Kind.RETRY
    trace = "".join(traceback.format_exception(result))[-TRACE_CHARACTERS_MAX:]
    return Ending(kind=kind, reason=str(result), error=type(result).__name__, trace=trace)


def _of_outcome(outcome: Outcome) -> Ending:
    if isinstance(outcome, RetryLater):
        return Ending(kind=Kind.RETRY, after_s=outcome.after_s, reason=str(outcome), error="RetryLater")
    kind = Kind.REJECT if isinstance(outcome, Reject) else Kind.DROPPED
    return Ending(kind=kind, reason=str(outcome), error=type(outcome).__name__)

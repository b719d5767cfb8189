"""What the answer to a renewal means for the lease.

The services answer several conditions with one code: the lease is gone, the value is out of range, the twelve hours are
over. So the request is looked at first: what it could not legally ask says nothing about the lease. Then the code, and
only then the words. What is not known to mean a loss is tried again, throttling under any status included.
"""

from enum import Enum

from veilmq.client.messages import DEAD_RECEIPT_CODES, ClientError, Hidden
from veilmq.core.limits import LEASE_S_MAX


class Verdict(Enum):
    """What became of one renewal."""

    RENEWED = "renewed"
    PROVEN = "proven"
    """Renewed, and by the server's own word nobody else has had the message: as good an hour late as in time."""
    GONE = "gone"
    """The receipt is not the message's any more: deleted, received by another, or never valid."""
    AT_LIMIT = "at limit"
    """The twelve hours leave no room for it; the lease itself is fine."""
    AGAIN = "again"
    """Nothing is known; try again."""


_LIMIT_WORDS = "beyond the limit"


def verdict(answer: Exception | Hidden | None, *, asked_s: int, elapsed_s: float) -> Verdict:
    """Return what ``answer`` to a renewal for ``asked_s`` means, ``elapsed_s`` after the receive was sent.

    ``None`` is success as SQS knows it, ``Hidden`` as veilmq's server does; less than a second keeps nothing.
    """
    if answer is None:
        return Verdict.RENEWED
    if isinstance(answer, Hidden):
        return Verdict.PROVEN if answer.for_s >= 1 else Verdict.AGAIN
    return _of_error(answer, asked_s=asked_s, elapsed_s=elapsed_s)


def _of_error(error: Exception, *, asked_s: int, elapsed_s: float) -> Verdict:
    if not isinstance(error, ClientError) or error.status >= 500:
        return Verdict.AGAIN
    if not 1 <= asked_s <= LEASE_S_MAX or elapsed_s + asked_s > LEASE_S_MAX:
        return Verdict.AT_LIMIT
    if plain_code(error.code) not in DEAD_RECEIPT_CODES:
        return Verdict.AGAIN
    return Verdict.AT_LIMIT if _LIMIT_WORDS in error.message.lower() else Verdict.GONE


def plain_code(code: str) -> str:
    """Return ``code`` without the name space and the ``Exception`` that some protocols put around it."""
    return code.rpartition(".")[2].removesuffix("Exception")

"""What the answer to a renewal means for the lease.

The services answer several conditions with one code: the lease is gone, the value is out of range, the twelve hours are
over. So the request is looked at first: what it could not legally ask says nothing about the lease. Then the code, and
only then the words. What is not known to mean a loss is tried again, throttling under any status included.
"""

from enum import Enum

from veilmq.client.errors import DEAD_RECEIPT_CODES, ClientError
from veilmq.core.limits import LEASE_S_MAX


class Verdict(Enum):
    """What became of one renewal."""

    RENEWED = "renewed"
    GONE = "gone"
    """The receipt is not the message's any more: deleted, received by another, or never valid."""
    AT_LIMIT = "at limit"
    """The twelve hours leave no room for it; the lease itself is fine."""
    AGAIN = "again"
    """Nothing is known; try again."""


_LIMIT_WORDS = "beyond the limit"


def verdict(error: Exception | None, *, asked_s: int, elapsed_s: float) -> Verdict:
    """Return what ``error`` means that answered a renewal for ``asked_s``, ``elapsed_s`` after the receive was sent.

    ``None`` is success.
    """
    if error is None:
        return Verdict.RENEWED
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

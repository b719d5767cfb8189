"""Rates: what became of receipts besides being deleted in time, duplicates and recoveries apart."""

from dataclasses import dataclass

import numpy as np

from veilmq.pipeline.tallies import Tally

LONGEST_RECEIPTS_MIN = 1000
"""The receipts with the longest timeouts are compared with all others when there are so many."""

_ERRORS_APART = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of receipts.

    ``duplicate``: expired, and deleted late: the timeout was too short. ``recovery``: expired, and never finished.
    ``crash`` is the part of the recoveries that a longer timeout would not have spared: consumers that died. The
    others gave up at the deadline.
    """

    duplicate: float = 0.0
    recovery: float = 0.0
    crash: float = 0.0
    nack: float = 0.0


def rates_of(tally: Tally) -> Rates:
    """Return the rates of ``tally``; all 0 for no receipts."""
    receipts = tally.receipts
    if receipts <= 0:
        return Rates()
    duplicate = float(tally.corrected.sum()) / receipts
    return Rates(
        duplicate=duplicate,
        recovery=max(float(tally.expired.sum()) / receipts - duplicate, 0.0),
        crash=_crash_rate(tally),
        nack=float(tally.nacked.sum()) / receipts,
    )


def _crash_rate(tally: Tally) -> float:
    """Return how often consumers die, which no timeout changes.

    Where consumers give up at the deadline, that looks the same; but then the receipts with the longest timeouts come
    back clearly less often than all, and say how many died. Half a crash is added, as none seen does not mean that
    there are none.
    """
    unfinished = np.maximum(tally.expired - tally.corrected, 0.0)
    receipts = tally.receipts
    rate = (float(unfinished.sum()) + 0.5) / (receipts + 1.0)
    from_longest = np.cumsum(tally.in_force[::-1])
    if from_longest[-1] < LONGEST_RECEIPTS_MIN:
        return rate
    buckets = int(np.searchsorted(from_longest, LONGEST_RECEIPTS_MIN)) + 1
    longest = float(from_longest[buckets - 1])
    rate_longest = (float(unfinished[-buckets:].sum()) + 0.5) / (longest + 1.0)
    error = float(np.sqrt(rate / longest))
    return rate_longest if rate_longest < rate - _ERRORS_APART * error else rate

"""Crashes: telling the receipts of consumers that died from those of work that takes longer than its timeout.

Both expire, and neither is deleted in time. To the estimate of working times they are opposites: the second is work
that takes long, the first says nothing about work at all, and counted as work that takes long it would move a p99
that lies at one per cent by its own three per mille. So crashes are taken out before anything is estimated.

Where consumers finish although they are late, work that takes long is deleted late, and what remains are crashes.
Where they give up at the deadline, the two look alike. But then deletes keep coming until the deadline: what never
ended is *clear*, namely crashes, if hardly any work ended in the second half of its timeout, so that hardly any can
have gone on. (That holds for all work whose distribution has a mean, as its tail then at least halves where the time
doubles.) Keys that are not clear are taken to crash as often as the clear ones of their queue, whose consumers they
share; if there are none, nothing is taken out, which errs to the long side.
"""

import dataclasses
import math

import numpy as np

from veilmq.pipeline.histograms import RATIO
from veilmq.pipeline.survival import curve_of
from veilmq.pipeline.tallies import Array, KeyTally, Tally

CLEAR_SHARE_MAX = 0.25
"""Clear is what never ended if the work that ended in the second half of the timeout is less than this share of it."""

CRASHES_MAX = 0.10
"""More than this share of the receipts is never taken for crashes."""

_HALF = round(math.log(2.0) / math.log(RATIO))


def without_crashes(keys: list[KeyTally]) -> list[KeyTally]:
    """Return the ``keys`` of one queue with ``crashed`` filled in the tallies of their first receipts."""
    clear = [each.first for each in keys if is_clear(each.first)]
    receipts = sum(first.receipts for first in clear)
    rate = sum(float(unfinished(first).sum()) for first in clear) / receipts if receipts else 0.0
    return [dataclasses.replace(each, first=_settled(each.first, rate)) for each in keys]


def unfinished(first: Tally) -> Array:
    """Return the receipts that expired and were never deleted, by the timeout in force."""
    return np.maximum(first.expired - first.corrected, 0.0)


def is_clear(first: Tally) -> bool:
    """Tell whether all that never ended in ``first`` is known to be crashes."""
    never = float(unfinished(first).sum())
    if never > CRASHES_MAX * first.receipts:
        return False
    return float(first.corrected.sum()) >= never or float(_ended_late(first).sum()) < CLEAR_SHARE_MAX * never


def _settled(first: Tally, rate: float) -> Tally:
    never = unfinished(first)
    if is_clear(first):
        return dataclasses.replace(first, crashed=never)
    clear = (never <= CRASHES_MAX * first.in_force) & (_ended_late(first) < CLEAR_SHARE_MAX * never)
    return dataclasses.replace(first, crashed=np.where(clear, never, np.minimum(never, rate * first.in_force)))


def _ended_late(first: Tally) -> Array:
    """Return how many receipts should have ended in the second half of their timeout, by that timeout."""
    survival = curve_of(first).survival
    at_half = np.concatenate([np.ones(_HALF), survival[:-_HALF]])
    return first.in_force * (at_half - survival)

"""Priors: what a routing key with few receipts is lent of its queue.

Kinds of work differ mostly in how long they take, and little in how that scatters. So a key that has shown its median
is lent the scatter of the queue's other keys, moved to that median: on buckets of a logarithmic scale that is a
shift. A key that has not is lent the receipts of the queue as they are.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from veilmq.pipeline.histograms import BUCKETS, RATIO
from veilmq.pipeline.survival import curve_of
from veilmq.pipeline.tallies import Tally
from veilmq.pipeline.tune_options import TuneOptions

MEDIAN_RECEIPTS_MIN = 30
"""A median from so many receipts is good enough to stand on."""

_CENTRE = BUCKETS // 2


@dataclass(frozen=True, slots=True)
class Prior:
    """First receipts of a queue, as they are, and with the median of each key moved to the middle bucket."""

    whole: Tally
    centred: Tally

    def lent_to(self, first: Tally, *, options: TuneOptions) -> Tally:
        """Return what a key with the receipts ``first`` is lent: the less, the more it has, and then nothing."""
        receipts = options.prior * max(0.0, 1.0 - first.receipts / options.receipts_min)
        median = _median_bucket(first)
        moved = median is not None and self.centred.receipts > 0
        like = self.centred.shifted((median or 0) - _CENTRE) if moved else self.whole
        return like.scaled(receipts / like.receipts if like.receipts else 0.0)


def prior_of(firsts: Iterable[Tally]) -> Prior:
    """Return the prior that the keys of one queue make, from the first receipts of each."""
    whole, centred = Tally(), Tally()
    for first in firsts:
        whole = whole + first
        median = _median_bucket(first)
        if median is not None:
            centred = centred + first.shifted(_CENTRE - median)
    return Prior(whole, centred)


def _median_bucket(first: Tally) -> int | None:
    """Return the bucket of the median, ``None`` when there are too few receipts or too few of them ended."""
    median_s = curve_of(first).quantile_s(0.5) if first.receipts >= MEDIAN_RECEIPTS_MIN else None
    return None if median_s is None else math.floor(math.log(median_s * 1000.0) / math.log(RATIO))

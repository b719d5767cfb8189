"""Shifts: detect the day since which the work of a routing key takes as long as it does now.

Older days weigh less, but after a change even their reduced weight biases the estimate. So the latest days are compared
with the day before them, repeatedly, by the octave in which receipts were deleted. If a day differs significantly and
substantially, the work has changed, and older receipts are excluded. Only receipts that end before the first timeouts
of both days are compared, because a new timeout changes how receipts end, but not the work.
"""

from typing import Any

import numpy as np

from veilmq.core.events import Outcome
from veilmq.pipeline.histograms import BUCKETS, OCTAVE_BUCKETS
from veilmq.pipeline.tallies import ENDED, Array

RECEIPTS_MIN = 200.0
"""Fewer receipts are not compared."""

DISTANCE_MIN = 0.05
"""Days differ if their chi-square distance exceeds this, the distance of log-normal work that takes 20 % longer."""

EXPIRED_MIN = 0.005
"""Octaves are compared until this share of the receipts of a day has expired."""

_SIGMAS = 4.0
_OCTAVES = BUCKETS // OCTAVE_BUCKETS + 1


def shifts(days: Any) -> dict[tuple[str, str], str]:
    """Return the day of the last change, by queue and key, for those whose work has changed.

    ``days`` is a pandas frame of ``histograms.octaves``.
    """
    found = {}
    receipts = days[days["outcome"].isin([each.value for each in ENDED])]
    for name, part in receipts.groupby(["queue", "key"], sort=False):
        dates = np.unique(part["day"])
        table = np.zeros((len(dates), 3, _OCTAVES))
        kinds = np.select(
            [part["outcome"] == Outcome.DELETED.value, part["outcome"] == Outcome.EXPIRED.value], [0, 1], 2
        )
        np.add.at(table, (np.searchsorted(dates, part["day"]), kinds, part["octave"]), part["n"])
        since = _since(table)
        if since is not None:
            found[name] = str(dates[since])
    return found


def _since(days: Array) -> int | None:
    """Return the index of the first day after the last change; ``None`` if all ``days`` are alike.

    Each day has three rows (deleted, expired and other receipts) by octave.
    """
    recent = np.zeros_like(days[0])
    for number in range(len(days) - 1, -1, -1):
        if _differ(np.stack([recent, days[number]])):
            return number + 1
        recent = recent + days[number]
    return None


def _differ(both: Array) -> bool:
    totals = both.sum(axis=(1, 2))
    if totals.min() < RECEIPTS_MIN:
        return False
    seen = (both[:, 1].cumsum(axis=1) <= EXPIRED_MIN * totals[:, None]).all(axis=0)
    deleted = both[:, 0, seen]
    expected = totals[:, None] * deleted.sum(axis=0) / totals.sum()
    large = expected.min(axis=0) >= 5.0
    observed = np.column_stack([deleted[:, large], totals - deleted[:, large].sum(axis=1)])
    expected = np.column_stack([expected[:, large], totals - expected[:, large].sum(axis=1)])
    excess = float(((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()) - large.sum()
    number = totals.prod() / totals.sum()
    return bool(excess > _SIGMAS * np.sqrt(2.0 * max(large.sum(), 1)) and excess / number > DISTANCE_MIN)

"""Shifts: since when the work of a routing key is what it is now.

Older days weigh less, but half of what was before a change is still wrong. So the latest days are compared with the day
before them, one after the other, by how long receipts were held and how they ended, in octaves; where a day differs by
more than chance and by more than a little, work has changed, and what is older does not count.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from veilmq.pipeline.tallies import Array

RECEIPTS_MIN = 200.0
"""Fewer receipts are not compared."""

DISTANCE_MIN = 0.05
"""Days differ if their chi-square distance is more than this: that of log-normal work that takes a fifth longer."""

_SIGMAS = 4.0


def shifts(days: Any) -> dict[tuple[str, str], str]:
    """Return the day since which work is as it is now, by queue and key, for those that have changed.

    ``days`` is a pandas frame of ``histograms.octaves``.
    """
    found = {}
    for name, part in days.groupby(["queue", "key"], sort=False):
        table = part.pivot_table(index="day", columns=["outcome", "octave"], values="n", aggfunc="sum", fill_value=0)
        since = _since(table.sort_index().to_numpy(dtype=np.float64))
        if since is not None:
            found[name] = str(table.sort_index().index[since])
    return found


def _since(days: Array) -> int | None:
    """Return the first of the latest ``days`` (rows) that are alike; ``None`` if all are."""
    recent = np.zeros(days.shape[1])
    for number in range(len(days) - 1, -1, -1):
        if _differ(recent, days[number]):
            return number + 1
        recent = recent + days[number]
    return None


def _differ(one: Array, other: Array) -> bool:
    if min(one.sum(), other.sum()) < RECEIPTS_MIN:
        return False
    both = np.stack([one, other])
    shares = both.sum(axis=0) / both.sum()
    expected = both.sum(axis=1, keepdims=True) * shares
    large: npt.NDArray[np.bool_] = expected.min(axis=0) >= 5.0
    gathered = np.column_stack([both[:, large], both[:, ~large].sum(axis=1)])
    expected = np.column_stack([expected[:, large], np.maximum(expected[:, ~large].sum(axis=1), 1e-9)])
    excess = float(((gathered - expected) ** 2 / expected).sum()) - large.sum()
    number = one.sum() * other.sum() / both.sum()
    return bool(excess > _SIGMAS * np.sqrt(2.0 * large.sum()) and excess / number > DISTANCE_MIN)

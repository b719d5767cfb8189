"""Survival: the share of work that is unfinished after a time, as arrays over the buckets of a tally."""

from dataclasses import dataclass

import numpy as np

from veilmq.pipeline.histograms import RATIO
from veilmq.pipeline.tallies import EDGES_S, MIDDLES_S, Array

_LN_RATIO = float(np.log(RATIO))


@dataclass(frozen=True, slots=True)
class Tail:
    """P(T > t) and E[T; T > t] (seconds) at the upper edge t of each bucket; both can have a row for each of several
    tails."""

    survival: Array
    work_s: Array

    def beyond(self, times_s: Array) -> Array:
        """Return P(T > t) for each of ``times_s``."""
        return _at(self.survival, times_s)

    def work_beyond(self, times_s: Array) -> Array:
        """Return E[T; T > t] for each of ``times_s``."""
        return _at(self.work_s, times_s)


@dataclass(frozen=True, slots=True)
class Curve:
    """P(T > t) at the upper edge of each bucket with its bounds; ``sight_s`` is the end of the observed range."""

    survival: Array
    lower: Array
    upper: Array
    sight_s: float


def tail_of(survival: Array) -> Tail:
    """Return ``survival`` as a tail; all remaining work ends in the last bucket."""
    mass = -np.diff(survival, prepend=1.0, axis=-1)
    mass[..., -1] += survival[..., -1]
    weighed = mass * MIDDLES_S
    work_s = weighed.sum(axis=-1, keepdims=True) - np.cumsum(weighed, axis=-1)
    return Tail(survival, np.maximum(work_s, 0.0))


def product_limit(ended: Array, at_risk: Array) -> Array:
    """Return the Kaplan-Meier (1958) estimator of each row."""
    share = np.divide(ended, at_risk, out=np.zeros_like(ended), where=at_risk > 0)
    found: Array = np.cumprod(np.clip(1.0 - share, 0.0, 1.0), axis=-1, dtype=np.float64)
    return found


def remaining(counts: Array) -> Array:
    """Return the number of ``counts`` in each bucket or beyond, for each row."""
    found: Array = np.cumsum(counts[..., ::-1], axis=-1, dtype=np.float64)[..., ::-1]
    return found


def crossings_s(survival: Array, level: float) -> Array:
    """Return the time at which each row falls to ``level``, interpolated within the bucket; infinite if it does not."""
    below = survival <= level
    place = np.argmax(below, axis=1)
    rows = np.arange(survival.shape[0])
    before = np.where(place > 0, survival[rows, np.maximum(place - 1, 0)], 1.0)
    width = np.maximum(before - survival[rows, place], 1e-12)
    part = np.clip((before - level) / width, 0.0, 1.0)
    return np.where(below.any(axis=1), EDGES_S[place] * RATIO ** (part - 1.0), np.inf)


def _at(values: Array, times_s: Array) -> Array:
    """Interpolate ``values`` (at the upper edges) at ``times_s``, on a logarithmic scale."""
    position = np.clip(np.log(np.maximum(times_s, 1e-3) * 1000.0) / _LN_RATIO - 1.0, 0.0, values.shape[-1] - 1.0)
    place = np.minimum(position.astype(np.int64), values.shape[-1] - 2)
    part = position - place
    return np.asarray(values[..., place] * (1.0 - part) + values[..., place + 1] * part)

"""Survival: how long work takes, estimated from receipts of which some only say "longer than this".

The estimator of Kaplan and Meier (1958) on the buckets of a tally, with Greenwood's variance. A delete, also a late
one, is an event at its time; an expiry that was never followed by a delete is censored at the timeout in force, a
nack at the moment of the nack. Receipts of consumers that died are taken out before (``crashes``).

First receipts only: slow messages come back more often, and would be counted more often.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np

from veilmq.pipeline.histograms import BUCKETS, RATIO
from veilmq.pipeline.tallies import EDGES_S, MIDDLES_S, Array, Tally

Z_95 = 1.96

TAIL_FROM = 500
TAIL_TO = 50

_LN_RATIO = math.log(RATIO)
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Tail:
    """What lies beyond a time t: P(T > t) and the work E[T; T > t] in seconds, at the upper edge of each bucket."""

    survival: Array
    work_s: Array

    def beyond(self, times_s: Array) -> Array:
        """Return P(T > t) for each of ``times_s``."""
        return _at(self.survival, times_s)

    def work_beyond(self, times_s: Array) -> Array:
        """Return E[T; T > t] for each of ``times_s``."""
        return _at(self.work_s, times_s)


NOTHING = Tail(np.zeros(BUCKETS), np.zeros(BUCKETS))
"""No work at all."""


@dataclass(frozen=True)
class Curve:
    """P(T > t) at the upper edge of each bucket, with the receipts ``at_risk`` and the sums of Greenwood there.

    Arrays have one item for each bucket. ``sight_s`` is how far anything was seen: the last event or censoring.
    """

    survival: Array
    lower: Array
    upper: Array
    at_risk: Array
    sight_s: float

    @cached_property
    def tail(self) -> Tail:
        """The curve as a tail, its end drawn on where only few receipts are left (``_drawn_on``).

        What could not be drawn on is taken to end where sight ends, as nothing better is known.
        """
        survival = _drawn_on(self.survival, self.at_risk)
        mass = -np.diff(survival, prepend=1.0)
        end = int(np.searchsorted(EDGES_S, self.sight_s))
        mass[min(end, mass.size - 1)] += survival[-1]
        weighed = mass * MIDDLES_S
        return Tail(survival, np.maximum(weighed.sum() - np.cumsum(weighed), 0.0))

    def quantile_s(self, p: float) -> float | None:
        """Return the time by which the share ``p`` of the work is done; ``None`` when the curve does not get there."""
        return _crossing_s(self.survival, 1.0 - p)

    def quantile_bounds_s(self, p: float) -> tuple[float | None, float | None]:
        """Return the bounds of ``quantile_s`` at 95 %, each ``None`` where its curve does not get there."""
        return _crossing_s(self.lower, 1.0 - p), _crossing_s(self.upper, 1.0 - p)


def curve_of(tally: Tally) -> Curve:
    """Return the Kaplan–Meier curve of ``tally``; events come before what is censored in the same bucket."""
    deaths, censored = tally.deaths, tally.censored
    ended = deaths + censored
    at_risk: Array = np.cumsum(ended[::-1], dtype=np.float64)[::-1]
    share = np.divide(deaths, at_risk, out=np.zeros_like(deaths), where=at_risk > 0)
    survival: Array = np.cumprod(np.clip(1.0 - share, 0.0, 1.0), dtype=np.float64)
    lower, upper = _bounds(survival, deaths, at_risk)
    seen = np.flatnonzero(ended > 0)
    sight_s = float(EDGES_S[seen[-1]]) if seen.size else 0.0
    return Curve(survival=survival, lower=lower, upper=upper, at_risk=at_risk, sight_s=sight_s)


def _bounds(survival: Array, deaths: Array, at_risk: Array) -> tuple[Array, Array]:
    """Return Greenwood's 95 % bounds on the scale of ln(-ln S), on which they cannot leave 0 … 1."""
    left = at_risk - deaths
    step = np.divide(deaths, at_risk * left, out=np.zeros_like(deaths), where=(at_risk > 0) & (left > 0))
    known = (survival > 0.0) & (survival < 1.0)
    log_survival = np.log(survival, out=np.full_like(survival, -1.0), where=known)
    spread = np.exp(Z_95 * np.sqrt(np.cumsum(step)) / -log_survival)
    lower = np.where(known, np.exp(log_survival * spread), survival)
    upper = np.where(known, np.exp(log_survival / spread), survival)
    # After the last event of all nothing is left, and Greenwood's sum with it: the bound stays where it was.
    upper = np.where(survival <= 0.0, _last_positive(upper), upper)
    return lower, upper


def _drawn_on(survival: Array, at_risk: Array) -> Array:
    """Return ``survival`` with its last receipts replaced by a log-normal tail.

    The best timeout lies where one receipt in thousands is left, and what is seen there is luck. Working times are
    mostly near log-normal, a straight line of normal quantiles over ln t; it goes through the points where
    ``TAIL_FROM`` and ``TAIL_TO`` receipts are left, or half and a tenth of few. Where there are no such points, the
    curve stays.
    """
    receipts = float(at_risk[0])
    lefts = min(TAIL_FROM, receipts / 2), min(TAIL_TO, receipts / 10)
    first, last = (min(int(np.searchsorted(-at_risk, -left)), survival.size - 1) for left in lefts)
    high, low = float(survival[first]), float(survival[last])
    if not 0.0 < low < high < 1.0:
        return survival
    slope = (_NORMAL.inv_cdf(high) - _NORMAL.inv_cdf(low)) / (last - first)
    steps = np.arange(survival.size - last)
    drawn = [_NORMAL.cdf(_NORMAL.inv_cdf(low) - slope * step) for step in steps]
    return np.concatenate([survival[:last], drawn])


def _last_positive(values: Array) -> float:
    positive = np.flatnonzero(values > 0)
    return float(values[positive[-1]]) if positive.size else 1.0


def _crossing_s(survival: Array, level: float) -> float | None:
    """Return where ``survival`` comes down to ``level``, interpolated within the bucket; ``None`` if nowhere."""
    below = np.flatnonzero(survival <= level)
    if not below.size:
        return None
    bucket = int(below[0])
    before = float(survival[bucket - 1]) if bucket else 1.0
    part = (before - level) / (before - float(survival[bucket]))
    return float(EDGES_S[bucket] * RATIO ** (part - 1.0))


def _at(values: Array, times_s: Array) -> Array:
    """Return ``values`` (at the upper edges) at ``times_s``, interpolated on the logarithmic scale."""
    position = np.log(np.maximum(times_s, 1e-3) * 1000.0) / _LN_RATIO - 1.0
    return np.interp(position, np.arange(values.size), values)

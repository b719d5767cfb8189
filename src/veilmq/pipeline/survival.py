"""Survival curves: the share of work that is unfinished after a time, as arrays over the buckets of receipt counts.

**Tails** extrapolate a curve where receipts are too few to count. Three families with two parameters each, log-normal,
Weibull and generalised Pareto, on grids of parameters relative to the threshold above which a tail is fitted, so one
table of hazards serves all queues. The weight of a family is its likelihood on receipts that are held out from the fit.

**Completion** separates receipts that expired after a crash from those whose work took longer than the timeout. A
receipt with timeout V whose work takes T is deleted at T ≤ V, is deleted late at T, or only expires: its consumer
crashed (a share q, independent of T) or gave up (a share 1 − l of the late ones). Each function completes the observed
receipts to whole curves: an estimate, and draws of everything that the data leaves open.

- **With late deletes** (``by_late_deletes``): with x the share of late and y the share of expired-only receipts of an
  arm, y = q + (1 − l)/l · x, whatever the distribution of T and however timeouts depend on it. The likelihood of
  that line gives l and q. With a weight of 1/l for each late delete nothing is censored. The draws cover what the arms
  cannot distinguish.
- **Without** (``by_follow_up``): the product-limit curve S*, in which a crash is work that never ends, tends to q. Its
  remaining fall beyond the longest timeout is that of its tail. If that fall is too large, crashes and long work
  cannot be distinguished, and the draws cover everything between the two.
- **With renewals** (``by_renewals``): no work exceeds its timeout, and an expiry means a crash.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np
import numpy.typing as npt

from veilmq.core.receipts import Outcome
from veilmq.pipeline.cells import (
    BUCKETS,
    EDGES_S,
    EXTENDED,
    HELD,
    MIDDLES_S,
    RATIO,
    RELEASED,
    VISIBILITY,
    Arms,
    Array,
    Numbers,
    ReceiptCounts,
)

_LN_RATIO = float(np.log(RATIO))


@dataclass(frozen=True, slots=True)
class Tail:
    """P(T > t) and E[T; T > t] (seconds) at the upper edge t of each bucket, for one tail or in rows for several."""

    survival: Array
    work_s: Array

    def beyond(self, times_s: Array) -> Array:
        """Return P(T > t) for each of ``times_s``."""
        return _at(self.survival, times_s)

    def work_beyond(self, times_s: Array) -> Array:
        """Return E[T; T > t] for each of ``times_s``."""
        return _at(self.work_s, times_s)


def share(value: float) -> str:
    """Return ``value`` as a percentage with two digits: ``0.30 %``, ``12 %``."""
    percent = 100.0 * value
    if percent < 0.001:
        return "less than 0.001 %" if percent else "0 %"
    return f"{percent:.0f} %" if percent >= 10.0 else f"{percent:.2g} %"


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


FAMILIES = ("log-normal", "Weibull", "generalised Pareto")

TAIL_FROM = 500.0
"""A tail is fitted from where this many receipts, or half of them if that is less, are at risk …"""
TAIL_TO = 50.0
"""… and replaces the curve from where this many, or a tenth if that is less, are at risk."""

_BUCKETS_IN_BIN = 6
_BINS = 84
_STEPS = 32
_FOLDS = 8
_REFUTED_SIGMAS = 3.0
_LEAST = 1e-12
_SURELY_WRONG = 1e-5
_LOG_MIN = -200.0
_TIMES: Array = np.power(RATIO, _BUCKETS_IN_BIN * np.arange(_BINS + 1, dtype=np.float64))


def drawn_on(survival: Array, ended: Array, at_risk: Array, rng: np.random.Generator) -> Array:
    """Return ``survival`` with the ends of its rows replaced by tails.

    ``ended`` and ``at_risk`` count receipts by bucket. The first row is the estimate and gets the likeliest tail, the
    others get draws from the posterior.
    """
    receipts = float(at_risk[0])
    last = min(int(np.searchsorted(-at_risk, -min(TAIL_TO, receipts / 10.0))), BUCKETS - 1)
    later = remaining(ended) - ended
    tails, log_hazard, log_rest = _tables()
    found = survival
    for tail_from in (TAIL_FROM, TAIL_FROM / 2.0, TAIL_FROM / 4.0):
        first = int(np.searchsorted(-at_risk, -min(tail_from, receipts / 2.0)))
        first = max(min(first, last - 2, BUCKETS - _BUCKETS_IN_BIN), 0)
        bins = min((BUCKETS - first) // _BUCKETS_IN_BIN, _BINS)
        until = first + bins * _BUCKETS_IN_BIN
        entering = np.append(at_risk[first:until:_BUCKETS_IN_BIN], 0.0)
        bins = max(int(np.count_nonzero(entering)), 1)
        in_bin = ended[first:until].reshape(-1, _BUCKETS_IN_BIN).sum(axis=1)[:bins]
        unended = np.maximum(entering[:bins] - entering[1 : bins + 1] - in_bin, 0.0)
        rest = np.maximum(entering[:bins] - unended / 2.0 - in_bin, 0.0)
        fits = _fits([in_bin, rest], [log_hazard[:bins], log_rest[:bins]], survival.shape[0] - 1, rng)
        places = np.clip((np.arange(last, BUCKETS) - first + 1) / _BUCKETS_IN_BIN, 0.0, _BINS)
        logs = np.log(np.maximum(tails[:, fits].T, 1e-80))
        drawn = np.stack([np.interp(places, np.arange(_BINS + 1), each) for each in logs])
        found = np.hstack([survival[:, :last], survival[:, last : last + 1] * np.exp(drawn - drawn[:, :1])])
        # A family with one peak is too long if it is fitted across a gap: if significantly more receipts ended than it
        # expects of those at risk, it is fitted to fewer.
        ends = at_risk * (1.0 - found[0] / np.maximum(np.append(1.0, found[0, :-1]), _LEAST))
        if not _exceeds(later, remaining(ends) - ends)[last:].any():
            break
    # A family with one peak lacks rare work in a second peak: if significantly more ended later, keep the curve.
    kept = np.where(_exceeds(later, found * receipts), np.maximum(survival, found), found)
    return np.maximum.accumulate(kept[:, ::-1], axis=1)[:, ::-1]


def _exceeds(counts: Array, expected: Array) -> npt.NDArray[np.bool_]:
    """Return where ``counts`` are significantly more than ``expected``."""
    expected = np.maximum(expected, _LEAST)
    deviance = counts * np.log(np.maximum(counts, _LEAST) / expected) - (counts - expected)
    return np.asarray((counts > expected) & (deviance > _REFUTED_SIGMAS**2 / 2.0))


def working_beyond(curve: Array, last: int, receipts: float, rng: np.random.Generator) -> Array:
    """Return the share of all work that lasts beyond the bucket ``last``, in a row for each of ``curve``.

    Crashed work never ends, and ``curve`` tends to its share. Therefore the families are fitted to the last of
    ``receipts`` that ended, given that they ended.
    """
    ended = curve[0] - curve[0, last]
    first = int(np.argmax(ended <= min(TAIL_FROM / receipts, (1.0 - curve[0, last]) / 2.0)))
    bins = min((last - first) // _BUCKETS_IN_BIN, _BINS)
    if bins < 1 or (1.0 - curve[0, last]) * receipts < TAIL_TO:
        return np.ones(curve.shape[0])
    first = last - bins * _BUCKETS_IN_BIN
    _, log_hazard, log_rest = _tables()
    left = np.concatenate([np.zeros((1, log_rest.shape[1])), np.cumsum(log_rest[:bins], axis=0)])
    log_ended = log_hazard[:bins] + left[:-1]
    beyond = np.exp(left[-1])
    within = np.maximum(1.0 - beyond, _SURELY_WRONG)
    in_bin = -np.diff(curve[0, first : last + 1 : _BUCKETS_IN_BIN]) * receipts
    fits = _fits([in_bin], [log_ended - np.log(within)], curve.shape[0] - 1, rng)
    return np.asarray((curve[:, first] - curve[:, last]) * beyond[fits] / within[fits])


def _fits(counts: Sequence[Array], logs: Sequence[Array], draws: int, rng: np.random.Generator) -> Numbers:
    """Return the columns of ``logs``, log-likelihoods of each count, that fit ``counts``: the likeliest, then draws."""
    folds = [np.tile(np.round(each), (_FOLDS, 1)) for each in counts]
    some = [rng.binomial(each.astype(np.int64), 0.5).astype(np.float64) for each in folds]
    others = [fold - each for fold, each in zip(folds, some, strict=True)]
    rows = [np.vstack([count, *parts]) for count, *parts in zip(counts, some, others, strict=True)]
    found = np.sum([row @ log for row, log in zip(rows, logs, strict=True)], axis=0)
    found = found.reshape(1 + 2 * _FOLDS, len(FAMILIES), -1)
    whole, fitted, held_out = found[0], found[1 : 1 + _FOLDS], found[1 + _FOLDS :]
    scores = np.take_along_axis(held_out, fitted.argmax(axis=2)[..., None], axis=2)[..., 0].mean(axis=0)
    weights = np.exp(np.clip(scores - scores.max(), _LOG_MIN, 0.0))
    chances = np.exp(np.clip(whole - whole.max(axis=1, keepdims=True), _LOG_MIN, 0.0))
    chances *= (weights / weights.sum() / chances.sum(axis=1))[:, None]
    family = int(np.argmax(weights))
    likeliest = family * whole.shape[1] + int(whole[family].argmax())
    chosen = rng.choice(chances.size, size=draws, p=chances.reshape(-1) / chances.sum())
    return np.array([likeliest, *chosen])


@cache
def _tables() -> tuple[Array, Array, Array]:
    """Return, by column: P(T > t | T > 1) at the edges of the bins, ln of the hazard of each bin, ln of the rest."""
    times = _TIMES[:, None]
    z, sigma = _grid(np.linspace(-2.0, 4.5, _STEPS), np.geomspace(0.04, 3.0, _STEPS))  # z: sigmas above the median
    scale = np.linspace(-2.5, 12.0, 3000)
    logs = np.log([0.5 * math.erfc(each / math.sqrt(2.0)) for each in scale])
    places = np.minimum(z + np.log(times) / sigma, 12.0)
    lognormal = np.interp(places, scale, logs) - np.interp(z, scale, logs)
    factor, power = _grid(np.geomspace(0.02, 40.0, _STEPS), np.geomspace(0.12, 12.0, _STEPS))
    weibull = -factor * (np.power(times, power) - 1.0)
    scales, index = _grid(np.geomspace(0.01, 6.0, _STEPS), np.linspace(-0.9, 1.4, _STEPS))
    pareto = -np.log(np.maximum(1.0 + index * (times - 1.0) / scales, 1e-80)) / index
    columns = np.exp(np.clip(np.concatenate([lognormal, weibull, pareto], axis=1), _LOG_MIN, 0.0))
    before, after = columns[:-1], columns[1:]
    left = np.clip(np.divide(after, before, out=np.zeros_like(after), where=before > _LEAST), 0.0, 1.0)
    return columns, np.log(np.maximum(1.0 - left, _LEAST)), np.log(np.maximum(left, _SURELY_WRONG))


def _grid(first: Array, second: Array) -> tuple[Array, Array]:
    one, other = np.meshgrid(first, second, indexing="ij")
    return one.reshape(-1), other.reshape(-1)


DRAWS = 100

FINISHING: Array = np.linspace(0.01, 1.0, 100)
"""The values of l, the share of late work that is finished, that are compared."""

ALL_FINISH = 0.5
"""The prior probability of l = 1; all other values are equally likely."""

CRASHES_USUAL = 0.003
"""The prior density of a crash rate q is proportional to 1 / (q + this): low rates are more likely."""

RETURNED_SLACK = 1.15
"""Crashes are at most this many times as frequent as later receipts indicate."""

ONE_ARM = 0.98
"""An arm with this share of the receipts counts as the only one."""

RETURNED_ERROR = 0.3
"""The error of the crash rate that later receipts indicate, on a logarithmic scale."""

SPREAD_SMALL = 0.01
"""If the standard deviation of l exceeds this, the later receipts of the key are used."""

SPREAD_MAX = 0.1
"""If the standard deviation of l exceeds this, the arms of all keys of the queue are used."""

FOLLOWED_MIN = 1000.0
"""Follow-up reaches up to the timeout that this many receipts, or a tenth of all if that is less, had or exceeded."""

CRASHED_BEYOND = 3.0
"""This many crashed receipts are added to the few with longer timeouts, because a single end there proves little."""

RENEWAL_ERROR = 0.02
"""The period of renewals is taken from the timeouts if its relative error there is at most this."""
RENEWING_MIN = 0.3
"""Consumers count as renewing if at least this share of them does."""
RENEWING_CERTAIN = 0.02
"""A prior: either nearly all consumers of a queue renew, or none. This many that do not are added to those observed."""

OPEN_SHARE = 0.05
OPEN_SHARE_MAX = 0.125
OPEN_MAX = 0.0025
"""Follow-up is long enough if, of the receipts left, the share that is still work is estimated at most ``OPEN_SHARE``,
with an upper bound of ``OPEN_SHARE_MAX``; or if at most ``OPEN_MAX`` of all work is left."""

_ENDS = ((Outcome.DELETED,), (Outcome.LATE_DELETED,), RELEASED)
_DIFFER_MAX = 0.02
_LATER_MIN = 20.0
_IN_TIME_MIN = 0.1
_ROUNDED = 1e-9
_PERIODS = 400
_CLEARLY = 1.2
_Z_99 = 2.33


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Curves of work without crashes: the first row is the estimate, the others are draws.

    ``survival`` has a curve and ``crash`` a crash rate for each row. ``ended`` and ``at_risk`` count receipts by
    bucket, without crashed and with weighted late ones; ``counted`` are those at risk without weights, ``direct`` those
    within their timeouts. ``sight_s`` is the longest observed time, ``why_not`` the reason if crashes and long work
    cannot be distinguished.
    """

    survival: Array
    crash: Array
    ended: Array
    at_risk: Array
    counted: Array
    direct: Array
    sight_s: float
    why_not: str = ""
    is_plateau: bool = False

    @classmethod
    def of(cls, ended: Array, at_risk: Array, crash: Array, counted: Array, direct: Array | None = None) -> Self:
        """Return the product-limit curves of receipts that ``ended``; by default all ``counted`` are ``direct``."""
        seen = np.flatnonzero(ended[0] > 0)
        return cls(
            survival=product_limit(ended, at_risk),
            crash=crash,
            ended=ended[0],
            at_risk=at_risk[0],
            counted=counted,
            direct=counted if direct is None else direct,
            sight_s=float(EDGES_S[seen[-1]]) if seen.size else 0.0,
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The log-likelihood of l at each of ``FINISHING``, and q there with its standard error."""

    log_likelihood: Array
    crash: Array
    error: Array
    misfit: float = 1.0  # above 1 if the arms do not fit a line

    @property
    def chances(self) -> Array:
        """The probability of each of ``FINISHING``."""
        prior = np.full(FINISHING.size, (1.0 - ALL_FINISH) / (FINISHING.size - 1))
        prior[-1] = ALL_FINISH
        prior = prior / (np.maximum(self.crash, 0.0) + CRASHES_USUAL)
        chances = np.exp(self.log_likelihood - self.log_likelihood.max()) * prior
        return np.asarray(chances / chances.sum())

    @property
    def spread(self) -> float:
        """The standard deviation of l."""
        chances = self.chances
        return math.sqrt(max(float(chances @ FINISHING**2 - (chances @ FINISHING) ** 2), 0.0))


def line_through(arms: Arms) -> Line:
    """Return the line y = q + (1 − l)/l · x through ``arms``; a lack of fit widens its likelihood."""
    slope = ((1.0 - FINISHING) / FINISHING)[:, None]
    number = np.maximum(arms.receipts / arms.spread, 1.0)
    x, y = arms.late / arms.receipts, arms.expired_only / arms.receipts
    x_0, y_0 = (x * number + 0.5) / (number + 1.0), (y * number + 0.5) / (number + 1.0)
    variance = (y_0 * (1.0 - y_0) + slope**2 * x_0 * (1.0 - x_0) + 2.0 * slope * x_0 * y_0) / number
    weight = 1.0 / variance
    crash = ((y - slope * x) * weight).sum(axis=1) / weight.sum(axis=1)
    error = weight.sum(axis=1) ** -0.5
    misfits = ((y - crash[:, None] - slope * x) ** 2 * weight).sum(axis=1)
    possible = crash > -2.0 * error
    freedom = max(x.size - 2, 1)
    # The 99 % quantile of chi-square (Wilson and Hilferty).
    usual = freedom * (1.0 - 2.0 / (9.0 * freedom) + _Z_99 * math.sqrt(2.0 / (9.0 * freedom))) ** 3
    misfit = max(float(misfits[possible].min()) / usual, 1.0) if x.size > 2 and possible.any() else 1.0
    positive = np.array([0.5 * math.erfc(-each / math.sqrt(2.0)) for each in crash / error])
    log_likelihood = -misfits / (2.0 * misfit) - 0.5 * np.log(variance).sum(axis=1) + np.log(error)
    return Line(log_likelihood + np.log(np.maximum(positive, 1e-300)), crash, error * math.sqrt(misfit), misfit)


def by_late_deletes(
    first: ReceiptCounts, later: ReceiptCounts, rng: np.random.Generator, *, finishing: Array | None = None
) -> Completion:
    """Complete with the line; ``finishing`` are the probabilities of l, used if the arms do not determine it."""
    line = line_through(first.arms)
    chances = line.chances if finishing is None or line.spread < SPREAD_MAX else finishing
    if line.spread >= SPREAD_SMALL:
        chances = _with_returned(chances, line.crash, first, later)
    middle = int(np.searchsorted(np.cumsum(chances), 0.5))
    chosen = np.concatenate([[middle], rng.choice(FINISHING.size, size=DRAWS, p=chances)])
    weight = 1.0 / FINISHING[chosen]
    errors = line.error[chosen] * np.concatenate([[0.0], rng.standard_normal(DRAWS)])
    deleted, late, nacked = (resampled(*first.by_bucket(HELD, *outcomes), rng) for outcomes in _ENDS)
    ended = deleted + late * weight[:, None]
    at_risk = remaining(ended + nacked)
    by_timeout, _ = first.by_bucket(VISIBILITY, Outcome.LATE_DELETED)
    crash = np.maximum(line.crash[chosen] + errors, 0.0)
    counted, direct = first.deleted + first.late + first.nacked, first.deleted + by_timeout
    return Completion.of(ended, at_risk, crash, remaining(counted), remaining(direct))


def by_follow_up(first: ReceiptCounts, later: ReceiptCounts, rng: np.random.Generator) -> Completion:
    """Complete by the limit of the product-limit curve: an expiry is censored, and late deletes are not used."""
    ended, nacked = (resampled(*first.by_bucket(HELD, *outcomes), rng) for outcomes in (_ENDS[0], _ENDS[2]))
    at_risk = remaining(ended + nacked + resampled(*first.by_bucket(VISIBILITY, Outcome.EXPIRED), rng))
    curve = product_limit(ended, at_risk)
    followed = remaining(first.in_force)
    last = max(int(np.flatnonzero(followed >= min(FOLLOWED_MIN, followed[0] / 10.0))[-1]) - 1, 0)
    left = curve[:, last]
    beyond = product_limit(ended[:, last + 1 :], at_risk[:, last + 1 :] + CRASHED_BEYOND)
    most = np.minimum(_returned_share(first, later, left, rng), left * beyond[:, -1])
    if first.late.any():  # late deletes are not crashes
        never_ended = float(first.expired_only.sum()) / float(first.receipts - first.nacked.sum())
        most = np.minimum(most, never_ended * left / max(left[0], 1e-12))
    work, why_not = _still_working(curve, last, float(followed[last]), rng)
    if not why_not and left[0] >= OPEN_MAX and left[0] - most[0] > max(OPEN_SHARE_MAX * left[0], OPEN_MAX):
        why_not = f"other receipts show that at most {share(most[0])} of the receipts are crashes"
    crash = np.clip(np.minimum(left - work, most), 0.0, 1.0 - 1e-9)
    survival = np.clip((curve - crash[:, None]) / (1.0 - crash[:, None]), 0.0, 1.0)
    survival[:, last + 1 :] = survival[:, last : last + 1]
    before = np.concatenate([[1.0], curve[0][:-1]])
    seen = np.arange(BUCKETS) <= last
    working = at_risk[0] * np.clip(1.0 - crash[0] / np.maximum(before, 1e-12), 0.0, 1.0) * seen
    return Completion(
        survival=survival,
        crash=crash
        + np.append(0.0, rng.standard_gamma(0.5, DRAWS)) / (followed[last] + 1.0),  # crashes may be unobserved
        ended=ended[0] * seen,
        at_risk=working,
        counted=working,
        direct=working,
        sight_s=float(EDGES_S[last]),
        why_not=_arms_differ(first) or why_not,
        is_plateau=True,
    )


def by_renewals(first: ReceiptCounts, renewing: Array, rng: np.random.Generator) -> Completion:
    """Complete if the share ``renewing`` of consumers (a row for each draw) renews.

    Only these delete messages whose work exceeds its timeout, so they represent all consumers. Other expiries are
    crashes.
    """
    deleted, late, nacked = (resampled(*first.by_bucket(HELD, *outcomes), rng) for outcomes in _ENDS)
    ended = deleted / (first.in_sight + (1.0 - first.in_sight) * renewing[:, None])
    outlived = (ended - deleted).sum(axis=1)
    at_risk = remaining(ended + nacked)
    gave_up = np.maximum(outlived - late.sum(axis=1), 0.0)
    counts, squares = first.by_bucket(VISIBILITY, Outcome.EXPIRED)
    share = np.divide(first.expired_only, counts, out=np.zeros_like(counts), where=counts > 0)
    crashed = np.maximum(resampled(counts * share, squares * share, rng).sum(axis=1) - gave_up, 0.0)
    crash = crashed / np.maximum(crashed + at_risk[:, 0], 1e-9)
    return Completion.of(ended, at_risk, crash, remaining(first.deleted + first.nacked))


def renewal_of(first: ReceiptCounts) -> float | None:
    """Return the period of renewals in seconds; ``None`` if consumers do not renew.

    A receipt held for T is renewed ⌊T/period⌋ times: the result is the longest period that explains the counted
    renewals. If the work does not determine it, the extended timeouts do.
    """
    held, longer = (first.by_arm(Outcome.DELETED, axis).get(EXTENDED, np.zeros(BUCKETS)) for axis in (HELD, VISIBILITY))
    extended = float(held.sum())
    if extended <= 0.0 or first.extensions <= 0.0:
        return None
    each, held_s = first.extensions / extended, float(held @ MIDDLES_S) / extended
    periods_s = np.geomspace(held_s / (each + 1.0), held_s / each, _PERIODS)
    most, least = (np.floor(times_s / periods_s[:, None]) @ held / extended for times_s in (EDGES_S, EDGES_S / RATIO))
    longest_s = float(periods_s[most >= each - _ROUNDED].max(initial=periods_s[0]))
    shortest_s = float(periods_s[least <= each + _ROUNDED].min(initial=periods_s[-1]))
    arms = first.arms
    weights = arms.receipts / max(float(arms.receipts.sum()), 1.0)
    usual_s = float(arms.timeouts_s @ weights)
    variance = float((arms.timeouts_s - usual_s) ** 2 @ weights)
    error_s = math.sqrt(variance / min(extended, float(arms.receipts.sum()) + 1.0)) / each
    renewal_s = (float(longer @ MIDDLES_S) / max(float(longer.sum()), 1e-9) - usual_s) / each
    if error_s > RENEWAL_ERROR * renewal_s or not shortest_s <= renewal_s <= longest_s:
        renewal_s = longest_s / RATIO**0.5
    renewed, other, _ = _renewed(first, renewal_s)
    return renewal_s if renewed >= RENEWING_MIN * (renewed + other) else None


def _renewed(first: ReceiptCounts, renewal_s: float) -> tuple[float, float, float]:
    """Count receipts that clearly exceeded a period: renewed in the first timeout, not renewed, all renewed."""
    renewed = first.by_arm(Outcome.DELETED).get(EXTENDED, np.zeros(BUCKETS))
    clearly = _CLEARLY * renewal_s < EDGES_S
    within = float(renewed[clearly] @ first.in_sight[clearly])
    return within, float((first.deleted - renewed)[clearly].sum()), float(renewed[clearly].sum())


def renewing_of(first: ReceiptCounts, renewal_s: float, rng: np.random.Generator) -> Array:
    """Return the share of consumers that renew, and draws; at least the share if the others had all the expiries."""
    renewed, other, every = _renewed(first, renewal_s)
    expired = float(first.expired.sum())
    counts = np.array([[renewed + 1.0, every + 1.0], [other + RENEWING_CERTAIN, other + expired + RENEWING_CERTAIN]])
    drawn = rng.beta(counts[0], counts[1], size=(DRAWS + 1, 2))
    drawn[0] = counts[0] / counts.sum(axis=0)
    return np.asarray(drawn.max(axis=1))


def by_prior(first: ReceiptCounts, lent: ReceiptCounts, crash: float, rng: np.random.Generator) -> Completion:
    """Complete few receipts with the crash rate ``crash`` and the receipts ``lent``."""
    known = first + lent
    deleted, late, nacked = (resampled(*known.by_bucket(HELD, *outcomes), rng) for outcomes in _ENDS)
    ended = deleted + late
    working = np.maximum(first.expired_only - crash * first.in_force, 0.0)
    at_risk = remaining(ended + nacked + resampled(working, working, rng))
    found = Completion.of(ended, at_risk, np.full(DRAWS + 1, crash), at_risk[0])
    is_open = found.survival[0, -1] > OPEN_MAX
    return replace(found, why_not="the work did not end within the time seen") if is_open else found


def resampled(counts: Array, squares: Array, rng: np.random.Generator) -> Array:
    """Return ``counts`` and draws by a Bayesian bootstrap; ``squares`` are the variances of ``counts``."""
    found = np.repeat(counts[None], DRAWS + 1, axis=0)
    places = np.flatnonzero(counts > 0)
    if places.size:
        spread = np.maximum(squares[places] / counts[places], 1e-9)
        found[1:, places] = rng.standard_gamma(counts[places] / spread, size=(DRAWS, places.size)) * spread
    return found


def _still_working(curve: Array, last: int, receipts: float, rng: np.random.Generator) -> tuple[Array, str]:
    """Return the share of work that lasts beyond the bucket ``last``, and the reason if that is too uncertain."""
    left = curve[:, last]
    work = working_beyond(curve, last, receipts, rng)
    most = float(np.quantile(work, 0.975))
    if min(most, left[0]) < OPEN_MAX or (work[0] <= OPEN_SHARE * left[0] and most <= OPEN_SHARE_MAX * left[0]):
        return np.minimum(work, left), ""
    least = np.minimum(0.5 * np.quantile(work, 0.025), left)
    reason = f"{share(left[0])} of the receipts expired and were never deleted, while others ended just in time"
    return least + np.concatenate([[0.5], rng.random(DRAWS)]) * (left - least), reason


def _with_returned(chances: Array, crash: Array, first: ReceiptCounts, later: ReceiptCounts) -> Array:
    """Return ``chances`` given the later receipts: after a crash most messages are deleted in time."""
    in_time = float(first.deleted.sum() + first.nacked.sum()) / first.receipts
    if later.receipts < _LATER_MIN or in_time < _IN_TIME_MIN:
        return chances
    released = float(first.nacked.sum())
    noise = math.sqrt(released) + 0.5
    returned = float(later.deleted.sum()) / in_time - released
    crashed = np.maximum(crash, 0.0) * first.receipts + 0.5
    shown = np.clip(crashed, max(returned - noise, 0.5), max(returned, 0.0) + noise)
    off = np.log(crashed / shown)
    if first.arms.receipts.max(initial=0.0) < ONE_ARM * first.receipts:
        off = np.maximum(off, 0.0)  # the next receive of late work may have a longer timeout
    error = RETURNED_ERROR**2 + 1.0 / np.maximum(crashed, shown)
    weighed = np.maximum(chances, 1e-30) * np.exp(-0.5 * off**2 / error)
    return np.asarray(weighed / weighed.sum()) if weighed.sum() > 0.0 else chances


def _returned_share(first: ReceiptCounts, later: ReceiptCounts, left: Array, rng: np.random.Generator) -> Array:
    """Return an upper limit of the crash rate from later receipts: after a crash most messages are deleted in time."""
    in_time = float(first.deleted.sum() + first.nacked.sum()) / first.receipts
    if min(later.receipts, left[0] * first.receipts) < _LATER_MIN or in_time < _IN_TIME_MIN:
        return np.ones(DRAWS + 1)
    returned = float(later.deleted.sum() + later.nacked.sum())
    drawn = np.concatenate([[returned], rng.standard_gamma(max(returned, 0.5), size=DRAWS)])
    return drawn * RETURNED_SLACK / in_time / first.receipts


def _arms_differ(first: ReceiptCounts) -> str:
    """Return a reason if arms differ in the range that all cover, which means that timeouts depend on the work."""
    arms = first.arms
    large = arms.receipts >= max(200.0, 0.01 * float(arms.receipts.sum()))
    if large.sum() < 2:
        return ""
    numbers = arms.receipts[large] / arms.spread[large]
    upto = int(np.searchsorted(EDGES_S, arms.timeouts_s[large].min()))
    deleted = first.by_arm(Outcome.DELETED)
    curves = np.array([
        np.cumsum(deleted.get(int(arm), np.zeros(BUCKETS)))[:upto] / receipts
        for arm, receipts in zip(arms.numbers[large], arms.receipts[large], strict=True)
    ])  # fmt: skip
    pooled = numbers @ curves / numbers.sum()
    differ = np.abs(curves - pooled).max(axis=1, initial=0.0) - 1.7 / np.sqrt(numbers)
    return "the work takes longer under one timeout than under another" if differ.max() > _DIFFER_MAX else ""

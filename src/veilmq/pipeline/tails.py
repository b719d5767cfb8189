"""Tails: the extrapolation of a curve where receipts are too few to count.

Three families with two parameters each, log-normal, Weibull and generalised Pareto, on grids of parameters relative to
the threshold above which a tail is fitted, so one table of hazards serves all queues. The weight of a family is its
likelihood on receipts that are held out from the fit.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from veilmq.pipeline.histograms import BUCKETS, RATIO
from veilmq.pipeline.tallies import Array, Numbers

FAMILIES = ("log-normal", "Weibull", "generalised Pareto")

TAIL_FROM = 500.0
"""A tail is fitted to so many receipts, or to half of them if there are fewer …"""
TAIL_TO = 50.0
"""… and takes the place of the curve where so many are left, or a tenth of few."""

_BUCKETS_IN_BIN = 6
_BINS = 84
_STEPS = 32
_FOLDS = 8
_LEAST = 1e-12
_SURELY_WRONG = 1e-5
_LOG_MIN = -200.0
_TIMES: Array = np.power(RATIO, _BUCKETS_IN_BIN * np.arange(_BINS + 1, dtype=np.float64))


def drawn_on(survival: Array, ended: Array, at_risk: Array, rng: np.random.Generator) -> tuple[Array, str]:
    """Return ``survival`` with the ends of its rows replaced by tails, and the likeliest family.

    ``ended`` and ``at_risk`` count receipts by bucket. The first row is the estimate and gets the likeliest tail, the
    others get draws from the posterior.
    """
    receipts = float(at_risk[0])
    last = min(int(np.searchsorted(-at_risk, -min(TAIL_TO, receipts / 10.0))), BUCKETS - 1)
    first = max(min(int(np.searchsorted(-at_risk, -min(TAIL_FROM, receipts / 2.0))), last - 2), 0)
    bins = min((BUCKETS - first) // _BUCKETS_IN_BIN, _BINS)
    until = first + bins * _BUCKETS_IN_BIN
    in_bin = ended[first:until].reshape(bins, _BUCKETS_IN_BIN).sum(axis=1)
    entering = np.append(at_risk[first:until:_BUCKETS_IN_BIN], 0.0)
    bins = max(int(np.count_nonzero(entering)), 1)
    in_bin, entering = in_bin[:bins], entering[: bins + 1]
    unended = np.maximum(entering[:-1] - entering[1:] - in_bin, 0.0)
    tails, family = _tails(in_bin, np.maximum(entering[:-1] - unended / 2.0, in_bin), survival.shape[0] - 1, rng)
    places = np.clip((np.arange(last, BUCKETS) - first + 1) / _BUCKETS_IN_BIN, 0.0, _BINS)
    logs = np.log(np.maximum(tails, 1e-80))
    drawn = np.stack([np.interp(places, np.arange(_BINS + 1), each) for each in logs])
    found = survival.copy()
    found[:, last:] = survival[:, last : last + 1] * np.exp(drawn - drawn[:, :1])
    return found, family


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

    def likelihood(deaths: npt.NDArray[Any]) -> Array:
        return np.asarray(deaths @ log_ended - deaths.sum(axis=-1, keepdims=True) * np.log(within))

    in_bin = -np.diff(curve[0, first : last + 1 : _BUCKETS_IN_BIN]) * receipts
    fits, _ = _drawn(likelihood, [in_bin], curve.shape[0] - 1, rng)
    return np.asarray((curve[:, first] - curve[:, last]) * beyond[fits] / within[fits])


def _tails(ended: Array, at_risk: Array, draws: int, rng: np.random.Generator) -> tuple[Array, str]:
    """Return rows of P(T > t | T > threshold) at the edges of the bins (the likeliest, then draws), and the family."""
    survival, log_hazard, log_rest = _tables()

    def likelihood(deaths: npt.NDArray[Any], rest: npt.NDArray[Any]) -> Array:
        return np.asarray(deaths @ log_hazard[: ended.size] + rest @ log_rest[: ended.size])

    fits, family = _drawn(likelihood, [ended, np.maximum(at_risk - ended, 0.0)], draws, rng)
    return survival[:, fits].T, family


def _drawn(
    likelihood: Callable[..., Array], counts: list[Array], draws: int, rng: np.random.Generator
) -> tuple[Numbers, str]:
    """Return the columns of the tables that fit ``counts``: the likeliest, then draws; and the family of the first."""
    whole = likelihood(*counts).reshape(len(FAMILIES), -1)
    folds = [np.tile(np.round(each).astype(np.int64), (_FOLDS, 1)) for each in counts]
    some = [rng.binomial(each, 0.5) for each in folds]
    others = [fold - each for fold, each in zip(folds, some, strict=True)]
    fitted, held_out = (
        likelihood(*(each.astype(np.float64) for each in half)).reshape(_FOLDS, *whole.shape) for half in (some, others)
    )
    scores = np.take_along_axis(held_out, fitted.argmax(axis=2)[..., None], axis=2)[..., 0].mean(axis=0)
    weights = np.exp(np.clip(scores - scores.max(), _LOG_MIN, 0.0))
    chances = np.exp(np.clip(whole - whole.max(axis=1, keepdims=True), _LOG_MIN, 0.0))
    chances *= (weights / weights.sum() / chances.sum(axis=1))[:, None]
    family = int(np.argmax(weights))
    likeliest = family * whole.shape[1] + int(whole[family].argmax())
    chosen = rng.choice(chances.size, size=draws, p=chances.reshape(-1) / chances.sum())
    return np.array([likeliest, *chosen]), FAMILIES[family]


@cache
def _tables() -> tuple[Array, Array, Array]:
    """Return, by column: P(T > t | T > 1) at the edges of the bins, ln of the hazard of each bin, ln of the rest."""
    columns = np.concatenate([_lognormal(), _weibull(), _pareto()], axis=1)
    before, after = columns[:-1], columns[1:]
    left = np.clip(np.divide(after, before, out=np.zeros_like(after), where=before > _LEAST), 0.0, 1.0)
    return columns, np.log(np.maximum(1.0 - left, _LEAST)), np.log(np.maximum(left, _SURELY_WRONG))


def _lognormal() -> Array:
    """The threshold lies at z, in units of sigma from the median."""
    z, sigma = _grid(np.linspace(-2.0, 4.5, _STEPS), np.geomspace(0.04, 3.0, _STEPS))
    scale = np.linspace(-2.5, 12.0, 3000)
    logs = np.log([0.5 * math.erfc(each / math.sqrt(2.0)) for each in scale])
    places = np.minimum(z + np.log(_TIMES)[:, None] / sigma, 12.0)
    return _survival(np.interp(places, scale, logs) - np.interp(z, scale, logs))


def _weibull() -> Array:
    factor, power = _grid(np.geomspace(0.02, 40.0, _STEPS), np.geomspace(0.12, 12.0, _STEPS))
    return _survival(-factor * (np.power(_TIMES[:, None], power) - 1.0))


def _pareto() -> Array:
    scale, index = _grid(np.geomspace(0.01, 6.0, _STEPS), np.linspace(-0.9, 1.4, _STEPS))
    return _survival(-np.log(np.maximum(1.0 + index * (_TIMES[:, None] - 1.0) / scale, 1e-80)) / index)


def _survival(logs: Array) -> Array:
    return np.asarray(np.exp(np.clip(logs, _LOG_MIN, 0.0)))


def _grid(first: Array, second: Array) -> tuple[Array, Array]:
    one, other = np.meshgrid(first, second, indexing="ij")
    return one.reshape(-1), other.reshape(-1)

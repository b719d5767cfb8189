"""Tuning: recommend a timeout, with a reason, from the estimate of a queue or routing key."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.pipeline.cost import candidates_s
from veilmq.pipeline.durations import seconds, share
from veilmq.pipeline.estimate import Estimate, estimates
from veilmq.pipeline.recommendation import Confidence, QueueFacts, Recommendation, facts_for
from veilmq.pipeline.survival import crossings_s
from veilmq.pipeline.tallies import Array, KeyTally, Tally, whole_of
from veilmq.pipeline.tune_options import TuneOptions

EXPLORE_FACTOR = 4
"""If all timeouts are too short for an estimate, the timeout to try is the longest one times this factor."""

BOUNDS_CLOSE = 0.10

COST_FACTOR_NEAR = 1.10
COST_NEAR_S = 0.02
"""A cost is near the best one if it is at most so many times as high, or so much higher."""

COST_FACTOR_SAFE = 1.05
"""A timeout that costs on the average at most so many times the least is taken for being near the best more surely."""

NEAR_MIN = 0.95
"""A timeout can be trusted if its cost is near the best one in this share of all that the receipts leave open."""

NAIVE_MIN = 0.975
COST_EQUAL_S = 0.001
"""The naive timeout is taken where another one does not cost as little in this share of all that is left open."""

RENEWAL_KNOWN = 0.10
"""How far the period of renewals may be off, as consumers differ in it and renew late."""

BY_EARLIER_MIN = 0.5
"""One delete by an earlier receipt counts until it weighs less, after a half-life: a server may be fenced again."""

_LOWER, _UPPER = 0.025, 0.975
_ONE_SIDE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """``timeout_s`` is the recommended timeout; ``now`` and ``best`` are the costs of the current and the best one."""

    timeout_s: int | None
    reason: str
    confidence: Confidence
    now: float | None = None
    best: float | None = None
    now_lower: float | None = None
    best_upper: float | None = None


def recommendations(
    found: Iterable[KeyTally], *, options: TuneOptions, facts: Mapping[str, QueueFacts]
) -> Iterator[Recommendation]:
    """Yield the recommendation for each queue in ``found``, followed by those for its keys.

    ``found`` is sorted by queue; ``facts``, by plain name, may lack queues.
    """
    for queue, keys in groupby(found, key=lambda each: each.queue):
        its_keys = list(keys)
        whole, by_key = estimates(its_keys, options=options)
        yield from recommended(its_keys, whole, by_key, options=options, facts=facts_for(facts, queue))


def recommended(
    keys: list[KeyTally],
    whole: Estimate,
    by_key: Mapping[str, Estimate],
    *,
    options: TuneOptions,
    facts: QueueFacts | None,
) -> Iterator[Recommendation]:
    """Yield the recommendation for the queue of ``keys``, then those for the keys."""
    options = options_for(keys, options)
    yield _recommendation(whole_of(keys), None, whole, facts, options)
    for each in keys:
        yield _recommendation(each, each.key, by_key[each.key], facts, options)


def options_for(keys: Iterable[KeyTally], options: TuneOptions) -> TuneOptions:
    """Return ``options`` for the queue of ``keys``: if earlier receipts delete messages, receipts are not fenced.

    The event log decides, not the setting of the server: SMQ and FIFO queues are always fenced.
    """
    if sum(each.all.by_earlier for each in keys) < BY_EARLIER_MIN:
        return options
    return replace(options, prices=replace(options.prices, fenced=False))


def receives_max_of(facts: QueueFacts | None, options: TuneOptions) -> int:
    """Return the maximum number of receives of a message: that of the queue, else that of the options."""
    return (facts.receives_max if facts else 0) or options.receives_max


def explore_s(first: Tally) -> int:
    """Return the timeout to try, longer than all timeouts so far, if nothing can be recommended."""
    return min(math.ceil(EXPLORE_FACTOR * first.longest_s), VISIBILITY_TIMEOUT_S.maximum)


def naive_s(first: Tally, options: TuneOptions) -> int:
    """Return the naive timeout: the quantile of the receipts deleted in time."""
    left = 1.0 - np.cumsum(first.deleted) / max(float(first.deleted.sum()), 1e-9)
    found_s = float(crossings_s(left[None], 1.0 - options.quantile)[0]) if first.deleted.any() else 1.0
    return int(min(max(math.ceil(found_s), VISIBILITY_TIMEOUT_S.minimum, 1), VISIBILITY_TIMEOUT_S.maximum))


def _recommendation(
    found: KeyTally, key: str | None, known: Estimate, facts: QueueFacts | None, options: TuneOptions
) -> Recommendation:
    current_s = facts.visibility_timeout_s if facts else max(round(found.all.usual_s), 1)
    choice = _choice(known, current_s, receives_max_of(facts, options), options)
    advised = choice.timeout_s is not None and choice.now is not None and choice.best is not None
    gains = advised and (choice.now or 0.0) - (choice.best or 0.0) > options.gain_min * (choice.now or 0.0)
    explores = choice.confidence is Confidence.NONE and found.first.receipts >= options.receipts_min
    crash_lower, crash_upper = (float(each) for each in np.quantile(known.crash, (_LOWER, _UPPER)))
    since = f"; the work changed: only receipts since {found.since} count" if found.since else ""
    return Recommendation(
        queue=found.queue,
        key=key,
        receipts=found.all.receipts,
        first_receipts=found.first.receipts,
        quantile=known.quantile,
        rates=known.rates,
        renewal_s=known.renewal_s,
        longest_s=found.first.longest_s,
        current_s=current_s,
        recommended_s=choice.timeout_s,
        explore_s=explore_s(found.first) if explores else None,
        cost_current=choice.now,
        cost_recommended=choice.best if advised else None,
        cost_current_lower=choice.now_lower,
        cost_recommended_upper=choice.best_upper if advised else None,
        crash_lower=crash_lower,
        crash_upper=crash_upper,
        confidence=choice.confidence,
        change=gains,
        reason=choice.reason + since,
    )


def _choice(known: Estimate, current_s: int, receives_max: int, options: TuneOptions) -> _Choice:
    """Return the timeout with about the least average cost over all draws, or keep the current one."""
    if not known.is_known and known.renewal_s is None:
        return _Choice(timeout_s=None, reason=known.quantile.why_not, confidence=Confidence.NONE)
    naive = naive_s(known.first, options)
    renewed = [] if known.renewal_s is None else [math.ceil(known.renewed_from_s)]
    timeouts_s = np.unique(np.concatenate([candidates_s(), [max(current_s, 1), naive], renewed]))
    costs = known.costs(timeouts_s, receives_max=receives_max, prices=options.prices)
    means = costs.mean(axis=0)
    now, usual = (int(np.searchsorted(timeouts_s, max(each, 1))) for each in (current_s, naive))
    # A small cost may lack half a receipt whose work is longer than all observed work.
    unseen = 0.5 * receives_max * options.prices.work / (known.first.receipts + 1.0)
    near = _near(costs, np.where(timeouts_s < known.renewed_from_s, unseen * timeouts_s, 0.0))
    safe = means <= COST_FACTOR_SAFE * means.min()
    best = int(np.lexsort((means, -near * safe))[0])
    is_cheaper = best == usual or np.mean(costs[:, best] - costs[:, usual] <= COST_EQUAL_S) >= NAIVE_MIN
    if not is_cheaper and near[usual] >= NEAR_MIN:
        best, is_cheaper = usual, True
    lower, upper = (float(np.quantile(costs[:, at], p)) for at, p in ((now, _ONE_SIDE), (best, 1.0 - _ONE_SIDE)))
    as_good = _renewed_as_well(known, current_s, float(timeouts_s[best]))
    keeps = best == now or as_good or upper >= lower or not is_cheaper
    timeout_s = int(timeouts_s[best])
    because = _reason(known, timeout_s, options)
    if keeps:
        why = _kept(timeout_s, current_s, float(means[best]), float(means[now]))
        because = f"keep {seconds(current_s)}: {why}; {because}"
    return _Choice(
        timeout_s=None if keeps else timeout_s,
        reason=because,
        confidence=_confidence(
            known, near[now if keeps else best], renewed=known.renews and timeout_s >= known.renewed_from_s
        ),
        now=float(means[now]),
        best=float(means[best]),
        now_lower=lower,
        best_upper=upper,
    )


def _near(costs: Array, unseen: Array) -> Array:
    """Return the share of rows of ``costs`` in which each timeout costs little more than the best one.

    Costs also count as close if they are small, even with ``unseen`` added.
    """
    least = costs.min(axis=1, keepdims=True)
    near = (costs <= COST_FACTOR_NEAR * least) | (costs + unseen - least <= COST_NEAR_S)
    return np.asarray(near.mean(axis=0))


def _renewed_as_well(known: Estimate, current_s: int, timeout_s: float) -> bool:
    """Tell whether consumers renew both timeouts in time, and the current one is not much longer."""
    least_s = (1.0 - RENEWAL_KNOWN) * known.renewed_from_s
    return min(current_s, timeout_s) >= least_s and current_s <= (1.0 + BOUNDS_CLOSE) * timeout_s


def _kept(timeout_s: int, current_s: int, best: float, now: float) -> str:
    if timeout_s == current_s:
        return "no other timeout costs less"
    return f"{seconds(timeout_s)} would not surely cost less ({seconds(best)} a message, now {seconds(now)})"


def _reason(known: Estimate, timeout_s: int, options: TuneOptions) -> str:
    crashes = f"{share(float(known.crash[0]))} of the receipts wait for the timeout after a crash"
    renewals = ""
    if known.renewal_s is not None and timeout_s >= known.renewed_from_s:
        renewals = f"consumers renew about every {seconds(known.renewal_s)}"
        if known.renews:
            return f"{renewals}, so the timeout covers three renewals, not the work; {crashes}"
        renewals = f"{share(1.0 - float(np.mean(known.unrenewed)))} of the {renewals}; "
    name, point = f"p{100 * options.quantile:g}", known.quantile.point_s
    quantile = f"{name} is {seconds(point)}" if point is not None else known.quantile.why_not
    borrowed = f"; {known.lent:.0f} receipts are borrowed from the queue" if known.lent else ""
    outlived = share(float(known.tail.beyond(np.array([float(timeout_s)]))[0, 0]))
    outlives = f"{outlived} of the work takes longer than {seconds(timeout_s)}"
    return f"{renewals}{quantile}{borrowed}; {outlives}, and {crashes}"


def _confidence(known: Estimate, near: float, *, renewed: bool) -> Confidence:
    """Return the confidence; ``near`` is the share of draws with a cost close to the best.

    ``renewed`` means that renewals cover the work, not the timeout.
    """
    if known.lent or near < NEAR_MIN:
        return Confidence.LOW
    if renewed:
        return Confidence.HIGH
    quantile = known.quantile
    if known.is_plateau or quantile.point_s is None or quantile.lower_s is None or quantile.upper_s is None:
        return Confidence.MEDIUM
    close = max(quantile.upper_s / quantile.point_s - 1.0, 1.0 - quantile.lower_s / quantile.point_s) <= BOUNDS_CLOSE
    return Confidence.HIGH if close else Confidence.MEDIUM

"""Tuning: from what was found about a queue or a routing key to the timeout that it should have, and why."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.pipeline.cost import best_s, cost
from veilmq.pipeline.crashes import without_crashes
from veilmq.pipeline.durations import seconds, share
from veilmq.pipeline.finding import Finding, finding_of
from veilmq.pipeline.prior import prior_of
from veilmq.pipeline.recommendation import Confidence, QueueFacts, Recommendation, facts_for
from veilmq.pipeline.tallies import KeyTally, Tally
from veilmq.pipeline.tune_options import TuneOptions

RENEWALS_IN_TIMEOUT = 3
"""A timeout of three renewals survives two that are lost."""

EXPLORE_FACTOR = 4
"""Where nothing was seen long enough, the next timeout to try is so many times the longest."""

BOUNDS_CLOSE = 0.10

BY_EARLIER_MIN = 0.5
"""One delete by an earlier receipt counts until it weighs less, after a half-life: a server may be fenced again."""


@dataclass(frozen=True, slots=True)
class _Choice:
    timeout_s: int | None
    reason: str
    confidence: Confidence


def recommendations(
    found: Iterable[KeyTally], *, options: TuneOptions, facts: Mapping[str, QueueFacts]
) -> Iterator[Recommendation]:
    """Yield what each queue in ``found`` should have, followed by what each of its keys should have.

    ``found`` is in order of queues; ``facts``, by plain names, need not know all of them.
    """
    for queue, keys in groupby(found, key=lambda each: each.queue):
        yield from recommended(queue, list(keys), options=options, facts=facts_for(facts, queue))


def recommended(
    queue: str, keys: list[KeyTally], *, options: TuneOptions, facts: QueueFacts | None
) -> Iterator[Recommendation]:
    """Yield what ``queue`` should have, then what each of ``keys`` should have."""
    options = options_for(keys, options)
    keys = without_crashes(keys)
    whole = whole_of(queue, keys)
    yield _recommendation(whole, None, finding_of(whole.first, options=options), facts, options)
    prior = prior_of(each.first for each in keys)
    for each in keys:
        finding = finding_of(each.first, options=options, prior=prior)
        yield _recommendation(each, each.key, finding, facts, options)


def options_for(keys: Iterable[KeyTally], options: TuneOptions) -> TuneOptions:
    """Return ``options`` for the queue of ``keys``: where earlier receipts delete, its cost is the one without fencing.

    The event log tells, and not the server's setting: SMQ and FIFO queues are fenced whatever that is.
    """
    if sum(each.all.by_earlier for each in keys) < BY_EARLIER_MIN:
        return options
    return dataclasses.replace(options, prices=dataclasses.replace(options.prices, fenced=False))


def whole_of(queue: str, keys: Iterable[KeyTally]) -> KeyTally:
    """Return the sum of all ``keys`` of ``queue``."""
    first, every = Tally(), Tally()
    for each in keys:
        first, every = first + each.first, every + each.all
    return KeyTally(queue=queue, key="", first=first, all=every)


def cost_of(finding: Finding, timeout_s: float, *, receives_max: int, options: TuneOptions) -> float:
    """Return what ``timeout_s`` costs for each message."""
    return cost(finding.load(receives_max=receives_max), timeout_s, prices=options.prices)


def receives_max_of(facts: QueueFacts | None, options: TuneOptions) -> int:
    """Return how often a message may be received: as the queue says, else as the options say."""
    return (facts.receives_max if facts else 0) or options.receives_max


def explore_s(finding: Finding) -> int:
    """Return a timeout longer than all that were in force, to try where nothing was seen long enough."""
    return min(math.ceil(EXPLORE_FACTOR * finding.first.longest_s), VISIBILITY_TIMEOUT_S.maximum)


def _may_explore(choice: _Choice, finding: Finding, options: TuneOptions) -> bool:
    """Tell whether a longer timeout would show more; where receipts are missing, only more of them do."""
    return choice.timeout_s is None and finding.first.receipts >= options.receipts_min


def _recommendation(
    found: KeyTally, key: str | None, finding: Finding, facts: QueueFacts | None, options: TuneOptions
) -> Recommendation:
    receives_max = receives_max_of(facts, options)
    current_s = facts.visibility_timeout_s if facts else round(found.all.usual_s)
    choice = _choice(finding, receives_max, options)
    now = new = None
    if choice.timeout_s is not None:
        now = cost_of(finding, current_s, receives_max=receives_max, options=options)
        new = cost_of(finding, choice.timeout_s, receives_max=receives_max, options=options)
    change = now is not None and new is not None and now - new > options.gain_min * now
    return Recommendation(
        queue=found.queue,
        key=key,
        receipts=found.all.receipts,
        first_receipts=found.first.receipts,
        quantile=finding.quantile,
        rates=finding.rates,
        renewal_s=finding.renewal_s,
        longest_s=found.first.longest_s,
        current_s=current_s,
        recommended_s=choice.timeout_s,
        explore_s=explore_s(finding) if _may_explore(choice, finding, options) else None,
        cost_current=now,
        cost_recommended=new,
        confidence=choice.confidence,
        change=change,
        reason=choice.reason,
    )


def _choice(finding: Finding, receives_max: int, options: TuneOptions) -> _Choice:
    """Return the timeout to take; the first rule that fits decides."""
    if finding.first.receipts < options.receipts_min and not finding.lent:
        return _Choice(None, finding.quantile.why_not, Confidence.NONE)
    if finding.renewal_s is not None:
        return _renewed(finding, finding.renewal_s)
    if finding.curve.quantile_s(options.quantile) is None:
        return _Choice(None, finding.quantile.why_not, Confidence.NONE)
    timeout_s, _ = best_s(finding.load(receives_max=receives_max), prices=options.prices)
    return _Choice(timeout_s, _reason(finding, timeout_s, options), _confidence(finding))


def _renewed(finding: Finding, renewal_s: float) -> _Choice:
    timeout_s = min(math.ceil(RENEWALS_IN_TIMEOUT * renewal_s), VISIBILITY_TIMEOUT_S.maximum)
    reason = (
        f"consumers renew about every {seconds(renewal_s)}, so the timeout need not cover the work: three renewals; "
        f"{share(finding.rates.crash)} of the receipts wait for it after a crash"
    )
    return _Choice(timeout_s, reason, Confidence.LOW if finding.lent else Confidence.HIGH)


def _reason(finding: Finding, timeout_s: int, options: TuneOptions) -> str:
    outlived = float(finding.curve.tail.beyond(np.array([float(timeout_s)]))[0])
    name = f"p{100 * options.quantile:g}"
    point = finding.quantile.point_s
    known = f"{name} is {seconds(point)}" if point is not None else finding.quantile.why_not
    borrowed = f"; {finding.lent:.0f} receipts of the queue stand in" if finding.lent else ""
    return (
        f"{known}{borrowed}; {share(outlived)} of the work outlives {seconds(timeout_s)}, "
        f"and {share(finding.rates.crash)} of the receipts wait so long after a crash"
    )


def _confidence(finding: Finding) -> Confidence:
    quantile = finding.quantile
    if finding.lent:
        return Confidence.LOW
    if quantile.point_s is None or quantile.lower_s is None or quantile.upper_s is None:
        return Confidence.MEDIUM
    close = max(quantile.upper_s / quantile.point_s - 1.0, 1.0 - quantile.lower_s / quantile.point_s) <= BOUNDS_CLOSE
    return Confidence.HIGH if close else Confidence.MEDIUM

"""Estimates of the work of a queue or routing key from its receipts, with their uncertainty.

An estimate is one curve and a hundred draws of everything that the receipts leave open: sampling error, which consumers
crashed and which gave up, the family of the tail. The bounds of quantiles and the costs of timeouts are computed from
the draws. Only first receipts count: slow messages are redelivered more often, and would count more often.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from veilmq.core.receipts import Outcome
from veilmq.pipeline.cells import (
    BUCKETS,
    EDGES_S,
    EXTENDED,
    HELD,
    RATIO,
    Arms,
    Array,
    KeyCounts,
    ReceiptCounts,
    bucket_of,
    counted,
    whole_of,
)
from veilmq.pipeline.cost import Load, costs
from veilmq.pipeline.options import TuneOptions
from veilmq.pipeline.survival import (
    Completion,
    Tail,
    by_follow_up,
    by_late_deletes,
    by_prior,
    by_renewals,
    crossings_s,
    drawn_on,
    line_through,
    renewal_of,
    renewing_of,
    share,
    tail_of,
)

_UNITS = ((3600.0, "h"), (60.0, "min"))
_MINUTES_FROM_S = 600.0


def seconds(value_s: float | None) -> str:
    """Return ``value_s`` with three digits and its unit: ``0.26 s``, ``483 s``, ``35.2 min``, ``1.2 h``."""
    if value_s is None:
        return "–"
    for size_s, unit in _UNITS:
        if value_s >= max(size_s, _MINUTES_FROM_S):
            return f"{value_s / size_s:.3g} {unit}"
    return f"{value_s:.3g} s"


AT_RISK_MIN = 50.0
"""A quantile is identifiable if at least this many receipts are still at risk there."""

LATE_MIN = 50.0
"""With this many late deletes, the estimate from late deletes is preferred."""
LATE_LEAST = 10.0
"""With fewer late deletes than ``LATE_MIN``, at least this many, they are used only if follow-up gives no estimate."""

KNOWN_FACTOR = 2.0
"""A quantile is unknown if the ratio of its bounds exceeds this."""

WIDTH_MAX = 0.25
"""The bounds of a preferred estimate from late deletes are at most this far apart."""

ARM_RECEIPTS_MIN = 100
"""Arms with fewer receipts are not used to compare keys."""

RENEWALS_IN_TIMEOUT = 3
"""A timeout of three renewals survives two lost ones."""
UNRENEWED_MAX = 0.02
"""Nearly all consumers renew if at most this share does not."""

MEDIAN_RECEIPTS_MIN = 30
"""A median requires this many receipts."""

TWO_SIDES = (0.015, 0.985)
"""The quantiles of the draws that are the bounds."""
_SEED = 17
_CENTRE = BUCKETS // 2
_POSITIONS = np.arange(BUCKETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Shares of the first receipts, from 0 to 1.

    ``duplicate``: expired and deleted late, so the timeout was too short. ``recovery``: expired and never finished.
    ``crash`` is the part of the recoveries whose consumer crashed, which no timeout prevents; the others gave up at the
    deadline.
    """

    duplicate: float = 0.0
    recovery: float = 0.0
    crash: float = 0.0
    nack: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile of the working time with bounds at 95 %, in seconds; ``None`` means no bound.

    ``point_s`` is set only if the quantile is identifiable; otherwise ``why_not`` has the reason. ``late_s`` is the
    estimate from late deletes if the quantile exceeds all timeouts in use.
    """

    point_s: float | None = None
    lower_s: float | None = None
    upper_s: float | None = None
    late_s: float | None = None
    why_not: str = ""

    @property
    def width(self) -> float:
        """The distance of the bounds, divided by the lower one."""
        if self.lower_s is None or self.upper_s is None:
            return math.inf
        return self.upper_s / self.lower_s - 1.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimate from first receipts; ``renewal_s`` is the period of renewals, ``lent`` the borrowed receipts.

    The first row of ``survival``, ``crash`` and ``unrenewed`` (the share of consumers that do not renew) is the
    estimate; the other rows are draws.
    """

    first: ReceiptCounts
    survival: Array
    crash: Array
    quantile: Quantile
    renewal_s: float | None = None
    unrenewed: Array | float = 0.0
    lent: float = 0.0
    sight_s: float = 0.0
    is_plateau: bool = False
    is_known: bool = False

    @cached_property
    def rates(self) -> Rates:
        """The shares of receipts that were not deleted in time."""
        receipts = self.first.receipts
        if receipts <= 0.0:
            return Rates(crash=float(self.crash[0]))
        recovery = float(self.first.expired_only.sum()) / receipts
        return Rates(
            duplicate=max(float(self.first.expired.sum()) / receipts - recovery, 0.0),
            recovery=recovery,
            crash=float(self.crash[0]),
            nack=float(self.first.nacked.sum()) / receipts,
        )

    @cached_property
    def tail(self) -> Tail:
        return tail_of(self.survival)

    def load(self, receives_max: int, *, weight: float = 1.0) -> Load:
        """Return the load; ``weight`` is the share of messages of this kind.

        A cost is linear in tail and crash rate, so the cost of this load is the average cost over all draws.
        """
        middle = Tail(self.tail.survival.mean(axis=0), self.tail.work_s.mean(axis=0))
        return Load(
            tail=middle,
            crash_rate=float(self.crash.mean()),
            receives_max=receives_max,
            weight=weight,
            renewed_from_s=self.renewed_from_s,
            unrenewed=float(np.mean(self.unrenewed)),
        )

    def costs(self, timeouts_s: Array, options: TuneOptions) -> Array:
        """Return the cost of each of ``timeouts_s``, in a row for each draw."""
        unrenewed = np.reshape(self.unrenewed, (-1, 1))
        load = self.load(options.receives_max)
        load = replace(load, tail=self.tail, crash_rate=self.crash[:, None], unrenewed=unrenewed)
        return costs(load, timeouts_s, prices=options)

    @property
    def renewed_from_s(self) -> float:
        """The shortest timeout that consumers renew in time, given the uncertainty of the period."""
        return math.inf if self.renewal_s is None else RENEWALS_IN_TIMEOUT * self.renewal_s / RATIO

    @property
    def renews(self) -> bool:
        """Whether nearly all consumers renew."""
        return self.renewal_s is not None and float(np.mean(self.unrenewed)) <= UNRENEWED_MAX


@dataclass(frozen=True, slots=True)
class Prior:
    """What keys with few receipts borrow from their queue.

    It has the work of the other keys, as it is and with the medians moved to the middle bucket, and the crash rate.
    """

    whole: Array
    centred: Array
    crash: float

    def lent_to(self, first: ReceiptCounts, *, options: TuneOptions) -> ReceiptCounts:
        """Return the receipts that a key with the receipts ``first`` borrows, fewer if it has more of its own."""
        receipts = options.prior * max(0.0, 1.0 - first.receipts / options.receipts_min)
        if receipts <= 0.0 or self.whole.sum() <= 0.0:
            return ReceiptCounts()
        like = self.whole
        ended = np.cumsum(first.deleted + first.late)
        if first.receipts >= MEDIAN_RECEIPTS_MIN and ended[-1] >= first.receipts / 2.0:
            median = int(np.searchsorted(ended, first.receipts / 2.0))
            places = np.clip(_POSITIONS + median - _CENTRE, 0, BUCKETS - 1)
            like = np.bincount(places, weights=self.centred, minlength=BUCKETS).astype(np.float64)
        held = np.flatnonzero(like > 0)
        shares = like[held] / like.sum()
        return counted(Outcome.DELETED, HELD, np.full(held.size, EXTENDED), held, receipts * shares)


def estimates(keys: Sequence[KeyCounts], *, options: TuneOptions) -> tuple[Estimate, dict[str, Estimate]]:
    """Return the estimate of a queue as a whole, and those of its keys.

    The arms of all keys together give the probabilities of l, unless the keys differ too much.
    """
    finishing = None
    every = [each.first.arms for each in keys]
    if sum(float(each.late.sum()) for each in every) >= LATE_MIN:
        joined = Arms(*(np.concatenate([getattr(arms, name) for arms in every]) for name in Arms.__slots__))
        large = joined.receipts >= ARM_RECEIPTS_MIN
        line = line_through(Arms(*(getattr(joined, name)[large] for name in Arms.__slots__)))
        finishing = line.chances if large.sum() > 1 and line.misfit <= 2.0 else None
    found = {
        each.key: estimate(each, options=options, finishing=finishing)
        for each in keys
        if each.first.receipts >= options.receipts_min
    }
    prior = prior_of(found.values())
    for each in keys:
        if each.key not in found:
            found[each.key] = estimate(each, options=options, finishing=finishing, prior=prior)
    return estimate(whole_of(keys), options=options, finishing=finishing), {each.key: found[each.key] for each in keys}


def prior_of(found: Iterable[Estimate]) -> Prior:
    """Return the prior from the keys of one queue that have many receipts."""
    whole, centred, crashes, receipts = np.zeros(BUCKETS), np.zeros(BUCKETS), 0.0, 0.0
    for each in found:
        if not each.is_known:
            continue
        mass = np.maximum(-np.diff(each.survival[0], prepend=1.0), 0.0) * each.first.receipts
        median = int(np.argmax(each.survival[0] <= 0.5))
        places = np.clip(_POSITIONS + _CENTRE - median, 0, BUCKETS - 1)
        whole += mass
        centred += np.bincount(places, weights=mass, minlength=BUCKETS)
        crashes += float(each.crash[0]) * each.first.receipts
        receipts += each.first.receipts
    return Prior(whole, centred, crashes / receipts if receipts else 0.0)


def estimate(
    found: KeyCounts, *, options: TuneOptions, finishing: Array | None = None, prior: Prior | None = None
) -> Estimate:
    """Return the estimate from ``found``: from late deletes if there are enough, from follow-up, or the narrower one.

    ``finishing`` are the probabilities of l from all keys; a key with few receipts borrows from ``prior``.
    """
    first, later = found.first, found.later
    rng = np.random.default_rng(_SEED)
    lent = ReceiptCounts() if prior is None else prior.lent_to(first, options=options)
    borrowed = float(lent.deleted.sum())
    if borrowed or first.receipts < options.receipts_min:
        thin = by_prior(first, lent, 0.0 if prior is None else prior.crash, rng)
        known = _estimate(first, thin, rng, options, renewal_s=renewal_of(first), lent=borrowed)
        return known if borrowed else replace(known, is_known=False)
    renewal_s = renewal_of(first)
    if renewal_s is not None:
        renewing = renewing_of(first, renewal_s, rng)
        known = _estimate(first, by_renewals(first, renewing, rng), rng, options, renewal_s=renewal_s)
        return replace(known, unrenewed=1.0 - renewing)
    late = float(first.late.sum())
    by_late = None
    if late >= LATE_LEAST and first.arms.receipts.size:
        by_late = _estimate(first, by_late_deletes(first, later, rng, finishing=finishing), rng, options)
        if late >= LATE_MIN and by_late.is_known and by_late.quantile.width <= WIDTH_MAX:
            return by_late
    followed = _estimate(first, by_follow_up(first, later, rng), rng, options)
    if by_late is None or (late < LATE_MIN and followed.is_known):
        return followed
    if by_late.is_known and followed.is_known:
        return min(by_late, followed, key=lambda each: each.quantile.width)
    return followed if followed.is_known else by_late


def _estimate(
    first: ReceiptCounts,
    found: Completion,
    rng: np.random.Generator,
    options: TuneOptions,
    *,
    renewal_s: float | None = None,
    lent: float = 0.0,
) -> Estimate:
    survival = drawn_on(found.survival, found.ended, found.at_risk, rng)
    # Crashes may be unobserved: every other draw has one more.
    unseen = np.resize([0.0, 1.0 / (first.receipts + 1.0)], found.crash.size)
    quantile, is_known = _quantile(first, found, survival, options)
    return Estimate(
        first=first,
        survival=survival,
        crash=np.minimum(found.crash + unseen, 1.0),
        quantile=quantile,
        renewal_s=renewal_s,
        lent=lent,
        sight_s=found.sight_s,
        is_plateau=found.is_plateau,
        is_known=is_known,
    )


def _quantile(first: ReceiptCounts, found: Completion, survival: Array, options: TuneOptions) -> tuple[Quantile, bool]:
    """Return the quantile, or why it is not identifiable, and whether there is any estimate of it."""
    name = f"p{100 * options.quantile:g}"
    each_s = crossings_s(survival, 1.0 - options.quantile)
    point = float(each_s[0])
    low, high = (float(each) for each in np.quantile(each_s, TWO_SIDES, method="nearest"))
    if first.receipts < options.receipts_min:
        missing = f"{first.receipts:.0f} first receipts, {name} needs {options.receipts_min}"
        return Quantile(why_not=f"not identifiable: {missing}"), not found.why_not and math.isfinite(point)
    lower_s, upper_s = float(EDGES_S[bucket_of(low)] / RATIO), float(EDGES_S[bucket_of(high)])
    if found.why_not or not np.isfinite(high) or (found.is_plateau and point > found.sight_s):
        left = share(float(found.survival[0, -1]))
        why = found.why_not or f"{left} of the work had not ended after {seconds(found.sight_s)}, the longest time seen"
        ended = crossings_s(
            (1.0 - np.cumsum(first.deleted) / max(first.deleted.sum(), 1.0))[None], 1.0 - options.quantile
        )
        least = min(lower_s, float(ended[0]) / RATIO) if first.deleted.any() else None
        return Quantile(lower_s=least, why_not=f"not identifiable: {why}"), False
    bounds = Quantile(lower_s=lower_s, upper_s=upper_s)
    if high > KNOWN_FACTOR * low:
        why = f"{name} is between {seconds(lower_s)} and {seconds(upper_s)}"
        return replace(bounds, why_not=f"not identifiable: {why}"), False
    at_risk = float(found.counted[bucket_of(point)])
    if at_risk < AT_RISK_MIN:
        where = f"{at_risk:.0f} receipts are at risk at {name}, near {seconds(point)}"
        why = f"{where}; {AT_RISK_MIN:.0f} are needed"
        return replace(bounds, why_not=f"not identifiable: {why}"), True
    if float(found.direct[bucket_of(point)]) >= AT_RISK_MIN:
        return replace(bounds, point_s=point), True
    why = (
        f"{name} is longer than all timeouts in use (at most {seconds(first.longest_s)}), "
        f"late deletes indicate {seconds(point)}"
    )
    return replace(bounds, late_s=point, why_not=f"not identifiable: {why}"), True

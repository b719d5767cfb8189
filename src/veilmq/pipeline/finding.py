"""Findings: what the receipts of one queue or routing key say, before anything is recommended."""

import dataclasses
from dataclasses import dataclass

from veilmq.pipeline.cost import Load
from veilmq.pipeline.durations import seconds, share
from veilmq.pipeline.prior import Prior
from veilmq.pipeline.rates import Rates, rates_of
from veilmq.pipeline.survival import NOTHING, Curve, curve_of
from veilmq.pipeline.tallies import EDGES_S, Tally
from veilmq.pipeline.tune_options import TuneOptions

RENEWED_SHARE_MIN = 0.8
"""Consumers count as renewing when so many of the receipts that clearly outlived a renewal were renewed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile of the working time, with bounds at 95 %, in seconds.

    ``point_s`` is there only where it is identifiable, else ``why_not`` says what is missing. ``late_s`` is what late
    deletes point to where that lies beyond every timeout in force.
    """

    point_s: float | None = None
    lower_s: float | None = None
    upper_s: float | None = None
    late_s: float | None = None
    why_not: str = ""

    @property
    def best_s(self) -> float | None:
        """The point estimate, or what late deletes point to."""
        return self.late_s if self.point_s is None else self.point_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What first receipts say; ``renewal_s`` is how often consumers renew, ``lent`` what the queue lent of its own.

    Rates are of the key's own receipts, but for the crash rate, which takes more of them to know.
    """

    first: Tally
    curve: Curve
    quantile: Quantile
    rates: Rates
    renewal_s: float | None
    lent: float

    def load(self, *, receives_max: int, weight: float = 1.0) -> Load:
        """Return what a timeout has to serve, ``weight`` being the share of the messages that are of this kind.

        Where consumers renew, no work outlives its timeout.
        """
        tail = self.curve.tail if self.renewal_s is None else NOTHING
        return Load(tail=tail, crash_rate=self.rates.crash, receives_max=receives_max, weight=weight)


def finding_of(first: Tally, *, options: TuneOptions, prior: Prior | None = None) -> Finding:
    """Return what ``first``, first receipts, say; a key that has few is lent some, as ``prior`` says."""
    lent = Tally() if prior is None else prior.lent_to(first, options=options)
    known = first + lent
    curve = curve_of(known)
    return Finding(
        first=first,
        curve=curve,
        quantile=quantile_of(first, curve, options=options),
        rates=dataclasses.replace(rates_of(first), crash=rates_of(known).crash),
        renewal_s=renewal_of(first),
        lent=lent.receipts,
    )


def quantile_of(first: Tally, curve: Curve, *, options: TuneOptions) -> Quantile:
    """Return the quantile of ``options``, or why the receipts do not identify it."""
    name = f"p{100 * options.quantile:g}"
    if first.receipts < options.receipts_min:
        return Quantile(
            why_not=f"not identifiable: {first.receipts:.0f} first receipts, {name} needs {options.receipts_min}"
        )
    point = curve.quantile_s(options.quantile)
    if point is None:
        left = share(float(curve.survival[-1]))
        return Quantile(
            why_not=f"not identifiable: {left} of the work was not done when last seen, after at most "
            f"{seconds(curve.sight_s)}"
        )
    lower, upper = curve.quantile_bounds_s(options.quantile)
    longest = first.longest_s
    if point <= longest:
        return Quantile(point_s=point, lower_s=lower, upper_s=upper)
    return Quantile(
        late_s=point,
        lower_s=lower,
        upper_s=upper,
        why_not=f"not identifiable: {name} lies beyond the longest timeout in force ({seconds(longest)}), "
        f"late deletes point to {seconds(point)}",
    )


def renewal_of(first: Tally) -> float | None:
    """Return how often consumers renew their timeouts, in seconds; ``None`` when they do not.

    A receipt that was renewed e times was held between e and e + 1 renewals, about e + 1/2.
    """
    if first.extended <= 0:
        return None
    renewal_s = first.extended_held_s / (first.extensions + first.extended / 2.0)
    outlived = float(first.deleted[1.5 * renewal_s < EDGES_S].sum())
    return renewal_s if first.extended >= RENEWED_SHARE_MIN * outlived else None

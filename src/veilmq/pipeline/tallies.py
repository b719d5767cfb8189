"""Tallies: the cells of a queue or routing key on the driver, in sparse form and as arrays over the buckets."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from veilmq.core.events import Outcome
from veilmq.pipeline.histograms import ARM_BUCKETS, BUCKETS, EXTENDED, HELD, RATIO, VISIBILITY

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

EDGES_S: Array = np.power(RATIO, np.arange(1, BUCKETS + 1, dtype=np.float64)) / 1000.0
"""The upper edge of each bucket, in seconds."""

MIDDLES_S: Array = EDGES_S / RATIO**0.5
"""The (geometric) middle of each bucket, in seconds."""

RELEASED = (Outcome.NACKED, Outcome.DELETED_BY_EARLIER)
"""Outcomes that show only that the work takes longer than the receipt was held."""

ENDED = (Outcome.DELETED, Outcome.EXPIRED, *RELEASED)
"""Every receipt has exactly one of these outcomes."""

_KINDS = [(outcome.value, axis) for outcome in Outcome for axis in (HELD, VISIBILITY)]
_ARMS = BUCKETS // ARM_BUCKETS + 2


def bucket_of(time_s: float) -> int:
    """Return the bucket of a time."""
    return int(np.clip(np.floor(np.log(max(time_s * 1000.0, 1.0)) / np.log(RATIO)), 0, BUCKETS - 1))


@dataclass(frozen=True, slots=True)
class Arms:
    """One item per arm, a range of timeouts: its receipts, those deleted late, and those expired and never deleted.

    ``timeouts_s`` is the mean timeout of the arm. ``spread`` is the mean weight of its receipts: older receipts weigh
    less, and sums of weights vary more than counts.
    """

    numbers: Numbers
    timeouts_s: Array
    receipts: Array
    late: Array
    expired_only: Array
    spread: Array


@dataclass(frozen=True)
class Tally:
    """Receipts by outcome, axis, arm and bucket: ``counts`` and, for variances, the sums of squared weights.

    ``codes`` are sorted, each once. ``extensions`` are those of the receipts that were deleted in time. Tallies are
    added, and scaled to weigh less.
    """

    codes: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    counts: Array = field(default_factory=lambda: np.zeros(0))
    squares: Array = field(default_factory=lambda: np.zeros(0))
    extensions: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        """Return the sum of both."""
        return total([self, other])

    def scaled(self, weight: float) -> "Tally":
        """Return this tally with every count multiplied by ``weight``."""
        return Tally(self.codes, self.counts * weight, self.squares * weight**2, self.extensions * weight)

    def by_bucket(self, axis: str, *outcomes: Outcome) -> tuple[Array, Array]:
        """Return the counts and the sums of squared weights of ``outcomes`` on ``axis``, by bucket."""
        kinds, _, places = _parts(self.codes)
        wanted = np.isin(kinds, [_KINDS.index((each.value, axis)) for each in outcomes])
        return (
            np.bincount(places[wanted], weights=self.counts[wanted], minlength=BUCKETS).astype(np.float64),
            np.bincount(places[wanted], weights=self.squares[wanted], minlength=BUCKETS).astype(np.float64),
        )

    def by_arm(self, outcome: Outcome, axis: str = HELD) -> dict[int, Array]:
        """Return the receipts of ``outcome`` on ``axis`` by bucket, for each arm."""
        kinds, arms, places = _parts(self.codes)
        wanted = kinds == _KINDS.index((outcome.value, axis))
        return {
            int(arm): np.bincount(places[chosen], weights=self.counts[chosen], minlength=BUCKETS).astype(np.float64)
            for arm in np.unique(arms[wanted])
            for chosen in [wanted & (arms == arm)]
        }

    @cached_property
    def deleted(self) -> Array:
        """Receipts deleted in time, by the time held."""
        return self.by_bucket(HELD, Outcome.DELETED)[0]

    @cached_property
    def late(self) -> Array:
        """Receipts deleted late, by the time held."""
        return self.by_bucket(HELD, Outcome.LATE_DELETED)[0]

    @cached_property
    def nacked(self) -> Array:
        """Receipts released, or whose message an earlier receipt deleted, by the time held."""
        return self.by_bucket(HELD, *RELEASED)[0]

    @property
    def by_earlier(self) -> float:
        """The number of receipts that ended because an earlier receipt deleted the message."""
        return float(self.by_bucket(HELD, Outcome.DELETED_BY_EARLIER)[0].sum())

    @cached_property
    def expired(self) -> Array:
        """Expired receipts by timeout, those deleted late included."""
        return self.by_bucket(VISIBILITY, Outcome.EXPIRED)[0]

    @cached_property
    def expired_only(self) -> Array:
        """Expired receipts that were never deleted, by timeout."""
        return np.maximum(self.expired - self.by_bucket(VISIBILITY, Outcome.LATE_DELETED)[0], 0.0)

    @cached_property
    def in_force(self) -> Array:
        """All receipts, by timeout."""
        return self.by_bucket(VISIBILITY, *ENDED)[0]

    @cached_property
    def in_sight(self) -> Array:
        """The share of receipts whose timeout, before it was extended, reaches each bucket."""
        first = self.in_force - sum(self.by_arm(each, VISIBILITY).get(EXTENDED, 0.0) for each in ENDED)
        return np.asarray(np.cumsum(first[::-1])[::-1] / max(float(first.sum()), 1e-9))

    @property
    def receipts(self) -> float:
        """The number of receipts."""
        return float(self.in_force.sum())

    @property
    def receipts_held(self) -> float:
        """The number of receipts deleted in time."""
        return float(self.deleted.sum())

    @property
    def longest_s(self) -> float:
        """The longest timeout; 0 without receipts."""
        held = np.flatnonzero(self.in_force > 0)
        return float(EDGES_S[held[-1]]) if held.size else 0.0

    @property
    def usual_s(self) -> float:
        """The timeout of most receipts; 0 without receipts."""
        return float(MIDDLES_S[np.argmax(self.in_force)]) if self.receipts > 0 else 0.0

    def arms(self) -> Arms:
        """Return the arms; receipts whose timeout was extended belong to none."""
        kinds, arms, places = _parts(self.codes)
        numbers, index = np.unique(arms[arms != EXTENDED], return_inverse=True)
        counts, squares = self.counts[arms != EXTENDED], self.squares[arms != EXTENDED]
        kinds, places = kinds[arms != EXTENDED], places[arms != EXTENDED]

        def summed(values: Array, *outcomes: Outcome) -> Array:
            wanted = np.isin(kinds, [_KINDS.index((each.value, VISIBILITY)) for each in outcomes])
            return np.bincount(index[wanted], weights=values[wanted], minlength=numbers.size).astype(np.float64)

        receipts = summed(counts, *ENDED)
        late = summed(counts, Outcome.LATE_DELETED)
        known = receipts > 0
        divisor = np.maximum(receipts, 1e-9)
        return Arms(
            numbers=numbers[known],
            timeouts_s=(summed(counts * MIDDLES_S[places], *ENDED) / divisor)[known],
            receipts=receipts[known],
            late=np.minimum(late, summed(counts, Outcome.EXPIRED))[known],
            expired_only=np.maximum(summed(counts, Outcome.EXPIRED) - late, 0.0)[known],
            spread=(summed(squares, *ENDED) / divisor)[known],
        )


@dataclass(frozen=True, kw_only=True)
class KeyTally:
    """The first and later receipts of one routing key; those before the day ``since`` are excluded if work changed."""

    queue: str
    key: str
    first: Tally
    later: Tally = field(default_factory=Tally)
    since: str = ""

    @cached_property
    def all(self) -> Tally:
        """All receipts."""
        return self.first + self.later


def whole_of(keys: Iterable[KeyTally]) -> KeyTally:
    """Return the sum of all ``keys`` of a queue."""
    every = list(keys)
    return KeyTally(
        queue=every[0].queue if every else "",
        key="",
        first=total(each.first for each in every),
        later=total(each.later for each in every),
        since=max((each.since for each in every), default=""),
    )


def total(parts: Iterable[Tally]) -> Tally:
    """Return the sum of ``parts``."""
    every = [Tally(), *parts]
    merged = _merged(
        np.concatenate([each.codes for each in every]),
        np.concatenate([each.counts for each in every]),
        np.concatenate([each.squares for each in every]),
    )
    return Tally(**merged, extensions=sum(each.extensions for each in every))


def tallies(cells: Any, since: Mapping[tuple[str, str], str] | None = None) -> Iterator[KeyTally]:
    """Yield the tallies of each queue and key in ``cells``, a pandas frame of decayed cells, sorted."""
    ordered = cells.sort_values(["queue", "key"], kind="stable")
    for (queue, key), part in ordered.groupby(["queue", "key"], sort=False):
        first, later = tally(part[part["first"]]), tally(part[~part["first"]])
        yield KeyTally(queue=queue, key=key, first=first, later=later, since=(since or {}).get((queue, key), ""))


def tally(cells: Any) -> Tally:
    """Return the sum of ``cells``, a pandas frame."""
    kinds = np.array([_KINDS.index(pair) for pair in zip(cells["outcome"], cells["axis"], strict=True)], dtype=np.int64)
    codes = _code(
        kinds, cells["arm"].fillna(EXTENDED).to_numpy(dtype=np.int64), cells["bucket"].to_numpy(dtype=np.int64)
    )
    counts = cells["n"].to_numpy(dtype=np.float64)
    squares = cells["n2"].to_numpy(dtype=np.float64) if "n2" in cells else counts
    in_time = cells[(cells["outcome"] == Outcome.DELETED.value) & (cells["axis"] == HELD)]
    return Tally(**_merged(codes, counts, squares), extensions=float(in_time["extensions"].sum()))


def counted(outcome: Outcome, axis: str, arms: Any, buckets: Any, counts: Any) -> Tally:
    """Return a tally of one outcome on one axis, from columns of equal length."""
    kinds = np.full(len(buckets), _KINDS.index((outcome.value, axis)), dtype=np.int64)
    codes = _code(kinds, np.asarray(arms, dtype=np.int64), np.asarray(buckets, dtype=np.int64))
    each = np.asarray(counts, dtype=np.float64)
    return Tally(**_merged(codes, each, each))


def _code(kinds: Numbers, arms: Numbers, places: Numbers) -> Numbers:
    return (kinds * _ARMS + arms + 1) * BUCKETS + places


def _parts(codes: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    return codes // BUCKETS // _ARMS, codes // BUCKETS % _ARMS - 1, codes % BUCKETS


def _merged(codes: Numbers, counts: Array, squares: Array) -> dict[str, Any]:
    found, index = np.unique(codes, return_inverse=True)
    return {
        "codes": found,
        "counts": np.bincount(index, weights=counts, minlength=found.size).astype(np.float64),
        "squares": np.bincount(index, weights=squares, minlength=found.size).astype(np.float64),
    }

"""Cells: closed receipts counted into histograms on a logarithmic scale, which can only be added.

A cell is a queue, a routing key, a day, first or later receipt, an outcome, an arm and a bucket; ``n`` is its number
of receipts. Each receipt is counted twice, once for each ``axis``: by the time ``held``, and by its ``visibility``
timeout. Buckets are 2 % wide, ``floor(ln ms / ln 1.02)``, and arms are ranges of timeouts. So the number of cells has a
bound that does not depend on the number of receipts, and Spark shuffles only cells.

**A late delete corrects its expiry without a join.** Both are counted on the day of the deadline, and in the same
bucket of the axis of timeouts, so one is subtracted from the other: expired minus late is censored.

The driver holds the cells of a queue or routing key as ``ReceiptCounts``, which sums them into arrays over buckets.

``shifts`` finds the day since which the work of a routing key takes as long as it does now. Older days weigh less, but
after a change even their reduced weight biases the estimate. So the latest days are compared with the day before them,
repeatedly, by the octave in which receipts were deleted. If a day differs significantly and substantially, the work has
changed, and older receipts are excluded. Only receipts that end before the first timeouts of both days are compared,
because a new timeout changes how receipts end, but not the work.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from veilmq.core.receipts import Outcome

RATIO = 1.02
BUCKETS = 1060
"""The buckets cover more than fourteen days, the maximum retention of a message."""

ARM_BUCKETS = 8
"""An *arm* is a range of timeouts, 17 % wide."""

OCTAVE_BUCKETS = 35
"""An octave is a factor of about two."""

EXTENDED = -1
"""The arm of receipts whose timeout was extended: its final length depends on the work."""

HELD = "held"
VISIBILITY = "visibility"

DAY_MS = 86_400_000
HOUR_MS = 3_600_000

WEIGHT_MIN = 1e-6
"""A key whose receipts are all older has no estimate."""

SUMS = ("n", "extensions")
"""The columns of a cell that are added: receipts and extensions of their timeouts."""

DIMENSIONS = ("queue", "key", "day", "first", "outcome", "axis", "arm", "bucket")
_TIMELESS = [name for name in DIMENSIONS if name != "day"]


def cells(receipts: DataFrame) -> DataFrame:
    """Return the cells of ``receipts`` (``event_log.SCHEMA``): their ``DIMENSIONS`` and ``SUMS``."""
    late = fn.col("outcome") == Outcome.LATE_DELETED.value
    deadline_ms = fn.unix_millis("received_at") + fn.col("visibility_ms")
    counted_at_ms = fn.when(late, deadline_ms).otherwise(fn.unix_millis("closed_at"))
    entries = receipts.select(
        "queue",
        fn.coalesce("key", fn.lit("")).alias("key"),
        fn.date_from_unix_date(fn.floor(counted_at_ms / DAY_MS).cast("int")).alias("day"),  # UTC in every session
        (fn.col("receive_count") <= 1).alias("first"),
        "outcome",
        _bucket(fn.col("held_ms")).alias("held_bucket"),
        _bucket(fn.col("visibility_ms")).alias("visibility_bucket"),
        fn.when(fn.col("extensions") > 0, EXTENDED)
        .otherwise(fn.floor(_bucket(fn.col("visibility_ms")) / ARM_BUCKETS))
        .cast("int")
        .alias("arm"),
        fn.coalesce("extensions", fn.lit(0)).alias("its_extensions"),
    )
    shared = ["queue", "key", "day", "first", "outcome", "arm"]
    sides = [[*shared, "held_bucket"], [*shared, "visibility_bucket"]]
    counted = entries.groupingSets(sides, *shared, "held_bucket", "visibility_bucket").agg(
        fn.grouping("held_bucket").alias("by_visibility"),
        fn.count(fn.lit(1)).alias("n"),
        fn.sum("its_extensions").alias("extensions"),
    )
    return counted.select(
        *shared,
        fn.when(fn.col("by_visibility") == 1, VISIBILITY).otherwise(HELD).alias("axis"),
        fn.coalesce("held_bucket", "visibility_bucket").alias("bucket"),
        *SUMS,
    )


def waits(receipts: DataFrame) -> DataFrame:
    """Return the time from the sending to the first receive: ``queue``, ``hour`` (of the epoch), ``bucket``, ``n``.

    The hour is that of the receive. The highest bucket of an hour is the age of its oldest message.
    """
    received_ms = fn.unix_millis("received_at")
    return (
        receipts.where((fn.col("receive_count") <= 1) & (fn.col("outcome") != Outcome.LATE_DELETED.value))
        .select(
            "queue",
            fn.floor(received_ms / HOUR_MS).cast("int").alias("hour"),
            _bucket(received_ms - fn.unix_millis("sent_at")).alias("bucket"),
        )
        .groupBy("queue", "hour", "bucket")
        .agg(fn.count(fn.lit(1)).alias("n"))
    )


def merged(parts: DataFrame) -> DataFrame:
    """Return ``parts``, cells of any files, nodes and days, with equal cells added."""
    return parts.groupBy(*DIMENSIONS).agg(*(fn.sum(name).alias(name) for name in SUMS))


def decayed(parts: DataFrame, *, half_life_days: float, since: DataFrame | None = None) -> DataFrame:
    """Return cells without a ``day``, added with weights that halve every ``half_life_days`` before the latest day.

    ``n2`` is the sum of the squares of the weights. Days before that of a queue and key in ``since`` do not count, nor
    do days whose weight is below ``WEIGHT_MIN``.
    """
    if since is not None:
        known = parts.join(fn.broadcast(since), ["queue", "key"], "left")
        parts = known.where(fn.col("since").isNull() | (fn.col("day") >= fn.col("since"))).drop("since")
    latest = parts.agg(fn.max("day").alias("latest"))
    weight = fn.pow(fn.lit(0.5), fn.datediff("latest", "day") / half_life_days)
    weighted = parts.crossJoin(fn.broadcast(latest)).withColumn("weight", weight).where(fn.col("weight") >= WEIGHT_MIN)
    squares = fn.sum(fn.col("n") * fn.col("weight") ** 2).alias("n2")
    sums = [fn.sum(fn.col(name) * fn.col("weight")).alias(name) for name in SUMS]
    return weighted.groupBy(*_TIMELESS).agg(*sums, squares)


def days(parts: DataFrame) -> DataFrame:
    """Return the number of receipts ``n`` by ``queue``, ``day`` and ``outcome``."""
    held = parts.where(fn.col("axis") == HELD)
    return held.groupBy("queue", "day", "outcome").agg(fn.sum("n").alias("n")).orderBy("queue", "day", "outcome")


def _bucket(ms: Column) -> Column:
    bucket = fn.floor(fn.log(fn.greatest(ms, fn.lit(1))) / math.log(RATIO)).cast("int")
    return fn.least(bucket, fn.lit(BUCKETS - 1))


Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

EDGES_S: Array = np.power(RATIO, np.arange(1, BUCKETS + 1, dtype=np.float64)) / 1000.0
"""The upper edge of each bucket, in seconds."""

MIDDLES_S: Array = EDGES_S / RATIO**0.5
"""The (geometric) middle of each bucket, in seconds."""

RELEASED = (Outcome.NACKED, Outcome.DELETED_BY_EARLIER)
"""Outcomes that show only that the work takes longer than the time held."""

ENDED = (Outcome.DELETED, Outcome.EXPIRED, *RELEASED)
"""Each receipt has exactly one of these outcomes."""

_KINDS = {pair: number for number, pair in enumerate(product([each.value for each in Outcome], (HELD, VISIBILITY)))}
CELL = np.dtype([("kind", np.int64), ("arm", np.int64), ("bucket", np.int64), ("n", np.float64), ("n2", np.float64)])
"""A cell in memory: an outcome on an axis (``kind``), an arm, a bucket, and sums of weights and of squared weights."""


def bucket_of(time_s: float) -> int:
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


def _by_bucket(axis: str, *outcomes: Outcome) -> "cached_property[Array]":
    return cached_property(lambda counts: counts.by_bucket(axis, *outcomes)[0])


@dataclass(frozen=True)
class ReceiptCounts:
    """Receipts in cells (``CELL``); ``extensions`` counts those of receipts deleted in time."""

    cells: npt.NDArray[Any] = field(default_factory=lambda: np.zeros(0, CELL))
    extensions: float = 0.0

    def __add__(self, other: "ReceiptCounts") -> "ReceiptCounts":
        return total([self, other])

    def by_bucket(self, axis: str, *outcomes: Outcome) -> tuple[Array, Array]:
        """Return the counts and the sums of squared weights of ``outcomes`` on ``axis``, by bucket."""
        found = _of(self.cells, axis, outcomes)
        return _sums(found, "n"), _sums(found, "n2")

    def by_arm(self, outcome: Outcome, axis: str = HELD) -> dict[int, Array]:
        """Return the receipts of ``outcome`` on ``axis`` by bucket, for each arm."""
        found = _of(self.cells, axis, [outcome])
        return {int(arm): _sums(found[found["arm"] == arm], "n") for arm in np.unique(found["arm"])}

    deleted = _by_bucket(HELD, Outcome.DELETED)
    """Receipts deleted in time, by the time held."""
    late = _by_bucket(HELD, Outcome.LATE_DELETED)
    """Receipts deleted late, by the time held."""
    nacked = _by_bucket(HELD, *RELEASED)
    """Receipts released, or whose message an earlier receipt deleted, by the time held."""
    expired = _by_bucket(VISIBILITY, Outcome.EXPIRED)
    """Expired receipts by timeout, including those deleted late."""
    in_force = _by_bucket(VISIBILITY, *ENDED)
    """All receipts, by timeout."""

    @cached_property
    def expired_only(self) -> Array:
        """Expired receipts that were never deleted, by timeout."""
        return np.maximum(self.expired - self.by_bucket(VISIBILITY, Outcome.LATE_DELETED)[0], 0.0)

    @cached_property
    def in_sight(self) -> Array:
        """The share of receipts whose timeout, before it was extended, reaches each bucket."""
        first = self.in_force - sum(self.by_arm(each, VISIBILITY).get(EXTENDED, 0.0) for each in ENDED)
        return np.asarray(np.cumsum(first[::-1])[::-1] / max(float(first.sum()), 1e-9))

    @property
    def receipts(self) -> float:
        return float(self.in_force.sum())

    @property
    def longest_s(self) -> float:
        """The longest timeout; 0 without receipts."""
        held = np.flatnonzero(self.in_force > 0)
        return float(EDGES_S[held[-1]]) if held.size else 0.0

    @property
    def usual_s(self) -> float:
        """The timeout of most receipts; 0 without receipts."""
        return float(MIDDLES_S[np.argmax(self.in_force)]) if self.receipts > 0 else 0.0

    @cached_property
    def arms(self) -> Arms:
        """The arms; receipts whose timeout was extended belong to none."""
        plain = self.cells[self.cells["arm"] != EXTENDED]
        numbers = np.unique(plain["arm"])

        def summed(column: str, *outcomes: Outcome, times: Array | None = None) -> Array:
            found = _of(plain, VISIBILITY, outcomes)
            weights = found[column] if times is None else found[column] * times[found["bucket"]]
            return np.bincount(np.searchsorted(numbers, found["arm"]), weights, numbers.size).astype(np.float64)

        receipts = summed("n", *ENDED)
        late = summed("n", Outcome.LATE_DELETED)
        known = receipts > 0
        divisor = np.maximum(receipts, 1e-9)
        return Arms(
            numbers=numbers[known],
            timeouts_s=(summed("n", *ENDED, times=MIDDLES_S) / divisor)[known],
            receipts=receipts[known],
            late=np.minimum(late, summed("n", Outcome.EXPIRED))[known],
            expired_only=np.maximum(summed("n", Outcome.EXPIRED) - late, 0.0)[known],
            spread=(summed("n2", *ENDED) / divisor)[known],
        )


@dataclass(frozen=True, kw_only=True)
class KeyCounts:
    """The first and later receipts of one routing key; those before the day ``since`` are excluded if work changed."""

    queue: str
    key: str
    first: ReceiptCounts
    later: ReceiptCounts = field(default_factory=ReceiptCounts)
    since: str = ""

    @cached_property
    def all(self) -> ReceiptCounts:
        return self.first + self.later


def whole_of(keys: Sequence[KeyCounts]) -> KeyCounts:
    """Return the sum of all ``keys`` of a queue."""
    return KeyCounts(
        queue=keys[0].queue if keys else "",
        key="",
        first=total(each.first for each in keys),
        later=total(each.later for each in keys),
        since=max((each.since for each in keys), default=""),
    )


def total(parts: Iterable[ReceiptCounts]) -> ReceiptCounts:
    """Return the sum of ``parts``."""
    every = [ReceiptCounts(), *parts]
    return ReceiptCounts(np.concatenate([each.cells for each in every]), sum(each.extensions for each in every))


def counts_by_key(cells: Any, since: Mapping[tuple[str, str], str] | None = None) -> Iterator[KeyCounts]:
    """Yield the counts of each queue and key in ``cells``, a pandas frame of decayed cells, sorted."""
    ordered = cells.sort_values(_TIMELESS)  # so that sums of equal cells are equal to the last bit
    for (queue, key), part in ordered.groupby(["queue", "key"], sort=False):
        first, later = counts_of(part[part["first"]]), counts_of(part[~part["first"]])
        yield KeyCounts(queue=queue, key=key, first=first, later=later, since=(since or {}).get((queue, key), ""))


def counts_of(cells: Any) -> ReceiptCounts:
    """Return the sum of ``cells``, a pandas frame; outcomes of a later version do not count."""
    array = np.zeros(len(cells), CELL)
    array["kind"] = [_KINDS.get(pair, -1) for pair in zip(cells["outcome"], cells["axis"], strict=True)]
    for name in ("arm", "bucket"):
        array[name] = cells[name].fillna(EXTENDED)
    array["n"] = cells["n"]
    array["n2"] = cells["n2" if "n2" in cells else "n"]
    in_time = cells[(cells["outcome"] == Outcome.DELETED.value) & (cells["axis"] == HELD)]
    return ReceiptCounts(array, float(in_time["extensions"].sum()))


def counted(outcome: Outcome, axis: str, arms: Any, buckets: Any, counts: Any) -> ReceiptCounts:
    """Return the counts of one outcome on one axis, from columns of equal length."""
    array = np.zeros(len(buckets), CELL)
    array["kind"] = _KINDS[outcome.value, axis]
    array["arm"], array["bucket"], array["n"], array["n2"] = arms, buckets, counts, counts
    return ReceiptCounts(array)


def _of(cells: npt.NDArray[Any], axis: str, outcomes: Iterable[Outcome]) -> npt.NDArray[Any]:
    return np.asarray(cells[np.isin(cells["kind"], [_KINDS[each.value, axis] for each in outcomes])])


def _sums(cells: npt.NDArray[Any], column: str) -> Array:
    return np.bincount(cells["bucket"], weights=cells[column], minlength=BUCKETS).astype(np.float64)


RECEIPTS_MIN = 200.0
"""Days with fewer receipts are not compared."""

DISTANCE_MIN = 0.05
"""Days differ if their chi-square distance exceeds this, the distance of log-normal work that takes 20 % longer."""

EXPIRED_MIN = 0.005
"""Octaves are compared up to the one by which this share of a day's receipts has expired."""

_SIGMAS = 4.0
_OCTAVES = BUCKETS // OCTAVE_BUCKETS + 1


def shifts(cells: DataFrame) -> dict[tuple[str, str], str]:
    """Return the day of the last change, by queue and key, for those whose work has changed before today."""
    whole_days = fn.col("day") < fn.current_date()  # in its first hours, a day may have only the work of the night
    first = cells.where((fn.col("axis") == HELD) & fn.col("first") & whole_days)
    octave = fn.floor(fn.col("bucket") / OCTAVE_BUCKETS).cast("int").alias("octave")
    days: Any = first.groupBy("queue", "key", "day", "outcome", octave).agg(fn.sum("n").alias("n")).toPandas()
    found: dict[tuple[str, str], str] = {}
    receipts = days[days["outcome"].isin([each.value for each in ENDED])]
    for name, part in receipts.groupby(["queue", "key"], sort=False):
        dates = np.unique(part["day"])
        table = np.zeros((len(dates), 3, _OCTAVES))  # of each day the deleted, expired and other receipts by octave
        outcomes = [part["outcome"] == Outcome.DELETED.value, part["outcome"] == Outcome.EXPIRED.value]
        kinds = np.select(outcomes, [0, 1], 2)
        np.add.at(table, (np.searchsorted(dates, part["day"]), kinds, part["octave"]), part["n"])
        recent = np.zeros_like(table[0])
        for number in range(len(dates) - 1, -1, -1):
            if _differ(np.stack([recent, table[number]])):
                found[name] = str(dates[number + 1])
                break
            recent = recent + table[number]
    return found


def _differ(both: Array) -> bool:
    totals = both.sum(axis=(1, 2))
    if totals.min() < RECEIPTS_MIN:
        return False
    seen = (both[:, 1].cumsum(axis=1) <= EXPIRED_MIN * totals[:, None]).all(axis=0)
    deleted = both[:, 0, seen]
    expected = totals[:, None] * deleted.sum(axis=0) / totals.sum()
    large = expected.min(axis=0) >= 5.0
    observed = np.column_stack([deleted[:, large], totals - deleted[:, large].sum(axis=1)])
    expected = np.column_stack([expected[:, large], totals - expected[:, large].sum(axis=1)])
    excess = float(((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()) - large.sum()
    number = totals.prod() / totals.sum()
    return bool(excess > _SIGMAS * np.sqrt(2.0 * max(large.sum(), 1)) and excess / number > DISTANCE_MIN)

"""Random work of known distributions, and the counts of a simulated queue that `tune` would count.

A case is a kind of work or a mixture of kinds; its receipts are deleted in time or late, expire because the consumer
crashed or gave up, are released or renewed. Everything is drawn from a seed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from veilmq.core.receipts import Outcome
from veilmq.pipeline.cells import (
    ARM_BUCKETS,
    BUCKETS,
    EDGES_S,
    EXTENDED,
    HELD,
    RATIO,
    VISIBILITY,
    Array,
    Numbers,
    ReceiptCounts,
    counted,
    total,
)
from veilmq.pipeline.cost import Load, candidates_s, costs
from veilmq.pipeline.options import Prices
from veilmq.pipeline.survival import Tail

RECEIVES_MAX = 5
PRICES = Prices()
Generator = np.random.Generator

_ERFC = np.vectorize(math.erfc, otypes=[np.float64])


def cost(load: Load, timeout_s: float, *, prices: Prices, then_s: Sequence[float] = ()) -> float:
    return float(costs(load, np.array([timeout_s], dtype=float), prices=prices, then_s=then_s)[0])


def cost_of_classes(
    loads: Sequence[Load], members: Sequence[int], timeouts_s: Sequence[float], *, prices: Prices
) -> float:
    """Return the cost of `loads` if each starts in its class in `members`, and an expiry moves it to the next."""
    return sum(
        cost(load, timeouts_s[number], prices=prices, then_s=timeouts_s[number + 1 :])
        for load, number in zip(loads, members, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """A distribution of working times: P(T > t), and random draws of T."""

    name: str
    beyond: Callable[[Array], Array]
    draw: Callable[[Generator, int], Array]

    def scaled(self, factor: float) -> "Shape":
        return Shape(self.name, lambda t: self.beyond(t / factor), lambda rng, count: self.draw(rng, count) * factor)


def lognormal(median_s: float, sigma: float) -> Shape:
    return Shape(
        "log-normal",
        lambda t: 0.5 * _ERFC(np.log(np.maximum(t, 1e-12) / median_s) / sigma / math.sqrt(2.0)),
        lambda rng, count: median_s * np.exp(sigma * rng.standard_normal(count)),
    )


def weibull(scale_s: float, shape: float) -> Shape:
    return Shape(
        "exponential" if shape == 1.0 else "Weibull",
        lambda t: np.exp(-((t / scale_s) ** shape)),
        lambda rng, count: scale_s * rng.weibull(shape, count),
    )


def gamma(mean_s: float, shape: int) -> Shape:
    def beyond(t: Array) -> Array:
        x = t * shape / mean_s
        return np.minimum(np.exp(-x) * sum(x**k / math.factorial(k) for k in range(shape)), 1.0)

    return Shape("gamma", beyond, lambda rng, count: rng.gamma(shape, mean_s / shape, count))


def pareto(least_s: float, exponent: float) -> Shape:
    return Shape(
        "Pareto",
        lambda t: np.maximum(t / least_s, 1.0) ** -exponent,
        lambda rng, count: least_s * (1.0 + rng.pareto(exponent, count)),
    )


def lomax(scale_s: float, exponent: float) -> Shape:
    return Shape(
        "generalised Pareto",
        lambda t: (1.0 + t / scale_s) ** -exponent,
        lambda rng, count: scale_s * rng.pareto(exponent, count),
    )


def uniform(low_s: float, high_s: float) -> Shape:
    return Shape(
        "uniform",
        lambda t: np.clip((high_s - t) / (high_s - low_s), 0.0, 1.0),
        lambda rng, count: rng.uniform(low_s, high_s, count),
    )


def loglogistic(median_s: float, shape: float) -> Shape:
    return Shape(
        "log-logistic",
        lambda t: 1.0 / (1.0 + (t / median_s) ** shape),
        lambda rng, count: median_s * np.exp(rng.logistic(0.0, 1.0 / shape, count)),
    )


def steady(time_s: float, jitter: float) -> Shape:
    """Return work that nearly always takes the same time: a normal distribution."""
    return Shape(
        "steady",
        lambda t: 0.5 * _ERFC((t / time_s - 1.0) / jitter / math.sqrt(2.0)),
        lambda rng, count: time_s * np.maximum(1.0 + jitter * rng.standard_normal(count), 0.01),
    )


def mixture(name: str, *parts: tuple[float, Shape]) -> Shape:
    shares = np.array([share for share, _ in parts])

    def draw(rng: Generator, count: int) -> Array:
        kinds = rng.choice(len(parts), size=count, p=shares / shares.sum())
        drawn = np.stack([shape.draw(rng, count) for _, shape in parts])
        return drawn[kinds, np.arange(count)]

    return Shape(name, lambda t: sum(share * shape.beyond(t) for share, shape in parts) / shares.sum(), draw)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the receipts (the night, say): its share, the factor of its times, and timeouts with their shares."""

    share: float
    longer: float
    timeouts: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Case:
    """One kind of work on one queue; ``late`` is the share of late consumers that still finish and delete."""

    work: Shape
    crash: float
    late: float
    parts: tuple[Part, ...]
    receipts: int
    released: float = 0.0
    renewal_s: float = 0.0
    label: str = ""

    @property
    def name(self) -> str:
        arms = "/".join(f"{timeout:g}" for timeout, _ in self.parts[0].timeouts)
        habit = "all late" if self.late == 1.0 else "give up" if self.late == 0.0 else f"{self.late:.2f} late"
        marks = [f"renewed {self.renewal_s:g}"] * (self.renewal_s > 0) + ["shift"] * (len(self.parts) > 1)
        marks += [self.label] * bool(self.label)
        return (
            f"{self.work.name}, {habit}, c{100 * self.crash:g}, V {arms}, n {self.receipts} {' '.join(marks)}".strip()
        )

    @cached_property
    def survival(self) -> Array:
        whole = sum(part.share * self.work.beyond(EDGES_S / part.longer) for part in self.parts)
        return np.asarray(whole / sum(part.share for part in self.parts))

    @cached_property
    def load(self) -> Load:
        left = self.survival
        between = np.concatenate([[1.0], left])
        lengths = np.diff(np.concatenate([[0.0], EDGES_S]))
        areas = 0.5 * (between[1:] + between[:-1]) * lengths
        beyond = np.concatenate([np.cumsum(areas[::-1])[::-1][1:], [0.0]])
        return Load(tail=Tail(left, EDGES_S * left + beyond), crash_rate=self.crash, receives_max=RECEIVES_MAX)

    def quantile_s(self, p: float) -> float:
        low, high = 1e-4, 1.3e6
        whole = sum(part.share for part in self.parts)
        for _ in range(80):
            middle = math.sqrt(low * high)
            each = [part.share * float(self.work.beyond(np.array([middle / part.longer]))[0]) for part in self.parts]
            left = sum(each) / whole
            low, high = (middle, high) if left > 1.0 - p else (low, middle)
        return low

    def cost(self, timeout_s: float, *, renewals: float = 2.7) -> float:
        """Return the true cost of a timeout for each message; with room for ``renewals``, no work exceeds it.

        A timeout should have room for three; the measurement may be off by a tenth.
        """
        timeout_s = float(min(max(timeout_s, 1.0), 43_200.0))
        if self.renewal_s and timeout_s >= renewals * self.renewal_s:
            return PRICES.wait * self.crash * timeout_s
        return cost(self.load, timeout_s, prices=PRICES)

    @cached_property
    def best(self) -> tuple[float, float]:
        every = [(self.cost(each, renewals=3.0), float(each)) for each in candidates_s()]
        price, timeout_s = min(every)
        return timeout_s, price

    def simulated(self, rng: Generator) -> "Simulated":
        first: list[ReceiptCounts] = []
        later: list[ReceiptCounts] = []
        deleted: list[Array] = []
        for part in self.parts:
            count = round(self.receipts * part.share / sum(each.share for each in self.parts))
            took = self.work.draw(rng, count) * part.longer
            for number in range(RECEIVES_MAX):
                seen, in_time = self._received(rng, part, took)
                (later if number else first).append(seen)
                deleted.append(took[in_time] if not number else took[:0])
                took = took[~in_time]
        return Simulated(total(first), total(later), np.concatenate(deleted))

    def _received(self, rng: Generator, part: Part, took: Array) -> tuple[ReceiptCounts, npt.NDArray[np.bool_]]:
        """Return the receipts of one receive of each message, and which were deleted in time."""
        count = took.size
        limits = np.array([timeout for timeout, _ in part.timeouts])
        shares = np.array([share for _, share in part.timeouts])
        given = rng.choice(limits, size=count, p=shares / shares.sum())
        crashed = rng.random(count) < self.crash
        extensions = np.zeros(count, dtype=np.int64)
        if self.renewal_s:
            worked = np.where(crashed, rng.random(count) * took, took)
            extensions = np.floor(worked / self.renewal_s).astype(np.int64)
            given = np.where(extensions > 0, extensions * self.renewal_s + given, given)
        left_at = rng.random(count) * took
        nacked = (rng.random(count) < self.released) & ~crashed & (left_at < given)
        deleted = ~crashed & ~nacked & (took <= given)
        over = ~deleted & ~nacked
        ended_late = over & ~crashed & (rng.random(count) < self.late)
        seen = counts_of(took, given, left_at, extensions, deleted=deleted, nacked=nacked, over=over, late=ended_late)
        return seen, deleted


@dataclass(frozen=True, slots=True)
class Simulated:
    """The counts of first and later receipts, and the durations of work that the first ones ended in time."""

    first: ReceiptCounts
    later: ReceiptCounts
    deleted_s: Array

    @property
    def naive_s(self) -> float:
        """The p99 of what was deleted in time."""
        return float(np.quantile(self.deleted_s, 0.99)) if self.deleted_s.size else 1.0


def counts_of(
    took: Array, given: Array, left_at: Array, extensions: Numbers, **chosen: npt.NDArray[np.bool_]
) -> ReceiptCounts:
    held_at, arms_at = buckets(took), np.where(extensions > 0, EXTENDED, buckets(given) // ARM_BUCKETS)
    given_at, left = buckets(given), buckets(left_at)
    deleted, nacked, over, late = (chosen[name] for name in ("deleted", "nacked", "over", "late"))
    sides = [
        (Outcome.DELETED, HELD, deleted, held_at), (Outcome.DELETED, VISIBILITY, deleted, given_at),
        (Outcome.NACKED, HELD, nacked, left), (Outcome.NACKED, VISIBILITY, nacked, given_at),
        (Outcome.EXPIRED, HELD, over, given_at), (Outcome.EXPIRED, VISIBILITY, over, given_at),
        (Outcome.LATE_DELETED, HELD, late, held_at), (Outcome.LATE_DELETED, VISIBILITY, late, given_at),
    ]  # fmt: skip
    made = total(
        counted(outcome, axis, arms_at[mask], places[mask], np.ones(int(mask.sum())))
        for outcome, axis, mask, places in sides
    )
    return replace(made, extensions=float(extensions[deleted].sum()))


def buckets(times_s: Array) -> Numbers:
    """Return the bucket of each time, in whole milliseconds as in the log."""
    ms = np.maximum(np.ceil(times_s * 1000.0), 1.0)
    return np.clip(np.floor(np.log(ms) / math.log(RATIO) + 1e-9), 0, BUCKETS - 1).astype(np.int64)


def even(*timeouts: float) -> tuple[Part, ...]:
    return (Part(1.0, 1.0, tuple((each, 1.0) for each in timeouts)),)


def shape_drawn(rng: Generator) -> Shape:
    """Return one of twelve random shapes: from tenths of a second to a minute, usually seconds."""
    length = float(np.exp(rng.normal(math.log(4.0), 1.1)))
    return SHAPES[int(rng.integers(len(SHAPES)))](rng, length)


SHAPES: Sequence[Callable[[Generator, float], Shape]] = (
    lambda rng, length: lognormal(length, rng.uniform(0.3, 1.2)),
    lambda rng, length: weibull(length, rng.uniform(0.6, 2.5)),
    lambda rng, length: weibull(length, 1.0),
    lambda rng, length: gamma(length, int(rng.integers(2, 7))),
    lambda rng, length: pareto(length / 2.0, rng.uniform(1.6, 3.0)),
    lambda rng, length: lomax(length * 2.0, rng.uniform(2.2, 5.0)),
    lambda rng, length: uniform(length * rng.uniform(0.1, 0.8), length * 2.0),
    lambda rng, length: loglogistic(length, rng.uniform(2.2, 5.0)),
    lambda rng, length: steady(length, rng.uniform(0.02, 0.2)),
    lambda rng, length: lognormal(min(length, 4.0) * 0.05, rng.uniform(0.3, 0.9)),
    lambda rng, length: mixture(
        "bimodal", (0.9, lognormal(length / 2.0, 0.4)), (0.1, lognormal(length * rng.uniform(5.0, 20.0), 0.4))
    ),
    lambda rng, length: mixture(
        "three kinds",
        (0.5, lognormal(length / 5.0, 0.5)),
        (0.35, gamma(length, 3)),
        (0.15, lognormal(length * 6.0, 0.5)),
    ),
)


def case_drawn(rng: Generator) -> Case:
    """Return a random case: shape, crashes, timeouts, behaviour of late consumers, renewals and shifts."""
    work = shape_drawn(rng)
    length = Case(work, 0.0, 1.0, even(30.0), 1).quantile_s(0.9)
    late = float(rng.choice([1.0, 0.0, rng.uniform(0.3, 0.95)], p=[0.4, 0.3, 0.3]))
    first = max(1.0, round(length * float(np.exp(rng.uniform(-0.7, 1.8)))))
    arms = [(first, 1.0)] + [
        (round(first * factor), float(rng.choice([0.1, 1.0]))) for factor in (3.0, 8.0)[: int(rng.integers(0, 3))]
    ]
    parts: tuple[Part, ...] = (Part(1.0, 1.0, tuple(arms)),)
    if rng.random() < 0.12 and len(arms) > 1:
        parts = (Part(0.67, 1.0, tuple(arms[:1])), Part(0.33, rng.uniform(1.5, 4.0), tuple(arms[1:])))
    renewal_s = float(round(first / 3.0)) if rng.random() < 0.1 and first >= 15 else 0.0
    return Case(
        work=work,
        crash=float(rng.choice([0.0, 0.003, 0.01, 0.03, 0.05, 0.12])),
        late=late,
        parts=parts,
        receipts=int(np.exp(rng.uniform(math.log(8_000), math.log(80_000)))),
        released=float(rng.choice([0.0, 0.0, 0.02])),
        renewal_s=renewal_s,
    )


def named_cases() -> list[Case]:
    """Return cases in which earlier rules failed, and similar ones."""
    slow = mixture("bimodal", (0.9, lognormal(2.0, 0.5)), (0.1, lognormal(250.0, 0.45)))
    rows = [
        (slow, 1.0, 0.05), (slow, 0.5, 0.05), (slow, 0.0, 0.05),
        (pareto(2.0, 1.8), 1.0, 0.05), (pareto(2.0, 1.8), 0.0, 0.05), (pareto(2.0, 1.8), 0.0, 0.0),
        (gamma(10.0, 3), 1.0, 0.05), (gamma(10.0, 3), 0.0, 0.05),
        (lognormal(2.0, 0.774), 1.0, 0.12), (lognormal(2.0, 0.774), 0.0, 0.12), (lognormal(2.0, 0.774), 0.5, 0.003),
        (uniform(5.0, 25.0), 0.0, 0.05), (uniform(5.0, 25.0), 1.0, 0.05),
    ]  # fmt: skip
    cases = [Case(work, crash, late, even(10.0, 30.0, 60.0), 60_000) for work, late, crash in rows]
    day, night = Part(2.0, 1.0, ((10.0, 1.0), (30.0, 1.0))), Part(1.0, 4.0, ((30.0, 1.0), (60.0, 1.0)))
    cases += [Case(lognormal(3.0, 0.7), 0.05, late, (day, night), 60_000) for late in (1.0, 0.5, 0.0)]
    rare = mixture("one in twenty slow", (0.95, lognormal(1.0, 0.5)), (0.05, lognormal(100.0, 0.35)))
    few = [Part(1.0, 1.0, ((10.0, 60_000.0 - each), (600.0, float(each)))) for each in (1, 5, 25)]
    return cases + [Case(rare, 0.003, 0.0, (part,), 60_000, label="few with 600 s") for part in few]


TYPES = 40
RARE = (4, 14, 24)
RARE_MESSAGES = 200
EXPLORED = (17, 20)
GIVING_UP = (9, 27)


def type_of_work(number: int, receipts: int = 1) -> Case:
    """Return one of forty types of log-normal work, with medians from 0.2 s to five minutes, which rarely crashes.

    Most receives have 30 s, and one in a hundred each 120 s and 480 s; of an explored type, one in ten. Consumers of
    explored types give up at the deadline, and so do those of two types that are never explored.
    """
    longer = 0.1 if number in EXPLORED else 0.0 if number in GIVING_UP else 0.01
    timeouts = ((30.0, 1.0 - 2 * longer), (120.0, longer), (480.0, longer))
    return Case(
        work=lognormal(0.2 * math.exp(0.188 * number), 0.8),
        crash=0.003,
        late=0.0 if number in EXPLORED + GIVING_UP else 1.0,
        parts=(Part(1.0, 1.0, timeouts if longer else timeouts[:1]),),
        receipts=receipts,
        label=f"type {number:02}",
    )


def types_of_work(messages: int) -> list[Case]:
    """Return the forty types; explored ones have three times as many messages as others, and rare ones only few."""
    each = messages // (TYPES - len(RARE) + 2 * len(EXPLORED))
    counts = dict.fromkeys(RARE, RARE_MESSAGES) | dict.fromkeys(EXPLORED, 3 * each)
    return [type_of_work(number, counts.get(number, each)) for number in range(TYPES)]

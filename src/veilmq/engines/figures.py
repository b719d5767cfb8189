"""What a store tells of itself beside its answers: numbers by name, for whoever watches the server."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

LATENCY_BOUNDS_S = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
"""Upper bounds of the buckets, in seconds; long polls are why there are long ones."""


class Series:
    """Durations: ``buckets`` by length, the last one without a bound, and their sum."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        """Begin with none."""
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Series":
        """Return the same durations, which stay as they are."""
        copied = Series()
        copied.buckets, copied.seconds = self.buckets.copy(), self.seconds
        return copied

    @property
    def count(self) -> int:
        """Return how many there were."""
        return sum(self.buckets)


class Figure(NamedTuple):
    """One number, or one for each value of ``label``; ``samples`` has it by that value, ``""`` without a label."""

    name: str
    text: str
    kind: Literal["gauge", "counter", "durations"]
    samples: Mapping[str, float | Series]
    label: str = ""


def by_database(told: Iterable[tuple[int, Iterable[Figure]]]) -> list[Figure]:
    """Return the figures of several databases as one: by the number of each, or, where they have a label, together.

    ``told`` has the place of each, from 0.
    """
    merged: dict[str, Figure] = {}
    for place, figures in told:
        for figure in figures:
            label = figure.label or "database"
            samples = dict(merged[figure.name].samples) if figure.name in merged else {}
            for value, sample in figure.samples.items():
                key = value if figure.label else str(place + 1)
                samples[key] = _sum(samples[key], sample) if key in samples else sample
            merged[figure.name] = figure._replace(samples=samples, label=label)
    return list(merged.values())


def _sum(one: float | Series, other: float | Series) -> float | Series:
    if isinstance(one, Series) and isinstance(other, Series):
        both = one.copy()
        both.buckets = [sum(pair) for pair in zip(one.buckets, other.buckets, strict=True)]
        both.seconds += other.seconds
        return both
    assert not isinstance(one, Series), "figures of one name are of one kind"
    assert not isinstance(other, Series), "figures of one name are of one kind"
    return one + other


def gauge(name: str, text: str, value: float) -> Figure:
    """Return a number that goes up and down."""
    return Figure(name, text, "gauge", {"": value})


def counter(name: str, text: str, value: float) -> Figure:
    """Return a number that only goes up."""
    return Figure(name, text, "counter", {"": value})

"""The work of the demonstration: four kinds with durations so far apart that no single timeout suits them."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of work: log-normal durations around ``median_s``, and its share of all messages."""

    name: str
    median_s: float
    share: float


SIGMA = 0.5

KINDS = (
    Kind(name="thumbnail", median_s=0.04, share=0.40),
    Kind(name="invoice", median_s=0.16, share=0.30),
    Kind(name="video", median_s=0.6, share=0.18),
    Kind(name="forecast", median_s=1.6, share=0.12),
)

ATTRIBUTE = "Type"
"""The message attribute that says what kind of work a message is."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a message: its number, its kind, and how long the work takes, the same at each attempt."""

    number: int
    kind: str
    seconds: float


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the message that a worker sends when it has finished: the work and the attempt."""

    number: int
    kind: str
    attempt: int
    worker: int


def work(messages: int, *, seed: int, first: int = 0) -> Iterator[Work]:
    """Yield so many pieces of work, drawn from ``seed``, numbered from ``first`` on."""
    chance = random.Random(seed)
    shares = [kind.share for kind in KINDS]
    for number, kind in enumerate(chance.choices(KINDS, shares, k=messages), start=first):
        seconds = chance.lognormvariate(math.log(kind.median_s), SIGMA)
        yield Work(number=number, kind=kind.name, seconds=round(seconds, 3))


def mean_s() -> float:
    """Return how long a piece of work takes on average."""
    return sum(kind.share * kind.median_s * math.exp(SIGMA**2 / 2) for kind in KINDS)

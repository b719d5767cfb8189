"""What a server needs from an open store: commands, readiness, warnings and metrics.

A server depends on nothing else of a store; only ``server/stores.py`` has the kinds of stores, and opens one.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import eq
from typing import Any, Literal, NamedTuple, Protocol

from veilmq.core.commands import Clock, Command, Engine
from veilmq.core.errors import VeilmqError

FAILED = "The store has failed; the process is about to end, and recovers when it is started again."
FULL = "The store is full: sends are refused until disk space is freed or queues are drained."
UNREACHABLE = "The database cannot be reached; the server continues when it is back."
STANDBY = "The database is a standby or read-only; the server continues when it accepts writes."
NOTHING_HELD_BACK = "The clock is trusted: nothing is held back."

# Upper bounds of the histogram buckets, in seconds; the long ones are for long polls.
LATENCY_BOUNDS_S = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)


class StoreError(Exception):
    """The store cannot be opened; the text gives the reason and the remedy."""


async def execute(engine: Engine, command: Command) -> Any:
    """Submit ``command`` and wait for its result; raises its ``VeilmqError``. Not for the hot path."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(result: object) -> None:
        if future.cancelled():
            return
        if isinstance(result, VeilmqError):
            future.set_exception(result)
        else:
            future.set_result(result)

    engine.submit(command, done)
    try:
        return await future
    finally:
        if future.cancelled():
            engine.withdraw(partial(eq, done))


@dataclass(slots=True, eq=False)
class Histogram:
    """Durations: ``buckets`` counts by ``LATENCY_BOUNDS_S`` with a last one without bound; ``seconds`` is their sum."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Histogram":
        return self + Histogram()

    def __add__(self, other: "Histogram") -> "Histogram":
        buckets = [sum(pair) for pair in zip(self.buckets, other.buckets, strict=True)]
        return Histogram(buckets, self.seconds + other.seconds)

    @property
    def count(self) -> int:
        return sum(self.buckets)


class Metric(NamedTuple):
    """A metric with one sample per value of ``label``; without a label, the key of its only sample is ``""``."""

    name: str
    text: str
    kind: Literal["gauge", "counter", "durations"]
    samples: Mapping[str, float | Histogram]
    label: str = ""


def gauge(name: str, text: str, value: float) -> Metric:
    return Metric(name, text, "gauge", {"": value})


def counter(name: str, text: str, value: float) -> Metric:
    return Metric(name, text, "counter", {"": value})


class Finding(NamedTuple):
    """The result of one check of the doctor: ``detail`` lists where it fails."""

    check: str
    ok: bool
    detail: str


def findings(details: Mapping[str, str]) -> list[Finding]:
    """Return the finding of each check; an empty detail means that it holds."""
    return [Finding(check, ok=not detail, detail=detail) for check, detail in details.items()]


class Report(NamedTuple):
    """The findings of the doctor, and facts about the store by name (numbers of queues, messages, …)."""

    findings: list[Finding]
    facts: dict[str, str | int]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)


class Survey(NamedTuple):
    """The full names of some queues, in order, and the number of all queues.

    ``claims``, of queues with sources, are the number of active claims, their messages, and their first bind time or
    ``None``; ``staged``, of queues with writers, is the number of staged messages.
    """

    names: list[str]
    in_all: int
    claims: MutableMapping[str, Sequence[Any]]
    staged: MutableMapping[str, int]


class SurveyQueues(Command, frozen=True, kw_only=True):
    """Return a ``Survey`` with the first ``names_max`` queues of all accounts."""

    names_max: int


class CountQueues(Command, frozen=True, kw_only=True):
    """Return a ``QueueView`` with counts for each of the queues with the full ``names`` that exists."""

    names: Sequence[str]


class Store(Engine, Protocol):
    """An open engine, and what its server needs beyond commands."""

    clock: Clock  # decides what is due

    @property
    def location(self) -> str:
        """Return where messages are kept, as words that follow "messages are kept"; without secrets."""

    async def readiness_failures(self) -> list[str]:
        """Return why the server should not receive requests; empty if it should."""

    def warnings(self) -> Sequence[str]:
        """Return problems that do not prevent service, as sentences with a remedy."""

    async def trust_clock(self) -> str:
        """Trust the clock on an operator's request; return the effect as a sentence. Raises ``VeilmqError``."""

    def metrics(self) -> Sequence[Metric]:
        """Return the metrics of the store."""

    async def load_or_create(self, name: str, create: Callable[[], bytes]) -> bytes:
        """Return the content of the file ``name`` that all servers share. Raises ``StoreError`` or ``VeilmqError``."""

    async def drain(self) -> None:
        """Return when all submitted commands, and those that follow from them, are finished."""

    async def close(self) -> None:
        """Finish submitted commands, refuse new ones, and release the store."""

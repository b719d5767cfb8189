"""What a server needs of an open store: commands, what is wrong with it, its figures.

This is all that a server knows of where its messages are kept; the one place that knows which kinds of store there are
opens one (``server/stores.py``).
"""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from veilmq.core.commands import Clock, Command, Engine
from veilmq.core.errors import VeilmqError

FAILED = "The store has failed; the process is about to end, and recovers when it is started again."
FULL = "The store is full: sends are refused until disk space is freed or queues are drained."
UNREACHABLE = "The database cannot be reached; the server continues when it is back."
STANDBY = "The database is a standby, which accepts no writes; the server continues when it is the primary."
NOTHING_HELD_BACK = "The clock is trusted: nothing is held back."

LATENCY_BOUNDS_S = (0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0)
"""Upper bounds of the buckets, in seconds; long polls are why there are long ones."""


class StoreError(Exception):
    """The store cannot be opened; the text says why and what to do."""


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
            engine.withdraw(done)


@dataclass(slots=True, eq=False)
class Series:
    """Durations: ``buckets`` by length, the last one without a bound, and their sum."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        self.buckets[bisect_left(LATENCY_BOUNDS_S, seconds)] += 1
        self.seconds += seconds

    def copy(self) -> "Series":
        """Return the same durations, which stay as they are."""
        return self + Series()

    def __add__(self, other: "Series") -> "Series":
        buckets = [sum(pair) for pair in zip(self.buckets, other.buckets, strict=True)]
        return Series(buckets, self.seconds + other.seconds)

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


def gauge(name: str, text: str, value: float) -> Figure:
    """Return a number that goes up and down."""
    return Figure(name, text, "gauge", {"": value})


def counter(name: str, text: str, value: float) -> Figure:
    """Return a number that only goes up."""
    return Figure(name, text, "counter", {"": value})


class Finding(NamedTuple):
    """One check of a doctor: what should hold, whether it does, and where it does not."""

    check: str
    ok: bool
    detail: str


class Report(NamedTuple):
    """All findings, and what the store holds by name (numbers of queues, messages, …)."""

    findings: list[Finding]
    facts: dict[str, str | int]

    @property
    def ok(self) -> bool:
        """Whether every check held."""
        return all(finding.ok for finding in self.findings)


class Survey(NamedTuple):
    """The full names of some queues, in order, and how many there are."""

    names: list[str]
    in_all: int


class SurveyQueues(Command, frozen=True, kw_only=True):
    """Answer a ``Survey`` of the first ``names_max`` queues of all accounts."""

    names_max: int


class Store(Engine, Protocol):
    """An open engine, and what its server needs of it beyond commands."""

    clock: Clock
    """The time of this store: what is due is due by this clock."""

    @property
    def kept(self) -> str:
        """Return where messages are kept, as words that follow "messages are kept"; never a secret."""

    async def readiness_failures(self) -> list[str]:
        """Return why no requests should be sent here, nothing when they should."""

    def warnings(self) -> Sequence[str]:
        """Return what is wrong although requests are answered: sentences that say what to do."""

    async def trust_clock(self) -> str:
        """Take the present time for right, as an operator says it is; return what that changed, as a sentence.

        Raises ``VeilmqError``.
        """

    def figures(self) -> Sequence[Figure]:
        """Return numbers by name for monitoring."""

    async def keep(self, name: str, make: Callable[[], bytes]) -> bytes:
        """Return what is kept under ``name`` (a file's) for all servers, what ``make`` gives where nothing is.

        Raises ``StoreError`` or ``VeilmqError``.
        """

    async def answered(self) -> None:
        """Return when all that was submitted so far, and what that led to, has been answered."""

    async def close(self) -> None:
        """Answer what was submitted, refuse what comes, and let go of the store."""

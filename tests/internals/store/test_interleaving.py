"""Two calls on PostgreSQL, interleaved at each statement, have the effect of one serial order.

The tests compare the results, the state visible through commands, and the doctor's findings. `make test` runs some
schedules with one switch of the most important pairs; `PROVE=whole` runs more of every pair of each family, with up to
two switches.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

import pytest

from tests.internals.store.interleaved import World, comparable, conserved
from tests.internals.store.interleaved_calls import FAMILIES
from tests.internals.store.interleaving import Driver, Run, connected, explore
from tests.store.postgres_host import empty, making_database, prepare
from veilmq.core.commands import Receive, Received
from veilmq.store.postgres.transaction import PostgresTransaction
from veilmq.store.transaction import Lock

WHOLE = os.environ.get("PROVE") == "whole"
RUNS_WHOLE = 30
RUNS = 7
ALL = 100  # more statements than a call has

# run by `make test`
PAIRS = {
    "queues": "set + tag, purge + sweep, delete + purge, create another + create another, "
    "create another + create otherwise",
    "moves": "move + cancel, move + purge dead, move + move",
    "moves fifo": "move + set dead, set dead + receive dead, list moves + delete dead",
    "claims": "claim next + claim otherwise, beat + acknowledge, purge + claim next, evict + end, "
    "claim next + receive, beat + purge",
    "claims fifo": "claim next + end, claim next + receive, purge + claim next",
    "publications fifo": "publish + receive",
    "publications": "publish + stage, publish + enter, purge + enter, stage + stage, publish + publish, "
    "publish + delete",
    "topics": "create + delete, publish + delete, subscribe pushed + unsubscribe pushed, "
    "subscribe pushed + subscribe pushed",
    "forwards": "forward + bury, forward + delete other",
    "events": "number + delete message, number + number",
}


class Interleaving:
    """Runs schedules, each on the restored data, and compares their outcomes."""

    def __init__(self, url: str, family: str) -> None:
        self._runner = asyncio.Runner()
        self._connected = connected(url, 4)
        *connections, monitor = self._runner.run(self._connected.__aenter__())
        self._runner.run(empty(url))
        self._driver = Driver(connections, monitor)
        self._family = FAMILIES[family]
        self._world = World(self._family, monitor)
        self._runner.run(self._world.make())

    def close(self) -> None:
        self._runner.run(self._connected.__aexit__(None, None, None))
        self._runner.close()

    def check(
        self, *names: str, switches_max: int = 1, runs_max: int | None = None, also: Sequence[Sequence[int]] = ()
    ) -> None:
        """Run schedules of these calls, and those of `also`; assert that each outcome is that of a serial order."""
        serial: list[Any] = []

        async def run(schedule: Sequence[int]) -> Run:
            done = await self._driver.run(await self._world.restore(names), schedule)
            outcome = await self._world.outcome(done)
            if len({*names}) > 1 and self._family.takers.issuperset(names):
                outcome = conserved(outcome)
            how = f"{names} as {''.join(map(str, done.schedule))}"
            assert not outcome["violations"], f"{how}: {outcome['violations']}"
            if not done.switches(len(done.choices)):
                serial.append(outcome)
            assert outcome in serial, f"{how}: {_difference(outcome, serial)}"
            assert not done.deadlocks, f"{how}: a deadlock"
            return done

        async def runs() -> None:
            if self._family.group_lockers.intersection(names):
                serial.extend(
                    [await self._outcome_without(names, each) for each in self._family.takers.intersection(names)]
                )
            await explore(run, switches_max=switches_max, runs_max=runs_max, seed=1)
            for schedule in also:
                await run(schedule)

        self._runner.run(runs())

    async def _outcome_without(self, names: Sequence[str], taker: str) -> Any:
        """Return the outcome if `taker` skips all messages: that of the other call alone."""
        place, kind = names.index(taker), type(self._world.calls[taker](self._world.saved))
        alone = await self._driver.run(await self._world.restore([*names[:place], *names[place + 1 :]]), ())
        outcome = await self._world.outcome(alone, resting=kind)
        nothing = Received(messages=[], next_due_ms=None, receive_wait_s=0) if kind is Receive else None
        outcome["results"].insert(place, comparable(nothing))
        return outcome


def _difference(outcome: Any, serial: list[Any]) -> str:
    lines = [f"results {outcome['results']}"]
    for number, other in enumerate(serial):
        names = sorted(name for name in outcome.keys() | other.keys() if outcome.get(name) != other.get(name))
        lines += [f"{number}: {name}: {outcome.get(name)} and not {other.get(name)}" for name in names]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def url(postgres_url: str) -> Iterator[str]:
    """A database for this file, because the saved data has its own schema."""
    with making_database(postgres_url) as made:
        asyncio.run(prepare(made))
        yield made


@pytest.fixture(scope="module")
def interleaving(url: str, request: pytest.FixtureRequest) -> Iterator[Interleaving]:
    """The family that the test names, with its data."""
    made = Interleaving(url, request.param)
    yield made
    made.close()


CHOSEN = (
    {family: list(combinations_with_replacement(made.calls, 2)) for family, made in FAMILIES.items()}
    if WHOLE
    else {family: [tuple(pair.split(" + ")) for pair in pairs.split(", ")] for family, pairs in PAIRS.items()}
)


@pytest.mark.parametrize(
    ("interleaving", "pair"),
    [
        pytest.param(family, pair, id=f"{family}: {', '.join(pair)}")
        for family, chosen in CHOSEN.items()
        for pair in chosen
    ],
    indirect=["interleaving"],
)
def test_two_interleaved_calls_have_the_outcome_of_a_serial_order(
    interleaving: Interleaving, pair: tuple[str, str]
) -> None:
    interleaving.check(*pair, switches_max=2 if WHOLE else 1, runs_max=RUNS_WHOLE if WHOLE else RUNS)


# Regressions.


def schedules_after(end: int, *then: int) -> list[list[int]]:
    """Return schedules in which the first call makes fewer than ``end`` steps before ``then`` run completely."""
    return [[0] * done + [call for each in then for call in [each] * ALL] for done in range(1, end)]


# Property → the family and the calls, and the schedules that once violated it.
REGRESSIONS = {
    "a restarted cooldown is not deleted with the expired one": (
        "queues: purge + sweep",
        [[0] * done + [1] * 2 + [0] * ALL for done in range(1, 15)],
    ),
    "a created topic exists before its deletion, or is created schedules_after it": (
        "topics: create + delete",
        schedules_after(4, 1),
    ),
    "a message is published to the subscriptions of an existing topic, or is refused": (
        "topics: publish + delete",
        schedules_after(4, 1),
    ),
    "a queue created between the lock and the lookup of a change is locked or not found": (
        "queues: create another + set another + tag another",
        [[1] + [0] * ALL + [1] * 2 + [2] * more + [1] * ALL for more in (2, 3)],
    ),
    "a task starts before its queue is deleted, or not at all": (
        "moves fifo: start elsewhere + delete dead",
        schedules_after(6, 1),
    ),
    "a claim that is acknowledged during a read is not reported as lost": (
        "claims: read part + acknowledge all",
        schedules_after(12, 1),
    ),
    "a name deleted meanwhile is in cooldown": (
        "queues: create otherwise + create another + delete another",
        schedules_after(6, 1, 2),
    ),
}


@pytest.mark.parametrize(
    ("interleaving", "calls", "schedules"),
    [pytest.param(*calls.split(": "), schedules, id=what) for what, (calls, schedules) in REGRESSIONS.items()],
    indirect=["interleaving"],
)
def test_past_violations_do_not_recur(interleaving: Interleaving, calls: str, schedules: list[list[int]]) -> None:
    interleaving.check(*calls.split(" + "), switches_max=0, also=schedules)


# The driver.


@pytest.mark.parametrize(("interleaving", "kind", "pair"), [
    ("queues", "queue update", ("set", "tag")), ("claims", "queue share", ("open newer", "delete")),
    ("claims", "sources", ("open newer", "open newest")), ("claims", "source", ("beat", "acknowledge")),
    ("claims", "source", ("open", "acknowledge")),
    ("claims", "source_names", ("purge", "acknowledge all")), ("publications", "writer update", ("publish", "publish")),
    ("publications", "writer share", ("stage", "publish")), ("publications", "due_publication", ("enter", "enter")),
    ("publications", "pending_publication", ("publish first", "enter")),
    ("publications late", "silent_writers", ("enter", "publish")), ("topics", "topic", ("set", "set rest")),
    ("moves fifo", "due_move", ("move", "move")),
], indirect=["interleaving"])  # fmt: skip
def test_a_missing_lock_is_detected(
    interleaving: Interleaving, kind: str, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this kind of lock, one of the schedules has an outcome of no serial order."""
    without(kind, monkeypatch)
    with pytest.raises(AssertionError, match=r" as [01]+: "):
        interleaving.check(*pair)


def without(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable a lock of that name, or the row locks of that query (or of queues, with that kind of lock)."""
    lock, find = PostgresTransaction.lock, PostgresTransaction.find

    async def no_lock(tx: PostgresTransaction, requested: str, *key: Any) -> None:
        if requested != kind:
            await lock(tx, requested, *key)

    async def no_row(tx: PostgresTransaction, name: str, how: Lock | None = None) -> Any:
        return await find(tx, name, None if kind == f"queue {how}" else how)

    monkeypatch.setattr(PostgresTransaction, "lock", no_lock)
    monkeypatch.setattr(PostgresTransaction, "find", no_row)
    rows = PostgresTransaction.rows

    async def no_rows(tx: PostgresTransaction, query: str, *values: Any, lock: Lock | None = None) -> Any:
        return await rows(tx, query, *values, lock=None if kind in (query, f"{query} {lock}") else lock)

    monkeypatch.setattr(PostgresTransaction, "rows", no_rows)

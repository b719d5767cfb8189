"""Two calls on PostgreSQL that interleave at each statement: in the end it is as if one had followed the other.

What counts are the answers, what is seen through commands, and what the doctor finds. `make test` runs some schedules
with one switch of the pairs that matter most; `PROVE=whole` more of each pair of each family, with up to two switches.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from typing import Any

import pytest

from tests.internals.store.interleaved import World, conserved, plain
from tests.internals.store.interleaved_calls import FAMILIES
from tests.internals.store.interleaving import Driver, Run, connected, explore
from tests.store.postgres_host import empty, making_database, prepare
from veilmq.core.commands import Receive, Received
from veilmq.store.postgres.transaction import PostgresTransaction
from veilmq.store.transaction import Lock

WHOLE = os.environ.get("PROVE") == "whole"
RUNS_WHOLE = 30
RUNS = 7
ALL = 100
"""More statements than a call has."""

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
"""What `make test` runs."""


class Interleaving:
    """Runs schedules, each on the world as it was, and compares."""

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
        """Run schedules of these calls, and those of `also`; assert that each came out as one without a switch."""
        serial: list[Any] = []

        async def run(schedule: Sequence[int]) -> Run:
            done = await self._driver.run(await self._world.restore(names), schedule)
            outcome = await self._world.outcome(done)
            if len({*names}) > 1 and self._family.takers.issuperset(names):
                outcome = conserved(outcome)
            how = f"{names} as {''.join(map(str, done.schedule))}"
            assert not outcome["wrong"], f"{how}: {outcome['wrong']}"
            if not done.switches(len(done.points)):
                serial.append(outcome)
            assert outcome in serial, f"{how}: {_difference(outcome, serial)}"
            assert not done.deadlocks, f"{how}: each waits for the other"
            return done

        async def runs() -> None:
            if self._family.passed_over.intersection(names):
                serial.extend(
                    [await self._nothing_taken(names, each) for each in self._family.takers.intersection(names)]
                )
            await explore(run, switches_max=switches_max, runs_max=runs_max, seed=1)
            for schedule in also:
                await run(schedule)

        self._runner.run(runs())

    async def _nothing_taken(self, names: Sequence[str], taker: str) -> Any:
        """Return the outcome where `taker` has passed over all that there is: that of the other call alone."""
        place, kind = names.index(taker), type(self._world.calls[taker](self._world.kept))
        alone = await self._driver.run(await self._world.restore([*names[:place], *names[place + 1 :]]), ())
        outcome = await self._world.outcome(alone, resting=kind)
        nothing = Received(messages=[], next_due_ms=None, receive_wait_s=0) if kind is Receive else None
        outcome["answers"].insert(place, plain(nothing))
        return outcome


def _difference(outcome: Any, serial: list[Any]) -> str:
    lines = [f"answers {outcome['answers']}"]
    for number, other in enumerate(serial):
        names = sorted(name for name in outcome.keys() | other.keys() if outcome.get(name) != other.get(name))
        lines += [f"{number}: {name}: {outcome.get(name)} and not {other.get(name)}" for name in names]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def url(postgres_url: str) -> Iterator[str]:
    """A database of this file's own: the copies of its worlds stand beside the schema."""
    with making_database(postgres_url) as made:
        asyncio.run(prepare(made))
        yield made


@pytest.fixture(scope="module")
def interleaving(url: str, request: pytest.FixtureRequest) -> Iterator[Interleaving]:
    """The world of the family that the test names."""
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
def test_two_calls_are_as_if_one_followed_the_other(interleaving: Interleaving, pair: tuple[str, str]) -> None:
    interleaving.check(*pair, switches_max=2 if WHOLE else 1, runs_max=RUNS_WHOLE if WHOLE else RUNS)


# What was found.


def after(end: int, *then: int) -> list[list[int]]:
    """Return schedules: the first call has made fewer steps than ``end`` when those of ``then`` are made whole."""
    return [[0] * done + [call for each in then for call in [each] * ALL] for done in range(1, end)]


FOUND = {
    "a cooldown that begins anew is not forgotten with the last one": (
        "queues: purge + sweep",
        [[0] * done + [1] * 2 + [0] * ALL for done in range(1, 15)],
    ),
    "a topic that is deleted was there, or is made anew": (
        "topics: create + delete",
        after(4, 1),
    ),
    "what was published to it was for those who had subscribed, or is refused": (
        "topics: publish + delete",
        after(4, 1),
    ),
    "a queue that comes between the lock and the look-up of a change is locked or not there": (
        "queues: create another + set another + tag another",
        [[1] + [0] * ALL + [1] * 2 + [2] * more + [1] * ALL for more in (2, 3)],
    ),
    "a task is begun before its queue is deleted, or not at all": (
        "moves fifo: start elsewhere + delete dead",
        after(6, 1),
    ),
    "a claim that was acknowledged while it is read is not lost": (
        "claims: read part + acknowledge all",
        after(12, 1),
    ),
    "a name that was deleted meanwhile rests": (
        "queues: create otherwise + create another + delete another",
        after(6, 1, 2),
    ),
}
"""What holds → the calls, by their family, and the schedules in which it once did not."""


@pytest.mark.parametrize(
    ("interleaving", "calls", "schedules"),
    [pytest.param(*calls.split(": "), schedules, id=what) for what, (calls, schedules) in FOUND.items()],
    indirect=["interleaving"],
)
def test_what_was_found(interleaving: Interleaving, calls: str, schedules: list[list[int]]) -> None:
    interleaving.check(*calls.split(" + "), switches_max=0, also=schedules)


# What the driver finds.


@pytest.mark.parametrize(("interleaving", "kind", "pair"), [
    ("queues", "queue update", ("set", "tag")), ("claims", "queue share", ("open newer", "delete")),
    ("claims", "sources", ("open newer", "open newest")), ("claims", "source", ("beat", "acknowledge")),
    ("claims", "sources_of_consumer", ("open", "acknowledge")),
    ("claims", "source_names", ("purge", "acknowledge all")), ("publications", "writer update", ("publish", "publish")),
    ("publications", "writer share", ("stage", "publish")), ("publications", "due_publication", ("enter", "enter")),
    ("publications", "entering", ("publish first", "enter")),
    ("publications late", "silent_writers", ("enter", "publish")), ("topics", "topic", ("set", "set rest")),
    ("moves fifo", "due_move", ("move", "move")),
], indirect=["interleaving"])  # fmt: skip
def test_a_lock_that_is_missing_shows(
    interleaving: Interleaving, kind: str, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this kind of lock one of the schedules comes out as no serial one does."""
    without(kind, monkeypatch)
    with pytest.raises(AssertionError, match=r" as [01]+: "):
        interleaving.check(*pair)


def without(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no lock of that name, and no row of that query (or queue, locked so) locked."""
    lock, find = PostgresTransaction.lock, PostgresTransaction.find

    async def no_lock(tx: PostgresTransaction, wanted: str, *key: Any) -> None:
        if wanted != kind:
            await lock(tx, wanted, *key)

    async def no_row(tx: PostgresTransaction, name: str, how: Lock | None = None) -> Any:
        return await find(tx, name, None if kind == f"queue {how}" else how)

    monkeypatch.setattr(PostgresTransaction, "lock", no_lock)
    monkeypatch.setattr(PostgresTransaction, "find", no_row)
    rows = PostgresTransaction.rows

    async def no_rows(tx: PostgresTransaction, query: str, *values: Any, lock: Lock | None = None) -> Any:
        return await rows(tx, query, *values, lock=None if kind in (query, f"{query} {lock}") else lock)

    monkeypatch.setattr(PostgresTransaction, "rows", no_rows)

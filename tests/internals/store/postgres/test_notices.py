"""What notices hold, how many it takes, and who is woken when at one node."""

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.database import DatabaseClock
from veilmq.store.postgres.nodes import REFRESH_MS, Interests, Notice, Watches, packed, unpacked
from veilmq.store.postgres.queues import Catalog
from veilmq.store.postgres.receives import _Taking
from veilmq.testing import VirtualClock

NOTIFY_BYTES_MAX = 7_999


def test_what_fits_goes_in_one() -> None:
    """Of all kinds."""
    told = [
        ("due_ms", "a", 1),
        ("due_ms", "b", 2),
        ("awaited", "c", True),
        ("awaited", "d", False),
        ("full", "e", None),
        ("changed", "f", None),
        ("moves", "", True),
    ]
    (text,) = packed("n", told)
    assert unpacked(text) == Notice(
        node="n", due_ms={"a": 1, "b": 2}, awaited={"c": True, "d": False}, full=["e"], changed=["f"], moves=True
    )


def test_what_does_not_goes_in_several() -> None:
    """None longer than the server takes, and nothing is left out, however names are written."""
    names = [f"000000000000/{'ä' * 100}-{number}" for number in range(500)]
    texts = packed("0123abcd", [("due_ms", name, 1_700_000_000_000) for name in names])
    assert max(len(text.encode()) for text in texts) <= NOTIFY_BYTES_MAX
    notices = [unpacked(text) for text in texts]
    assert [name for notice in notices if notice is not None for name in notice.due_ms] == names


def test_nothing_takes_none() -> None:
    """Whoever has nothing to say sends nothing."""
    assert packed("n", []) == []


def test_what_is_not_ours_is_ignored() -> None:
    """Anybody with an account of the database can say something; a later version may say more."""
    assert unpacked("") is None
    assert unpacked("[]") is None
    assert unpacked('{"node": "n", "due_ms": {"a": "soon"}}') is None
    assert unpacked('{"node": "n", "weather": "fine"}') == Notice(node="n")


def test_an_interest_that_nobody_repeats_ends() -> None:
    """The node is gone; two lost notices in a row are no matter."""
    clock = VirtualClock()
    interests = Interests(clock=clock)
    interests.note("a", "q", is_full=True)
    clock.advance(2 * REFRESH_MS)
    interests.note("b", "q")
    clock.advance(REFRESH_MS)
    assert interests.has("q")
    interests.drop("a", "q")
    assert interests.has("q")
    clock.advance(2 * REFRESH_MS)
    interests.prune()
    assert not interests.has("q")
    assert not interests.give_place("q")


def test_a_place_is_told_once_for_each_that_was_missed() -> None:
    """And to nobody who waits no more."""
    interests = Interests(clock=VirtualClock())
    interests.note("a", "q")
    assert not interests.give_place("q")
    interests.note("a", "q", is_full=True)
    assert interests.give_place("q")
    assert not interests.give_place("q")
    interests.note("a", "q", is_full=True)
    interests.drop("a", "q")
    assert not interests.give_place("q")


@pytest.fixture
def woken() -> list[int]:
    """Return the instants that a watch was told of."""
    return []


@pytest.fixture
def watches(woken: list[int]) -> Watches:
    """Return watches of which one is on the queue `q`."""
    clock, nothing = DatabaseClock(VirtualClock()), cast(Any, None)
    watches = Watches(nothing, round_s=1, clock=clock, catalog=Catalog(PostgresOptions()), start=nothing)
    watches.begin("q", woken.append)
    return watches


@pytest.mark.parametrize("fails", [False, True])
def test_dead_letters_of_a_receive_are_told_of_at_its_end(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """When its transaction is committed; of what was rolled back nobody is told."""
    told: list[tuple[str, int]] = []

    async def take(taking: _Taking) -> list[Any]:
        taking.woken["dead"] = 1
        assert told == []
        return [1 / (not fails)]

    monkeypatch.setattr(_Taking, "_take", take)
    node: Any = SimpleNamespace(watches=SimpleNamespace(wake=lambda *due: told.append(due)))
    terms: Any = SimpleNamespace(attempt_id=None)
    with suppress(ZeroDivisionError):
        asyncio.run(_Taking(node, None, cast(Any, SimpleNamespace(origin=1)), terms, (1,), 1).rows())
    assert told == ([] if fails else [("dead", 1)])


def test_a_watch_that_fails_keeps_nobody_from_anything(watches: Watches, woken: list[int]) -> None:
    """It is in the log; the others are told."""

    def fail(due_ms: int) -> None:
        raise RuntimeError(due_ms)

    watches.begin("bad", fail)
    watches.wake("bad", 1)
    watches.wake("q", 1)
    assert woken == [1]

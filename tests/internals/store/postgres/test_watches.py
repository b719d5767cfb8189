"""Who is told when, at one node."""

from typing import Any, cast

import pytest

from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.database import DatabaseClock
from veilmq.store.postgres.nodes import Watches
from veilmq.store.postgres.queues import Catalog
from veilmq.testing import VirtualClock


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


def test_what_is_held_is_told_at_the_end(watches: Watches, woken: list[int]) -> None:
    """When it is committed."""
    with watches.held():
        watches.wake("q", 1)
        watches.wake("other", 2)
        assert woken == []
    assert woken == [1]
    watches.wake("q", 3)
    assert woken == [1, 3]


def test_what_failed_is_told_to_nobody(watches: Watches, woken: list[int]) -> None:
    """It was rolled back."""

    def roll_back() -> None:
        with watches.held():
            watches.wake("q", 1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roll_back()
    watches.wake("q", 2)
    assert woken == [2]


def test_a_watch_that_fails_keeps_nobody_from_anything(watches: Watches, woken: list[int]) -> None:
    """It is in the log; the others are told."""

    def fail(due_ms: int) -> None:
        raise RuntimeError(due_ms)

    watches.begin("bad", fail)
    with watches.held():
        watches.wake("bad", 1)
        watches.wake("q", 1)
    assert woken == [1]

"""The clock that tests move."""

import asyncio

import pytest

from veilmq.testing import VirtualClock


def test_it_stands_still_until_it_is_moved() -> None:
    """Starts at a known instant and moves by what it is told."""
    clock = VirtualClock()
    assert (clock.now_ms(), clock.now_ms()) == (1_700_000_000_000, 1_700_000_000_000)
    clock.advance(5)
    clock.set(1_700_000_000_007)
    assert clock.now_ms() == 1_700_000_000_007


def test_it_does_not_go_back() -> None:
    """A move backwards is a mistake of the test; catching up with an earlier instant does nothing."""
    clock = VirtualClock(start_ms=100)
    with pytest.raises(ValueError, match="cannot go back to 99"):
        clock.set(99)
    clock.catch_up(50)
    assert clock.now_ms() == 100
    clock.catch_up(150)
    assert clock.now_ms() == 150


def test_timers_run_in_order_and_see_their_own_instant() -> None:
    """Those of one instant in the order in which they were set; one that sets another within the move runs it too."""
    clock = VirtualClock(start_ms=0)
    ran: list[tuple[str, int]] = []

    def record(name: str) -> None:
        ran.append((name, clock.now_ms()))

    def chain() -> None:
        record("first")
        clock.call_at(15, lambda: record("chained"))

    clock.call_at(20, lambda: record("second"))
    clock.call_at(10, chain)
    clock.call_at(20, lambda: record("third"))
    clock.call_at(21, lambda: record("too late"))
    clock.advance(20)
    assert ran == [("first", 10), ("chained", 15), ("second", 20), ("third", 20)]
    assert clock.next_timer_ms() == 21


def test_a_cancelled_timer_does_not_run() -> None:
    """Not even when a timer of the same instant cancels it; cancelling again is harmless."""
    clock = VirtualClock(start_ms=0)
    ran: list[str] = []

    def cancel_last() -> None:
        last.cancel()

    clock.call_at(10, cancel_last)
    last = clock.call_at(10, lambda: ran.append("last"))
    clock.advance(10)
    last.cancel()
    assert ran == []
    assert clock.next_timer_ms() is None


def test_what_is_due_already_runs_when_the_loop_turns() -> None:
    """A timer for now needs no move of the clock."""

    async def story() -> list[str]:
        ran: list[str] = []
        clock = VirtualClock(start_ms=10)
        clock.call_at(10, lambda: ran.append("now"))
        assert ran == []
        await asyncio.sleep(0)
        return ran

    assert asyncio.run(story()) == ["now"]

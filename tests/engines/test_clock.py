"""The system's clock: never backwards, slewing after a step, alarms not before their instant."""

import asyncio
from dataclasses import dataclass

from veilmq.engines.clock import SystemClock

_MS = 1_000_000


@dataclass
class _Sources:
    """A wall clock and a carrier that a test moves."""

    wall_ns: int = 1_700_000_000_000 * _MS
    carrier_ns: int = 0

    def clock(self) -> SystemClock:
        return SystemClock(wall_ns=lambda: self.wall_ns, carrier_ns=lambda: self.carrier_ns)

    def run(self, ms: int, *, wall_ms: int | None = None) -> None:
        """Let ``ms`` pass; the wall clock shows ``wall_ms`` of it."""
        self.carrier_ns += ms * _MS
        self.wall_ns += (ms if wall_ms is None else wall_ms) * _MS


def test_follows_the_wall_clock() -> None:
    sources = _Sources()
    clock = sources.clock()
    sources.run(1_234)
    assert clock.now_ms() == 1_700_000_001_234


def test_never_runs_backwards_and_slews_after_a_step_back() -> None:
    sources = _Sources()
    clock = sources.clock()
    before_ms = clock.now_ms()
    sources.run(0, wall_ms=-3_600_000)
    assert clock.now_ms() == before_ms
    sources.run(1_000)
    assert clock.now_ms() == before_ms + 950  # at most 5 % slow


def test_a_step_forward_ends_no_lease_early() -> None:
    sources = _Sources()
    clock = sources.clock()
    before_ms = clock.now_ms()
    sources.run(0, wall_ms=3_600_000)
    assert clock.now_ms() == before_ms
    sources.run(1_000)
    assert clock.now_ms() == before_ms + 1_050


def test_agrees_with_the_wall_clock_again_in_the_end() -> None:
    sources = _Sources()
    clock = sources.clock()
    sources.run(0, wall_ms=-10_000)
    for _ in range(400):
        sources.run(1_000)
        clock.now_ms()
    assert clock.now_ms() == sources.wall_ns // _MS


def test_catches_up_with_an_earlier_run_and_not_with_an_older_one() -> None:
    sources = _Sources()
    clock = sources.clock()
    clock.catch_up(clock.now_ms() - 5_000)
    assert clock.now_ms() == 1_700_000_000_000
    clock.catch_up(clock.now_ms() + 5_000)
    assert clock.now_ms() == 1_700_000_005_000


def test_an_alarm_rings_not_before_its_instant() -> None:
    async def ring() -> tuple[int, int]:
        clock = SystemClock()
        at_ms = clock.now_ms() + 5
        rung: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        clock.call_at(at_ms, lambda: rung.set_result(clock.now_ms()))
        return at_ms, await asyncio.wait_for(rung, timeout=10)

    at_ms, rung_ms = asyncio.run(ring())
    assert rung_ms >= at_ms


def test_a_slewing_clock_sends_an_early_alarm_back_to_sleep() -> None:
    async def ring() -> list[int]:
        sources = _Sources()
        clock = sources.clock()
        rung: list[int] = []
        clock.call_at(clock.now_ms() + 1, lambda: rung.append(clock.now_ms()))
        for _ in range(50):  # the loop's own time passes, the clock's does not
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        waited = loop.create_future()
        loop.call_later(0.005, waited.set_result, None)
        await waited
        assert rung == []
        sources.run(1)
        waited = loop.create_future()
        loop.call_later(0.02, waited.set_result, None)
        await waited
        return rung

    assert asyncio.run(asyncio.wait_for(ring(), timeout=10)) == [1_700_000_000_001]


def test_a_cancelled_alarm_does_not_ring() -> None:
    async def ring() -> list[str]:
        clock = SystemClock()
        rung: list[str] = []
        clock.call_at(clock.now_ms() + 1, lambda: rung.append("cancelled")).cancel()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        clock.call_at(clock.now_ms() + 3, lambda: done.set_result(None))
        await asyncio.wait_for(done, timeout=10)
        return rung

    assert asyncio.run(ring()) == []

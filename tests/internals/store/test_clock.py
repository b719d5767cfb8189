"""Store time, which ignores steps of the wall clock and continues across restarts; a node's clock; the scheduler."""

import asyncio
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from tests.store.host import QUEUE
from tests.store.postgres_host import RESTLESS, empty, hosting_postgres, set_clock
from veilmq.core.errors import InternalError
from veilmq.store.clock import SystemClock, kernel_synchronised
from veilmq.store.cold import Scheduler
from veilmq.store.postgres import Shards
from veilmq.store.postgres.database import DatabaseClock
from veilmq.testing import VirtualClock
from veilmq.testing.clocks import START_MS

_MS = 1_000_000
_HOUR_MS = 3_600_000
_DAY_MS = 24 * _HOUR_MS


@dataclass
class _Machine:
    """A machine with clocks that a test sets."""

    wall_ms: int = START_MS
    boot_ms: int = 0
    boot_id: str = "first"
    synchronised: bool = True

    def clock(self) -> SystemClock:
        return SystemClock(
            wall_ns=lambda: self.wall_ms * _MS,
            boot_ns=lambda: self.boot_ms * _MS,
            boot_id=self.boot_id,
            is_synchronised=lambda: self.synchronised,
        )

    def run(self, ms: int, *, wall_ms: int | None = None) -> None:
        """Let ``ms`` pass; the wall clock advances by ``wall_ms``, if given."""
        self.boot_ms += ms
        self.wall_ms += ms if wall_ms is None else wall_ms

    def boot(self, down_ms: int, *, synchronised: bool) -> None:
        """Reboot; the wall clock advances by ``down_ms``."""
        self.boot_id += "'"
        self.boot_ms = 5_000
        self.wall_ms += down_ms
        self.synchronised = synchronised

    def resumed(self, mark: bytes | None, floor_ms: int = 0) -> SystemClock:
        clock = self.clock()
        clock.resume(mark, floor_ms=floor_ms)
        return clock


def test_shown_time_ignores_differences_up_to_half_a_second() -> None:
    machine = _Machine()
    clock = machine.clock()
    for step_ms, shown_ms in ((500, 0), (1, 501), (-500, 501), (-501, -500)):
        machine.run(0, wall_ms=step_ms)
        assert clock.shown_ms() == START_MS + shown_ms


def test_without_a_mark_store_time_starts_at_the_wall_clock() -> None:
    """With a mark or without, it does not start before the newest stored instant."""
    machine = _Machine()
    assert machine.resumed(None).now_ms() == START_MS
    assert machine.resumed(None, floor_ms=START_MS + 7).now_ms() == START_MS + 7
    mark = machine.clock().mark()
    assert machine.resumed(mark, floor_ms=START_MS + 7).now_ms() == START_MS + 7
    assert machine.resumed(mark, floor_ms=START_MS - 7).now_ms() == START_MS


@pytest.mark.parametrize(
    ("before", "after", "down_ms", "applied_ms"),
    [
        pytest.param(True, True, 5 * _DAY_MS, 5 * _DAY_MS, id="synchronised"),
        *((*each, 5 * _DAY_MS, _HOUR_MS) for each in ((True, False), (False, True), (False, False))),
        pytest.param(False, False, _HOUR_MS, _HOUR_MS, id="an hour"),
    ],
)
def test_a_reboot_applies_at_most_an_hour_unless_synchronised_before_and_after(
    before: bool, after: bool, down_ms: int, applied_ms: int
) -> None:
    machine = _Machine(synchronised=before)
    mark = machine.clock().mark()
    machine.boot(down_ms, synchronised=after)
    clock, held_ms = machine.resumed(mark), down_ms - applied_ms
    assert (clock.now_ms(), clock.shown_ms()) == (START_MS + applied_ms, machine.wall_ms)
    assert (clock.held_back_ms(), clock.doubt is None) == (held_ms, held_ms == 0)
    machine.run(60_000)
    assert (clock.now_ms(), clock.held_back_ms()) == (START_MS + applied_ms + 60_000, held_ms)
    assert clock.trust() == held_ms
    assert clock.now_ms() == machine.wall_ms
    assert (clock.doubt, clock.held_back_ms(), clock.trust()) == (None, 0, 0)


def test_after_a_reboot_a_clock_that_went_back_continues_from_the_mark() -> None:
    """It catches up when the clock is synchronised, as it was before."""
    machine = _Machine()
    mark = machine.clock().mark()
    machine.boot(-5 * _DAY_MS, synchronised=False)
    clock = machine.resumed(mark)
    assert (clock.now_ms(), clock.held_back_ms()) == (START_MS, 0)
    assert clock.shown_ms() == machine.wall_ms
    machine.run(0, wall_ms=5 * _DAY_MS + 8 * _HOUR_MS)
    assert clock.settle() is None
    machine.synchronised = True
    assert clock.settle() == 8 * _HOUR_MS
    assert clock.now_ms() == clock.shown_ms() == machine.wall_ms


def test_a_doubt_survives_restarts_and_reboots() -> None:
    """Each reboot applies at most an hour; in the end, all time since the last trusted clock is applied."""
    machine = _Machine()
    mark = machine.clock().mark()
    for boots in range(1, 3):
        machine.boot(_DAY_MS, synchronised=False)
        clock = machine.resumed(mark)
        assert clock.now_ms() == START_MS + boots * _HOUR_MS
        clock = machine.resumed(clock.mark())
        assert clock.held_back_ms() == boots * (_DAY_MS - _HOUR_MS)
        mark = clock.mark()
    machine.boot(_DAY_MS, synchronised=True)
    clock = machine.resumed(mark)
    assert clock.now_ms() == clock.shown_ms() == START_MS + 3 * _DAY_MS
    assert clock.doubt is None


def library(status: int, result: int = 0) -> SimpleNamespace:
    """Return a C library whose ``ntp_adjtime`` returns this status."""

    def read(timex: Any) -> int:
        ctypes.c_int.from_buffer(timex, 40).value = status
        return result

    return SimpleNamespace(ntp_adjtime=read)


@pytest.mark.parametrize(
    ("loaded", "synchronised"),
    [(library(0x2001), True), (library(0x41), False), (library(0, result=-1), False), (SimpleNamespace(), False)],
    ids=["synchronised", "unsynchronised", "error", "missing"],
)
def test_whether_the_kernel_reports_its_clock_as_synchronised(
    monkeypatch: pytest.MonkeyPatch, loaded: SimpleNamespace, synchronised: bool
) -> None:
    assert kernel_synchronised() in {True, False}, "this machine's"
    monkeypatch.setattr(ctypes, "CDLL", lambda _: loaded)
    assert kernel_synchronised() is synchronised
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError))  # a Python without dynamic loading
    assert not kernel_synchronised()


async def test_an_alarm_does_not_fire_before_its_instant() -> None:
    clock = SystemClock()
    at_ms = clock.now_ms() + 5
    fired: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    clock.call_at(at_ms, lambda: fired.set_result(clock.now_ms()))
    assert await asyncio.wait_for(fired, timeout=60) >= at_ms


async def test_an_alarm_that_fires_early_is_rearmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distant alarm reads the clock each minute, because the loop's clock stops while the machine is suspended."""
    machine = _Machine()
    armed: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *call: armed.append(call))
    fired: list[int] = []
    machine.clock().call_at(START_MS + 60_001, lambda: fired.append(machine.wall_ms))
    for ms in (60_000, 0, 1):
        assert fired == []
        machine.run(ms)
        armed[-1][1]()
    assert ([s for s, _ in armed], fired) == ([60, 0.001, 0.001], [START_MS + 60_001])


async def test_a_cancelled_alarm_does_not_fire() -> None:
    clock = SystemClock()
    fired: list[str] = []
    clock.call_at(clock.now_ms() + 1, lambda: fired.append("cancelled")).cancel()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    clock.call_at(clock.now_ms() + 3, lambda: done.set_result(None))
    await asyncio.wait_for(done, timeout=60)
    assert fired == []


# The clock of a node, which follows the database's clock.


@pytest.fixture
def machine() -> VirtualClock:
    return VirtualClock()


def test_a_node_clock_starts_with_the_machines_time(machine: VirtualClock) -> None:
    clock = DatabaseClock(machine)
    assert clock.now_ms() == START_MS
    machine.advance(500)
    clock.synchronize(START_MS + 200, sent_ms=START_MS)
    assert clock.now_ms() == START_MS + 500


def test_a_node_clock_changes_as_little_as_necessary(machine: VirtualClock) -> None:
    """A reply that took 100 ms leaves that uncertainty, and a millisecond on both sides for rounding."""
    clock = DatabaseClock(machine)
    machine.advance(100)
    clock.synchronize(START_MS + 5_000, sent_ms=START_MS)
    assert clock.now_ms() == START_MS + 100 + 4_899
    clock.synchronize(START_MS + 6_000, sent_ms=START_MS)
    assert clock.now_ms() == START_MS + 100 + 5_899
    machine.advance(5_000)
    clock.synchronize(START_MS + 5_100, sent_ms=START_MS + 5_100)
    machine.advance(10_000)
    assert clock.now_ms() == machine.now_ms() + 1


def test_a_node_clock_steps_back_with_the_clock_of_the_database(machine: VirtualClock) -> None:
    clock = DatabaseClock(machine)
    clock.synchronize(START_MS - 1_000, sent_ms=START_MS)
    assert clock.now_ms() == START_MS - 999


def test_timers_of_a_node_use_the_time_of_the_database(machine: VirtualClock) -> None:
    clock = DatabaseClock(machine)
    clock.synchronize(START_MS + 1_001, sent_ms=START_MS)
    fired: list[int] = []
    clock.call_at(START_MS + 5_000, lambda: fired.append(machine.now_ms() - START_MS))
    machine.advance(5_000)
    assert fired == [4_000]


@pytest.mark.parametrize("ahead_ms", [-4_000, 4_000])
def test_waiters_poll_by_the_time_of_the_database(postgres_url: str, ahead_ms: int) -> None:
    with hosting_postgres(postgres_url) as host:
        host.create()
        host.engine.watch(QUEUE, lambda due_ms: due_ms)
        host.run(set_clock(host.url, host.clock.now_ms() + ahead_ms + 1_000))
        host.in_loop(lambda: host.clock.advance(1_000))
        host.run(host.engine.drain())
        host.clock._move_to(host.clock.now_ms() + 10_000)  # without a poll
        assert abs(host.engine.clock.now_ms() - host.clock.now_ms() - ahead_ms) <= 1


# The scheduler of background work.


class Work:
    """Records started slices, which end when the test calls them."""

    def __init__(self, **options: Any) -> None:
        self.clock = VirtualClock()
        self.started: list[Any] = []
        self.scheduler = Scheduler(step=self.started.append, clock=self.clock, **options)

    def counts(self, *times_ms: int) -> list[int]:
        counts = []
        for time_ms in times_ms:
            self.clock.advance(time_ms)
            counts.append(len(self.started))
        return counts


def test_slices_start_when_they_are_due() -> None:
    work = Work()
    work.scheduler.schedule(100)
    assert work.counts(99, 1, 1_000) == [0, 1, 1]
    work.started[0](50)
    assert work.counts(49, 1) == [1, 2]
    work.started[1](None)
    assert work.counts(1_000_000) == [2]


def test_the_earliest_schedule_wins() -> None:
    work = Work()
    for after_ms in (100, 30, 60):
        work.scheduler.schedule(after_ms)
    assert work.counts(30, 1_000) == [1, 1]


def test_a_schedule_during_a_slice_is_kept() -> None:
    work = Work()
    work.scheduler.schedule(1)
    assert work.counts(1) == [1]
    work.scheduler.schedule(100)
    assert work.counts(50) == [1]
    work.started[0](None)
    assert work.counts(49, 1) == [1, 2]


def test_a_slice_that_fails_is_retried_after_a_second() -> None:
    work = Work()
    work.scheduler.schedule(1)
    work.counts(1)
    work.started[0](InternalError())
    assert work.counts(999, 1) == [1, 2]


def test_slices_are_separated_by_a_minimum_and_a_maximum_pause() -> None:
    work = Work(pause_ms_min=10, poll_ms_max=1_000)
    work.scheduler.schedule(1)
    work.counts(1)
    work.started[0](0)
    assert work.counts(9, 1) == [1, 2]
    work.started[1](None)
    assert work.counts(999, 1) == [2, 3]


def test_after_a_stop_no_slice_starts() -> None:
    work = Work()
    work.scheduler.schedule(1)
    work.scheduler.stop()
    work.scheduler.schedule(1)
    assert work.counts(1_000) == [0]


@pytest.mark.parametrize("ahead_ms", [-300_000, 300_000])
async def test_a_node_starts_at_the_time_of_the_database(postgres_url: str, ahead_ms: int) -> None:
    """With the machine's time, a clock that had to wait for the database would delay all timers."""
    machine = VirtualClock()
    await empty(postgres_url)
    await set_clock(postgres_url, machine.now_ms() + ahead_ms)
    store = await Shards.open([postgres_url], clock=machine, options=RESTLESS)
    assert abs(store.clock.now_ms() - machine.now_ms() - ahead_ms) <= 1
    await store.close()

"""Store time: by the boot clock, never by steps of the wall clock, on across restarts; what is done when it is due."""

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
    """A machine whose clocks a test moves."""

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
        """Let ``ms`` pass; the wall clock shows ``wall_ms`` of it."""
        self.boot_ms += ms
        self.wall_ms += ms if wall_ms is None else wall_ms

    def boot(self, down_ms: int, *, synchronised: bool) -> None:
        """Begin another boot; the wall clock shows ``down_ms`` since the last."""
        self.boot_id += "'"
        self.boot_ms = 5_000
        self.wall_ms += down_ms
        self.synchronised = synchronised

    def resumed(self, mark: bytes | None, floor_ms: int = 0) -> SystemClock:
        clock = self.clock()
        clock.resume(mark, floor_ms=floor_ms)
        return clock


@pytest.mark.parametrize("step_ms", [5 * _DAY_MS, -5 * _DAY_MS, 1, 0])
def test_store_time_follows_no_step_of_the_wall_clock(step_ms: int) -> None:
    """And what is shown follows each that is longer than half a second."""
    machine = _Machine()
    clock = machine.clock()
    machine.run(1_000)
    assert (clock.now_ms(), clock.shown_ms()) == (START_MS + 1_000, START_MS + 1_000)
    machine.run(1_000, wall_ms=1_000 + step_ms)
    assert clock.now_ms() == START_MS + 2_000
    assert clock.shown_ms() == START_MS + 2_000 + (step_ms if abs(step_ms) > 500 else 0)


def test_what_is_shown_stands_still_within_half_a_second() -> None:
    machine = _Machine()
    clock = machine.clock()
    for step_ms, shown_ms in ((500, 0), (1, 501), (-500, 501), (-501, -500)):
        machine.run(0, wall_ms=step_ms)
        assert clock.shown_ms() == START_MS + shown_ms


@pytest.mark.parametrize("synchronised", [True, False])
@pytest.mark.parametrize("step_ms", [5 * _DAY_MS, -5 * _DAY_MS, 0])
def test_a_restart_within_a_boot_does_not_ask_the_wall_clock(step_ms: int, synchronised: bool) -> None:
    machine = _Machine(synchronised=synchronised)
    mark = machine.clock().mark()
    machine.run(2 * _HOUR_MS, wall_ms=2 * _HOUR_MS + step_ms)
    clock = machine.resumed(mark)
    assert clock.now_ms() == START_MS + 2 * _HOUR_MS
    assert clock.shown_ms() == machine.wall_ms
    assert clock.doubt is None


def test_without_a_mark_it_begins_at_the_wall_clock() -> None:
    """And with one, or without, never before the newest instant that is stored."""
    machine = _Machine()
    assert machine.resumed(None).now_ms() == START_MS
    assert machine.resumed(None, floor_ms=START_MS + 7).now_ms() == START_MS + 7
    mark = machine.clock().mark()
    assert machine.resumed(mark, floor_ms=START_MS + 7).now_ms() == START_MS + 7
    assert machine.resumed(mark, floor_ms=START_MS - 7).now_ms() == START_MS


@pytest.mark.parametrize(
    ("before", "after", "down_ms", "applied_ms"),
    [
        pytest.param(True, True, 5 * _DAY_MS, 5 * _DAY_MS, id="what the wall clock says"),
        *((*each, 5 * _DAY_MS, _HOUR_MS) for each in ((True, False), (False, True), (False, False))),
        pytest.param(False, False, _HOUR_MS, _HOUR_MS, id="all of an hour"),
    ],
)
def test_another_boot_applies_an_hour_of_what_is_not_synchronised_at_both_ends(
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


def test_another_boot_with_a_clock_that_went_back_goes_on_from_the_mark() -> None:
    """And makes up for it once the clock is synchronised, as it was before."""
    machine = _Machine()
    mark = machine.clock().mark()
    machine.boot(-5 * _DAY_MS, synchronised=False)
    clock = machine.resumed(mark)
    assert (clock.now_ms(), clock.held_back_ms()) == (START_MS, 0)
    assert clock.shown_ms() == machine.wall_ms
    machine.run(0, wall_ms=5 * _DAY_MS + 8 * _HOUR_MS)
    assert clock.settle() == 0
    machine.synchronised = True
    assert clock.settle() == 8 * _HOUR_MS
    assert clock.now_ms() == clock.shown_ms() == machine.wall_ms


def test_what_is_held_back_is_applied_once_the_clock_is_synchronised_if_it_was_at_the_mark() -> None:
    for before, applied_ms in ((True, 5 * _DAY_MS - _HOUR_MS), (False, 0)):
        machine = _Machine(synchronised=before)
        mark = machine.clock().mark()
        machine.boot(5 * _DAY_MS, synchronised=False)
        clock = machine.resumed(mark)
        machine.synchronised = True
        assert clock.settle() == applied_ms
        assert clock.now_ms() == START_MS + _HOUR_MS + applied_ms


def test_a_doubt_outlives_restarts_and_other_boots() -> None:
    """Each boot applies its own hour; what is right in the end is the time since the clock was last trusted."""
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


def test_without_a_boot_id_each_restart_is_another_boot() -> None:
    machine = _Machine(boot_id="")
    mark = machine.clock().mark()
    machine.run(3 * _HOUR_MS)
    assert machine.resumed(mark).now_ms() == START_MS + 3 * _HOUR_MS
    machine.synchronised = False
    assert machine.resumed(mark).now_ms() == START_MS + _HOUR_MS


def _says(status: int, answer: int = 0) -> SimpleNamespace:
    """Return a library whose kernel is asked for its clock."""

    def read(timex: Any) -> int:
        ctypes.c_int.from_buffer(timex, 40).value = status
        return answer

    return SimpleNamespace(ntp_adjtime=read)


@pytest.mark.parametrize(
    ("library", "synchronised"),
    [(_says(0x2001), True), (_says(0x41), False), (_says(0, answer=-1), False), (SimpleNamespace(), False)],
    ids=["synchronised", "not", "refused", "never asked"],
)
def test_the_kernel_says_whether_its_clock_is_synchronised(
    monkeypatch: pytest.MonkeyPatch, library: SimpleNamespace, synchronised: bool
) -> None:
    assert kernel_synchronised() in {True, False}, "this machine's"
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert kernel_synchronised() is synchronised
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError))  # a Python that loads no libraries
    assert not kernel_synchronised()


async def test_an_alarm_rings_not_before_its_instant() -> None:
    clock = SystemClock()
    at_ms = clock.now_ms() + 5
    rung: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    clock.call_at(at_ms, lambda: rung.set_result(clock.now_ms()))
    assert await asyncio.wait_for(rung, timeout=10) >= at_ms


async def test_an_alarm_that_the_loop_wakes_early_sleeps_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that is far looks each minute: the loop's clock stands still while the machine is suspended."""
    machine = _Machine()
    armed: list[tuple[float, Callable[[], None]]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", lambda *call: armed.append(call))
    rung: list[int] = []
    machine.clock().call_at(START_MS + 60_001, lambda: rung.append(machine.wall_ms))
    for ms in (60_000, 0, 1):
        assert rung == []
        machine.run(ms)
        armed[-1][1]()
    assert ([s for s, _ in armed], rung) == ([60, 0.001, 0.001], [START_MS + 60_001])


async def test_a_cancelled_alarm_does_not_ring() -> None:
    clock = SystemClock()
    rung: list[str] = []
    clock.call_at(clock.now_ms() + 1, lambda: rung.append("cancelled")).cancel()
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    clock.call_at(clock.now_ms() + 3, lambda: done.set_result(None))
    await asyncio.wait_for(done, timeout=10)
    assert rung == []


# The clock of a node, which agrees with its database's.


@pytest.fixture
def machine() -> VirtualClock:
    return VirtualClock()


def test_it_is_the_machines_until_it_knows_better(machine: VirtualClock) -> None:
    clock = DatabaseClock(machine)
    assert clock.now_ms() == START_MS
    machine.advance(500)
    clock.synchronize(START_MS + 200, sent_ms=START_MS)
    assert clock.now_ms() == START_MS + 500


def test_it_moves_no_further_than_it_must(machine: VirtualClock) -> None:
    """An answer that took 100 ms leaves that much open, and a millisecond on both sides for rounding."""
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


def test_it_never_runs_backwards(machine: VirtualClock) -> None:
    """It stands until the database has come up with it."""
    clock = DatabaseClock(machine)
    assert clock.now_ms() == START_MS
    clock.synchronize(START_MS - 1_000, sent_ms=START_MS)
    assert clock.now_ms() == START_MS
    machine.advance(2_000)
    assert clock.now_ms() == START_MS + 1_001


def test_its_timers_ring_by_the_databases_time(machine: VirtualClock) -> None:
    clock = DatabaseClock(machine)
    clock.synchronize(START_MS + 1_001, sent_ms=START_MS)
    rung: list[int] = []
    clock.call_at(START_MS + 5_000, lambda: rung.append(machine.now_ms() - START_MS))
    machine.advance(5_000)
    assert rung == [4_000]


@pytest.mark.parametrize("ahead_ms", [-4_000, 4_000])
def test_who_waits_looks_by_the_databases_time(postgres_url: str, ahead_ms: int) -> None:
    with hosting_postgres(postgres_url) as host:
        host.create()
        host.engine.watch(QUEUE, lambda due_ms: due_ms)
        host.run(set_clock(host.url, host.clock.now_ms() + ahead_ms + 1_000))
        host.in_loop(lambda: host.clock.advance(1_000))
        host.run(host.engine.drain())
        host.clock.catch_up(host.clock.now_ms() + 10_000)  # nobody looks meanwhile
        assert abs(host.engine.clock.now_ms() - host.clock.now_ms() - ahead_ms) <= 1


# The scheduler of work in the background: one slice at a time, at the instant at which it is due.


class Work:
    """Notes each slice that is begun, which ends when the test says so."""

    def __init__(self, **how: Any) -> None:
        self.clock = VirtualClock()
        self.begun: list[Any] = []
        self.scheduler = Scheduler(step=self.begun.append, clock=self.clock, **how)

    def counts(self, *times_ms: int) -> list[int]:
        counts = []
        for time_ms in times_ms:
            self.clock.advance(time_ms)
            counts.append(len(self.begun))
        return counts


def test_a_slice_is_begun_when_it_is_due_and_the_next_one_when_that_is() -> None:
    work = Work()
    work.scheduler.schedule(100)
    assert work.counts(99, 1, 1_000) == [0, 1, 1]
    work.begun[0](50)
    assert work.counts(49, 1) == [1, 2]
    work.begun[1](None)
    assert work.counts(1_000_000) == [2]


def test_the_earliest_instant_wins() -> None:
    work = Work()
    for after_ms in (100, 30, 60):
        work.scheduler.schedule(after_ms)
    assert work.counts(30, 1_000) == [1, 1]


def test_a_look_while_a_slice_is_under_way_is_not_lost() -> None:
    work = Work()
    work.scheduler.schedule(1)
    assert work.counts(1) == [1]
    work.scheduler.schedule(100)
    assert work.counts(50) == [1]
    work.begun[0](None)
    assert work.counts(49, 1) == [1, 2]


def test_after_an_error_it_tries_again_in_a_second() -> None:
    work = Work()
    work.scheduler.schedule(1)
    work.counts(1)
    work.begun[0](InternalError())
    assert work.counts(999, 1) == [1, 2]


def test_slices_rest_between_each_other_and_come_now_and_then_in_any_case() -> None:
    work = Work(pause_ms_min=10, poll_ms_max=1_000)
    work.scheduler.schedule(1)
    work.counts(1)
    work.begun[0](0)
    assert work.counts(9, 1) == [1, 2]
    work.begun[1](None)
    assert work.counts(999, 1) == [2, 3]


def test_after_the_stop_nothing_is_begun() -> None:
    work = Work()
    work.scheduler.schedule(1)
    work.scheduler.stop()
    work.scheduler.schedule(1)
    assert work.counts(1_000) == [0]


@pytest.mark.parametrize("ahead_ms", [-300_000, 300_000])
async def test_a_node_begins_at_the_databases_time(postgres_url: str, ahead_ms: int) -> None:
    """Not at its machine's: a clock that came to stand later would stop all timers for that long."""
    machine = VirtualClock()
    await empty(postgres_url)
    await set_clock(postgres_url, machine.now_ms() + ahead_ms)
    store = await Shards.open([postgres_url], clock=machine, options=RESTLESS)
    assert abs(store.clock.now_ms() - machine.now_ms() - ahead_ms) <= 1
    await store.close()

"""The node's clock that agrees with the database's."""

import pytest

from tests.store.host import QUEUE
from tests.store.postgres_host import hosting_postgres, set_clock
from veilmq.store.postgres.database import DatabaseClock
from veilmq.testing import VirtualClock
from veilmq.testing.clocks import START_MS


@pytest.fixture
def machine() -> VirtualClock:
    return VirtualClock()


def test_it_is_the_machines_until_it_knows_better(machine: VirtualClock) -> None:
    clock = DatabaseClock(machine)
    assert clock.now_ms() == START_MS
    machine.advance(500)
    clock.saw(START_MS + 200, sent_ms=START_MS)
    assert clock.now_ms() == START_MS + 500


def test_it_moves_no_further_than_it_must(machine: VirtualClock) -> None:
    """An answer that took 100 ms leaves that much open, and a millisecond on both sides for rounding."""
    clock = DatabaseClock(machine)
    machine.advance(100)
    clock.saw(START_MS + 5_000, sent_ms=START_MS)
    assert clock.now_ms() == START_MS + 100 + 4_899
    clock.saw(START_MS + 6_000, sent_ms=START_MS)
    assert clock.now_ms() == START_MS + 100 + 5_899
    machine.advance(5_000)
    clock.saw(START_MS + 5_100, sent_ms=START_MS + 5_100)
    machine.advance(10_000)
    assert clock.now_ms() == machine.now_ms() + 1


def test_it_never_runs_backwards(machine: VirtualClock) -> None:
    """It stands until the database has come up with it."""
    clock = DatabaseClock(machine)
    assert clock.now_ms() == START_MS
    clock.saw(START_MS - 1_000, sent_ms=START_MS)
    assert clock.now_ms() == START_MS
    machine.advance(2_000)
    assert clock.now_ms() == START_MS + 1_001


def test_its_timers_ring_by_the_databases_time(machine: VirtualClock) -> None:
    clock = DatabaseClock(machine)
    clock.saw(START_MS + 1_001, sent_ms=START_MS)
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
        host.run(host.engine.answered())
        host.clock.catch_up(host.clock.now_ms() + 10_000)  # nobody looks meanwhile
        assert abs(host.engine.clock.now_ms() - host.clock.now_ms() - ahead_ms) <= 1

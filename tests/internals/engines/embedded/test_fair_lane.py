"""Lanes of groups that share fairly: what they read, and what they keep of groups that stand aside."""

from pathlib import Path
from typing import Any

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store, rows_read
from veilmq.core import claims
from veilmq.core.commands import ShowQueue
from veilmq.core.limits import FAIR_IN_FLIGHT_MIN
from veilmq.core.looks import Peek
from veilmq.engines.embedded import aside, fair_lane

DEAD = "000000000000/dead"
MANY = 3 * FAIR_IN_FLIGHT_MIN


def _reads(store: Store) -> list[str]:
    """Collect the reads of groups' messages from now on."""
    seen: list[str] = []

    def trace(_cursor: Any, sql: str, _bindings: Any) -> bool:
        if "INDEXED BY message_group" in sql:
            seen.append(sql)
        return True

    connection = store.journal.begin()
    store.journal.roll_back()
    connection.exec_trace = trace
    return seen


def test_the_backlog_of_a_noisy_group_is_not_read_message_by_message() -> None:
    store = Store()
    store.create()
    store.send_to("n" * MANY)
    assert len(store.bodies(FAIR_IN_FLIGHT_MIN)) == FAIR_IN_FLIGHT_MIN
    reads = _reads(store)
    for _ in range(FAIR_IN_FLIGHT_MIN):
        assert len(store.bodies()) == 1
    assert reads == []
    store.close()


@pytest.mark.parametrize("room", [1, 5, 2 * MANY])
@pytest.mark.parametrize("before", [False, True], ids=["nobody-asked", "some-stand-aside"])
def test_a_peek_goes_past_as_many_returned_messages_as_may_stand_aside(
    monkeypatch: pytest.MonkeyPatch, room: int, *, before: bool
) -> None:
    """Behind so many of a noisy group the others come in their order, as in a receive: a look ends there too."""
    monkeypatch.setattr(aside, "LEASES_MAX", room)
    store = Store()
    store.create()
    store.send_to("n" * MANY)
    assert len(store.bodies(MANY - 10)) == MANY - 10
    store.now_ms += 29_999
    store.send_to("q")
    store.now_ms += 1
    if before:
        store.bodies()
    (peeked,) = store.run(Peek(queue=QUEUE, count=MANY + 1))
    shown = [each.body for each in peeked.messages]
    assert len(shown) == MANY + 1 - before
    assert store.bodies(MANY + 1) == shown
    store.close()


def test_dead_letters_that_end_while_their_group_stands_aside_are_not_given() -> None:
    store = Store()
    store.create(DEAD, retention_s=60)
    store.create(dead_letter_queue=DEAD, receives_max=1)
    store.send_to("n" * MANY)
    store.receive(MANY, timeout_s=0)
    store.now_ms += 30_000
    assert store.bodies(10) == []
    assert len(store.bodies(FAIR_IN_FLIGHT_MIN, queue=DEAD)) == FAIR_IN_FLIGHT_MIN
    assert len(store.bodies(queue=DEAD)) == 1
    store.now_ms += 30_000
    assert store.bodies(MANY, queue=DEAD) == []
    (view,) = store.run(ShowQueue(queue=DEAD, counts=True))
    assert (view.counts.visible, view.counts.in_flight) == (0, 0)
    assert store.count("message") == 0
    store.close()


def test_after_a_start_no_more_flights_are_read_than_a_command_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.create()
    store.send_to("n" * 5_000)
    assert len(store.bodies(5_000)) == 5_000
    store.close()
    store = Store(tmp_path)
    read = rows_read(monkeypatch, store, "flights")
    store.send_to("nq")
    assert store.bodies() == ["q2"]
    assert read == [3_000]
    store.close()


@pytest.mark.parametrize(("read_max", "first"), [(MANY, "q"), (2 * MANY, "e")])
def test_after_a_start_those_in_flight_that_land_last_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_max: int, first: str
) -> None:
    """Half are in flight of a group whose leases end early, and half of one whose leases end late."""
    monkeypatch.setattr(fair_lane, "_FLIGHTS_READ_MAX", read_max)
    store = Store(tmp_path)
    store.create()
    store.send_to("q" * MANY)
    store.receive(MANY, timeout_s=60)
    store.send_to("n" * MANY)
    store.receive(MANY, timeout_s=120)
    store.close()
    store = Store(tmp_path)
    store.send_to("nqe")
    assert store.bodies()[0][0] == first
    store.close()


@pytest.mark.parametrize(("read_max", "first"), [(MANY, "n"), (2 * MANY, "q")])
def test_after_a_start_flights_are_looked_for_among_so_many_hidden_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_max: int, first: str
) -> None:
    """Delayed ones, which become visible later, stand before them."""
    monkeypatch.setattr(fair_lane, "_HIDDEN_READ_MAX", read_max)
    store = Store(tmp_path)
    store.create()
    store.send_to("n" * MANY)
    store.receive(MANY, timeout_s=60)
    store.send_to("d" * MANY, delay_s=900)
    store.close()
    store = Store(tmp_path)
    store.send_to("nq")
    assert store.bodies()[0][0] == first
    store.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_claimed_messages_make_no_group_noisy(*, restarts: bool) -> None:
    """A reader takes what there is, of whichever group."""
    store = Store()
    store.create()
    store.send_to("n" * MANY)
    store.run(claims.OpenSource(queue=QUEUE, source="s"))
    store.run(claims.Claim(queue=QUEUE, source="s", epoch=1, number=1, messages_max=MANY))
    if restarts:
        store.machine.reload()
    store.send_to("nq")
    assert store.bodies(1)[0][0] == "n"
    store.close()

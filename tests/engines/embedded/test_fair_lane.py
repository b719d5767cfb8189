"""Lanes of groups that share fairly: what they read, and what they keep of groups that stand aside."""

from typing import Any

from tests.engines.embedded.store import Store
from veilmq.core.commands import ShowQueue
from veilmq.core.limits import FAIR_IN_FLIGHT_MIN

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

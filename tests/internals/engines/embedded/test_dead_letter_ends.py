"""Dead letters whose retention ends in masses, and stores that have no room to move them: without a janitor's help."""

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import Delete, ListMoves, Receive, SetQueue, ShowQueue, StartMove
from veilmq.core.results import MoveStatus
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.janitor import Sweep
from veilmq.engines.embedded.moves import MoveStep

DEAD = "000000000000/dead"
LONG_S = 1_209_600
MANY = 2_300  # a command deletes 500 that have ended, a receive twice as many


def _visible(store: Store, queue: str) -> int:
    (view,) = store.run(ShowQueue(queue=queue, counts=True))
    visible: int = view.counts.visible
    return visible


@pytest.fixture
def store() -> Store:
    """Return a store with many dead letters, first sent a minute ago."""
    store = Store()
    store.create(DEAD, retention_s=LONG_S)
    store.create(dead_letter_queue=DEAD, receives_max=1, retention_s=LONG_S)
    for start in range(0, MANY, 100):
        store.send(*(str(number) for number in range(start, start + 100)))
    store.receive(MANY, timeout_s=0)
    store.now_ms += 60_000
    while _visible(store, QUEUE):
        store.receive(10)
    return store


def test_none_that_has_ended_is_delivered_or_found_however_many_there_are(store: Store) -> None:
    store.now_ms += 1
    assert len(store.receive(MANY - 1, timeout_s=0, queue=DEAD).messages) == MANY - 1
    (last,) = store.receive(1, timeout_s=40_000, queue=DEAD).messages
    store.send("living", queue=DEAD)
    store.run(SetQueue(queue=DEAD, settings={"retention_s": 60}))
    ((gone,),) = store.run(Delete(queue=DEAD, receipts=(last.receipt,)))
    assert gone.value == "gone"
    assert store.count("message") == MANY - 500 + 1
    in_vain = store.receive(10, queue=DEAD)
    assert (in_vain.messages, in_vain.next_due_ms) == ([], store.now_ms)
    assert store.bodies(10, queue=DEAD) == ["living"]
    assert store.count("message") == 1
    store.close()


def test_the_janitor_sweeps_what_is_left_and_a_task_waits_for_it(store: Store) -> None:
    store.send("living", queue=DEAD)
    store.run(StartMove(source=DEAD, destination=QUEUE))
    store.run(SetQueue(queue=DEAD, settings={"retention_s": 60}))
    store.run(MoveStep())
    ((task,),) = store.run(ListMoves(source=DEAD))
    assert (task.status, task.messages_moved) == (MoveStatus.RUNNING, 0)
    for _ in range(10):
        store.run(Sweep())
    assert store.count("message") == 1
    store.now_ms += 10
    store.run(MoveStep())
    store.now_ms += 10
    store.run(MoveStep())
    ((task,),) = store.run(ListMoves(source=DEAD))
    assert (task.status, task.messages_moved) == (MoveStatus.COMPLETED, 1)
    store.close()


def test_without_a_lane_that_could_be_opened_messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.create(DEAD)
    store.create(dead_letter_queue=DEAD, receives_max=1)
    store.send("a", "b")
    with monkeypatch.context() as patch:
        patch.setattr(positions, "LANES_MAX", 1)
        for _ in range(3):
            assert store.bodies(10, timeout_s=0) == ["a", "b"]
    assert store.bodies(10) == []
    assert _visible(store, DEAD) == 2
    store.create("000000000000/back")
    store.run(StartMove(source=DEAD, destination="000000000000/back"))
    with monkeypatch.context() as patch:
        patch.setattr(positions, "LANES_MAX", 1)
        store.run(MoveStep())
        assert _visible(store, DEAD) == 2
    store.now_ms += 10
    store.run(MoveStep())
    (received,) = store.run(Receive(queue="000000000000/back", count=10))
    assert [each.body for each in received.messages] == ["a", "b"]
    store.close()

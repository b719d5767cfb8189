"""Retention really deletes, purges are swept in slices, and drained space goes back to the disk."""

from pathlib import Path

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import DeleteQueue, PurgeQueue, SetQueue, ShowQueue
from veilmq.core.results import QueueCounts
from veilmq.engines.embedded.janitor import Sweep
from veilmq.engines.embedded.run import NEVER_MS


def _counts(store: Store) -> QueueCounts:
    (view,) = store.run(ShowQueue(queue=QUEUE, counts=True))
    counts: QueueCounts = view.counts
    return counts


def _sweep_all(store: Store) -> int:
    slices = 0
    while True:
        (swept,) = store.run(Sweep())
        slices += 1
        assert slices < 1_000
        if not swept.more:
            return slices


def test_a_message_is_deleted_at_the_end_of_its_retention_also_in_flight_and_delayed() -> None:
    store = Store()
    store.create(retention_s=60)
    store.send("fresh", "in flight")
    store.send("delayed", delay_s=100)
    receipt = store.receive().messages[0].receipt
    store.change(receipt, 120)
    store.now_ms += 59_999
    assert (_counts(store).visible, _counts(store).in_flight, _counts(store).delayed) == (1, 1, 1)
    store.now_ms += 1
    assert store.bodies(10) == []
    assert store.delete(receipt)[0].value == "gone"
    _sweep_all(store)
    assert (store.count("message"), store.count("lease")) == (0, 0)
    counts = _counts(store)
    assert (counts.visible, counts.in_flight, counts.delayed, counts.oldest_sent_at_ms) == (0, 0, 0, None)
    store.close()


def test_a_shorter_retention_ends_what_is_older_and_a_longer_one_brings_nothing_back(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create()
    store.send("old")
    store.now_ms += 60_000
    store.send("young")
    store.run(SetQueue(queue=QUEUE, settings={"retention_s": 60}))
    assert store.bodies(10, timeout_s=0) == ["young"]
    store.run(SetQueue(queue=QUEUE, settings={"retention_s": 3_600}))
    store.close()
    again = Store(tmp_path)
    again.now_ms = store.now_ms
    assert again.bodies(10, timeout_s=0) == ["young"]
    _sweep_all(again)
    assert again.count("message") == 1
    again.close()


def test_a_purge_is_swept_in_slices_and_its_lane_is_forgotten() -> None:
    store = Store()
    store.create()
    for _ in range(25):
        store.send(*["x"] * 100)
    store.run(PurgeQueue(queue=QUEUE))
    assert store.count("message") == 2_500
    assert _sweep_all(store) == 3  # 1,000 rows a slice
    assert (store.count("message"), store.count("lane")) == (0, 0)
    store.close()


def test_many_purges_are_swept_in_a_few_slices() -> None:
    store = Store()
    store.create()
    for _ in range(300):
        store.send("x")
        store.run(PurgeQueue(queue=QUEUE))
    assert len(store.machine.catalog.retired) == 300
    assert _sweep_all(store) <= 4
    assert store.machine.catalog.retired == {}
    store.close()


def test_a_deleted_queue_is_swept_after_a_restart_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create()
    store.send("a", "b")
    store.receive()
    store.run(DeleteQueue(queue=QUEUE))
    store.close()
    again = Store(tmp_path)
    _sweep_all(again)
    assert (again.count("message"), again.count("lease"), again.count("lane")) == (0, 0, 0)
    again.close()


def test_drained_space_goes_back_to_the_disk(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.create()
    for _ in range(60):
        store.send(*["x" * 100_000] * 10)
    store.run(PurgeQueue(queue=QUEUE))
    _sweep_all(store)
    assert (tmp_path / "veilmq.db").stat().st_size < 20_000_000  # 60 MB were there; 16 MiB are kept for reuse
    store.close()


def test_it_looks_again_when_the_next_message_may_end_and_within_a_minute() -> None:
    store = Store()
    (swept,) = store.run(Sweep())
    assert swept.next_due_ms == NEVER_MS
    store.create(retention_s=90)
    store.send("a")
    (swept,) = store.run(Sweep())
    assert swept.next_due_ms == store.now_ms + 60_000
    store.now_ms += 60_000
    (swept,) = store.run(Sweep())
    assert swept.next_due_ms == store.now_ms + 30_000
    store.close()

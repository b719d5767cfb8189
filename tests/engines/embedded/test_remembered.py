"""What is older than five minutes is deleted, in slices; nothing younger is."""

import pytest

from tests.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import PurgeQueue, Receive
from veilmq.engines.embedded.janitor import Sweep
from veilmq.engines.embedded.remembered import Remembered
from veilmq.engines.embedded.run import NEVER_MS


def _fill(store: Store, rows: int, accepted_at_ms: int) -> None:
    for number in range(rows):
        key = (number * 7_919 % rows).to_bytes(16)
        store.journal.deduplications.put((key,), (bytes(16), number, accepted_at_ms + number % 2))


@pytest.mark.parametrize("rows_max", [1, 7, 1_000])
def test_a_round_deletes_what_is_five_minutes_old(rows_max: int) -> None:
    store = Store()
    _fill(store, 40, 1_000)
    remembered = Remembered(journal=store.journal)
    slices = 0
    while remembered.sweep(rows_max, 301_000):
        slices += 1
    ((left,),) = store.journal.begin().execute("SELECT count(*) FROM deduplication")
    assert left == 20
    assert slices >= 40 // rows_max
    store.close()


def test_the_next_round_is_due_in_five_minutes_if_anything_is_left() -> None:
    store = Store()
    remembered = Remembered(journal=store.journal)
    assert remembered.due_ms() == NEVER_MS
    _fill(store, 2, 1_000)
    while remembered.sweep(10, 2_000):
        pass
    assert remembered.due_ms() == 302_000
    assert remembered.sweep(10, 301_999) == 0
    while remembered.sweep(10, 302_000):
        pass
    assert remembered.due_ms() == NEVER_MS
    store.close()


def test_the_janitor_forgets_duplicates_attempts_and_the_turns_of_a_purged_queue() -> None:
    store = Store()
    store.create(fifo=True)
    store.send_to("abcdefghij" * 3)
    store.run(Receive(queue=QUEUE, count=3, attempt_id="x"))
    store.run(PurgeQueue(queue=QUEUE))
    assert [store.count(table) for table in ("turn", "deduplication", "attempt")] == [10, 30, 1]
    _sweep_all(store)
    assert [store.count(table) for table in ("turn", "lane", "deduplication", "attempt")] == [0, 0, 30, 1]
    store.now_ms += 300_000
    _sweep_all(store)
    assert [store.count(table) for table in ("deduplication", "attempt")] == [0, 0]
    store.close()


def _sweep_all(store: Store) -> None:
    while store.run(Sweep())[0].more:
        pass

"""What is older than five minutes is deleted, in slices; nothing younger is."""

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import PurgeQueue, Receive
from veilmq.engines.embedded.janitor import Sweep
from veilmq.engines.embedded.remembered import Remembered
from veilmq.engines.embedded.run import NEVER_MS


def _fill(store: Store, rows: int, now_ms: int) -> None:
    """Remember an attempt and two acceptances a batch; the first half of them an instant before the others."""
    for number in range(rows):
        at_ms = now_ms + (number >= rows // 2)
        store.journal.attempts.put(((number * 7_919 % rows).to_bytes(16),), (b"", at_ms))
        for each in (2 * number, 2 * number + 1):
            store.journal.accepted.add(each.to_bytes(16), bytes(16), each, at_ms)
        store.journal.flush()


@pytest.mark.parametrize("rows_max", [1, 7, 1_000])
def test_a_round_deletes_what_is_five_minutes_old(rows_max: int) -> None:
    store = Store()
    _fill(store, 40, 1_000)
    remembered = Remembered(journal=store.journal)
    slices = 0
    while remembered.sweep(rows_max, 301_000):
        slices += 1
    for table in ("attempt", "accepted"):
        ((left,),) = store.journal.begin().execute(f"SELECT count(*) FROM {table}")
        assert left == 20
    assert slices >= 40 // rows_max
    found = [store.journal.accepted.find(number.to_bytes(16)) for number in range(80)]
    assert [each is not None for each in found] == [False] * 40 + [True] * 40
    store.close()


def test_attempts_are_looked_through_once_in_five_minutes() -> None:
    store = Store()
    remembered = Remembered(journal=store.journal)
    assert remembered.due_ms() == NEVER_MS
    store.journal.attempts.put((bytes(16),), (b"", 1_000))
    _sweep(remembered, 2_000)
    assert remembered.due_ms() == 302_000
    assert remembered.sweep(10, 301_999) == 0
    _sweep(remembered, 302_000)
    assert remembered.due_ms() == NEVER_MS
    store.close()


def test_what_was_accepted_is_looked_at_when_the_first_is_old_but_not_twice_in_a_minute() -> None:
    store = Store()
    remembered = Remembered(journal=store.journal)
    store.journal.accepted.add(bytes(16), bytes(16), 1, 1_000)
    _sweep(remembered, 2_000)
    assert remembered.due_ms() == 301_000
    _sweep(remembered, 300_999)
    assert store.journal.accepted.find(bytes(16)) is not None
    assert remembered.due_ms() == 360_999
    assert remembered.sweep(10, 360_998) == 0
    _sweep(remembered, 360_999)
    assert store.journal.accepted.find(bytes(16)) is None
    assert remembered.due_ms() == NEVER_MS
    store.close()


def _sweep(remembered: Remembered, now_ms: int) -> None:
    while remembered.sweep(10, now_ms):
        pass


def test_the_janitor_forgets_duplicates_attempts_and_the_turns_of_a_purged_queue() -> None:
    store = Store(ready_window_messages=1)  # then turns have rows soon
    store.create(fifo=True)
    store.send_to("abcdefghij" * 3)
    store.run(Receive(queue=QUEUE, count=3, attempt_id="x"))
    store.run(PurgeQueue(queue=QUEUE))
    assert [store.count(table) for table in ("turn", "accepted", "attempt")] == [10, 1, 1]
    _sweep_all(store)
    assert [store.count(table) for table in ("turn", "lane", "accepted", "attempt")] == [0, 0, 1, 1]
    store.now_ms += 300_000
    _sweep_all(store)
    assert [store.count(table) for table in ("accepted", "attempt")] == [0, 0]
    store.close()


def _sweep_all(store: Store) -> None:
    while store.run(Sweep())[0].more:
        pass

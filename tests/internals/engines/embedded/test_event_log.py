"""The event log by itself: no janitor comes, and commands share batches as a test wants it."""

from typing import Any

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import Delete, NewMessage, Receive, Send
from veilmq.core.events import decode
from veilmq.core.properties import Attribute, Properties, encode
from veilmq.engines.embedded import event_log
from veilmq.engines.embedded.janitor import Sweep


def logged(**settings: Any) -> Store:
    """Return a store with a logged queue."""
    store = Store(event_log="closed")
    store.create(**settings)
    return store


def outcomes(store: Store) -> list[tuple[int, str]]:
    """Return receive count and outcome of each event."""
    rows = store.journal.rows("events_between", 1, 1 << 60)
    return [(event.receive_count, event.outcome.value) for _, _, batch in rows for event in decode(batch)]


def test_a_late_delete_finds_an_expiry_that_was_seen_in_its_batch() -> None:
    store = logged()
    store.send("a")
    receipt = store.receive(timeout_s=1).messages[0].receipt
    store.now_ms += 2_000
    store.run(Receive(queue=QUEUE), Delete(queue=QUEUE, receipts=(receipt,)))
    assert outcomes(store) == [(1, "expired"), (1, "late_deleted")]
    store.delete(receipt)
    assert outcomes(store) == [(1, "expired"), (1, "late_deleted")]
    store.close()


def test_a_late_delete_of_an_earlier_receipt_does_not_end_the_one_that_retention_ended() -> None:
    """Its message is out of reach, and not swept yet."""
    store = logged(retention_s=60)
    store.send("a")
    first = store.receive(timeout_s=1).messages[0].receipt
    store.now_ms += 2_000
    second = store.receive(timeout_s=600).messages[0].receipt
    store.now_ms += 60_000
    for _ in range(2):
        store.delete(first)
    assert outcomes(store) == [(1, "expired"), (1, "late_deleted")]
    store.delete(second)
    assert outcomes(store)[2:] == [(2, "expired"), (2, "late_deleted")]
    store.close()


def test_no_more_receipts_that_expired_are_kept_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go, long before their day is over."""
    monkeypatch.setattr(event_log, "EXPIRED_KEPT_MAX", 2)
    store = logged()
    store.send("a", "b", "c", "d", "e")
    receipts = [each.receipt for each in store.receive(5, timeout_s=1).messages]
    store.now_ms += 2_000
    store.receive(5)
    store.run(Sweep())
    assert store.count("expired_receipt") == 2
    store.delete(*receipts)
    assert [outcome for _, outcome in outcomes(store)].count("late_deleted") == 2
    store.close()


def test_large_properties_are_not_remembered() -> None:
    """What is remembered of very many messages must not take more memory than their number says."""
    store = logged()
    properties = encode(Properties(attributes={"Type": Attribute("String", "x" * 5_000)}))
    store.run(Send(queue=QUEUE, messages=(NewMessage(body="a", properties=properties, size_bytes=5_000),)))
    store.delete(store.receive().messages[0].receipt)
    log = store.machine.events
    assert (log._facts, log._keys) == ({}, {})
    store.close()

"""The event log of the SQLite store: late deletes, logged receipts, batches, and the packed ``log`` of a lease."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import LOGGED, QUEUE, Host, events_of, message, outcomes
from veilmq.core.commands import Command, Delete, Receive, Send
from veilmq.core.errors import InternalError, StoreFull, VeilmqError
from veilmq.core.messages import NewMessage
from veilmq.core.receipts import CountEvents, EventCounts
from veilmq.store.events import log_begun, log_extended, log_placed, read_log
from veilmq.store.sqlite import event_log, settling
from veilmq.store.sqlite.transaction import HANDLERS, handler
from veilmq.store.transaction import Transaction


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "store", options=LOGGED)
    host.create()
    yield host
    assert host.failures == []
    host.close()


# Late deletes.


def test_a_late_delete_finds_an_expiry_recorded_in_its_batch(host: Host) -> None:
    host.send("a")
    receipt = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    host.do_together(Receive(queue=QUEUE), Delete(queue=QUEUE, receipts=(receipt,)))
    host.delete(receipt)
    assert outcomes(host) == [("expired", 1_000), ("late_deleted", 2_000)]


def test_two_deletes_in_one_batch_end_a_receipt_once(host: Host) -> None:
    """The second one still finds a row in the database."""
    host.send("a")
    receipt = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    delete = Delete(queue=QUEUE, receipts=(receipt, receipt))
    host.do_together(delete, delete)
    assert outcomes(host) == [("expired", 1_000), ("late_deleted", 2_000)]


def test_a_late_delete_by_an_earlier_receipt_does_not_end_the_receipt_that_retention_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is expired, and not deleted yet."""
    host.set_queue(retention_s=60)
    host.stop()
    monkeypatch.setattr(settling, "_expire", lambda *_: [])
    host.send("a")
    first = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    second = host.receive_one(timeout_s=600).receipt
    host.advance(60_000)
    for _ in range(2):
        host.delete(first)
    assert outcomes(host) == [("expired", 1_000), ("late_deleted", 62_000)]
    for _ in range(2):
        host.delete(second)
    assert outcomes(host)[2:] == [("expired", 58_000), ("late_deleted", 60_000)]


@pytest.mark.parametrize("fifo", [False, True])
def test_a_late_delete_in_a_purged_partition_is_logged(host: Host, fifo: bool) -> None:
    """It finds its receipt before the janitor runs, even if another queue was purged, too; the event has its group."""
    name = f"000000000000/{'b.fifo' if fifo else 'b'}"
    host.create(name, fifo=fifo)
    host.stop()
    for queue in (QUEUE, name):
        host.put(message("a", group="g", dedup_id="1"), queue=queue)
    late = host.receive_one(queue=name).receipt
    host.purge()
    host.advance(1_000)
    host.purge(name)
    host.advance(1_000)
    for _ in range(2):
        host.delete(late, queue=name)
    host.sweep()
    found = events_of(host)
    assert [(each.outcome.value, each.held_ms) for each in found] == [("expired", 1_000), ("late_deleted", 2_000)]
    assert all(each.group_hash is not None for each in found)
    assert host.rows("part") == 2


def test_the_number_of_expired_receipts_is_limited(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.store.sqlite.event_log.EXPIRED_KEPT_MAX", 2)
    host.send("a", "b", "c", "d", "e")
    receipts = [each.receipt for each in host.receive(5, timeout_s=1)]
    host.advance(2_000)
    host.receive(5)
    log = host.engine._session.events
    assert [log.sweep(2) for _ in range(2)] == [True, False]
    assert host.rows("expired_receipt") == 2
    host.delete(*receipts)
    assert [outcome for outcome, _ in outcomes(host)].count("late_deleted") == 2


# Logged receipts.


@pytest.mark.parametrize("fifo", [False, True])
def test_the_event_of_a_delete_has_the_data_of_the_receive(host: Host, fifo: bool) -> None:
    name = f"000000000000/{'b.fifo' if fifo else 'b'}"
    host.create(name, fifo=fifo)
    new = [message(body, group="g" if fifo else None, dedup_id=body, kind="x") for body in ("a", "bä", "c")]
    host.put(*new, queue=name)
    host.advance(1_000)
    received = host.receive(3, queue=name)
    host.delete(*[each.receipt for each in received], queue=name)
    events = events_of(host)
    assert [(each.outcome.value, each.key, each.size_bucket, each.receive_count) for each in events] == [
        ("deleted", "x", 2, 1),
        ("deleted", "x", 4, 1),
        ("deleted", "x", 2, 1),
    ]
    assert [(each.batch_size, each.batch_position, each.message_id) for each in events] == [
        (3, place, each.id) for place, each in enumerate(received)
    ]
    assert {(each.sent_at_ms, each.received_at_ms, each.group_hash is not None) for each in events} == {
        (host.clock.now_ms() - 1_000, host.clock.now_ms(), fifo)
    }


@pytest.mark.parametrize("end", ["deletes", "releases"])
@pytest.mark.parametrize("fifo", [False, True])
def test_a_receipt_issued_while_logging_was_off_has_no_event(host: Host, fifo: bool, end: str) -> None:
    """Its message was received before, when its queue was logged, and that receipt's end was never recorded."""
    name = f"000000000000/{'b.fifo' if fifo else 'b'}"
    host.create(name, fifo=fifo)
    host.put(message("a", group="g", dedup_id="1"), queue=name)
    host.receive_one(queue=name)
    host.advance(30_000)
    host.set_queue(name, event_log="off")
    second = host.receive_one(queue=name)
    host.set_queue(name, event_log=None)
    if end == "deletes":
        host.delete(second.receipt, queue=name)
        assert outcomes(host) == []
        return
    host.change(second.receipt, 0, queue=name)
    host.delete(host.receive_one(queue=name).receipt, queue=name)
    assert outcomes(host) == [("deleted", 0)]


def test_events_have_the_hash_of_the_group_name(host: Host) -> None:
    """Also in a FIFO queue, where a group gets a new number after a while without messages."""
    name = "000000000000/b.fifo"
    host.create(name, fifo=True)
    host.create("000000000000/fair")
    for count, queue in enumerate((name, name, "000000000000/fair")):
        host.put(message("a", group="g", dedup_id=str(count)), queue=queue)
        host.delete(host.receive_one(queue=queue).receipt, queue=queue)
        host.sweep()
    assert host.rows("message_group") == 0
    assert len({event.group_hash for event in events_of(host)}) == 1


# Batches.


def test_a_failed_command_leaves_no_event(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of other commands in its batch remain; a repeated command creates its event."""
    host.send("a", "b", "bad")
    a, b, bad = host.receive(3)
    record = event_log.EventLog._record

    def failing(log: Any, logged: Any, lease: list[Any], *rest: Any) -> Any:
        event = record(log, logged, lease, *rest)
        if bad.id in lease:
            raise RuntimeError("a defect")
        return event

    monkeypatch.setattr(event_log.EventLog, "_record", failing)
    results = host.do_together(*(Delete(queue=QUEUE, receipts=(each.receipt,)) for each in (a, bad, b)))
    assert isinstance(results[1], InternalError)
    assert outcomes(host) == [("deleted", 0)] * 2
    monkeypatch.setattr(event_log.EventLog, "_record", record)
    host.delete(bad.receipt)
    assert outcomes(host) == [("deleted", 0)] * 3
    host.check()


def test_an_error_of_a_cold_command_keeps_earlier_events(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written before the savepoint, so that a later command counts them."""

    class Fail(Command, frozen=True, kw_only=True):
        """Fail."""

    async def fail(tx: Transaction, command: Fail) -> None:
        raise StoreFull

    monkeypatch.setitem(HANDLERS, Fail, handler(fail, changes=True))  # type: ignore[misc]
    host.send("a", "b")
    first, second = (Delete(queue=QUEUE, receipts=(each.receipt,)) for each in host.receive(2))
    _, error, counts, _ = host.do_together(first, Fail(), CountEvents(), second)
    assert isinstance(error, VeilmqError)
    assert counts == EventCounts(recorded=1, exported=0, dropped=0)
    assert len(outcomes(host)) == 2


def test_events_are_dropped_on_a_nearly_full_disk(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expired receipts are dropped, too, so late deletes are not logged."""
    host.send("a")
    late = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    monkeypatch.setattr(host.engine._session.database, "_read_space", lambda: True)
    host.engine._session.database.check_space()
    second = host.receive_one().receipt
    host.delete(late)
    host.delete(second)
    assert host.do(CountEvents()) == EventCounts(recorded=0, exported=0, dropped=2)
    assert host.rows("expired_receipt") == 0


def test_a_queue_without_a_log_writes_no_events(tmp_path: Path) -> None:
    host = Host(tmp_path / "store", options=replace(LOGGED, event_log="off"))
    host.create()
    host.do(Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),)))
    host.receive_one(timeout_s=1)
    host.advance(1_000)
    host.change(host.receive_one().receipt, 0)
    assert host.rows("visibility WHERE log <> 0") == 0
    host.delete(host.receive_one().receipt)
    host.purge()
    assert [host.rows(table) for table in ("event_batch", "expired_receipt", "part WHERE log_queue <> ''")] == [0] * 3
    host.close()


# The packed log of a lease; values that are too large become the maximum.


def test_a_common_log_takes_few_bytes() -> None:
    assert log_placed(log_begun(10, 0), 9) < 1 << 18


@pytest.mark.parametrize("times", [1, 2])
def test_values_that_are_too_large_become_the_maximum(times: int) -> None:
    log = log_placed(log_begun(255 * times, ((1 << 29) - 1) * times), 255 * times)
    for _ in range(0xFFFF * times):
        log = log_extended(log)
    assert read_log(log) == (0xFFFF, 255, 255, (1 << 29) - 1)
    assert log < 1 << 63

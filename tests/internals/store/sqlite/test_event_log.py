"""The event log of the store on SQLite: what is kept for late deletes, and what is undone, forgotten and shared."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import LOGGED, QUEUE, Host, events_of, message, outcomes
from veilmq.core.commands import Command, Delete, Receive, Send
from veilmq.core.errors import InternalError, StoreFull, VeilmqError
from veilmq.core.messages import Attribute, NewMessage, Properties, encode_properties
from veilmq.core.receipts import CountEvents, EventCounts
from veilmq.store import events
from veilmq.store.events import LOG_CLOSED, log_begun, log_extended, log_is_open, log_placed, read_log
from veilmq.store.sqlite import event_log, settling
from veilmq.store.sqlite.transaction import HANDLERS, driven
from veilmq.store.transaction import Transaction


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "store", options=LOGGED)
    host.create()
    yield host
    assert host.failures == []
    host.close()


# Late deletes.


def test_a_late_delete_finds_an_expiry_that_was_seen_in_its_batch(host: Host) -> None:
    host.send("a")
    receipt = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    host.do_together(Receive(queue=QUEUE), Delete(queue=QUEUE, receipts=(receipt,)))
    host.delete(receipt)
    assert outcomes(host) == [("expired", 1_000), ("late_deleted", 2_000)]


def test_two_deletes_of_one_batch_are_one_end(host: Host) -> None:
    """The second one finds a row that is not deleted in the database yet."""
    host.send("a")
    receipt = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    delete = Delete(queue=QUEUE, receipts=(receipt, receipt))
    host.do_together(delete, delete)
    assert outcomes(host) == [("expired", 1_000), ("late_deleted", 2_000)]


def test_a_late_delete_of_an_earlier_receipt_does_not_end_the_one_that_retention_ended(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message is out of reach, and not swept yet."""
    host.set_queue(retention_s=60)
    host.stop()
    monkeypatch.setattr(settling, "_delete_expired", lambda *_: [])
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
def test_a_purged_partition_that_is_not_swept_yet(host: Host, fifo: bool) -> None:
    """A late delete finds its receipt there, whichever queue was purged beside it; group and all."""
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


def test_no_more_receipts_that_expired_are_kept_than_so_many(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
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


# What is logged.


@pytest.mark.parametrize("remembers", [False, True])
@pytest.mark.parametrize("fifo", [False, True])
def test_a_delete_in_time_reads_no_lease(
    host: Host, monkeypatch: pytest.MonkeyPatch, fifo: bool, remembers: bool
) -> None:
    """What its event says is remembered from the receive; where that was dropped it is read, and is the same."""
    name = f"000000000000/{'b.fifo' if fifo else 'b'}"
    host.create(name, fifo=fifo)
    new = [message(body, group="g" if fifo else None, dedup_id=body, kind="x") for body in ("a", "bä", "c")]
    host.put(*new, queue=name)
    host.advance(1_000)
    given = host.receive(3, queue=name)
    if not remembers:
        host.forget()
    read: list[int] = []
    find = event_log.EventLog.find

    def counting(log: event_log.EventLog, partition: int, seqs: Iterable[int], *, fifo: bool) -> list[Any]:
        read.extend(seqs := list(seqs))
        return find(log, partition, seqs, fifo=fifo)

    monkeypatch.setattr(event_log.EventLog, "find", counting)
    host.delete(*[each.receipt for each in given], queue=name)
    assert len(read) == (0 if remembers else 3)
    events = events_of(host)
    assert [(each.outcome.value, each.key, each.size_bucket, each.receive_count) for each in events] == [
        ("deleted", "x", 2, 1),
        ("deleted", "x", 4, 1),
        ("deleted", "x", 2, 1),
    ]
    assert [(each.batch_size, each.batch_position, each.message_id) for each in events] == [
        (3, place, each.id) for place, each in enumerate(given)
    ]
    assert {(each.sent_at_ms, each.received_at_ms, each.group_hash is not None) for each in events} == {
        (host.clock.now_ms() - 1_000, host.clock.now_ms(), fifo)
    }


def test_no_more_leases_are_remembered_than_so_many(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "_LEASES_MAX", 2)
    host.send("a", "b", "c")
    given = host.receive(3)
    assert len(host.engine._session.events.leases) == 1
    host.delete(*[each.receipt for each in given])
    assert outcomes(host) == [("deleted", 0)] * 3


@pytest.mark.parametrize("end", ["deletes", "releases"])
@pytest.mark.parametrize("fifo", [False, True])
def test_a_receipt_that_was_given_while_nothing_was_logged_has_no_event(host: Host, fifo: bool, end: str) -> None:
    """Though its message was received before, when its queue was logged, and the end of that was never seen."""
    name = f"000000000000/{'b.fifo' if fifo else 'b'}"
    host.create(name, fifo=fifo)
    host.put(message("a", group="g", dedup_id="1"), queue=name)
    host.receive_one(queue=name)
    host.advance(30_000)
    host.set_queue(name, event_log="off")
    again = host.receive_one(queue=name)
    host.set_queue(name, event_log=None)
    if end == "deletes":
        host.delete(again.receipt, queue=name)
        assert outcomes(host) == []
        return
    host.change(again.receipt, 0, queue=name)
    host.delete(host.receive_one(queue=name).receipt, queue=name)
    assert outcomes(host) == [("deleted", 0)]


def test_the_group_of_a_message_is_told_by_the_hash_of_its_name(host: Host) -> None:
    """In a FIFO queue too, where the number of a group changes when it has had no messages for a while."""
    name = "000000000000/b.fifo"
    host.create(name, fifo=True)
    host.create("000000000000/fair")
    for count, queue in enumerate((name, name, "000000000000/fair")):
        host.put(message("a", group="g", dedup_id=str(count)), queue=queue)
        host.delete(host.receive_one(queue=queue).receipt, queue=queue)
        host.sweep()
    assert host.rows("message_group") == 0
    assert len({event.group_hash for event in events_of(host)}) == 1


def test_large_properties_are_not_remembered() -> None:
    """What is remembered of very many messages must not take more memory than their number says."""
    events._cached_key.cache_clear()
    for size in (10, 5_000):
        attributes = {"Type": Attribute("String", "resize"), "more": Attribute("String", "x" * size)}
        assert events.routing_key(encode_properties(Properties(attributes=attributes)), "Type") == "resize"
    assert events._cached_key.cache_info().currsize == 1


# Batches.


def test_events_are_shown_in_the_time_that_users_see(host: Host) -> None:
    """As of their writing; what is kept for a late delete is time of the store."""
    host.send("a")
    late = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    host.clock.step_wall(10_000)
    host.receive_one()
    host.clock.step_wall(90_000)
    host.delete(late)
    expired, corrected = events_of(host)
    assert corrected.received_at_ms - expired.received_at_ms == 90_000
    assert (expired.held_ms, corrected.held_ms) == (1_000, 2_000)


def test_a_command_that_fails_leaves_no_event(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the other commands in its batch stay, and what it wanted is done when it comes again."""
    host.send("a", "b", "bad")
    a, b, bad = host.receive(3)
    note = event_log.EventLog._record

    def failing(log: Any, logged: Any, lease: list[Any], *rest: Any) -> Any:
        event = note(log, logged, lease, *rest)
        if bad.id in lease:
            raise RuntimeError("a defect")
        return event

    monkeypatch.setattr(event_log.EventLog, "_record", failing)
    answers = host.do_together(*(Delete(queue=QUEUE, receipts=(each.receipt,)) for each in (a, bad, b)))
    assert isinstance(answers[1], InternalError)
    assert outcomes(host) == [("deleted", 0)] * 2
    monkeypatch.setattr(event_log.EventLog, "_record", note)
    host.delete(bad.receipt)
    assert outcomes(host) == [("deleted", 0)] * 3
    host.check()


def test_an_error_of_a_cold_command_leaves_the_events_before_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are written before the savepoint; a command that counts them is behind what came before it."""

    class Fail(Command, frozen=True, kw_only=True):
        """Fail."""

    async def fail(tx: Transaction, command: Fail) -> None:
        raise StoreFull

    monkeypatch.setitem(HANDLERS, Fail, driven(fail, changes=True))  # type: ignore[misc]
    host.send("a", "b")
    first, second = (Delete(queue=QUEUE, receipts=(each.receipt,)) for each in host.receive(2))
    _, error, counts, _ = host.do_together(first, Fail(), CountEvents(), second)
    assert isinstance(error, VeilmqError)
    assert counts == EventCounts(recorded=1, exported=0, dropped=0)
    assert len(outcomes(host)) == 2


def test_a_nearly_full_disk_takes_no_events(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor receipts that expired, of which no late delete is told then."""
    host.send("a")
    late = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    monkeypatch.setattr(host.engine._session.database, "_read_space", lambda: True)
    host.engine._session.database.check_space()
    again = host.receive_one().receipt
    host.delete(late)
    host.delete(again)
    assert host.do(CountEvents()) == EventCounts(recorded=0, exported=0, dropped=2)
    assert host.rows("expired_receipt") == 0


def test_a_queue_without_a_log_writes_none(tmp_path: Path) -> None:
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


# What a lease keeps for the event log comes back as it was put in, and what is too much as the most.


def test_a_receive_and_its_extensions() -> None:
    log = log_placed(log_begun(10, 1_234), 7)
    assert log_is_open(log)
    assert read_log(log) == (0, 10, 7, 1_234)
    for _ in range(3):
        log = log_extended(log)
    assert read_log(log) == (3, 10, 7, 1_234)
    assert not log_is_open(log | LOG_CLOSED)
    assert read_log(log | LOG_CLOSED) == (3, 10, 7, 1_234)


def test_a_lease_that_is_not_logged_stays_so() -> None:
    assert log_extended(0) == 0
    assert not log_is_open(0)


def test_what_is_common_takes_few_bytes() -> None:
    assert log_placed(log_begun(10, 0), 9) < 1 << 18


@pytest.mark.parametrize("times", [1, 2])
def test_too_much_is_told_as_the_most(times: int) -> None:
    log = log_placed(log_begun(255 * times, ((1 << 29) - 1) * times), 255 * times)
    for _ in range(0xFFFF * times):
        log = log_extended(log)
    assert read_log(log) == (0xFFFF, 255, 255, (1 << 29) - 1)
    assert log < 1 << 63

"""The event log: the end of each receipt, when it is logged, and the fields of an event."""

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.store.host import (
    LOGGED,
    QUEUE,
    Host,
    check_conservation,
    events_of,
    hosting,
    message,
    numbered,
    outcomes,
    plan,
    with_type,
)
from tests.store.model_frame import ModelFrame, run_model, some_of
from tests.store.postgres_host import RESTLESS, PostgresHost, Store
from veilmq.core import claims, commands
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import Attribute, NewMessage, Properties, encode_properties
from veilmq.core.receipts import CountEvents, EventCounts, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.settings import SettingValue

DEAD = "000000000000/dead"
FIFO = "000000000000/jobs.fifo"


@pytest.fixture
def host(store: Store) -> Iterator[Host]:
    with store.open(event_log="closed") as opened:
        opened.create()
        yield opened


@pytest.fixture
def durable(durable_store: Store) -> Iterator[Host]:
    with durable_store.open(event_log="closed") as opened:
        opened.create()
        yield opened


ENDS = {
    "a live receipt": "receive 1 -> ",
    "a delete": "receive 1, wait 1234, delete 1 -> deleted 1234",
    "a repeated delete": "receive 1, delete 1, wait 60000, delete 1 -> deleted 0",
    "an unobserved expiry": "receive 1, wait 45000 -> ",
    "an expiry observed by the next receive": "receive 1, wait 45000, receive 2 -> expired 30000",
    "a late delete": "receive 1, wait 45000, delete 1 expired -> expired 30000, late_deleted 45000",
    "a late delete after another receive":
        "receive 1, wait 40000, receive 2, wait 1000, delete 1 superseded, delete 1, wait 1000, delete 2"
        " -> expired 30000, late_deleted 41000, deleted 2000",
    "a late delete after a delete":
        "receive 1, wait 40000, receive 2, delete 2, wait 60000, delete 1 gone, delete 1 gone"
        " -> expired 30000, deleted 0, late_deleted 100000",
    "a release": "receive 1, wait 500, change 1 0 -> nacked 500",
    "a release and another receive": "receive 1, wait 500, change 1 0, receive 2, wait 60000, delete 1 -> nacked 500",
    "a released receipt that is used again": "receive 1, change 1 0, change 1 60, delete 1 -> nacked 0",
    "changes of the deadline": f"receive 1{3 * ', wait 20000, change 1 30'}, wait 29999, delete 1 -> deleted 89999",
    "a change to the same deadline": "receive 1, change 1 30, delete 1 -> deleted 0",
    "a change by an expired receipt": "receive 1, wait 40000, change 1 30, wait 1000, delete 1 -> deleted 41000",
}  # fmt: skip
"""Case → steps -> outcome and holding time of each event."""
CHANGED: dict[str, tuple[int | None, int]] = {
    "changes of the deadline": (3, 90_000),
    "a change to the same deadline": (1, 30_000),
    "a change by an expired receipt": (None, 70_000),
}
"""Case → extensions and final timeout of the last event."""


@pytest.mark.parametrize("case", ENDS)
def test_each_end_of_a_receipt_is_logged(host: Host, case: str) -> None:
    steps, _, ends = ENDS[case].partition(" -> ")
    host.send("a")
    receipts: dict[str, str] = {}
    for verb, name, *more in map(str.split, steps.split(", ")):
        match verb:
            case "receive":
                receipts[name] = host.receive_one().receipt
            case "wait":
                host.advance(int(name))
            case "change":
                host.change(receipts[name], int(more[0]))
            case "delete":
                (state,) = host.delete(receipts[name])
                assert not more or state.value == more[0]
    assert ", ".join(f"{outcome} {held_ms}" for outcome, held_ms in outcomes(host)) == ends
    if case in CHANGED:
        event = events_of(host)[-1]
        assert CHANGED[case] in [(event.extensions, event.visibility_ms), (None, event.visibility_ms)]


def test_a_dead_letter_is_logged_after_the_end_of_its_receipt(host: Host) -> None:
    host.create(DEAD)
    host.set_queue(dead_letter_queue=DEAD, receives_max=1)
    host.send("expires", "released")
    expires, released = host.receive(2)
    host.change(released.receipt, 0)
    host.advance(31_000)
    moved_at_ms = host.clock.now_ms()
    assert host.receive(10) == []
    assert sorted(outcomes(host)) == [
        ("dead_lettered", 31_000),
        ("dead_lettered", 31_000),
        ("expired", 30_000),
        ("nacked", 0),
    ]
    check_conservation(events_of(host))
    host.delete(expires.receipt)
    assert outcomes(host)[-1] == ("late_deleted", 31_000)
    host.delete(released.receipt)
    assert len(outcomes(host)) == 5
    host.delete(host.receive(queue=DEAD)[0].receipt, queue=DEAD)
    last = events_of(host)[-1]
    assert (last.queue, last.outcome.value, last.receive_count) == (DEAD, "deleted", 1)
    assert last.sent_at_ms == moved_at_ms


def test_a_move_task_logs_expired_receipts(host: Host) -> None:
    host.create(DEAD)
    host.set_queue(dead_letter_queue=DEAD, receives_max=1)
    host.send("a", queue=DEAD)
    host.receive_one(queue=DEAD)
    host.advance(31_000)
    host.do(commands.StartMove(source=DEAD, destination=QUEUE))
    host.advance(1_000)
    assert outcomes(host) == [("expired", 30_000)]
    assert len(host.receive(10)) == 1


def test_a_receipt_expires_at_the_end_of_retention(host: Host) -> None:
    host.create("000000000000/short", retention_s=60, visibility_timeout_s=300)
    host.send("a", queue="000000000000/short")
    receipt = host.receive_one(queue="000000000000/short").receipt
    host.advance(200_000)
    host.delete(receipt, queue="000000000000/short")
    host.advance(120_000)
    expired, late = events_of(host)
    assert (expired.outcome.value, expired.held_ms, expired.visibility_ms) == ("expired", 60_000, 60_000)
    assert (late.outcome.value, late.held_ms) == ("late_deleted", 200_000)


@pytest.mark.parametrize("end", [commands.PurgeQueue, commands.DeleteQueue])
def test_the_janitor_logs_receipts_of_a_purge(
    host: Host, end: type[commands.PurgeQueue | commands.DeleteQueue]
) -> None:
    host.send(*"abc")
    host.receive(2)
    host.advance(10_000)
    host.do(end(queue=QUEUE))
    host.advance(60_000)
    host.sweep()
    assert outcomes(host) == [("expired", 10_000)] * 2


@pytest.mark.parametrize("restart", ["reopen", "crash"])
def test_receipts_of_purged_messages_are_logged_after_a_restart(durable: Host, restart: str) -> None:
    durable.send("a", "b")
    late = durable.receive(2)[0].receipt
    durable.advance(10_000)
    durable.purge()
    durable.delete(late)
    getattr(durable, restart)()
    durable.advance(5_000)
    durable.sweep()
    durable.delete(late)
    assert sorted(outcomes(durable)) == [("expired", 10_000), ("expired", 10_000), ("late_deleted", 10_000)]


def test_a_renewed_receipt_has_one_end(host: Host) -> None:
    host.send("a")
    first = host.receive_one().receipt
    second = host.change(first, 60, only_live=True, renew_receipt=True).receipt
    assert host.delete(first, only_live=True)[0].value == "superseded"
    host.delete(second, only_live=True)
    assert outcomes(host) == [("deleted", 0)]


def test_a_message_that_was_never_received_has_no_event(host: Host) -> None:
    options = commands.SendOptions(receipts=True)
    new = tuple(message(body, delay_s=30) for body in "ab")
    a, b = (each.receipt for each in host.put(*new, options=options))
    host.delete(a)
    renewed = host.change(b, 5, renew_receipt=True).receipt
    host.change(renewed, 0)
    got = host.receive_one(timeout_s=10)
    host.delete(renewed, a)
    host.advance(2_000)
    host.delete(got.receipt)
    assert outcomes(host) == [("deleted", 2_000)]


def test_an_event_has_all_fields(host: Host) -> None:
    host.put(
        NewMessage(body="é" * 50, size_bytes=100, properties=with_type("resize")), NewMessage(body="", size_bytes=0)
    )
    host.advance(5_000)
    received = host.do(commands.Receive(queue=QUEUE, count=10, timeout_s=7, requested_at_ms=host.clock.now_ms() - 900))
    host.advance(100)
    host.delete(*[each.receipt for each in received.messages])
    first, second = events_of(host)
    sent = received.messages[0]
    assert (first.queue, first.key, first.size_bucket, first.group_hash) == (QUEUE, "resize", 128, None)
    assert (first.message_id, first.sent_at_ms, first.received_at_ms) == (
        sent.id,
        sent.sent_at_ms,
        sent.sent_at_ms + 5_000,
    )
    assert (first.closed_at_ms, first.held_ms, first.visibility_ms) == (sent.sent_at_ms + 5_100, 100, 7_000)
    assert (first.extensions, first.receive_count, first.batch_size, first.batch_position) == (0, 1, 2, 0)
    assert (second.key, second.size_bucket, second.batch_position) == ("", 1, 1)


@pytest.mark.parametrize(("queue", "is_grouped"), [(QUEUE, False), (QUEUE, True), (FIFO, True)])
def test_concurrent_receives_are_separate_batches(host: Host, queue: str, *, is_grouped: bool) -> None:
    if queue == FIFO:
        host.create(FIFO, fifo=True)
    for name in "abc":
        host.put(message(name, group=name if is_grouped else None, dedup_id=name), queue=queue)
    answers = host.do_together(*(commands.Receive(queue=queue, count=2) for _ in range(2)))
    for each in [each for answer in answers for each in answer.messages]:
        host.delete(each.receipt, queue=queue)
    assert [(event.batch_size, event.batch_position) for event in events_of(host)] == [(2, 0), (2, 1), (1, 0)]


def test_an_event_is_complete_after_a_crash(durable: Host) -> None:
    durable.put(NewMessage(body="abc", size_bytes=3, properties=with_type("x")))
    receipt = durable.receive_one().receipt
    durable.change(receipt, 50)
    durable.crash()
    durable.delete(receipt)
    (event,) = events_of(durable)
    assert (event.key, event.size_bucket, event.extensions, event.batch_size) == ("x", 4, 1, 1)


def test_the_key_is_read_from_large_properties(host: Host) -> None:
    attributes = {"Type": Attribute("String", "thumbnail"), "more": Attribute("String", "x" * 5_000)}
    host.put(NewMessage(body="a", properties=encode_properties(Properties(attributes=attributes)), size_bytes=5_000))
    host.delete(host.receive_one().receipt)
    (event,) = events_of(host)
    assert (event.key, event.outcome.value) == ("thumbnail", "deleted")


def test_the_routing_attribute_is_configurable(store: Store) -> None:
    with store.open(event_log="closed", routing_attribute="Kind") as host:
        host.create()
        host.put(NewMessage(body="a", size_bytes=1, properties=with_type("x")))
        host.delete(host.receive_one().receipt)
        assert events_of(host)[0].key == ""


def test_logging_can_be_set_for_each_queue(host: Host) -> None:
    host.set_queue(event_log="off")
    host.send("a", "b")
    first, second = host.receive(2)
    host.delete(first.receipt)
    host.set_queue(event_log=None)
    host.delete(second.receipt)
    assert outcomes(host) == []  # received while the queue was not logged
    host.send("c")
    third = host.receive_one()
    host.set_queue(event_log="off")
    host.delete(third.receipt)
    assert outcomes(host) == []  # ended while the queue was not logged


def test_a_queue_can_be_logged_on_a_server_without_event_log(store: Store) -> None:
    with store.open(event_log="off") as host:
        host.create(event_log="closed")
        host.create(DEAD)
        host.send("a")
        host.send("b", queue=DEAD)
        host.delete(host.receive_one().receipt)
        host.delete(host.receive_one(queue=DEAD).receipt, queue=DEAD)
        assert [event.queue for event in events_of(host)] == [QUEUE]


def cycle(host: Host, messages: int) -> None:
    for n in range(messages):
        host.send(str(n))
        host.delete(host.receive_one().receipt)


def test_a_planned_range_is_fixed_until_it_is_deleted(durable: Host) -> None:
    cycle(durable, 3)
    assert plan(durable, 2) == (1, 2)
    cycle(durable, 2)
    durable.crash()
    assert plan(durable, 100) == (1, 2)
    durable.do(ForgetEvents(last=2))
    assert plan(durable, 100) == (3, 5)
    durable.reopen()
    durable.do(ForgetEvents(last=5))
    assert durable.do(PlanExport(events_max=100)) is None
    cycle(durable, 1)
    durable.reopen()
    assert [number for number, _ in numbered(durable)] == [6]


@pytest.mark.differs_on_postgres("events numbered together are one batch")
def test_a_range_of_events_is_read_in_pages(host: Host) -> None:
    cycle(host, 5)
    first, last = plan(host)
    pages = []
    while first <= last:
        page = host.do(ReadEvents(first=first, last=last, bytes_max=1))
        pages.append([number for number, _ in page.batches])
        first = page.next
    assert pages == [[1], [2], [3], [4], [5]]


@pytest.mark.differs_on_postgres("events numbered together are one batch")
def test_events_are_deleted_in_slices(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.store.events._DELETED_PER_COMMAND", 2)
    cycle(host, 5)
    plan(host)
    more = [host.do(ForgetEvents(last=5)).more for _ in range(3)]
    assert more == [True, True, False]
    assert host.do(CountEvents()) == EventCounts(recorded=5, exported=5, dropped=0)


def test_events_of_one_batch_of_commands_are_one_row(host: Host) -> None:
    host.send(*"abcd")
    received = host.receive(4)
    host.do_together(*[commands.Delete(queue=QUEUE, receipts=(each.receipt,)) for each in received])
    assert len(outcomes(host)) == 4
    page = host.do(ReadEvents(first=1, last=4, bytes_max=1 << 20))
    assert len(page.batches) == 1


def test_new_events_are_dropped_while_too_many_are_waiting(durable_store: Store) -> None:
    with durable_store.open(event_log="closed", events_waiting_max=3) as host:
        host.create()
        cycle(host, 5)
        assert host.do(CountEvents()) == EventCounts(recorded=3, exported=0, dropped=2)
        host.reopen()
        assert host.do(CountEvents()).dropped == 2
        host.do(ForgetEvents(last=plan(host)[1]))
        cycle(host, 1)
        assert host.do(CountEvents()) == EventCounts(recorded=4, exported=3, dropped=2)


def test_a_full_store_drops_events_but_deletes_messages(tmp_path: Path) -> None:
    with hosting(tmp_path / "store", options=replace(LOGGED, database_pages_max=100)) as host:
        host.create()
        host.send("a", "b")
        first, second = host.receive(2)
        host.do_together(commands.Send(queue=QUEUE, messages=(message("x" * 600_000),)))
        host.delete(first.receipt)
        assert host.do(CountEvents()) == EventCounts(recorded=0, exported=0, dropped=1)
        host.delete(second.receipt)


def test_late_deletes_are_logged_for_a_day(host: Host) -> None:
    host.send("a")
    late = host.receive_one(timeout_s=1).receipt
    host.advance(2_000)
    held = host.receive_one(timeout_s=43_200).receipt
    host.advance(86_400_000 + 61_000)
    host.sweep()
    host.delete(late)
    host.delete(held)
    assert [outcome for outcome, _ in outcomes(host)] == ["expired", "expired", "late_deleted"]


def test_a_claim_ends_earlier_receipts_and_logs_none_of_its_own(host: Host) -> None:
    host.send("a", "b")
    late = host.receive(timeout_s=1)[0].receipt
    host.advance(2_000)
    epoch = host.do(claims.OpenSource(queue=QUEUE, source="s")).epoch
    bound = host.do(claims.Claim(queue=QUEUE, source="s", epoch=epoch, number=1, messages_max=10))
    assert bound.messages == 2
    assert outcomes(host) == [("expired", 1_000)]
    host.delete(late)
    assert outcomes(host)[1:] == [("late_deleted", 2_000)]
    host.do(claims.AcknowledgeClaims(queue=QUEUE, source="s", epoch=epoch, number=1))
    host.sweep()
    assert len(outcomes(host)) == 2


def test_a_claim_does_not_end_receipts_of_other_messages(host: Host) -> None:
    host.send("taken", "left")
    host.receive(2, timeout_s=1)
    host.advance(2_000)
    epoch = host.do(claims.OpenSource(queue=QUEUE, source="s")).epoch
    host.do(claims.Claim(queue=QUEUE, source="s", epoch=epoch, number=1, messages_max=1))
    assert outcomes(host) == [("expired", 1_000)]
    host.delete(host.receive_one().receipt)
    assert outcomes(host) == [("expired", 1_000), ("expired", 1_000), ("deleted", 0)]


def test_a_released_claim_does_not_affect_later_events(host: Host) -> None:
    host.send("a")
    host.receive(timeout_s=1)
    host.advance(2_000)
    epoch = host.do(claims.OpenSource(queue=QUEUE, source="s")).epoch
    host.do(claims.Claim(queue=QUEUE, source="s", epoch=epoch, number=1, messages_max=10))
    host.do(claims.ReleaseClaim(queue=QUEUE, source="s", number=1))
    host.advance(1_000)
    host.delete(host.receive_one().receipt)
    assert outcomes(host) == [("expired", 1_000), ("deleted", 0)]


MODEL_FIFO = f"{QUEUE}.fifo"
MODEL_DEAD, MODEL_DEAD_FIFO = "000000000000/dead", "000000000000/dead.fifo"
_FIELDS = struct.Struct(">BIQIIQ")
_TIMEOUTS_S = st.sampled_from((0, 1, 30))


@dataclass(slots=True)
class NaiveReceipt:
    text: str
    message: bytes
    queue: str
    received_at_ms: int
    visible_at_ms: int
    ends: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, bytes, int]:
        return self.queue, self.message, _FIELDS.unpack_from(bytes.fromhex(self.text))[3]


class EventModel(ModelFrame):
    """A standard and a FIFO queue beside a model of receipts; in some runs with dead letters."""

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[NaiveReceipt] = []
        self.latest: dict[tuple[str, bytes], NaiveReceipt] = {}
        self.deleted: set[bytes] = set()
        self.expected: Counter[tuple[Any, ...]] = Counter()
        self.dead_letters = False

    @initialize(dead_letters=st.booleans())
    def begin(self, dead_letters: bool) -> None:
        self.open_logged()
        self.dead_letters = dead_letters
        for name, dead, fifo in ((QUEUE, MODEL_DEAD, False), (MODEL_FIFO, MODEL_DEAD_FIFO, True)):
            self.live.create(dead, fifo=fifo)
            redrive: dict[str, SettingValue] = {"dead_letter_queue": dead, "receives_max": 2} if dead_letters else {}
            self.live.create(name, fifo=fifo, **redrive)

    def open_logged(self) -> None:
        if self.url is not None:
            self.host = PostgresHost.on_empty(self.url, options=replace(RESTLESS, event_log="closed"))
            return
        options = replace(LOGGED, free_space_reserve_bytes=0)
        self.host = self.host_type(self.base / "store", options=options)

    @rule(fifo=st.booleans(), count=st.integers(1, 3), group=st.sampled_from("gh"), shares=st.booleans())
    def send(self, fifo: bool, count: int, group: str, *, shares: bool) -> None:
        news = []
        for _ in range(count):
            self.bodies += 1
            body = str(self.bodies)
            its_group, dedup_id = group if fifo or shares else None, body if fifo else None
            news.append(NewMessage(body=body, size_bytes=len(body), group=its_group, dedup_id=dedup_id))
        self.live.put(*news, queue=MODEL_FIFO if fifo else QUEUE)

    @rule(fifo=st.booleans(), count=st.integers(1, 3), timeout_s=_TIMEOUTS_S)
    def receive(self, fifo: bool, count: int, timeout_s: int) -> None:
        queue = MODEL_FIFO if fifo else QUEUE
        for received in self.live.receive(count, queue=queue, timeout_s=timeout_s):
            self.record(queue, received)

    def record(self, queue: str, received: commands.ReceivedMessage) -> None:
        earlier = self.latest.get((queue, received.id))
        if earlier is not None and not earlier.ends:
            self.end(earlier, "expired", earlier.visible_at_ms)
        receipt = NaiveReceipt(received.receipt, received.id, queue, self.now_ms, received.visible_at_ms)
        self.issued.append(receipt)
        self.latest[queue, received.id] = receipt

    def draw_receipt(self, data: st.DataObject) -> NaiveReceipt:
        (receipt,) = some_of(data, self.issued, self.kind)
        return receipt

    def kind(self, receipt: NaiveReceipt) -> str:
        if receipt is not self.latest[receipt.queue, receipt.message]:
            return "superseded"
        return " ".join(receipt.ends) or ("live" if self.now_ms < receipt.visible_at_ms else "expired")

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), stale=st.booleans())
    def delete(self, data: st.DataObject, *, stale: bool) -> None:
        """Delete by any receipt; if `stale`, superseded receipts act too."""
        receipt = self.draw_receipt(data)
        (answer,) = self.live.delete(receipt.text, queue=receipt.queue, any_receive=stale)
        if answer is ReceiptState.EARLIER:
            self.end_latest(self.latest[receipt.queue, receipt.message])
        if not receipt.ends:
            if self.now_ms < receipt.visible_at_ms:
                self.end(receipt, "deleted", self.now_ms)
                return
            self.end(receipt, "expired", receipt.visible_at_ms)
        if receipt.ends == ["expired"]:
            self.end(receipt, "late_deleted", self.now_ms)

    def end_latest(self, latest: NaiveReceipt) -> None:
        if not latest.ends:
            if self.now_ms < latest.visible_at_ms:
                self.end(latest, "deleted_by_earlier", self.now_ms)
            else:
                self.end(latest, "expired", latest.visible_at_ms)
        latest.ends.append("by another")

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=_TIMEOUTS_S, stale=st.booleans())
    def change(self, data: st.DataObject, timeout_s: int, *, stale: bool) -> None:
        """Change the deadline by any receipt; if `stale`, superseded receipts act too."""
        receipt = self.draw_receipt(data)
        answer = self.live.change(receipt.text, timeout_s, queue=receipt.queue, any_receive=stale)
        receipt = self.latest[receipt.queue, receipt.message]
        if not isinstance(answer, commands.LeaseChange) or answer.visible_at_ms is None:
            return
        if not receipt.ends and timeout_s == 0:
            self.end(receipt, "nacked", self.now_ms)
        receipt.visible_at_ms = answer.visible_at_ms

    @rule(fifo=st.booleans())
    def purge(self, fifo: bool) -> None:
        self.empty(MODEL_FIFO if fifo else QUEUE)

    def empty(self, queue: str) -> None:
        self.live.purge(queue)
        self.live.sweep()
        for receipt in self.issued:
            if receipt.queue == queue and not receipt.ends:
                self.end(receipt, "expired", min(receipt.visible_at_ms, self.now_ms))

    def end(self, receipt: NaiveReceipt, outcome: str, at_ms: int) -> None:
        receipt.ends.append(outcome)
        self.expected[(*receipt.key, outcome, at_ms, at_ms - receipt.received_at_ms)] += 1

    def compare(self) -> None:
        events = events_of(self.live)
        ended = check_conservation(events)
        if not self.dead_letters:
            found = Counter(
                (e.queue, e.message_id, e.receipt, e.outcome.value, e.closed_at_ms, e.held_ms) for e in events
            )
            assert found == self.expected
        assert set(ended) <= {receipt.key for receipt in self.issued}

    def teardown(self) -> None:
        """End all receipts, and assert that each has an event."""
        if self.host is not None:
            for queue in (QUEUE, MODEL_FIFO):
                self.empty(queue)
            assert set(check_conservation(events_of(self.live))) == {receipt.key for receipt in self.issued}
        super().teardown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_receipts_end_once_at_the_right_time(model_url: str | None) -> None:
    run_model(EventModel, examples=25, steps=40, url=model_url, url_examples=5)

"""The invariants of a queue, and full stores."""

import itertools
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.small_disk import MIB, small_file_system
from tests.store.host import QUEUE, Host, fill, message
from tests.store.model_frame import ModelFrame, run_model, some_of
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands
from veilmq.core.commands import Receive, ReceivedMessage, SendOptions, VisibilityChange
from veilmq.core.errors import LeaseTooLong, ReceiptState, StoreFull
from veilmq.core.messages import NewMessage
from veilmq.core.settings import SettingValue


def test_each_sent_message_is_counted_until_it_is_deleted_expired_or_purged(host: Host) -> None:
    host.create(visibility_timeout_s=5, retention_s=60)
    sent = ended = 0
    for cycle in range(40):
        host.send(f"{cycle}-a", f"{cycle}-b")
        host.send(f"{cycle}-c", delay_s=3)
        sent += 3
        got = host.receive(2)
        ended += sum(state is ReceiptState.LIVE for state in host.delete(*(each.receipt for each in got[:1])))
        if cycle == 20:
            ended += sum(host.counts())
            host.purge()
        before = sum(host.counts())
        assert sent == ended + before
        host.advance(4_000)
        ended += before - sum(host.counts())  # only retention can have ended any
    host.advance(60_000)
    assert host.counts() == (0, 0, 0)


def test_concurrent_receives_share_messages_without_overlap(host: Host) -> None:
    host.create()
    host.send(*(str(number) for number in range(10)))
    answers = host.do_together(*(commands.Receive(queue=QUEUE, count=3) for _ in range(10)))
    got = [each for answer in answers for each in answer.messages]
    assert sorted(each.body for each in got) == [str(number) for number in range(10)]
    host.advance(30_000)
    again = host.receive(10)
    states = host.delete(*(each.receipt for each in got), *(each.receipt for each in again))
    assert states == [ReceiptState.SUPERSEDED] * 10 + [ReceiptState.LIVE] * 10


@pytest.mark.parametrize("delay_s", [0, 1, 30])
@pytest.mark.parametrize("timeout_s", [1, 30])
def test_a_message_is_delivered_from_its_time_of_visibility_on(host: Host, delay_s: int, timeout_s: int) -> None:
    host.create(visibility_timeout_s=timeout_s)
    host.send("a", delay_s=delay_s)
    for count, hidden_s in enumerate((delay_s, timeout_s, timeout_s), start=1):
        if hidden_s:
            assert host.due_ms() == host.clock.now_ms() + hidden_s * 1_000
            host.advance(hidden_s * 1_000 - 1)
            assert host.receive(10) == []
            host.advance(1)
        assert host.due_ms() == host.clock.now_ms()
        assert host.receive_one().receive_count == count


def test_a_superseded_receipt_changes_nothing(host: Host) -> None:
    host.create()
    host.send("a")
    old = host.receive_one(timeout_s=0)
    new = host.receive_one(timeout_s=60)
    for only_live, renew in itertools.product((False, True), repeat=2):
        assert host.delete(old.receipt, only_live=only_live) == [ReceiptState.SUPERSEDED]
        change = host.change(old.receipt, 0, only_live=only_live, renew_receipt=renew)
        assert (change.state, change.visible_at_ms, change.receipt) == (ReceiptState.SUPERSEDED, None, None)
    assert host.counts() == (0, 1, 0)
    assert host.due_ms() == new.visible_at_ms
    assert host.delete(new.receipt) == [ReceiptState.LIVE]


@pytest.mark.parametrize("delete_first", [False, True])
def test_groups_are_delivered_in_send_order_over_crashes(durable: Host, *, delete_first: bool) -> None:
    durable.create(fifo=True)
    bodies = [f"{group}{number}" for number in range(6) for group in "abc"]
    durable.put(*[NewMessage(body=body, size_bytes=2, group=body[0], dedup_id=body) for body in bodies])
    deleted: list[str] = []
    while sum(durable.counts()):
        got = durable.receive(2, timeout_s=1)
        durable.crash()
        blocked = {each.body[0] for each in got}
        others = durable.receive(20, timeout_s=1)
        assert blocked.isdisjoint(each.body[0] for each in others), "a message of a blocked group"
        first = {each.body[0]: each for each in reversed([*got, *others])}
        for group, each in first.items():
            assert each.body == f"{group}{sum(body[0] == group for body in deleted)}", "not the next of its group"
        done = got if delete_first else got[:1]
        durable.delete(*(each.receipt for each in done))
        deleted += [each.body for each in done]
        durable.advance(1_000)
    assert sorted(deleted) == sorted(bodies)


@pytest.mark.parametrize("restart", ["reopen", "crash"])
def test_acknowledged_changes_survive_restarts_and_crashes(durable: Host, restart: str) -> None:
    durable.create(visibility_timeout_s=60)
    durable.send("held", "deleted", "released")
    held, deleted, released = durable.receive(3)
    durable.delete(deleted.receipt)
    durable.change(released.receipt, 0)
    durable.send("delayed", delay_s=30)
    before = durable.counts()
    assert before == (1, 1, 1)
    getattr(durable, restart)()
    assert durable.counts() == before
    assert durable.delete(deleted.receipt) == [ReceiptState.GONE]
    back = durable.receive_one()
    assert (back.body, back.receive_count, back.id) == ("released", 2, released.id)
    assert back.first_received_at_ms == released.first_received_at_ms
    assert durable.due_ms() == durable.clock.now_ms() + 30_000
    durable.advance(59_999)
    assert durable.receive_one().body == "delayed"
    assert durable.change(held.receipt, 1).state is ReceiptState.LIVE
    assert durable.delete(held.receipt) == [ReceiptState.LIVE]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("receives_max", [1, 3])
def test_each_message_is_delivered_as_often_as_allowed_then_dead_lettered_once(
    durable: Host, receives_max: int, *, fifo: bool
) -> None:
    dead = "000000000000/dead"
    redrive: dict[str, SettingValue] = {"dead_letter_queue": dead, "receives_max": receives_max}
    durable.do(commands.CreateQueue(queue=dead, settings={"fifo": fifo}))
    durable.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": fifo, **redrive}))
    bodies = [str(number) for number in range(8)]
    durable.put(*[NewMessage(body=body, size_bytes=1, group=body if fifo else None, dedup_id=body) for body in bodies])
    delivered = Counter[str]()
    while sum(durable.counts()):
        delivered.update(each.body for each in durable.receive(3, timeout_s=1))
        durable.crash()
        assert sum(durable.counts()) + sum(durable.counts(dead)) == len(bodies)
        durable.advance(500)
    assert delivered == dict.fromkeys(bodies, receives_max)
    arrived = durable.receive(10, queue=dead)
    assert sorted(each.body for each in arrived) == bodies
    assert {(each.receive_count, each.source) for each in arrived} == {(receives_max + 1, QUEUE)}


OWN_TIMEOUT_S = 30
RETENTION_S = 1_209_600
TERMS = SendOptions(receipts=True, dedup_id_optional=True, all_or_nothing=True)
TWELVE_HOURS_MS = 43_200_000


@dataclass(eq=False)
class KnownMessage:
    """A message as far as clients know it from replies."""

    id: bytes
    group: str | None
    sent_at_ms: int
    hidden_until_ms: int
    received_at_ms: int = 0
    receives: int = 0
    is_deleted: bool = False


@dataclass(frozen=True)
class Issued:
    """A receipt, and the number of the receive that issued it."""

    text: str
    of: KnownMessage = field(repr=False)
    receive: int


class TwoProtocols(ModelFrame):
    """Clients of SQS and SMQ on one queue: a message has at most one live lease.

    After every step each receipt is tested by a change that is always refused because its lease would be too long.
    The properties are those that the SMQ reference names at the end of its section 11.
    """

    times_ms = st.sampled_from((0, 1, 999, 1_000, 29_999, 30_000, 30_000, TWELVE_HOURS_MS))

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[KnownMessage] = []
        self.issued: list[Issued] = []
        self.kind = ""

    @initialize(kind=st.sampled_from(("plain", "fair", "fifo")))
    def open(self, kind: str) -> None:
        self.open_host()
        self.kind = kind
        self.live.create(visibility_timeout_s=OWN_TIMEOUT_S, retention_s=RETENTION_S, fifo=kind == "fifo")

    @rule(
        delay_s=st.sampled_from((0, 0, 1, 30, 604_800)), priority=st.integers(1, 16), group=st.sampled_from(("g", "h"))
    )
    def send(self, delay_s: int, priority: int, group: str) -> None:
        where = None if self.kind == "plain" else group
        (sent,) = self.live.put(message("x", delay_s=delay_s, priority=priority, group=where), options=TERMS)
        known = KnownMessage(sent.id, where, self.now_ms, self.now_ms + delay_s * 1_000)
        self.messages.append(known)
        assert (sent.receipt is not None) is bool(delay_s)
        if sent.receipt is not None:
            self.issued.append(Issued(sent.receipt, known, 0))

    @rule(count=st.integers(1, 4), timeout_s=st.sampled_from((0, 0, 1, 30)))
    def receive_by_sqs(self, count: int, timeout_s: int) -> None:
        self.take(count, timeout_s)

    @rule(count=st.integers(1, 4))
    def receive_by_smq(self, count: int) -> None:
        self.take(count, None)

    def take(self, count: int, timeout_s: int | None) -> None:
        """Receive; each returned message was not leased, and each missing one is leased or behind its group."""
        got: list[ReceivedMessage] = self.live.do(Receive(queue=QUEUE, count=count, timeout_s=timeout_s)).messages
        busy = {known.group for known in self.held() if known.receives}
        for each in got:
            (known,) = [known for known in self.messages if known.id == each.id]
            assert not known.is_deleted, "a deleted message was delivered"
            assert known.hidden_until_ms <= self.now_ms, "a leased or delayed message was delivered"
            self.lease(known, each, OWN_TIMEOUT_S if timeout_s is None else timeout_s)
        if len(got) < count:
            left = [known for known in self.present() if known.hidden_until_ms <= self.now_ms]
            came = {each.id for each in got}
            missed = [
                known for known in left if known.id not in came and not (self.kind == "fifo" and known.group in busy)
            ]
            assert not missed, "a visible message was not delivered"

    def lease(self, known: KnownMessage, got: ReceivedMessage, timeout_s: int) -> None:
        known.receives += 1
        assert got.receive_count == known.receives, "the receive count is not the number of receives"
        assert got.visible_at_ms == self.now_ms + timeout_s * 1_000
        known.hidden_until_ms = got.visible_at_ms
        known.received_at_ms = self.now_ms
        self.issued.append(Issued(got.receipt, known, known.receives))

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=st.sampled_from((0, 1, 30, 43_200)))
    def change_by_sqs(self, data: st.DataObject, timeout_s: int) -> None:
        issued = self.draw_receipt(data)
        answer = self.live.change(issued.text, timeout_s)
        known = issued.of
        if isinstance(answer, LeaseTooLong):
            assert known.receives, "a message that was never received has no lease"
            assert self.now_ms + timeout_s * 1_000 > known.received_at_ms + TWELVE_HOURS_MS
            return
        assert answer.state is self.state(issued, lenient=False)
        if answer.visible_at_ms is not None:
            assert answer.state in self.acting(by_smq=False)
            self.move(known, answer.visible_at_ms, timeout_s)

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=st.sampled_from((1, 30, 43_200)), lenient=st.booleans())
    def change_by_smq(self, data: st.DataObject, timeout_s: int, *, lenient: bool) -> None:
        """Change by a live receipt; it returns a new one, which supersedes the old one."""
        issued = self.draw_receipt(data)
        answer = self.live.change(
            issued.text, timeout_s, bounded=False, only_live=True, any_epoch=lenient, renew_receipt=True
        )
        assert answer.state is self.state(issued, lenient=lenient)
        assert (answer.receipt is not None) is (answer.state is ReceiptState.LIVE)
        if answer.receipt is not None:
            assert answer.receipt != issued.text
            self.move(issued.of, answer.visible_at_ms, timeout_s)
            self.issued.append(Issued(answer.receipt, issued.of, issued.receive))

    def move(self, known: KnownMessage, visible_at_ms: int, timeout_s: int) -> None:
        assert visible_at_ms == self.now_ms + timeout_s * 1_000
        known.hidden_until_ms = visible_at_ms

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), by_smq=st.booleans(), lenient=st.booleans())
    def delete(self, data: st.DataObject, *, by_smq: bool, lenient: bool) -> None:
        issued = self.draw_receipt(data)
        lenient = by_smq and lenient
        (state,) = self.live.delete(issued.text, only_live=by_smq, any_epoch=lenient)
        assert state is self.state(issued, lenient=lenient)
        if state in self.acting(by_smq=by_smq):
            issued.of.is_deleted = True

    def acting(self, *, by_smq: bool) -> tuple[ReceiptState, ...]:
        if by_smq or self.kind == "fifo":
            return (ReceiptState.LIVE,)
        return ReceiptState.LIVE, ReceiptState.EXPIRED

    def draw_receipt(self, data: st.DataObject) -> Issued:
        (issued,) = some_of(data, self.issued, lambda each: f"{self.state(each)}, {self.state(each, lenient=True)}")
        return issued

    def state(self, issued: Issued, *, lenient: bool = False) -> ReceiptState:
        known = issued.of
        if known.is_deleted:
            return ReceiptState.GONE
        latest = [each for each in self.issued if each.of is known][-1]
        if issued.receive != known.receives or not (issued is latest or lenient):
            return ReceiptState.SUPERSEDED
        return ReceiptState.LIVE if known.hidden_until_ms > self.now_ms else ReceiptState.EXPIRED

    def present(self) -> list[KnownMessage]:
        for known in self.messages:
            known.is_deleted = known.is_deleted or known.sent_at_ms + RETENTION_S * 1_000 <= self.now_ms
        return [known for known in self.messages if not known.is_deleted]

    def held(self) -> list[KnownMessage]:
        return [known for known in self.present() if known.hidden_until_ms > self.now_ms]

    def compare(self) -> None:
        """Assert that each hidden message has one live receipt and no other has any, and compare the counters."""
        held = self.held()
        strict = self.live_receipts(lenient=False)
        assert sorted(id(issued.of) for issued in strict) == sorted(id(known) for known in held), "two leases, or none"
        lenient = self.live_receipts(lenient=True)
        assert {issued.text for issued in strict} <= {issued.text for issued in lenient}
        assert all(issued.receive == issued.of.receives for issued in lenient), "lenient across receives"
        assert {id(issued.of) for issued in lenient} == {id(known) for known in held}
        in_flight = len([known for known in held if known.receives])
        assert self.live.counts() == (len(self.present()) - len(held), in_flight, len(held) - in_flight)

    def live_receipts(self, *, lenient: bool) -> list[Issued]:
        changes = tuple(VisibilityChange(receipt=issued.text, timeout_s=1) for issued in self.issued)
        probe = commands.ChangeVisibility(
            queue=QUEUE, changes=changes, only_live=True, any_epoch=lenient, lease_s_max=-1
        )
        answers: list[Any] = self.live.do(probe)
        return [issued for issued, answer in zip(self.issued, answers, strict=True) if isinstance(answer, LeaseTooLong)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_random_calls_by_two_protocols_give_at_most_one_live_lease() -> None:
    run_model(TwoProtocols, examples=30, steps=50)


def drain(host: Host, sent: list[str]) -> None:
    assert len(sent) > 5
    assert host.counts() == (len(sent), 0, 0)
    drained: list[str] = []
    while got := host.receive(10):
        drained += [each.body for each in got]
        assert host.change(got[0].receipt, 60).visible_at_ms is not None
        host.delete(*(each.receipt for each in got))
    assert drained == sent
    assert host.counts() == (0, 0, 0)
    assert host.failures == []
    host.send("x" * 50_000)  # there is room now
    assert len(host.receive_one().body) == 50_000


@pytest.mark.parametrize("kind", ["memory", "folder", "crash"])
def test_a_full_store_can_be_drained(kind: str, tmp_path: Path) -> None:
    store = tmp_path / "store" if kind != "memory" else None
    with on_sqlite(store).open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        host.create(visibility_timeout_s=600)
        sent = fill(host)
        with pytest.raises(StoreFull):
            host.create("000000000000/another")
        if kind == "crash":
            host.crash()
            host.check()
        drain(host, sent)


def test_a_batch_that_fills_the_store_fails_only_its_sends(tmp_path: Path) -> None:
    with on_sqlite(tmp_path / "store").open(database_pages_max=500, free_space_reserve_bytes=0) as host:
        host.create(visibility_timeout_s=600)
        host.send("a", "b")
        held = host.receive(1)[0]
        too_much = tuple(message("y" * 900_000) for _ in range(4))
        refused, received, deleted = host.do_together(
            commands.Send(queue=QUEUE, messages=too_much),
            commands.Receive(queue=QUEUE),
            commands.Delete(queue=QUEUE, receipts=(held.receipt,)),
        )
        assert isinstance(refused, StoreFull)
        assert [each.body for each in received.messages] == ["b"]
        assert [state.value for state in deleted] == ["live"]
        assert host.counts() == (0, 1, 0)
        host.reopen()
        assert host.counts() == (0, 1, 0)


def test_a_full_file_system_with_a_reserve_can_be_drained(tmp_path: Path) -> None:
    with (
        small_file_system(tmp_path / "disk", size_bytes=24 * MIB),
        on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=8 * MIB) as host,
    ):
        host.create(visibility_timeout_s=600)
        drain(host, fill(host))


def test_a_full_file_system_without_a_reserve_loses_no_message(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", size_bytes=24 * MIB):
        with on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=0) as host:
            host.create(visibility_timeout_s=600)
            sent = fill(host)
            assert host.counts() == (len(sent), 0, 0)
        with on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=0) as host:
            host.check()
            assert host.counts() == (len(sent), 0, 0)

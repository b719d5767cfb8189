"""The invariants of a queue, each under its own name."""

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
from tests.store.model_frame import ModelFrame, one_of, run_model
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands
from veilmq.core.commands import Receive, ReceivedMessage, SendOptions, VisibilityChange
from veilmq.core.errors import LeaseTooLong, ReceiptState, StoreFull
from veilmq.core.messages import NewMessage
from veilmq.core.settings import SettingValue


def test_conservation(host: Host) -> None:
    """Sent = deleted + visible + in flight + delayed + past retention + purged, at every moment of a long life."""
    host.create(visibility_timeout_s=5, retention_s=60)
    sent = ended = 0
    for turn in range(40):
        host.send(f"{turn}-a", f"{turn}-b")
        host.send(f"{turn}-c", delay_s=3)
        sent += 3
        got = host.receive(2)
        ended += sum(state is ReceiptState.LIVE for state in host.delete(*(each.receipt for each in got[:1])))
        if turn == 20:
            ended += sum(host.counts())
            host.purge()
        before = sum(host.counts())
        assert sent == ended + before
        host.advance(4_000)
        ended += before - sum(host.counts())  # nothing but retention can have ended any
    host.advance(60_000)
    assert host.counts() == (0, 0, 0)


def test_exclusivity(host: Host) -> None:
    """Ten receives in one batch share ten messages without overlap, and of each message one receipt is in force."""
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
def test_punctuality(host: Host, delay_s: int, timeout_s: int) -> None:
    """Never before `visible_at_ms`, and by the first receive from then on; `next_due_ms` names that instant."""
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


def test_staleness(host: Host) -> None:
    """A superseded receipt changes nothing, by whatever command, however often."""
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
def test_order(kept: Host, *, delete_first: bool) -> None:
    """Each group gives its messages in the order of sending, and nothing while one is in flight, over crashes too."""
    kept.create(fifo=True)
    bodies = [f"{group}{number}" for number in range(6) for group in "abc"]
    kept.put(*[NewMessage(body=body, size_bytes=2, group=body[0], dedup_id=body) for body in bodies])
    deleted: list[str] = []
    while sum(kept.counts()):
        got = kept.receive(2, timeout_s=1)
        kept.crash()
        blocked = {each.body[0] for each in got}
        others = kept.receive(20, timeout_s=1)
        assert blocked.isdisjoint(each.body[0] for each in others), "a group gave more while it was in flight"
        first = {each.body[0]: each for each in reversed([*got, *others])}
        for group, each in first.items():
            assert each.body == f"{group}{sum(body[0] == group for body in deleted)}", "not the next one of its group"
        done = got if delete_first else got[:1]
        kept.delete(*(each.receipt for each in done))
        deleted += [each.body for each in done]
        kept.advance(1_000)
    assert sorted(deleted) == sorted(bodies)


@pytest.mark.parametrize("abruptly", [False, True], ids=["closed", "crashed"])
def test_durability(kept: Host, *, abruptly: bool) -> None:
    """What was acknowledged is there, with its lease, its receive count and its first-receive time; receipts work."""
    kept.create(visibility_timeout_s=60)
    kept.send("held", "deleted", "released")
    held, deleted, released = kept.receive(3)
    kept.delete(deleted.receipt)
    kept.change(released.receipt, 0)
    kept.send("delayed", delay_s=30)
    before = kept.counts()
    assert before == (1, 1, 1)
    if abruptly:
        kept.crash()
    else:
        kept.reopen()
    assert kept.counts() == before
    assert kept.delete(deleted.receipt) == [ReceiptState.GONE]
    back = kept.receive_one()
    assert (back.body, back.receive_count, back.id) == ("released", 2, released.id)
    assert back.first_received_at_ms == released.first_received_at_ms
    assert kept.due_ms() == kept.clock.now_ms() + 30_000
    kept.advance(59_999)
    assert kept.receive_one().body == "delayed"
    assert kept.change(held.receipt, 1).state is ReceiptState.LIVE
    assert kept.delete(held.receipt) == [ReceiptState.LIVE]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
@pytest.mark.parametrize("receives_max", [1, 3])
def test_mortality(kept: Host, receives_max: int, *, fifo: bool) -> None:
    """Each message is given out exactly as often as its queue allows, then dead-lettered, once, over crashes too."""
    dead = "000000000000/dead"
    redrive: dict[str, SettingValue] = {"dead_letter_queue": dead, "receives_max": receives_max}
    kept.do(commands.CreateQueue(queue=dead, settings={"fifo": fifo}))
    kept.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": fifo, **redrive}))
    bodies = [str(number) for number in range(8)]
    kept.put(*[NewMessage(body=body, size_bytes=1, group=body if fifo else None, dedup_id=body) for body in bodies])
    given = Counter[str]()
    while sum(kept.counts()):
        given.update(each.body for each in kept.receive(3, timeout_s=1))
        kept.crash()
        assert sum(kept.counts()) + sum(kept.counts(dead)) == len(bodies)
        kept.advance(500)
    assert given == dict.fromkeys(bodies, receives_max)
    arrived = kept.receive(10, queue=dead)
    assert sorted(each.body for each in arrived) == bodies
    assert {(each.receive_count, each.source) for each in arrived} == {(receives_max + 1, QUEUE)}


# Two doors to one message: whatever clients of SQS and of SMQ do with it, it has one live lease at the most.
#
# What clients are told is noted, and that is all this frame knows of a message: until when it is hidden, how often it
# was received, whether it was deleted. After every step every receipt that was ever issued is judged, by a change
# that is always refused, as its lease would be too long: so nothing changes by it. The properties are those that the
# SMQ reference names at the end of its section 11.


OWN_TIMEOUT_S = 30
RETENTION_S = 1_209_600
TERMS = SendOptions(receipts=True, dedup_id_optional=True, all_or_nothing=True)
TWELVE_HOURS_MS = 43_200_000


@dataclass(eq=False)
class Told:
    """What is known of a message by what clients were told."""

    id: bytes
    group: str | None
    sent_at_ms: int
    hidden_until_ms: int
    received_at_ms: int = 0
    receives: int = 0
    is_gone: bool = False


@dataclass(frozen=True)
class Issued:
    """A receipt, and after how many receives of its message it was issued."""

    text: str
    of: Told = field(repr=False)
    receive: int


class Doors(ModelFrame):
    """Clients at both doors of one queue, with restarts and crashes."""

    times_ms = st.sampled_from((0, 1, 999, 1_000, 29_999, 30_000, 30_000, TWELVE_HOURS_MS))

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Told] = []
        self.issued: list[Issued] = []
        self.kind = ""

    @initialize(kind=st.sampled_from(("plain", "fair", "fifo")))
    def open(self, kind: str) -> None:
        self.open_host()
        self.kind = kind
        self.live.create(visibility_timeout_s=OWN_TIMEOUT_S, retention_s=RETENTION_S, fifo=kind == "fifo")

    # Sends.

    @rule(
        delay_s=st.sampled_from((0, 0, 1, 30, 604_800)), priority=st.integers(1, 16), group=st.sampled_from(("g", "h"))
    )
    def send(self, delay_s: int, priority: int, group: str) -> None:
        where = None if self.kind == "plain" else group
        (sent,) = self.live.put(message("x", delay_s=delay_s, priority=priority, group=where), terms=TERMS)
        told = Told(sent.id, where, self.now_ms, self.now_ms + delay_s * 1_000)
        self.messages.append(told)
        assert (sent.receipt is not None) is bool(delay_s)
        if sent.receipt is not None:
            self.issued.append(Issued(sent.receipt, told, 0))

    # Receives.

    @rule(count=st.integers(1, 4), timeout_s=st.sampled_from((0, 0, 1, 30)))
    def receive_by_sqs(self, count: int, timeout_s: int) -> None:
        self.take(count, timeout_s)

    @rule(count=st.integers(1, 4))
    def receive_by_smq(self, count: int) -> None:
        self.take(count, None)

    def take(self, count: int, timeout_s: int | None) -> None:
        """Receive; what comes was held by nobody, and what does not come is held, or waits behind its group."""
        got: list[ReceivedMessage] = self.live.do(Receive(queue=QUEUE, count=count, timeout_s=timeout_s)).messages
        busy = {told.group for told in self.held() if told.receives}
        for each in got:
            (told,) = [told for told in self.messages if told.id == each.id]
            assert not told.is_gone, "a message came back that was deleted"
            assert told.hidden_until_ms <= self.now_ms, "a message came while somebody held it, or in its delay"
            self.lease(told, each, OWN_TIMEOUT_S if timeout_s is None else timeout_s)
        if len(got) < count:
            left = [told for told in self.present() if told.hidden_until_ms <= self.now_ms]
            came = {each.id for each in got}
            missed = [told for told in left if told.id not in came and not (self.kind == "fifo" and told.group in busy)]
            assert not missed, "a message did not come from the instant on at which it was said to be visible"

    def lease(self, told: Told, got: ReceivedMessage, timeout_s: int) -> None:
        told.receives += 1
        assert got.receive_count == told.receives, "the receive count is not the number of receives"
        assert got.visible_at_ms == self.now_ms + timeout_s * 1_000
        told.hidden_until_ms = got.visible_at_ms
        told.received_at_ms = self.now_ms
        self.issued.append(Issued(got.receipt, told, told.receives))

    # Receipts.

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=st.sampled_from((0, 1, 30, 43_200)))
    def change_by_sqs(self, data: st.DataObject, timeout_s: int) -> None:
        issued = one_of(data, self.issued)
        answer = self.live.change(issued.text, timeout_s)
        told = issued.of
        if isinstance(answer, LeaseTooLong):
            assert told.receives, "nobody has a lease of what was never received"
            assert self.now_ms + timeout_s * 1_000 > told.received_at_ms + TWELVE_HOURS_MS
            return
        self.judge(issued, answer.state, lenient=False)
        if answer.visible_at_ms is not None:
            assert answer.state in self.acting(by_smq=False)
            self.move(told, answer.visible_at_ms, timeout_s)

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=st.sampled_from((1, 30, 43_200)), lenient=st.booleans())
    def change_by_smq(self, data: st.DataObject, timeout_s: int, *, lenient: bool) -> None:
        """Change: only a live receipt acts, a new one comes, and the one before it is dead from now on."""
        issued = one_of(data, self.issued)
        answer = self.live.change(
            issued.text, timeout_s, bounded=False, only_live=True, any_epoch=lenient, renew_receipt=True
        )
        self.judge(issued, answer.state, lenient=lenient)
        assert (answer.receipt is not None) is (answer.state is ReceiptState.LIVE)
        if answer.receipt is not None:
            assert answer.receipt != issued.text
            self.move(issued.of, answer.visible_at_ms, timeout_s)
            self.issued.append(Issued(answer.receipt, issued.of, issued.receive))

    def move(self, told: Told, visible_at_ms: int, timeout_s: int) -> None:
        """Note a new deadline: counted from now, later or earlier than the old one."""
        assert visible_at_ms == self.now_ms + timeout_s * 1_000
        told.hidden_until_ms = visible_at_ms

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), by_smq=st.booleans(), lenient=st.booleans())
    def delete(self, data: st.DataObject, *, by_smq: bool, lenient: bool) -> None:
        issued = one_of(data, self.issued)
        lenient = by_smq and lenient
        (state,) = self.live.delete(issued.text, only_live=by_smq, any_epoch=lenient)
        self.judge(issued, state, lenient=lenient)
        if state in self.acting(by_smq=by_smq):
            issued.of.is_gone = True

    def acting(self, *, by_smq: bool) -> tuple[ReceiptState, ...]:
        if by_smq or self.kind == "fifo":
            return (ReceiptState.LIVE,)
        return ReceiptState.LIVE, ReceiptState.EXPIRED

    def judge(self, issued: Issued, state: ReceiptState, *, lenient: bool) -> None:
        told = issued.of
        if told.is_gone:
            assert state is ReceiptState.GONE
        elif issued.receive != told.receives:
            assert state is ReceiptState.SUPERSEDED
        else:
            latest = [each for each in self.issued if each.of is told][-1]
            if issued is latest or lenient:
                held = told.hidden_until_ms > self.now_ms
                assert state is (ReceiptState.LIVE if held else ReceiptState.EXPIRED)
            else:
                assert state is ReceiptState.SUPERSEDED

    # After every step.

    def present(self) -> list[Told]:
        for told in self.messages:
            told.is_gone = told.is_gone or told.sent_at_ms + RETENTION_S * 1_000 <= self.now_ms
        return [told for told in self.messages if not told.is_gone]

    def held(self) -> list[Told]:
        return [told for told in self.present() if told.hidden_until_ms > self.now_ms]

    def compare(self) -> None:
        """Assert that each hidden message has one live receipt, no other one has any, and counters say the same."""
        held = self.held()
        strict = self.live_receipts(lenient=False)
        assert sorted(id(issued.of) for issued in strict) == sorted(id(told) for told in held), "two leases, or none"
        lenient = self.live_receipts(lenient=True)
        assert {issued.text for issued in strict} <= {issued.text for issued in lenient}
        assert all(issued.receive == issued.of.receives for issued in lenient), "lenient across receives"
        assert {id(issued.of) for issued in lenient} == {id(told) for told in held}
        in_flight = len([told for told in held if told.receives])
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
def test_no_sequence_of_calls_gives_two_live_leases() -> None:
    run_model(Doors, examples=30, steps=50)


# A full disk: sends fail with a clear error, nothing acknowledged is lost, and the queue can be drained.


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
def test_a_database_with_a_bound_fills_and_drains(kind: str, tmp_path: Path) -> None:
    """`database_pages_max` reached: refused, kept, over an abrupt start too, drained, used again."""
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


def test_the_sends_of_a_batch_are_refused_and_the_rest_of_it_goes_on(tmp_path: Path) -> None:
    """One transaction that runs out of room: its sends fail, its receive and its delete do not."""
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


def test_a_small_file_system_fills_and_drains(tmp_path: Path) -> None:
    """The reserve keeps room for draining on a real disk that is nearly full; what that frees is room for sends."""
    with (
        small_file_system(tmp_path / "disk", size_bytes=24 * MIB),
        on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=8 * MIB) as host,
    ):
        host.create(visibility_timeout_s=600)
        drain(host, fill(host))


def test_a_file_system_without_a_reserve_loses_nothing(tmp_path: Path) -> None:
    """Even when the disk runs full in the middle of a transaction, what was acknowledged is there."""
    with small_file_system(tmp_path / "disk", size_bytes=24 * MIB):
        with on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=0) as host:
            host.create(visibility_timeout_s=600)
            sent = fill(host)
            assert host.counts() == (len(sent), 0, 0)
        with on_sqlite(tmp_path / "disk" / "store").open(free_space_reserve_bytes=0) as host:
            host.check()
            assert host.counts() == (len(sent), 0, 0)

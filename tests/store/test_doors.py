"""Two doors to one message: whatever clients of SQS and of SMQ do with it, it has one live lease at the most.

What clients are told is noted, and that is all this frame knows of a message: until when it is hidden, how often it was
received, whether it was deleted. After every step every receipt that was ever issued is judged, by a change that is
always refused, as its lease would be too long: so nothing changes by it. The properties are those that the SMQ
reference names at the end of its section 11.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.store.host import QUEUE, message
from tests.store.model_frame import ModelFrame, one_of, run_model
from veilmq.core import commands
from veilmq.core.commands import Receive, ReceivedMessage, SendOptions, VisibilityChange
from veilmq.core.errors import LeaseTooLong, ReceiptState

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
        """Begin with nothing sent."""
        super().__init__()
        self.messages: list[Told] = []
        self.issued: list[Issued] = []
        self.kind = ""

    @initialize(kind=st.sampled_from(("plain", "fair", "fifo")))
    def open(self, kind: str) -> None:
        """Open, with a queue of some kind."""
        self.open_host()
        self.kind = kind
        self.live.create(visibility_timeout_s=OWN_TIMEOUT_S, retention_s=RETENTION_S, fifo=kind == "fifo")

    # Sends.

    @rule(
        delay_s=st.sampled_from((0, 0, 1, 30, 604_800)), priority=st.integers(1, 16), group=st.sampled_from(("g", "h"))
    )
    def send(self, delay_s: int, priority: int, group: str) -> None:
        """Send a message; a delayed one has a receipt, by which it is hidden from the start."""
        where = None if self.kind == "plain" else group
        new = message("x", delay_s=delay_s, priority=priority, group=where)
        (sent,) = self.live.do(commands.Send(queue=QUEUE, messages=(new,), options=TERMS))
        told = Told(sent.id, where, self.now_ms, self.now_ms + delay_s * 1_000)
        self.messages.append(told)
        assert (sent.receipt is not None) is bool(delay_s)
        if sent.receipt is not None:
            self.issued.append(Issued(sent.receipt, told, 0))

    # Receives.

    @rule(count=st.integers(1, 4), timeout_s=st.sampled_from((0, 0, 1, 30)))
    def receive_by_sqs(self, count: int, timeout_s: int) -> None:
        """Receive with a timeout of the client's."""
        self.take(count, timeout_s)

    @rule(count=st.integers(1, 4))
    def receive_by_smq(self, count: int) -> None:
        """Receive with the queue's own timeout."""
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
        """Note what a receive says."""
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
        """Change: an expired receipt may act, but in FIFO queues; no lease is longer than twelve hours."""
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
        """Delete at one of the doors."""
        issued = one_of(data, self.issued)
        lenient = by_smq and lenient
        (state,) = self.live.delete(issued.text, only_live=by_smq, any_epoch=lenient)
        self.judge(issued, state, lenient=lenient)
        if state in self.acting(by_smq=by_smq):
            issued.of.is_gone = True

    def acting(self, *, by_smq: bool) -> tuple[ReceiptState, ...]:
        """Return the states in which a receipt has an effect."""
        if by_smq or self.kind == "fifo":
            return (ReceiptState.LIVE,)
        return ReceiptState.LIVE, ReceiptState.EXPIRED

    def judge(self, issued: Issued, state: ReceiptState, *, lenient: bool) -> None:
        """Assert that the engine says of a receipt what clients were told: live means held, by its own receive."""
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
        """Return the messages that are there still."""
        for told in self.messages:
            told.is_gone = told.is_gone or told.sent_at_ms + RETENTION_S * 1_000 <= self.now_ms
        return [told for told in self.messages if not told.is_gone]

    def held(self) -> list[Told]:
        """Return those that are hidden, in flight or delayed."""
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
        """Return the receipts that would act by the rules of SMQ."""
        changes = tuple(VisibilityChange(receipt=issued.text, timeout_s=1) for issued in self.issued)
        probe = commands.ChangeVisibility(
            queue=QUEUE, changes=changes, only_live=True, any_epoch=lenient, lease_s_max=-1
        )
        answers: list[Any] = self.live.do(probe)
        return [issued for issued, answer in zip(self.issued, answers, strict=True) if isinstance(answer, LeaseTooLong)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_sequence_of_calls_gives_two_live_leases() -> None:
    """At random, and reproducibly."""
    run_model(Doors, examples=30, steps=50)

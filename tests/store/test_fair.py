"""Fair queues: the model holds their rules; before it stands what it does not draw: quotas, and crowds of forty."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.store import model_frame
from tests.store.host import QUEUE, Host, message
from tests.store.naive import NaiveFair, kind_of
from tests.store.postgres_host import Store
from veilmq.core import commands
from veilmq.core import messages as core_messages
from veilmq.core.commands import SendOptions
from veilmq.core.errors import ReceiptState

MINUTE_MS = 60_000
NOISY, QUIET = "noisy", "quiet"


@pytest.fixture
def host(kept_store: Store) -> Iterator[Host]:
    with kept_store.open() as opened:
        opened.create()
        yield opened


def send(host: Host, group: str | None, *bodies: str, queue: str = QUEUE) -> None:
    sent = host.put(*(message(body, group=group) for body in bodies), queue=queue)
    assert all(isinstance(each, commands.SentMessage) for each in sent)


def crowd(host: Host, waiting: int) -> list[commands.ReceivedMessage]:
    """Have 40 messages of a noisy group in flight and so many waiting; return those in flight."""
    for start in range(0, 40 + waiting, 50):
        send(host, NOISY, *(f"n{n}" for n in range(start, min(start + 50, 40 + waiting))))
    return [message for _ in range(4) for message in host.receive(10, timeout_s=3_600)]


def bodies(host: Host, count: int = 1) -> list[str]:
    return host.bodies(count, timeout_s=3_600)


def test_a_queue_at_its_quota_answers_after_a_restart(kept: Host) -> None:
    kept.create(in_flight_max=1)
    send(kept, NOISY, "n0", "n1")
    kept.receive(1, timeout_s=3_600)
    kept.reopen()
    assert bodies(kept) == []


def test_processing_is_recent_by_when_it_ended_not_by_when_that_was_seen(host: Host) -> None:
    send(host, NOISY, "n")
    send(host, QUIET, "a")
    (long,) = host.receive(1, timeout_s=3_600)
    host.advance(55_000)
    host.receive(1, timeout_s=6)
    host.advance(5_000)
    host.delete(long.receipt)
    host.advance(20 * MINUTE_MS)
    send(host, QUIET, "b")
    host.advance(1)
    send(host, "other", "o")
    assert bodies(host, 3) == ["a", "b", "o"], "6 of 66 s are less than a tenth, however long ago"


def test_a_group_that_sends_with_delays_is_not_silent(host: Host) -> None:
    crowd(host, 10)
    host.advance(4 * MINUTE_MS)
    host.put(message("late", group=NOISY, delay_s=900))
    host.advance(MINUTE_MS)
    send(host, QUIET, "q")
    assert bodies(host) == ["q"]


def test_receipts_of_what_stands_aside_act(host: Host) -> None:
    in_flight = crowd(host, 0)
    for each in in_flight[:2]:
        host.change(each.receipt, 0)
    host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host) == ["q"], "both are passed over"
    assert host.delete(in_flight[0].receipt) == [ReceiptState.EXPIRED]
    assert host.change(in_flight[1].receipt, 60).state is ReceiptState.EXPIRED
    assert host.counts() == (0, 40, 0)
    assert bodies(host) == []
    host.advance(60_000)
    assert bodies(host) == ["n1"]


def test_what_retention_ends_is_not_in_flight_any_more(host: Host) -> None:
    host.set_queue(retention_s=60)
    crowd(host, 0)
    host.advance(MINUTE_MS)
    assert host.counts() == (0, 0, 0)
    host.advance(30 * MINUTE_MS)  # processing time is forgotten
    send(host, NOISY, "n")
    host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host, 2) == ["n", "q"]


def test_a_group_is_drained_by_a_receive_that_hides_nothing(host: Host) -> None:
    in_flight = crowd(host, 1)
    send(host, QUIET, "q0")
    assert bodies(host) == ["q0"], "the other one is noisy"
    for each in in_flight:
        host.change(each.receipt, 0)
    assert len(host.receive(100, timeout_s=0)) == 41
    host.advance(1)
    send(host, QUIET, "q1")
    assert bodies(host) == ["n0"]


def test_no_message_that_stood_aside_is_given_twice_in_one_answer(host: Host) -> None:
    """Those of the second group returned earlier: the window of leases may not be read again behind them."""
    most = crowd(host, 0)
    send(host, "other", *(f"o{n}" for n in range(35)))
    fewer = [each for _ in range(5) for each in host.receive(7, timeout_s=3_600)]
    for each in (*most[:3], *fewer[:3]):
        host.change(each.receipt, 0)
        host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host) == ["q"], "the others step aside"
    assert bodies(host, 10) == ["o0", "o1", "o2", "n0", "n1", "n2"]


# Fair queues beside the naive model, at random, with restarts, crashes and dead letters.
#
# The thresholds are set low (three in flight, 30 %), so that groups become noisy within a few steps; that the
# published ones are in force is for `tests/internals/core/test_messages.py` to say.


MODEL_QUEUE, MODEL_DEAD = "a/jobs", "a/dead"
GROUPS = st.sampled_from(("a", "b", "c", "d", None))
IN_FLIGHT_MIN, SHARE_PERCENT = 3, 30
TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000, 60_000, 300_000, 301_000))
TIMEOUTS_S = st.sampled_from((0, 1, 30, 600))


class FairAndModel(model_frame.ModelFrame):
    """Each rule does the same to both; the model judges the answers."""

    times_ms = TIMES_MS
    restarts = ("close", "crash", "crash", "purge")

    def __init__(self) -> None:
        super().__init__()
        self.issued: list[str] = []
        self.buried: set[str] = set()
        self.model: NaiveFair

    @initialize(
        visibility_timeout_s=TIMEOUTS_S,
        visibility_rules=model_frame.RULES,
        retention_s=st.sampled_from((60, 345_600, 345_600)),
        receives_max=st.sampled_from((0, 0, 2, 4)),
    )
    def open(self, receives_max: int, **terms: Any) -> None:
        self.open_host()
        self.receives_max = receives_max
        self.live.create(MODEL_DEAD, retention_s=1_209_600)
        given = {"delay_s": 0, **terms}
        mortal: dict[str, Any] = {"dead_letter_queue": MODEL_DEAD, "receives_max": receives_max} if receives_max else {}
        self.live.create(MODEL_QUEUE, **given, **mortal)
        self.model = NaiveFair(given, in_flight_min=IN_FLIGHT_MIN, share_percent=SHARE_PERCENT)

    # Messages.

    @rule(
        groups=st.lists(GROUPS, min_size=1, max_size=6),
        delay_s=st.sampled_from((0, 0, 0, 1, 30)),
        terms=model_frame.TERMS,
    )
    def send(self, groups: list[str | None], delay_s: int, terms: SendOptions | None) -> None:
        self.deliver(groups, delay_s, terms)

    @rule(group=GROUPS, several=st.integers(3, 9), timeout_s=TIMEOUTS_S)
    def crowd(self, group: str | None, several: int, timeout_s: int) -> None:
        self.deliver([group] * 2 * several, 0)
        self.take(several, timeout_s)

    def deliver(self, groups: list[str | None], delay_s: int, terms: SendOptions | None = None) -> None:
        self.live.advance(1)
        bodies = [f"{group}{self.bodies + number}" for number, group in enumerate(groups)]
        self.bodies += len(groups)
        new = [
            message(body, group=group, delay_s=delay_s, kind=kind_of(body))
            for body, group in zip(bodies, groups, strict=True)
        ]
        answers = self.live.put(*new, terms=terms, queue=MODEL_QUEUE)
        for each, sent in zip(new, answers, strict=True):
            self.model.send(self.now_ms, *model_frame.naive_send(each, sent))
            self.issued += [sent.receipt] if sent.receipt is not None else []

    @rule(count=st.sampled_from((1, 1, 2, 3, 10)), timeout_s=st.none() | TIMEOUTS_S)
    def receive(self, count: int, timeout_s: int | None) -> None:
        self.take(count, timeout_s)

    @rule(time_ms=model_frame.SHORT_TIMES_MS, timeout_s=TIMEOUTS_S, several=st.integers(1, 4))
    def come_back(self, time_ms: int, timeout_s: int, several: int) -> None:
        self.live.advance(time_ms)
        for _ in range(several):
            self.take(2, timeout_s)

    def take(self, count: int, timeout_s: int | None) -> None:
        now_ms = self.now_ms
        peeked = self.peek(MODEL_QUEUE, count)
        answer = self.live.do(commands.Receive(queue=MODEL_QUEUE, count=count, timeout_s=timeout_s)).messages
        assert peeked == [each.id for each in answer]
        terms = [model_frame.naive_terms(each) for each in answer]
        self.model.check_receive(now_ms, count, timeout_s, terms, self.bury(), self.receives_max)
        self.issued += [each.receipt for each in answer]
        self.check_due(self.live.due_ms(queue=MODEL_QUEUE), self.model)

    def bury(self) -> list[bytes]:
        if not self.receives_max or self.live.counts(MODEL_DEAD) == (len(self.buried), 0, 0):
            return []
        everything = self.live.receive(1_000, queue=MODEL_DEAD, timeout_s=0)
        assert {each.body for each in everything} > self.buried
        lately = [each.id for each in everything if each.body not in self.buried]
        self.buried = {each.body for each in everything}
        assert len(self.buried) == len(everything), "a message died twice"
        return lately

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), several=st.integers(1, 9), door=model_frame.DOORS)
    def delete(self, data: st.DataObject, several: int, door: dict[str, bool]) -> None:
        for _ in range(several):
            text = model_frame.one_of(data, self.issued)
            (answer,) = self.live.delete(text, queue=MODEL_QUEUE, **door)
            assert answer.value == self.model.delete(self.now_ms, text, **door)

    @precondition(lambda self: self.issued)
    @rule(
        data=st.data(),
        timeout_s=st.sampled_from((0, 0, 0, 1, 30, 600)),
        several=st.integers(1, 5),
        door=model_frame.DOORS,
        renew=st.booleans(),
    )
    def change(self, data: st.DataObject, timeout_s: int, several: int, door: dict[str, bool], *, renew: bool) -> None:
        for _ in range(several):
            text = model_frame.one_of(data, self.issued)
            renewed = self.change_both(MODEL_QUEUE, self.model, text, timeout_s, renew=renew, **door)
            self.issued += [renewed] if renewed else []

    # Accidents.

    def suffer(self, kind: str) -> None:
        """Purge the queue, or start again: then what was known of the groups is forgotten."""
        if kind == "purge":
            self.live.purge(MODEL_QUEUE)
            self.model.purge(self.now_ms)
            return
        super().suffer(kind)
        self.model.age(self.now_ms)
        self.model.forget()

    def compare(self) -> None:
        self.check_queue(MODEL_QUEUE, self.model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engine_agrees_with_the_model(model_url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_messages, "FAIR_IN_FLIGHT_MIN", IN_FLIGHT_MIN)
    monkeypatch.setattr(core_messages, "FAIR_SHARE_PERCENT", SHARE_PERCENT)
    model_frame.run_model(FairAndModel, examples=25, steps=30, url=model_url, examples_there=5)

"""Fair queues through the port: quiet groups first, nothing lost, at no cost that grows with the backlog."""

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


def test_among_noisy_groups_the_one_with_the_fewest_in_flight_comes_first(host: Host) -> None:
    crowd(host, 10)
    send(host, "other", *(f"o{n}" for n in range(50)))
    assert bodies(host, 31) == [f"o{n}" for n in range(31)], "thirty of the other make it noisy too"
    assert bodies(host, 4) == ["o31", "o32", "o33", "o34"], "31 to 34 in flight against 40"


@pytest.mark.differs_on_postgres("a node learns what is in flight when it looks for a receive")
@pytest.mark.parametrize("timeout_s", [None, 0])
def test_what_a_receipt_ends_after_a_restart_counts_from_its_receive(kept: Host, timeout_s: int | None) -> None:
    kept.create()
    send(kept, NOISY, "n0", "n1")
    (held,) = kept.receive(1, timeout_s=3_600)
    kept.advance(MINUTE_MS)
    kept.reopen()
    if timeout_s is None:
        kept.delete(held.receipt)
    else:
        kept.change(held.receipt, timeout_s)
    kept.advance(1)
    send(kept, QUIET, "q")
    assert bodies(kept) == ["q"]


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


def test_groups_that_are_not_noisy_come_in_the_order_of_their_sending(host: Host) -> None:
    for n in range(12):
        send(host, f"g{n % 3}", f"m{n}")
        host.advance(1)
    assert bodies(host, 10) + bodies(host, 10) == [f"m{n}" for n in range(12)]


def test_messages_of_one_group_may_be_in_flight_together(host: Host) -> None:
    send(host, QUIET, "a", "b", "c")
    assert bodies(host) + bodies(host) + bodies(host) == ["a", "b", "c"]


def test_a_returned_message_of_a_noisy_group_waits_for_the_quiet(host: Host) -> None:
    in_flight = crowd(host, 0)
    host.change(in_flight[0].receipt, 0)
    host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host, 2) == ["q", "n0"]


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


def test_a_group_is_quiet_again_when_its_backlog_is_drained(host: Host) -> None:
    in_flight = crowd(host, 1)
    assert bodies(host) == ["n40"]
    host.delete(*(each.receipt for each in in_flight))
    host.advance(2 * MINUTE_MS * 10)  # processing time is forgotten too
    send(host, "other", "o")
    host.advance(1)
    send(host, NOISY, "new")
    host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host, 3) == ["o", "new", "q"]


def test_nothing_is_lost_by_a_restart(kept: Host) -> None:
    kept.create()
    crowd(kept, 60)
    send(kept, QUIET, "q0")
    kept.crash()
    assert bodies(kept) == ["q0"], "those in flight are counted again"
    send(kept, QUIET, "q1")
    kept.reopen()
    assert bodies(kept) == ["q1"]
    rest = [body for _ in range(6) for body in bodies(kept, 10)]
    assert sorted(rest) == sorted(f"n{n}" for n in range(40, 100))
    assert bodies(kept) == []
    assert kept.counts() == (0, 102, 0)


def test_delays_purge_and_retention_are_as_ever(host: Host) -> None:
    host.put(message("late", group=QUIET, delay_s=10))
    send(host, NOISY, "a", "b")
    assert bodies(host, 10) == ["a", "b"]
    host.advance(10_000)
    assert bodies(host, 10) == ["late"]
    send(host, QUIET, "c")
    host.purge()
    assert host.counts() == (0, 0, 0)
    send(host, QUIET, "d")
    host.advance(345_600_000)
    assert bodies(host) == []
    assert host.counts() == (0, 0, 0)


def test_who_waits_is_told_of_messages_whose_group_has_just_become_noisy(host: Host) -> None:
    """They step aside, but they can be had."""
    send(host, NOISY, *(f"n{n}" for n in range(40)))
    for _ in range(3):
        host.receive(10, timeout_s=3_600)
    assert host.due_ms() == host.clock.now_ms()


def test_messages_that_are_changed_after_a_restart_are_in_flight_once(kept: Host) -> None:
    kept.create()
    send(kept, NOISY, *(f"n{n}" for n in range(29)))
    held = kept.receive(29, timeout_s=3_600)
    kept.reopen()
    for each in held[:5]:
        kept.change(each.receipt, 7_200)
    send(kept, NOISY, "n29")
    kept.advance(1)
    send(kept, QUIET, "q")
    assert bodies(kept, 2) == ["n29", "q"], "29 in flight are not noisy"


def test_what_a_change_hides_after_a_restart_counts_from_the_change(kept: Host) -> None:
    kept.create()
    send(kept, NOISY, "n0", "n1")
    (held,) = kept.receive(1, timeout_s=1)
    kept.advance(MINUTE_MS)
    kept.reopen()
    kept.change(held.receipt, 600)
    kept.delete(held.receipt)
    kept.advance(1)
    send(kept, QUIET, "q")
    assert bodies(kept, 2) == ["n1", "q"]


def test_a_send_after_a_restart_counts_nothing_in_flight(kept: Host) -> None:
    kept.create()
    send(kept, NOISY, "n0", "n1")
    kept.receive(1, timeout_s=30)
    kept.reopen()
    kept.advance(1)
    send(kept, QUIET, "q")
    kept.advance(31_000)
    assert bodies(kept, 3) == ["n1", "q", "n0"]


def test_the_end_of_retention_after_a_restart_counts_nothing_in_flight(kept: Host) -> None:
    kept.create(retention_s=60)
    kept.put(message("late", group="other", delay_s=900))
    kept.advance(20_000)
    send(kept, NOISY, "n0", "n1")
    kept.receive(1, timeout_s=45)
    kept.reopen()
    kept.advance(40_000)
    assert kept.counts() == (1, 1, 0)
    send(kept, QUIET, "q")
    kept.advance(10_000)
    assert bodies(kept, 3) == ["n1", "q", "n0"]


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


def test_a_group_whose_first_message_is_past_its_retention_has_the_turn_of_its_next_one(host: Host) -> None:
    host.set_queue(retention_s=60)
    for group, body in (("a", "a1"), ("b", "b1"), ("a", "a2")):
        send(host, group, body)
        host.advance(1_000)
    host.advance(57_000)
    assert bodies(host, 10) == ["b1", "a2"]


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

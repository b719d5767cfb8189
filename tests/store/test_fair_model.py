"""Fair queues beside the naive model, at random, with restarts, crashes and dead letters.

The thresholds are set low (three in flight, 30 %), so that groups become noisy within a few steps; that the published
ones are in force is for `tests/internals/core/test_messages.py` to say.
"""

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.store.host import message
from tests.store.model_frame import (
    DOORS,
    RULES,
    SHORT_TIMES_MS,
    TERMS,
    ModelFrame,
    naive_send,
    naive_terms,
    one_of,
    run_model,
)
from tests.store.naive import kind_of
from tests.store.naive_fair import NaiveFair
from veilmq.core import commands, messages
from veilmq.core.commands import SendOptions

QUEUE, DEAD = "a/jobs", "a/dead"
GROUPS = st.sampled_from(("a", "b", "c", "d", None))
IN_FLIGHT_MIN, SHARE_PERCENT = 3, 30
TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000, 60_000, 300_000, 301_000))
TIMEOUTS_S = st.sampled_from((0, 1, 30, 600))


class EngineAndModel(ModelFrame):
    """Each rule does the same to both; the model judges the answers."""

    times_ms = TIMES_MS
    restarts = ("close", "crash", "crash", "purge")

    def __init__(self) -> None:
        """Begin with nothing received and nothing dead."""
        super().__init__()
        self.issued: list[str] = []
        self.buried: set[str] = set()
        self.model: NaiveFair

    @initialize(
        visibility_timeout_s=TIMEOUTS_S,
        visibility_rules=RULES,
        retention_s=st.sampled_from((60, 345_600, 345_600)),
        receives_max=st.sampled_from((0, 0, 2, 4)),
    )
    def open(self, receives_max: int, **terms: Any) -> None:
        """Open with and without a dead-letter queue."""
        self.open_host()
        self.receives_max = receives_max
        self.live.create(DEAD, retention_s=1_209_600)
        given = {"delay_s": 0, **terms}
        mortal: dict[str, Any] = {"dead_letter_queue": DEAD, "receives_max": receives_max} if receives_max else {}
        self.live.create(QUEUE, **given, **mortal)
        self.model = NaiveFair(given, in_flight_min=IN_FLIGHT_MIN, share_percent=SHARE_PERCENT)

    # Messages.

    @rule(groups=st.lists(GROUPS, min_size=1, max_size=6), delay_s=st.sampled_from((0, 0, 0, 1, 30)), terms=TERMS)
    def send(self, groups: list[str | None], delay_s: int, terms: SendOptions | None) -> None:
        """Send a batch of several groups, sometimes with receipts of what is delayed."""
        self.deliver(groups, delay_s, terms)

    @rule(group=GROUPS, several=st.integers(3, 9), timeout_s=TIMEOUTS_S)
    def crowd(self, group: str | None, several: int, timeout_s: int) -> None:
        """Send many of a group, and have as many in flight."""
        self.deliver([group] * 2 * several, 0)
        self.take(several, timeout_s)

    def deliver(self, groups: list[str | None], delay_s: int, terms: SendOptions | None = None) -> None:
        """Send a batch to both, each at an instant of its own, so that there is an order to keep."""
        self.live.advance(1)
        bodies = [f"{group}{self.bodies + number}" for number, group in enumerate(groups)]
        self.bodies += len(groups)
        new = [
            message(body, group=group, delay_s=delay_s, kind=kind_of(body))
            for body, group in zip(bodies, groups, strict=True)
        ]
        answers = self.live.do(commands.Send(queue=QUEUE, messages=tuple(new), options=terms))
        for each, sent in zip(new, answers, strict=True):
            self.model.send(self.now_ms, *naive_send(each, sent))
            self.issued += [sent.receipt] if sent.receipt is not None else []

    @rule(count=st.sampled_from((1, 1, 2, 3, 10)), timeout_s=st.none() | TIMEOUTS_S)
    def receive(self, count: int, timeout_s: int | None) -> None:
        """Receive a few."""
        self.take(count, timeout_s)

    @rule(time_ms=SHORT_TIMES_MS, timeout_s=TIMEOUTS_S, several=st.integers(1, 4))
    def come_back(self, time_ms: int, timeout_s: int, several: int) -> None:
        """Let time pass, then receive often."""
        self.live.advance(time_ms)
        for _ in range(several):
            self.take(2, timeout_s)

    def take(self, count: int, timeout_s: int | None) -> None:
        """Receive, and have the model judge the answer and what died meanwhile."""
        now_ms = self.now_ms
        peeked = self.peek(QUEUE, count)
        answer = self.live.do(commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s)).messages
        assert peeked == [each.id for each in answer]
        terms = [naive_terms(each) for each in answer]
        self.model.check_receive(now_ms, count, timeout_s, terms, self.bury(), self.receives_max)
        self.issued += [each.receipt for each in answer]
        self.check_due(self.live.due_ms(queue=QUEUE), self.model)

    def bury(self) -> list[bytes]:
        """Return what died lately; the dead-letter queue has that and all that died before."""
        if not self.receives_max or self.live.counts(DEAD) == (len(self.buried), 0, 0):
            return []
        everything = self.live.receive(1_000, queue=DEAD, timeout_s=0)
        assert {each.body for each in everything} > self.buried
        lately = [each.id for each in everything if each.body not in self.buried]
        self.buried = {each.body for each in everything}
        assert len(self.buried) == len(everything), "a message died twice"
        return lately

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), several=st.integers(1, 9), door=DOORS)
    def delete(self, data: st.DataObject, several: int, door: dict[str, bool]) -> None:
        """Delete with receipts of now and of long ago."""
        for _ in range(several):
            text = one_of(data, self.issued)
            (answer,) = self.live.delete(text, queue=QUEUE, **door)
            assert answer.value == self.model.delete(self.now_ms, text, **door)

    @precondition(lambda self: self.issued)
    @rule(
        data=st.data(),
        timeout_s=st.sampled_from((0, 0, 0, 1, 30, 600)),
        several=st.integers(1, 5),
        door=DOORS,
        renew=st.booleans(),
    )
    def change(self, data: st.DataObject, timeout_s: int, several: int, door: dict[str, bool], *, renew: bool) -> None:
        """Change with receipts of now or of long ago."""
        renew = renew and "any_receive" not in door  # SQS renews nothing
        for _ in range(several):
            text = one_of(data, self.issued)
            answer = self.live.change(text, timeout_s, queue=QUEUE, renew_receipt=renew, **door)
            judged = self.model.change(self.now_ms, text, timeout_s, **door)
            assert (answer.state.value, answer.visible_at_ms) == judged
            if answer.receipt is not None:
                self.model.renew(text, answer.receipt)
                self.issued.append(answer.receipt)

    # Accidents.

    def suffer(self, kind: str) -> None:
        """Purge the queue, or start again: then what was known of the groups is forgotten."""
        if kind == "purge":
            self.live.do(commands.PurgeQueue(queue=QUEUE))
            self.model.purge(self.now_ms)
            return
        super().suffer(kind)
        self.model.age(self.now_ms)
        self.model.forget()

    def compare(self) -> None:
        """Assert that the queue is the same."""
        self.check_queue(QUEUE, self.model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engine_agrees_with_the_model(model_url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """At random, and reproducibly."""
    monkeypatch.setattr(messages, "FAIR_IN_FLIGHT_MIN", IN_FLIGHT_MIN)
    monkeypatch.setattr(messages, "FAIR_SHARE_PERCENT", SHARE_PERCENT)
    run_model(EngineAndModel, examples=25, steps=30, url=model_url, examples_there=5)

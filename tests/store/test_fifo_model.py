"""FIFO queues beside the naive model, at random, with restarts and crashes; after every step they must agree."""

from collections.abc import Sequence
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
from tests.store.naive_fifo import NaiveFifo
from veilmq.core import commands
from veilmq.core.commands import SendOptions
from veilmq.core.errors import LeaseTooLong

QUEUE = "a/orders"
GROUPS = "abcde"
TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000, 299_999, 300_000))
TIMEOUTS_S = st.sampled_from((0, 1, 30, 600))
SETTINGS = st.fixed_dictionaries(
    {
        "visibility_timeout_s": TIMEOUTS_S,
        "visibility_rules": RULES,
        "delay_s": st.sampled_from((0, 0, 0, 1, 30)),
        "retention_s": st.sampled_from((60, 345_600, 345_600)),
        "deduplication_scope": st.sampled_from(("queue", "group")),
    }
)


class EngineAndModel(ModelFrame):
    """Each rule does the same to both and compares the answers."""

    times_ms = TIMES_MS

    def __init__(self) -> None:
        """Begin with nothing received."""
        super().__init__()
        self.issued: list[str] = []
        self.model: NaiveFifo

    @initialize(given=SETTINGS)
    def open(self, given: dict[str, Any]) -> None:
        """Open; the queue is there from the start."""
        self.open_host()
        self.create(given)

    def create(self, given: dict[str, Any]) -> None:
        """Create the queue in both."""
        self.live.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": True, **given}))
        self.model = NaiveFifo(given)

    # The queue.

    @rule(delay_s=st.sampled_from((0, 0, 1, 30, 60)))
    def delay(self, delay_s: int) -> None:
        """Change the queue's delay alone, which messages that wait follow."""
        self.live.do(commands.SetQueue(queue=QUEUE, settings={"delay_s": delay_s}))
        self.model.set(self.now_ms, {**self.model.settings, "delay_s": delay_s})

    @rule(given=SETTINGS, kind=st.sampled_from(("set", "set", "purge", "recreate")))
    def administer(self, given: dict[str, Any], kind: str) -> None:
        """Change, purge, or delete and create the queue again: sequence numbers rise across all that."""
        if kind == "purge":
            self.live.do(commands.PurgeQueue(queue=QUEUE))
            self.model.purge(self.now_ms)
        elif kind == "recreate":
            self.live.do(commands.DeleteQueue(queue=QUEUE))
            last_sequence = self.model.last_sequence
            self.create(given)
            self.model.last_sequence = last_sequence
            self.issued = []
        else:
            self.live.do(commands.SetQueue(queue=QUEUE, settings=given))
            self.model.set(self.now_ms, given)

    # Messages.

    @rule(
        groups=st.text(GROUPS, min_size=1, max_size=10),
        delay_s=st.sampled_from((None, None, None, 0, 1, 30)),
        terms=TERMS | st.just(SendOptions(receipts=True, dedup_id_optional=True)),
    )
    def send(self, groups: str, delay_s: int | None, terms: SendOptions | None) -> None:
        """Send a batch, none of it sent before."""
        self.deliver([(group, None, delay_s) for group in groups], terms)

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """Send a batch with ids of which there are few."""
        entries = data.draw(
            st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.none()), min_size=1, max_size=3)
        )
        self.deliver(entries)

    def deliver(self, entries: Sequence[tuple[str, str | None, int | None]], terms: SendOptions | None = None) -> None:
        """Send, and have the model judge the answers."""
        messages = []
        numbered = terms is None or not terms.dedup_id_optional
        for group, dedup_id, delay_s in entries:
            self.bodies += 1
            body = f"{group}{self.bodies}"
            messages.append(
                message(
                    body,
                    group=group,
                    dedup_id=dedup_id or (str(self.bodies) if numbered else None),
                    delay_s=delay_s,
                    kind=kind_of(body),
                )
            )
        answers = self.live.do(commands.Send(queue=QUEUE, messages=tuple(messages), options=terms))
        for new, sent in zip(messages, answers, strict=True):
            self.model.send(self.now_ms, *naive_send(new, sent))
            self.issued += [sent.receipt] if sent.receipt is not None else []

    @rule(
        count=st.sampled_from((1, 1, 2, 3, 10)),
        timeout_s=st.none() | TIMEOUTS_S,
        attempt=st.sampled_from((None, None, "p", "q")),
    )
    def receive(self, count: int, timeout_s: int | None, attempt: str | None) -> None:
        """Receive, sometimes as an attempt."""
        self.take(count, timeout_s, attempt)

    @rule(time_ms=TIMES_MS, count=st.sampled_from((2, 10)), timeout_s=TIMEOUTS_S, again_s=TIMEOUTS_S)
    def attempt_again(self, time_ms: int, count: int, timeout_s: int, again_s: int) -> None:
        """Receive, and after some time receive by the same attempt id."""
        self.take(count, timeout_s, "r")
        self.live.advance(time_ms)
        self.take(count, again_s, "r")

    @rule(time_ms=SHORT_TIMES_MS, timeout_s=TIMEOUTS_S)
    def come_back(self, time_ms: int, timeout_s: int) -> None:
        """Let time pass, then receive until there is nothing to be had."""
        self.live.advance(time_ms)
        for _ in range(5):
            self.take(3, timeout_s, None)

    def take(self, count: int, timeout_s: int | None, attempt: str | None) -> None:
        """Receive, and have the model judge the answer."""
        peeked = self.peek(QUEUE, count)
        repeats = attempt is not None and self.model.repeatable(self.now_ms, attempt)
        answer = self.live.do(
            commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s, attempt_id=attempt)
        ).messages
        assert repeats or peeked == [each.id for each in answer]
        self.model.check_receive(self.now_ms, count, timeout_s, attempt, [naive_terms(each) for each in answer])
        self.issued += [each.receipt for each in answer if each.receipt not in self.issued]
        self.check_due(self.live.due_ms(queue=QUEUE), self.model)

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), several=st.integers(1, 5), door=DOORS)
    def delete(self, data: st.DataObject, several: int, door: dict[str, bool]) -> None:
        """Delete with receipts of now and of long ago."""
        for _ in range(several):
            text = one_of(data, self.issued)
            (answer,) = self.live.delete(text, queue=QUEUE, **door)
            assert answer.value == self.model.delete(self.now_ms, text, **door)

    @precondition(lambda self: self.issued)
    @rule(
        data=st.data(),
        timeout_s=st.sampled_from((0, 0, 1, 30, 43_200)),
        door=DOORS,
        renew=st.booleans(),
        bounded=st.booleans(),
    )
    def change(self, data: st.DataObject, timeout_s: int, door: dict[str, bool], *, renew: bool, bounded: bool) -> None:
        """Change with a receipt of now or of long ago."""
        renew = renew and "any_receive" not in door  # SQS renews nothing
        text = one_of(data, self.issued)
        answer = self.live.change(text, timeout_s, queue=QUEUE, renew_receipt=renew, bounded=bounded, **door)
        state, until_ms = self.model.change(self.now_ms, text, timeout_s, bounded=bounded, **door)
        if state == "too long":
            assert isinstance(answer, LeaseTooLong)
            return
        assert (answer.state.value, answer.visible_at_ms) == (state, until_ms)
        if answer.receipt is not None:
            self.model.renew(text, answer.receipt)
            self.issued.append(answer.receipt)

    def compare(self) -> None:
        """Assert that the queue is the same."""
        self.check_queue(QUEUE, self.model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engine_agrees_with_the_model(model_url: str | None) -> None:
    """At random, and reproducibly."""
    run_model(EngineAndModel, examples=40, steps=50, url=model_url, examples_there=5)

"""The engine beside the naive model, at random, with restarts and crashes; after every step they must agree.

Times are drawn from a tiny set, so that deadlines, delays and ends of retention collide.
"""

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
from tests.store.naive_standard import NaiveStandard
from veilmq.core import commands
from veilmq.core.commands import SendOptions
from veilmq.core.errors import LeaseTooLong, ReceiptInvalid

NAMES = ("a/first", "a/second", "b/first")
TIMEOUTS_S = st.sampled_from((0, 1, 30))
SETTINGS = st.fixed_dictionaries(
    {
        "visibility_timeout_s": TIMEOUTS_S,
        "visibility_rules": RULES,
        "delay_s": st.sampled_from((0, 0, 1)),
        "retention_s": st.sampled_from((60, 61, 345_600)),
        "in_flight_max": st.sampled_from((2, 5, 1_000)),
    }
)


class EngineAndModel(ModelFrame):
    """Each rule does the same to both and compares the answers."""

    def __init__(self) -> None:
        """Begin without queues."""
        super().__init__()
        self.issued: list[tuple[str, int, str]] = []  # queue, its incarnation, receipt
        self.models: dict[str, NaiveStandard] = {}
        self.incarnations = dict.fromkeys(NAMES, 0)

    @initialize(given=SETTINGS)
    def open(self, given: dict[str, int]) -> None:
        """Open; one queue is there from the start."""
        self.open_host()
        self.create(NAMES[0], given)

    def create(self, name: str, given: dict[str, int]) -> None:
        """Create a queue in both."""
        self.live.create(name, **given)
        self.incarnations[name] += 1
        self.models[name] = NaiveStandard(given)

    def some(self, data: st.DataObject) -> tuple[str, NaiveStandard]:
        """Return one of the queues that there are."""
        name = data.draw(st.sampled_from(sorted(self.models)))
        return name, self.models[name]

    # Queues.

    @rule(data=st.data(), given=SETTINGS)
    def administer(self, data: st.DataObject, given: dict[str, int]) -> None:
        """Create, change, purge or delete a queue: one rule, or there would seldom be messages."""
        absent = [name for name in NAMES if name not in self.models]
        kinds = ["set", "set", "purge"] + ["create"] * bool(absent) + ["drop"] * (len(absent) < 2)
        match data.draw(st.sampled_from(kinds)):
            case "create":
                self.create(data.draw(st.sampled_from(absent)), given)
            case "drop":
                name, _ = self.some(data)
                self.live.do(commands.DeleteQueue(queue=name))
                del self.models[name]
            case "purge":
                name, model = self.some(data)
                self.live.do(commands.PurgeQueue(queue=name))
                model.purge(self.now_ms)
            case "set":
                name, model = self.some(data)
                self.live.do(commands.SetQueue(queue=name, settings=given))
                model.set(self.now_ms, given)

    # Messages.

    @rule(
        data=st.data(),
        delays_s=st.lists(st.sampled_from((None, None, 0, 1, 30)), min_size=1, max_size=10),
        priority=st.just(8) | st.integers(1, 16),
        terms=TERMS,
    )
    def send(self, data: st.DataObject, delays_s: list[int | None], priority: int, terms: SendOptions | None) -> None:
        """Send a batch, sometimes with receipts of what is delayed."""
        name, model = self.some(data)
        messages = []
        for delay_s in delays_s:
            self.bodies += 1
            body = f"m{self.bodies}"
            messages.append(message(body, delay_s=delay_s, priority=priority, kind=kind_of(body)))
        answers = self.live.do(commands.Send(queue=name, messages=tuple(messages), options=terms))
        for new, sent in zip(messages, answers, strict=True):
            model.send(self.now_ms, *naive_send(new, sent))
            if sent.receipt is not None:
                self.issued.append((name, self.incarnations[name], sent.receipt))

    @rule(data=st.data(), count=st.sampled_from((1, 1, 2, 3, 10)), timeout_s=st.none() | TIMEOUTS_S)
    def receive(self, data: st.DataObject, count: int, timeout_s: int | None) -> None:
        """Receive from one queue."""
        name, model = self.some(data)
        self.take(name, model, count, timeout_s)

    @rule(time_ms=SHORT_TIMES_MS, timeout_s=TIMEOUTS_S)
    def come_back(self, time_ms: int, timeout_s: int) -> None:
        """Let time pass, then receive all that is visible anywhere, a few at a time."""
        self.live.advance(time_ms)
        for name, model in self.models.items():
            visible, _, _ = model.counts(self.now_ms)
            for _ in range(0, visible + 3, 3):
                self.take(name, model, 3, timeout_s)

    def take(self, name: str, model: NaiveStandard, count: int, timeout_s: int | None) -> None:
        """Receive, and have the model judge the answer."""
        now_ms = self.now_ms
        full = model.is_full(now_ms)
        peeked = self.peek(name, count)
        answer = self.live.do(commands.Receive(queue=name, count=count, timeout_s=timeout_s))
        assert answer.over_limit is full
        assert len(peeked) == min(count, model.counts(now_ms)[0])
        assert peeked[: len(answer.messages)] == [each.id for each in answer.messages]
        model.check_receive(now_ms, count, timeout_s, [naive_terms(each) for each in answer.messages])
        self.check_due(self.due_ms(name, model), model)
        for each in answer.messages:
            self.issued.append((name, self.incarnations[name], each.receipt))

    def due_ms(self, name: str, model: NaiveStandard) -> int | None:
        """Return what a receive that takes nothing says about the next message."""
        if not model.is_full(self.now_ms):
            return self.live.due_ms(queue=name)
        refused: commands.Received = self.live.do(commands.Receive(queue=name))
        assert refused.over_limit
        return refused.next_due_ms

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), door=DOORS, several=st.integers(1, 5))
    def delete(self, data: st.DataObject, several: int, door: dict[str, bool]) -> None:
        """Delete with receipts of now and of long ago."""
        for _ in range(several):
            name, incarnation, text = self.receipt(data)
            (answer,) = self.live.delete(text, queue=name, **door)
            if incarnation != self.incarnations[name]:
                assert isinstance(answer, ReceiptInvalid)
            else:
                assert answer.value == self.models[name].delete(self.now_ms, text, **door)

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
        name, incarnation, text = self.receipt(data)
        answer = self.live.change(text, timeout_s, queue=name, renew_receipt=renew, bounded=bounded, **door)
        if incarnation != self.incarnations[name]:
            assert isinstance(answer, ReceiptInvalid)
            return
        model = self.models[name]
        state, until_ms = model.change(self.now_ms, text, timeout_s, bounded=bounded, **door)
        if state == "too long":
            assert isinstance(answer, LeaseTooLong)
            return
        assert (answer.state.value, answer.visible_at_ms) == (state, until_ms)
        assert (answer.receipt is not None) is (renew and until_ms is not None)
        if answer.receipt is not None:
            model.renew(text, answer.receipt)
            self.issued.append((name, incarnation, answer.receipt))

    def receipt(self, data: st.DataObject) -> tuple[str, int, str]:
        """Return a receipt on a queue that exists: mostly one of the last ten, sometimes any."""
        usable = [issue for issue in self.issued if issue[0] in self.models]
        if not usable:
            return data.draw(st.just((next(iter(self.models)), -1, "never issued")))
        return one_of(data, usable)

    def compare(self) -> None:
        """Assert the same queues, and that each is the same."""
        pages = [self.live.do(commands.ListQueues(account=account)) for account in "ab"]
        names = [f"{account}/{name}" for account, page in zip("ab", pages, strict=True) for name in page.names]
        assert names == sorted(self.models)
        for name, model in self.models.items():
            self.check_queue(name, model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engine_agrees_with_the_model(model_url: str | None) -> None:
    """At random, and reproducibly."""
    run_model(EngineAndModel, examples=40, steps=50, url=model_url, examples_there=5)

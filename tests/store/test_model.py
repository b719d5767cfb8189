"""Random commands, restarts and crashes on engines and on naive models, compared after every step.

Times are drawn from a tiny set, so that deadlines, delays and ends of retention collide.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.store import model_frame
from tests.store.host import QUEUE, message
from tests.store.naive import NaiveFifo, NaiveStandard, kind_of
from veilmq.core import commands
from veilmq.core.commands import MoveStatus, SendOptions
from veilmq.core.errors import ReceiptState
from veilmq.core.settings import SettingValue

NAMES = ("a/first", "a/second", "b/first")
TIMEOUTS_S = st.sampled_from((0, 1, 30))
SETTLES = model_frame.settles_of(0, 0, 1, 30, 43_200)
SETTINGS = st.fixed_dictionaries(
    {
        "visibility_timeout_s": TIMEOUTS_S,
        "visibility_rules": model_frame.RULES,
        "delay_s": st.sampled_from((0, 0, 1)),
        "retention_s": st.sampled_from((60, 61, 345_600)),
        "in_flight_max": st.sampled_from((2, 5, 1_000)),
    }
)


class StandardAndModel(model_frame.ModelFrame):
    """Each rule runs on the engine and on the model, and compares the results."""

    def __init__(self) -> None:
        super().__init__()
        self.models: dict[str, NaiveStandard] = {}

    @initialize(given=SETTINGS)
    def open(self, given: dict[str, int]) -> None:
        self.open_host()
        self.create(NAMES[0], given)

    def create(self, name: str, given: dict[str, int]) -> None:
        self.live.create(name, **given)
        self.models[name] = NaiveStandard(given)

    def draw_queue(self, data: st.DataObject) -> tuple[str, NaiveStandard]:
        name = data.draw(st.sampled_from(sorted(self.models)))
        return name, self.models[name]

    @rule(data=st.data(), given=SETTINGS)
    def administer(self, data: st.DataObject, given: dict[str, int]) -> None:
        absent = [name for name in NAMES if name not in self.models]
        kinds = ["set", "set", "purge"] + ["create"] * bool(absent) + ["drop"] * (len(absent) < 2)
        match data.draw(st.sampled_from(kinds)):
            case "create":
                self.create(data.draw(st.sampled_from(absent)), given)
            case "drop":
                name, _ = self.draw_queue(data)
                self.live.drop(name)
                del self.models[name]
            case "purge":
                name, model = self.draw_queue(data)
                self.live.purge(name)
                model.purge(self.now_ms)
            case "set":
                name, model = self.draw_queue(data)
                self.live.set_queue(name, **given)
                model.set(self.now_ms, given)

    @rule(
        data=st.data(),
        delays_s=st.lists(st.sampled_from((None, None, 0, 1, 30)), min_size=1, max_size=10),
        priority=st.just(8) | st.integers(1, 16),
        options=model_frame.SEND_OPTIONS,
    )
    def send(self, data: st.DataObject, delays_s: list[int | None], priority: int, options: SendOptions | None) -> None:
        self.deliver(*self.draw_queue(data), delays_s, priority, options)

    def deliver(
        self,
        name: str,
        model: NaiveStandard,
        delays_s: list[int | None],
        priority: int = 8,
        options: SendOptions | None = None,
    ) -> None:
        messages = []
        for delay_s in delays_s:
            self.bodies += 1
            body = f"m{self.bodies}"
            messages.append(message(body, delay_s=delay_s, priority=priority, kind=kind_of(body)))
        answers = self.live.put(*messages, options=options, queue=name)
        for new, sent in zip(messages, answers, strict=True):
            model.send(self.now_ms, *model_frame.naive_send(new, sent))
            if sent.receipt is not None:
                assert options is not None, "an unrequested receipt"
                self.issued.append(sent.receipt)

    @rule(data=st.data(), count=st.sampled_from((1, 1, 2, 3, 10)), timeout_s=st.none() | TIMEOUTS_S)
    def receive(self, data: st.DataObject, count: int, timeout_s: int | None) -> None:
        name, model = self.draw_queue(data)
        self.take(name, model, count, timeout_s)

    @rule(time_ms=model_frame.SHORT_TIMES_MS, timeout_s=TIMEOUTS_S)
    def receive_later(self, time_ms: int, timeout_s: int) -> None:
        self.live.advance(time_ms)
        for name, model in self.models.items():
            visible, _, _ = model.counts(self.now_ms)
            for _ in range(0, visible + 3, 3):
                self.take(name, model, 3, timeout_s)

    def take(self, name: str, model: NaiveStandard, count: int, timeout_s: int | None) -> None:
        now_ms = self.now_ms
        full = model.is_full(now_ms)
        peeked = self.peek(name, count)
        answer = self.live.do(commands.Receive(queue=name, count=count, timeout_s=timeout_s))
        assert answer.over_limit is full
        assert len(peeked) == min(count, model.counts(now_ms)[0])
        assert peeked[: len(answer.messages)] == [each.id for each in answer.messages]
        model.check_receive(now_ms, count, timeout_s, [model_frame.received_fields(each) for each in answer.messages])
        self.check_due(self.due_ms(name, model), model)
        self.issued += [each.receipt for each in answer.messages]

    def due_ms(self, name: str, model: NaiveStandard) -> int | None:
        if not model.is_full(self.now_ms):
            return self.live.due_ms(queue=name)
        refused: commands.Received = self.live.do(commands.Receive(queue=name))
        assert refused.over_limit
        return refused.next_due_ms

    @rule(data=st.data(), several=model_frame.SEVERAL, timeout_s=TIMEOUTS_S, settles=SETTLES)
    def settle(self, data: st.DataObject, several: int, timeout_s: int, settles: list[dict[str, Any]]) -> None:
        name, model = self.draw_queue(data)
        if several:
            self.deliver(name, model, [0] * several)
            self.take(name, model, several, timeout_s)
        self.settle_both(data, name, model, settles)

    def compare(self) -> None:
        pages = [self.live.do(commands.ListQueues(account=account)) for account in "ab"]
        names = [f"{account}/{name}" for account, page in zip("ab", pages, strict=True) for name in page.names]
        assert names == sorted(self.models)
        for name, model in self.models.items():
            self.check_queue(name, model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_standard_queues_agree_with_the_model(model_url: str | None) -> None:
    model_frame.run_model(StandardAndModel, examples=40, steps=50, url=model_url, url_examples=5)


GROUPS = "abcde"
TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000, 299_999, 300_000))
FIFO_TIMEOUTS_S = st.sampled_from((0, 1, 30, 600))
FIFO_SETTINGS = st.fixed_dictionaries(
    {
        "visibility_timeout_s": FIFO_TIMEOUTS_S,
        "visibility_rules": model_frame.RULES,
        "delay_s": st.sampled_from((0, 0, 0, 1, 30)),
        "retention_s": st.sampled_from((60, 345_600, 345_600)),
        "deduplication_scope": st.sampled_from(("queue", "group")),
    }
)


class FifoAndModel(model_frame.ModelFrame):
    times_ms = TIMES_MS

    def __init__(self) -> None:
        super().__init__()
        self.model: NaiveFifo

    @initialize(given=FIFO_SETTINGS)
    def open(self, given: dict[str, Any]) -> None:
        self.open_host()
        self.create(given)

    def create(self, given: dict[str, Any]) -> None:
        self.live.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": True, **given}))
        self.model = NaiveFifo(given)

    @rule(delay_s=st.sampled_from((0, 0, 1, 30, 60)))
    def delay(self, delay_s: int) -> None:
        self.live.set_queue(delay_s=delay_s)
        self.model.set(self.now_ms, {**self.model.settings, "delay_s": delay_s})

    @rule(given=FIFO_SETTINGS, kind=st.sampled_from(("set", "set", "purge", "recreate")))
    def administer(self, given: dict[str, Any], kind: str) -> None:
        """Change, purge or recreate the queue; sequence numbers always increase."""
        if kind == "purge":
            self.live.purge()
            self.model.purge(self.now_ms)
        elif kind == "recreate":
            self.live.drop()
            last_sequence = self.model.last_sequence
            self.create(given)
            self.model.last_sequence = last_sequence
        else:
            self.live.set_queue(**given)
            self.model.set(self.now_ms, given)

    @rule(
        groups=st.text(GROUPS, min_size=1, max_size=10),
        delay_s=st.sampled_from((None, None, None, 0, 1, 30)),
        options=model_frame.SEND_OPTIONS | st.just(SendOptions(receipts=True, dedup_id_optional=True)),
    )
    def send(self, groups: str, delay_s: int | None, options: SendOptions | None) -> None:
        self.deliver([(group, None, delay_s) for group in groups], options)

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        entries = data.draw(
            st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.none()), min_size=1, max_size=3)
        )
        self.deliver(entries)

    def deliver(
        self, entries: Sequence[tuple[str, str | None, int | None]], options: SendOptions | None = None
    ) -> None:
        messages = []
        numbered = options is None or not options.dedup_id_optional
        for group, dedup_id, delay_s in entries:
            self.bodies += 1
            body = f"{group}{self.bodies}"
            its_id = dedup_id or (str(self.bodies) if numbered else None)
            messages.append(message(body, group=group, dedup_id=its_id, delay_s=delay_s, kind=kind_of(body)))
        answers = self.live.put(*messages, options=options)
        for new, sent in zip(messages, answers, strict=True):
            self.model.send(self.now_ms, *model_frame.naive_send(new, sent))
            self.issued += [sent.receipt] if sent.receipt is not None else []

    @rule(
        count=st.sampled_from((1, 1, 2, 3, 10)),
        timeout_s=st.none() | FIFO_TIMEOUTS_S,
        attempt=st.sampled_from((None, None, "p", "q")),
    )
    def receive(self, count: int, timeout_s: int | None, attempt: str | None) -> None:
        self.take(count, timeout_s, attempt)

    @rule(
        time_ms=TIMES_MS,
        count=st.sampled_from((2, 10)),
        timeout_s=FIFO_TIMEOUTS_S,
        again_s=FIFO_TIMEOUTS_S,
        changed_s=st.none() | FIFO_TIMEOUTS_S,
    )
    def attempt_again(self, time_ms: int, count: int, timeout_s: int, again_s: int, changed_s: int | None) -> None:
        self.take(count, timeout_s, "r")
        if changed_s is not None:
            self.change_both(QUEUE, self.model, self.issued[-1:], changed_s, {}, renew=False, bounded=True)
        self.live.advance(time_ms)
        self.take(count, again_s, "r")

    @rule(time_ms=model_frame.SHORT_TIMES_MS, timeout_s=FIFO_TIMEOUTS_S)
    def receive_later(self, time_ms: int, timeout_s: int) -> None:
        self.live.advance(time_ms)
        for _ in range(5):
            self.take(3, timeout_s, None)

    def take(self, count: int, timeout_s: int | None, attempt: str | None) -> None:
        peeked = self.peek(QUEUE, count)
        repeats = attempt is not None and self.model.repeatable(self.now_ms, attempt)
        answer = self.live.do(
            commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s, attempt_id=attempt)
        ).messages
        assert repeats or peeked == [each.id for each in answer]
        self.model.check_receive(
            self.now_ms, count, timeout_s, attempt, [model_frame.received_fields(each) for each in answer]
        )
        self.issued += [each.receipt for each in answer if each.receipt not in self.issued]
        self.check_due(self.live.due_ms(queue=QUEUE), self.model)

    @rule(data=st.data(), several=model_frame.SEVERAL, timeout_s=FIFO_TIMEOUTS_S, settles=SETTLES)
    def settle(self, data: st.DataObject, several: int, timeout_s: int, settles: list[dict[str, Any]]) -> None:
        if several:
            self.deliver([(group, None, 0) for group in GROUPS[:several]])
            self.take(several, timeout_s, None)
        self.settle_both(data, QUEUE, self.model, settles)

    def compare(self) -> None:
        self.check_queue(QUEUE, self.model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fifo_queues_agree_with_the_model(model_url: str | None) -> None:
    model_frame.run_model(FifoAndModel, examples=40, steps=50, url=model_url, url_examples=5)


FIRST, SECOND, LAST = CHAIN = ("a/first", "a/second", "a/last")
RECEIVES_MAX = {FIRST: 2, SECOND: 3}
TARGETS = {FIRST: SECOND, SECOND: LAST}
RETENTION_S = 60
QUEUES = st.sampled_from(CHAIN)


@dataclass
class ChainMessage:
    """The model of a message; `here` counts the receives in its present queue."""

    queue: str
    sent_at_ms: int
    visible_at_ms: int
    here: int = 0
    receives: int = 0
    first_ms: int | None = None
    source: str | None = None


@dataclass(frozen=True)
class ChainReceipt:
    """A receipt of a message in one queue; `receive` is the message's count of receives there."""

    text: str
    queue: str
    body: str
    message: ChainMessage
    receive: int


class ChainAndModel(model_frame.ModelFrame):
    """A chain of dead-letter queues.

    Each receive requests more messages than exist, so the model predicts its result: a message received as often as
    its queue allows is moved, once, and every other visible message is returned.
    """

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, ChainMessage] = {}
        self.allowed = dict.fromkeys(TARGETS.values(), True)

    @initialize()
    def open(self) -> None:
        self.open_host()
        for name in reversed(CHAIN):
            given: dict[str, SettingValue] = {"retention_s": RETENTION_S}
            if name in TARGETS:
                given |= {"dead_letter_queue": TARGETS[name], "receives_max": RECEIVES_MAX[name]}
            self.live.do(commands.CreateQueue(queue=name, settings=given))

    def visible(self, queue: str) -> dict[str, ChainMessage]:
        self.delete_expired()
        return {
            body: each for body, each in self.known.items() if each.queue == queue and each.visible_at_ms <= self.now_ms
        }

    def delete_expired(self) -> None:
        """Delete expired messages; retention counts from the first send."""
        self.known = {
            body: each for body, each in self.known.items() if each.sent_at_ms + RETENTION_S * 1_000 > self.now_ms
        }

    @rule(queue=QUEUES, several=st.integers(1, 4), group=st.sampled_from((None, "a", "b")))
    def send(self, queue: str, several: int, group: str | None) -> None:
        for _ in range(several):
            self.bodies += 1
            body = f"m{self.bodies}"
            self.live.put(message(body, group=group), queue=queue)
            self.known[body] = ChainMessage(queue=queue, sent_at_ms=self.now_ms, visible_at_ms=self.now_ms)

    @rule(queue=QUEUES, time_ms=model_frame.SHORT_TIMES_MS)
    def receive_repeatedly(self, queue: str, time_ms: int) -> None:
        self.live.advance(time_ms)
        for _ in range(RECEIVES_MAX.get(queue, 0) + 1):
            self.receive_all(queue, 0, "keep")

    @rule(queue=QUEUES, timeout_s=st.sampled_from((0, 0, 1, 30)), fate=st.sampled_from(("keep", "keep", "delete")))
    def receive(self, queue: str, timeout_s: int, fate: str) -> None:
        self.receive_all(queue, timeout_s, fate)

    def receive_all(self, queue: str, timeout_s: int, fate: str) -> None:
        """Receive; each message is either returned or moved."""
        visible = self.visible(queue)
        target = TARGETS.get(queue)
        dead = {
            body
            for body, each in visible.items()
            if target is not None and self.allowed[target] and each.here >= RECEIVES_MAX[queue]
        }
        got = {each.body: each for each in self.live.receive(200, queue=queue, timeout_s=timeout_s)}
        assert set(got) == set(visible) - dead
        for body in dead:
            each = self.known[body]
            assert target is not None
            each.queue, each.source, each.here, each.visible_at_ms = target, queue, 0, self.now_ms
        for body, answer in got.items():
            each = self.known[body]
            each.here += 1
            each.receives += 1
            each.visible_at_ms = self.now_ms + timeout_s * 1_000
            each.first_ms = self.now_ms if each.first_ms is None else each.first_ms
            assert (answer.receive_count, answer.first_received_at_ms) == (each.receives, each.first_ms)
            assert (answer.sent_at_ms, answer.source) == (each.sent_at_ms, each.source)
            self.issued.append(ChainReceipt(answer.receipt, queue, body, each, each.here))
        if fate == "delete" and got:
            body, answer = next(iter(got.items()))
            self.live.delete(answer.receipt, queue=queue)
            del self.known[body]

    def state(self, receipt: ChainReceipt) -> ReceiptState:
        each = receipt.message
        if self.known.get(receipt.body) is not each or each.queue != receipt.queue:
            return ReceiptState.GONE
        if each.here != receipt.receive:
            return ReceiptState.SUPERSEDED
        return ReceiptState.LIVE if self.now_ms < each.visible_at_ms else ReceiptState.EXPIRED

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=st.none() | st.sampled_from((0, 1, 30)))
    def settle(self, data: st.DataObject, timeout_s: int | None) -> None:
        """Delete, or change the timeout, by any receipt, also if the message is in another queue now."""
        self.delete_expired()
        (receipt,) = model_frame.some_of(data, self.issued, lambda each: f"{self.state(each)} {each.message.queue}")
        state = self.state(receipt)
        acts = state in (ReceiptState.LIVE, ReceiptState.EXPIRED)
        if timeout_s is None:
            assert self.live.delete(receipt.text, queue=receipt.queue) == [state]
            if acts:
                del self.known[receipt.body]
            return
        assert self.live.change(receipt.text, timeout_s, queue=receipt.queue).state is state
        if acts:
            receipt.message.visible_at_ms = self.now_ms + timeout_s * 1_000

    @rule(queue=st.sampled_from((SECOND, LAST)), destination=st.sampled_from(CHAIN))
    def move(self, queue: str, destination: str) -> None:
        if destination == queue:
            return
        moved = self.visible(queue)
        task = self.live.do(commands.StartMove(source=queue, destination=destination))
        self.live.advance(0)  # the first slice takes them all
        (task,) = self.live.do(commands.ListMoves(source=queue))
        assert (task.status, task.messages_moved) == (MoveStatus.COMPLETED, len(moved))
        for body in moved:
            self.known[body] = ChainMessage(queue=destination, sent_at_ms=self.now_ms, visible_at_ms=self.now_ms)

    @rule(queue=st.sampled_from((SECOND, LAST)), allowed=st.booleans())
    def permit(self, queue: str, *, allowed: bool) -> None:
        self.allowed[queue] = allowed
        permission = "all" if allowed else "none"
        self.live.set_queue(queue, redrive_permission=permission)

    def compare(self) -> None:
        for queue in CHAIN:
            visible = self.visible(queue)
            hidden = [each for each in self.known.values() if each.queue == queue and each.visible_at_ms > self.now_ms]
            assert self.live.counts(queue) == (len(visible), len(hidden), 0), queue


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_dead_letter_queues_agree_with_the_model(model_url: str | None) -> None:
    model_frame.run_model(ChainAndModel, examples=25, steps=40, url=model_url, url_examples=5)

"""A chain of dead-letter queues beside a naive model, at random, with restarts: conservation and mortality.

The model is one list of messages. Each receive asks for more than there can be, so that what it must give out and what
it must move are known: a message whose queue gave it out as often as it may is moved, once, and every other visible
message is received. Whatever happens, each message is in one queue.
"""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.store.host import message
from tests.store.model_frame import SHORT_TIMES_MS, ModelFrame, run_model
from veilmq.core import commands
from veilmq.core.commands import MoveStatus
from veilmq.core.settings import SettingValue

FIRST, SECOND, LAST = CHAIN = ("a/first", "a/second", "a/last")
RECEIVES_MAX = {FIRST: 2, SECOND: 3}
TARGETS = {FIRST: SECOND, SECOND: LAST}
RETENTION_S = 60
QUEUES = st.sampled_from(CHAIN)


@dataclass
class Known:
    """A message as the model knows it; `here` counts the receives in its queue."""

    queue: str
    sent_at_ms: int
    visible_at_ms: int
    here: int = 0
    receives: int = 0
    first_ms: int | None = None
    source: str | None = None


class ChainAndModel(ModelFrame):
    """Each rule does the same to both and compares."""

    def __init__(self) -> None:
        """Begin with nothing sent, and every move allowed."""
        super().__init__()
        self.known: dict[str, Known] = {}
        self.allowed = dict.fromkeys(TARGETS.values(), True)

    @initialize()
    def open(self) -> None:
        """Open; the chain is there from the start."""
        self.open_host()
        for name in reversed(CHAIN):
            given: dict[str, SettingValue] = {"retention_s": RETENTION_S}
            if name in TARGETS:
                given |= {"dead_letter_queue": TARGETS[name], "receives_max": RECEIVES_MAX[name]}
            self.live.do(commands.CreateQueue(queue=name, settings=given))

    def visible(self, queue: str) -> dict[str, Known]:
        """Return what the queue may give out or move."""
        self.age()
        return {
            body: each for body, each in self.known.items() if each.queue == queue and each.visible_at_ms <= self.now_ms
        }

    def age(self) -> None:
        """Forget what is past its retention, counted from the first sending."""
        self.known = {
            body: each for body, each in self.known.items() if each.sent_at_ms + RETENTION_S * 1_000 > self.now_ms
        }

    @rule(queue=QUEUES, several=st.integers(1, 4), group=st.sampled_from((None, "a", "b")))
    def send(self, queue: str, several: int, group: str | None) -> None:
        """Send to any queue of the chain, with a group or without."""
        for _ in range(several):
            self.bodies += 1
            body = f"m{self.bodies}"
            self.live.do(commands.Send(queue=queue, messages=(message(body, group=group),)))
            self.known[body] = Known(queue=queue, sent_at_ms=self.now_ms, visible_at_ms=self.now_ms)

    @rule(queue=QUEUES, time_ms=SHORT_TIMES_MS)
    def wear_out(self, queue: str, time_ms: int) -> None:
        """Let time pass, then receive a queue until its messages die."""
        self.live.advance(time_ms)
        for _ in range(RECEIVES_MAX.get(queue, 0) + 1):
            self.receive_all(queue, 0, "keep")

    @rule(queue=QUEUES, timeout_s=st.sampled_from((0, 0, 1, 30)), fate=st.sampled_from(("keep", "keep", "delete")))
    def receive(self, queue: str, timeout_s: int, fate: str) -> None:
        """Receive all that is visible."""
        self.receive_all(queue, timeout_s, fate)

    def receive_all(self, queue: str, timeout_s: int, fate: str) -> None:
        """Receive; each message is either given out or moved."""
        visible = self.visible(queue)
        target = TARGETS.get(queue)
        dying = {
            body
            for body, each in visible.items()
            if target is not None and self.allowed[target] and each.here >= RECEIVES_MAX[queue]
        }
        got = {each.body: each for each in self.live.receive(200, queue=queue, timeout_s=timeout_s)}
        assert set(got) == set(visible) - dying
        for body in dying:
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
        if fate == "delete" and got:
            body, answer = next(iter(got.items()))
            self.live.delete(answer.receipt, queue=queue)
            del self.known[body]

    @rule(queue=st.sampled_from((SECOND, LAST)), destination=st.sampled_from(CHAIN))
    def move(self, queue: str, destination: str) -> None:
        """Move all that is visible; each is a new message then."""
        if destination == queue:
            return
        moved = self.visible(queue)
        task = self.live.do(commands.StartMove(source=queue, destination=destination))
        self.live.advance(0)  # the first slice takes them all
        (task,) = self.live.do(commands.ListMoves(source=queue))
        assert (task.status, task.messages_moved) == (MoveStatus.COMPLETED, len(moved))
        for body in moved:
            self.known[body] = Known(queue=destination, sent_at_ms=self.now_ms, visible_at_ms=self.now_ms)

    @rule(queue=st.sampled_from((SECOND, LAST)), allowed=st.booleans())
    def permit(self, queue: str, *, allowed: bool) -> None:
        """Give or withdraw the permission."""
        self.allowed[queue] = allowed
        permission = "all" if allowed else "none"
        self.live.do(commands.SetQueue(queue=queue, settings={"redrive_permission": permission}))

    def compare(self) -> None:
        """Assert that each message is in one queue: the counters of each are those of the model."""
        for queue in CHAIN:
            visible = self.visible(queue)
            hidden = [each for each in self.known.values() if each.queue == queue and each.visible_at_ms > self.now_ms]
            assert self.live.counts(queue) == (len(visible), len(hidden), 0), queue


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_chain_agrees_with_the_model(model_url: str | None) -> None:
    """At random, and reproducibly."""
    run_model(ChainAndModel, examples=25, steps=40, url=model_url, examples_there=5)

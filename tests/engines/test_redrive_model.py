"""A chain of dead-letter queues beside a naive model, at random, with restarts: conservation and mortality.

The model is one list of messages. Each receive asks for more than there can be, so that what it must give out and what
it must move are known: a message whose queue gave it out as often as it may is moved, once, and every other visible
message is received. Whatever happens, each message is in one queue.
"""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.engines.host import Host, message
from veilmq.core import commands
from veilmq.core.results import MoveStatus
from veilmq.core.settings import SettingValue
from veilmq.engines.embedded import EngineOptions
from veilmq.engines.embedded.doctor import examine

FIRST, SECOND, LAST = CHAIN = ("a/first", "a/second", "a/last")
RECEIVES_MAX = {FIRST: 2, SECOND: 3}
TARGETS = {FIRST: SECOND, SECOND: LAST}
RETENTION_S = 60
TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000))
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


class ChainAndModel(RuleBasedStateMachine):
    """Each rule does the same to both and compares."""

    def __init__(self) -> None:
        """Keep the store in a folder of this run's own."""
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="veilmq-redrive-"))
        self.known: dict[str, Known] = {}
        self.allowed = dict.fromkeys(TARGETS.values(), True)
        self.bodies = 0
        self.opened: Host | None = None

    @property
    def host(self) -> Host:
        """The host, which is open from the first step to the last."""
        assert self.opened is not None
        return self.opened

    @property
    def now_ms(self) -> int:
        """The present instant."""
        return self.host.clock.now_ms()

    @initialize(window=st.sampled_from((1, 3)))
    def open(self, window: int) -> None:
        """Open with tiny windows; the chain is there from the start."""
        options = EngineOptions(
            ready_window_messages=window, hidden_window_leases=window, body_cache_bytes=0, free_space_reserve_bytes=0
        )
        self.opened = Host(self.base / "store", options=options)
        for name in reversed(CHAIN):
            given: dict[str, SettingValue] = {"retention_s": RETENTION_S}
            if name in TARGETS:
                given |= {"dead_letter_queue": TARGETS[name], "receives_max": RECEIVES_MAX[name]}
            self.host.do(commands.CreateQueue(queue=name, settings=given))

    def teardown(self) -> None:
        """End this run's store."""
        if self.opened is not None:
            assert self.host.failures == []
            self.host.close()
        shutil.rmtree(self.base)

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
            self.host.do(commands.Send(queue=queue, messages=(message(body, group=group),)))
            self.known[body] = Known(queue=queue, sent_at_ms=self.now_ms, visible_at_ms=self.now_ms)

    @rule(queue=QUEUES, time_ms=TIMES_MS)
    def wear_out(self, queue: str, time_ms: int) -> None:
        """Let time pass, then receive a queue until its messages die."""
        self.host.advance(time_ms)
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
        got = {each.body: each for each in self.host.receive(200, queue=queue, timeout_s=timeout_s)}
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
            self.host.delete(answer.receipt, queue=queue)
            del self.known[body]

    @rule(queue=st.sampled_from((SECOND, LAST)), destination=st.sampled_from(CHAIN))
    def move(self, queue: str, destination: str) -> None:
        """Move all that is visible; each is a new message then."""
        if destination == queue:
            return
        moved = self.visible(queue)
        task = self.host.do(commands.StartMove(source=queue, destination=destination))
        self.host.advance(0)  # the first slice takes them all
        (task,) = self.host.do(commands.ListMoves(source=queue))
        assert (task.status, task.messages_moved) == (MoveStatus.COMPLETED, len(moved))
        for body in moved:
            self.known[body] = Known(queue=destination, sent_at_ms=self.now_ms, visible_at_ms=self.now_ms)

    @rule(queue=st.sampled_from((SECOND, LAST)), allowed=st.booleans())
    def permit(self, queue: str, *, allowed: bool) -> None:
        """Give or withdraw the permission."""
        self.allowed[queue] = allowed
        permission = "all" if allowed else "none"
        self.host.do(commands.SetQueue(queue=queue, settings={"redrive_permission": permission}))

    @rule(time_ms=TIMES_MS)
    def wait(self, time_ms: int) -> None:
        """Let time pass."""
        self.host.advance(time_ms)

    @rule(abruptly=st.booleans())
    def restart(self, *, abruptly: bool) -> None:
        """Start again, in good order or from what is on disk; the store is sound."""
        if abruptly:
            self.host.crash()
        else:
            self.host.reopen()
        assert self.host.folder is not None
        assert [finding for finding in examine(self.host.folder).findings if not finding.ok] == []

    @invariant()
    def each_message_is_in_one_queue(self) -> None:
        """The counters of each queue are those of the model."""
        if self.opened is None:
            return
        for queue in CHAIN:
            visible = self.visible(queue)
            hidden = [each for each in self.known.values() if each.queue == queue and each.visible_at_ms > self.now_ms]
            assert self.host.counts(queue) == (len(visible), len(hidden), 0), queue


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_chain_agrees_with_the_model() -> None:
    """At random, and reproducibly: a failure prints the steps that lead to it."""
    run_state_machine_as_test(
        ChainAndModel,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )

"""FIFO queues beside the naive model, at random, with restarts and crashes; after every step they must agree."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engines.host import Host
from tests.engines.naive_fifo import NaiveFifo
from veilmq.core import commands, results
from veilmq.core.commands import NewMessage
from veilmq.core.errors import LeaseTooLong
from veilmq.engines.embedded import EngineOptions
from veilmq.engines.embedded.doctor import examine

QUEUE = "a/orders"
GROUPS = "abcde"
TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000, 299_999, 300_000))
SHORT_TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000))
TIMEOUTS_S = st.sampled_from((0, 1, 30, 600))
WINDOWS = st.sampled_from((1, 2, 7))
SETTINGS = st.fixed_dictionaries(
    {
        "visibility_timeout_s": TIMEOUTS_S,
        "delay_s": st.sampled_from((0, 0, 0, 1)),
        "retention_s": st.sampled_from((60, 345_600, 345_600)),
        "deduplication_scope": st.sampled_from(("queue", "group")),
    }
)


class EngineAndModel(RuleBasedStateMachine):
    """Each rule does the same to both and compares the answers."""

    def __init__(self) -> None:
        """Keep the store in a folder of this run's own."""
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="veilmq-fifo-model-"))
        self.bodies = 0
        self.issued: list[str] = []
        self.model: NaiveFifo
        self.host: Host | None = None

    @initialize(ready=WINDOWS, hidden=WINDOWS, cache=st.sampled_from((0, 1_000_000)), given=SETTINGS)
    def open(self, ready: int, hidden: int, cache: int, given: dict[str, Any]) -> None:
        """Open with tiny windows, with and without room for bodies."""
        options = EngineOptions(
            ready_window_messages=ready,
            hidden_window_leases=hidden,
            body_cache_bytes=cache,
            free_space_reserve_bytes=0,
            purge_pause_s=0,
            queue_name_pause_s=0,
        )
        self.host = Host(self.base / "store", options=options)
        self.create(given)

    def create(self, given: dict[str, Any]) -> None:
        """Create the queue in both."""
        self.live.do(commands.CreateQueue(queue=QUEUE, settings={"fifo": True, **given}))
        self.model = NaiveFifo(
            timeout_s=given["visibility_timeout_s"],
            delay_s=given["delay_s"],
            retention_s=given["retention_s"],
            scope=given["deduplication_scope"],
        )

    def teardown(self) -> None:
        """End this run's store."""
        if self.host is not None:
            assert self.host.failures == []
            self.host.close()
        shutil.rmtree(self.base)

    @property
    def live(self) -> Host:
        """The host, which is open between the first step and the last."""
        assert self.host is not None
        return self.host

    @property
    def now_ms(self) -> int:
        """The present instant."""
        return self.live.clock.now_ms()

    # The queue.

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
            self.model.age(self.now_ms)
            self.live.do(commands.SetQueue(queue=QUEUE, settings=given))
            self.model.timeout_s, self.model.delay_s = given["visibility_timeout_s"], given["delay_s"]
            self.model.retention_s = given["retention_s"]
            self.model.scope = given["deduplication_scope"]

    # Messages.

    @rule(
        groups=st.text(GROUPS, min_size=1, max_size=10),
        delay_s=st.sampled_from((None, None, None, 0, 1, 30)),
    )
    def send(self, groups: str, delay_s: int | None) -> None:
        """Send a batch, none of it sent before."""
        self.deliver([(group, None, delay_s) for group in groups])

    @rule(data=st.data())
    def send_again(self, data: st.DataObject) -> None:
        """Send a batch with ids of which there are few."""
        entries = data.draw(
            st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.none()), min_size=1, max_size=3)
        )
        self.deliver(entries)

    def deliver(self, entries: Sequence[tuple[str, str | None, int | None]]) -> None:
        """Send, and have the model judge the answers."""
        messages = []
        for group, dedup_id, delay_s in entries:
            self.bodies += 1
            body = f"{group}{self.bodies}"
            messages.append(
                NewMessage(
                    body=body, size_bytes=len(body), group=group, dedup_id=dedup_id or str(self.bodies), delay_s=delay_s
                )
            )
        answers = self.live.do(commands.Send(queue=QUEUE, messages=tuple(messages)))
        for new, sent in zip(messages, answers, strict=True):
            terms = {"body": new.body, "group": new.group, "dedup_id": new.dedup_id, "delay_s": new.delay_s}
            self.model.send(self.now_ms, terms, {"id": sent.id, "sequence": sent.sequence})

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
        answer = self.live.do(
            commands.Receive(queue=QUEUE, count=count, timeout_s=timeout_s, attempt_id=attempt)
        ).messages
        self.model.check_receive(self.now_ms, count, timeout_s, attempt, [naive_terms(each) for each in answer])
        self.issued += [each.receipt for each in answer if each.receipt not in self.issued]
        self.check_due(self.live.due_ms(queue=QUEUE))

    def check_due(self, due_ms: int | None) -> None:
        """Assert that whoever waits until `due_ms` misses nothing, and is not sent away and back at once."""
        truth_ms = self.model.next_due_ms(self.now_ms)
        if truth_ms is not None:
            assert due_ms is not None
            assert due_ms <= truth_ms
        if due_ms is not None and due_ms <= self.now_ms:
            assert truth_ms == self.now_ms

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), several=st.integers(1, 5))
    def delete(self, data: st.DataObject, several: int) -> None:
        """Delete with receipts of now and of long ago."""
        for _ in range(several):
            text = self.receipt(data)
            (answer,) = self.live.delete(text, queue=QUEUE)
            assert answer.value == self.model.delete(self.now_ms, text)

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=st.sampled_from((0, 0, 1, 30, 43_200)), renew=st.booleans())
    def change(self, data: st.DataObject, timeout_s: int, *, renew: bool) -> None:
        """Change with a receipt of now or of long ago."""
        text = self.receipt(data)
        answer = self.live.change(text, timeout_s, queue=QUEUE, renew_receipt=renew)
        state, until_ms = self.model.change(self.now_ms, text, timeout_s)
        if state == "too long":
            assert isinstance(answer, LeaseTooLong)
            return
        assert (answer.state.value, answer.visible_at_ms) == (state, until_ms)
        if answer.receipt is not None:
            self.model.renew(text, answer.receipt)
            self.issued.append(answer.receipt)

    def receipt(self, data: st.DataObject) -> str:
        """Return a receipt: mostly one of the last ten, sometimes any."""
        last = len(self.issued) - 1
        recent = st.integers(max(0, last - 9), last)
        return self.issued[data.draw(recent | recent | st.integers(0, last))]

    # Time and accidents.

    @rule(time_ms=TIMES_MS)
    def wait(self, time_ms: int) -> None:
        """Let time pass."""
        self.live.advance(time_ms)

    @rule(abruptly=st.booleans())
    def restart(self, *, abruptly: bool) -> None:
        """Stop and start in good order, or start from what is on disk at this moment; the store is sound."""
        if abruptly:
            self.live.crash()
        else:
            self.live.reopen()
        assert self.live.folder is not None
        assert [finding for finding in examine(self.live.folder).findings if not finding.ok] == []

    # After every step.

    @invariant()
    def they_agree(self) -> None:
        """The same counters, the same oldest message, and nothing lost."""
        if self.host is None:
            return
        counts = self.live.do(commands.ShowQueue(queue=QUEUE, counts=True)).counts
        assert (counts.visible, counts.in_flight, counts.delayed) == self.model.counts(self.now_ms)
        assert counts.oldest_sent_at_ms == self.model.oldest_ms(self.now_ms)
        self.model.check_conservation()


def naive_terms(received: results.ReceivedMessage) -> dict[str, Any]:
    """Return a received message as the model speaks of it."""
    return {
        "id": received.id,
        "body": received.body,
        "sent_at_ms": received.sent_at_ms,
        "count": received.receive_count,
        "first_ms": received.first_received_at_ms,
        "visible_at_ms": received.visible_at_ms,
        "sequence": received.sequence,
        "receipt": received.receipt,
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_engine_agrees_with_the_model() -> None:
    """At random, and reproducibly: a failure prints the steps that lead to it."""
    run_state_machine_as_test(
        EngineAndModel,
        settings=settings(
            max_examples=200,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        ),
    )

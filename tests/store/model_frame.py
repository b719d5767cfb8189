"""The common part of the state machines that compare an engine with a naive model."""

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.store.host import RESTLESS, Host
from tests.store.naive import NaiveQueue
from tests.store.postgres_host import PostgresHost
from veilmq.core import commands
from veilmq.core.commands import InspectLeases, InspectQueue, MessageState, Peek, SendOptions, VisibilityChange
from veilmq.core.errors import LeaseTooLong, ReceiptInvalid
from veilmq.core.limits import LEASE_S_MAX
from veilmq.core.messages import NewMessage

SHORT_TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000))
RULES = st.sampled_from(
    (
        "",
        """{"version": 1, "keys": {"quick": 0, "slow": 1}, "default": 2, "classes": [
            {"name": "a", "visibility_timeout_s": 0},
            {"name": "b", "visibility_timeout_s": 1},
            {"name": "c", "visibility_timeout_s": 30}
        ]}""",
    )
)
SEVERAL = st.integers(0, 3)
"""How many messages a rule that settles sends and receives first: Hypothesis disables most rules in many examples."""
SEND_OPTIONS = st.sampled_from(
    (None, None, SendOptions(receipts=True), SendOptions(receipts=True, all_or_nothing=True))
)

_EXAMPLES = {"whole": 20, "few": 0.2}  # `PROVE` → factor for the number of examples
CACHE_DROPS = ("forget", "forget")  # of a store in a folder, which must not change its behaviour

T = TypeVar("T")


class ModelFrame(RuleBasedStateMachine):
    """An engine with its own store, in a folder or at `url`; subclasses open it and compare it with a model."""

    url: ClassVar[str | None] = None
    host_type: ClassVar[type[Host]] = Host
    times_ms: ClassVar[st.SearchStrategy[int]] = SHORT_TIMES_MS
    restarts: ClassVar[tuple[str, ...]] = ("close", "crash")

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="veilmq-model-"))
        self.bodies = 0
        self.issued: list[Any] = []  # receipts, in order
        self.inspects = False
        self.host: Host | None = None

    def open_host(self) -> None:
        if self.url is not None:
            self.host = PostgresHost.on_empty(self.url)
        else:
            self.host = self.host_type(self.base / "store", options=replace(RESTLESS, free_space_reserve_bytes=0))

    def teardown(self) -> None:
        if self.host is not None:
            assert self.host.failures == []
            self.host.close()
        shutil.rmtree(self.base)

    @property
    def live(self) -> Host:
        assert self.host is not None
        return self.host

    @property
    def now_ms(self) -> int:
        return self.live.clock.now_ms()

    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        self.live.advance(data.draw(self.times_ms))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        self.interrupt(data.draw(st.sampled_from(self.restarts if self.url else (*self.restarts, *CACHE_DROPS))))

    def interrupt(self, kind: str) -> None:
        """Close and reopen the host, restart it from a crash, or drop its caches."""
        if kind == "forget":
            self.live.forget()
            return
        if kind == "crash":
            self.live.crash()
        else:
            self.live.reopen()
        if self.url is not None:
            self.live.advance(1)  # messages that two nodes send in one millisecond have no order
        self.live.check()

    @rule()
    def inspect(self) -> None:
        self.inspects = True

    @invariant()
    def they_agree(self) -> None:
        if self.host is not None:
            self.compare()
            self.inspects = False

    def compare(self) -> None:
        raise NotImplementedError

    def check_queue(self, name: str, model: NaiveQueue) -> None:
        counts = self.live.do(commands.ShowQueue(queue=name, counts=True)).counts
        assert (counts.visible, counts.in_flight, counts.delayed) == model.counts(self.now_ms), name
        assert counts.oldest_sent_at_ms == model.oldest_ms(self.now_ms), name
        self.check_inspections(name, model.counts(self.now_ms))
        model.check_conservation()

    def check_inspections(self, name: str, counts: tuple[int, int, int]) -> None:
        if not self.inspects:
            return
        whole = self.live.do(InspectQueue(queue=name))
        for state, count in zip(MessageState, counts, strict=True):
            seen = self.live.do(InspectQueue(queue=name, state=state))
            assert len(seen) == count, (name, state)
            assert {each.id for each in seen} == {each.id for each in whole if each.state is state}
        leases = self.live.do(InspectLeases(queue=name))
        assert {each.message_id for each in leases} == {
            each.id for each in whole if each.state is MessageState.IN_FLIGHT and each.visible_at_ms is not None
        }
        assert all(each.visible_at_ms > self.now_ms >= each.received_at_ms for each in leases)

    def peek(self, name: str, count: int) -> list[bytes]:
        return [each.id for each in self.live.do(Peek(queue=name, count=count)).messages]

    def settle_both(self, data: st.DataObject, name: str, model: NaiveQueue, settles: list[dict[str, Any]]) -> None:
        """Delete and change by some of the `issued` receipts in both, and compare; see `settles_of`."""
        for settle in settles if self.issued else ():
            receipts = some_of(data, self.issued, lambda receipt: model.kind(self.now_ms, receipt), settle["several"])
            if settle["timeout_s"] is None:
                self.delete_both(name, model, receipts, settle["rules"])
            else:
                self.change_both(name, model, receipts, **settle)

    def delete_both(self, name: str, model: NaiveQueue, receipts: list[str], rules: dict[str, bool]) -> None:
        for receipt, answer in zip(receipts, self.live.delete(*receipts, queue=name, **rules), strict=True):
            if receipt in model.receipts:
                assert answer.value == model.delete(self.now_ms, receipt, **rules)
            else:
                assert isinstance(answer, ReceiptInvalid)

    def change_both(
        self,
        name: str,
        model: NaiveQueue,
        receipts: list[str],
        timeout_s: int,
        rules: dict[str, bool],
        *,
        renew: bool,
        bounded: bool,
        **_: Any,
    ) -> None:
        renew = renew and "any_receive" not in rules  # SQS renews no receipts
        changes = tuple(VisibilityChange(receipt=receipt, timeout_s=timeout_s) for receipt in receipts)
        lease_s_max = LEASE_S_MAX if bounded else None
        command = commands.ChangeVisibility(
            queue=name, changes=changes, renew_receipt=renew, lease_s_max=lease_s_max, **rules
        )
        for receipt, answer in zip(receipts, self.live.do(command), strict=True):
            if receipt not in model.receipts:
                assert isinstance(answer, ReceiptInvalid)
                continue
            state, until_ms = model.change(self.now_ms, receipt, timeout_s, bounded=bounded, **rules)
            if state == "too long":
                assert isinstance(answer, LeaseTooLong)
                continue
            assert (answer.state.value, answer.visible_at_ms) == (state, until_ms)
            assert answer.hidden_for_ms == (None if until_ms is None else timeout_s * 1_000)
            assert (answer.receipt is not None) is (renew and until_ms is not None)
            if answer.receipt is not None:
                model.renew(receipt, answer.receipt)
                self.issued.append(answer.receipt)

    def check_due(self, due_ms: int | None, model: NaiveQueue) -> None:
        """Assert that a waiter until `due_ms` misses no message and does not busy-poll.

        A later wake-up may find nothing, if the retention of the message ends before it becomes visible.
        """
        truth_ms = model.next_due_ms(self.now_ms)
        if truth_ms is not None:
            assert due_ms is not None
            assert due_ms <= truth_ms
        if due_ms is not None and due_ms <= self.now_ms:
            assert truth_ms == self.now_ms


# The options of SQS, with and without fencing, and those of SMQ, with strict and lenient handles.
RECEIPT_RULES = st.sampled_from(
    ({}, {"any_receive": True}, {"only_live": True}, {"only_live": True, "any_epoch": True})
)


def settles_of(*timeouts_s: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Return a strategy of commands that follow one another at once; those without a timeout delete."""
    settle = {
        "several": st.integers(1, 4),
        "timeout_s": st.none() | st.sampled_from(timeouts_s),
        "rules": RECEIPT_RULES,
        "renew": st.booleans(),
        "bounded": st.booleans(),
    }
    return st.lists(st.fixed_dictionaries(settle), min_size=1, max_size=3)


def some_of(data: st.DataObject, issued: Sequence[T], kind: Callable[[T], str], several: int = 1) -> list[T]:
    """Return `several` of `issued`, also repeated: each kind as often as another, in it usually one of the last three.

    By chance alone, receipts that something has superseded are rarely used before they expire.
    """
    kinds = defaultdict(list)
    for each in reversed(issued):
        kinds[kind(each)].append(each)
    some: list[T] = []
    for _ in range(several):
        of_kind = kinds[data.draw(st.sampled_from(sorted(kinds)))]
        last = len(of_kind) - 1
        some.append(of_kind[data.draw(st.integers(0, min(2, last)) | st.integers(0, last))])
        kinds["again"] = some
    return some


def naive_send(new: NewMessage, sent: commands.SentMessage) -> tuple[dict[str, Any], dict[str, Any]]:
    fields = ("body", "group", "dedup_id", "delay_s", "priority")
    answer = {"id": sent.id, "sequence": sent.sequence, "receipt": sent.receipt}
    return {name: getattr(new, name) for name in fields}, answer


def received_fields(received: commands.ReceivedMessage) -> dict[str, Any]:
    fields = ("id", "body", "priority", "sent_at_ms", "visible_at_ms", "sequence", "receipt")
    receives = {"count": received.receive_count, "first_ms": received.first_received_at_ms}
    return {name: getattr(received, name) for name in fields} | receives


def run_model(
    machine: type[ModelFrame], *, examples: int, steps: int, url: str | None = None, url_examples: int = 0
) -> None:
    """Run `machine` with random steps; a failure prints the steps that reproduce it.

    Steps at `url` are slower: there it runs `url_examples`. `PROVE` is "whole" for more examples, "few" for fewer.
    Runs of ten: most later examples of a run are nearly equal, because Hypothesis varies each a few times.
    """
    at_url = type(f"{machine.__name__}AtUrl", (machine,), {"url": url})
    share = _EXAMPLES.get(os.environ.get("PROVE", ""), 1)
    count = max(1, round((examples if url is None else url_examples) * share))
    for first in range(0, count, 10):
        run_state_machine_as_test(
            machine if url is None else at_url,
            settings=settings(
                max_examples=min(10, count - first),
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )

"""The event log beside a naive one, at random: every receipt ends once, at its time, whatever happens to the process.

The naive one knows receipts only: which is the message's latest, until when it hides it, and how it ended. It is told
what the engine answered, and says which events there must be.
"""

import struct
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.store.host import QUEUE
from tests.store.logged import LOGGED, check_conservation, events_of
from tests.store.model_frame import ModelFrame, one_of, run_model
from tests.store.postgres_host import RESTLESS, PostgresHost
from veilmq.core import commands
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import NewMessage
from veilmq.core.settings import SettingValue

FIFO = f"{QUEUE}.fifo"
DEAD, DEAD_FIFO = "000000000000/dead", "000000000000/dead.fifo"
_FIELDS = struct.Struct(">BIQIIQ")
_TIMEOUTS_S = st.sampled_from((0, 1, 30))


@dataclass(slots=True)
class NaiveReceipt:
    """One receive of one message."""

    text: str
    message: bytes
    queue: str
    received_at_ms: int
    visible_at_ms: int
    ends: list[str] = field(default_factory=list)
    is_purged: bool = False

    @property
    def name(self) -> tuple[str, bytes, int]:
        """What its events are known by."""
        return self.queue, self.message, _FIELDS.unpack_from(bytes.fromhex(self.text))[3]


class EventModel(ModelFrame):
    """Two queues, a standard one and a FIFO one, with dead letters in some runs."""

    def __init__(self) -> None:
        """Nothing is open yet."""
        super().__init__()
        self.issued: list[NaiveReceipt] = []
        self.latest: dict[tuple[str, bytes], NaiveReceipt] = {}
        self.deleted: set[bytes] = set()
        self.expected: Counter[tuple[Any, ...]] = Counter()
        self.dies = False

    @initialize(dies=st.booleans())
    def begin(self, dies: bool) -> None:
        """Open."""
        self.open_logged()
        self.dies = dies
        for name, dead, fifo in ((QUEUE, DEAD, False), (FIFO, DEAD_FIFO, True)):
            self.live.create(dead, fifo=fifo)
            redrive: dict[str, SettingValue] = {"dead_letter_queue": dead, "receives_max": 2} if dies else {}
            self.live.create(name, fifo=fifo, **redrive)

    def open_logged(self) -> None:
        """Open a store whose queues are logged."""
        if self.url is not None:
            self.host = PostgresHost.on_empty(self.url, options=replace(RESTLESS, event_log="closed"))
            return
        options = replace(LOGGED, free_space_reserve_bytes=0)
        self.host = self.host_type(self.base / "store", options=options)

    # What happens.

    @rule(fifo=st.booleans(), count=st.integers(1, 3), group=st.sampled_from("gh"), shares=st.booleans())
    def send(self, fifo: bool, count: int, group: str, *, shares: bool) -> None:
        """Send some; if `shares`, also to a group of the standard queue."""
        news = []
        for _ in range(count):
            self.bodies += 1
            body = str(self.bodies)
            its_group, dedup_id = group if fifo or shares else None, body if fifo else None
            news.append(NewMessage(body=body, size_bytes=len(body), group=its_group, dedup_id=dedup_id))
        self.live.do(commands.Send(queue=FIFO if fifo else QUEUE, messages=tuple(news)))

    @rule(fifo=st.booleans(), count=st.integers(1, 3), timeout_s=_TIMEOUTS_S)
    def receive(self, fifo: bool, count: int, timeout_s: int) -> None:
        """Receive some; earlier receipts of them have expired."""
        queue = FIFO if fifo else QUEUE
        for received in self.live.receive(count, queue=queue, timeout_s=timeout_s):
            self.take_note(queue, received)

    def take_note(self, queue: str, received: commands.ReceivedMessage) -> None:
        """Remember a receipt, and what the receive saw."""
        earlier = self.latest.get((queue, received.id))
        if earlier is not None and not earlier.ends:
            self.end(earlier, "expired", earlier.visible_at_ms)
        receipt = NaiveReceipt(received.receipt, received.id, queue, self.now_ms, received.visible_at_ms)
        self.issued.append(receipt)
        self.latest[queue, received.id] = receipt

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), stale=st.booleans())
    def delete(self, data: st.DataObject, *, stale: bool) -> None:
        """Delete with any receipt, at any time; if `stale`, also although a later receive superseded it."""
        receipt = one_of(data, self.issued)
        (answer,) = self.live.delete(receipt.text, queue=receipt.queue, any_receive=stale)
        if answer is ReceiptState.EARLIER:
            self.end_latest(self.latest[receipt.queue, receipt.message])
        if not receipt.ends:
            if self.now_ms < receipt.visible_at_ms:
                self.end(receipt, "deleted", self.now_ms)
                return
            self.end(receipt, "expired", receipt.visible_at_ms)
        if receipt.ends == ["expired"]:
            self.end(receipt, "late_deleted", self.now_ms)

    def end_latest(self, latest: NaiveReceipt) -> None:
        """Expect the end of the latest receipt of a message that an earlier one deletes; none corrects it."""
        if not latest.ends:
            if self.now_ms < latest.visible_at_ms:
                self.end(latest, "deleted_by_earlier", self.now_ms)
            else:
                self.end(latest, "expired", latest.visible_at_ms)
        latest.ends.append("by another")

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), timeout_s=_TIMEOUTS_S, stale=st.booleans())
    def change(self, data: st.DataObject, timeout_s: int, *, stale: bool) -> None:
        """Move the deadline, where the receipt still does that; if `stale`, that of the latest one."""
        receipt = one_of(data, self.issued)
        answer = self.live.change(receipt.text, timeout_s, queue=receipt.queue, any_receive=stale)
        receipt = self.latest[receipt.queue, receipt.message]
        if not isinstance(answer, commands.LeaseChange) or answer.visible_at_ms is None:
            return
        if not receipt.ends and timeout_s == 0:
            self.end(receipt, "nacked", self.now_ms)
        receipt.visible_at_ms = answer.visible_at_ms

    @rule(fifo=st.booleans())
    def purge(self, fifo: bool) -> None:
        """Delete everything; the janitor sees what was in flight."""
        self.empty(FIFO if fifo else QUEUE)

    def empty(self, queue: str) -> None:
        """Purge, sweep, and expect the ends of what was open."""
        self.live.do(commands.PurgeQueue(queue=queue))
        self.live.sweep()
        for receipt in self.issued:
            if receipt.queue == queue and not receipt.ends:
                self.end(receipt, "expired", min(receipt.visible_at_ms, self.now_ms))

    def end(self, receipt: NaiveReceipt, outcome: str, at_ms: int) -> None:
        """Expect an event."""
        receipt.ends.append(outcome)
        self.expected[(*receipt.name, outcome, at_ms, at_ms - receipt.received_at_ms)] += 1

    # Comparison.

    def compare(self) -> None:
        """Assert that the events are those expected; where messages die, that each receipt ends but once."""
        events = events_of(self.live)
        ended = check_conservation(events)
        if not self.dies:
            found = Counter(
                (e.queue, e.message_id, e.receipt, e.outcome.value, e.closed_at_ms, e.held_ms) for e in events
            )
            assert found == self.expected
        assert set(ended) <= {receipt.name for receipt in self.issued}

    def teardown(self) -> None:
        """Let everything end: then every receipt that was ever issued has."""
        if self.host is not None:
            for queue in (QUEUE, FIFO):
                self.empty(queue)
            assert set(check_conservation(events_of(self.live))) == {receipt.name for receipt in self.issued}
        super().teardown()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_receipt_ends_once_and_at_its_time(model_url: str | None) -> None:
    """At random, with restarts and crashes between any two steps."""
    run_model(EventModel, examples=25, steps=40, url=model_url, examples_there=5)

"""Fair queues: cases that the model does not draw, and the comparison with the model."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.store import model_frame
from tests.store.host import QUEUE, Host, message
from tests.store.naive import NaiveFair, kind_of
from tests.store.postgres_host import Store
from veilmq.core import commands
from veilmq.core import messages as core_messages
from veilmq.core.commands import SendOptions
from veilmq.core.errors import DeadLetterQueueRefused, NotADeadLetterQueue, ReceiptState

MINUTE_MS = 60_000
NOISY, QUIET = "noisy", "quiet"
OTHER = "000000000000/other"


@pytest.fixture
def host(durable_store: Store) -> Iterator[Host]:
    with durable_store.open() as opened:
        opened.create()
        yield opened


def send(host: Host, group: str | None, *bodies: str, queue: str = QUEUE) -> None:
    sent = host.put(*(message(body, group=group) for body in bodies), queue=queue)
    assert all(isinstance(each, commands.SentMessage) for each in sent)


def crowd(host: Host, waiting: int) -> list[commands.ReceivedMessage]:
    """Put 40 messages of a noisy group in flight, and leave `waiting` more; return those in flight."""
    for start in range(0, 40 + waiting, 50):
        send(host, NOISY, *(f"n{n}" for n in range(start, min(start + 50, 40 + waiting))))
    return [message for _ in range(4) for message in host.receive(10, timeout_s=3_600)]


def bodies(host: Host, count: int = 1) -> list[str]:
    return host.bodies(count, timeout_s=3_600)


def test_a_fair_queue_at_its_in_flight_limit_works_after_a_restart(durable: Host) -> None:
    durable.create(in_flight_max=1)
    send(durable, NOISY, "n0", "n1")
    durable.receive(1, timeout_s=3_600)
    durable.reopen()
    assert bodies(durable) == []


def test_processing_time_decays_from_the_end_of_the_lease(host: Host) -> None:
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
    assert bodies(host, 3) == ["a", "b", "o"]  # 6 of 66 s are less than a tenth


def test_a_delayed_send_keeps_its_group_noisy(host: Host) -> None:
    crowd(host, 10)
    host.advance(4 * MINUTE_MS)
    host.put(message("late", group=NOISY, delay_s=900))
    host.advance(MINUTE_MS)
    send(host, QUIET, "q")
    assert bodies(host) == ["q"]


def test_receipts_of_deprioritised_messages_still_act(host: Host) -> None:
    in_flight = crowd(host, 0)
    for each in in_flight[:2]:
        host.change(each.receipt, 0)
    host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host) == ["q"]
    assert host.delete(in_flight[0].receipt) == [ReceiptState.EXPIRED]
    assert host.change(in_flight[1].receipt, 60).state is ReceiptState.EXPIRED
    assert host.counts() == (0, 40, 0)
    assert bodies(host) == []
    host.advance(60_000)
    assert bodies(host) == ["n1"]


def test_expired_messages_do_not_count_as_in_flight(host: Host) -> None:
    host.set_queue(retention_s=60)
    crowd(host, 0)
    host.advance(MINUTE_MS)
    assert host.counts() == (0, 0, 0)
    host.advance(30 * MINUTE_MS)  # processing times have decayed
    send(host, NOISY, "n")
    host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host, 2) == ["n", "q"]


def test_a_receive_with_timeout_zero_can_drain_a_group(host: Host) -> None:
    in_flight = crowd(host, 1)
    send(host, QUIET, "q0")
    assert bodies(host) == ["q0"]
    for each in in_flight:
        host.change(each.receipt, 0)
    assert len(host.receive(100, timeout_s=0)) == 41
    host.advance(1)
    send(host, QUIET, "q1")
    assert bodies(host) == ["n0"]


REFUSED: list[tuple[commands.Command, type[Exception]]] = [
    (
        commands.SetQueue(queue=OTHER, settings={"dead_letter_queue": "000000000000/none", "receives_max": 1}),
        DeadLetterQueueRefused,
    ),
    (commands.StartMove(source=OTHER), NotADeadLetterQueue),
]


@pytest.mark.parametrize(("command", "error"), REFUSED, ids=["names a queue", "names a source"])
def test_a_refused_command_on_another_queue_keeps_groups_noisy(
    host: Host, command: commands.Command, error: type[Exception]
) -> None:
    host.create(OTHER, retention_s=90)
    send(host, None, "expires", queue=OTHER)
    send(host, NOISY, "n")
    host.receive(1, timeout_s=30)
    host.advance(MINUTE_MS)  # the janitor runs here, and not after the next step
    host.advance(30_000)
    send(host, QUIET, "q")
    with pytest.raises(error):
        host.do(command)
    assert bodies(host) == ["q"]


def test_a_receive_returns_no_deprioritised_message_twice(host: Host) -> None:
    """The messages of the second group returned first, so that the leases must not be read again behind them."""
    most = crowd(host, 0)
    send(host, "other", *(f"o{n}" for n in range(35)))
    fewer = [each for _ in range(5) for each in host.receive(7, timeout_s=3_600)]
    for each in (*most[:3], *fewer[:3]):
        host.change(each.receipt, 0)
        host.advance(1)
    send(host, QUIET, "q")
    assert bodies(host) == ["q"]
    assert bodies(host, 10) == ["o0", "o1", "o2", "n0", "n1", "n2"]


# Low thresholds make groups noisy within a few steps; `tests/internals/core/test_messages.py` tests the real ones.
MODEL_QUEUE, MODEL_DEAD = "a/jobs", "a/dead"
GROUPS = st.sampled_from(("a", "b", "c", "d", None))
IN_FLIGHT_MIN, SHARE_PERCENT = 3, 30
TIMES_MS = st.sampled_from((0, 1, 999, 1_000, 30_000, 60_000, 300_000, 301_000))
TIMEOUTS_S = st.sampled_from((0, 1, 30, 600))


class FairAndModel(model_frame.ModelFrame):
    """Each rule runs on both; the model checks the results."""

    times_ms = TIMES_MS
    restarts = ("close", "crash", "crash", "purge")

    def __init__(self) -> None:
        super().__init__()
        self.dead_letters: set[str] = set()
        self.model: NaiveFair

    @initialize(
        visibility_timeout_s=TIMEOUTS_S,
        visibility_rules=model_frame.RULES,
        retention_s=st.sampled_from((60, 345_600, 345_600)),
        receives_max=st.sampled_from((0, 0, 2, 4)),
    )
    def open(self, receives_max: int, **settings: Any) -> None:
        self.open_host()
        self.receives_max = receives_max
        self.live.create(MODEL_DEAD, retention_s=1_209_600)
        given = {"delay_s": 0, **settings}
        redrive: dict[str, Any] = (
            {"dead_letter_queue": MODEL_DEAD, "receives_max": receives_max} if receives_max else {}
        )
        self.live.create(MODEL_QUEUE, **given, **redrive)
        self.model = NaiveFair(given, in_flight_min=IN_FLIGHT_MIN, share_percent=SHARE_PERCENT)

    @rule(
        groups=st.lists(GROUPS, min_size=1, max_size=6),
        delay_s=st.sampled_from((0, 0, 0, 1, 30)),
        options=model_frame.SEND_OPTIONS,
    )
    def send(self, groups: list[str | None], delay_s: int, options: SendOptions | None) -> None:
        self.deliver(groups, delay_s, options)

    @rule(group=GROUPS, several=st.integers(3, 9), timeout_s=TIMEOUTS_S)
    def crowd(self, group: str | None, several: int, timeout_s: int) -> None:
        self.deliver([group] * 2 * several, 0)
        self.take(several, timeout_s)

    def deliver(self, groups: list[str | None], delay_s: int, options: SendOptions | None = None) -> None:
        self.live.advance(1)
        bodies = [f"{group}{self.bodies + number}" for number, group in enumerate(groups)]
        self.bodies += len(groups)
        new = [
            message(body, group=group, delay_s=delay_s, kind=kind_of(body))
            for body, group in zip(bodies, groups, strict=True)
        ]
        answers = self.live.put(*new, options=options, queue=MODEL_QUEUE)
        for each, sent in zip(new, answers, strict=True):
            self.model.send(self.now_ms, *model_frame.naive_send(each, sent))
            self.issued += [sent.receipt] if sent.receipt is not None else []

    @rule(count=st.sampled_from((1, 1, 2, 3, 10)), timeout_s=st.none() | TIMEOUTS_S)
    def receive(self, count: int, timeout_s: int | None) -> None:
        self.take(count, timeout_s)

    @rule(time_ms=model_frame.SHORT_TIMES_MS, timeout_s=TIMEOUTS_S, several=st.integers(1, 4))
    def receive_later(self, time_ms: int, timeout_s: int, several: int) -> None:
        self.live.advance(time_ms)
        for _ in range(several):
            self.take(2, timeout_s)

    def take(self, count: int, timeout_s: int | None) -> None:
        now_ms = self.now_ms
        peeked = self.peek(MODEL_QUEUE, count)
        answer = self.live.do(commands.Receive(queue=MODEL_QUEUE, count=count, timeout_s=timeout_s)).messages
        assert peeked == [each.id for each in answer]
        received = [model_frame.received_fields(each) for each in answer]
        self.model.check_receive(now_ms, count, timeout_s, received, self.collect_dead_letters(), self.receives_max)
        self.issued += [each.receipt for each in answer]
        self.check_due(self.live.due_ms(queue=MODEL_QUEUE), self.model)

    def collect_dead_letters(self) -> list[bytes]:
        if not self.receives_max or self.live.counts(MODEL_DEAD) == (len(self.dead_letters), 0, 0):
            return []
        everything = self.live.receive(1_000, queue=MODEL_DEAD, timeout_s=0)
        assert {each.body for each in everything} > self.dead_letters
        lately = [each.id for each in everything if each.body not in self.dead_letters]
        self.dead_letters = {each.body for each in everything}
        assert len(self.dead_letters) == len(everything), "a message was dead-lettered twice"
        return lately

    @rule(
        data=st.data(),
        several=model_frame.SEVERAL,
        timeout_s=TIMEOUTS_S,
        settles=model_frame.settles_of(0, 0, 0, 1, 30, 600),
    )
    def settle(self, data: st.DataObject, several: int, timeout_s: int, settles: list[dict[str, Any]]) -> None:
        if several:
            self.deliver(["a", "b", None][:several], 0)
            self.take(several, timeout_s)
        self.settle_both(data, MODEL_QUEUE, self.model, settles)

    def interrupt(self, kind: str) -> None:
        """Purge the queue or restart; both drop the state of the groups."""
        if kind == "purge":
            self.live.purge(MODEL_QUEUE)
            self.model.purge(self.now_ms)
            return
        super().interrupt(kind)
        self.model.delete_expired(self.now_ms)
        self.model.forget()

    def compare(self) -> None:
        self.check_queue(MODEL_QUEUE, self.model)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_fair_queues_agree_with_the_model(model_url: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_messages, "FAIR_IN_FLIGHT_MIN", IN_FLIGHT_MIN)
    monkeypatch.setattr(core_messages, "FAIR_SHARE_PERCENT", SHARE_PERCENT)
    model_frame.run_model(FairAndModel, examples=25, steps=30, url=model_url, url_examples=5)

"""Forwards on every store: the fields of the moved message, refusals, order and deduplication."""

from collections import Counter
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.store.host import LOGGED, QUEUE, Host, events_of, fill, hosting, message
from tests.store.postgres_host import on_sqlite
from veilmq.core import commands, errors
from veilmq.core.commands import ReceivedMessage
from veilmq.core.errors import ReceiptState
from veilmq.core.messages import Attribute, NewMessage, Properties, decode_properties, encode_properties
from veilmq.core.topics import Forward, Forwarded, ForwardEntry

FAST = "000000000000/fast"
SLOW = "000000000000/slow"
FIFO = "000000000000/jobs.fifo"
FIFO_FAST = "000000000000/fast.fifo"
FIFO_SLOW = "000000000000/slow.fifo"


@pytest.fixture
def queues(host: Host) -> Host:
    return create_queues(host)


def create_queues(host: Host) -> Host:
    for name in (QUEUE, FAST, SLOW):
        host.create(name)
    for name in (FIFO, FIFO_FAST, FIFO_SLOW):
        host.create(name, fifo=True)
    return host


def forward(
    host: Host, *entries: tuple[str, str], intake: str = QUEUE, reasons: dict[str, str] | None = None
) -> list[Any]:
    """Return the replies to a forward of ``(receipt, target)`` entries; with ``reasons`` they become dead letters."""
    pairs = tuple(ForwardEntry(receipt=receipt, target=target, reasons=reasons) for receipt, target in entries)
    answers: list[Any] = host.do(Forward(queue=intake, entries=pairs))
    return answers


def all_to(target: str, messages: Sequence[ReceivedMessage]) -> list[tuple[str, str]]:
    return [(each.receipt, target) for each in messages]


def bodies(host: Host, queue: str) -> list[str]:
    return host.bodies(100, queue=queue)


def reply_types(answers: Sequence[Any]) -> list[type]:
    return [type(each) for each in answers]


def test_the_receipt_of_a_delayed_send_cannot_forward(queues: Host) -> None:
    options = commands.SendOptions(receipts=True)
    for intake, target in ((QUEUE, FAST), (FIFO, FIFO_FAST)):
        (sent,) = queues.put(message("a", delay_s=30, group="g", dedup_id="a"), options=options, queue=intake)
        (refused,) = forward(queues, (sent.receipt, target), intake=intake)
        assert isinstance(refused, errors.ReceiptInvalid)
        assert (queues.counts(intake), queues.counts(target)) == ((0, 0, 1), (0, 0, 0))


def test_a_forward_keeps_the_message_and_resets_times_and_receives(queues: Host) -> None:
    properties = encode_properties(Properties(attributes={"kind": Attribute("String", "x")}, group="tenant"))
    queues.put(NewMessage(body="a", size_bytes=6, properties=properties, priority=3, group="tenant"))
    queues.receive_one(timeout_s=0)
    queues.advance(5_000)
    before = queues.receive_one()
    queues.advance(1_000)
    (answer,) = forward(queues, (before.receipt, FAST))
    assert answer == Forwarded(id=before.id)
    assert queues.counts() == (0, 0, 0)
    queues.advance(2_000)
    got = queues.receive_one(queue=FAST)
    assert (got.id, got.body, got.properties, got.priority) == (before.id, "a", properties, 3)
    assert (got.receive_count, got.source, before.receive_count) == (1, None, 2)
    now_ms = queues.clock.now_ms()
    assert (got.sent_at_ms, got.first_received_at_ms) == (now_ms - 2_000, now_ms)
    assert queues.delete(got.receipt, queue=FAST) == [ReceiptState.LIVE]


def test_one_forward_may_have_several_targets(queues: Host) -> None:
    queues.send(*"abcd")
    a, b, c, d = queues.receive(4)
    forward(queues, (a.receipt, FAST), (b.receipt, SLOW), (c.receipt, FAST))
    assert (bodies(queues, FAST), bodies(queues, SLOW)) == (["a", "c"], ["b"])
    assert queues.counts() == (0, 1, 0)
    assert queues.delete(d.receipt) == [ReceiptState.LIVE]


def test_the_delay_of_the_target_starts_at_the_forward(queues: Host) -> None:
    queues.create("000000000000/late", delay_s=60)
    woken = queues.watch("000000000000/late")
    queues.send("a")
    queues.advance(10_000)
    forward(queues, (queues.receive_one().receipt, "000000000000/late"))
    assert woken == [queues.clock.now_ms() + 60_000]
    assert queues.counts("000000000000/late") == (0, 0, 1)
    queues.advance(60_000)
    assert bodies(queues, "000000000000/late") == ["a"]


def test_a_forward_wakes_a_fifo_target(queues: Host) -> None:
    woken = queues.watch(FIFO_FAST)
    queues.send_to_groups("a1", queue=FIFO)
    forward(queues, (queues.receive_one(queue=FIFO).receipt, FIFO_FAST), intake=FIFO)
    assert woken == [queues.clock.now_ms()]


def test_retention_starts_at_the_forward(queues: Host) -> None:
    queues.create("000000000000/brief", retention_s=60)
    queues.send("a")
    queues.advance(100_000)
    forward(queues, (queues.receive_one().receipt, "000000000000/brief"))
    queues.advance(59_000)
    assert queues.counts("000000000000/brief") == (1, 0, 0)
    queues.advance(1_000)
    assert queues.counts("000000000000/brief") == (0, 0, 0)


def test_forwarded_groups_share_the_target_fairly(queues: Host) -> None:
    """Thirty messages in flight make group a noisy, so group b comes before the rest of it."""
    queues.put(*(message(f"a{number}", group="a") for number in range(40)), message("b", group="b"))
    forward(queues, *all_to(FAST, queues.receive(41)))
    assert queues.bodies(31, queue=FAST) == [f"a{number}" for number in range(31)]
    assert queues.bodies(2, queue=FAST) == ["b", "a31"]


def test_a_forwarded_dead_letter_keeps_its_source_times_and_receives(queues: Host) -> None:
    """It ignores the delay of the target and gets the reasons as attributes."""
    queues.create("000000000000/dead", delay_s=60)
    kind = {"kind": Attribute("String", "x")}
    properties = encode_properties(Properties(attributes=kind, group="tenant"))
    for body in "ab":
        queues.put(NewMessage(body=body, size_bytes=6, properties=properties, priority=3, group="tenant"))
    sent_at_ms = queues.clock.now_ms()
    queues.advance(1_000)
    queues.receive(1, timeout_s=0)
    queues.advance(5_000)
    (held,) = queues.receive(1)
    woken = queues.watch("000000000000/dead")
    queues.advance(1_000)
    (answer,) = forward(queues, (held.receipt, "000000000000/dead"), reasons={"why": "no"})
    assert answer == Forwarded(id=held.id)
    assert woken[0] <= queues.clock.now_ms()
    assert queues.delete(held.receipt) == [ReceiptState.GONE]
    assert bodies(queues, QUEUE) == [{"a": "b", "b": "a"}[held.body]]
    got = queues.receive_one(queue="000000000000/dead")
    assert (got.id, got.body, got.priority, got.source) == (held.id, held.body, 3, QUEUE)
    carried = decode_properties(got.properties)
    assert (carried.attributes, carried.group) == (kind | {"why": Attribute("String", "no")}, "tenant")
    assert (got.sent_at_ms, got.receive_count) == (sent_at_ms, held.receive_count + 1)
    assert got.first_received_at_ms == held.first_received_at_ms


def test_a_dead_letter_forwarded_again_adds_up_its_receives(queues: Host) -> None:
    queues.send("a")
    forward(queues, (queues.receive_one().receipt, FAST), reasons={})
    queues.advance(1_000)
    forward(queues, (queues.receive_one(queue=FAST).receipt, SLOW), intake=FAST, reasons={})
    got = queues.receive_one(queue=SLOW)
    assert (got.source, got.receive_count) == (FAST, 3)


def test_a_fifo_dead_letter_keeps_its_order_and_is_never_a_duplicate(queues: Host) -> None:
    queues.send_to_groups("a1", "a2", "a3", queue=FIFO)
    first, second, third = queues.receive(10, queue=FIFO)
    queues.put(message("before", group="a", dedup_id=str(UUID(bytes=second.id))), queue=FIFO_FAST)
    entries = [
        ForwardEntry(receipt=each.receipt, target=FIFO_FAST, reasons=reasons)
        for each, reasons in ((first, None), (second, {"why": "no"}), (third, None))
    ]
    answers = queues.do(Forward(queue=FIFO, entries=tuple(entries)))
    assert [each.duplicate for each in answers] == [False] * 3
    _, *got = queues.receive(10, queue=FIFO_FAST)
    assert [(each.body, each.source) for each in got] == [("a1", None), ("a2", FIFO), ("a3", None)]
    assert decode_properties(got[1].properties).dedup_id == str(UUID(bytes=second.id))
    assert queues.counts(FIFO) == (0, 0, 0)


def test_a_forward_with_reasons_over_the_size_limit_is_refused(queues: Host) -> None:
    queues.create("000000000000/small", message_bytes_max=1_024)
    queues.send("x" * 2_000)
    held = queues.receive_one()
    pair = held.receipt, "000000000000/small"
    assert reply_types(forward(queues, pair, reasons={"why": "no"})) == [errors.MessageTooLong]
    assert queues.counts() == (0, 1, 0)
    assert reply_types(forward(queues, pair, reasons={})) == [Forwarded]
    assert queues.receive_one(queue="000000000000/small").id == held.id


def test_only_a_live_receipt_can_forward(queues: Host) -> None:
    queues.send("a", "b", "c")
    expired, deleted, superseded = queues.receive(3)
    queues.delete(deleted.receipt)
    queues.advance(30_000)
    again = queues.receive(2, timeout_s=60)
    assert {each.body for each in again} == {"a", "c"}
    ended = forward(queues, *all_to(FAST, [expired, deleted, superseded]))
    assert reply_types(ended) == [errors.ReceiptEnded] * 3
    assert [each.state for each in ended] == [ReceiptState.SUPERSEDED, ReceiptState.GONE, ReceiptState.SUPERSEDED]
    queues.advance(60_000)
    (late, *_) = forward(queues, *all_to(FAST, again))
    assert late.state is ReceiptState.EXPIRED
    assert "nothing was forwarded" in str(late)
    assert reply_types(forward(queues, ("nonsense", FAST))) == [errors.ReceiptInvalid]
    assert queues.counts(FAST) == (0, 0, 0)
    assert queues.counts() == (2, 0, 0)


@pytest.mark.parametrize(("intake", "target"), [(QUEUE, FAST), (FIFO, FIFO_FAST)], ids=["standard", "fifo"])
def test_a_message_that_a_shorter_retention_has_ended_is_not_forwarded(queues: Host, intake: str, target: str) -> None:
    queues.put(message("a", group="g", dedup_id="a" if intake == FIFO else None), queue=intake)
    got = queues.receive_one(queue=intake, timeout_s=600)
    queues.advance(60_000)
    queues.set_queue(intake, retention_s=60)
    queues.set_queue(intake, retention_s=345_600)
    (ended,) = forward(queues, (got.receipt, target), intake=intake)
    assert (type(ended), ended.state) == (errors.ReceiptEnded, ReceiptState.GONE)
    assert (queues.counts(intake), queues.counts(target)) == ((0, 0, 0), (0, 0, 0))


def test_a_receipt_of_another_queue_cannot_forward(queues: Host) -> None:
    queues.send("a", queue=SLOW)
    assert reply_types(forward(queues, (queues.receive_one(queue=SLOW).receipt, FAST))) == [errors.ReceiptInvalid]
    assert queues.counts(SLOW) == (0, 1, 0)


def test_a_repeated_forward_moves_the_message_once(queues: Host) -> None:
    queues.send("a", "b")
    a, b = queues.receive(2)
    assert reply_types(forward(queues, (a.receipt, FAST), (a.receipt, SLOW))) == [Forwarded, errors.ReceiptEnded]
    (again,) = forward(queues, (a.receipt, FAST))
    assert again.state is ReceiptState.GONE
    assert (bodies(queues, FAST), bodies(queues, SLOW)) == (["a"], [])
    assert queues.delete(b.receipt) == [ReceiptState.LIVE]


@pytest.mark.parametrize(("intake", "target", "reason"), [
    pytest.param(QUEUE, QUEUE, errors.DestinationRefused, id="itself"),
    pytest.param(QUEUE, FIFO, errors.DestinationRefused, id="standard-to-fifo"),
    pytest.param(FIFO, QUEUE, errors.DestinationRefused, id="fifo-to-standard"),
    pytest.param(QUEUE, "000000000000/none", errors.QueueNotFound, id="missing"),
    pytest.param(QUEUE, "000000000000/small", errors.MessageTooLong, id="too-long"),
    pytest.param(FIFO, "000000000000/small.fifo", errors.MessageTooLong, id="too-long-fifo"),
])  # fmt: skip
def test_a_message_that_the_target_refuses_stays(queues: Host, intake: str, target: str, reason: type) -> None:
    queues.create("000000000000/small", message_bytes_max=1_024)
    queues.create("000000000000/small.fifo", message_bytes_max=1_024, fifo=True)
    attributes = encode_properties(Properties(attributes={"kind": Attribute("String", "x" * 600)}, group="g"))
    long = NewMessage(body="é" * 300, size_bytes=1_210, properties=attributes, group="g", dedup_id="d")
    queues.put(long, queue=intake)
    held = queues.receive_one(queue=intake)
    assert reply_types(forward(queues, (held.receipt, target), intake=intake)) == [reason]
    assert queues.counts(intake) == (0, 1, 0)
    assert queues.delete(held.receipt, queue=intake) == [ReceiptState.LIVE]


def test_a_forward_without_entries_returns_an_empty_list(queues: Host) -> None:
    assert forward(queues) == []
    with pytest.raises(errors.QueueNotFound):
        forward(queues, intake="000000000000/missing")


@pytest.mark.differs_on_shards("the target assigns the sequence number after the reply")
def test_a_forward_keeps_group_order_with_new_sequence_numbers(queues: Host) -> None:
    queues.send_to_groups("x9", queue=FIFO_FAST)
    queues.send_to_groups("a1", "a2", "b1", "a3", queue=FIFO)
    first = queues.receive(2, queue=FIFO)
    answers = forward(queues, *all_to(FIFO_FAST, first), intake=FIFO)
    rest = queues.receive(10, queue=FIFO)
    answers += forward(queues, *all_to(FIFO_FAST, rest), intake=FIFO)
    numbers = [each.sequence for each in answers]
    assert None not in numbers
    assert numbers == sorted(set(numbers))
    got = queues.bodies(10, queue=FIFO_FAST)
    assert [body for body in got if body[0] == "a"] == ["a1", "a2", "a3"]
    assert sorted(got) == ["a1", "a2", "a3", "b1", "x9"]


def test_a_refused_message_blocks_the_later_ones_of_its_group(queues: Host) -> None:
    queues.send_to_groups("a1", "b1", "a2", queue=FIFO)
    got = {each.body: each.receipt for each in queues.receive(10, queue=FIFO)}
    pairs = [(got["a1"], "000000000000/none.fifo"), (got["b1"], FIFO_FAST), (got["a2"], FIFO_SLOW)]
    assert reply_types(forward(queues, *pairs, intake=FIFO)) == [errors.QueueNotFound, Forwarded, errors.GroupHeld]
    assert reply_types(forward(queues, *((receipt, FIFO_SLOW) for receipt, _ in pairs), intake=FIFO)) == [
        Forwarded,
        errors.ReceiptEnded,
        Forwarded,
    ]
    assert bodies(queues, FIFO_SLOW) == ["a1", "a2"]


def test_a_message_forwarded_before_does_not_block_its_group(queues: Host) -> None:
    queues.send_to_groups("a1", "a2", queue=FIFO)
    first, second = queues.receive(10, queue=FIFO)
    forward(queues, (first.receipt, FIFO_FAST), intake=FIFO)
    assert reply_types(forward(queues, *all_to(FIFO_FAST, [first, second]), intake=FIFO)) == [
        errors.ReceiptEnded,
        Forwarded,
    ]


def test_messages_that_were_no_duplicates_are_none_in_the_target(queues: Host) -> None:
    """Both have one deduplication id, and were sent six minutes apart."""
    for _ in range(2):
        queues.send_to_groups("a1", queue=FIFO)
        queues.advance(360_000)
    answers = []
    while got := queues.receive(10, queue=FIFO):
        answers += forward(queues, *all_to(FIFO_FAST, got), intake=FIFO)
    assert [each.duplicate for each in answers] == [False, False]
    assert queues.counts(FIFO_FAST) == (2, 0, 0)


def test_a_message_that_a_forward_returns_is_no_duplicate(queues: Host) -> None:
    """The target has logged its id, and must not discard the only copy."""
    queues.send_to_groups("a1", queue=FIFO)
    for intake, target in ((FIFO, FIFO_FAST), (FIFO_FAST, FIFO), (FIFO, FIFO_FAST)):
        (answer,) = forward(queues, *all_to(target, queues.receive(1, queue=intake)), intake=intake)
        assert answer.duplicate is False
    assert bodies(queues, FIFO_FAST) == ["a1"]


@pytest.mark.differs_on_shards("the target detects the duplicate after the reply")
def test_a_message_sent_with_its_id_as_deduplication_id_is_not_forwarded_twice(queues: Host) -> None:
    """A forwarder that sends and then deletes leaves this state if it is killed in between."""
    queues.send_to_groups("a1", "a2", queue=FIFO)
    first, second = queues.receive(10, queue=FIFO)
    (before,) = queues.put(message("a1", group="a", dedup_id=str(UUID(bytes=first.id))), queue=FIFO_FAST)
    answers = forward(queues, *all_to(FIFO_FAST, [first, second]), intake=FIFO)
    assert answers[0] == Forwarded(id=before.id, sequence=before.sequence, duplicate=True)
    assert answers[1].duplicate is False
    assert queues.counts(FIFO) == (0, 0, 0)
    assert bodies(queues, FIFO_FAST) == ["a1", "a2"]


def test_a_forward_reduces_the_messages_in_flight(queues: Host) -> None:
    queues.create("000000000000/one", in_flight_max=1)
    queues.send("a", "b", queue="000000000000/one")
    held = queues.receive_one(queue="000000000000/one")
    assert queues.receive(1, queue="000000000000/one") == []
    woken = queues.watch("000000000000/one")
    forward(queues, (held.receipt, FAST), intake="000000000000/one")
    assert woken == [queues.clock.now_ms()]
    assert bodies(queues, "000000000000/one") == ["b"]


@pytest.mark.parametrize("why", [None, {"why": "no"}], ids=["sent", "dead"])
def test_the_event_log_records_a_forward_as_a_delete(why: dict[str, str] | None, tmp_path: Path) -> None:
    with hosting(tmp_path / "store", options=LOGGED) as host:
        create_queues(host).send("a")
        held = host.receive_one()
        host.advance(4_000)
        forward(host, (held.receipt, FAST), (held.receipt, FAST), reasons=why)
        (event,) = events_of(host)
        assert (event.queue, event.outcome.value, event.held_ms) == (QUEUE, "deleted", 4_000)
        assert event.message_id == held.id


@pytest.mark.parametrize("why", [None, {"why": "no"}], ids=["sent", "dead"])
@pytest.mark.parametrize("intake", [QUEUE, FIFO])
def test_a_forward_counts_as_a_delete_in_the_statistics(queues: Host, intake: str, why: dict[str, str] | None) -> None:
    target = FIFO_FAST if intake == FIFO else FAST
    queues.put(*(message(body, group=body, dedup_id=body) for body in "ab"), queue=intake)
    forward(queues, *all_to(target, queues.receive(2, queue=intake)), intake=intake, reasons=why)
    left, come = (queues.do(commands.ShowQueue(queue=name, counts=True)).counts for name in (intake, target))
    assert (left.sent, left.deleted, left.in_flight) == (2, 2, 0)
    assert come.visible == 2
    if why is not None:
        assert come.sent == 0


def test_a_full_store_refuses_forwards_and_loses_no_message(tmp_path: Path) -> None:
    with on_sqlite(tmp_path / "store").open(database_pages_max=550, free_space_reserve_bytes=0) as host:
        create_queues(host)
        sent = fill(host)
        held = host.receive(5, timeout_s=3_600)
        rest = host.receive(len(sent), timeout_s=3_600)
        entries = tuple(ForwardEntry(receipt=each.receipt, target=FAST) for each in held)
        refused, deleted = host.do_together(
            Forward(queue=QUEUE, entries=entries), commands.Delete(queue=QUEUE, receipts=(rest[0].receipt,))
        )
        assert (type(refused), deleted) == (errors.StoreFull, [ReceiptState.LIVE])
        assert (host.counts(), host.counts(FAST)) == ((0, len(sent) - 1, 0), (0, 0, 0))
        host.delete(*(each.receipt for each in rest[1:]))
        host.advance(2_000)
        assert reply_types(forward(host, *all_to(FAST, held))) == [Forwarded] * 5
        host.reopen()
        assert bodies(host, FAST) == [each.body for each in held]


def test_a_forward_that_fills_the_store_is_rolled_back(tmp_path: Path) -> None:
    """The delete in the same batch succeeds."""
    with on_sqlite(tmp_path / "store").open(database_pages_max=550, free_space_reserve_bytes=0) as host:
        create_queues(host).send("x", *("y" * 900_000 for _ in range(2)))
        small, *large = host.receive(3, timeout_s=3_600)
        entries = tuple(ForwardEntry(receipt=each.receipt, target=FAST) for each in large)
        refused, deleted = host.do_together(
            Forward(queue=QUEUE, entries=entries), commands.Delete(queue=QUEUE, receipts=(small.receipt,))
        )
        assert (type(refused), deleted) == (errors.StoreFull, [ReceiptState.LIVE])
        assert (host.counts(), host.counts(FAST)) == ((0, 2, 0), (0, 0, 0))
        assert host.delete(large[0].receipt) == [ReceiptState.LIVE]


_STEPS = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(["a", "b", "c"]), st.integers(1, 4)),
    st.tuples(st.just("receive"), st.integers(0, 2), st.sampled_from([0, 1, 30])),
    st.tuples(st.just("forward"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("delete"), st.integers(0, 2)),
    st.tuples(st.just("advance"), st.sampled_from([0, 999, 1_000, 30_000])),
    st.tuples(st.just("crash")),
    st.tuples(st.just("forget")),
)


@pytest.mark.parametrize("names", [(QUEUE, FAST, SLOW), (FIFO, FIFO_FAST, FIFO_SLOW)], ids=["standard", "fifo"])
def test_random_forwards_keep_each_message_once(
    tmp_path_factory: pytest.TempPathFactory, names: tuple[str, ...]
) -> None:
    @settings(max_examples=40, deadline=None)
    @given(st.lists(_STEPS, max_size=40))
    def play(steps: list[tuple[Any, ...]]) -> None:
        with hosting(tmp_path_factory.mktemp("forwards") / "store") as host:
            create_queues(host)
            _History(host, names).run(steps)
            host.check()

    play()


class _History:
    """Apply random steps and count the messages that each queue must have."""

    def __init__(self, host: Host, names: tuple[str, ...]) -> None:
        self._host = host
        self._names = names
        self._numbers = count()
        self._held: list[list[ReceivedMessage]] = [[], [], []]
        self._expected = {name: Counter[str]() for name in names}

    def run(self, steps: list[tuple[Any, ...]]) -> None:
        for name, *rest in steps:
            (getattr(self, f"_{name}", None) or getattr(self._host, name))(*rest)
        self._host.advance(60_000)
        for name in self._names:
            found: Counter[str] = Counter()
            while got := self._host.receive(10, queue=name, timeout_s=600):
                found.update(each.body for each in got)
                self._host.delete(*(each.receipt for each in got), queue=name)
            assert found == self._expected[name]

    def _send(self, group: str, messages: int) -> None:
        sent = [f"{group}{next(self._numbers)}" for _ in range(messages)]
        self._host.put(*(message(body, group=group, dedup_id=body) for body in sent), queue=self._names[0])
        self._expected[self._names[0]].update(sent)

    def _receive(self, place: int, timeout_s: int) -> None:
        self._held[place] += self._host.receive(3, queue=self._names[place], timeout_s=timeout_s)

    def _forward(self, place: int, target: int, skipped: int, is_dead: bool) -> None:
        intake, to = self._names[place], self._names[target]
        tried = self._held[place][skipped:]
        answers = forward(self._host, *all_to(to, tried), intake=intake, reasons={"why": "no"} if is_dead else None)
        for each, answer in zip(tried, answers, strict=True):
            if isinstance(answer, Forwarded):
                assert answer.duplicate is False
                self._expected[intake][each.body] -= 1
                self._expected[to][each.body] += 1
            else:
                assert isinstance(answer, errors.VeilmqError)
        self._expected[intake] = +self._expected[intake]

    def _delete(self, place: int) -> None:
        name = self._names[place]
        before = sum(self._host.counts(name))
        if self._held[place]:
            each = self._held[place].pop()
            self._host.delete(each.receipt, queue=name)
            self._expected[name][each.body] -= before - sum(self._host.counts(name))
            self._expected[name] = +self._expected[name]

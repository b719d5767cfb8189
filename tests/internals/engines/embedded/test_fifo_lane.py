"""Lanes of ordered groups: what they read, what they keep, and how they go on after anything."""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EVERYTHING
from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import Delete, NewMessage, Receive, Send, ShowQueue
from veilmq.core.errors import InternalError
from veilmq.core.results import ReceiptState
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.doctor import examine
from veilmq.engines.embedded.fifo_lane import PASSED_OVER_MAX, FifoLane
from veilmq.engines.embedded.groups import key_of
from veilmq.engines.embedded.janitor import Sweep
from veilmq.engines.embedded.lane import Taken


@contextmanager
def _reads(store: Store) -> Iterator[list[str]]:
    """Collect the SELECT statements that run meanwhile."""
    seen: list[str] = []

    def trace(_cursor: Any, sql: str, _bindings: Any) -> bool:
        if "SELECT" in sql:
            seen.append(sql)
        return True

    connection = store.journal.begin()
    store.journal.roll_back()
    connection.exec_trace = trace
    try:
        yield seen
    finally:
        connection.exec_trace = None


@pytest.mark.parametrize("groups", ["aaaa", "abcd"])
def test_the_common_cycle_reads_nothing(tmp_path: Path, groups: str) -> None:
    store = Store(tmp_path)
    store.create(fifo=True)
    store.send_to(groups)
    store.delete(*(message.receipt for message in store.receive(10).messages))
    with _reads(store) as reads:
        for _ in range(3):
            store.send_to(groups)
            first = store.receive(2).messages
            store.delete(*(message.receipt for message in first))
            last = store.receive(10).messages
            store.delete(*(message.receipt for message in last))
            assert len(first) + len(last) == 4
    assert reads == []
    assert [store.count(table) for table in ("message", "lease", "turn")] == [0, 0, 0]
    store.close()


def _fill(store: Store, groups: int, per_group: int) -> None:
    """Send so many messages to each of many groups, a hundred a command."""
    names = deque(f"{name}-{turn}" for turn in range(per_group) for name in range(groups))
    while names:
        some = [names.popleft() for _ in range(min(100, len(names)))]
        messages = tuple(
            NewMessage(body=name, size_bytes=len(name), group=name.split("-")[0], dedup_id=name) for name in some
        )
        store.run(Send(queue=QUEUE, messages=messages))


@pytest.mark.slow
@pytest.mark.parametrize("many", [5_000, pytest.param(100_000, marks=EVERYTHING)])
def test_many_groups_of_which_nearly_all_are_blocked(tmp_path: Path, many: int) -> None:
    """A receive takes as many steps, and as few reads, as beside a hundred."""
    costs: list[int] = []
    for groups in (100, many):
        store = Store(tmp_path / str(groups), fifo_in_flight_max=1_000_000)
        store.create(fifo=True, visibility_timeout_s=3_600)
        _fill(store, groups, 1)
        for taken in range(0, groups - 10, 1_000):
            store.receive(min(1_000, groups - 10 - taken))
        _fill(store, groups, 2)  # the second message of each group; the first is a duplicate
        with _reads(store) as reads:
            given = [store.receive(2).messages for _ in range(10)]
            store.delete(*(message.receipt for both in given for message in both))
            assert store.bodies() == []
        assert [len(both) for both in given] == [2] * 10
        costs.append(len(reads))
        lane = store.machine.catalog.queue(QUEUE).lanes[0]
        assert isinstance(lane, FifoLane)
        assert len(lane._turns._items) <= store.options.hidden_window_leases
        store.close()
    assert costs[1] <= costs[0] + 10 * 6  # what is not in the windows is found by its key


def _numbered(prefix: str, count: int, body: str = "") -> Send:
    """Send so many messages, each to a group of its own."""
    names = [f"{prefix}{number}" for number in range(count)]
    return Send(
        queue=QUEUE,
        messages=tuple(
            NewMessage(body=body or name, size_bytes=len(body or name), group=name, dedup_id=name) for name in names
        ),
    )


def test_a_group_that_is_drained_soon_never_has_a_row(tmp_path: Path) -> None:
    """One that is not has it when the lane has moved on by so many messages."""
    store = Store(tmp_path)
    store.create(fifo=True)
    (drained,) = store.run(_numbered("a", 2), Receive(queue=QUEUE))[1].messages
    store.delete(drained.receipt)
    assert store.count("turn") == 0
    store.run(_numbered("b", 511))
    assert store.count("turn") == 0
    store.run(_numbered("c", 1))
    assert store.count("turn") == 1, "a1 is 512 messages old"
    assert _is_sound(tmp_path)
    assert store.bodies() == ["a1"]
    store.close()


def test_a_group_with_a_large_message_has_a_row_at_once(tmp_path: Path) -> None:
    """Its group could not be told at a start without reading all of it."""
    store = Store(tmp_path)
    store.create(fifo=True)
    store.run(_numbered("a", 3, "x" * 1_001), _numbered("b", 3, "é" * 1_000))
    assert store.count("turn") == 3
    store.send_to("c")
    large = NewMessage(body="y" * 1_001, size_bytes=1_001, group="c", dedup_id="large")
    store.run(Send(queue=QUEUE, messages=(large,)))
    assert store.count("turn") == 4
    store.close()
    again = Store(tmp_path)
    assert len(again.receive(10).messages) == 8
    again.close()


def test_turns_without_rows_are_found_at_a_start(tmp_path: Path) -> None:
    """As they were: of groups in flight, released, delayed and untouched, behind a group that has a row."""
    store = Store(tmp_path)
    store.create(fifo=True)
    store.run(_numbered("old", 600))
    store.delete(*(message.receipt for message in store.receive(599, timeout_s=60).messages))
    store.send_to("aabbcc")
    store.send_to("d", delay_s=10)
    store.send_to("d")
    held = store.receive(3, timeout_s=30).messages
    assert [message.body for message in held] == ["old599", "a1", "a2"]
    (released,) = store.receive(1).messages
    store.change(released.receipt, 0)
    assert [store.count(table) for table in ("message", "turn")] == [9, 0]
    assert _is_sound(tmp_path)
    store.close()
    again = Store(tmp_path)
    assert again.bodies(10) == ["b3", "b4", "c5", "c6", "d8"]
    assert again.count("turn") == 5
    again.delete(held[2].receipt)
    assert again.bodies(10) == []
    again.now_ms += 30_000
    assert sorted(again.bodies(10)) == sorted(["old599", "a1", "b3", "b4", "c5", "c6", "d7", "d8"])
    again.close()


def _is_sound(folder: Path) -> bool:
    return all(finding.ok for finding in examine(folder).findings)


@pytest.mark.parametrize("window", [1, 2, 7, 1_000])
def test_a_restart_goes_on_where_each_group_was(tmp_path: Path, window: int) -> None:
    options = {"ready_window_messages": window, "hidden_window_leases": window}
    store = Store(tmp_path, **options)
    store.create(fifo=True)
    store.send_to("aaabbbc")  # a1 a2 a3 b4 b5 b6 c7
    first, second, third = store.receive(3).messages
    fourth = store.receive().messages[0]
    store.delete(first.receipt, fourth.receipt)
    store.change(second.receipt, 0)
    store.close()
    again = Store(tmp_path, **options)
    assert again.bodies(10) == ["b5", "b6", "c7"]
    assert again.delete(third.receipt) == [ReceiptState.LIVE]
    assert again.bodies(10) == ["a2"]
    again.close()


def test_a_batch_that_fails_leaves_the_groups_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.create(fifo=True)
    store.send_to("aab")
    (held,) = store.receive().messages
    let_down = FifoLane.take

    def take_and_fail(lane: FifoLane, now_ms: int) -> Taken | None:
        let_down(lane, now_ms)
        raise RuntimeError("a defect, after it changed memory")

    monkeypatch.setattr(FifoLane, "take", take_and_fail)
    (answer,) = store.run(Receive(queue=QUEUE, count=10))
    assert isinstance(answer, InternalError)
    monkeypatch.undo()
    assert store.bodies(10) == ["b3"]
    store.delete(held.receipt)
    assert store.bodies(10) == ["a2"]
    store.close()


def test_a_lane_whose_positions_are_used_up_is_emptied_before_the_next_one_gives(tmp_path: Path) -> None:
    store = Store(tmp_path, lane_sequences_max=3)
    store.create(fifo=True)
    sequences = [sent.sequence for sent in store.send_to("aaaaab")]
    assert sequences == sorted(set(sequences))
    first = store.receive(10).messages
    assert [message.body for message in first] == ["a1", "a2", "a3"]
    assert store.bodies(10) == []
    store.delete(*(message.receipt for message in first))
    second = store.receive(10).messages
    assert [(message.body, message.sequence) for message in second] == [
        ("a4", sequences[3]),
        ("a5", sequences[4]),
        ("b6", sequences[5]),
    ]
    store.close()


def test_no_more_than_so_many_delayed_messages_of_a_group_are_passed_over() -> None:
    """Then the group waits for the first of them, and all come in order."""
    store = Store()
    store.create(fifo=True)
    store.send_to("a" * PASSED_OVER_MAX, delay_s=10)
    store.send_to("a", delay_s=20)
    store.send_to("a")
    assert store.bodies(10) == []
    store.now_ms += 10_000
    got = store.receive(200).messages
    assert len(got) == PASSED_OVER_MAX + 1
    assert got[-1].body == f"a{PASSED_OVER_MAX + 2}"
    store.close()


def test_a_delayed_message_that_is_deleted_or_moved_before_it_was_seen() -> None:
    """By its lane: no receipt of it exists in Amazon SQS."""
    store = Store()
    store.create(fifo=True)
    store.send_to("abc", delay_s=10)
    lane = store.machine.catalog.queue(QUEUE).lanes[0]
    first, second, _ = (lane.find(lane._direct.next - back) for back in (3, 2, 1))
    assert first is not None
    assert second is not None
    lane.remove(first, store.now_ms)
    lane.move(second, store.now_ms, store.now_ms + 5_000, supersede=False)
    assert store.receive().next_due_ms == store.now_ms + 5_000
    store.now_ms += 10_000
    assert store.bodies(10) == ["b2", "c3"]
    store.close()


def test_a_receive_looks_at_so_many_groups_that_have_nothing_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("veilmq.engines.embedded.fifo_lane._TURNS_PER_TAKE", 1)
    store = Store()
    store.create(fifo=True)
    store.send_to("a" * PASSED_OVER_MAX, delay_s=10)
    store.send_to("a", delay_s=20)
    store.send_to("ab")  # the first one is out of reach, and that is found out when its turn comes
    received = store.receive()
    assert (received.messages, received.next_due_ms) == ([], store.now_ms)
    assert store.bodies() == [f"b{PASSED_OVER_MAX + 3}"]
    store.close()


def test_what_was_taken_can_be_given_back_or_let_go() -> None:
    store = Store()
    store.create(fifo=True)
    store.send_to("aab")
    store.receive(1, timeout_s=0)
    lane = store.machine.catalog.queue(QUEUE).lanes[0]
    for count in (1, 0):  # first the message that came back, then the one never received
        taken = lane.take(store.now_ms)
        assert taken is not None
        assert taken[1].receive_count == count
        lane.give_back(taken)
        taken = lane.take(store.now_ms)
        assert taken is not None
        lane.let_go(taken[1])
    assert store.bodies(10) == ["b3"]
    store.close()


def test_many_messages_that_end_at_once_are_swept_in_slices_and_never_given() -> None:
    store = Store()
    store.create(fifo=True, retention_s=60)
    _fill(store, 700, 1)
    store.receive(10, timeout_s=600)
    store.now_ms += 30_000
    store.send_to("za")
    store.now_ms += 30_000
    assert [body for _ in range(4) for body in store.bodies(10)] == ["z1", "a2"]
    slices = 0
    while store.run(Sweep())[0].more:
        slices += 1
    assert slices >= 1
    assert [store.count(table) for table in ("message", "turn")] == [2, 0]
    (view,) = store.run(ShowQueue(queue=QUEUE, counts=True))
    assert (view.counts.visible, view.counts.in_flight) == (0, 2)
    store.close()


def test_groups_whose_names_have_one_number_share_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.engines.embedded.groups.key_of", lambda _: key_of("same"))
    store = Store()
    store.create(fifo=True)
    store.send_to("ab")
    (first,) = store.receive().messages
    assert store.bodies() == []
    store.run(Delete(queue=QUEUE, receipts=(first.receipt,)))
    assert store.bodies() == ["b2"]
    store.close()


def test_lanes_keep_their_order_over_a_restart_when_their_numbers_have_gone_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "LANES_MAX", 3)
    store = Store(tmp_path, lane_sequences_max=2)
    store.create(fifo=True)
    sent = store.send_to("aaaaa")
    assert [lane.number for lane in store.machine.catalog.queue(QUEUE).lanes] == [1, 2, 0]
    store.close()
    store = Store(tmp_path, lane_sequences_max=2)
    (last,) = store.send_to("b")
    assert last.sequence == sent[-1].sequence + 1, "there was room in the lane that was opened last"
    bodies = []
    while messages := store.receive(10).messages:
        bodies += [message.body for message in messages]
        store.delete(*(message.receipt for message in messages))
    assert bodies == ["a1", "a2", "a3", "a4", "a5", "b1"]
    store.close()


def test_standard_lanes_keep_the_order_in_which_they_were_opened() -> None:
    """Whatever FIFO queues use up meanwhile."""
    store = Store(lane_sequences_max=2)
    store.create()
    store.create("000000000000/ordered", fifo=True)
    opened: list[int] = []
    for _ in range(3):
        store.send("a", "b", priority=8)
        store.send("c", "d", priority=1)
        opened.append(store.machine.catalog.queue(QUEUE).lanes[-1].number)
        store.send_to("aaaaaa", queue="000000000000/ordered")
    lanes = store.machine.catalog.queue(QUEUE).lanes
    assert [lane.priority for lane in lanes] == [1] * 3 + [8] * 3
    assert [lane.number for lane in lanes[3:]] == opened
    assert store.bodies(10) == ["c", "d"] * 3 + ["a", "b"] * 2
    store.close()

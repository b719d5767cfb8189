"""Lanes: order, exhaustion of positions, priorities, and what a restart finds."""

from pathlib import Path

import pytest

from tests.internals.engines.embedded.store import QUEUE, Store
from veilmq.core.commands import PurgeQueue, ShowQueue
from veilmq.core.results import ReceiptState


def test_a_returned_message_takes_its_place_by_when_it_became_visible() -> None:
    store = Store()
    store.create()
    store.send("poison")
    receipt = store.receive().messages[0].receipt
    store.now_ms += 10
    store.send("old")
    store.now_ms += 10
    store.change(receipt, 0)
    store.now_ms += 10
    store.send("new")
    assert store.bodies(10) == ["old", "poison", "new"]
    store.close()


def test_all_of_a_receive_is_chosen_before_any_of_it_is_hidden() -> None:
    store = Store()
    store.create()
    store.send("a", "b")
    assert store.bodies(10, timeout_s=0) == ["a", "b"]
    assert [message.receive_count for message in store.receive(10).messages] == [2, 2]
    store.close()


def test_a_lane_whose_positions_are_used_up_is_followed_by_another(tmp_path: Path) -> None:
    store = Store(tmp_path, lane_sequences_max=5)
    store.create()
    for number in range(12):
        store.send(str(number))
    assert store.count("lane") == 3
    assert store.bodies(7) == ["0", "1", "2", "3", "4", "5", "6"]
    store.close()
    again = Store(tmp_path, lane_sequences_max=5)
    assert again.bodies(10) == ["7", "8", "9", "10", "11"]
    again.close()


def test_a_returned_message_of_an_older_lane_does_not_come_first_for_ever() -> None:
    store = Store(lane_sequences_max=1)
    store.create()
    store.send("poison")
    receipt = store.receive().messages[0].receipt
    store.now_ms += 10
    store.send("next")
    store.now_ms += 10
    store.change(receipt, 0)
    assert store.bodies() == ["next"]
    assert store.bodies() == ["poison"]
    store.close()


def test_delayed_messages_use_positions_of_their_own() -> None:
    store = Store(lane_sequences_max=3)
    store.create()
    store.send("a", "b", "c", delay_s=5)
    store.send("d", "e")
    assert store.bodies(10) == ["d", "e"]
    store.now_ms += 5_000
    assert store.bodies(10) == ["a", "b", "c"]
    store.close()


def test_lower_priorities_come_first() -> None:
    store = Store()
    store.create()
    for priority in (16, 8, 1):
        store.send(str(priority), priority=priority)
    assert store.bodies(2) == ["1", "8"]
    assert store.bodies(2) == ["16"]
    store.close()


@pytest.mark.parametrize("window", [1, 2, 7, 1_000])
def test_a_restart_goes_on_behind_the_last_message_ever_received(tmp_path: Path, window: int) -> None:
    store = Store(tmp_path, ready_window_messages=window, hidden_window_leases=window)
    store.create()
    store.send(*"abcdef")
    received = store.receive(4).messages
    assert store.delete(received[1].receipt, received[3].receipt) == [ReceiptState.LIVE] * 2
    store.close()
    again = Store(tmp_path, ready_window_messages=window, hidden_window_leases=window)
    assert again.bodies(10) == ["e", "f"]
    again.now_ms += 30_000
    assert sorted(again.bodies(10)) == ["a", "c", "e", "f"]
    again.close()


def test_a_receipt_of_a_purged_lane_finds_nothing_and_harms_nothing() -> None:
    store = Store()
    store.create()
    store.send("a")
    receipt = store.receive().messages[0].receipt
    store.run(PurgeQueue(queue=QUEUE))
    store.send("b")
    assert store.delete(receipt) == [ReceiptState.GONE]
    (view,) = store.run(ShowQueue(queue=QUEUE, counts=True))
    assert view.counts.visible == 1
    store.close()

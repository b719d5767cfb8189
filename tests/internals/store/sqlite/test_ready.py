"""The ready list and the cursors of groups on SQLite: what is taken from the front, and what is passed over."""

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.commands import InspectQueue, MessageState, Peek, Send
from veilmq.store.sqlite import fifo, settling, standard


@pytest.fixture
def brief(host: Host) -> Host:
    host.create(retention_s=60)
    return host


def test_messages_that_are_sent_together_are_one_row(brief: Host) -> None:
    brief.send("a", "b", "c", "d")
    assert (brief.rows("ready"), brief.rows("visibility")) == (1, 0)
    assert brief.bodies(3) == ["a", "b", "c"]
    assert (brief.rows("ready"), brief.rows("visibility")) == (1, 3)
    assert brief.bodies(10) == ["d"]
    assert (brief.rows("ready"), brief.rows("visibility")) == (0, 4)


def test_priorities_have_runs_of_their_own(brief: Host) -> None:
    brief.send("late", delay_s=1)
    brief.send("low", priority=9)
    brief.send("high", priority=1)
    brief.send("low too", priority=9)
    assert (brief.rows("ready"), brief.rows("visibility")) == (3, 1)
    brief.reopen()
    assert brief.bodies(10) == ["high", "low", "low too"]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_receive_passes_over_so_many_messages_past_their_retention(
    brief: Host, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """In a fair queue, too. While there are more it is made again at once: the others are deleted meanwhile."""
    brief.put(*(message(f"{number}", group=group) for number in range(30)))
    brief.receive(30, timeout_s=0)
    brief.advance(59_000)
    brief.send("lives")
    monkeypatch.setattr(settling, "_SWEPT_AT_ONCE", 2)
    monkeypatch.setattr(standard, "EXPIRED_PASSED_MAX", 10)
    brief.stop()
    brief.advance(1_000)
    receives = 1
    while not (given := brief.bodies(10)):
        assert brief.due_ms() == brief.clock.now_ms()
        receives += 1
    assert (given, receives) == (["lives"], 6)


def test_runs_of_a_fifo_queue_go_with_their_last_message(host: Host) -> None:
    host.create(fifo=True, content_deduplication=True, retention_s=60)
    for group in ("x", "y", "z"):
        messages = tuple(message(f"{group}{n}", group=group) for n in range(2))
        host.do(Send(queue=QUEUE, messages=messages))
    taken = host.receive(10)
    assert ([each.body for each in taken], host.rows("ordered_run")) == (["x0", "x1", "y0", "y1", "z0", "z1"], 3)
    for each in (taken[2], taken[1], taken[0]):
        host.delete(each.receipt)
        host.check()
    assert (host.rows("ordered_run"), host.counts()) == (2, (0, 3, 0))
    host.advance(60_000)
    host.sweep()
    assert (host.rows("ordered_run"), host.rows("ordered"), host.rows("message")) == (0, 0, 0)


# The cursors of groups.


@pytest.mark.parametrize("passed_max", [150, 60])
def test_groups_past_their_retention_are_passed_over(
    host: Host, monkeypatch: pytest.MonkeyPatch, passed_max: int
) -> None:
    """So many in a receive, which is made again at once while there are more: the others are deleted meanwhile."""
    host.create(fifo=True, retention_s=60)
    new = [message(str(number), group=str(number), dedup_id=str(number)) for number in range(150)]
    host.put(*new)
    host.advance(59_999)
    new = [message(f"{group} lives", group=group, dedup_id=f"living {group}") for group in ("0", "149", "z")]
    host.put(*new)
    monkeypatch.setattr(settling, "_SWEPT_AT_ONCE", 4)
    monkeypatch.setattr(fifo, "EXPIRED_PASSED_MAX", passed_max)
    host.stop()
    host.advance(1)
    given: list[str] = []
    receives = 0
    while len(given) < 3:
        assert host.due_ms() == host.clock.now_ms()
        shown = [each.body for each in host.do(Peek(queue=QUEUE, count=3)).messages]
        given += host.bodies(3, timeout_s=900)
        assert set(shown) <= set(given)
        host.check()
        receives += 1
    assert sorted(given) == ["0 lives", "149 lives", "z lives"]
    assert (receives == 1) == (passed_max == 150)
    assert host.rows("message") > 3
    monkeypatch.undo()
    host.sweep()
    assert (host.counts(), host.rows("ordered")) == ((0, 3, 0), 6)


def test_what_waits_and_what_has_returned_comes_by_visibility(brief: Host) -> None:
    brief.send("returns at 1000", "returns at 2000")
    assert brief.bodies(timeout_s=1) == ["returns at 1000"]
    assert brief.bodies(timeout_s=2) == ["returns at 2000"]
    for at_ms in (500, 1_000, 1_500, 2_500):
        brief.advance(500 if at_ms < 2_000 else 1_000)
        brief.send(f"sent at {at_ms}")
    brief.advance(500)
    expected = ["sent at 500", "returns at 1000", "sent at 1000", "sent at 1500", "returns at 2000", "sent at 2500"]
    for count in range(1, 7):
        seen = brief.do(InspectQueue(queue=QUEUE, count=count, state=MessageState.VISIBLE))
        assert [each.body for each in seen] == expected[:count]
    assert brief.bodies(10) == expected

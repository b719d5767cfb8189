"""The ready list and the cursors of groups on SQLite: what is taken from the front, and what is passed over."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.commands import Peek, PurgeQueue, Receive, Send
from veilmq.store.sqlite import fifo, settling, standard


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "store")
    host.create(retention_s=60)
    yield host
    host.close()


def bodies(host: Host, count: int = 10, timeout_s: int | None = None) -> list[str]:
    return [each.body for each in host.do(Receive(queue=QUEUE, count=count, timeout_s=timeout_s)).messages]


def test_messages_that_are_sent_together_are_one_row(host: Host) -> None:
    """Until they are received, and the row has gone with the last one."""
    host.send("a", "b", "c", "d")
    assert (host.rows("ready"), host.rows("visibility")) == (1, 0)
    assert bodies(host, 3) == ["a", "b", "c"]
    assert (host.rows("ready"), host.rows("visibility")) == (1, 3)
    assert bodies(host) == ["d"]
    assert (host.rows("ready"), host.rows("visibility")) == (0, 4)
    host.check()


def test_what_came_back_and_what_waits_are_in_the_order_of_visibility(host: Host) -> None:
    host.send("a", "b")
    assert bodies(host, 1, timeout_s=2) == ["a"]
    host.advance(1_000)
    host.send("c")
    host.advance(1_000)
    host.send("d")
    host.send("e")
    assert bodies(host) == ["b", "c", "a", "d", "e"]
    host.check()


def test_priorities_have_runs_of_their_own(host: Host) -> None:
    host.send("late", delay_s=1)
    host.send("low", priority=9)
    host.send("high", priority=1)
    host.send("low too", priority=9)
    assert (host.rows("ready"), host.rows("visibility")) == (3, 1)
    host.reopen()
    assert bodies(host) == ["high", "low", "low too"]
    host.check()


def test_messages_past_their_retention_before_those_that_are_taken(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.send("a", "b", "c")
    host.advance(59_000)
    host.send("d", "e")
    monkeypatch.setattr(settling, "_SWEPT_AT_ONCE", 1)
    host.advance(1_000)
    assert bodies(host, 1) == ["d"]
    host.check()
    assert bodies(host) == ["e"]
    host.check()
    assert host.counts() == (0, 2, 0)


@pytest.mark.parametrize("group", [None, "g"])
def test_a_receive_passes_over_so_many_messages_past_their_retention(
    host: Host, monkeypatch: pytest.MonkeyPatch, group: str | None
) -> None:
    """In a fair queue, too. While there are more it is made again at once: the others are deleted meanwhile."""
    host.do(Send(queue=QUEUE, messages=tuple(message(f"{number}", group=group) for number in range(30))))
    host.receive(30, timeout_s=0)
    host.advance(59_000)
    host.send("lives")
    monkeypatch.setattr(settling, "_SWEPT_AT_ONCE", 2)
    monkeypatch.setattr(standard, "EXPIRED_PASSED_MAX", 10)
    host.stop()
    host.advance(1_000)
    receives = 1
    while not (given := bodies(host)):
        assert host.due_ms() == host.clock.now_ms()
        receives += 1
    assert (given, receives) == (["lives"], 6)
    host.check()


def test_a_purge_leaves_no_runs(host: Host) -> None:
    host.send("a", "b")
    host.do(PurgeQueue(queue=QUEUE))
    host.send("c")
    host.sweep()
    assert (host.rows("ready"), host.rows("message")) == (1, 1)
    assert bodies(host) == ["c"]
    host.check()


def test_runs_of_a_fifo_queue_go_with_their_last_message(tmp_path: Path) -> None:
    host = Host(tmp_path / "fifo")
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
    host.close()


def test_messages_of_one_group_with_deadlines_of_their_own_are_counted(tmp_path: Path) -> None:
    """As those of the others are: each until its own deadline."""
    host = Host(tmp_path / "fifo")
    host.create(fifo=True, content_deduplication=True)
    host.do(Send(queue=QUEUE, messages=tuple(message(f"{n}", group="g") for n in range(3))))
    first, second, third = host.receive(3, timeout_s=10)
    host.change(first.receipt, 20)
    host.change(third.receipt, 5)
    counts = []
    for _ in range(4):
        counts.append(host.counts())
        host.advance(5_000)
    assert [*counts, host.counts()] == [(0, 3, 0), (1, 2, 0), (2, 1, 0), (2, 1, 0), (3, 0, 0)]
    assert second.sequence is not None
    host.close()


# The cursors of groups.


@pytest.mark.parametrize("passed_max", [150, 60])
def test_groups_past_their_retention_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed_max: int
) -> None:
    """So many in a receive, which is made again at once while there are more: the others are deleted meanwhile."""
    host = Host(tmp_path / "store")
    host.create(fifo=True, retention_s=60)
    new = [message(str(number), group=str(number), dedup_id=str(number)) for number in range(150)]
    host.do(Send(queue=QUEUE, messages=tuple(new)))
    host.advance(59_999)
    new = [message(f"{group} lives", group=group, dedup_id=f"living {group}") for group in ("0", "149", "z")]
    host.do(Send(queue=QUEUE, messages=tuple(new)))
    monkeypatch.setattr(settling, "_SWEPT_AT_ONCE", 4)
    monkeypatch.setattr(fifo, "EXPIRED_PASSED_MAX", passed_max)
    host.stop()
    host.advance(1)
    given: list[str] = []
    receives = 0
    while len(given) < 3:
        assert host.due_ms() == host.clock.now_ms()
        shown = [each.body for each in host.do(Peek(queue=QUEUE, count=3)).messages]
        given += [each.body for each in host.receive(3, timeout_s=900)]
        assert set(shown) <= set(given)
        host.check()
        receives += 1
    assert sorted(given) == ["0 lives", "149 lives", "z lives"]
    assert (receives == 1) == (passed_max == 150)
    assert host.rows("message") > 3
    monkeypatch.undo()
    host.sweep()
    assert (host.counts(), host.rows("ordered")) == ((0, 3, 0), 6)
    host.close()

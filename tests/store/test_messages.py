"""Messages: what is sent comes back as it was; batches, sizes, order, delays, retention, counters."""

import uuid

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.commands import SentMessage
from veilmq.core.errors import MessageTooLong
from veilmq.core.messages import NewMessage


def bodies(host: Host, count: int = 10, timeout_s: int | None = None) -> list[str]:
    """Return the bodies that a receive takes."""
    return [each.body for each in host.receive(count, timeout_s=timeout_s)]


def oldest_ms(host: Host) -> int | None:
    """Return when the oldest message was sent."""
    at_ms: int | None = host.do(commands.ShowQueue(queue=QUEUE, counts=True)).counts.oldest_sent_at_ms
    return at_ms


def test_a_message_comes_back_as_it_was_sent(host: Host) -> None:
    """Body, properties, id, priority and times."""
    host.create()
    body = "naïve – 漢字 🐘 \t\n"
    new = NewMessage(body=body, size_bytes=99, properties=b"\x00opaque\xff", priority=3)
    (sent,) = host.do(commands.Send(queue=QUEUE, messages=(new,)))
    sent_at_ms = host.clock.now_ms()
    host.advance(7)
    got = host.receive_one(timeout_s=5)
    assert (got.id, got.body, got.properties, got.priority) == (sent.id, body, b"\x00opaque\xff", 3)
    assert uuid.UUID(bytes=got.id).version == 4
    assert (got.sent_at_ms, got.first_received_at_ms) == (sent_at_ms, sent_at_ms + 7)
    assert (got.receive_count, got.visible_at_ms) == (1, sent_at_ms + 5_007)


def test_the_messages_of_a_batch_are_taken_and_refused_alone(host: Host) -> None:
    """The limit is the queue's own, for body and attributes together, and exact."""
    host.create(message_bytes_max=1_024)
    new = [NewMessage(body="x", size_bytes=size) for size in (1_025, 1_024, 2_000, 1)]
    answers = host.do(commands.Send(queue=QUEUE, messages=tuple(new)))
    assert [type(answer) for answer in answers] == [MessageTooLong, SentMessage, MessageTooLong, SentMessage]
    assert answers[0].bytes_max == 1_024
    assert host.counts() == (2, 0, 0)
    assert len({answer.id for answer in answers if isinstance(answer, SentMessage)}) == 2


def test_the_largest_message(host: Host) -> None:
    """1 MiB goes in and comes out."""
    host.create()
    host.send("x" * 1_048_576)
    assert host.receive_one().body == "x" * 1_048_576


def test_a_receive_takes_what_is_there_up_to_its_count(host: Host) -> None:
    """Not fewer, not more."""
    host.create()
    host.send(*(str(number) for number in range(12)))
    assert [len(bodies(host, count)) for count in (1, 10, 10, 10)] == [1, 10, 1, 0]


def test_a_timeout_of_0_gives_a_message_once_an_answer(host: Host) -> None:
    """A batch is chosen as a whole before any of it is visible again."""
    host.create()
    host.send("a", "b")
    for count in (1, 2, 3):
        got = host.receive(10, timeout_s=0)
        assert sorted(each.body for each in got) == ["a", "b"]
        assert [each.receive_count for each in got] == [count, count]


def test_order_is_by_the_time_of_becoming_visible(host: Host) -> None:
    """Of sends, ended delays, ended leases and releases alike."""
    host.create()
    host.send("delayed", delay_s=3)
    host.send("leased")
    host.receive(1, timeout_s=4)
    host.send("released")
    released = host.receive(1)[0]
    host.advance(2_000)
    host.send("early")
    host.advance(3_000)
    host.change(released.receipt, 0)
    host.advance(1)
    host.send("late")
    assert bodies(host) == ["early", "delayed", "leased", "released", "late"]


def test_a_poison_message_blocks_nobody(host: Host) -> None:
    """Released at once, again and again, it goes behind those that were visible before."""
    host.create()
    for number in range(5):
        host.send(str(number))
        host.advance(1)
    seen = []
    for _ in range(10):
        got = host.receive(1)[0]
        seen.append(got.body)
        host.advance(1)
        if got.body == "0":
            host.change(got.receipt, 0)
        else:
            host.delete(got.receipt)
    assert seen[:6] == ["0", "1", "2", "3", "4", "0"]


def test_priorities_go_first(host: Host) -> None:
    """1 before 8 before 16, and each in its own order."""
    host.create()
    for priority in (16, 8, 1, 8):
        host.send(str(priority), priority=priority)
        host.advance(1)
    assert bodies(host, 3) == ["1", "8", "8"]
    assert bodies(host, 3) == ["16"]


@pytest.mark.parametrize("delay_s", [1, 900, 604_800])
def test_delays(host: Host, delay_s: int) -> None:
    """Delayed to the millisecond, by the message or by the queue."""
    host.create(delay_s=delay_s, retention_s=1_209_600)
    host.send("queue")
    host.send("message", delay_s=delay_s)
    host.send("none", delay_s=0)
    assert host.counts() == (1, 0, 2)
    host.delete(host.receive_one().receipt)
    host.advance(delay_s * 1_000 - 1)
    assert bodies(host) == []
    host.advance(1)
    assert sorted(bodies(host)) == ["message", "queue"]


@pytest.mark.parametrize("how", ["visible", "in flight", "delayed"])
def test_retention_ends_everything(host: Host, how: str) -> None:
    """To the millisecond, whatever state the message is in; nobody is told to come for it now."""
    host.create(retention_s=60)
    host.send("a", delay_s=90 if how == "delayed" else None)
    if how == "in flight":
        host.receive_one(timeout_s=600)
    host.advance(59_999)
    assert sum(host.counts()) == 1
    assert oldest_ms(host) == host.clock.now_ms() - 59_999
    host.advance(1)
    assert host.counts() == (0, 0, 0)
    assert oldest_ms(host) is None
    assert bodies(host) == []
    due_ms = host.due_ms()
    assert due_ms is None or due_ms > host.clock.now_ms()
    host.advance(600_000)
    assert bodies(host) == []


def test_retention_holds_over_a_restart_and_a_change_of_it(kept: Host) -> None:
    """Longer does not bring back what has ended; shorter ends at once."""
    kept.create(retention_s=60)
    kept.send("old")
    kept.advance(60_000)
    kept.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": 600}))
    assert kept.counts() == (0, 0, 0)
    kept.send("new")
    kept.advance(300_000)
    kept.crash()
    assert kept.counts() == (1, 0, 0)
    kept.do(commands.SetQueue(queue=QUEUE, settings={"retention_s": 300}))
    assert kept.counts() == (0, 0, 0)
    assert bodies(kept) == []


def test_counters_and_the_oldest_message(host: Host) -> None:
    """Exact through every change of state; the oldest counts in every state."""
    host.create(visibility_timeout_s=10)
    assert (host.counts(), oldest_ms(host)) == ((0, 0, 0), None)
    start_ms = host.clock.now_ms()
    host.send("a")
    host.advance(1_000)
    host.send("b", "c", delay_s=5)
    assert (host.counts(), oldest_ms(host)) == ((1, 0, 2), start_ms)
    a = host.receive_one()
    assert (host.counts(), oldest_ms(host)) == ((0, 1, 2), start_ms)
    host.advance(5_000)
    assert host.counts() == (2, 1, 0)
    b = host.receive(1)[0]
    host.change(b.receipt, 0)
    assert host.counts() == (2, 1, 0)
    host.delete(a.receipt)
    assert (host.counts(), oldest_ms(host)) == ((2, 0, 0), start_ms + 1_000)


@pytest.mark.differs_on_postgres("commands that are under way at one time have no order")
def test_a_batch_of_commands_is_applied_in_order(host: Host) -> None:
    """One after the other at one instant: what is sent first is received by the next."""
    host.create()
    first, _, second, third = host.do_together(
        commands.Receive(queue=QUEUE),
        commands.Send(queue=QUEUE, messages=(message("a"),)),
        commands.Receive(queue=QUEUE),
        commands.Receive(queue=QUEUE),
    )
    assert [len(answer.messages) for answer in (first, second, third)] == [0, 1, 0]

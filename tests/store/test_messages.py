"""Messages: bodies, batches, sizes and priorities."""

import json
import random
import uuid

import pytest

from tests.store.host import QUEUE, Host, message
from tests.store.test_dead_letters import DEAD
from veilmq.core import commands
from veilmq.core.commands import SentMessage
from veilmq.core.errors import MessageTooLong, ReceiptState
from veilmq.core.limits import PRIORITY
from veilmq.core.messages import NewMessage


def test_a_message_comes_back_as_it_was_sent(host: Host) -> None:
    host.create()
    body = "naïve – 漢字 🐘 \t\n"
    (sent,) = host.put(NewMessage(body=body, size_bytes=99, properties=b"\x00opaque\xff", priority=3))
    sent_at_ms = host.clock.now_ms()
    host.advance(7)
    got = host.receive_one(timeout_s=5)
    assert (got.id, got.body, got.properties, got.priority) == (sent.id, body, b"\x00opaque\xff", 3)
    assert uuid.UUID(bytes=got.id).version == 4
    assert (got.sent_at_ms, got.first_received_at_ms) == (sent_at_ms, sent_at_ms + 7)
    assert (got.receive_count, got.visible_at_ms) == (1, sent_at_ms + 5_007)


def test_each_message_of_a_batch_is_checked_against_the_size_limit(host: Host) -> None:
    host.create(message_bytes_max=1_024)
    answers = host.put(*[NewMessage(body="x", size_bytes=size) for size in (1_025, 1_024, 2_000, 1)])
    assert [type(answer) for answer in answers] == [MessageTooLong, SentMessage, MessageTooLong, SentMessage]
    assert answers[0].bytes_max == 1_024
    assert host.counts() == (2, 0, 0)
    assert len({answer.id for answer in answers if isinstance(answer, SentMessage)}) == 2


def test_a_message_of_one_mebibyte_is_accepted(host: Host) -> None:
    host.create()
    host.send("x" * 1_048_576)
    assert host.receive_one().body == "x" * 1_048_576


@pytest.mark.parametrize("fifo", [False, True])
def test_the_receipt_of_a_message_that_its_queue_delays_acts(host: Host, *, fifo: bool) -> None:
    """The receipt contains the delay, so the message does not follow that of the queue."""
    host.create(fifo=fifo, delay_s=60)
    new = message("a", group="g", dedup_id="a") if fifo else message("a")
    (sent,) = host.put(new, options=commands.SendOptions(receipts=True))
    host.set_queue(delay_s=0)
    assert host.counts() == (0, 0, 1)
    assert host.change(sent.receipt, 0).state is ReceiptState.LIVE
    assert host.bodies() == ["a"]


@pytest.mark.parametrize("fifo", [False, True])
def test_a_message_expires_not_a_millisecond_early(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo, retention_s=60)
    for body in "abc":
        host.put(message(body, group=body, dedup_id=body) if fifo else message(body))
        host.advance(1)
    host.receive(1, timeout_s=0)
    host.advance(59_997)
    assert host.bodies(10, timeout_s=0) == ["b", "c"]
    host.advance(1)
    assert host.bodies(10, timeout_s=0) == ["c"]


@pytest.mark.parametrize("fifo", [False, True])
def test_messages_that_a_shorter_retention_has_ended_stay_ended(host: Host, *, fifo: bool) -> None:
    """There are more than several commands delete."""

    def numbered(body: str, group: str, at: int = 0) -> NewMessage:
        return message(body, group=group, dedup_id=f"{body}{group}{at}") if fifo else message(body)

    host.create(fifo=fifo)
    for group in "abcde":
        host.put(*(numbered("ended", group, at) for at in range(900)))
    host.advance(60_000)
    host.set_queue(retention_s=60)
    host.set_queue(retention_s=345_600)
    host.put(numbered("lives", "e"))
    given = [body for _ in range(8) for body in host.bodies(10, timeout_s=900)]
    assert (given, sum(host.counts())) == (["lives"], 1)


@pytest.mark.differs_on_postgres("concurrent commands have no order")
@pytest.mark.parametrize("new", [message("a"), message("a", priority=1), message("a", group="quiet")])
def test_a_batch_of_commands_is_applied_in_order(host: Host, new: NewMessage) -> None:
    host.create()
    host.put(*[message("old", group="noisy")] * 33)
    host.receive(31)
    first, _, second, third = host.do_together(
        commands.Receive(queue=QUEUE, count=3),
        commands.Send(queue=QUEUE, messages=(new,)),
        commands.Receive(queue=QUEUE),
        commands.Receive(queue=QUEUE),
    )
    bodies = [[each.body for each in answer.messages] for answer in (first, second, third)]
    assert bodies == [["old", "old"], ["a"], []]


def test_visibility_rules_of_a_dead_letter_queue_ignore_earlier_receives(host: Host) -> None:
    classes = [{"name": f"{each}", "visibility_timeout_s": each} for each in (5, 60)]
    rules = json.dumps({"version": 1, "classes": classes, "keys": {"quick": 0}, "default": 1})
    host.create(DEAD, visibility_rules=rules)
    host.create(visibility_rules=rules, dead_letter_queue=DEAD, receives_max=1)
    host.put(message("a", kind="quick"))
    for queue, count in ((QUEUE, 1), (DEAD, 2)):
        received = host.receive_one(queue=queue)
        assert (received.receive_count, received.visible_at_ms) == (count, host.clock.now_ms() + 5_000)
        host.advance(5_000)
        assert queue == DEAD or host.receive() == []


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "fair"])
def test_messages_are_received_in_order_of_priority(host: Host, group: str | None) -> None:
    host.create()
    priorities = range(1, 17)
    assert (PRIORITY.minimum, PRIORITY.maximum) == (1, 16)
    for priority in random.Random(6).sample(priorities, 16):
        host.put(message(f"{priority}", priority=priority, group=group))
        host.advance(1)
    assert [each.priority for each in host.receive(16, timeout_s=0)] == list(priorities)
    host.advance(1)
    assert [host.receive(1)[0].priority for _ in priorities] == list(priorities)

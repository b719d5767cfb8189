"""Messages: what is sent comes back as it was; batches, sizes, order, delays, retention, counters."""

import json
import random
import uuid
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.commands import SentMessage
from veilmq.core.errors import MessageTooLong, SettingsConflict
from veilmq.core.limits import PRIORITY
from veilmq.core.messages import NewMessage


def bodies(host: Host, count: int = 10, timeout_s: int | None = None) -> list[str]:
    return [each.body for each in host.receive(count, timeout_s=timeout_s)]


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


def test_the_messages_of_a_batch_are_taken_and_refused_alone(host: Host) -> None:
    """The limit is the queue's own, for body and attributes together, and exact."""
    host.create(message_bytes_max=1_024)
    answers = host.put(*[NewMessage(body="x", size_bytes=size) for size in (1_025, 1_024, 2_000, 1)])
    assert [type(answer) for answer in answers] == [MessageTooLong, SentMessage, MessageTooLong, SentMessage]
    assert answers[0].bytes_max == 1_024
    assert host.counts() == (2, 0, 0)
    assert len({answer.id for answer in answers if isinstance(answer, SentMessage)}) == 2


def test_the_largest_message(host: Host) -> None:
    host.create()
    host.send("x" * 1_048_576)
    assert host.receive_one().body == "x" * 1_048_576


def test_a_timeout_of_0_gives_a_message_once_an_answer(host: Host) -> None:
    """A batch is chosen as a whole before any of it is visible again."""
    host.create()
    host.send("a", "b")
    for count in (1, 2, 3):
        got = host.receive(10, timeout_s=0)
        assert sorted(each.body for each in got) == ["a", "b"]
        assert [each.receive_count for each in got] == [count, count]


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


def test_retention_holds_over_a_restart_and_a_change_of_it(kept: Host) -> None:
    """Longer does not bring back what has ended; shorter ends at once."""
    kept.create(retention_s=60)
    kept.send("old")
    kept.advance(60_000)
    kept.set_queue(retention_s=600)
    assert kept.counts() == (0, 0, 0)
    kept.send("new")
    kept.advance(300_000)
    kept.crash()
    assert kept.counts() == (1, 0, 0)
    kept.set_queue(retention_s=300)
    assert kept.counts() == (0, 0, 0)
    assert bodies(kept) == []


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


# A queue's visibility rules: which timeout each message has where a receive names none.


TWELVE_HOURS_S = 43_200
RULES = json.dumps(
    {
        "version": 1,
        "classes": [
            {"name": "short", "visibility_timeout_s": 5},
            {"name": "middle", "visibility_timeout_s": 60},
            {"name": "long", "visibility_timeout_s": TWELVE_HOURS_S},
        ],
        "keys": {"quick": 0, "slow": 1},
        "default": 2,
    }
)
TIMEOUTS_MS = {"quick": 5_000, "slow": 60_000, None: TWELVE_HOURS_S * 1_000}


def send_kinds(host: Host, *kinds: str | None, group: str | None = None) -> None:
    """Send messages of these kinds, which are their bodies; in a FIFO queue each has a group of its own, or `group`."""
    fifo = host.do(commands.ShowQueue(queue=QUEUE)).settings.fifo
    messages = tuple(
        message(str(kind), kind=kind, group=group or (str(kind) if fifo else None), dedup_id=f"{group}{number}")
        for number, kind in enumerate(kinds)
    )
    assert all(isinstance(each, commands.SentMessage) for each in host.put(*messages))


def held_ms(host: Host, messages: list[commands.ReceivedMessage]) -> dict[str, int]:
    return {each.body: each.visible_at_ms - host.clock.now_ms() for each in messages}


@pytest.fixture(params=[False, True], ids=["standard", "fifo"])
def ruled(request: pytest.FixtureRequest, host: Host) -> Host:
    host.create(visibility_rules=RULES, fifo=request.param)
    return host


def test_each_message_is_hidden_for_the_timeout_of_its_class(ruled: Host) -> None:
    """In one answer; each is visible again exactly then."""
    send_kinds(ruled, "quick", "slow", None)
    first = ruled.receive(10)
    assert held_ms(ruled, first) == {str(kind): time_ms for kind, time_ms in TIMEOUTS_MS.items()}
    assert ruled.due_ms() == ruled.clock.now_ms() + 5_000
    ruled.advance(4_999)
    assert ruled.receive(10) == []
    ruled.advance(1)
    (again,) = ruled.receive(10)
    assert again.body == "quick"
    ruled.delete(again.receipt)
    ruled.advance(54_999)
    assert ruled.receive(10) == []
    ruled.advance(1)
    assert ruled.receive_one().body == "slow"


def test_a_receive_that_names_a_timeout_has_that(ruled: Host) -> None:
    send_kinds(ruled, "quick", "slow")
    assert held_ms(ruled, ruled.receive(10, timeout_s=0)) == {"quick": 0, "slow": 0}
    assert held_ms(ruled, ruled.receive(10, timeout_s=7)) == {"quick": 7_000, "slow": 7_000}


def test_no_lease_is_longer_than_twelve_hours_from_the_request(ruled: Host) -> None:
    """After a long poll that is less than the class has."""
    send_kinds(ruled, "slow", None)
    requested_at_ms = ruled.clock.now_ms() - 20_000
    received = ruled.do(commands.Receive(queue=QUEUE, count=10, requested_at_ms=requested_at_ms)).messages
    assert held_ms(ruled, received) == {"slow": 60_000, "None": TWELVE_HOURS_S * 1_000 - 20_000}


def test_text_that_is_no_routing_table_is_refused(host: Host) -> None:
    with pytest.raises(SettingsConflict) as refused:
        host.create(visibility_rules="{}")
    assert refused.value.setting == "visibility_rules"


def test_messages_of_a_group_of_a_standard_queue(host: Host) -> None:
    host.create(visibility_rules=RULES)
    send_kinds(host, "quick", "slow", group="g")
    assert held_ms(host, host.receive(10)) == {"quick": 5_000, "slow": 60_000}
    host.advance(5_000)
    assert held_ms(host, host.receive(10)) == {"quick": 60_000}


def test_a_group_waits_for_the_last_of_its_messages(host: Host) -> None:
    """Whichever class the others are of; the order is restored then."""
    host.create(visibility_rules=RULES, fifo=True)
    send_kinds(host, "slow", "quick", group="g")
    assert [each.body for each in host.receive(10)] == ["slow", "quick"]
    host.advance(5_000)
    assert host.receive(10) == []
    assert host.due_ms() == host.clock.now_ms() + 55_000
    host.advance(55_000)
    assert [each.body for each in host.receive(10)] == ["slow", "quick"]


def test_an_attempt_is_repeated_with_the_timeout_of_each_message(kept: Host) -> None:
    """The receipts are the same byte for byte, also after a restart, and the class is that of the first time."""
    kept.create(visibility_rules=RULES, fifo=True)
    send_kinds(kept, "quick", "slow", None)
    first = _attempt(kept)
    kept.advance(4_999)
    kept.reopen()
    again = _attempt(kept)
    assert [each.receipt for each in again] == [each.receipt for each in first]
    assert held_ms(kept, again) == {"quick": 5_000, "slow": 60_000, "None": TWELVE_HOURS_S * 1_000 - 4_999}
    assert [each.receipt for each in _attempt(kept)] == [each.receipt for each in first]
    assert held_ms(kept, _attempt(kept, timeout_s=7)) == {"quick": 7_000, "slow": 7_000, "None": 7_000}
    kept.advance(7_000)
    assert [each.receipt for each in _attempt(kept)] != [each.receipt for each in first]


def _attempt(host: Host, timeout_s: int | None = None) -> Any:
    return host.do(commands.Receive(queue=QUEUE, count=10, timeout_s=timeout_s, attempt_id="a")).messages


def test_a_dead_letter_begins_anew(host: Host) -> None:
    """Its queue's rules do not know how often it was received before."""
    host.create("000000000000/dead", visibility_rules=RULES)
    host.create(visibility_rules=RULES, dead_letter_queue="000000000000/dead", receives_max=1)
    send_kinds(host, "quick")
    host.receive()
    host.advance(5_000)
    assert host.receive() == []
    (received,) = host.receive(queue="000000000000/dead")
    assert held_ms(host, [received]) == {"quick": 5_000}
    assert received.receive_count == 2


# Priorities, 1 to 16: a lower number is received first, whatever was sent first; all of SQS's have the same one.


ALL = range(PRIORITY.minimum, PRIORITY.maximum + 1)


def send_priorities(host: Host, *priorities: int, delay_s: int = 0, group: str | None = None) -> None:
    for priority in priorities:
        host.put(message(f"{priority}", priority=priority, delay_s=delay_s, group=group))
        host.advance(1)


def received(host: Host, count: int = 16, **how: Any) -> list[int]:
    got = host.receive(count, **how)
    assert [each.body for each in got] == [f"{each.priority}" for each in got]
    return [each.priority for each in got]


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "fair"])
def test_the_sixteen_priorities_come_in_their_order(host: Host, group: str | None) -> None:
    """In one receive, and one after the other, with 1 before all and 16 behind all."""
    assert (PRIORITY.minimum, PRIORITY.maximum) == (1, 16)
    host.create()
    shuffled = random.Random(6).sample(ALL, 16)
    send_priorities(host, *shuffled, group=group)
    assert received(host, timeout_s=0) == list(ALL)
    host.advance(1)
    assert [received(host, 1)[0] for _ in ALL] == list(ALL)


def test_a_dead_letter_keeps_its_priority(host: Host) -> None:
    dead = "000000000000/dead"
    host.create(dead)
    host.create(dead_letter_queue=dead, receives_max=1)
    send_priorities(host, 12, 4)
    host.receive(2, timeout_s=0)
    host.receive(2)
    assert [each.priority for each in host.receive(2, queue=dead)] == [4, 12]

"""Priorities, 1 to 16: a lower number is received first, whatever was sent first; all of SQS's have the same one."""

import random
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.limits import PRIORITY
from veilmq.core.messages import NewMessage

ALL = range(PRIORITY.minimum, PRIORITY.maximum + 1)


def send(host: Host, *priorities: int, delay_s: int = 0, group: str | None = None) -> None:
    """Send a message of each priority, in this order, each at an instant of its own."""
    for priority in priorities:
        new = message(f"{priority}", priority=priority, delay_s=delay_s, group=group)
        host.do(commands.Send(queue=QUEUE, messages=(new,)))
        host.advance(1)


def received(host: Host, count: int = 16, **how: Any) -> list[int]:
    """Return the priorities of what a receive gives, which are the bodies too."""
    got = host.receive(count, **how)
    assert [each.body for each in got] == [f"{each.priority}" for each in got]
    return [each.priority for each in got]


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "fair"])
def test_the_sixteen_priorities_come_in_their_order(host: Host, group: str | None) -> None:
    """In one receive, and one after the other, with 1 before all and 16 behind all."""
    assert (PRIORITY.minimum, PRIORITY.maximum) == (1, 16)
    host.create()
    shuffled = random.Random(6).sample(ALL, 16)
    send(host, *shuffled, group=group)
    assert received(host, timeout_s=0) == list(ALL)
    host.advance(1)
    assert [received(host, 1)[0] for _ in ALL] == list(ALL)


@pytest.mark.parametrize("higher", ALL[:-1])
def test_each_priority_comes_before_the_next(host: Host, higher: int) -> None:
    """However much longer the other one has been visible."""
    host.create()
    send(host, higher + 1)
    host.advance(3_600_000)
    send(host, higher)
    assert received(host) == [higher, higher + 1]


def test_of_one_priority_what_was_visible_first_comes_first(host: Host) -> None:
    """Sends, ended delays and ended leases alike; a message without a priority is one of 8."""
    host.create()
    host.send("sent first", priority=3)
    host.send("delayed", priority=3, delay_s=1)
    host.send("other", priority=8)
    (first,) = host.receive(1, timeout_s=2)
    assert first.body == "sent first"
    host.advance(500)
    host.send("sent later", priority=3)
    host.advance(1_500)
    host.do(commands.Send(queue=QUEUE, messages=(NewMessage(body="of SQS", size_bytes=6),)))
    assert [each.body for each in host.receive(16)] == ["sent later", "delayed", "sent first", "other", "of SQS"]


def test_a_message_that_comes_back_has_its_priority(host: Host) -> None:
    """By the end of its lease, by a release, and after a delay."""
    host.create()
    send(host, 5, 9)
    assert received(host, timeout_s=1) == [5, 9]
    host.advance(1_000)
    send(host, 7, 2, delay_s=1)
    host.advance(1_000)
    assert received(host) == [2, 5, 7, 9]


def test_priorities_outlive_restarts(kept: Host) -> None:
    """In order, whether fresh, returned or delayed."""
    kept.create()
    send(kept, *reversed(ALL))
    kept.receive(5, timeout_s=1)
    kept.crash()
    kept.advance(1_000)
    assert received(kept, 3, timeout_s=1) == [1, 2, 3]
    kept.reopen()
    kept.advance(1_000)
    assert received(kept) == list(ALL)


def test_a_higher_priority_may_starve_a_lower_one(host: Host) -> None:
    """That is what it is for: as long as there is one, the other waits."""
    host.create()
    send(host, 16)
    for _ in range(20):
        send(host, 1)
        assert received(host, 1) == [1]
    assert received(host) == [16]


def test_a_dead_letter_keeps_its_priority(host: Host) -> None:
    """It comes first in the other queue too."""
    dead = "000000000000/dead"
    host.create(dead)
    host.create(dead_letter_queue=dead, receives_max=1)
    send(host, 12, 4)
    host.receive(2, timeout_s=0)
    host.receive(2)
    assert [each.priority for each in host.receive(2, queue=dead)] == [4, 12]

"""Peeks: the messages that a receive would return, without any change."""

from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.commands import Peek, PeekedMessage
from veilmq.core.errors import QueueNotFound
from veilmq.core.messages import NewMessage, Properties, encode_properties

DEAD = "000000000000/dead"


def peek(host: Host, count: int = 10, queue: str = QUEUE) -> list[PeekedMessage]:
    peeked: list[PeekedMessage] = host.do(Peek(queue=queue, count=count)).messages
    return peeked


def bodies(host: Host, count: int = 10) -> list[str]:
    return [each.body for each in peek(host, count)]


def send(host: Host, *bodies: str, **fields: Any) -> None:
    groups = {"group": None} if fields.pop("plain", False) else {}
    host.put(*[message(body, **{"group": body[0], "dedup_id": body, **fields, **groups}) for body in bodies])


def test_a_peek_shows_all_fields_of_a_message(host: Host) -> None:
    host.create()
    new = NewMessage(body="a", size_bytes=1, properties=encode_properties(Properties(group="g")), priority=3)
    (sent,) = host.put(new)
    first_ms = host.clock.now_ms()
    peeked = PeekedMessage(
        id=sent.id,
        body="a",
        properties=new.properties,
        sent_at_ms=first_ms,
        first_received_at_ms=None,
        receive_count=0,
        priority=3,
    )
    assert peek(host) == [peeked]
    host.advance(5)
    host.receive(1, timeout_s=1)
    assert peek(host) == []
    host.advance(1_000)
    (again,) = peek(host)
    assert (again.receive_count, again.first_received_at_ms, again.sent_at_ms) == (1, first_ms + 5, first_ms)


def test_a_peek_returns_at_most_count_messages(host: Host) -> None:
    host.create()
    host.send(*"abcde")
    assert [each.body for each in host.do(Peek(queue=QUEUE)).messages] == ["a"]
    assert [len(peek(host, count)) for count in (0, 1, 4, 5, 16)] == [0, 1, 4, 5, 5]


def test_a_peek_returns_the_base64_setting(host: Host) -> None:
    host.create(smq_base64=True)
    assert host.do(Peek(queue=QUEUE)).smq_base64
    host.set_queue(smq_base64=False)
    assert not host.do(Peek(queue=QUEUE)).smq_base64


def test_a_peek_at_a_missing_queue_fails(host: Host) -> None:
    with pytest.raises(QueueNotFound):
        peek(host)


@pytest.mark.parametrize("settings", [{}, {"fifo": True}], ids=["standard", "fifo"])
@pytest.mark.differs_on_postgres("reads the folder of the store")
def test_a_peek_writes_nothing(durable: Host, settings: dict[str, Any]) -> None:
    durable.create(**settings)
    send(durable, "a1", "b1", "a2", "c1", "c2")
    send(durable, "d1", delay_s=1)
    send(durable, "plain1", "plain2", plain=not settings)
    durable.receive(3, timeout_s=1)
    durable.advance(1_000)
    durable.counts()
    assert durable.folder is not None
    before = {path: path.read_bytes() for path in durable.folder.iterdir()}
    for count in (1, 3, 16):
        assert peek(durable, count)
    assert {path: path.read_bytes() for path in durable.folder.iterdir()} == before


@pytest.mark.differs_on_postgres("skips any number of delayed messages")
def test_a_peek_skips_delayed_messages_of_a_group_up_to_a_limit(host: Host) -> None:
    host.create(fifo=True)
    send(host, *(f"a{number:03}" for number in range(99)), delay_s=5)
    send(host, "a_first")
    send(host, "a_late", delay_s=5)
    send(host, "a_second")
    later = [f"a_later{number}" for number in range(8)]
    send(host, *later, delay_s=5)
    send(host, "a_third")
    assert bodies(host) == ["a_first", "a_second"]
    assert host.bodies(10, timeout_s=0) == ["a_first", "a_second"]
    host.advance(5_000)
    peeked = bodies(host, 200)
    assert peeked == [*sorted(peeked[:99]), "a_first", "a_late", "a_second", *later, "a_third"]
    assert host.bodies(200) == peeked


def test_a_peek_does_not_show_messages_that_a_receive_would_dead_letter(host: Host) -> None:
    host.create(DEAD)
    host.create(dead_letter_queue=DEAD, receives_max=1)
    host.send("a", "b")
    host.receive(1, timeout_s=0)
    assert bodies(host) == ["b"]
    assert host.counts() == (2, 0, 0)
    host.set_queue(dead_letter_queue="", receives_max=0)
    assert sorted(bodies(host)) == ["a", "b"]
    host.set_queue(dead_letter_queue=DEAD, receives_max=1)
    sent_at_ms = host.clock.now_ms()
    host.advance(7)
    host.receive(10)
    (letter,) = peek(host, queue=DEAD)
    assert (letter.body, letter.source, letter.receive_count) == ("a", QUEUE, 1)
    assert (letter.sent_at_ms, letter.first_received_at_ms) == (sent_at_ms, sent_at_ms)


def test_a_peek_makes_no_group_noisy(host: Host) -> None:
    """A group that exceeds its share only during the peek is quiet at the next receive."""
    host.create()
    send(host, *(f"n{number:03}" for number in range(31)))
    taken = host.receive(30, timeout_s=60)
    peek(host)
    host.delete(*(each.receipt for each in taken))
    host.advance(1)
    send(host, "q1")
    assert host.bodies(10) == ["n030", "q1"]


@pytest.mark.differs_on_postgres("reads the folder of the store")
def test_a_peek_after_a_group_became_quiet_writes_nothing(durable: Host) -> None:
    durable.create()
    send(durable, *(f"n{number:03}" for number in range(40)))
    durable.receive(35, timeout_s=600)
    send(durable, "q1")
    assert durable.receive(1, timeout_s=600)[0].body == "q1"
    durable.advance(301_000)
    send(durable, "q2")
    durable.counts()
    assert durable.folder is not None
    before = {path: path.read_bytes() for path in durable.folder.iterdir()}
    assert bodies(durable, 2) == ["n035", "n036"]
    assert {path: path.read_bytes() for path in durable.folder.iterdir()} == before


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_peek_is_bounded_by_bytes(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    sent = [f"{number:02}" for number in range(20)]
    for body in sent:
        send(host, body)
    peeked = {
        bytes_max: [each.body for each in host.do(Peek(queue=QUEUE, count=18, bytes_max=bytes_max)).messages]
        for bytes_max in (1, 2, 3, 24, 1_000)
    }
    assert peeked == {1: sent[:1], 2: sent[:1], 3: sent[:2], 24: sent[:12], 1_000: sent[:18]}

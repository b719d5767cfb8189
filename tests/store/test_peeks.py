"""A peek shows what a receive would give, in its order, and nothing changes by it."""

from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.commands import Peek, PeekedMessage
from veilmq.core.errors import QueueNotFound
from veilmq.core.messages import NewMessage, Properties, encode_properties

DEAD = "000000000000/dead"


def peek(host: Host, count: int = 10, queue: str = QUEUE) -> list[PeekedMessage]:
    shown: list[PeekedMessage] = host.do(Peek(queue=queue, count=count)).messages
    return shown


def bodies(host: Host, count: int = 10) -> list[str]:
    return [each.body for each in peek(host, count)]


def send(host: Host, *bodies: str, **terms: Any) -> None:
    groups = {"group": None} if terms.pop("plain", False) else {}
    host.put(*[message(body, **{"group": body[0], "dedup_id": body, **terms, **groups}) for body in bodies])


def test_a_message_is_shown_as_it_is(host: Host) -> None:
    host.create()
    new = NewMessage(body="a", size_bytes=1, properties=encode_properties(Properties(group="g")), priority=3)
    (sent,) = host.put(new)
    first_ms = host.clock.now_ms()
    shown = PeekedMessage(
        id=sent.id,
        body="a",
        properties=new.properties,
        sent_at_ms=first_ms,
        first_received_at_ms=None,
        receive_count=0,
        priority=3,
    )
    assert peek(host) == [shown]
    host.advance(5)
    host.receive(1, timeout_s=1)
    assert peek(host) == []
    host.advance(1_000)
    (again,) = peek(host)
    assert (again.receive_count, again.first_received_at_ms, again.sent_at_ms) == (1, first_ms + 5, first_ms)


def test_a_peek_shows_no_more_than_was_asked(host: Host) -> None:
    host.create()
    host.send(*"abcde")
    assert [each.body for each in host.do(Peek(queue=QUEUE)).messages] == ["a"]
    assert [len(peek(host, count)) for count in (0, 1, 4, 5, 16)] == [0, 1, 4, 5, 5]


def test_the_setting_is_told(host: Host) -> None:
    host.create(smq_base64=True)
    assert host.do(Peek(queue=QUEUE)).smq_base64
    host.set_queue(smq_base64=False)
    assert not host.do(Peek(queue=QUEUE)).smq_base64


def test_a_queue_that_does_not_exist(host: Host) -> None:
    with pytest.raises(QueueNotFound):
        peek(host)


@pytest.mark.parametrize("settings", [{}, {"fifo": True}], ids=["standard", "fifo"])
@pytest.mark.differs_on_postgres("looks into the folder of the store")
def test_a_peek_writes_nothing(kept: Host, settings: dict[str, Any]) -> None:
    """Not a byte, whatever the lanes have: returned and delayed messages, and groups."""
    kept.create(**settings)
    send(kept, "a1", "b1", "a2", "c1", "c2")
    send(kept, "d1", delay_s=1)
    send(kept, "plain1", "plain2", plain=not settings)
    kept.receive(3, timeout_s=1)
    kept.advance(1_000)
    kept.counts()
    assert kept.folder is not None
    before = {path: path.read_bytes() for path in kept.folder.iterdir()}
    for count in (1, 3, 16):
        assert peek(kept, count)
    assert {path: path.read_bytes() for path in kept.folder.iterdir()} == before


@pytest.mark.differs_on_postgres("passes over any number of delayed messages")
def test_delayed_messages_of_a_group_are_passed_over(host: Host) -> None:
    """As by a receive, until so many are passed over that it stops there."""
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
    shown = bodies(host, 200)
    assert shown == [*sorted(shown[:99]), "a_first", "a_late", "a_second", *later, "a_third"]
    assert host.bodies(200) == shown


def test_what_a_receive_would_bury_is_not_shown(host: Host) -> None:
    """Where the queue has a place to bury it; in that place it is shown with its past."""
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
    """A group that takes too much only while somebody looks is quiet when a receive comes."""
    host.create()
    send(host, *(f"n{number:03}" for number in range(31)))
    taken = host.receive(30, timeout_s=60)
    peek(host)
    host.delete(*(each.receipt for each in taken))
    host.advance(1)
    send(host, "q1")
    assert host.bodies(10) == ["n030", "q1"]


@pytest.mark.differs_on_postgres("looks into the folder of the store")
def test_a_peek_that_finds_a_group_quiet_again_writes_nothing(kept: Host) -> None:
    kept.create()
    send(kept, *(f"n{number:03}" for number in range(40)))
    kept.receive(35, timeout_s=600)
    send(kept, "q1")
    assert kept.receive(1, timeout_s=600)[0].body == "q1"
    kept.advance(301_000)
    send(kept, "q2")
    kept.counts()
    assert kept.folder is not None
    before = {path: path.read_bytes() for path in kept.folder.iterdir()}
    assert bodies(kept, 2) == ["n035", "n036"]
    assert {path: path.read_bytes() for path in kept.folder.iterdir()} == before


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_peek_ends_where_bodies_become_long(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    sent = [f"{number:02}" for number in range(20)]
    for body in sent:
        send(host, body)
    shown = {
        bytes_max: [each.body for each in host.do(Peek(queue=QUEUE, count=18, bytes_max=bytes_max)).messages]
        for bytes_max in (1, 2, 3, 24, 1_000)
    }
    assert shown == {1: sent[:1], 2: sent[:1], 3: sent[:2], 24: sent[:12], 1_000: sent[:18]}

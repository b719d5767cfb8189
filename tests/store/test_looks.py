"""A look at a queue shows every message with its state, and changes nothing."""

from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.commands import InspectQueue, MessageState, SeenMessage
from veilmq.core.errors import QueueNotFound
from veilmq.core.messages import decode_properties

VISIBLE, IN_FLIGHT, DELAYED = MessageState


def look(host: Host, **narrowed: Any) -> list[SeenMessage]:
    """Return what a look at the queue shows."""
    seen: list[SeenMessage] = host.do(InspectQueue(queue=QUEUE, **narrowed))
    return seen


def bodies(host: Host, **narrowed: Any) -> list[str]:
    """Return the bodies that a look shows."""
    return [seen.body for seen in look(host, **narrowed)]


def send(host: Host, *bodies: str, group: str = "g", **terms: Any) -> None:
    """Send messages of a group, each told apart by its body."""
    new = tuple(message(body, group=group, dedup_id=body, **terms) for body in bodies)
    host.do(commands.Send(queue=QUEUE, messages=new))


def states(host: Host) -> list[tuple[str, str, int]]:
    """Return body, state and receives of each message."""
    return [(seen.body, seen.state.value, seen.receive_count) for seen in look(host)]


def test_each_state(host: Host) -> None:
    """Received, waiting and delayed; in the order of sending, whichever state; and again when time has passed."""
    host.create(visibility_timeout_s=30)
    host.send("a", "b")
    host.advance(1)
    host.send("late", delay_s=5)
    host.advance(1)
    host.send("c")
    (first,) = host.receive(1)
    assert states(host) == [("a", "in flight", 1), ("b", "visible", 0), ("late", "delayed", 0), ("c", "visible", 0)]
    assert look(host)[0].visible_at_ms == first.visible_at_ms
    assert look(host)[1].visible_at_ms is None
    host.advance(30_000)
    assert states(host) == [("a", "visible", 1), ("b", "visible", 0), ("late", "visible", 0), ("c", "visible", 0)]


def test_a_look_changes_nothing(host: Host) -> None:
    """Neither counts nor the receive count of what is received next."""
    host.create()
    host.send("a")
    before = host.counts()
    look(host)
    look(host)
    assert host.counts() == before
    assert host.receive_one().receive_count == 1


def test_deleted_and_expired_messages_are_not_shown(host: Host) -> None:
    """Nor those of a queue that was purged."""
    host.create(retention_s=60)
    host.send("deleted", "kept")
    (received,) = host.receive(1)
    host.do(commands.Delete(queue=QUEUE, receipts=(received.receipt,)))
    assert [seen.body for seen in look(host)] == ["kept"]
    host.advance(60_000)
    assert look(host) == []
    host.send("purged")
    host.do(commands.PurgeQueue(queue=QUEUE))
    assert look(host) == []


def test_a_look_shows_what_a_message_carries(host: Host) -> None:
    """Its id and its properties, here of a message in a group."""
    host.create(fifo=True)
    (sent,) = host.do(commands.Send(queue=QUEUE, messages=(message("a", group="g", dedup_id="d", kind="resize"),)))
    (seen,) = look(host)
    assert (seen.id, seen.state) == (sent.id, MessageState.VISIBLE)
    assert decode_properties(seen.properties).attributes["Type"].text == "resize"


def test_claimed_messages_are_in_flight(host: Host) -> None:
    """Those without a lease of their own, too."""
    host.create()
    host.send("a", "b", "c")
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    host.do(Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=opened.last + 1, messages_max=2))
    assert [each[:2] for each in states(host)] == [("a", "in flight"), ("b", "in flight"), ("c", "visible")]
    assert look(host)[0].visible_at_ms is None


def test_a_look_is_bounded(host: Host) -> None:
    """By the number asked for; and needs a queue."""
    host.create()
    host.send("a", "b", "c")
    assert [seen.body for seen in look(host, count=2)] == ["a", "b"]
    with pytest.raises(QueueNotFound):
        host.do(InspectQueue(queue="000000000000/nobody"))


def test_a_look_at_one_state(host: Host) -> None:
    """In the order in which each became or becomes visible; others do not count."""
    host.create(visibility_timeout_s=30)
    host.send("a", "b", "c", "d")
    host.send("later", delay_s=9)
    host.send("late", delay_s=5)
    host.receive(1, timeout_s=20)
    host.receive(1, timeout_s=10)
    host.advance(1)
    host.receive(1, timeout_s=0)
    assert bodies(host, state=VISIBLE) == ["d", "c"]
    assert bodies(host, state=IN_FLIGHT) == ["b", "a"]
    assert bodies(host, state=DELAYED) == ["late", "later"]
    assert [bodies(host, state=state, count=1) for state in MessageState] == [["d"], ["b"], ["late"]]
    host.advance(10_000)
    assert [bodies(host, state=state) for state in MessageState] == [["d", "c", "late", "later", "b"], ["a"], []]


@pytest.mark.parametrize("group", [None, "g"], ids=["plain", "grouped"])
def test_priorities_are_shown(host: Host, group: str | None) -> None:
    """Whatever the state, and without the order of priorities."""
    host.create()
    for body, priority in (("low", 12), ("high", 2)):
        host.do(commands.Send(queue=QUEUE, messages=(message(body, group=group, priority=priority),)))
        host.advance(1)
    shown = [(seen.body, seen.priority, seen.group) for seen in look(host, state=VISIBLE)]
    assert shown == [("low", 12, group), ("high", 2, group)]
    (high,) = host.receive(1)
    assert (high.body, [(seen.body, seen.priority) for seen in look(host, state=IN_FLIGHT)]) == ("high", [("high", 2)])


def test_one_state_of_a_fifo_queue(host: Host) -> None:
    """A message that its group holds back is visible nevertheless."""
    host.create(fifo=True)
    send(host, "a1", "a2", group="a")
    send(host, "b1", group="b")
    host.receive(1, timeout_s=30)
    assert [bodies(host, state=state) for state in MessageState] == [["a2", "b1"], ["a1"], []]
    host.advance(5_000)
    host.do(commands.SetQueue(queue=QUEUE, settings={"delay_s": 5}))
    send(host, "a3", group="a")
    assert [bodies(host, state=state) for state in MessageState] == [["a2", "b1"], ["a1"], ["a3"]]
    (seen,) = look(host, state=DELAYED)
    assert (seen.group, seen.visible_at_ms) == ("a", seen.sent_at_ms + 5_000)
    host.advance(30_000)
    assert bodies(host, state=VISIBLE) == ["a2", "b1", "a3", "a1"]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_claimed_messages_come_last_among_those_in_flight(host: Host, *, fifo: bool) -> None:
    """They have no lease to tell of."""
    host.create(fifo=fifo)
    for body in ("a", "b", "c"):
        send(host, body, group=body)
    host.receive(1)
    host.receive(1, timeout_s=0)
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    host.do(Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=opened.last + 1, messages_max=2))
    shown = look(host, state=IN_FLIGHT, receipts=True)
    assert shown[0].body == "a"
    assert shown[0].receipt is not None
    assert sorted(each.body for each in shown[1:]) == ["b", "c"]
    for each in shown[1:]:
        assert (each.received_at_ms, each.first_received_at_ms, each.visible_at_ms, each.receipt) == (None,) * 4
    assert bodies(host, state=IN_FLIGHT, count=1) == ["a"]
    assert bodies(host, state=VISIBLE) == []


def test_claimed_messages_never_received_before_are_shown(host: Host) -> None:
    """Those that have no lease, too."""
    host.create()
    host.send("a", "b", "c")
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    host.do(Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=opened.last + 1, messages_max=2))
    assert sorted(bodies(host, state=IN_FLIGHT)) == ["a", "b"]
    assert len(bodies(host, state=IN_FLIGHT, count=1)) == 1
    assert bodies(host, state=VISIBLE) == ["c"]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_when_a_message_was_received(host: Host, *, fifo: bool) -> None:
    """For the last time, and for the first."""
    host.create(fifo=fifo)
    send(host, "a")
    assert [(seen.received_at_ms, seen.first_received_at_ms) for seen in look(host)] == [(None, None)]
    host.advance(1_000)
    first_ms = host.clock.now_ms()
    host.receive(1, timeout_s=1)
    assert [(seen.received_at_ms, seen.first_received_at_ms) for seen in look(host)] == [(first_ms, first_ms)]
    host.advance(2_000)
    host.receive(1)
    assert [(seen.received_at_ms, seen.first_received_at_ms) for seen in look(host)] == [(first_ms + 2_000, first_ms)]


def test_what_a_dead_letter_was(host: Host) -> None:
    """Its first receive and its receives are those of the queue that it came from."""
    dead = "000000000000/dead"
    host.create(dead)
    host.create(dead_letter_queue=dead, receives_max=1)
    host.send("a")
    first_ms = host.clock.now_ms()
    host.advance(1)
    host.receive(1, timeout_s=1)
    host.advance(1_000)
    host.receive(1)
    (seen,) = host.do(InspectQueue(queue=dead, state=VISIBLE))
    assert (seen.receive_count, seen.sent_at_ms, seen.received_at_ms) == (1, first_ms, None)
    assert seen.first_received_at_ms == first_ms + 1
    host.advance(1_000)
    host.receive(1, queue=dead)
    (seen,) = host.do(InspectQueue(queue=dead, state=IN_FLIGHT))
    assert (seen.receive_count, seen.received_at_ms) == (2, first_ms + 2_001)


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_the_receipt_of_a_look_is_as_good_as_its_holders(host: Host, *, fifo: bool) -> None:
    """It extends, releases and deletes, also after the deadline was moved; both go on to act."""
    host.create(fifo=fifo)
    send(host, "a")
    holders = host.receive_one()
    (seen,) = look(host, receipts=True)
    assert seen.receipt is not None
    assert host.change(seen.receipt, 60).visible_at_ms == host.clock.now_ms() + 60_000
    assert host.change(holders.receipt, 90).visible_at_ms == host.clock.now_ms() + 90_000
    (again,) = look(host, receipts=True, state=IN_FLIGHT)
    assert again.receipt is not None
    host.change(again.receipt, 0)
    assert host.receive_one().receive_count == 2
    (last,) = look(host, receipts=True, state=IN_FLIGHT)
    assert last.receipt is not None
    assert host.delete(again.receipt)[0].value != "live"
    assert host.delete(last.receipt)[0].value == "live"
    assert look(host) == []


def test_a_receipt_that_was_renewed(host: Host) -> None:
    """The look has the new one, too."""
    host.create()
    host.send("a")
    renewed = host.change(host.receive_one().receipt, 60, renew_receipt=True)
    (seen,) = look(host, receipts=True)
    assert seen.receipt == renewed.receipt
    assert host.delete(renewed.receipt)[0].value == "live"


def test_nobody_has_a_receipt_of_what_is_not_in_flight(host: Host) -> None:
    """Nor does a look give any that was not asked for."""
    host.create()
    host.send("a", "b")
    host.send("late", delay_s=5)
    host.receive(1, timeout_s=0)
    host.receive(1, timeout_s=5)
    assert [seen.receipt is None for seen in look(host, receipts=True)] == [
        seen.state is not IN_FLIGHT for seen in look(host)
    ]
    assert {seen.receipt for seen in look(host)} == {None}


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_look_ends_where_bodies_become_long(host: Host, *, fifo: bool) -> None:
    """With the message that brings them there, counted in bytes, whichever messages are looked at."""
    host.create(fifo=fifo)
    sent = [f"{number:02}" + "\u00e4" * 99 for number in range(20)]
    for body in sent:
        send(host, body, group=body)
    assert bodies(host, bytes_max=401) == sent[:3]
    assert bodies(host, bytes_max=400) == sent[:2]
    assert bodies(host, bytes_max=1) == sent[:1]
    assert bodies(host, bytes_max=2_001, state=VISIBLE) == sent[:11]
    assert bodies(host, bytes_max=10_000, state=VISIBLE) == sent
    assert bodies(host, bytes_max=401, state=DELAYED) == []
    host.receive(10)
    assert bodies(host, bytes_max=401, state=IN_FLIGHT, count=9) == sent[:3]
    assert bodies(host, bytes_max=10_000, state=IN_FLIGHT, count=9) == sent[:9]


@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_one_message_is_shown_alone(host: Host, *, fifo: bool) -> None:
    """Whatever stands before it."""
    host.create(fifo=fifo)
    for body in ("a", "b", "c", "d"):
        send(host, body, group=body)
    host.receive(2)
    ids = {seen.body: seen.id for seen in look(host)}
    for body, state in (("b", IN_FLIGHT), ("d", VISIBLE), ("d", None)):
        assert bodies(host, id=ids[body], state=state, bytes_max=1) == [body]
    assert bodies(host, id=ids["a"], state=VISIBLE) == []
    assert bodies(host, id=ids["d"], count=3) == []
    assert bodies(host, id=bytes(16)) == []

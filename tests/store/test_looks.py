"""A look at a queue shows every message with its state, and changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.claims import AcknowledgeClaims, Claim, OpenSource, Publish, ReleaseClaim, Stage
from veilmq.core.commands import InspectLeases, InspectQueue, MessageState, SeenLease, SeenMessage
from veilmq.core.errors import QueueNotFound
from veilmq.core.messages import decode_properties
from veilmq.core.topics import CreateTopic, PublishToTopic, Subscribe, Subscription

VISIBLE, IN_FLIGHT, DELAYED = MessageState
KINDS = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])


def look(host: Host, **narrowed: Any) -> list[SeenMessage]:
    seen: list[SeenMessage] = host.do(InspectQueue(queue=QUEUE, **narrowed))
    return seen


def bodies(host: Host, **narrowed: Any) -> list[str]:
    return [seen.body for seen in look(host, **narrowed)]


def send(host: Host, *bodies: str, group: str = "g", **terms: Any) -> None:
    host.put(*(message(body, group=group, dedup_id=body, **terms) for body in bodies))


def states(host: Host) -> list[tuple[str, str, int]]:
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


def test_a_look_shows_what_a_message_carries(host: Host) -> None:
    host.create(fifo=True)
    (sent,) = host.put(message("a", group="g", dedup_id="d", kind="resize"))
    (seen,) = look(host)
    assert (seen.id, seen.state) == (sent.id, MessageState.VISIBLE)
    assert decode_properties(seen.properties).attributes["Type"].text == "resize"


def test_a_look_is_bounded(host: Host) -> None:
    host.create()
    host.send("a", "b", "c")
    assert [seen.body for seen in look(host, count=2)] == ["a", "b"]
    for command in (InspectQueue(queue="000000000000/nobody"), InspectLeases(queue="000000000000/nobody")):
        with pytest.raises(QueueNotFound):
            host.do(command)


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
    host.create()
    for body, priority in (("low", 12), ("high", 2)):
        host.put(message(body, group=group, priority=priority))
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
    host.set_queue(delay_s=5)
    send(host, "a3", group="a")
    assert [bodies(host, state=state) for state in MessageState] == [["a2", "b1"], ["a1"], ["a3"]]
    (seen,) = look(host, state=DELAYED)
    assert (seen.group, seen.visible_at_ms) == ("a", seen.sent_at_ms + 5_000)
    host.advance(30_000)
    assert bodies(host, state=VISIBLE) == ["a2", "b1", "a3", "a1"]
    host.purge()
    host.advance(60_000)
    host.set_queue(delay_s=0)
    send(host, "c1", group="c")
    send(host, "c2", group="c", delay_s=0)
    send(host, "d1", group="d")
    send(host, "d2", group="d", delay_s=0)
    assert bodies(host, state=VISIBLE) == ["c1", "c2", "d1", "d2"]


@KINDS
def test_claimed_messages_come_last_among_those_in_flight(host: Host, *, fifo: bool) -> None:
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


@KINDS
def test_when_a_message_was_received(host: Host, *, fifo: bool) -> None:
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


@KINDS
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


@KINDS
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


@KINDS
def test_one_message_is_shown_alone(host: Host, *, fifo: bool) -> None:
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


# A look at leases shows who holds what until when, those that end first first.


def leases(host: Host, **narrowed: Any) -> list[SeenLease]:
    seen: list[SeenLease] = host.do(InspectLeases(queue=QUEUE, **narrowed))
    return seen


def send_for_ids(host: Host, *names: str) -> dict[str, bytes]:
    sent = host.put(*(message(name, group=f"group {name}", dedup_id=name) for name in names))
    return {name: each.id for name, each in zip(names, sent, strict=True)}


@KINDS
def test_a_lease_from_its_receive_to_its_end(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo, event_log="closed")
    ids = send_for_ids(host, "a")
    assert leases(host) == []
    begun_ms = host.clock.now_ms()
    first = host.receive_one(timeout_s=30)
    (seen,) = leases(host)
    assert (seen.message_id, seen.receive_count, seen.group) == (ids["a"], 1, "group a")
    assert (seen.received_at_ms, seen.visible_at_ms, seen.extensions) == (begun_ms, begun_ms + 30_000, 0)
    host.advance(10_000)
    host.change(first.receipt, 60)
    host.change(first.receipt, 50)
    (moved,) = leases(host)
    assert (moved.received_at_ms, moved.visible_at_ms, moved.extensions) == (begun_ms, begun_ms + 60_000, 2)
    assert moved.generation == seen.generation
    host.advance(50_000)
    assert leases(host) == []
    second = host.receive_one(timeout_s=30)
    (again,) = leases(host)
    assert (again.received_at_ms, again.extensions, again.receive_count) == (begun_ms + 60_000, 0, 2)
    assert again.generation != seen.generation
    host.delete(second.receipt)
    assert leases(host) == []


@KINDS
def test_those_that_end_first_come_first(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    ids = send_for_ids(host, "a", "b", "c", "d")
    for timeout_s in (30, 10, 20):
        host.receive(1, timeout_s=timeout_s)
    in_order = [ids[name] for name in ("b", "c", "a")]
    assert [seen.message_id for seen in leases(host)] == in_order
    assert [seen.message_id for seen in leases(host, count=2)] == in_order[:2]


def test_nobody_has_counted_extensions_without_an_event_log(host: Host) -> None:
    host.create(event_log="off")
    host.send("a")
    host.change(host.receive_one().receipt, 60)
    (seen,) = leases(host)
    assert (seen.extensions, seen.group) == (None, None)


@KINDS
@pytest.mark.parametrize("log", ["off", "closed"])
def test_a_wait_before_the_first_receive_is_not_of_the_lease(host: Host, log: str, *, fifo: bool) -> None:
    host.create(fifo=fifo, event_log=log)
    asked_ms = host.clock.now_ms()
    host.advance(5_000)
    send_for_ids(host, "a")
    host.do(commands.Receive(queue=QUEUE, count=1, timeout_s=1, requested_at_ms=asked_ms))
    assert [seen.received_at_ms for seen in leases(host)] == [asked_ms + 5_000]
    asked_ms = host.clock.now_ms()
    host.advance(5_000)
    host.do(commands.Receive(queue=QUEUE, count=1, timeout_s=1, requested_at_ms=asked_ms))
    waited_ms = 5_000 if log == "closed" else 0
    assert [seen.received_at_ms for seen in leases(host)] == [asked_ms + waited_ms]


@KINDS
@pytest.mark.parametrize("reader", [False, True], ids=["released", "claimed"])
def test_a_message_that_was_asked_for_is_told_of_while_it_is_there(host: Host, *, fifo: bool, reader: bool) -> None:
    """Whatever has become of its lease; what is in flight is told once."""
    host.create(fifo=fifo, retention_s=3_600)
    ids = send_for_ids(host, "deleted", "returned", "again", "held")
    receipts = {each.body: each.receipt for each in host.receive(4)}
    before = {each.message_id: each for each in leases(host)}
    also = tuple(each.position for each in before.values())
    assert leases(host, also=also) == leases(host)
    host.advance(1)
    host.delete(receipts["deleted"])
    host.change(receipts["again"], 0)
    host.receive(1, timeout_s=60)
    host.change(receipts["returned"], 0)
    if reader:
        opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
        host.do(Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=1, messages_max=1))
    told = leases(host, also=also)
    assert [seen.message_id for seen in told] == [ids["held"], ids["again"], ids["returned"]]
    assert [seen.generation == before[seen.message_id].generation for seen in told] == [True, False, not reader]
    assert told[2].visible_at_ms == host.clock.now_ms()
    assert [seen.group for seen in told] == ["group held", "group again", "group returned"]
    assert len(leases(host)) == 2
    host.purge()
    assert leases(host, also=also) == []


def test_a_message_past_its_retention_is_not_told_of(host: Host) -> None:
    host.create(retention_s=60)
    send_for_ids(host, "a")
    host.receive(1, timeout_s=900)
    (seen,) = leases(host)
    host.advance(59_999)
    assert leases(host, also=(seen.position,)) == [seen]
    host.advance(1)
    assert leases(host, also=(seen.position, 1 << 50)) == []


# What has passed through a queue since the engine was opened: messages sent, received and deleted, received again.


OTHER = "000000000000/other"


def totals(host: Host, queue: str = QUEUE) -> tuple[int, int, int, int]:
    counts = host.do(commands.ShowQueue(queue=queue, counts=True)).counts
    return counts.sent, counts.received, counts.deleted, counts.redelivered


TOTALS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "nothing": ("", (0, 0, 0, 0)),
    "each message, as soon as it is sent": ("send a b, delayed c, urgent d", (4, 0, 0, 0)),
    "each receive of it": ("send a b c, receive 2 1", (3, 2, 0, 0)),
    "a receive that gives nothing": ("receive 2 1", (0, 0, 0, 0)),
    "every receive but the first": ("send a b, receive 2 0, receive 2 0, receive 1 30", (2, 5, 0, 3)),
    "no deletion that deletes nothing": ("send a b c, receive 2 1, delete a, delete a", (3, 2, 1, 0)),
    "nor one by an earlier receipt": (
        "send a b c, receive 2 1, delete a, wait 1000, receive 10 30, delete b, receive 10 30",
        (3, 4, 1, 1),
    ),
    "no purge, after which it goes on": ("send a b, receive 2 0, receive 1 9, purge, send c", (3, 3, 0, 1)),
    "nor the end of retention": ("send a b, receive 1 600, wait 60000", (2, 1, 0, 0)),
    "another queue of the name": ("send a, receive 1 0, receive 1 9, delete a, drop, create", (0, 0, 0, 0)),
}
"""What counts → what is done, and how often messages were sent, received, deleted, and received again."""


@KINDS
@pytest.mark.parametrize("what", TOTALS)
def test_what_counts(host: Host, what: str, *, fifo: bool) -> None:
    steps, expected = TOTALS[what]
    host.create(fifo=fifo, retention_s=60)
    receipts: dict[str, str] = {}
    for verb, *rest in map(str.split, steps.split(", ") if steps else ()):
        match verb:
            case "send" | "delayed" | "urgent":
                terms: dict[str, Any] = {"delayed": {"delay_s": 30}, "urgent": {"priority": 1}}.get(verb, {})
                host.put(*(message(name, group=name if fifo else None, dedup_id=name, **terms) for name in rest))
            case "receive":
                for each in host.receive(int(rest[0]), timeout_s=int(rest[1])):
                    receipts.setdefault(each.body, each.receipt)
            case "delete":
                host.delete(receipts[rest[0]])
            case "wait":
                host.advance(int(rest[0]))
            case "create":
                host.create(fifo=fifo)
            case _:
                getattr(host, verb)()
    assert totals(host) == expected


def test_a_duplicate_and_a_receive_that_is_repeated_count_once(host: Host) -> None:
    host.create(fifo=True, message_bytes_max=1_024)
    host.put(*(message(name, group=name, dedup_id=name) for name in ("a", "a", "b", "x" * 1_025)))
    for _ in range(2):
        host.do(commands.Receive(queue=QUEUE, count=1, attempt_id="again"))
    assert totals(host) == (2, 1, 0, 0)


def test_they_begin_with_the_engine(kept: Host) -> None:
    kept.create()
    kept.send("a", "b")
    kept.reopen()
    assert totals(kept) == (0, 0, 0, 0)
    kept.send("c")
    kept.delete(kept.receive(1)[0].receipt)
    assert totals(kept) == (1, 1, 1, 0)


@KINDS
def test_dead_letters_are_neither_sent_nor_deleted(host: Host, *, fifo: bool) -> None:
    host.create(OTHER, fifo=fifo)
    host.create(fifo=fifo, dead_letter_queue=OTHER, receives_max=1)
    host.put(message("a", group="a", dedup_id="a"))
    host.receive(1, timeout_s=0)
    host.advance(1)
    assert host.receive(1) == []
    assert (totals(host), totals(host, OTHER)) == ((1, 1, 0, 0), (0, 0, 0, 0))
    host.do(commands.StartMove(source=OTHER))
    for _ in range(host.slices):
        host.advance(100)
    assert host.counts() == (1, 0, 0)
    assert (totals(host), totals(host, OTHER)) == ((1, 1, 0, 0), (0, 0, 0, 0))


@KINDS
def test_what_is_published_is_sent(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    new = tuple(message(name, group="g", dedup_id=name) for name in ("a", "b"))
    host.do(Stage(queue=QUEUE, writer="w", batch=0, attempt="x", part=0, messages=new))
    assert totals(host) == (0, 0, 0, 0)
    publish = Publish(queue=QUEUE, writer="w", batch=0, attempts=(("x", 2),))
    while host.do(publish).more:
        pass
    assert totals(host) == (2, 0, 0, 0)


@KINDS
def test_what_a_topic_gives_is_sent(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    host.create(OTHER)
    topic = "000000000000/news"
    host.do(CreateTopic(topic=topic, settings={}))
    host.do(Subscribe(subscription=Subscription(topic=topic, name="s", endpoint="s", queue=QUEUE)))
    host.do(PublishToTopic(topic=topic, size_bytes=4, make=lambda _: message("news", group="g" if fifo else None)))
    assert (totals(host), totals(host, OTHER)) == ((1, 0, 0, 0), (0, 0, 0, 0))


def acknowledge(number: int, epoch: int) -> commands.Command:
    return AcknowledgeClaims(queue=QUEUE, source="s", epoch=epoch, number=number)


def release(number: int, epoch: int) -> commands.Command:
    return ReleaseClaim(queue=QUEUE, source="s", number=number)


@KINDS
@pytest.mark.parametrize(("end", "deleted"), [(acknowledge, 2), (release, 0)])
def test_claims_receive_and_delete(
    host: Host, end: Callable[[int, int], commands.Command], deleted: int, *, fifo: bool
) -> None:
    host.create(fifo=fifo)
    host.put(*[message(name, group=name if fifo else None, dedup_id=name) for name in ("a", "b", "c")])
    host.receive(1, timeout_s=0)
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    claim = Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=1, messages_max=2)
    bound: Any = host.do(claim)
    while bound.more:
        bound = host.do(claim)
    assert totals(host)[:3] == (3, 3, 0)
    host.do(end(1, opened.epoch))
    for _ in range(host.slices):
        host.advance(100)
    assert totals(host)[:3] == (3, 3, deleted)

"""Inspection of messages and leases, and the totals of a queue."""

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
for_each_kind = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])


def inspect(host: Host, **narrowed: Any) -> list[SeenMessage]:
    found: list[SeenMessage] = host.do(InspectQueue(queue=QUEUE, **narrowed))
    return found


def bodies(host: Host, **narrowed: Any) -> list[str]:
    return [shown.body for shown in inspect(host, **narrowed)]


def send(host: Host, *bodies: str, group: str = "g", **fields: Any) -> None:
    host.put(*(message(body, group=group, dedup_id=body, **fields) for body in bodies))


def states(host: Host) -> list[tuple[str, str, int]]:
    return [(shown.body, shown.state.value, shown.receive_count) for shown in inspect(host)]


def test_an_inspection_shows_the_state_of_each_message_in_send_order(host: Host) -> None:
    host.create(visibility_timeout_s=30)
    host.send("a", "b")
    host.advance(1)
    host.send("late", delay_s=5)
    host.advance(1)
    host.send("c")
    (first,) = host.receive(1)
    assert states(host) == [("a", "in flight", 1), ("b", "visible", 0), ("late", "delayed", 0), ("c", "visible", 0)]
    assert inspect(host)[0].visible_at_ms == first.visible_at_ms
    assert inspect(host)[1].visible_at_ms is None
    host.advance(30_000)
    assert states(host) == [("a", "visible", 1), ("b", "visible", 0), ("late", "visible", 0), ("c", "visible", 0)]


def test_an_inspection_shows_id_and_properties(host: Host) -> None:
    host.create(fifo=True)
    (sent,) = host.put(message("a", group="g", dedup_id="d", kind="resize"))
    (shown,) = inspect(host)
    assert (shown.id, shown.state) == (sent.id, MessageState.VISIBLE)
    assert decode_properties(shown.properties).attributes["Type"].text == "resize"


def test_an_inspection_returns_at_most_count_messages(host: Host) -> None:
    host.create()
    host.send("a", "b", "c")
    assert [shown.body for shown in inspect(host, count=2)] == ["a", "b"]
    for command in (InspectQueue(queue="000000000000/none"), InspectLeases(queue="000000000000/none")):
        with pytest.raises(QueueNotFound):
            host.do(command)


def test_one_state_is_listed_by_the_time_of_visibility(host: Host) -> None:
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
def test_an_inspection_shows_priorities_and_groups(host: Host, group: str | None) -> None:
    host.create()
    for body, priority in (("low", 12), ("high", 2)):
        host.put(message(body, group=group, priority=priority))
        host.advance(1)
    shown = [(shown.body, shown.priority, shown.group) for shown in inspect(host, state=VISIBLE)]
    assert shown == [("low", 12, group), ("high", 2, group)]
    (high,) = host.receive(1)
    assert (high.body, [(shown.body, shown.priority) for shown in inspect(host, state=IN_FLIGHT)]) == (
        "high",
        [("high", 2)],
    )


def test_messages_behind_a_blocked_fifo_group_are_listed_as_visible(host: Host) -> None:
    host.create(fifo=True)
    send(host, "a1", "a2", group="a")
    send(host, "b1", group="b")
    host.receive(1, timeout_s=30)
    assert [bodies(host, state=state) for state in MessageState] == [["a2", "b1"], ["a1"], []]
    host.advance(5_000)
    host.set_queue(delay_s=5)
    send(host, "a3", group="a")
    assert [bodies(host, state=state) for state in MessageState] == [["a2", "b1"], ["a1"], ["a3"]]
    (shown,) = inspect(host, state=DELAYED)
    assert (shown.group, shown.visible_at_ms) == ("a", shown.sent_at_ms + 5_000)
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


@for_each_kind
def test_claimed_messages_are_listed_last_among_those_in_flight(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    for body in ("a", "b", "c"):
        send(host, body, group=body)
    host.receive(1)
    host.receive(1, timeout_s=0)
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    host.do(Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=opened.last + 1, messages_max=2))
    shown = inspect(host, state=IN_FLIGHT, receipts=True)
    assert shown[0].body == "a"
    assert shown[0].receipt is not None
    assert sorted(each.body for each in shown[1:]) == ["b", "c"]
    for each in shown[1:]:
        assert (each.received_at_ms, each.first_received_at_ms, each.visible_at_ms, each.receipt) == (None,) * 4
    assert bodies(host, state=IN_FLIGHT, count=1) == ["a"]
    assert bodies(host, state=VISIBLE) == []


@for_each_kind
def test_an_inspection_shows_the_first_and_the_last_receive(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    send(host, "a")
    assert [(shown.received_at_ms, shown.first_received_at_ms) for shown in inspect(host)] == [(None, None)]
    host.advance(1_000)
    first_ms = host.clock.now_ms()
    host.receive(1, timeout_s=1)
    assert [(shown.received_at_ms, shown.first_received_at_ms) for shown in inspect(host)] == [(first_ms, first_ms)]
    host.advance(2_000)
    host.receive(1)
    assert [(shown.received_at_ms, shown.first_received_at_ms) for shown in inspect(host)] == [
        (first_ms + 2_000, first_ms)
    ]


def test_a_dead_letter_shows_the_receives_of_its_source_queue(host: Host) -> None:
    dead = "000000000000/dead"
    host.create(dead)
    host.create(dead_letter_queue=dead, receives_max=1)
    host.send("a")
    first_ms = host.clock.now_ms()
    host.advance(1)
    host.receive(1, timeout_s=1)
    host.advance(1_000)
    host.receive(1)
    (shown,) = host.do(InspectQueue(queue=dead, state=VISIBLE))
    assert (shown.receive_count, shown.sent_at_ms, shown.received_at_ms) == (1, first_ms, None)
    assert shown.first_received_at_ms == first_ms + 1
    host.advance(1_000)
    host.receive(1, queue=dead)
    (shown,) = host.do(InspectQueue(queue=dead, state=IN_FLIGHT))
    assert (shown.receive_count, shown.received_at_ms) == (2, first_ms + 2_001)


@for_each_kind
def test_the_receipt_of_an_inspection_acts_like_that_of_the_receive(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    send(host, "a")
    received = host.receive_one()
    (shown,) = inspect(host, receipts=True)
    assert shown.receipt is not None
    assert host.change(shown.receipt, 60).visible_at_ms == host.clock.now_ms() + 60_000
    assert host.change(received.receipt, 90).visible_at_ms == host.clock.now_ms() + 90_000
    (again,) = inspect(host, receipts=True, state=IN_FLIGHT)
    assert again.receipt is not None
    host.change(again.receipt, 0)
    assert host.receive_one().receive_count == 2
    (last,) = inspect(host, receipts=True, state=IN_FLIGHT)
    assert last.receipt is not None
    assert host.delete(again.receipt)[0].value != "live"
    assert host.delete(last.receipt)[0].value == "live"
    assert inspect(host) == []


def test_an_inspection_returns_the_renewed_receipt(host: Host) -> None:
    host.create()
    host.send("a")
    renewed = host.change(host.receive_one().receipt, 60, renew_receipt=True)
    (shown,) = inspect(host, receipts=True)
    assert shown.receipt == renewed.receipt
    assert host.delete(renewed.receipt)[0].value == "live"


def test_only_messages_in_flight_have_receipts_and_only_on_request(host: Host) -> None:
    host.create()
    host.send("a", "b")
    host.send("late", delay_s=5)
    host.receive(1, timeout_s=0)
    host.receive(1, timeout_s=5)
    assert [shown.receipt is None for shown in inspect(host, receipts=True)] == [
        shown.state is not IN_FLIGHT for shown in inspect(host)
    ]
    assert {shown.receipt for shown in inspect(host)} == {None}


@for_each_kind
def test_an_inspection_ends_with_the_message_that_exceeds_the_byte_limit(host: Host, *, fifo: bool) -> None:
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


@for_each_kind
def test_one_message_is_inspected_by_its_id(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    for body in ("a", "b", "c", "d"):
        send(host, body, group=body)
    host.receive(2)
    ids = {shown.body: shown.id for shown in inspect(host)}
    for body, state in (("b", IN_FLIGHT), ("d", VISIBLE), ("d", None)):
        assert bodies(host, id=ids[body], state=state, bytes_max=1) == [body]
    assert bodies(host, id=ids["a"], state=VISIBLE) == []
    assert bodies(host, id=ids["d"], count=3) == []
    assert bodies(host, id=bytes(16)) == []


OTHER = "000000000000/other"


def leases(host: Host, **narrowed: Any) -> list[SeenLease]:
    found: list[SeenLease] = host.do(InspectLeases(queue=QUEUE, **narrowed))
    return found


def send_for_ids(host: Host, *names: str) -> dict[str, bytes]:
    sent = host.put(*(message(name, group=f"group {name}", dedup_id=name) for name in names))
    return {name: each.id for name, each in zip(names, sent, strict=True)}


@for_each_kind
def test_a_lease_is_listed_from_its_receive_to_its_end(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo, event_log="closed")
    ids = send_for_ids(host, "a")
    assert leases(host) == []
    begun_ms = host.clock.now_ms()
    first = host.receive_one(timeout_s=30)
    (shown,) = leases(host)
    assert (shown.message_id, shown.receive_count, shown.group) == (ids["a"], 1, "group a")
    assert (shown.received_at_ms, shown.visible_at_ms, shown.extensions) == (begun_ms, begun_ms + 30_000, 0)
    host.advance(10_000)
    host.change(first.receipt, 60)
    host.change(first.receipt, 50)
    (moved,) = leases(host)
    assert (moved.received_at_ms, moved.visible_at_ms, moved.extensions) == (begun_ms, begun_ms + 60_000, 2)
    assert moved.generation == shown.generation
    host.advance(50_000)
    assert leases(host) == []
    second = host.receive_one(timeout_s=30)
    (again,) = leases(host)
    assert (again.received_at_ms, again.extensions, again.receive_count) == (begun_ms + 60_000, 0, 2)
    assert again.generation != shown.generation
    host.delete(second.receipt)
    assert leases(host) == []


@for_each_kind
def test_leases_are_listed_by_their_end(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    ids = send_for_ids(host, "a", "b", "c", "d")
    for timeout_s in (30, 10, 20):
        host.receive(1, timeout_s=timeout_s)
    in_order = [ids[name] for name in ("b", "c", "a")]
    assert [shown.message_id for shown in leases(host)] == in_order
    assert [shown.message_id for shown in leases(host, count=2)] == in_order[:2]


def test_extensions_are_unknown_without_an_event_log(host: Host) -> None:
    host.create(event_log="off")
    host.send("a")
    host.change(host.receive_one().receipt, 60)
    (shown,) = leases(host)
    assert (shown.extensions, shown.group) == (None, None)


@for_each_kind
@pytest.mark.parametrize("log", ["off", "closed"])
def test_a_lease_starts_when_its_long_poll_returns(host: Host, log: str, *, fifo: bool) -> None:
    host.create(fifo=fifo, event_log=log)
    requested_ms = host.clock.now_ms()
    host.advance(5_000)
    send_for_ids(host, "a")
    host.do(commands.Receive(queue=QUEUE, count=1, timeout_s=1, requested_at_ms=requested_ms))
    assert [shown.received_at_ms for shown in leases(host)] == [requested_ms + 5_000]
    requested_ms = host.clock.now_ms()
    host.advance(5_000)
    host.do(commands.Receive(queue=QUEUE, count=1, timeout_s=1, requested_at_ms=requested_ms))
    waited_ms = 5_000 if log == "closed" else 0
    assert [shown.received_at_ms for shown in leases(host)] == [requested_ms + waited_ms]


@for_each_kind
@pytest.mark.parametrize("reader", [False, True], ids=["released", "claimed"])
def test_leases_may_include_given_messages_until_they_are_deleted(host: Host, *, fifo: bool, reader: bool) -> None:
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
    after = leases(host, also=also)
    assert [shown.message_id for shown in after] == [ids["held"], ids["again"], ids["returned"]]
    assert [shown.generation == before[shown.message_id].generation for shown in after] == [True, False, not reader]
    assert after[2].visible_at_ms == host.clock.now_ms()
    assert [shown.group for shown in after] == ["group held", "group again", "group returned"]
    assert len(leases(host)) == 2
    host.purge()
    assert leases(host, also=also) == []


@for_each_kind
def test_leases_never_include_expired_messages_or_those_of_another_queue(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo, retention_s=60)
    send_for_ids(host, "a")
    host.receive(1, timeout_s=900)
    (shown,) = leases(host)
    host.create(OTHER, fifo=fifo)
    assert host.do(InspectLeases(queue=OTHER, also=(shown.position,))) == []
    host.advance(59_999)
    assert leases(host, also=(shown.position,)) == [shown]
    host.advance(1)
    assert leases(host, also=(shown.position, 1 << 50)) == []


def totals(host: Host, queue: str = QUEUE) -> tuple[int, int, int, int]:
    counts = host.do(commands.ShowQueue(queue=queue, counts=True)).counts
    return counts.sent, counts.received, counts.deleted, counts.redelivered


TOTALS: dict[str, tuple[str, tuple[int, int, int, int]]] = {
    "no command": ("", (0, 0, 0, 0)),
    "each sent message": ("send a b, delayed c, urgent d", (4, 0, 0, 0)),
    "each receive": ("send a b c, receive 2 1", (3, 2, 0, 0)),
    "an empty receive": ("receive 2 1", (0, 0, 0, 0)),
    "each redelivery": ("send a b, receive 2 0, receive 2 0, receive 1 30", (2, 5, 0, 3)),
    "a repeated delete": ("send a b c, receive 2 1, delete a, delete a", (3, 2, 1, 0)),
    "a delete with an earlier receipt": (
        "send a b c, receive 2 1, delete a, wait 1000, receive 10 30, delete b, receive 10 30",
        (3, 4, 1, 1),
    ),
    "a purge": ("send a b, receive 2 0, receive 1 9, purge, send c", (3, 3, 0, 1)),
    "the end of retention": ("send a b, receive 1 600, wait 60000", (2, 1, 0, 0)),
    "a new queue with the name": ("send a, receive 1 0, receive 1 9, delete a, drop, create", (0, 0, 0, 0)),
}
"""Case → steps, and the totals of messages sent, received, deleted and redelivered."""


@for_each_kind
@pytest.mark.parametrize("case", TOTALS)
def test_totals_count_sends_receives_deletes_and_redeliveries(host: Host, case: str, *, fifo: bool) -> None:
    steps, expected = TOTALS[case]
    host.create(fifo=fifo, retention_s=60)
    receipts: dict[str, str] = {}
    for verb, *rest in map(str.split, steps.split(", ") if steps else ()):
        match verb:
            case "send" | "delayed" | "urgent":
                fields: dict[str, Any] = {"delayed": {"delay_s": 30}, "urgent": {"priority": 1}}.get(verb, {})
                host.put(*(message(name, group=name if fifo else None, dedup_id=name, **fields) for name in rest))
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


def test_duplicates_and_repeated_receive_attempts_are_counted_once(host: Host) -> None:
    host.create(fifo=True, message_bytes_max=1_024)
    host.put(*(message(name, group=name, dedup_id=name) for name in ("a", "a", "b", "x" * 1_025)))
    for _ in range(2):
        host.do(commands.Receive(queue=QUEUE, count=1, attempt_id="again"))
    assert totals(host) == (2, 1, 0, 0)


def test_totals_start_at_zero_with_the_process(durable: Host) -> None:
    durable.create()
    durable.send("a", "b")
    durable.reopen()
    assert totals(durable) == (0, 0, 0, 0)
    durable.send("c")
    durable.delete(durable.receive(1)[0].receipt)
    assert totals(durable) == (1, 1, 1, 0)


@for_each_kind
def test_dead_letters_count_neither_as_sent_nor_as_deleted(host: Host, *, fifo: bool) -> None:
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


@for_each_kind
def test_published_messages_count_as_sent(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    new = tuple(message(name, group="g", dedup_id=name if fifo else None) for name in ("a", "b"))
    host.do(Stage(queue=QUEUE, writer="w", batch=0, attempt="x", part=0, messages=new))
    assert totals(host) == (0, 0, 0, 0)
    publish = Publish(queue=QUEUE, writer="w", batch=0, attempts=(("x", 2),))
    while host.do(publish).more:
        pass
    assert totals(host) == (2, 0, 0, 0)


@for_each_kind
def test_messages_of_a_topic_count_as_sent(host: Host, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    host.create(OTHER)
    topic = "000000000000/news"
    host.do(CreateTopic(topic=topic, settings={}))
    host.do(Subscribe(subscription=Subscription(topic=topic, name="s", endpoint="s", queue=QUEUE)))
    host.do(PublishToTopic(topic=topic, size_bytes=4, make=lambda _: message("news", group="g" if fifo else None)))
    assert (totals(host), totals(host, OTHER)) == ((1, 0, 0, 0), (0, 0, 0, 0))


@for_each_kind
@pytest.mark.parametrize(("end", "deleted"), [("acknowledge", 2), ("release", 0)])
def test_claimed_messages_count_as_received_and_deleted(host: Host, end: str, deleted: int, *, fifo: bool) -> None:
    host.create(fifo=fifo)
    host.put(*[message(name, group=name if fifo else None, dedup_id=name) for name in ("a", "b", "c")])
    host.receive(1, timeout_s=0)
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    claim = Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=1, messages_max=2)
    bound: Any = host.do(claim)
    while bound.more:
        bound = host.do(claim)
    assert totals(host)[:3] == (3, 3, 0)
    if end == "acknowledge":
        host.do(AcknowledgeClaims(queue=QUEUE, source="s", epoch=opened.epoch, number=1))
    else:
        host.do(ReleaseClaim(queue=QUEUE, source="s", number=1))
    for _ in range(host.slices):
        host.advance(100)
    assert totals(host)[:3] == (3, 3, deleted)

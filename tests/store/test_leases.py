"""A look at leases shows who holds what until when, those that end first first."""

from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.commands import InspectLeases, SeenLease
from veilmq.core.errors import QueueNotFound

KINDS = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])


def leases(host: Host, **narrowed: Any) -> list[SeenLease]:
    """Return the leases of the queue."""
    seen: list[SeenLease] = host.do(InspectLeases(queue=QUEUE, **narrowed))
    return seen


def send(host: Host, *names: str) -> dict[str, bytes]:
    """Send messages, each of a group of its own; return their ids by their bodies."""
    new = tuple(message(name, group=f"group {name}", dedup_id=name) for name in names)
    sent = host.do(commands.Send(queue=QUEUE, messages=new))
    return {name: each.id for name, each in zip(names, sent, strict=True)}


@KINDS
def test_a_lease_from_its_receive_to_its_end(host: Host, *, fifo: bool) -> None:
    """Moved, returned, begun again, and gone."""
    host.create(fifo=fifo, event_log="closed")
    ids = send(host, "a")
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
    """And no more than were asked for."""
    host.create(fifo=fifo)
    ids = send(host, "a", "b", "c", "d")
    for timeout_s in (30, 10, 20):
        host.receive(1, timeout_s=timeout_s)
    in_order = [ids[name] for name in ("b", "c", "a")]
    assert [seen.message_id for seen in leases(host)] == in_order
    assert [seen.message_id for seen in leases(host, count=2)] == in_order[:2]


def test_nobody_has_counted_extensions_without_an_event_log(host: Host) -> None:
    """So none are told."""
    host.create(event_log="off")
    host.send("a")
    host.change(host.receive_one().receipt, 60)
    (seen,) = leases(host)
    assert (seen.extensions, seen.group) == (None, None)


@KINDS
@pytest.mark.parametrize("log", ["off", "closed"])
def test_a_wait_before_the_first_receive_is_not_of_the_lease(host: Host, log: str, *, fifo: bool) -> None:
    """With an event log before no receive."""
    host.create(fifo=fifo, event_log=log)
    asked_ms = host.clock.now_ms()
    host.advance(5_000)
    send(host, "a")
    asked = commands.Receive(queue=QUEUE, count=1, timeout_s=1, requested_at_ms=asked_ms)
    host.do(asked)
    assert [seen.received_at_ms for seen in leases(host)] == [asked_ms + 5_000]
    asked_ms = host.clock.now_ms()
    host.advance(5_000)
    host.do(commands.Receive(queue=QUEUE, count=1, timeout_s=1, requested_at_ms=asked_ms))
    waited_ms = 5_000 if log == "closed" else 0
    assert [seen.received_at_ms for seen in leases(host)] == [asked_ms + waited_ms]


@KINDS
def test_only_leases_are_shown(host: Host, *, fifo: bool) -> None:
    """Neither delayed nor claimed messages, nor what returned or is past its retention."""
    host.create(fifo=fifo, retention_s=60)
    ids = send(host, "returned", "claimed", "held")
    host.receive(1, timeout_s=0)
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    host.do(Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=opened.last + 1, messages_max=1))
    host.receive(10, timeout_s=900)
    host.do(commands.SetQueue(queue=QUEUE, settings={"delay_s": 9}))
    send(host, "late")
    assert ids["held"] in {seen.message_id for seen in leases(host)}
    assert len(leases(host)) == 2
    host.advance(60_000)
    assert leases(host) == []


def test_a_purge_ends_all(host: Host) -> None:
    """At once; and another message begins anew."""
    host.create()
    host.send("a")
    host.receive(1)
    host.do(commands.PurgeQueue(queue=QUEUE))
    assert leases(host) == []
    ids = send(host, "b")
    host.receive(1)
    assert [seen.message_id for seen in leases(host)] == [ids["b"]]


def test_a_queue_that_is_not_there(host: Host) -> None:
    """Is said to be so."""
    with pytest.raises(QueueNotFound):
        leases(host)


@KINDS
@pytest.mark.parametrize("reader", [False, True], ids=["released", "claimed"])
def test_a_message_that_was_asked_for_is_told_of_while_it_is_there(host: Host, *, fifo: bool, reader: bool) -> None:
    """Whatever has become of its lease; what is in flight is told once."""
    host.create(fifo=fifo, retention_s=3_600)
    ids = send(host, "deleted", "returned", "again", "held")
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
    host.do(commands.PurgeQueue(queue=QUEUE))
    assert leases(host, also=also) == []


def test_a_message_past_its_retention_is_not_told_of(host: Host) -> None:
    """Although it was asked for."""
    host.create(retention_s=60)
    send(host, "a")
    host.receive(1, timeout_s=900)
    (seen,) = leases(host)
    host.advance(59_999)
    assert leases(host, also=(seen.position,)) == [seen]
    host.advance(1)
    assert leases(host, also=(seen.position, 1 << 50)) == []

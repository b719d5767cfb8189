"""A look at a queue shows every message with its state, and changes nothing."""

import pytest

from tests.engines.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.claims import Claim, OpenSource
from veilmq.core.errors import QueueNotFound
from veilmq.core.looks import LookAtQueue, MessageState, SeenMessage
from veilmq.core.properties import decode


def look(host: Host, **narrowed: int) -> list[SeenMessage]:
    """Return what a look at the queue shows."""
    seen: list[SeenMessage] = host.do(LookAtQueue(queue=QUEUE, **narrowed))
    return seen


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
    assert decode(seen.properties).attributes["Type"].text == "resize"


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
        host.do(LookAtQueue(queue="000000000000/nobody"))

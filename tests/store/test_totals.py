"""What has passed through a queue since the engine was opened: messages sent, received and deleted."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core import commands
from veilmq.core.claims import AcknowledgeClaims, Claim, OpenSource, Publish, ReleaseClaim, Stage
from veilmq.core.topics import CreateTopic, Forward, ForwardEntry, PublishToTopic, Subscribe, Subscription

OTHER = "000000000000/other"
KINDS = pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])


def totals(host: Host, queue: str = QUEUE) -> tuple[int, int, int]:
    """Return how many messages were sent, received and deleted."""
    counts = host.do(commands.ShowQueue(queue=queue, counts=True)).counts
    return counts.sent, counts.received, counts.deleted


def send(host: Host, *names: str, delay_s: int | None = None) -> None:
    """Send messages, each of a group of its own."""
    new = tuple(message(name, group=name, dedup_id=name, delay_s=delay_s) for name in names)
    host.do(commands.Send(queue=QUEUE, messages=new))


@KINDS
def test_sends_receives_and_deletes_count(host: Host, *, fifo: bool) -> None:
    """Each message, and each receive of it; not a deletion that deletes nothing."""
    host.create(fifo=fifo)
    assert totals(host) == (0, 0, 0)
    send(host, "a", "b", "c")
    first, second = host.receive(2, timeout_s=1)
    assert totals(host) == (3, 2, 0)
    host.delete(first.receipt)
    host.delete(first.receipt)
    assert totals(host) == (3, 2, 1)
    host.advance(1_000)
    assert len(host.receive(10)) == 2
    host.delete(second.receipt)
    assert totals(host) == (3, 4, 1)
    assert host.receive(10) == []
    assert totals(host) == (3, 4, 1)


def test_delayed_messages_and_those_of_other_priorities_count(host: Host) -> None:
    """As soon as they are sent."""
    host.create()
    host.send("a", priority=1)
    host.send("b", delay_s=900)
    send(host, "c")
    assert totals(host) == (3, 0, 0)


def test_a_duplicate_does_not_count(host: Host) -> None:
    """Nor does a message that is refused."""
    host.create(fifo=True, message_bytes_max=1024)
    send(host, "a")
    send(host, "a", "b")
    assert totals(host) == (2, 0, 0)


def test_a_receive_that_is_repeated_counts_once(host: Host) -> None:
    """It gives what it gave."""
    host.create(fifo=True)
    send(host, "a")
    for _ in range(2):
        host.do(commands.Receive(queue=QUEUE, count=1, attempt_id="again"))
    assert totals(host) == (1, 1, 0)


@KINDS
def test_what_goes_by_itself_is_not_deleted(host: Host, *, fifo: bool) -> None:
    """A purge and retention; the totals go on."""
    host.create(fifo=fifo, retention_s=60)
    send(host, "a", "b")
    host.receive(1)
    host.do(commands.PurgeQueue(queue=QUEUE))
    assert totals(host) == (2, 1, 0)
    send(host, "c")
    host.advance(60_000)
    assert host.counts() == (0, 0, 0)
    assert totals(host) == (3, 1, 0)


@KINDS
def test_dead_letters_are_neither_sent_nor_deleted(host: Host, *, fifo: bool) -> None:
    """Nor what a move task brings back."""
    host.create(OTHER, fifo=fifo)
    host.create(fifo=fifo, dead_letter_queue=OTHER, receives_max=1)
    send(host, "a")
    host.receive(1, timeout_s=0)
    host.advance(1)
    assert host.receive(1) == []
    assert (totals(host), totals(host, OTHER)) == ((1, 1, 0), (0, 0, 0))
    host.do(commands.StartMove(source=OTHER))
    for _ in range(host.slices):
        host.advance(100)
    assert host.counts() == (1, 0, 0)
    assert (totals(host), totals(host, OTHER)) == ((1, 1, 0), (0, 0, 0))


@KINDS
def test_a_forward_deletes_and_sends(host: Host, *, fifo: bool) -> None:
    """As it does with messages."""
    host.create(OTHER, fifo=fifo)
    host.create(fifo=fifo)
    send(host, "a", "b")
    entries = tuple(ForwardEntry(receipt=each.receipt, target=OTHER) for each in host.receive(1))
    host.do(Forward(queue=QUEUE, entries=entries))
    assert (totals(host), totals(host, OTHER)) == ((2, 1, 1), (1, 0, 0))


@KINDS
def test_what_is_published_is_sent(host: Host, *, fifo: bool) -> None:
    """Once it is in the queue; what is only staged is not."""
    host.create(fifo=fifo)
    new = tuple(message(name, group="g", dedup_id=name) for name in ("a", "b"))
    host.do(Stage(queue=QUEUE, writer="w", batch=0, attempt="x", part=0, messages=new))
    assert totals(host) == (0, 0, 0)
    publish = Publish(queue=QUEUE, writer="w", batch=0, attempts=(("x", 2),))
    while host.do(publish).more:
        pass
    assert totals(host) == (2, 0, 0)


@KINDS
def test_what_a_topic_gives_is_sent(host: Host, *, fifo: bool) -> None:
    """To each queue that is subscribed."""
    host.create(fifo=fifo)
    host.create(OTHER)
    topic = "000000000000/news"
    host.do(CreateTopic(topic=topic, settings={}))
    host.do(Subscribe(subscription=Subscription(topic=topic, name="s", endpoint="s", queue=QUEUE)))
    host.do(PublishToTopic(topic=topic, size_bytes=4, make=lambda _: message("news", group="g" if fifo else None)))
    assert (totals(host), totals(host, OTHER)) == ((1, 0, 0), (0, 0, 0))


def acknowledge(number: int, epoch: int) -> commands.Command:
    """Return the end of a claim by which its messages are deleted."""
    return AcknowledgeClaims(queue=QUEUE, source="s", epoch=epoch, number=number)


def release(number: int, epoch: int) -> commands.Command:
    """Return the end of a claim by which its messages return."""
    return ReleaseClaim(queue=QUEUE, source="s", number=number)


@KINDS
@pytest.mark.parametrize(("end", "deleted"), [(acknowledge, 2), (release, 0)])
def test_claims_receive_and_delete(
    host: Host, end: Callable[[int, int], commands.Command], deleted: int, *, fifo: bool
) -> None:
    """With and without a lease of their own."""
    host.create(fifo=fifo)
    new = [message(name, group=name if fifo else None, dedup_id=name) for name in ("a", "b", "c")]
    host.do(commands.Send(queue=QUEUE, messages=tuple(new)))
    host.receive(1, timeout_s=0)
    opened = host.do(OpenSource(queue=QUEUE, source="s", consumer="x"))
    claim = Claim(queue=QUEUE, source="s", epoch=opened.epoch, number=1, messages_max=2)
    bound: Any = host.do(claim)
    while bound.more:
        bound = host.do(claim)
    assert totals(host) == (3, 3, 0)
    host.do(end(1, opened.epoch))
    for _ in range(host.slices):
        host.advance(100)
    assert totals(host) == (3, 3, deleted)


def test_another_queue_of_the_name_begins_anew(host: Host) -> None:
    """With nothing."""
    host.create()
    host.send("a")
    host.delete(host.receive_one().receipt)
    host.do(commands.DeleteQueue(queue=QUEUE))
    host.create()
    assert totals(host) == (0, 0, 0)


def test_they_begin_with_the_engine(kept: Host) -> None:
    """Whatever is there already."""
    kept.create()
    kept.send("a", "b")
    kept.reopen()
    assert totals(kept) == (0, 0, 0)
    kept.send("c")
    kept.delete(kept.receive(1)[0].receipt)
    assert totals(kept) == (1, 1, 1)

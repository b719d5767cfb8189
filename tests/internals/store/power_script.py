"""All commands that change anything, in scenes that share a store; each scene continues after a restart in its middle.

A scene is a generator that yields once: the live receipts, each with its queue. Long messages have a few pages, so that
their commits are several writes.
"""

from collections.abc import Callable, Iterator
from typing import Any

from tests.store.host import message
from veilmq.core.claims import (
    Abandon,
    AcknowledgeClaims,
    Claim,
    CloseSource,
    EvictMessage,
    Heartbeat,
    OpenSource,
    Publish,
    ReadClaim,
    ReleaseClaim,
    Stage,
)
from veilmq.core.commands import (
    CancelMove,
    ChangeVisibility,
    CreateQueue,
    Delete,
    DeleteQueue,
    EditQueue,
    PurgeQueue,
    Receive,
    Send,
    SendOptions,
    SetAccount,
    SetQueue,
    StartMove,
    TagQueue,
    VisibilityChange,
)
from veilmq.core.messages import NewMessage
from veilmq.core.receipts import CountEvents, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.settings import AccountSettings
from veilmq.core.topics import (
    CreateTopic,
    DeleteTopic,
    Forward,
    ForwardEntry,
    Notification,
    PublishToTopic,
    RetryStrategy,
    SetSubscription,
    SetTopic,
    Subscribe,
    Subscription,
    Unsubscribe,
)

LONG = "x" * 9_000
ACCOUNT = "000000000000"
HOUR_S = 3_600

Receipts = dict[str, str]
Scene = Callable[["Client"], Iterator[Receipts]]


class Client:
    """Runs the commands of a scene: `run` submits commands for one batch, then advances the clock."""

    def __init__(self, run: Callable[..., list[Any]]) -> None:
        self.run = run

    def create(self, name: str, **settings: Any) -> str:
        """Create a queue; return its full name."""
        queue = f"{ACCOUNT}/{name}"
        self.run(CreateQueue(queue=queue, settings={"visibility_timeout_s": HOUR_S, **settings}))
        return queue

    def send(self, queue: str, *bodies: str, **fields: Any) -> None:
        """Send messages with one command."""
        self.run(Send(queue=queue, messages=tuple(message(body, **fields) for body in bodies)))

    def receive(self, queue: str, count: int, timeout_s: int | None = None) -> list[Any]:
        (received,) = self.run(Receive(queue=queue, count=count, timeout_s=timeout_s))
        assert len(received.messages) == count
        return list(received.messages)


def settings(client: Client) -> Iterator[Receipts]:
    """Settings, tags and policies of queues, an account; a purge, a deletion, and the janitor."""
    queue = client.create("set")
    other = client.create("other")
    client.run(
        TagQueue(queue=queue, tags={"team": "mail"}),
        SetQueue(queue=queue, settings={"delay_s": 5}),
        SetAccount(account=ACCOUNT, settings=AccountSettings(logging_bucket="one")),
    )
    client.run(EditQueue(queue=queue, setting="policy", edit=lambda policy: policy + "{}"))
    for each in (queue, other):
        client.send(each, "a", f"b{LONG}", "c", delay_s=0)
    in_flight = client.receive(queue, 1)
    yield {in_flight[0].receipt: queue}
    client.run(PurgeQueue(queue=queue), DeleteQueue(queue=other), wait_ms=1_000)
    client.run(TagQueue(queue=queue, removed=("team",)))


def standard(client: Client) -> Iterator[Receipts]:
    """Concurrent sends, receives, changes and deletes; delays, SMQ's options, a priority, a fair group."""
    queue = client.create("jobs")
    in_flight: list[Any] = []
    for number in range(3):
        new = tuple(message(f"{number}-{place}{LONG if place == number else ''}") for place in range(4))
        _, received = client.run(Send(queue=queue, messages=new), Receive(queue=queue, count=3))
        first, second, third = received.messages
        change = VisibilityChange(receipt=second.receipt, timeout_s=HOUR_S + number)
        client.run(
            Delete(queue=queue, receipts=(first.receipt,)),
            ChangeVisibility(queue=queue, changes=(change, VisibilityChange(receipt=third.receipt, timeout_s=0))),
            wait_ms=10,
        )
        in_flight.append(second)
    late = tuple(message(f"late-{place}", delay_s=HOUR_S) for place in range(2))
    (sent,) = client.run(Send(queue=queue, messages=late, options=SendOptions(receipts=True, all_or_nothing=True)))
    changes = (VisibilityChange(receipt=sent[0].receipt, timeout_s=2 * HOUR_S),)
    renewed: dict[str, Any] = {"only_live": True, "renew_receipt": True, "lease_s_max": None}
    client.run(
        ChangeVisibility(queue=queue, changes=changes, **renewed),
        Delete(queue=queue, receipts=(sent[1].receipt,), only_live=True),
    )
    client.send(queue, "urgent", priority=1)
    client.send(queue, "mine", "yours", group="g")
    client.send(queue, "soon", delay_s=1)
    yield {each.receipt: queue for each in in_flight}
    client.run(Delete(queue=queue, receipts=tuple(each.receipt for each in in_flight)), wait_ms=1_000)
    client.receive(queue, 6, timeout_s=1)


def ordered(client: Client) -> Iterator[Receipts]:
    """A FIFO queue: groups, duplicates, a delay, a repeated attempt, a release."""
    queue = client.create("ordered", fifo=True)
    sends = [Send(queue=queue, messages=(message(body, group=body[0], dedup_id=body),)) for body in ("a1", "b1", "a2")]
    client.run(*sends, sends[0])
    attempt = Receive(queue=queue, count=2, attempt_id="x")
    ((first,), (again,)) = (client.run(attempt), client.run(attempt))
    assert [each.receipt for each in first.messages] == [each.receipt for each in again.messages]
    one, two = first.messages
    client.run(Delete(queue=queue, receipts=(one.receipt,)))
    for body in (f"a3{LONG}", "c1"):
        client.send(queue, body, group=body[0], dedup_id=body[:2])
    other = client.receive(queue, 2)
    client.run(SetQueue(queue=queue, settings={"delay_s": 2}))
    client.send(queue, "d1", group="d", dedup_id="d1")
    yield {each.receipt: queue for each in (two, *other)}
    released = tuple(VisibilityChange(receipt=each.receipt, timeout_s=0) for each in other)
    client.run(ChangeVisibility(queue=queue, changes=released), wait_ms=2_000)
    client.receive(queue, 1)


def dead_letters(client: Client) -> Iterator[Receipts]:
    """Dead letters of both kinds of queues; move tasks to sources and elsewhere, in small slices; a cancellation."""
    dead, back = client.create("dead"), client.create("back")
    queue = client.create("mortal", dead_letter_queue=dead, receives_max=1)
    client.send(queue, *(f"{number}{LONG if number % 3 == 0 else ''}" for number in range(6)))
    client.receive(queue, 6, timeout_s=0)
    client.run(Receive(queue=queue, count=6))
    fifo_dead = client.create("fifo-dead", fifo=True)
    fifo = client.create("fifo-mortal", fifo=True, dead_letter_queue=fifo_dead, receives_max=1)
    for body in ("g1", "g2"):
        client.send(fifo, body, group="g", dedup_id=body)
    client.receive(fifo, 2, timeout_s=0)
    client.run(Receive(queue=fifo))
    client.run(StartMove(source=dead, destination=back, moves_per_s_max=1), wait_ms=1_000)
    yield {}
    client.run(StartMove(source=fifo_dead), wait_ms=4_000)
    client.run(Receive(queue=queue, count=10), Receive(queue=back, count=10))
    client.send(queue, "x", "y", "z")
    client.receive(queue, 3, timeout_s=0)
    client.run(Receive(queue=queue))
    (task,) = client.run(StartMove(source=dead, moves_per_s_max=1))
    client.run(CancelMove(source=dead, task=task.id))


def claims(client: Client) -> Iterator[Receipts]:
    """Sources, numbered claims of both kinds of messages, an eviction, an acknowledgement, a release, a close."""
    dead = client.create("claimed-dead")
    queue = client.create("claimed", dead_letter_queue=dead, receives_max=50)
    client.send(queue, *(f"{number}{LONG if number % 4 == 0 else ''}" for number in range(12)))
    client.receive(queue, 4, timeout_s=0)
    fields: dict[str, Any] = {"queue": queue, "source": "s"}
    client.run(OpenSource(**fields))
    client.run(Claim(**fields, epoch=1, number=1, messages_max=5, shard_messages=2), wait_ms=10)
    client.run(Heartbeat(**fields, epoch=1), Claim(**fields, epoch=1, number=2, messages_max=3))
    (page,) = client.run(ReadClaim(**fields, number=1))
    client.run(EvictMessage(**fields, number=1, message=page.messages[0].id))
    in_flight = client.receive(queue, 1)
    yield {in_flight[0].receipt: queue}
    client.run(AcknowledgeClaims(**fields, epoch=1, number=1), wait_ms=100)
    client.run(ReleaseClaim(**fields, number=2), wait_ms=100)
    client.run(OpenSource(**fields, consumer="other", takeover=True))
    client.run(Claim(**fields, epoch=2, number=3, messages_max=2))
    client.run(CloseSource(**fields), wait_ms=100)


def publications(client: Client) -> Iterator[Receipts]:
    """Two staged attempts, one of which is published in slices, and an abandoned batch."""
    queue = client.create("published")
    fields: dict[str, Any] = {"queue": queue, "writer": "w"}
    for part in range(2):
        new = tuple(message(f"{part}-{place}{LONG if place else ''}") for place in range(3))
        client.run(Stage(**fields, batch=0, attempt="a", part=part, messages=new))
    client.run(Stage(**fields, batch=0, attempt="b", part=0, messages=(message("never"),)))
    client.run(Stage(**fields, batch=1, attempt="a", part=0, messages=(message("given up"),)))
    yield {}
    client.run(Publish(**fields, batch=0, attempts=(("a", 6),)), wait_ms=100)
    client.run(Abandon(**fields, batch=1), wait_ms=100)


def topics(client: Client) -> Iterator[Receipts]:
    """A topic with a subscribed queue and a push URL; both get a message, then only one."""
    queue, topic = client.create("subscribed"), f"{ACCOUNT}/news"

    def make(notification: Notification) -> NewMessage:
        return message(f"{notification.subscription.name}{LONG}")

    client.run(CreateTopic(topic=topic))
    client.run(Subscribe(subscription=Subscription(topic=topic, name="q", endpoint=queue, queue=queue)))
    client.run(Subscribe(subscription=Subscription(topic=topic, name="p", endpoint="u", push_url="u")))
    client.run(PublishToTopic(topic=topic, size_bytes=1, make=make))
    in_flight = client.receive(queue, 1)
    yield {in_flight[0].receipt: queue}
    client.run(SetTopic(topic=topic, settings={"message_bytes_max": 2_048}))
    client.run(SetSubscription(topic=topic, name="p", strategy=RetryStrategy.EXPONENTIAL_DECAY))
    client.run(Unsubscribe(topic=topic, name="q"), PublishToTopic(topic=topic, size_bytes=1, make=make))
    client.run(DeleteTopic(topic=topic), wait_ms=1_000)


def forwards(client: Client) -> Iterator[Receipts]:
    """Messages forwarded to another queue, as new ones and as dead letters."""
    intake, fast = client.create("intake"), client.create("fast")
    client.send(intake, "a", f"b{LONG}", "c", "d")
    in_flight = client.receive(intake, 4)

    def forward(*which: int, reasons: dict[str, str] | None = None) -> Forward:
        entries = (ForwardEntry(receipt=in_flight[each].receipt, target=fast, reasons=reasons) for each in which)
        return Forward(queue=intake, entries=tuple(entries))

    client.run(forward(0, 1))
    yield {in_flight[2].receipt: intake, in_flight[3].receipt: intake}
    client.run(forward(2, reasons={"why": "no"}), Delete(queue=intake, receipts=(in_flight[3].receipt,)))


def events(client: Client) -> Iterator[Receipts]:
    """The export of the events of earlier scenes, in two parts."""
    for part in range(2):
        (counts,) = client.run(CountEvents())
        assert counts.recorded > counts.exported
        (planned,) = client.run(PlanExport(events_max=3 if part == 0 else 1_000))
        client.run(ReadEvents(first=planned.first, last=planned.last, bytes_max=1 << 20))
        client.run(ForgetEvents(last=planned.last))
        if part == 0:
            yield {}


SCENES: tuple[Scene, ...] = (
    settings, standard, ordered, dead_letters, claims, publications, topics, forwards, events,
)  # fmt: skip

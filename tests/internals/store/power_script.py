"""All commands that change anything, in scenes that share a store; each goes on after a restart in its middle.

A scene is a generator: it yields once, with the receipts that are live then, each with its queue. What is large has a
few pages, so that its commit is several writes.
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
Scene = Callable[["World"], Iterator[Receipts]]


class World:
    """What a scene acts on: `ask` runs commands in one batch, then lets time pass."""

    def __init__(self, ask: Callable[..., list[Any]]) -> None:
        self.ask = ask

    def create(self, name: str, **settings: Any) -> str:
        """Create a queue; return its full name."""
        queue = f"{ACCOUNT}/{name}"
        self.ask(CreateQueue(queue=queue, settings={"visibility_timeout_s": HOUR_S, **settings}))
        return queue

    def send(self, queue: str, *bodies: str, **terms: Any) -> None:
        """Send in one command; in a FIFO queue the first letter of a body is its group."""
        self.ask(Send(queue=queue, messages=tuple(message(body, **terms) for body in bodies)))

    def receive(self, queue: str, count: int, timeout_s: int | None = None) -> list[Any]:
        (received,) = self.ask(Receive(queue=queue, count=count, timeout_s=timeout_s))
        assert len(received.messages) == count
        return list(received.messages)


def settings(world: World) -> Iterator[Receipts]:
    """Queues with what is set of them, an account; one is purged and one deleted, and swept."""
    queue = world.create("set")
    other = world.create("other")
    world.ask(
        TagQueue(queue=queue, tags={"team": "mail"}),
        SetQueue(queue=queue, settings={"delay_s": 5}),
        SetAccount(account=ACCOUNT, settings=AccountSettings(logging_bucket="one")),
    )
    world.ask(EditQueue(queue=queue, setting="policy", edit=lambda policy: policy + "{}"))
    for each in (queue, other):
        world.send(each, "a", f"b{LONG}", "c", delay_s=0)
    held = world.receive(queue, 1)
    yield {held[0].receipt: queue}
    world.ask(PurgeQueue(queue=queue), DeleteQueue(queue=other), wait_ms=1_000)
    world.ask(TagQueue(queue=queue, removed=("team",)))


def standard(world: World) -> Iterator[Receipts]:
    """Sends, receives, changes and deletes beside each other; delays; what SMQ does; a priority; a fair group."""
    queue = world.create("jobs")
    held: list[Any] = []
    for number in range(3):
        new = tuple(message(f"{number}-{place}{LONG if place == number else ''}") for place in range(4))
        _, received = world.ask(Send(queue=queue, messages=new), Receive(queue=queue, count=3))
        first, second, third = received.messages
        change = VisibilityChange(receipt=second.receipt, timeout_s=HOUR_S + number)
        world.ask(
            Delete(queue=queue, receipts=(first.receipt,)),
            ChangeVisibility(queue=queue, changes=(change, VisibilityChange(receipt=third.receipt, timeout_s=0))),
            wait_ms=10,
        )
        held.append(second)
    late = tuple(message(f"late-{place}", delay_s=HOUR_S) for place in range(2))
    (sent,) = world.ask(Send(queue=queue, messages=late, options=SendOptions(receipts=True, all_or_nothing=True)))
    changes = (VisibilityChange(receipt=sent[0].receipt, timeout_s=2 * HOUR_S),)
    renewed: dict[str, Any] = {"only_live": True, "renew_receipt": True, "lease_s_max": None}
    world.ask(
        ChangeVisibility(queue=queue, changes=changes, **renewed),
        Delete(queue=queue, receipts=(sent[1].receipt,), only_live=True),
    )
    world.send(queue, "urgent", priority=1)
    world.send(queue, "mine", "yours", group="g")
    world.send(queue, "soon", delay_s=1)
    yield {each.receipt: queue for each in held}
    world.ask(Delete(queue=queue, receipts=tuple(each.receipt for each in held)), wait_ms=1_000)
    world.receive(queue, 6, timeout_s=1)


def ordered(world: World) -> Iterator[Receipts]:
    """A FIFO queue: groups, duplicates, a delay, an attempt that is repeated, a release."""
    queue = world.create("ordered", fifo=True)
    sends = [Send(queue=queue, messages=(message(body, group=body[0], dedup_id=body),)) for body in ("a1", "b1", "a2")]
    world.ask(*sends, sends[0])
    attempt = Receive(queue=queue, count=2, attempt_id="x")
    ((first,), (again,)) = (world.ask(attempt), world.ask(attempt))
    assert [each.receipt for each in first.messages] == [each.receipt for each in again.messages]
    one, two = first.messages
    world.ask(Delete(queue=queue, receipts=(one.receipt,)))
    for body in (f"a3{LONG}", "c1"):
        world.send(queue, body, group=body[0], dedup_id=body[:2])
    other = world.receive(queue, 2)
    world.ask(SetQueue(queue=queue, settings={"delay_s": 2}))
    world.send(queue, "d1", group="d", dedup_id="d1")
    yield {each.receipt: queue for each in (two, *other)}
    released = tuple(VisibilityChange(receipt=each.receipt, timeout_s=0) for each in other)
    world.ask(ChangeVisibility(queue=queue, changes=released), wait_ms=2_000)
    world.receive(queue, 1)


def dead_letters(world: World) -> Iterator[Receipts]:
    """Messages die, of both kinds of queues; tasks move them back and elsewhere, message by message; one is ended."""
    dead, back = world.create("dead"), world.create("back")
    queue = world.create("mortal", dead_letter_queue=dead, receives_max=1)
    world.send(queue, *(f"{number}{LONG if number % 3 == 0 else ''}" for number in range(6)))
    world.receive(queue, 6, timeout_s=0)
    world.ask(Receive(queue=queue, count=6))
    fifo_dead = world.create("fifo-dead", fifo=True)
    fifo = world.create("fifo-mortal", fifo=True, dead_letter_queue=fifo_dead, receives_max=1)
    for body in ("g1", "g2"):
        world.send(fifo, body, group="g", dedup_id=body)
    world.receive(fifo, 2, timeout_s=0)
    world.ask(Receive(queue=fifo))
    world.ask(StartMove(source=dead, destination=back, moves_per_s_max=1), wait_ms=1_000)
    yield {}
    world.ask(StartMove(source=fifo_dead), wait_ms=4_000)
    world.ask(Receive(queue=queue, count=10), Receive(queue=back, count=10))
    world.send(queue, "x", "y", "z")
    world.receive(queue, 3, timeout_s=0)
    world.ask(Receive(queue=queue))
    (task,) = world.ask(StartMove(source=dead, moves_per_s_max=1))
    world.ask(CancelMove(source=dead, task=task.id))


def claims(world: World) -> Iterator[Receipts]:
    """Sources, numbered claims of both kinds of messages, an eviction, an acknowledgement, a release, an end."""
    dead = world.create("claimed-dead")
    queue = world.create("claimed", dead_letter_queue=dead, receives_max=50)
    world.send(queue, *(f"{number}{LONG if number % 4 == 0 else ''}" for number in range(12)))
    world.receive(queue, 4, timeout_s=0)
    terms: dict[str, Any] = {"queue": queue, "source": "s"}
    world.ask(OpenSource(**terms))
    world.ask(Claim(**terms, epoch=1, number=1, messages_max=5, shard_messages=2), wait_ms=10)
    world.ask(Heartbeat(**terms, epoch=1), Claim(**terms, epoch=1, number=2, messages_max=3))
    (page,) = world.ask(ReadClaim(**terms, number=1))
    world.ask(EvictMessage(**terms, number=1, message=page.messages[0].id))
    held = world.receive(queue, 1)
    yield {held[0].receipt: queue}
    world.ask(AcknowledgeClaims(**terms, epoch=1, number=1), wait_ms=100)
    world.ask(ReleaseClaim(**terms, number=2), wait_ms=100)
    world.ask(OpenSource(**terms, consumer="other", takeover=True))
    world.ask(Claim(**terms, epoch=2, number=3, messages_max=2))
    world.ask(CloseSource(**terms), wait_ms=100)


def publications(world: World) -> Iterator[Receipts]:
    """Two attempts are staged, one of them is published, a slice a time; a batch is given up."""
    queue = world.create("published")
    terms: dict[str, Any] = {"queue": queue, "writer": "w"}
    for part in range(2):
        new = tuple(message(f"{part}-{place}{LONG if place else ''}") for place in range(3))
        world.ask(Stage(**terms, batch=0, attempt="a", part=part, messages=new))
    world.ask(Stage(**terms, batch=0, attempt="b", part=0, messages=(message("never"),)))
    world.ask(Stage(**terms, batch=1, attempt="a", part=0, messages=(message("given up"),)))
    yield {}
    world.ask(Publish(**terms, batch=0, attempts=(("a", 6),)), wait_ms=100)
    world.ask(Abandon(**terms, batch=1), wait_ms=100)


def topics(world: World) -> Iterator[Receipts]:
    """A topic with a queue and an address that subscribe; both get a message, then one is left."""
    queue, topic = world.create("subscribed"), f"{ACCOUNT}/news"

    def make(notification: Notification) -> NewMessage:
        return message(f"{notification.subscription.name}{LONG}")

    world.ask(CreateTopic(topic=topic))
    world.ask(Subscribe(subscription=Subscription(topic=topic, name="q", endpoint=queue, queue=queue)))
    world.ask(Subscribe(subscription=Subscription(topic=topic, name="p", endpoint="u", push_url="u")))
    world.ask(PublishToTopic(topic=topic, size_bytes=1, make=make))
    held = world.receive(queue, 1)
    yield {held[0].receipt: queue}
    world.ask(SetTopic(topic=topic, settings={"message_bytes_max": 2_048}))
    world.ask(SetSubscription(topic=topic, name="p", strategy=RetryStrategy.EXPONENTIAL_DECAY))
    world.ask(Unsubscribe(topic=topic, name="q"), PublishToTopic(topic=topic, size_bytes=1, make=make))
    world.ask(DeleteTopic(topic=topic), wait_ms=1_000)


def forwards(world: World) -> Iterator[Receipts]:
    """Messages go on to another queue, sent and as dead letters."""
    intake, fast = world.create("intake"), world.create("fast")
    world.send(intake, "a", f"b{LONG}", "c", "d")
    held = world.receive(intake, 4)

    def forward(*which: int, reasons: dict[str, str] | None = None) -> Forward:
        entries = (ForwardEntry(receipt=held[each].receipt, target=fast, reasons=reasons) for each in which)
        return Forward(queue=intake, entries=tuple(entries))

    world.ask(forward(0, 1))
    yield {held[2].receipt: intake, held[3].receipt: intake}
    world.ask(forward(2, reasons={"why": "no"}), Delete(queue=intake, receipts=(held[3].receipt,)))


def events(world: World) -> Iterator[Receipts]:
    """What the scenes before have logged is exported, in two parts."""
    for part in range(2):
        (counts,) = world.ask(CountEvents())
        assert counts.recorded > counts.exported
        (planned,) = world.ask(PlanExport(events_max=3 if part == 0 else 1_000))
        world.ask(ReadEvents(first=planned.first, last=planned.last, bytes_max=1 << 20))
        world.ask(ForgetEvents(last=planned.last))
        if part == 0:
            yield {}


SCENES: tuple[Scene, ...] = (
    settings, standard, ordered, dead_letters, claims, publications, topics, forwards, events,
)  # fmt: skip

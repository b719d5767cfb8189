"""Families of calls that share data. Each call of a family is interleaved with each other one."""

from collections.abc import Callable, Mapping
from typing import Any

from tests.internals.store.interleaved import (
    ACCOUNT,
    DEAD,
    GONE,
    JOBS,
    NEW,
    OTHER,
    TOPIC,
    CommandFactory,
    Family,
    Number,
    Sweep,
    World,
    create,
    fixed,
    receive,
    send_command,
)
from tests.store.host import message
from veilmq.core import claims, commands, topics
from veilmq.core.claims import Abandon, ListWriters, Publish, Stage
from veilmq.core.commands import (
    ChangeVisibility,
    Delete,
    InspectLeases,
    InspectQueue,
    Receive,
    SetAccount,
    ShowAccount,
    VisibilityChange,
)
from veilmq.core.limits import PURGE_PAUSE_S, SECOND_MS, WRITER_SILENCE_S
from veilmq.core.receipts import CountEvents, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.settings import AccountSettings
from veilmq.core.topics import Forward, ForwardEntry
from veilmq.store.claims import ClaimStep
from veilmq.store.moves import MoveStep
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.publications import PublicationStep

PAUSE_MS = PURGE_PAUSE_S * SECOND_MS


async def with_dead_letters(world: World, jobs: str, dead: str) -> None:
    await create(world, dead)
    await create(world, jobs, dead_letter_queue=dead, receives_max=1)
    await world.do(send_command(jobs, "ax", "by"))
    for _ in range(2):
        await receive(world, jobs, timeout_s=1)
        await world.advance(2 * SECOND_MS)


# Queues.


async def build_queues(world: World) -> None:
    await create(world, JOBS)
    await create(world, GONE)
    await world.do(commands.PurgeQueue(queue=JOBS))
    await world.do(commands.DeleteQueue(queue=GONE))
    await world.do(commands.DeleteQueue(queue=JOBS))
    await world.advance(PAUSE_MS + SECOND_MS)
    await with_dead_letters(world, JOBS, DEAD)
    await world.do(commands.PurgeQueue(queue=JOBS))
    await world.advance(PAUSE_MS + SECOND_MS)
    await create(world, OTHER, policy="old")
    await world.do(send_command(JOBS, "a", "b", "c"))
    await receive(world, JOBS, count=1)


QUEUES = Family(
    build_queues,
    {
        "create": fixed(commands.CreateQueue(queue=JOBS)),
        "create another": fixed(
            commands.CreateQueue(queue=NEW, settings={"dead_letter_queue": DEAD, "receives_max": 2}, tags={"x": "1"})
        ),
        "create otherwise": fixed(commands.CreateQueue(queue=NEW, settings={"delay_s": 7})),
        "create again": fixed(commands.CreateQueue(queue=GONE)),
        "delete": fixed(commands.DeleteQueue(queue=JOBS)),
        "delete dead": fixed(commands.DeleteQueue(queue=DEAD)),
        "delete another": fixed(commands.DeleteQueue(queue=NEW)),
        "purge": fixed(commands.PurgeQueue(queue=JOBS)),
        "purge dead": fixed(commands.PurgeQueue(queue=DEAD)),
        "set": fixed(commands.SetQueue(queue=JOBS, settings={"delay_s": 5})),
        "set rest": fixed(commands.SetQueue(queue=JOBS, settings={"visibility_timeout_s": 5, "retention_s": 70})),
        "set dead": fixed(commands.SetQueue(queue=OTHER, settings={"dead_letter_queue": DEAD, "receives_max": 3})),
        "set another": fixed(commands.SetQueue(queue=NEW, settings={"delay_s": 9})),
        "tag another": fixed(commands.TagQueue(queue=NEW, tags={"a": "1"})),
        "edit": fixed(commands.EditQueue(queue=JOBS, setting="policy", edit=lambda was: f"{was}x")),
        "tag": fixed(commands.TagQueue(queue=JOBS, tags={"a": "1"})),
        "tag otherwise": fixed(commands.TagQueue(queue=JOBS, tags={"b": "2"}, removed=("a",))),
        "start move": fixed(commands.StartMove(source=DEAD)),
        "move": fixed(MoveStep()),
        "send": fixed(send_command(JOBS, "d", "e")),
        "receive": fixed(Receive(queue=JOBS, count=10)),
        "delete message": lambda saved: Delete(queue=JOBS, receipts=(saved["a"],)),
        "set account": fixed(SetAccount(account=ACCOUNT, settings=AccountSettings(logging_bucket="x"))),
        "set account otherwise": fixed(SetAccount(account=ACCOUNT, settings=AccountSettings(logging_bucket="y"))),
        "show account": fixed(ShowAccount(account=ACCOUNT)),
        "show": fixed(commands.ShowQueue(queue=JOBS, counts=True)),
        "list": fixed(commands.ListQueues(account=ACCOUNT)),
        "list sources": fixed(commands.ListDeadLetterSources(queue=DEAD)),
        "sweep": fixed(Sweep()),
    },
)


# Moves.


async def build_moves(world: World) -> None:
    await with_dead_letters(world, JOBS, DEAD)
    await create(world, OTHER)
    task = await world.do(commands.StartMove(source=DEAD))
    world.saved["task"] = task.id


async def build_moves_in_flight(world: World) -> None:
    await with_dead_letters(world, f"{JOBS}.fifo", f"{DEAD}.fifo")
    await create(world, f"{OTHER}.fifo")
    task = await world.do(commands.StartMove(source=f"{DEAD}.fifo", moves_per_s_max=10))
    world.saved["task"] = task.id
    await receive(world, f"{DEAD}.fifo", count=1)


def move_calls(end: str) -> dict[str, CommandFactory]:
    jobs, other, dead = JOBS + end, OTHER + end, DEAD + end
    return {
        "start": fixed(commands.StartMove(source=dead)),
        "start elsewhere": fixed(commands.StartMove(source=dead, destination=other, moves_per_s_max=10)),
        "cancel": lambda saved: commands.CancelMove(source=dead, task=saved["task"]),
        "move": fixed(MoveStep()),
        "list moves": fixed(commands.ListMoves(source=dead)),
        "purge": fixed(commands.PurgeQueue(queue=jobs)),
        "delete": fixed(commands.DeleteQueue(queue=jobs)),
        "purge dead": fixed(commands.PurgeQueue(queue=dead)),
        "delete dead": fixed(commands.DeleteQueue(queue=dead)),
        "set": fixed(commands.SetQueue(queue=jobs, settings={"dead_letter_queue": ""})),
        "set dead": fixed(commands.SetQueue(queue=dead, settings={"delay_s": 5})),
        "send": fixed(send_command(jobs, "ac", "ad")),
        "receive dead": fixed(Receive(queue=dead, count=1)),
        "receive": fixed(Receive(queue=jobs, count=10)),
        "open": fixed(claims.OpenSource(queue=dead, source="s")),
        "sweep": fixed(Sweep()),
    }


_MOVERS = frozenset({"move", "receive dead"})
MOVES = Family(build_moves, move_calls(""), takers=_MOVERS)
MOVES_FIFO = Family(
    build_moves_in_flight,
    {
        **move_calls(".fifo"),
        "delete message": lambda saved: Delete(queue=f"{DEAD}.fifo", receipts=(saved["ax"],)),
        "forward": lambda saved: Forward(
            queue=f"{DEAD}.fifo", entries=(ForwardEntry(receipt=saved["ax"], target=f"{OTHER}.fifo"),)
        ),
    },
    takers=_MOVERS,
    group_lockers=frozenset({"set dead"}),
)


# Topics.


def subscription(name: str, queue: str = "", **others: Any) -> topics.Subscription:
    url: dict[str, Any] = {} if queue else {"push_url": f"https://hook.example/{name}"}
    return topics.Subscription(topic=TOPIC, name=name, endpoint=name, queue=queue, **url, **others)


async def build_topics(world: World) -> None:
    for queue in (JOBS, OTHER):
        await create(world, queue)
    await world.do(topics.CreateTopic(topic=TOPIC))
    for each in (subscription("jobs", JOBS), subscription("pushed")):
        await world.do(topics.Subscribe(subscription=each))


TOPICS = Family(
    build_topics,
    {
        "create": fixed(topics.CreateTopic(topic=TOPIC)),
        "create another": fixed(topics.CreateTopic(topic=f"{TOPIC}2")),
        "create otherwise": fixed(topics.CreateTopic(topic=f"{TOPIC}2", settings={"message_bytes_max": 2_000})),
        "set": fixed(topics.SetTopic(topic=TOPIC, settings={"message_bytes_max": 2_000})),
        "set rest": fixed(topics.SetTopic(topic=TOPIC, settings={"operations_logged": True})),
        "set another": fixed(topics.SetTopic(topic=f"{TOPIC}2", settings={"operations_logged": True})),
        "delete another": fixed(topics.DeleteTopic(topic=f"{TOPIC}2")),
        "delete": fixed(topics.DeleteTopic(topic=TOPIC)),
        "subscribe": fixed(topics.Subscribe(subscription=subscription("other", OTHER))),
        "subscribe otherwise": fixed(topics.Subscribe(subscription=subscription("other", JOBS))),
        "subscribe pushed": fixed(topics.Subscribe(subscription=subscription("pushed2"))),
        "subscribe again": fixed(topics.Subscribe(subscription=subscription("pushed"))),
        "change": fixed(
            topics.SetSubscription(topic=TOPIC, name="pushed", strategy=topics.RetryStrategy.EXPONENTIAL_DECAY)
        ),
        "unsubscribe": fixed(topics.Unsubscribe(topic=TOPIC, name="jobs")),
        "unsubscribe pushed": fixed(topics.Unsubscribe(topic=TOPIC, name="pushed")),
        "publish": fixed(
            topics.PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda given: message(given.subscription.name))
        ),
        "show": fixed(topics.ShowTopic(topic=TOPIC)),
        "list": fixed(topics.ListTopics(account=ACCOUNT)),
        "show pushed": fixed(topics.ShowSubscription(topic=TOPIC, name="pushed")),
        "list subscriptions": fixed(topics.ListSubscriptions(topic=TOPIC)),
        "list pushes": fixed(topics.ListPushes()),
        "delete queue": fixed(commands.DeleteQueue(queue=JOBS)),
        "purge queue": fixed(commands.PurgeQueue(queue=JOBS)),
        "set queue": fixed(commands.SetQueue(queue=JOBS, settings={"delay_s": 5})),
    },
)


# Forwards.


def forwards_builder(end: str) -> Callable[[World], Any]:
    async def build(world: World) -> None:
        for queue in (DEAD + end, OTHER + end):
            await create(world, queue)
        await create(world, JOBS + end, dead_letter_queue=DEAD + end, receives_max=1)
        await world.do(send_command(JOBS + end, "aa", "ab", "ba"))
        await world.do(send_command(OTHER + end, "ca"))
        await receive(world, JOBS + end)
        await receive(world, OTHER + end)

    return build


def forward_calls(end: str) -> dict[str, CommandFactory]:
    jobs, other, dead = JOBS + end, OTHER + end, DEAD + end

    def to(target: str, *bodies: str, queue: str = jobs, reasons: Mapping[str, str] | None = None) -> CommandFactory:
        why = None if reasons is None else dict(reasons)
        return lambda saved: Forward(
            queue=queue, entries=tuple(ForwardEntry(receipt=saved[body], target=target, reasons=why) for body in bodies)
        )

    return {
        "forward": to(other, "aa", "ba"),
        "forward one": to(other, "ba"),
        "forward back": to(jobs, "ca", queue=other),
        "bury": to(dead, "aa", "ba", reasons={"why": "x"}),
        "bury both ways": to(dead, "ba", "aa", reasons={}),
        "delete message": lambda saved: Delete(queue=jobs, receipts=(saved["aa"], saved["ba"])),
        "release message": lambda saved: ChangeVisibility(
            queue=jobs, changes=(VisibilityChange(receipt=saved["ba"], timeout_s=0),)
        ),
        "receive": fixed(Receive(queue=jobs, count=10)),
        "receive other": fixed(Receive(queue=other, count=10)),
        "send": fixed(send_command(other, "ba", "ac")),
        "look": fixed(InspectLeases(queue=jobs)),
        "purge": fixed(commands.PurgeQueue(queue=jobs)),
        "delete": fixed(commands.DeleteQueue(queue=jobs)),
        "purge other": fixed(commands.PurgeQueue(queue=other)),
        "delete other": fixed(commands.DeleteQueue(queue=other)),
        "set other": fixed(commands.SetQueue(queue=other, settings={"delay_s": 5})),
        "delete dead": fixed(commands.DeleteQueue(queue=dead)),
        "start move": fixed(commands.StartMove(source=dead)),
        "move": fixed(MoveStep()),
        "open": fixed(claims.OpenSource(queue=other, source="s")),
        "sweep": fixed(Sweep()),
    }


FORWARDS = Family(forwards_builder(""), forward_calls(""))
FORWARDS_FIFO = Family(forwards_builder(".fifo"), forward_calls(".fifo"))


# Events.


async def build_events(world: World) -> None:
    """Create events that are planned, one that is numbered, one that is not, and a receipt that has not ended."""
    await create(world, JOBS)
    await world.do(send_command(JOBS, "a", "b", "c", "d"))
    await receive(world, JOBS)
    for body in "ab":
        await world.do(Delete(queue=JOBS, receipts=(world.saved[body],)))
        await world.do(Number())
    await world.do(PlanExport(events_max=1))
    await world.do(Delete(queue=JOBS, receipts=(world.saved["c"],)))


EVENTS = Family(
    build_events,
    {
        "plan": fixed(PlanExport(events_max=1)),
        "read": fixed(ReadEvents(first=1, last=1, bytes_max=1_000)),
        "forget": fixed(ForgetEvents(last=1)),
        "count": fixed(CountEvents()),
        "number": fixed(Number()),
        "delete message": lambda saved: Delete(queue=JOBS, receipts=(saved["d"],)),
        "purge": fixed(commands.PurgeQueue(queue=JOBS)),
        "delete": fixed(commands.DeleteQueue(queue=JOBS)),
        "set": fixed(commands.SetQueue(queue=JOBS, settings={"event_log": "off"})),
        "sweep": fixed(Sweep()),
    },
    PostgresOptions(event_log="closed"),
)

# Claims.


def claims_builder(end: str, *, hours: int = 0) -> Callable[[World], Any]:
    async def build(world: World) -> None:
        jobs = JOBS + end
        await create(world, DEAD + end)
        await create(world, jobs, dead_letter_queue=DEAD + end, receives_max=5)
        await world.do(send_command(jobs, *"abcde", *("aa", "bb", "cc", "dd", "ee")))
        for source in ("s", "t"):
            await world.do(claims.OpenSource(queue=jobs, source=source, consumer=f"of {source}"))
        for number in (1, 2):
            await world.do(claims.Claim(queue=jobs, source="s", epoch=1, number=number, messages_max=3))
        await world.advance(hours * 3_600 * SECOND_MS)
        seen = await world.do(InspectQueue(queue=jobs, count=1))
        world.saved["message"] = seen[0].id

    return build


def claim_calls(end: str) -> dict[str, CommandFactory]:
    jobs = JOBS + end
    s: dict[str, Any] = {"queue": jobs, "source": "s"}
    current: dict[str, Any] = {**s, "epoch": 1}
    return {
        "open": fixed(claims.OpenSource(**s, consumer="of s")),
        "open another": fixed(claims.OpenSource(queue=jobs, source="u", consumer="of s")),
        "take over": fixed(claims.OpenSource(queue=jobs, source="t", consumer="of s", takeover=True)),
        "open newer": fixed(claims.OpenSource(queue=jobs, source="v", consumer="new")),
        "open newest": fixed(claims.OpenSource(queue=jobs, source="w", consumer="new")),
        "beat": fixed(claims.Heartbeat(**current, hold_s=900)),
        "claim": fixed(claims.Claim(**current, number=2, messages_max=3)),
        "claim next": fixed(claims.Claim(**current, number=3, messages_max=3)),
        "claim otherwise": fixed(claims.Claim(queue=jobs, source="t", epoch=1, number=1, messages_max=3)),
        "acknowledge": fixed(claims.AcknowledgeClaims(**current, number=1)),
        "acknowledge all": fixed(claims.AcknowledgeClaims(**current, number=2)),
        "read": fixed(claims.ReadClaim(**s, number=1)),
        "read part": fixed(claims.ReadClaim(**s, number=2)),
        "release": fixed(claims.ReleaseClaim(**s, number=1)),
        "evict": lambda saved: claims.EvictMessage(**s, number=1, message=saved["message"]),
        "close": fixed(claims.CloseSource(**s)),
        "list": fixed(claims.ListSources(queue=jobs)),
        "end": fixed(ClaimStep()),
        "purge": fixed(commands.PurgeQueue(queue=jobs)),
        "delete": fixed(commands.DeleteQueue(queue=jobs)),
        "purge dead": fixed(commands.PurgeQueue(queue=DEAD + end)),
        "set": fixed(commands.SetQueue(queue=jobs, settings={"dead_letter_queue": ""})),
        "receive": fixed(Receive(queue=jobs, count=2)),
        "sweep": fixed(Sweep()),
    }


_SLICED = PostgresOptions(claim_slice_rows=2)
_TAKERS = frozenset({"claim", "claim next", "claim otherwise", "receive"})
CLAIMS = Family(claims_builder(""), claim_calls(""), _SLICED, _TAKERS)
CLAIMS_FIFO = Family(claims_builder(".fifo"), claim_calls(".fifo"), _SLICED, _TAKERS)
CLAIMS_LATE = Family(claims_builder("", hours=24), claim_calls(""), _SLICED, _TAKERS)


# Publications.


def stage_command(
    queue: str, *bodies: str, writer: str = "w", batch: int = 0, part: int = 0, attempt: str = "a"
) -> Stage:
    return Stage(
        queue=queue,
        writer=writer,
        batch=batch,
        attempt=attempt,
        part=part,
        messages=send_command(queue, *bodies).messages,
    )


def publications_builder(end: str, *, silent: bool = False) -> Callable[[World], Any]:
    """Return a function that creates a writer with two batches; the first one is published slowly."""

    async def build(world: World) -> None:
        jobs = JOBS + end
        await create(world, jobs)
        await world.do(stage_command(jobs, "aa", "ab", "ba"))
        await world.do(stage_command(jobs, "xx", attempt="dropped"))
        await world.do(stage_command(jobs, "ac", "bb", batch=1))
        await world.do(Publish(queue=jobs, writer="w", batch=0, attempts=(("a", 3),), messages_per_s_max=10))
        await world.advance(WRITER_SILENCE_S * SECOND_MS if silent else SECOND_MS)

    return build


def publication_calls(end: str) -> dict[str, CommandFactory]:
    jobs = JOBS + end
    w: dict[str, Any] = {"queue": jobs, "writer": "w"}
    return {
        "stage": fixed(stage_command(jobs, "ad", batch=1, part=1)),
        "stage again": fixed(stage_command(jobs, "ac", "bb", batch=1)),
        "stage otherwise": fixed(stage_command(jobs, "ae", batch=1, attempt="b")),
        "stage new": fixed(stage_command(jobs, "n", writer="new")),
        "publish first": fixed(Publish(**w, batch=0, attempts=(("a", 3),))),
        "publish": fixed(Publish(**w, batch=1, attempts=(("a", 2),))),
        "publish both": fixed(Publish(**w, batch=1, attempts=(("a", 2), ("b", 1)))),
        "publish new": fixed(Publish(queue=jobs, writer="new", batch=0, attempts=())),
        "abandon": fixed(Abandon(**w, batch=1)),
        "list": fixed(ListWriters(queue=jobs)),
        "enter": fixed(PublicationStep()),
        "purge": fixed(commands.PurgeQueue(queue=jobs)),
        "delete": fixed(commands.DeleteQueue(queue=jobs)),
        "set": fixed(commands.SetQueue(queue=jobs, settings={"message_bytes_max": 1_024})),
        "send": fixed(send_command(jobs, "az", "ad")),
        "receive": fixed(Receive(queue=jobs, count=10)),
    }


PUBLICATIONS = Family(publications_builder(""), publication_calls(""))
PUBLICATIONS_FIFO = Family(
    publications_builder(".fifo"),
    publication_calls(".fifo"),
    takers=frozenset({"receive"}),
    group_lockers=frozenset({"publish", "publish first", "enter"}),
)
PUBLICATIONS_LATE = Family(publications_builder("", silent=True), publication_calls(""))

FAMILIES = {
    "queues": QUEUES,
    "moves": MOVES,
    "moves fifo": MOVES_FIFO,
    "topics": TOPICS,
    "forwards": FORWARDS,
    "forwards fifo": FORWARDS_FIFO,
    "events": EVENTS,
    "claims": CLAIMS,
    "claims fifo": CLAIMS_FIFO,
    "claims late": CLAIMS_LATE,
    "publications": PUBLICATIONS,
    "publications fifo": PUBLICATIONS_FIFO,
    "publications late": PUBLICATIONS_LATE,
}

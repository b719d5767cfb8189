"""Which calls share data, in which world: a family is a table of calls, each of which meets each."""

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
    Family,
    Make,
    Number,
    Sweep,
    World,
    create,
    just,
    receive,
    sending,
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
    await world.do(sending(jobs, "ax", "by"))
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
    await world.do(sending(JOBS, "a", "b", "c"))
    await receive(world, JOBS, count=1)


QUEUES = Family(
    build_queues,
    {
        "create": just(commands.CreateQueue(queue=JOBS)),
        "create another": just(
            commands.CreateQueue(queue=NEW, settings={"dead_letter_queue": DEAD, "receives_max": 2}, tags={"x": "1"})
        ),
        "create otherwise": just(commands.CreateQueue(queue=NEW, settings={"delay_s": 7})),
        "create again": just(commands.CreateQueue(queue=GONE)),
        "delete": just(commands.DeleteQueue(queue=JOBS)),
        "delete dead": just(commands.DeleteQueue(queue=DEAD)),
        "delete another": just(commands.DeleteQueue(queue=NEW)),
        "purge": just(commands.PurgeQueue(queue=JOBS)),
        "purge dead": just(commands.PurgeQueue(queue=DEAD)),
        "set": just(commands.SetQueue(queue=JOBS, settings={"delay_s": 5})),
        "set rest": just(commands.SetQueue(queue=JOBS, settings={"visibility_timeout_s": 5, "retention_s": 70})),
        "set dead": just(commands.SetQueue(queue=OTHER, settings={"dead_letter_queue": DEAD, "receives_max": 3})),
        "set another": just(commands.SetQueue(queue=NEW, settings={"delay_s": 9})),
        "tag another": just(commands.TagQueue(queue=NEW, tags={"a": "1"})),
        "edit": just(commands.EditQueue(queue=JOBS, setting="policy", edit=lambda was: f"{was}x")),
        "tag": just(commands.TagQueue(queue=JOBS, tags={"a": "1"})),
        "tag otherwise": just(commands.TagQueue(queue=JOBS, tags={"b": "2"}, removed=("a",))),
        "start move": just(commands.StartMove(source=DEAD)),
        "move": just(MoveStep()),
        "send": just(sending(JOBS, "d", "e")),
        "receive": just(Receive(queue=JOBS, count=10)),
        "delete message": lambda kept: Delete(queue=JOBS, receipts=(kept["a"],)),
        "set account": just(SetAccount(account=ACCOUNT, settings=AccountSettings(logging_bucket="x"))),
        "set account otherwise": just(SetAccount(account=ACCOUNT, settings=AccountSettings(logging_bucket="y"))),
        "show account": just(ShowAccount(account=ACCOUNT)),
        "show": just(commands.ShowQueue(queue=JOBS, counts=True)),
        "list": just(commands.ListQueues(account=ACCOUNT)),
        "list sources": just(commands.ListDeadLetterSources(queue=DEAD)),
        "sweep": just(Sweep()),
    },
)


# Moves.


async def build_moves(world: World) -> None:
    await with_dead_letters(world, JOBS, DEAD)
    await create(world, OTHER)
    task = await world.do(commands.StartMove(source=DEAD))
    world.kept["task"] = task.id


async def build_moves_held(world: World) -> None:
    await with_dead_letters(world, f"{JOBS}.fifo", f"{DEAD}.fifo")
    await create(world, f"{OTHER}.fifo")
    task = await world.do(commands.StartMove(source=f"{DEAD}.fifo", moves_per_s_max=10))
    world.kept["task"] = task.id
    await receive(world, f"{DEAD}.fifo", count=1)


def moves(end: str) -> dict[str, Make]:
    jobs, other, dead = JOBS + end, OTHER + end, DEAD + end
    return {
        "start": just(commands.StartMove(source=dead)),
        "start elsewhere": just(commands.StartMove(source=dead, destination=other, moves_per_s_max=10)),
        "cancel": lambda kept: commands.CancelMove(source=dead, task=kept["task"]),
        "move": just(MoveStep()),
        "list moves": just(commands.ListMoves(source=dead)),
        "purge": just(commands.PurgeQueue(queue=jobs)),
        "delete": just(commands.DeleteQueue(queue=jobs)),
        "purge dead": just(commands.PurgeQueue(queue=dead)),
        "delete dead": just(commands.DeleteQueue(queue=dead)),
        "set": just(commands.SetQueue(queue=jobs, settings={"dead_letter_queue": ""})),
        "set dead": just(commands.SetQueue(queue=dead, settings={"delay_s": 5})),
        "send": just(sending(jobs, "ac", "ad")),
        "receive dead": just(Receive(queue=dead, count=1)),
        "receive": just(Receive(queue=jobs, count=10)),
        "open": just(claims.OpenSource(queue=dead, source="s")),
        "sweep": just(Sweep()),
    }


_MOVERS = frozenset({"move", "receive dead"})
MOVES = Family(build_moves, moves(""), takers=_MOVERS)
MOVES_FIFO = Family(
    build_moves_held,
    {
        **moves(".fifo"),
        "delete message": lambda kept: Delete(queue=f"{DEAD}.fifo", receipts=(kept["ax"],)),
        "forward": lambda kept: Forward(
            queue=f"{DEAD}.fifo", entries=(ForwardEntry(receipt=kept["ax"], target=f"{OTHER}.fifo"),)
        ),
    },
    takers=_MOVERS,
    passed_over=frozenset({"set dead"}),
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
        "create": just(topics.CreateTopic(topic=TOPIC)),
        "create another": just(topics.CreateTopic(topic=f"{TOPIC}2")),
        "create otherwise": just(topics.CreateTopic(topic=f"{TOPIC}2", settings={"message_bytes_max": 2_000})),
        "set": just(topics.SetTopic(topic=TOPIC, settings={"message_bytes_max": 2_000})),
        "set rest": just(topics.SetTopic(topic=TOPIC, settings={"operations_logged": True})),
        "set another": just(topics.SetTopic(topic=f"{TOPIC}2", settings={"operations_logged": True})),
        "delete another": just(topics.DeleteTopic(topic=f"{TOPIC}2")),
        "delete": just(topics.DeleteTopic(topic=TOPIC)),
        "subscribe": just(topics.Subscribe(subscription=subscription("other", OTHER))),
        "subscribe otherwise": just(topics.Subscribe(subscription=subscription("other", JOBS))),
        "subscribe pushed": just(topics.Subscribe(subscription=subscription("pushed2"))),
        "subscribe again": just(topics.Subscribe(subscription=subscription("pushed"))),
        "change": just(
            topics.SetSubscription(topic=TOPIC, name="pushed", strategy=topics.RetryStrategy.EXPONENTIAL_DECAY)
        ),
        "unsubscribe": just(topics.Unsubscribe(topic=TOPIC, name="jobs")),
        "unsubscribe pushed": just(topics.Unsubscribe(topic=TOPIC, name="pushed")),
        "publish": just(
            topics.PublishToTopic(topic=TOPIC, size_bytes=1, make=lambda given: message(given.subscription.name))
        ),
        "show": just(topics.ShowTopic(topic=TOPIC)),
        "list": just(topics.ListTopics(account=ACCOUNT)),
        "show pushed": just(topics.ShowSubscription(topic=TOPIC, name="pushed")),
        "list subscriptions": just(topics.ListSubscriptions(topic=TOPIC)),
        "list pushes": just(topics.ListPushes()),
        "delete queue": just(commands.DeleteQueue(queue=JOBS)),
        "purge queue": just(commands.PurgeQueue(queue=JOBS)),
        "set queue": just(commands.SetQueue(queue=JOBS, settings={"delay_s": 5})),
    },
)


# Forwards.


def building_forwards(end: str) -> Callable[[World], Any]:
    async def build(world: World) -> None:
        for queue in (DEAD + end, OTHER + end):
            await create(world, queue)
        await create(world, JOBS + end, dead_letter_queue=DEAD + end, receives_max=1)
        await world.do(sending(JOBS + end, "aa", "ab", "ba"))
        await world.do(sending(OTHER + end, "ca"))
        await receive(world, JOBS + end)
        await receive(world, OTHER + end)

    return build


def forwarding(end: str) -> dict[str, Make]:
    jobs, other, dead = JOBS + end, OTHER + end, DEAD + end

    def to(target: str, *bodies: str, queue: str = jobs, reasons: Mapping[str, str] | None = None) -> Make:
        why = None if reasons is None else dict(reasons)
        return lambda kept: Forward(
            queue=queue, entries=tuple(ForwardEntry(receipt=kept[body], target=target, reasons=why) for body in bodies)
        )

    return {
        "forward": to(other, "aa", "ba"),
        "forward one": to(other, "ba"),
        "forward back": to(jobs, "ca", queue=other),
        "bury": to(dead, "aa", "ba", reasons={"why": "x"}),
        "bury both ways": to(dead, "ba", "aa", reasons={}),
        "delete message": lambda kept: Delete(queue=jobs, receipts=(kept["aa"], kept["ba"])),
        "release message": lambda kept: ChangeVisibility(
            queue=jobs, changes=(VisibilityChange(receipt=kept["ba"], timeout_s=0),)
        ),
        "receive": just(Receive(queue=jobs, count=10)),
        "receive other": just(Receive(queue=other, count=10)),
        "send": just(sending(other, "ba", "ac")),
        "look": just(InspectLeases(queue=jobs)),
        "purge": just(commands.PurgeQueue(queue=jobs)),
        "delete": just(commands.DeleteQueue(queue=jobs)),
        "purge other": just(commands.PurgeQueue(queue=other)),
        "delete other": just(commands.DeleteQueue(queue=other)),
        "set other": just(commands.SetQueue(queue=other, settings={"delay_s": 5})),
        "delete dead": just(commands.DeleteQueue(queue=dead)),
        "start move": just(commands.StartMove(source=dead)),
        "move": just(MoveStep()),
        "open": just(claims.OpenSource(queue=other, source="s")),
        "sweep": just(Sweep()),
    }


FORWARDS = Family(building_forwards(""), forwarding(""))
FORWARDS_FIFO = Family(building_forwards(".fifo"), forwarding(".fifo"))


# Events.


async def build_events(world: World) -> None:
    """Make events that are planned, one that is numbered, one that is not, and a receipt that has not ended."""
    await create(world, JOBS)
    await world.do(sending(JOBS, "a", "b", "c", "d"))
    await receive(world, JOBS)
    for body in "ab":
        await world.do(Delete(queue=JOBS, receipts=(world.kept[body],)))
        await world.do(Number())
    await world.do(PlanExport(events_max=1))
    await world.do(Delete(queue=JOBS, receipts=(world.kept["c"],)))


EVENTS = Family(
    build_events,
    {
        "plan": just(PlanExport(events_max=1)),
        "read": just(ReadEvents(first=1, last=1, bytes_max=1_000)),
        "forget": just(ForgetEvents(last=1)),
        "count": just(CountEvents()),
        "number": just(Number()),
        "delete message": lambda kept: Delete(queue=JOBS, receipts=(kept["d"],)),
        "purge": just(commands.PurgeQueue(queue=JOBS)),
        "delete": just(commands.DeleteQueue(queue=JOBS)),
        "set": just(commands.SetQueue(queue=JOBS, settings={"event_log": "off"})),
        "sweep": just(Sweep()),
    },
    PostgresOptions(event_log="closed"),
)

# Claims.


def building_claims(end: str, *, hours: int = 0) -> Callable[[World], Any]:
    async def build(world: World) -> None:
        jobs = JOBS + end
        await create(world, DEAD + end)
        await create(world, jobs, dead_letter_queue=DEAD + end, receives_max=5)
        await world.do(sending(jobs, *"abcde", *("aa", "bb", "cc", "dd", "ee")))
        for source in ("s", "t"):
            await world.do(claims.OpenSource(queue=jobs, source=source, consumer=f"of {source}"))
        for number in (1, 2):
            await world.do(claims.Claim(queue=jobs, source="s", epoch=1, number=number, messages_max=3))
        await world.advance(hours * 3_600 * SECOND_MS)
        seen = await world.do(InspectQueue(queue=jobs, count=1))
        world.kept["message"] = seen[0].id

    return build


def claiming(end: str) -> dict[str, Make]:
    jobs = JOBS + end
    s: dict[str, Any] = {"queue": jobs, "source": "s"}
    current: dict[str, Any] = {**s, "epoch": 1}
    return {
        "open": just(claims.OpenSource(**s, consumer="of s")),
        "open another": just(claims.OpenSource(queue=jobs, source="u", consumer="of s")),
        "take over": just(claims.OpenSource(queue=jobs, source="t", consumer="of s", takeover=True)),
        "open newer": just(claims.OpenSource(queue=jobs, source="v", consumer="new")),
        "open newest": just(claims.OpenSource(queue=jobs, source="w", consumer="new")),
        "beat": just(claims.Heartbeat(**current, hold_s=900)),
        "claim": just(claims.Claim(**current, number=2, messages_max=3)),
        "claim next": just(claims.Claim(**current, number=3, messages_max=3)),
        "claim otherwise": just(claims.Claim(queue=jobs, source="t", epoch=1, number=1, messages_max=3)),
        "acknowledge": just(claims.AcknowledgeClaims(**current, number=1)),
        "acknowledge all": just(claims.AcknowledgeClaims(**current, number=2)),
        "read": just(claims.ReadClaim(**s, number=1)),
        "read part": just(claims.ReadClaim(**s, number=2)),
        "release": just(claims.ReleaseClaim(**s, number=1)),
        "evict": lambda kept: claims.EvictMessage(**s, number=1, message=kept["message"]),
        "close": just(claims.CloseSource(**s)),
        "list": just(claims.ListSources(queue=jobs)),
        "end": just(ClaimStep()),
        "purge": just(commands.PurgeQueue(queue=jobs)),
        "delete": just(commands.DeleteQueue(queue=jobs)),
        "purge dead": just(commands.PurgeQueue(queue=DEAD + end)),
        "set": just(commands.SetQueue(queue=jobs, settings={"dead_letter_queue": ""})),
        "receive": just(Receive(queue=jobs, count=2)),
        "sweep": just(Sweep()),
    }


_SLICED = PostgresOptions(claim_slice_rows=2)
_TAKERS = frozenset({"claim", "claim next", "claim otherwise", "receive"})
CLAIMS = Family(building_claims(""), claiming(""), _SLICED, _TAKERS)
CLAIMS_FIFO = Family(building_claims(".fifo"), claiming(".fifo"), _SLICED, _TAKERS)
CLAIMS_LATE = Family(building_claims("", hours=24), claiming(""), _SLICED, _TAKERS)


# Publications.


def staging(queue: str, *bodies: str, writer: str = "w", batch: int = 0, part: int = 0, attempt: str = "a") -> Stage:
    return Stage(
        queue=queue, writer=writer, batch=batch, attempt=attempt, part=part, messages=sending(queue, *bodies).messages
    )


def building_publications(end: str, *, silent: bool = False) -> Callable[[World], Any]:
    """Return what makes a writer with two batches, of which the first is decided and enters slowly."""

    async def build(world: World) -> None:
        jobs = JOBS + end
        await create(world, jobs)
        await world.do(staging(jobs, "aa", "ab", "ba"))
        await world.do(staging(jobs, "xx", attempt="dropped"))
        await world.do(staging(jobs, "ac", "bb", batch=1))
        await world.do(Publish(queue=jobs, writer="w", batch=0, attempts=(("a", 3),), messages_per_s_max=10))
        await world.advance(WRITER_SILENCE_S * SECOND_MS if silent else SECOND_MS)

    return build


def publishing(end: str) -> dict[str, Make]:
    jobs = JOBS + end
    w: dict[str, Any] = {"queue": jobs, "writer": "w"}
    return {
        "stage": just(staging(jobs, "ad", batch=1, part=1)),
        "stage again": just(staging(jobs, "ac", "bb", batch=1)),
        "stage otherwise": just(staging(jobs, "ae", batch=1, attempt="b")),
        "stage new": just(staging(jobs, "n", writer="new")),
        "publish first": just(Publish(**w, batch=0, attempts=(("a", 3),))),
        "publish": just(Publish(**w, batch=1, attempts=(("a", 2),))),
        "publish both": just(Publish(**w, batch=1, attempts=(("a", 2), ("b", 1)))),
        "publish new": just(Publish(queue=jobs, writer="new", batch=0, attempts=())),
        "abandon": just(Abandon(**w, batch=1)),
        "list": just(ListWriters(queue=jobs)),
        "enter": just(PublicationStep()),
        "purge": just(commands.PurgeQueue(queue=jobs)),
        "delete": just(commands.DeleteQueue(queue=jobs)),
        "set": just(commands.SetQueue(queue=jobs, settings={"message_bytes_max": 1_024})),
        "send": just(sending(jobs, "az", "ad")),
        "receive": just(Receive(queue=jobs, count=10)),
    }


PUBLICATIONS = Family(building_publications(""), publishing(""))
PUBLICATIONS_FIFO = Family(
    building_publications(".fifo"),
    publishing(".fifo"),
    takers=frozenset({"receive"}),
    passed_over=frozenset({"publish", "publish first", "enter"}),
)
PUBLICATIONS_LATE = Family(building_publications("", silent=True), publishing(""))

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

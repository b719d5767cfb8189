"""What two calls that interleave share: a world that is restored before each schedule, and what is seen of it after."""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from tests.internals.store.interleaving import Begin, OneConnection, Run
from tests.store.host import message
from veilmq.core import commands
from veilmq.core.claims import ListSources, ListWriters, SourceView
from veilmq.core.commands import Command, InspectQueue, Receive, Send, ShowAccount
from veilmq.core.errors import VeilmqError
from veilmq.core.limits import SQS_LIST_RESULTS
from veilmq.core.receipts import ReceiptCodec
from veilmq.core.settings import SettingValue
from veilmq.core.topics import ListSubscriptions, ListTopics
from veilmq.store.claims import ClaimStep
from veilmq.store.cold import COLD, STEPS
from veilmq.store.moves import MoveStep
from veilmq.store.postgres.background import number_events
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.engine import HOT, Coalescer, PostgresEngine
from veilmq.store.postgres.schema import CHECKS
from veilmq.store.postgres.transaction import run_cold, sweep
from veilmq.store.publications import PublicationStep
from veilmq.testing import VirtualClock

ACCOUNT = "a"
JOBS, OTHER, DEAD, NEW, GONE = (f"{ACCOUNT}/{name}" for name in ("jobs", "other", "dead", "new", "gone"))
TOPIC = f"{ACCOUNT}/news"
_BOOK = ReceiptCodec(keys=[bytes(32)])
_SLICES = 100  # more than what goes on by itself ever takes
_AT_ONCE_MS = 5  # a pause between two slices
_UNSTABLE = frozenset({"id", "message_id", "receipt", "generation", "position", "sequence", "node", "batches"})
"""What differs from run to run."""
_FREE = frozenset({"deliveries", "undeliverable", "messages_to_move", "next_due_ms"})
"""What may be as no serial order has it.

A message that is published finds a subscription whose queue goes: it is undeliverable there. A task may count what
another one, which ends, is moving. When to come again is no promise.
"""
_AS = {"SourceNotFound": "QueueNotFound", "MoveTaskNotFound": "QueueNotFound"}
"""What goes with its queue, which may have been found before."""

_TABLES = """
SELECT tablename FROM pg_tables WHERE schemaname = 'mq' AND tablename NOT IN ('migration', 'test_clock')
"""
_LEFT = """
SELECT (SELECT count(*) FROM mq.move) AS move, (SELECT count(*) FROM mq.source) AS source,
    (SELECT count(*) FROM mq.claim) AS claim, (SELECT count(*) FROM mq.writer) AS writer,
    (SELECT count(*) FROM mq.stage) AS stage, (SELECT count(*) FROM mq.piece) AS piece,
    (SELECT count(*) FROM mq.publication) AS publication, (SELECT count(*) FROM mq.topic) AS topic,
    (SELECT count(*) FROM mq.subscription) AS subscription, (SELECT count(*) FROM mq.event) AS event,
    (SELECT recorded + exported FROM mq.event_state) AS events,
    (SELECT count(*) FROM mq.setting WHERE name LIKE 'account %') AS account,
    (SELECT string_agg(kind || ' ' || name || ' ' || begun_at, ', ' ORDER BY kind, name) FROM mq.pause) AS pauses
"""
_CHECKS = " UNION ALL ".join(f"SELECT '{name}', * FROM ({query}) AS found" for name, query in CHECKS.items())
_WORK = {MoveStep: {"move"}, PublicationStep: {"writer", "publication"}, ClaimStep: {"source", "claim"}}


class Sweep(Command, frozen=True, kw_only=True):
    """Do what the janitor does."""


class Number(Command, frozen=True, kw_only=True):
    """Number events that are committed."""


class Node(PostgresEngine):
    """A node that has one connection and begins nothing by itself."""

    def __init__(self, connection: Any, *, options: PostgresOptions, clock: VirtualClock) -> None:
        database = cast(Any, OneConnection(connection))
        super().__init__(database, options=options, clock=clock)
        self.book = _BOOK
        for step in STEPS:
            self.workers[step] = cast(Any, SimpleNamespace(schedule=lambda: None))

    def start(self, work: Any) -> None:
        work.close()

    async def do(self, command: Command) -> Any:
        """Return the result of a command; raises its error."""
        if isinstance(command, (Sweep, Number)):
            async with self.database.connection() as connection:
                if isinstance(command, Sweep):
                    return await sweep(self, connection)
                return await number_events(connection, self.options)
        kind = type(command)
        if kind in COLD:
            return await run_cold(self, command)
        (answer,) = await Coalescer(self, (cast(Any, command).queue, kind), HOT[kind]).work([command])
        return answer


Make = Callable[[Mapping[str, Any]], Command]
"""Makes a command of what the world has kept: receipts and ids."""


class Family(NamedTuple):
    """Commands that share data: how their world is made, and the commands by name."""

    build: Callable[["World"], Awaitable[None]]
    calls: Mapping[str, Make]
    options: PostgresOptions = PostgresOptions()
    takers: frozenset[str] = frozenset()
    """Calls that take visible messages, and pass over those that another one is taking: which each gets is free."""
    passed_over: frozenset[str] = frozenset()
    """Calls that lock groups: beside one of them, a taker may pass over all that there is."""


class World:
    """A database as it is before each schedule, and what is seen of it."""

    def __init__(self, family: Family, monitor: Any) -> None:
        self.kept: dict[str, Any] = {}
        self.calls = family.calls
        self._options = family.options
        self._build = family.build
        self._monitor = monitor
        self._clock = VirtualClock()
        self._node = self._fresh()

    def _fresh(self, connection: Any = None) -> Node:
        return Node(connection or self._monitor, options=self._options, clock=self._clock)

    async def make(self) -> None:
        """Build it, and keep a copy."""
        await self.advance(0)
        await self._build(self)
        await self.advance(1)  # within a millisecond, what several nodes send has no order
        tables = [name for (name,) in await self._monitor.fetch(_TABLES)]
        await self._monitor.execute("DROP SCHEMA IF EXISTS kept CASCADE; CREATE SCHEMA kept")
        back = "SET LOCAL session_replication_role = replica;"
        for name in tables:
            await self._monitor.execute(f"CREATE TABLE kept.{name} AS SELECT * FROM mq.{name}")
            back += f"DELETE FROM mq.{name};"
            if await self._monitor.fetchval(f"SELECT count(*) FROM kept.{name}"):
                back += f"INSERT INTO mq.{name} OVERRIDING SYSTEM VALUE SELECT * FROM kept.{name};"
        await self._monitor.execute(f"CREATE PROCEDURE kept.back() LANGUAGE plpgsql AS $$ BEGIN {back} END $$")

    async def do(self, command: Command) -> Any:
        return await self._node.do(command)

    async def advance(self, time_ms: int) -> None:
        self._clock.advance(time_ms)
        await self._monitor.execute("UPDATE mq.test_clock SET now_ms = $1", self._clock.now_ms())

    async def restore(self, names: Sequence[str]) -> list[Begin]:
        """Return the calls of these names, for nodes of their own that know the queues, on the world as it was."""
        await self._monitor.execute("CALL kept.back()")
        return [self._call(name) for name in names]

    def _call(self, name: str) -> Begin:
        async def call(connection: Any) -> Any:
            command = self.calls[name](self.kept)
            answer = await self._fresh(connection).do(command)
            if isinstance(answer, SourceView):  # what is ready may be counted before a purge that comes between
                return replace(answer, ready=0, oldest_sent_at_ms=None)
            return None if type(command) in STEPS else answer  # when the next slice is due is no promise

        return call

    async def outcome(self, run: Run, resting: type[Command] | None = None) -> Any:
        """Return what is seen when what goes on by itself has ended, but for the step that is `resting`."""
        node = self._fresh()
        left = await self._monitor.fetchrow(_LEFT)
        for step in (
            step for step, tables in _WORK.items() if step is not resting and any(left[each] for each in tables)
        ):
            for _ in range(_SLICES):
                due_ms = await node.do(step())
                if due_ms is None or due_ms > _AT_ONCE_MS:
                    break
        wrong = [tuple(row) for row in await self._monitor.fetch(_CHECKS) if row[1]]
        answers = [plain(each) for each in run.answers]
        return {"answers": answers, "wrong": wrong, **await self._seen(node)}

    async def _seen(self, node: Node) -> dict[str, Any]:
        left = await self._monitor.fetchrow(_LEFT)
        if left["event"]:
            await node.do(Number())
            left = await self._monitor.fetchrow(_LEFT)
        seen: dict[str, Any] = {"left": str(left)}
        for account in (ACCOUNT, f"{ACCOUNT}~push") if left["topic"] else (ACCOUNT,):
            page = await node.do(commands.ListQueues(account=account, count=SQS_LIST_RESULTS.maximum, views=True))
            for view in page.views:
                seen[view.queue] = await _queue(node, view, left)
        if left["topic"]:
            seen["topics"] = topics = await node.do(ListTopics(account=ACCOUNT))
            seen |= {each.topic: await node.do(ListSubscriptions(topic=each.topic)) for each in topics.topics}
        if left["account"]:
            seen["account"] = await node.do(ShowAccount(account=ACCOUNT))
        return {name: plain(value) for name, value in seen.items()}


async def _queue(node: Node, view: Any, left: Any) -> dict[str, Any]:
    messages = plain(await node.do(InspectQueue(queue=view.queue)))
    # What two calls stored in a standard queue has no order that is promised.
    by = (lambda each: str(each["group"])) if view.settings.fifo else str
    seen = {"view": plain(view), "messages": sorted(messages, key=by)}
    for table, look in (
        ("move", commands.ListMoves(source=view.queue)),
        ("source", ListSources(queue=view.queue)),
        ("writer", ListWriters(queue=view.queue)),
    ):
        if left[table]:
            seen[table] = plain(await node.do(look))
    return seen


def conserved(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return what holds whichever messages each call has taken: what there is, and how much of it is in which state."""
    seen: dict[str, Any] = {"answers": [], "wrong": outcome["wrong"]}
    for name, queue in outcome.items():
        if isinstance(queue, dict) and "messages" in queue:
            bodies = sorted(each["body"] for each in queue["messages"])
            seen[name] = bodies, sorted((each["state"], each["receive_count"]) for each in queue["messages"])
    return seen


def plain(value: Any) -> Any:
    if isinstance(value, VeilmqError):
        name = type(value).__name__
        return _AS.get(name, name)
    if isinstance(value, Exception):
        return repr(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in _UNSTABLE | _FREE]
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


# What worlds are made with.


def just(command: Command) -> Make:
    return lambda kept: command


async def create(world: World, queue: str, **settings: SettingValue) -> None:
    fifo: dict[str, SettingValue] = {"fifo": True} if queue.endswith(".fifo") else {}
    await world.do(commands.CreateQueue(queue=queue, settings={**settings, **fifo}))


def sending(queue: str, *bodies: str) -> Send:
    """Return the command that sends messages; one that is called `xy` is of the group `x`."""
    is_fifo = queue.endswith(".fifo")
    terms: list[dict[str, Any]] = [{"group": body[0], "dedup_id": body} if is_fifo else {} for body in bodies]
    return Send(queue=queue, messages=tuple(message(body, **each) for body, each in zip(bodies, terms, strict=True)))


async def receive(world: World, queue: str, count: int = 10, timeout_s: int = 600) -> None:
    """Receive messages; keep receipts and ids by their bodies."""
    received = await world.do(Receive(queue=queue, count=count, timeout_s=timeout_s))
    for each in received.messages:
        world.kept[each.body] = each.receipt
        world.kept[f"id {each.body}"] = each.id

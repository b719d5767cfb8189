"""A database that is restored before each schedule of two interleaved calls, and what is compared after it."""

import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from tests.internals.store.interleaving import Call, Run, SingleConnectionDatabase
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
from veilmq.store.postgres.database import PostgresOptions
from veilmq.store.postgres.engine import HOT, Coalescer, PostgresEngine
from veilmq.store.postgres.schema import CHECKS
from veilmq.store.postgres.transaction import number_events, run_cold, sweep
from veilmq.store.publications import PublicationStep
from veilmq.testing import VirtualClock

ACCOUNT = "a"
JOBS, OTHER, DEAD, NEW, GONE = (f"{ACCOUNT}/{name}" for name in ("jobs", "other", "dead", "new", "gone"))
TOPIC = f"{ACCOUNT}/news"
_CODEC = ReceiptCodec(key=bytes(32))
_SLICES = 100  # more than background work ever needs
_AT_ONCE_MS = 5  # a pause between slices
# Fields that differ between runs.
_UNSTABLE = frozenset({"id", "message_id", "receipt", "generation", "position", "sequence", "node", "batches"})
# Fields that may have values that no serial order gives. A published message may be undeliverable to a subscription
# whose queue is being deleted. A task may count messages that another, ending task is moving. The time of a next try is
# not guaranteed.
_UNSPECIFIED = frozenset({"deliveries", "undeliverable", "messages_to_move", "next_due_ms"})
# Errors that a deleted queue may cause in place of `QueueNotFound`, if the queue was found first.
_SAME_ERROR = {"SourceNotFound": "QueueNotFound", "MoveTaskNotFound": "QueueNotFound"}

_TABLES = """
SELECT tablename FROM pg_tables WHERE schemaname = 'mq' AND tablename NOT IN ('migration', 'test_clock')
"""
_COUNTS = """
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
    """Run the janitor."""


class Number(Command, frozen=True, kw_only=True):
    """Number committed events."""


class OneDatabase:
    """The store of a node on a single database: another one has no queue."""

    async def find(self, name: str, *, home: Any = None) -> None: ...

    async def has_sources(self, name: str) -> bool:
        return False


class Node(PostgresEngine):
    """A node with one connection, and without background work."""

    def __init__(self, connection: Any, *, options: PostgresOptions, clock: VirtualClock) -> None:
        database = cast(Any, SingleConnectionDatabase(connection))
        super().__init__(database, options=options, clock=clock, place=0, store=OneDatabase())
        self.codec = _CODEC
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
        (result,) = await Coalescer(self, (cast(Any, command).queue, kind), HOT[kind]).work([command])
        return result


CommandFactory = Callable[[Mapping[str, Any]], Command]  # creates a command from saved receipts and ids


class Family(NamedTuple):
    """Commands by name that share data, and a function that creates the data."""

    build: Callable[["World"], Awaitable[None]]
    calls: Mapping[str, CommandFactory]
    options: PostgresOptions = PostgresOptions()
    # Calls that take visible messages, skipping those that another call is taking: which call gets which is not
    # specified.
    takers: frozenset[str] = frozenset()
    group_lockers: frozenset[str] = frozenset()  # calls that lock groups: concurrently, a taker may skip all messages


class World:
    """The database before each schedule, and what is compared after it."""

    def __init__(self, family: Family, monitor: Any) -> None:
        self.saved: dict[str, Any] = {}
        self.calls = family.calls
        self._options = family.options
        self._build = family.build
        self._monitor = monitor
        self._clock = VirtualClock()
        self._node = self._fresh()

    def _fresh(self, connection: Any = None) -> Node:
        return Node(connection or self._monitor, options=self._options, clock=self._clock)

    async def make(self) -> None:
        """Create the data, and save a copy."""
        await self.advance(0)
        await self._build(self)
        await self.advance(1)  # within a millisecond, messages from several nodes have no order
        tables = [name for (name,) in await self._monitor.fetch(_TABLES)]
        await self._monitor.execute("DROP SCHEMA IF EXISTS saved CASCADE; CREATE SCHEMA saved")
        restore = "SET LOCAL session_replication_role = replica;"
        for name in tables:
            await self._monitor.execute(f"CREATE TABLE saved.{name} AS SELECT * FROM mq.{name}")
            restore += f"DELETE FROM mq.{name};"
            if await self._monitor.fetchval(f"SELECT count(*) FROM saved.{name}"):
                restore += f"INSERT INTO mq.{name} OVERRIDING SYSTEM VALUE SELECT * FROM saved.{name};"
        await self._monitor.execute(f"CREATE PROCEDURE saved.restore() LANGUAGE plpgsql AS $$ BEGIN {restore} END $$")

    async def do(self, command: Command) -> Any:
        return await self._node.do(command)

    async def advance(self, time_ms: int) -> None:
        self._clock.advance(time_ms)
        await self._monitor.execute("UPDATE mq.test_clock SET now_ms = $1", self._clock.now_ms())

    async def restore(self, names: Sequence[str]) -> list[Call]:
        """Restore the data; return the named calls, each for its own node with the queues cached."""
        await self._monitor.execute("CALL saved.restore()")
        return [self._call(name) for name in names]

    def _call(self, name: str) -> Call:
        async def call(connection: Any) -> Any:
            command = self.calls[name](self.saved)
            result = await self._fresh(connection).do(command)
            if isinstance(result, SourceView):  # the count may precede a concurrent purge
                return replace(result, ready=0, oldest_sent_at_ms=None)
            return None if type(command) in STEPS else result  # the time of the next slice is not guaranteed

        return call

    async def outcome(self, run: Run, resting: type[Command] | None = None) -> Any:
        """Return the visible state after all background work, except that of the kind `resting`."""
        node = self._fresh()
        counts = await self._monitor.fetchrow(_COUNTS)
        for step in (
            step for step, tables in _WORK.items() if step is not resting and any(counts[each] for each in tables)
        ):
            for _ in range(_SLICES):
                due_ms = await node.do(step())
                if due_ms is None or due_ms > _AT_ONCE_MS:
                    break
        violations = [tuple(row) for row in await self._monitor.fetch(_CHECKS) if row[1]]
        results = [comparable(each) for each in run.results]
        return {"results": results, "violations": violations, **await self._seen(node)}

    async def _seen(self, node: Node) -> dict[str, Any]:
        counts = await self._monitor.fetchrow(_COUNTS)
        if counts["event"]:
            await node.do(Number())
            counts = await self._monitor.fetchrow(_COUNTS)
        seen: dict[str, Any] = {"counts": str(counts)}
        for account in (ACCOUNT, f"{ACCOUNT}~push") if counts["topic"] else (ACCOUNT,):
            page = await node.do(commands.ListQueues(account=account, count=SQS_LIST_RESULTS.maximum, views=True))
            for view in page.views:
                seen[view.queue] = await _queue(node, view, counts)
        if counts["topic"]:
            seen["topics"] = topics = await node.do(ListTopics(account=ACCOUNT))
            seen |= {each.topic: await node.do(ListSubscriptions(topic=each.topic)) for each in topics.topics}
        if counts["account"]:
            seen["account"] = await node.do(ShowAccount(account=ACCOUNT))
        return {name: comparable(value) for name, value in seen.items()}


async def _queue(node: Node, view: Any, counts: Any) -> dict[str, Any]:
    messages = comparable(await node.do(InspectQueue(queue=view.queue)))
    # Messages that two calls store in a standard queue have no guaranteed order.
    by = (lambda each: str(each["group"])) if view.settings.fifo else str
    seen = {"view": comparable(view), "messages": sorted(messages, key=by)}
    for table, command in (
        ("move", commands.ListMoves(source=view.queue)),
        ("source", ListSources(queue=view.queue)),
        ("writer", ListWriters(queue=view.queue)),
    ):
        if counts[table]:
            seen[table] = comparable(await node.do(command))
    return seen


def conserved(outcome: dict[str, Any]) -> dict[str, Any]:
    """Return what does not depend on which call took which message: bodies, states and receive counts."""
    seen: dict[str, Any] = {"results": [], "violations": outcome["violations"]}
    for name, queue in outcome.items():
        if isinstance(queue, dict) and "messages" in queue:
            bodies = sorted(each["body"] for each in queue["messages"])
            seen[name] = bodies, sorted((each["state"], each["receive_count"]) for each in queue["messages"])
    return seen


def comparable(value: Any) -> Any:
    if isinstance(value, VeilmqError):
        name = type(value).__name__
        return _SAME_ERROR.get(name, name)
    if isinstance(value, Exception):
        return repr(value)
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, msgspec.Struct):
        names = [name for name in value.__struct_fields__ if name not in _UNSTABLE | _UNSPECIFIED]
        return {name: comparable(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [comparable(each) for each in value]
    return value


# Creating data.


def fixed(command: Command) -> CommandFactory:
    return lambda saved: command


async def create(world: World, queue: str, **settings: SettingValue) -> None:
    fifo: dict[str, SettingValue] = {"fifo": True} if queue.endswith(".fifo") else {}
    await world.do(commands.CreateQueue(queue=queue, settings={**settings, **fifo}))


def send_command(queue: str, *bodies: str) -> Send:
    """Return a command that sends messages; the message `xy` has the group `x`."""
    is_fifo = queue.endswith(".fifo")
    terms: list[dict[str, Any]] = [{"group": body[0], "dedup_id": body} if is_fifo else {} for body in bodies]
    return Send(queue=queue, messages=tuple(message(body, **each) for body, each in zip(bodies, terms, strict=True)))


async def receive(world: World, queue: str, count: int = 10, timeout_s: int = 600) -> None:
    """Receive messages; save receipts and ids by body."""
    received = await world.do(Receive(queue=queue, count=count, timeout_s=timeout_s))
    for each in received.messages:
        world.saved[each.body] = each.receipt
        world.saved[f"id {each.body}"] = each.id

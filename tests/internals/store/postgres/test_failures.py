"""What goes wrong between a node and its database, what is in each other's way, and what whoever asked is told."""

import asyncio
import contextlib
import gc
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.internals.store.postgres.nodes import Proxy, passing
from tests.small_disk import MIB, small_file_system
from tests.store.host import HOT as HOT_COMMANDS
from tests.store.host import QUEUE, message
from tests.store.postgres_host import (
    END_WAITING,
    RESTLESS,
    PostgresHost,
    connected,
    hosting_postgres,
    open_engine,
    prepare,
    until_a_session_waits_for_a_lock,
)
from veilmq.core import commands
from veilmq.core.commands import Command, QueueView, Receive, SentMessage, VisibilityChange
from veilmq.core.errors import (
    InternalError,
    OutcomeUnknown,
    QueueNotFound,
    ReceiptState,
    StoreFull,
    StoreUnavailable,
)
from veilmq.core.messages import NewMessage
from veilmq.store.cold import COLD
from veilmq.store.port import execute
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.database import Breaker, Database, failure_of
from veilmq.store.postgres.engine import HOT, Coalescer, CommandMetrics, Hot, PostgresEngine
from veilmq.store.postgres.node import keys_of
from veilmq.testing import VirtualClock

SEND = commands.Send(queue=QUEUE, messages=(message("a"),))
SHOW = commands.ShowQueue(queue=QUEUE)
TAG = commands.TagQueue(queue=QUEUE, tags={"a": "b"})
OPTIONS = replace(RESTLESS, connections=1, acquire_s=2)  # in which a busy machine makes a connection
HASTY = replace(RESTLESS, statement_s=1)  # long enough for every statement that need not wait


@pytest.fixture
def host(host: PostgresHost) -> PostgresHost:
    host.create()
    return host


@contextlib.contextmanager
def hasty(url: str, **settings: Any) -> Iterator[PostgresHost]:
    with hosting_postgres(url, options=HASTY) as host:
        host.create(**settings)
        yield host


@contextlib.asynccontextmanager
async def locking(host: PostgresHost, statement: str = "LOCK TABLE mq.queue") -> AsyncIterator[Any]:
    """Have another one's transaction under way for a while: whoever needs what it has waits."""
    async with connected(host.url) as connection, connection.transaction():
        await connection.execute(statement)
        yield connection


async def kill(connection: Any) -> None:
    await connection.execute(END_WAITING)


def blocked(
    host: PostgresHost,
    command: Command,
    then: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
    *,
    statement: str = "LOCK TABLE mq.queue",
) -> Any:
    """Return what `command`, which waits for `statement`, is answered after `then` and its commit."""

    async def ask() -> Any:
        async with locking(host, statement) as connection:
            asked = asyncio.ensure_future(execute(host.engine, command))
            await until_a_session_waits_for_a_lock(connection)
            if then is not None:
                await then(connection)
        return await asked

    return host.run(ask())


def test_who_finds_no_connection_is_told_to_try_again(host: PostgresHost) -> None:
    async def meanwhile(connection: Any) -> None:
        with pytest.raises(StoreUnavailable):
            await execute(host.engine, SEND)

    blocked(host, TAG, meanwhile)
    assert host.counts() == (0, 0, 0)
    host.do(SEND)
    assert host.counts() == (1, 0, 0)


def test_a_change_whose_connection_is_lost_may_have_happened_and_a_question_is_asked_again(host: PostgresHost) -> None:
    with pytest.raises(OutcomeUnknown):
        blocked(host, TAG, kill)
    assert host.do(SHOW).settings.tags == {}
    assert isinstance(blocked(host, SHOW, kill), QueueView)


def test_statements_that_take_too_long_are_given_up(postgres_url: str) -> None:
    """By the server, which has then done nothing; commands that travel together are told together."""
    with hasty(postgres_url) as host:

        async def ask(table: str, *asked: Command) -> list[Any]:
            async with locking(host, f"LOCK TABLE mq.{table}"):
                return await asyncio.gather(*(execute(host.engine, each) for each in asked), return_exceptions=True)

        for table, asked in (("queue", [TAG]), ("msg", [SEND] * 3)):
            assert [type(each) for each in host.run(ask(table, *asked))] == [StoreUnavailable] * len(asked)
        assert host.do(SHOW).settings.tags == {}
        assert host.counts() == (0, 0, 0)


@contextlib.asynccontextmanager
async def database_of(host: PostgresHost, url: str, connections: int) -> AsyncIterator[Database]:
    database = Database(url, options=replace(RESTLESS, connections=connections), clock=host.clock)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def test_a_server_that_is_full_costs_nobody_the_connections_that_there_are(host: PostgresHost) -> None:
    """Who would need one more is told to try again, and the next one is served."""

    async def asks(database: Database) -> None:
        async with database.connection() as connection:
            await connection.execute("SELECT 1")

    async def play() -> None:
        async with database_of(host, host.url.replace("postgres:@", "few:@"), connections=3) as database:
            async with database.connection():
                with pytest.raises(StoreUnavailable) as refused:
                    await asks(database)
                assert isinstance(refused.value.__cause__, asyncpg.TooManyConnectionsError)
            await asks(database)

    host.values("CREATE ROLE few LOGIN CONNECTION LIMIT 1 IN ROLE postgres")
    try:
        host.run(play())
    finally:
        host.values("DROP ROLE few")


def test_a_server_that_takes_nothing_is_left_for_another(host: PostgresHost) -> None:
    """It is a standby now, say, and the primary is elsewhere: the next connection may find that."""

    async def write(database: Database) -> Any:
        async with database.connection() as connection:
            await connection.execute("UPDATE mq.test_clock SET now_ms = now_ms")
            return await connection.fetchval("SELECT pg_backend_pid()")

    async def play() -> None:
        lost: list[None] = []
        async with database_of(host, host.url, connections=1) as database:
            database.on_lost = lambda: lost.append(None)
            before = await write(database)
            async with database.connection() as connection:
                await connection.execute("SET default_transaction_read_only = on")
            with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
                await write(database)
            with pytest.raises(StoreUnavailable):
                await write(database)
            host.clock.advance(100)
            assert await write(database) != before
        assert lost == [None]

    host.run(play())


@pytest.mark.parametrize(("error", "answer"), [
    (asyncpg.DiskFullError("full"), StoreFull), (asyncpg.ReadOnlySQLTransactionError("a standby"), StoreUnavailable),
    (asyncpg.ConnectionDoesNotExistError("gone"), OutcomeUnknown),
    (asyncpg.InternalClientError("another operation is in progress"), OutcomeUnknown),
    (ConnectionResetError(), OutcomeUnknown), (StoreFull(), StoreFull), (ZeroDivisionError(), InternalError),
])  # fmt: skip
def test_what_an_error_means(error: Exception, answer: type) -> None:
    assert type(failure_of(error, "Send")) is answer


def test_the_breaker_rests_longer_each_time() -> None:
    """One tries after each rest, and nobody else until it is known what he found."""
    clock = VirtualClock()
    breaker = Breaker(clock=clock)
    for pause_ms in (100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000):
        breaker.check()
        breaker.failed()
        clock.advance(pause_ms - 1)
        with pytest.raises(StoreUnavailable):
            breaker.check()
        clock.advance(1)
    breaker.check()
    with pytest.raises(StoreUnavailable):
        breaker.check()
    breaker.succeeded()
    breaker.check()
    breaker.check()
    breaker.failed()
    clock.advance(100)
    breaker.check()


# What is lost on the way.


ALONE = replace(RESTLESS, connections=1, listens=False)
SILENT = replace(ALONE, statement_s=1, silence_s=1)  # long enough for every statement on a busy machine


@contextlib.asynccontextmanager
async def behind(host: PostgresHost, options: PostgresOptions = ALONE) -> AsyncIterator[tuple[Proxy, PostgresEngine]]:
    """Keep a node open behind a proxy; it has a connection, which knows the statement of a send, and is idle."""
    async with passing(host.url) as proxy:
        node = await open_engine(proxy.url, clock=host.clock, options=options)
        try:
            await execute(node, SEND)
            await node.drain()
            yield proxy, node
        finally:
            await node.close()


async def told(node: PostgresEngine, command: Command) -> Any:
    return (await asyncio.gather(execute(node, command), return_exceptions=True))[0]


def test_what_was_done_although_its_answer_was_lost_is_not_denied(host: PostgresHost) -> None:
    """It may have happened, and here it has; what only reads is asked again. The next one has another connection."""

    async def play() -> list[Any]:
        answers = []
        async with behind(host) as (proxy, node):
            for command, cuts in ((SEND, True), (SEND, False), (SHOW, True)):
                proxy.cuts = cuts
                answers.append(await told(node, command))
        return answers

    lost, (sent,), view = host.run(play())
    assert [type(each) for each in (lost, sent, view)] == [OutcomeUnknown, SentMessage, QueueView]
    assert host.counts() == (3, 0, 0)


def test_a_server_that_falls_silent_is_given_up(host: PostgresHost) -> None:
    """Who was asking hears that it may have happened; who comes then, at once that nothing was done.

    After a while one tries, and when the server speaks again everybody is served. Nothing acknowledged is missing.
    """

    async def play() -> None:
        async with behind(host, SILENT) as (proxy, node):
            proxy.swallows = True
            silent = await asyncio.gather(*(told(node, SEND) for _ in range(3)))
            assert {type(answer) for answer in silent} == {OutcomeUnknown}
            began_s = time.monotonic()
            assert [type(await told(node, SEND)) for _ in range(100)] == [StoreUnavailable] * 100
            assert time.monotonic() - began_s < 60, "they waited, each for two seconds"
            proxy.swallows = False
            host.clock.advance(5_000)
            (sent,) = await execute(node, SEND)
            assert sent.id

    host.run(play())
    assert host.counts()[0] in {2, 3, 4, 5}


# Commands that meet a row while another node changes it: what they answer is what was done.


_EXTEND = "UPDATE mq.msg SET visible_at = visible_at + 1000 WHERE qp > 0"


def test_what_was_in_each_others_way_is_repeated(host: PostgresHost) -> None:
    """The database gives one of the two up; whoever asked for it does not hear of that."""
    host.send("a", "b")
    receipts = tuple(each.receipt for each in host.receive(2))
    locks = "SELECT FROM mq.msg WHERE body = '{}' FOR UPDATE"
    patient = f"SET LOCAL deadlock_timeout = '60s'; {locks.format('b')}"  # so it is the node's that is given up
    delete = commands.Delete(queue=QUEUE, receipts=receipts)
    answer = blocked(host, delete, lambda connection: connection.execute(locks.format("a")), statement=patient)
    assert answer == [ReceiptState.LIVE] * 2
    assert host.counts() == (0, 0, 0)


_RECEIVE = "UPDATE mq.msg SET visible_at = visible_at + 1000, generation = generation + 1 WHERE qp > 0"
_RENEW = "UPDATE mq.msg SET visible_at = visible_at + 1000, epoch = epoch + 1 WHERE qp > 0"
_RELEASE = "UPDATE mq.msg SET visible_at = sent_at WHERE qp > 0"
_DELETE = "DELETE FROM mq.msg WHERE qp > 0"


@pytest.mark.parametrize(
    ("meanwhile", "how", "state", "left"),
    [
        (_EXTEND, {}, ReceiptState.LIVE, 0),
        (_RENEW, {}, ReceiptState.SUPERSEDED, 1),
        (_RENEW, {"any_epoch": True}, ReceiptState.LIVE, 0),
        (_RECEIVE, {}, ReceiptState.SUPERSEDED, 1),
        (_RECEIVE, {"any_receive": True}, ReceiptState.EARLIER, 0),
        (_RELEASE, {}, ReceiptState.EXPIRED, 0),
        (_RELEASE, {"only_live": True}, ReceiptState.EXPIRED, 1),
        (_DELETE, {}, ReceiptState.GONE, 0),
    ],
)
def test_a_delete_that_waits_for_another_node_deletes_by_what_that_one_has_done(
    host: PostgresHost, meanwhile: str, how: dict[str, bool], state: ReceiptState, left: int
) -> None:
    """A heartbeat, say, does not bring back a message whose deletion was acknowledged."""
    host.send("a")
    delete = commands.Delete(queue=QUEUE, receipts=(host.receive_one().receipt,), **how)
    assert blocked(host, delete, statement=meanwhile) == [state]
    assert host.rows("msg") == left


def test_a_change_holds_that_another_node_came_before(host: PostgresHost) -> None:
    host.send("a")
    change = VisibilityChange(receipt=host.receive_one(timeout_s=30).receipt, timeout_s=100)
    (changed,) = blocked(host, commands.ChangeVisibility(queue=QUEUE, changes=(change,)), statement=_EXTEND)
    assert changed.visible_at_ms == host.clock.now_ms() + 100_000
    assert host.values("SELECT visible_at FROM mq.msg WHERE qp > 0") == [changed.visible_at_ms]


def test_two_nodes_that_send_to_the_same_groups_wait_for_each_other_in_one_order(host: PostgresHost) -> None:
    """Whatever the order of the messages: else they would wait for a second, and one of them would begin again."""
    first, last = sorted((message("", group=group) for group in "ab"), key=lambda each: keys_of([each]))

    def turn(new: NewMessage) -> str:
        (key,) = keys_of([new])
        return (
            f"INSERT INTO mq.fair_turn (qp, group_key, priority, at, sent_at) SELECT qp, {key}, 108, 0, 0 FROM mq.part"
        )

    async def meet(other: Any) -> None:
        await other.execute(f"SET LOCAL lock_timeout = '100ms'; {turn(last)}")

    blocked(host, commands.Send(queue=QUEUE, messages=(last, first)), meet, statement=turn(first))
    assert host.counts() == (2, 0, 0)


def test_what_one_receive_has_leased_is_given_though_the_next_one_fails(postgres_url: str) -> None:
    """They travel together; nobody else would know of the lease, and its group would stay blocked."""
    with hasty(postgres_url, fifo=True) as host:
        host.put(*(message(body, group=body, dedup_id=body) for body in "ab"))
        again = Receive(queue=QUEUE, attempt_id="x", timeout_s=0)
        host.do(again)

        async def act() -> list[Any]:
            async with locking(host, "SELECT FROM mq.attempt FOR UPDATE"):
                both = Receive(queue=QUEUE, timeout_s=0), again
                return await asyncio.gather(*(execute(host.engine, each) for each in both), return_exceptions=True)

        first, second = host.run(act())
        assert len(first.messages) == 1
        assert isinstance(second, StoreUnavailable)


# The lines in which commands wait to travel together, and the commands that a node knows.


class Asked:
    """A coalescer, what it did together, and what it answered; it is also the engine of it."""

    def __init__(self) -> None:
        self.together: list[int] = []
        self.answers: list[Any] = []
        self.drained_keys: list[Any] = []
        self.options = RESTLESS
        self.command_metrics = CommandMetrics()
        self.catalog = SimpleNamespace(fresh=lambda name: name)
        self.database = SimpleNamespace(connection=contextlib.nullcontext, relaxes=False)
        self.line = Coalescer(cast(Any, self), (QUEUE, Receive), Hot(self._work, lambda command: 1))

    async def _work(self, node: Any, connection: Any, queue: Any, together: Sequence[Any]) -> list[Any]:
        self.together.append(len(together))
        return list(range(len(together)))

    def remove_coalescer(self, key: Any) -> None:
        self.drained_keys.append(key)

    def fail(self, answer: Any) -> None:
        raise OSError

    async def ended(self) -> None:
        if self.line.task is not None:
            await self.line.task


async def test_an_answer_that_is_not_taken_keeps_nobody_waiting() -> None:
    asked = Asked()
    asked.line.add(Receive(queue=QUEUE), asked.fail)
    asked.line.add(Receive(queue=QUEUE), asked.answers.append)
    await asked.ended()
    asked.line.add(Receive(queue=QUEUE), asked.answers.append)
    await asked.ended()
    assert (asked.together, asked.answers, asked.drained_keys) == ([2, 1], [1, 0], 2 * [(QUEUE, Receive)])


async def test_a_line_without_anybody_says_so() -> None:
    asked = Asked()
    asked.line.add(Receive(queue=QUEUE), asked.fail)
    asked.line.withdraw(asked.fail)
    await asked.ended()
    assert (asked.together, asked.drained_keys) == ([], [(QUEUE, Receive)])


def test_an_engine_keeps_no_line_of_a_queue_that_nobody_names_any_more(host: PostgresHost) -> None:
    """Whoever names queues at will, also those that are not there, does not fill the memory."""
    for place in range(10):
        with pytest.raises(QueueNotFound):
            host.do(Receive(queue=f"{QUEUE}{place}"))
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Coalescer)] == []


def test_it_knows_every_command() -> None:
    assert set(COLD) & set(HOT) == set()
    assert set(HOT) == set(HOT_COMMANDS)


# A disk that is full: nothing is half-kept, deletes go on, and everything when there is room again.


@pytest.mark.slow
def test_a_full_disk() -> None:
    """What was refused is not there, what was acknowledged is. Messages alone are on the small disk."""
    with (
        temporary_folder() as folder,
        small_file_system(folder / "small", size_bytes=2 * MIB),
        PostgresServer(folder / "server", settings={"fsync": "off"}) as server,
    ):
        place = folder / "small" / "messages"
        place.mkdir()
        server.give(place)
        asyncio.run(prepare(server.url))
        with hosting_postgres(server.url) as host:
            host.values(f"CREATE TABLESPACE small LOCATION '{place}'")
            host.values("ALTER TABLE mq.msg SET TABLESPACE small")
            host.create()
            host.send("first")
            held = host.receive_one()
            sent = fill(host)
            assert len(sent) > 5
            assert host.counts() == (len(sent), 1, 0)
            assert host.delete(held.receipt) == [ReceiptState.LIVE]
            remount = ["mount", "-o", f"remount,size={20 * MIB}", str(folder / "small")]
            subprocess.run(remount, timeout=30, check=True)
            host.send("last")
            assert {each.body for _ in range(len(sent)) for each in host.receive(10)} == {*sent, "last"}


def fill(host: PostgresHost) -> list[str]:
    """Send until the disk is full; return what was acknowledged."""
    sent: list[str] = []
    while len(sent) < 1_000:
        body = os.urandom(20_000).hex()
        try:
            host.put(message(body))
        except StoreFull:
            return sent
        sent.append(body)
    pytest.fail("the disk took everything")

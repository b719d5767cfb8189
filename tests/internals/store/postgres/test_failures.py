"""Failures between a node and its database, conflicts between nodes, and the errors that clients get."""

import asyncio
import contextlib
import gc
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import eq
from types import SimpleNamespace
from typing import Any, cast

import asyncpg
import pytest

from examples.cluster.postgres_server import PostgresServer, temporary_folder
from tests.internals.store.postgres.nodes import Proxy, running_proxy
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
    set_clock,
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
from veilmq.store.postgres import PostgresOptions, engine
from veilmq.store.postgres.database import Breaker, Database, failure_of
from veilmq.store.postgres.engine import HOT, Coalescer, CommandMetrics, Hot, PostgresEngine
from veilmq.store.postgres.node import keys_of
from veilmq.testing import VirtualClock

SEND = commands.Send(queue=QUEUE, messages=(message("a"),))
SHOW = commands.ShowQueue(queue=QUEUE)
TAG = commands.TagQueue(queue=QUEUE, tags={"a": "b"})
OPTIONS = replace(RESTLESS, connections=1, acquire_s=2)  # enough for a connection on a busy machine
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
async def holding_lock(host: PostgresHost, statement: str = "LOCK TABLE mq.queue") -> AsyncIterator[Any]:
    """Hold a lock in another session."""
    async with connected(host.url) as connection, connection.transaction():
        await connection.execute(statement)
        yield connection


async def kill(connection: Any) -> None:
    await connection.execute(END_WAITING)


def result_after_lock(
    host: PostgresHost,
    command: Command,
    then: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
    *,
    statement: str = "LOCK TABLE mq.queue",
) -> Any:
    """Return the result of `command`, which waits for `statement`, after `then` and the commit of the lock's holder."""

    async def run() -> Any:
        async with holding_lock(host, statement) as connection:
            running = asyncio.ensure_future(execute(host.engine, command))
            await until_a_session_waits_for_a_lock(connection)
            if then is not None:
                await then(connection)
        return await running

    return host.run(run())


def test_command_without_a_connection_is_unavailable(host: PostgresHost) -> None:
    async def send(connection: Any) -> None:
        with pytest.raises(StoreUnavailable):
            await execute(host.engine, SEND)

    result_after_lock(host, TAG, send)
    assert host.counts() == (0, 0, 0)
    host.do(SEND)
    assert host.counts() == (1, 0, 0)


def test_lost_connection_leaves_a_write_unknown_and_repeats_a_read(host: PostgresHost) -> None:
    with pytest.raises(OutcomeUnknown):
        result_after_lock(host, TAG, kill)
    assert host.do(SHOW).settings.tags == {}
    assert isinstance(result_after_lock(host, SHOW, kill), QueueView)


def test_statement_timeout_is_unavailable(postgres_url: str) -> None:
    """The server has changed nothing; all commands of the batch get the error."""
    with hasty(postgres_url) as host:

        async def fail(table: str, *batch: Command) -> list[Any]:
            async with holding_lock(host, f"LOCK TABLE mq.{table}"):
                return await asyncio.gather(*(execute(host.engine, each) for each in batch), return_exceptions=True)

        for table, batch in (("queue", [TAG]), ("msg", [SEND] * 3)):
            assert [type(each) for each in host.run(fail(table, *batch))] == [StoreUnavailable] * len(batch)
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


def test_connection_limit_leaves_open_connections_usable(host: PostgresHost) -> None:
    """A command that needs another connection gets an error, and the next one succeeds."""

    async def command_failure(database: Database) -> None:
        async with database.connection() as connection:
            await connection.execute("SELECT 1")

    async def play() -> None:
        async with database_of(host, host.url.replace("postgres:@", "few:@"), connections=3) as database:
            async with database.connection():
                with pytest.raises(StoreUnavailable) as refused:
                    await command_failure(database)
                assert isinstance(refused.value.__cause__, asyncpg.TooManyConnectionsError)
            await command_failure(database)

    host.values("CREATE ROLE few LOGIN CONNECTION LIMIT 1 IN ROLE postgres")
    try:
        host.run(play())
    finally:
        host.values("DROP ROLE few")


def test_standby_server_closes_the_pool(host: PostgresHost) -> None:
    """The next connection may lead to the new primary."""

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
def test_error_for_each_failure(error: Exception, answer: type) -> None:
    assert type(failure_of(error, "Send")) is answer


def test_breaker_pauses_double() -> None:
    """After each pause, one caller tries, and the others wait for its result."""
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


# Lost replies.


ALONE = replace(RESTLESS, connections=1, listens=False)
SILENT = replace(ALONE, statement_s=1, silence_s=1)  # long enough for every statement on a busy machine


@contextlib.asynccontextmanager
async def node_behind_proxy(
    host: PostgresHost, options: PostgresOptions = ALONE
) -> AsyncIterator[tuple[Proxy, PostgresEngine]]:
    """A node node_behind_proxy a proxy, with an idle connection that has prepared the statement of a send."""
    async with running_proxy(host.url) as proxy:
        node = await open_engine(proxy.url, clock=host.clock, options=options)
        try:
            await execute(node, SEND)
            await node.drain()
            yield proxy, node
        finally:
            await node.close()


async def result_of(node: PostgresEngine, command: Command) -> Any:
    return (await asyncio.gather(execute(node, command), return_exceptions=True))[0]


def test_lost_reply_of_a_send_is_an_unknown_outcome(host: PostgresHost) -> None:
    """Here the send has happened; reads are repeated. The next command gets a new connection."""

    async def play() -> list[Any]:
        answers = []
        async with node_behind_proxy(host) as (proxy, node):
            for command, cuts in ((SEND, True), (SEND, False), (SHOW, True)):
                proxy.drops_reply = cuts
                answers.append(await result_of(node, command))
        return answers

    lost, (sent,), view = host.run(play())
    assert [type(each) for each in (lost, sent, view)] == [OutcomeUnknown, SentMessage, QueueView]
    assert host.counts() == (3, 0, 0)


def test_silent_server_is_given_up(host: PostgresHost) -> None:
    """Running commands have an unknown outcome; new ones fail at once. No acknowledged message is missing."""

    async def play() -> None:
        async with node_behind_proxy(host, SILENT) as (proxy, node):
            proxy.drops_all = True
            silent = await asyncio.gather(*(result_of(node, SEND) for _ in range(3)))
            assert {type(answer) for answer in silent} == {OutcomeUnknown}
            began_s = time.monotonic()
            assert [type(await result_of(node, SEND)) for _ in range(100)] == [StoreUnavailable] * 100
            assert time.monotonic() - began_s < 60, "they waited, each for two seconds"
            proxy.drops_all = False
            host.clock.advance(5_000)
            (sent,) = await execute(node, SEND)
            assert sent.id

    host.run(play())
    assert host.counts()[0] in {2, 3, 4, 5}


def test_close_does_not_wait_for_a_silent_server(host: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pools, its connection for notifications, and a running command, whose outcome is unknown, end soon."""
    monkeypatch.setattr(engine, "FINISH_S_MAX", 0.1)

    async def play() -> Any:
        async with node_behind_proxy(host, replace(ALONE, listens=True)) as (proxy, node):
            proxy.drops_all = True
            result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            node.submit(SEND, result.set_result)
            async with asyncio.timeout(ALONE.statement_s):
                await node.close()
            return result.result()

    assert type(host.run(play())) is OutcomeUnknown


# Commands on rows that another node is changing.


_EXTEND = "UPDATE mq.msg SET visible_at = visible_at + 1000 WHERE qp > 0"


def test_deadlocked_command_is_repeated(host: PostgresHost) -> None:
    host.send("a", "b")
    receipts = tuple(each.receipt for each in host.receive(2))
    locks = "SELECT FROM mq.msg WHERE body = '{}' FOR UPDATE"
    patient = f"SET LOCAL deadlock_timeout = '60s'; {locks.format('b')}"  # so the node's transaction is the victim
    delete = commands.Delete(queue=QUEUE, receipts=receipts)
    answer = result_after_lock(
        host, delete, lambda connection: connection.execute(locks.format("a")), statement=patient
    )
    assert answer == [ReceiptState.LIVE] * 2
    assert host.counts() == (0, 0, 0)


_RECEIVE = "UPDATE mq.msg SET visible_at = visible_at + 1000, generation = generation + 1 WHERE qp > 0"
_RENEW = "UPDATE mq.msg SET visible_at = visible_at + 1000, epoch = epoch + 1 WHERE qp > 0"
_RELEASE = "UPDATE mq.msg SET visible_at = sent_at WHERE qp > 0"
_DELETE = "DELETE FROM mq.msg WHERE qp > 0"


@pytest.mark.parametrize(
    ("statement", "how", "state", "left"),
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
def test_delete_after_a_lock_wait_uses_the_new_row(
    host: PostgresHost, statement: str, how: dict[str, bool], state: ReceiptState, left: int
) -> None:
    """For example, a heartbeat must not restore a message whose deletion was acknowledged."""
    host.send("a")
    delete = commands.Delete(queue=QUEUE, receipts=(host.receive_one().receipt,), **how)
    assert result_after_lock(host, delete, statement=statement) == [state]
    assert host.rows("msg") == left


def test_change_after_a_lock_wait_keeps_the_other_nodes_change(host: PostgresHost) -> None:
    host.send("a")
    change = VisibilityChange(receipt=host.receive_one(timeout_s=30).receipt, timeout_s=100)
    (changed,) = result_after_lock(host, commands.ChangeVisibility(queue=QUEUE, changes=(change,)), statement=_EXTEND)
    assert changed.visible_at_ms == host.clock.now_ms() + 100_000
    assert host.values("SELECT visible_at FROM mq.msg WHERE qp > 0") == [changed.visible_at_ms]


def test_sends_lock_groups_in_one_order(host: PostgresHost) -> None:
    """Whatever the order of messages: otherwise they would deadlock for a second."""
    first, last = sorted((message("", group=group) for group in "ab"), key=lambda each: keys_of([each]))

    def turn(new: NewMessage) -> str:
        (key,) = keys_of([new])
        return (
            f"INSERT INTO mq.fair_turn (qp, group_key, priority, at, sent_at) SELECT qp, {key}, 108, 0, 0 FROM mq.part"
        )

    async def send_concurrently(other: Any) -> None:
        await other.execute(f"SET LOCAL lock_timeout = '100ms'; {turn(last)}")

    result_after_lock(
        host, commands.Send(queue=QUEUE, messages=(last, first)), send_concurrently, statement=turn(first)
    )
    assert host.counts() == (2, 0, 0)


def test_receive_returns_leased_messages_if_the_next_one_fails(postgres_url: str) -> None:
    """Otherwise the messages of the batch's first receive would stay leased, and their groups result_after_lock."""
    with hasty(postgres_url, fifo=True) as host:
        host.put(*(message(body, group=body, dedup_id=body) for body in "ab"))
        again = Receive(queue=QUEUE, attempt_id="x", timeout_s=0)
        host.do(again)

        async def act() -> list[Any]:
            async with holding_lock(host, "SELECT FROM mq.attempt FOR UPDATE"):
                both = Receive(queue=QUEUE, timeout_s=0), again
                return await asyncio.gather(*(execute(host.engine, each) for each in both), return_exceptions=True)

        first, second = host.run(act())
        assert len(first.messages) == 1
        assert isinstance(second, StoreUnavailable)


# Coalescers, and the commands of an engine.


class CoalescerHost:
    """A coalescer, and its engine, which records batches and results."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.results: list[Any] = []
        self.options = RESTLESS
        self.command_metrics = CommandMetrics()
        self.catalog = SimpleNamespace(fresh=lambda name: name)
        self.database = SimpleNamespace(
            connection=lambda *, relaxed: contextlib.nullcontext("connection"), relaxes=False
        )
        self.coalescer = Coalescer(cast(Any, self), (QUEUE, Receive), Hot(self._work, lambda command: 1))
        self.coalescers = {self.coalescer.key: self.coalescer}

    async def _work(self, node: Any, connection: Any, queue: Any, batch: Sequence[Any]) -> list[Any]:
        self.batches.append(len(batch))
        return list(range(len(batch)))

    def fail(self, answer: Any) -> None:
        raise OSError

    async def ended(self) -> None:
        if self.coalescer.task is not None:
            await self.coalescer.task


async def test_failing_reply_callback_does_not_stop_the_coalescer() -> None:
    host = CoalescerHost()
    host.coalescer.add(Receive(queue=QUEUE), host.fail)
    host.coalescer.add(Receive(queue=QUEUE), host.results.append)
    await host.ended()
    assert (host.batches, host.results, host.coalescers) == ([2], [1], {})


async def test_idle_coalescer_is_removed() -> None:
    host = CoalescerHost()
    host.coalescer.add(Receive(queue=QUEUE), host.fail)
    host.coalescer.withdraw(partial(eq, host.fail))
    await host.ended()
    assert (host.batches, host.coalescers) == ([], {})


def test_engine_keeps_no_idle_coalescers(host: PostgresHost) -> None:
    """Commands with arbitrary queue names do not fill the memory."""
    for place in range(10):
        with pytest.raises(QueueNotFound):
            host.do(Receive(queue=f"{QUEUE}{place}"))
    gc.collect()
    assert [each for each in gc.get_objects() if isinstance(each, Coalescer)] == []


def test_every_command_has_a_handler() -> None:
    assert set(COLD) & set(HOT) == set()
    assert set(HOT) == set(HOT_COMMANDS)


# A full disk: deletes continue, and sends when there is room again.


@pytest.mark.slow
def test_full_disk() -> None:
    """Refused messages are not stored, acknowledged ones are. Only messages are on the small disk."""
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
            sent = fill_disk(host)
            assert len(sent) > 5
            assert host.counts() == (len(sent), 1, 0)
            assert host.delete(held.receipt) == [ReceiptState.LIVE]
            remount = ["mount", "-o", f"remount,size={20 * MIB}", str(folder / "small")]
            subprocess.run(remount, timeout=30, check=True)
            host.send("last")
            assert {each.body for _ in range(len(sent)) for each in host.receive(10)} == {*sent, "last"}


def fill_disk(host: PostgresHost) -> list[str]:
    """Send until the disk is full; return the bodies of acknowledged messages."""
    sent: list[str] = []
    while len(sent) < 1_000:
        body = os.urandom(20_000).hex()
        try:
            host.put(message(body))
        except StoreFull:
            return sent
        sent.append(body)
    pytest.fail("the disk took everything")


@pytest.mark.parametrize("condition", ["disk_full", "read_only_sql_transaction", "lock_not_available"])
def test_a_peek_that_cannot_delete_expired_messages_shows_the_others(postgres_url: str, condition: str) -> None:
    """Before the groups are ordered, expired messages are deleted, if possible."""
    with hosting_postgres(postgres_url) as host:
        host.create(fifo=True, retention_s=60)
        host.send_to_groups("a1", "b1")
        host.advance(30_000)
        host.send_to_groups("a2")
        host.values(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION USING ERRCODE = '{condition}'; END $$"
        )
        try:
            host.values("CREATE TRIGGER refused BEFORE DELETE ON mq.fifo_msg EXECUTE FUNCTION refuse()")
            host.run(set_clock(host.url, host.clock.now_ms() + 30_000))  # without the janitor
            assert [each.body for each in host.do(commands.Peek(queue=QUEUE, count=3)).messages] == ["a2"]
        finally:
            host.values("DROP FUNCTION refuse CASCADE")
        assert host.rows("fifo_msg") == 3
        assert [each.body for each in host.do(commands.Peek(queue=QUEUE, count=3)).messages] == ["a2"]
        assert host.rows("fifo_msg") == 1


def test_a_peek_waits_for_no_transaction_on_a_group(postgres_url: str) -> None:
    with hosting_postgres(postgres_url, options=HASTY) as host:
        host.create(fifo=True, retention_s=60)
        host.send_to_groups("a1", "b1")
        host.advance(30_000)
        host.send_to_groups("a2", "b2")
        host.run(set_clock(host.url, host.clock.now_ms() + 30_000))  # without the janitor

        async def peek() -> list[str]:
            async with connected(host.url) as other, other.transaction():
                await other.execute("SELECT FROM mq.fifo_group WHERE group_id = 'a' FOR UPDATE")
                peeked = await execute(host.engine, commands.Peek(queue=QUEUE, count=3))
            return [each.body for each in peeked.messages]

        assert host.run(peek()) == ["a2", "b2"]
        assert host.values("SELECT body FROM mq.fifo_msg WHERE qp > 0 ORDER BY seq") == ["a1", "a2", "b2"]

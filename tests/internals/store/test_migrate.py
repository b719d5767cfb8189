"""Migrations: who applies what, which nodes can work with what is found, and that nothing of format 19 is lost."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.internals.store.format_19 import recorded, restore
from tests.store.host import QUEUE, message, numbered
from tests.store.postgres_host import _CLOCK, _UNGUARDED, OF_QUEUES, PostgresHost, connected
from veilmq.core import claims, commands
from veilmq.core.claims import ListWriters, Publish
from veilmq.core.commands import MoveStatus, ShowAccount
from veilmq.core.errors import QueueDeletedRecently, ReceiptState
from veilmq.core.receipts import Outcome, PlanExport
from veilmq.core.topics import push_queue
from veilmq.store.postgres import PostgresOptions
from veilmq.store.postgres.schema import SchemaRefused, Script, all_scripts, migrate, read_format, require
from veilmq.testing import VirtualClock

OURS = all_scripts()
FIRST, LAST = OURS[0].number - 1, OURS[-1].number


def added(*, ends: int = 0, text: str = "CREATE TABLE mq.later ()") -> Script:
    return Script(LAST + 1, f"{LAST + 1}_later", text, ends)


@pytest.fixture
def on_database(new_database: str) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    def tell(story: Callable[[Any], Awaitable[None]]) -> None:
        async def told() -> None:
            async with connected(new_database) as connection:
                await story(connection)

        asyncio.run(told())

    return tell


Tell = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_a_new_database_gets_the_schema_once(on_database: Tell) -> None:
    async def story(connection: Any) -> None:
        (schema,) = (await read_format(connection))[1]
        assert (schema.number, schema.name) == (LAST, "schema")
        assert await migrate(connection) == [schema]
        assert await read_format(connection) == (LAST, [])
        assert await migrate(connection) == []

    on_database(story)


def test_a_format_that_was_never_released_is_refused(on_database: Tell) -> None:
    async def story(connection: Any) -> None:
        await connection.execute(recorded()[1])
        await connection.execute("DELETE FROM mq.migration WHERE number = $1", FIRST)
        for do in (read_format, migrate, require):
            with pytest.raises(SchemaRefused, match=f"has format {FIRST - 1}, which was never released.*new database"):
                await do(connection)

    on_database(story)


def test_all_of_it_or_nothing(on_database: Tell) -> None:
    """A script that fails leaves the schema as it was."""

    async def story(connection: Any) -> None:
        await migrate(connection)
        with pytest.raises(asyncpg.UndefinedTableError):
            await migrate(connection, [*OURS, added(), added(text="DROP TABLE mq.nothing")])
        assert await read_format(connection) == (LAST, [])
        assert await connection.fetchval("SELECT to_regclass('mq.later')") is None

    on_database(story)


def test_a_node_goes_on_with_what_a_later_version_has_added(on_database: Tell) -> None:
    """Nodes are exchanged one after the other, and one that is still old may have to start again."""

    async def story(connection: Any) -> None:
        await migrate(connection)
        assert await migrate(connection, [*OURS, added()], ending_older_nodes=False) == [added()]
        assert await migrate(connection) == []
        await require(connection)

    on_database(story)


def test_a_node_refuses_what_it_cannot_work_with(on_database: Tell) -> None:
    async def story(connection: Any) -> None:
        await migrate(connection, [*OURS, added(ends=LAST + 1)])
        for do in (read_format, migrate, require):
            with pytest.raises(SchemaRefused, match=f"has format {LAST + 1}.*this one knows {LAST}: install a newer"):
                await do(connection)

    on_database(story)


def test_no_node_ends_others_by_starting(on_database: Tell) -> None:
    """The operator does, when he has stopped them; an empty database ends nobody."""

    async def story(connection: Any) -> None:
        last = added(ends=LAST + 1)
        await migrate(connection)
        with pytest.raises(SchemaRefused, match=r"ends what older servers can do.*stop them all, run `veilmq migrate`"):
            await migrate(connection, [*OURS, last], ending_older_nodes=False)
        assert await migrate(connection, [*OURS, last]) == [last]

    async def empty(connection: Any) -> None:
        await connection.execute("DROP SCHEMA mq CASCADE")
        assert await migrate(connection, [*OURS, added(ends=LAST + 1)], ending_older_nodes=False)

    on_database(story)
    on_database(empty)


def test_the_operator_ends_no_node_that_is_connected(new_database: str) -> None:
    """Of the database of format 19: it is as it was until the last node has been stopped."""

    async def story() -> None:
        await restore(new_database)
        async with connected(new_database) as connection:
            node = await asyncpg.connect(new_database, server_settings={"application_name": "veilmq"})
            with pytest.raises(SchemaRefused, match=r"stop them all \(1 connections are open\), run `veilmq migrate`"):
                await migrate(connection)
            assert await read_format(connection) == (FIRST, list(OURS))
            node_pid = node.get_server_pid()
            await node.close()
            while await connection.fetchval("SELECT true FROM pg_stat_activity WHERE pid = $1", node_pid):
                pass  # its process ends after its connection
            assert await migrate(connection) == list(OURS)

    asyncio.run(story())


def test_a_node_that_may_not_migrate_says_what_is_missing(on_database: Tell) -> None:
    async def story(connection: Any) -> None:
        with pytest.raises(SchemaRefused, match=rf"has format 0, this version needs {LAST}: run `veilmq migrate`"):
            await require(connection)
        await migrate(connection)
        await require(connection)

    on_database(story)


def test_a_table_in_use_is_not_waited_for(new_database: str) -> None:
    """Whoever waits for a table keeps everybody else from it; nothing is upgraded."""

    async def story() -> None:
        async with both(new_database) as (connection, other):
            await migrate(connection)
            async with other.transaction():
                await other.execute("SELECT FROM mq.queue")
                with pytest.raises(SchemaRefused, match="another session uses a table"):
                    await migrate(connection, [*OURS, added(text="ALTER TABLE mq.queue ADD COLUMN later int")])
            assert await read_format(connection) == (LAST, [])

    asyncio.run(story())


@asynccontextmanager
async def both(url: str) -> AsyncIterator[tuple[Any, Any]]:
    async with connected(url) as one, connected(url) as other:
        yield one, other


# What a database of format 19 has.

TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = 'mq'::regnamespace AND relkind = 'r' AND relpersistence = 'p' AND relname <> 'migration'
"""
GONE = {"source": {"lost"}}
"""Columns that nothing reads."""
RENAMED = {"meta": "setting"}
MADE = {"database"}
"""What has no rows where there is one database."""


async def contents(connection: Any, *, old: bool = False) -> dict[str, list[Any]]:
    """Return the rows of each table, sorted, without the names of columns; of an old one as they are to be."""
    found = {}
    for (table,) in await connection.fetch(TABLES):
        rows = await connection.fetch(f"SELECT * FROM mq.{table} AS each WHERE {OF_QUEUES}")
        kept = [[value for name, value in row.items() if name not in GONE.get(table, ())] for row in rows]
        found[RENAMED.get(table, table) if old else table] = sorted(kept, key=repr)
    return {table: rows for table, rows in found.items() if rows or table not in MADE}


def test_a_migration_that_is_killed_changes_nothing_and_is_done_by_the_next(new_database: str) -> None:
    """Whichever of its statements it was at; every row is there before and after, and a second one does nothing."""
    statements = [each for each in OURS[0].text.split(";\n") if each.strip()]

    async def story() -> None:
        await restore(new_database)
        async with connected(new_database) as other:
            before = await contents(other, old=True)
            assert all(before.values()), "every table has rows"
            for done in range(1, len(statements)):
                killed = "SELECT pg_terminate_backend(pg_backend_pid())"
                text = ";\n".join([*statements[:done], killed])
                async with connected(new_database) as connection:
                    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                        await migrate(connection, [OURS[0]._replace(text=text)])
                assert await read_format(other) == (FIRST, list(OURS))
                assert await contents(other, old=True) == before
            assert await migrate(other) == list(OURS)
            assert await migrate(other) == []
            assert await contents(other) == before

    asyncio.run(story())


def test_the_home_of_several_databases_knows_how_many_there_are(new_database: str) -> None:
    """Where they are, the next start with all URLs says."""

    async def story() -> None:
        await restore(new_database)
        async with connected(new_database) as connection:
            for name, value in (("store", b"id"), ("store_place", b"0"), ("store_places", b"3")):
                await connection.execute("INSERT INTO mq.meta VALUES ($1, $2)", name, value)
            await migrate(connection)
            rows = await connection.fetch("SELECT * FROM mq.database")
            assert [tuple(row) for row in rows] == [(1, None, False), (2, None, False)]
            assert await connection.fetchval("SELECT count(*) FROM mq.setting WHERE name = 'store_places'") == 0

    asyncio.run(story())


@pytest.fixture
def migrated(new_database: str) -> Iterator[PostgresHost]:
    async def prepare() -> None:
        await restore(new_database)
        async with connected(new_database) as connection:
            await migrate(connection)
            await connection.execute(_CLOCK + _UNGUARDED)

    asyncio.run(prepare())
    options = PostgresOptions(purge_pause_s=0, queue_name_pause_s=60, event_log="closed", listens=False)
    host = PostgresHost(new_database, options=options, clock=VirtualClock(recorded()[0]["now_ms"]))
    yield host
    host.check()
    host.close()


def test_messages_groups_and_claims_go_on(migrated: PostgresHost) -> None:
    """Leases, counts, receipts, attempts, duplicates, delays, fair groups, dead letters and what is claimed."""
    said = recorded()[0]
    for queue, counts in said["counts"].items():
        if not queue.endswith(("/in", "/dead", "/read")):  # which go on by themselves
            assert list(migrated.counts(queue)) == counts, queue
    assert [each.body for each in migrated.receive(2)] == ["soon", "b"]
    states = [migrated.delete(receipt)[0] for _, receipt, _ in said["leases"]]
    assert states == [ReceiptState.LIVE, ReceiptState.SUPERSEDED, ReceiptState.LIVE]
    fifo = QUEUE + ".fifo"
    migrated.do(commands.Send(queue=fifo, messages=(message("a3", group="a", dedup_id="a3"),)))
    again = migrated.do(commands.Receive(queue=fifo, count=1, attempt_id="x", timeout_s=30)).messages
    assert [each.body for each in again] == [body for body, _ in said["attempt"]]
    assert [each.body for each in migrated.receive(10, queue=fifo)] == ["b1", "b2"]
    assert [each.body for each in migrated.receive(10, queue="000000000000/fair")] == ["x2", "y0", "y1", "y2"]
    page = migrated.do(claims.ReadClaim(queue="000000000000/in.fifo", source="s", number=1, shard=0))
    other = migrated.do(claims.ReadClaim(queue="000000000000/in.fifo", source="s", number=1, shard=1))
    assert sorted(each.body for each in (*page.messages, *other.messages)) == ["g0", "g1"]
    migrated.do(claims.ReleaseClaim(queue="000000000000/read", source="s", number=2))
    migrated.advance(50_000)
    assert [each.body for each in migrated.receive(1, queue="000000000000/late.fifo")] == ["slow"]
    assert migrated.counts("000000000000/read") == (18, 0, 0)
    assert "later" in [each.body for each in migrated.receive(10)]


def test_what_goes_on_by_itself_goes_on(migrated: PostgresHost) -> None:
    """Publications, move tasks, cooldowns, events and late deletes, topics and what waits to be pushed, settings."""
    said = recorded()[0]
    inbox, queue = "000000000000/in", said["events_queue"]
    assert migrated.engine.token_key.hex() == said["token_key"]
    assert migrated.do(ShowAccount(account="a")).logging_bucket == "b"
    assert migrated.do(commands.ShowQueue(queue=QUEUE)).settings.tags == {"team": "red"}
    with pytest.raises(QueueDeletedRecently):
        migrated.create("000000000000/gone")
    (task,) = migrated.do(commands.ListMoves(source="000000000000/dead"))
    assert (task.id.hex(), task.status) == (said["move"], MoveStatus.RUNNING)
    while migrated.do(Publish(queue=inbox, writer="w", batch=1, attempts=(("a", 30),))).more:
        migrated.advance(1_000)
    assert migrated.counts(inbox)[0] == 30
    (writer,) = migrated.do(ListWriters(queue=inbox))
    assert (writer.batch, writer.staged) == (1, 2)
    assert [each.body for each in migrated.receive(1, queue=push_queue("000000000000/news", "s"))] == ["n"]
    planned = migrated.do(PlanExport(events_max=2))
    assert [planned.first, planned.last] == said["planned"]
    before = numbered(migrated)
    assert said["fresh"] in [event.message_id.hex() for _, event in before]
    migrated.delete(*(said["ends"][body][0] for body in ("late", "gone", "held")), queue=queue)
    added = {event.message_id.hex(): event.outcome for _, event in numbered(migrated)[len(before) :]}
    late = {said["ends"][body][1]: Outcome.LATE_DELETED for body in ("late", "gone")}
    assert {each: added.get(each) for each in late} == late
    assert added[said["ends"]["held"][1]] is Outcome.DELETED

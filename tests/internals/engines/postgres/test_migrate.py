"""The history of the schema: who applies what, and which nodes can work with what is found."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.store.postgres_host import connected
from veilmq.engines.postgres.migrate import SchemaRefused, Script, all_scripts, look, migrate, require

OURS = all_scripts()
LAST = OURS[-1].number


def added(*, ends: int = 0, text: str = "CREATE TABLE mq.later ()") -> Script:
    """Return a script of a later version."""
    return Script(LAST + 1, f"{LAST + 1}_later", text, ends)


@pytest.fixture
def on_database(new_database: str) -> Callable[[Callable[[Any], Awaitable[None]]], None]:
    """Tell a story to a connection to an empty database."""

    def tell(story: Callable[[Any], Awaitable[None]]) -> None:
        async def told() -> None:
            async with connected(new_database) as connection:
                await story(connection)

        asyncio.run(told())

    return tell


Tell = Callable[[Callable[[Any], Awaitable[None]]], None]


def test_each_script_is_applied_once(on_database: Tell) -> None:
    """And looking at the schema applies none of them."""

    async def story(connection: Any) -> None:
        assert await look(connection) == (0, list(OURS))
        assert await migrate(connection) == list(OURS)
        assert await look(connection) == (LAST, [])
        assert await migrate(connection) == []

    on_database(story)


def test_all_of_it_or_nothing(on_database: Tell) -> None:
    """A script that fails leaves the schema as it was."""

    async def story(connection: Any) -> None:
        await migrate(connection)
        with pytest.raises(asyncpg.UndefinedTableError):
            await migrate(connection, [*OURS, added(), added(text="DROP TABLE mq.nothing")])
        assert await look(connection) == (LAST, [])
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
    """It may mean something else by then."""

    async def story(connection: Any) -> None:
        await migrate(connection, [*OURS, added(ends=LAST + 1)])
        for do in (look, migrate, require):
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
        last = added(ends=LAST + 1)
        assert await migrate(connection, [*OURS, last], ending_older_nodes=False) == [*OURS, last]

    on_database(story)
    on_database(empty)


def test_a_node_that_may_not_migrate_says_what_is_missing(on_database: Tell) -> None:
    """Before it serves."""

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
                with pytest.raises(SchemaRefused, match="somebody else uses a table"):
                    await migrate(connection, [*OURS, added(text="ALTER TABLE mq.queue ADD COLUMN later int")])
            assert await look(connection) == (LAST, [])

    asyncio.run(story())


@asynccontextmanager
async def both(url: str) -> AsyncIterator[tuple[Any, Any]]:
    """Have two connections for a while."""
    async with connected(url) as one, connected(url) as other:
        yield one, other


def test_partitions_learn_the_delays_that_their_queues_have(on_database: Tell) -> None:
    """Those of FIFO queues alone, from before too, and each new one; settings that cannot be read change nothing."""

    async def story(connection: Any) -> None:
        await migrate(connection, OURS[: [each.number for each in OURS].index(19)])
        for number, settings in enumerate(('{"fifo": true, "delay_s": 5}', '{"delay_s": 5}', "{}", "{"), start=1):
            await connection.execute(
                """INSERT INTO mq.queue (name, settings, created_at, modified_at, qp, origin)
                VALUES ($1, $2, 0, 0, $3, $3)""",
                f"q{number}",
                settings.encode(),
                await connection.fetchval("INSERT INTO mq.part (queue_id) VALUES ($1) RETURNING qp", number),
            )
        await migrate(connection)
        delays = "SELECT array_agg(delay ORDER BY qp) FROM mq.part"
        assert await connection.fetchval(delays) == [5_000, 0, 0, 0]
        await connection.execute("""UPDATE mq.queue SET settings = '{"fifo": true, "delay_s": 1}' WHERE name = 'q1'""")
        assert await connection.fetchval(delays) == [1_000, 0, 0, 0]

    on_database(story)

"""Publications at several nodes of one database: staged here, published there, each message once and in its order."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tests.internals.store.postgres.two_nodes import TwoNodes, two_nodes
from tests.store.host import QUEUE, message
from veilmq.core.claims import ListWriters, Publish, Published, Stage, Staged
from veilmq.core.commands import DeleteQueue, PurgeQueue
from veilmq.core.errors import QueueNotFound
from veilmq.store.port import execute
from veilmq.store.postgres.database import POLL_MS
from veilmq.store.publications import CLIENT_MS, PIECE_MESSAGES, PublicationStep

MANY = 4 * PIECE_MESSAGES
BODIES = [str(number) for number in range(MANY)]
PUBLISH = Publish(queue=QUEUE, writer="w", batch=0, attempts=(("a", MANY),))


def stage(bodies: list[str] = BODIES, *, part: int = 0, attempt: str = "a") -> Stage:
    new = tuple(message(body, group=f"g{int(body) % 2}", dedup_id=body) for body in bodies)
    return Stage(queue=QUEUE, writer="w", batch=0, attempt=attempt, part=part, messages=new)


@pytest.fixture
def nodes(postgres_url: str) -> Iterator[TwoNodes]:
    with two_nodes(postgres_url) as opened:
        opened.host.create(fifo=True)
        yield opened


def check_all_came(nodes: TwoNodes) -> None:
    """Assert that the queue has each message once, each group in its order, and that nothing is left beside it."""
    rows = nodes.host.values("SELECT body FROM mq.fifo_msg WHERE qp > 0 ORDER BY group_id, seq")
    assert rows == [*BODIES[::2], *BODIES[1::2]]
    assert [nodes.host.rows(table) for table in ("stage", "piece", "publication")] == [0, 0, 0]
    nodes.host.check()


def test_what_one_node_stages_another_publishes(nodes: TwoNodes) -> None:
    assert nodes.host.do(stage()) == Staged(messages=MANY)
    assert nodes.do_there(stage()) == Staged(messages=MANY, again=True)
    assert nodes.do_there(PUBLISH).again is False
    nodes.advance(CLIENT_MS)
    for _ in range(MANY // PIECE_MESSAGES + 20):  # a node that finds the other one at it pauses
        nodes.advance(10)
    assert nodes.host.do(PUBLISH) == Published(messages=MANY, again=True)
    check_all_came(nodes)


def test_what_a_dead_node_had_decided_enters(nodes: TwoNodes) -> None:
    """Its connections end between two slices, and it does no more."""
    nodes.host.do(stage())
    assert nodes.host.do(PUBLISH).more
    nodes.first.workers[PublicationStep].stop()
    for _ in range(MANY // PIECE_MESSAGES + 2):
        nodes.advance(POLL_MS)
    check_all_came(nodes)


def test_nodes_that_publish_at_one_time_publish_once(nodes: TwoNodes) -> None:
    """Both are answered when all is in the queue, or asked to come again; slices keep their order."""
    nodes.host.do(stage())

    async def until_all_is_in(node: object) -> bool:
        again = published = await execute(node, PUBLISH)  # type: ignore[arg-type]
        while published.more:
            published = await execute(node, PUBLISH)  # type: ignore[arg-type]
        return bool(again.again)

    async def work() -> list[bool]:
        return await asyncio.gather(*(until_all_is_in(node) for node in (nodes.first, nodes.other)))

    assert sorted(nodes.host.run(work())) == [False, True]
    nodes.advance(CLIENT_MS)
    for _ in range(2):
        nodes.advance(10)
    check_all_came(nodes)


def test_nodes_that_publish_at_one_time_keep_the_rate_together(nodes: TwoNodes) -> None:
    """Whoever comes second finds that the next slice is not due yet."""
    nodes.host.do(stage())
    for node in (nodes.first, nodes.other):
        node.workers[PublicationStep].stop()
    publish = Publish(queue=QUEUE, writer="w", batch=0, attempts=(("a", MANY),), messages_per_s_max=20)

    async def work() -> None:
        await asyncio.gather(*(execute(node, publish) for node in (nodes.first, nodes.other) * 5))

    for slices in range(1, 13):
        nodes.host.run(work())
        assert nodes.host.rows("fifo_msg") == 2 * slices
        nodes.advance(100)


def test_parts_are_staged_at_any_node_at_one_time(nodes: TwoNodes) -> None:
    parts = [stage(BODIES[start : start + 100], part=start // 100) for start in range(0, MANY, 100)]

    async def work() -> None:
        both = (nodes.first, nodes.other)
        await asyncio.gather(*(execute(both[part.part % 2], part) for part in parts))

    nodes.host.run(work())
    (writer,) = nodes.do_there(ListWriters(queue=QUEUE))
    assert writer.staged == MANY
    nodes.host.do(PUBLISH)
    for _ in range(MANY // 100 + 20):
        nodes.advance(10)
    check_all_came(nodes)


def test_purges_and_a_deletion_come_between_publications(nodes: TwoNodes) -> None:
    """Whatever is under way at another node: no command fails but those on a queue that is gone."""

    async def publish(batch: int) -> None:
        bodies = [str(batch * MANY + number) for number in range(MANY // 2)]
        await execute(nodes.first, replace(stage(bodies), batch=batch))
        published = Publish(queue=QUEUE, writer="w", batch=batch, attempts=(("a", MANY // 2),))
        while (await execute(nodes.first, published)).more:
            await execute(nodes.other, replace(published, writer="x", attempts=()))

    async def work() -> None:
        for batch in range(4):
            await asyncio.gather(publish(batch), *(execute(nodes.other, PurgeQueue(queue=QUEUE)) for _ in range(3)))
        delete = execute(nodes.other, DeleteQueue(queue=QUEUE))
        ended: list[Any] = list(await asyncio.gather(publish(4), publish(5), delete, return_exceptions=True))
        assert ended.pop() is None
        assert all(each is None or isinstance(each, QueueNotFound) for each in ended)

    nodes.host.run(work())
    nodes.advance(CLIENT_MS)
    for _ in range(MANY // PIECE_MESSAGES + 20):
        nodes.advance(10)
    assert [nodes.host.rows(table) for table in ("writer", "stage", "piece", "publication")] == [0, 0, 0, 0]
    nodes.host.check()


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        ("DELETE FROM mq.piece", "everything staged has a writer, and as many messages as it says"),
        ("DELETE FROM mq.writer", "everything staged has a writer, and as many messages as it says"),
        ("UPDATE mq.publication SET stages = '{7777}'", "everything decided is there until it has entered"),
    ],
)
def test_the_doctor_finds_what_is_wrong_with_publications(nodes: TwoNodes, damage: str, check: str) -> None:
    nodes.host.do(stage())
    nodes.host.do(PUBLISH)
    nodes.host.do(
        Stage(queue=QUEUE, writer="w", batch=1, attempt="a", part=0, messages=(message("x", group="g", dedup_id="x"),))
    )
    nodes.host.check()
    nodes.host.values(damage)
    with pytest.raises(AssertionError, match=check):
        nodes.host.check()

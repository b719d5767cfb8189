"""Messages move from one database to another once and in order, also after failures between two steps."""

import asyncio
from collections.abc import Iterator
from functools import partial
from random import Random

import pytest

from tests.store.host import QUEUE, message
from tests.store.postgres_host import ShardsHost, hosting_shards, set_clock
from tests.store.test_dead_letters import DEAD, dead_letter, dead_letter_in_order, pair
from tests.store.test_dead_letters import take as take_in_turn
from veilmq.core.commands import Peek
from veilmq.core.errors import StoreUnavailable
from veilmq.core.topics import Forward, Forwarded, ForwardEntry
from veilmq.store.postgres.database import POLL_MS
from veilmq.store.postgres.outbox import CLAIM_MS, Batch, Outbox, due, next_batch, store_batch
from veilmq.store.postgres.transaction import PostgresTransaction, transact

BODIES = [str(number) for number in range(250)]
STEPS = 6


@pytest.fixture
def host(shard_urls: list[str]) -> Iterator[ShardsHost]:
    """A node on two databases: the dead-letter queue is in the first, its source in the second."""
    with hosting_shards(shard_urls) as opened:
        pair(opened, receives_max=1)
        assert (opened.place_of(DEAD), opened.place_of(QUEUE)) == (0, 1)
        yield opened


def stop_relays(host: ShardsHost) -> None:
    for relay in [each.catalog.outbox for each in host.engine.shards.values()]:
        relay.stop()


def restart_relays(host: ShardsHost) -> None:
    host.reopen()
    host.run(host.engine.drain())
    host.advance(CLAIM_MS + POLL_MS)


async def take_batch(host: ShardsHost, outbox: Outbox, done: Batch | None = None) -> Batch | None:
    return await transact(host.engine.shards[1], partial(next_batch, outbox=outbox, done=done))


async def store_at_target(host: ShardsHost, outbox: Outbox, batch: Batch) -> int | None:
    return await transact(host.engine.shards[0], partial(store_batch, outbox=outbox, from_place=1, batch=batch))


async def find_outbox(host: ShardsHost) -> Outbox:
    async with host.engine.shards[1].database.connection() as source:
        (outbox,) = await due(source)
    return outbox


def receive_all(host: ShardsHost, queue: str = DEAD) -> list[str]:
    found = []
    while got := host.receive(100, queue=queue):
        found += [each.body for each in got]
    return found


def count_in_outbox(host: ShardsHost) -> int:
    tables = (f"SELECT FROM mq.{table} JOIN mq.outbox USING (qp)" for table in ("msg", "fifo_msg"))
    (count,) = host.values(f"SELECT count(*) FROM ({' UNION ALL '.join(tables)}) AS left_there", url=host.urls[1])
    return int(count)


@pytest.mark.parametrize("steps", range(STEPS))
def test_failure_between_two_steps_loses_and_doubles_nothing(host: ShardsHost, steps: int) -> None:
    """Two batches are relayed; the relay fails after the given number of steps, and another one continues."""
    stop_relays(host)
    dead_letter(host, *BODIES)
    assert (count_in_outbox(host), host.counts(DEAD)) == (len(BODIES), (0, 0, 0))

    async def store_and_fail(tx: PostgresTransaction, outbox: Outbox, batch: Batch) -> None:
        await store_batch(tx, outbox, 1, batch)
        raise StoreUnavailable

    async def relay() -> None:
        outbox = await find_outbox(host)
        batch = await take_batch(host, outbox) if steps > 0 else None
        if batch is not None and steps == 2:  # it fails before the commit
            with pytest.raises(StoreUnavailable):
                await transact(host.engine.shards[0], partial(store_and_fail, outbox=outbox, batch=batch))
        if batch is not None and steps > 2:
            await store_at_target(host, outbox, batch)
        if batch is not None and steps > 3:
            batch = await take_batch(host, outbox, batch)
        if batch is not None and steps > 4:
            await store_at_target(host, outbox, batch)

    host.run(relay())
    restart_relays(host)
    assert sorted(receive_all(host), key=int) == BODIES
    assert count_in_outbox(host) == 0
    host.check()


def test_late_relay_changes_nothing(host: ShardsHost) -> None:
    stop_relays(host)
    dead_letter(host, "a", "b")

    async def take_first() -> tuple[Outbox, Batch]:
        outbox = await find_outbox(host)
        batch = await take_batch(host, outbox)
        assert batch is not None
        return outbox, batch

    async def relay_again(outbox: Outbox, batch: Batch) -> int | None:
        result = await store_at_target(host, outbox, batch)
        assert await take_batch(host, outbox, batch) is None
        return result

    outbox, batch = host.run(take_first())
    restart_relays(host)
    assert host.run(relay_again(outbox, batch)) is None
    dead_letter(host, "c")
    assert host.run(relay_again(outbox, batch)) == batch.number + 1
    assert receive_all(host) == ["a", "b", "c"]


def test_repeated_batch_wakes_the_waiters(host: ShardsHost) -> None:
    """The connection or node failed between the commit and the wake, so the batch is relayed again."""
    stop_relays(host)
    dead_letter(host, "a")

    async def store_twice() -> tuple[list[int], int | None]:
        outbox = await find_outbox(host)
        batch = await take_batch(host, outbox)
        assert batch is not None
        async with host.engine.shards[0].database.connection() as target, target.transaction():
            await store_batch(PostgresTransaction(target, host.engine.shards[0]), outbox, 1, batch)
        woken_ms: list[int] = []
        host.engine.watch(DEAD, woken_ms.append)
        again = await store_at_target(host, outbox, batch)
        await asyncio.sleep(0)
        return woken_ms, again

    woken_ms, again = host.run(store_twice())
    assert again is None
    assert woken_ms
    assert max(woken_ms) <= host.clock.now_ms()


def test_source_restored_from_a_backup_loses_nothing(host: ShardsHost) -> None:
    dead_letter(host, "a")
    dead_letter(host, "b")
    assert host.values("UPDATE mq.outbox SET number = 0 WHERE number = 2 RETURNING 1", url=host.urls[1]) == [1]
    dead_letter(host, "c")
    assert receive_all(host) == ["a", "b", "c"]


def test_deleted_queue_leaves_no_arrivals(host: ShardsHost) -> None:
    dead_letter(host, "a")
    assert host.rows("arrival") == 1
    host.drop(DEAD)
    assert host.rows("arrival") == 0


@pytest.mark.parametrize("seed", range(2))
def test_invariants_hold_after_many_crashes(host: ShardsHost, seed: int) -> None:
    random = Random(seed)
    stop_relays(host)
    dead_letter(host, *BODIES)

    async def terminate_soon() -> None:
        for url in host.urls:
            await set_clock(url, host.clock.now_ms() + CLAIM_MS + POLL_MS)
        host.clock.advance(CLAIM_MS + POLL_MS)
        for _ in range(random.randrange(400)):
            await asyncio.sleep(0)
        await host.end_connections()

    for _ in range(6):
        host.reopen()
        host.run(terminate_soon())
    restart_relays(host)
    restart_relays(host)
    assert sorted(receive_all(host), key=int) == BODIES
    assert count_in_outbox(host) == 0


def test_groups_keep_their_order_after_crashes(shard_urls: list[str]) -> None:
    with hosting_shards(shard_urls) as host:
        pair(host, receives_max=1, fifo=True)
        dead_letter_in_order(host, "a1", "b1", "a2")
        stop_relays(host)
        dead_letter_in_order(host, "a3", "b2")
        host.advance(1_000)
        dead_letter_in_order(host, "a4")
        host.run(host.end_connections())
        restart_relays(host)
        relayed = {each.body: each for each in host.do(Peek(queue=DEAD, count=5)).messages}
        assert relayed["a4"].first_received_at_ms == relayed["a3"].first_received_at_ms + 1_000
        dead_letter_in_order(host, "a5")
        got = take_in_turn(host, DEAD)
        assert [body for body in got if body[0] == "a"] == ["a1", "a2", "a3", "a4", "a5"]
        assert [body for body in got if body[0] == "b"] == ["b1", "b2"]
        assert count_in_outbox(host) == 0
        host.check()


@pytest.mark.parametrize("fifo", [False, True])
def test_messages_for_a_deleted_queue_return(shard_urls: list[str], *, fifo: bool) -> None:
    """With their earlier receive count, and are received once more."""
    with hosting_shards(shard_urls) as host:
        pair(host, receives_max=1, fifo=fifo)
        stop_relays(host)
        host.put(message("a", group="g", dedup_id="a"))
        (before,) = host.receive(10, timeout_s=0)
        assert host.receive(10) == []
        host.drop(DEAD)
        restart_relays(host)
        (again,) = host.receive(10)
        assert (again.body, again.id, again.receive_count, again.source) == ("a", before.id, 2, None)
        assert count_in_outbox(host) == 0
        host.check()


def test_recreated_target_gets_no_earlier_messages(host: ShardsHost) -> None:
    """Messages for the deleted queue return, and become dead letters again."""
    stop_relays(host)
    dead_letter(host, "a")
    host.drop(DEAD)
    host.create(DEAD)
    restart_relays(host)
    assert host.counts(DEAD) == (0, 0, 0)
    assert host.receive(10) == []  # it is a dead letter of the new queue
    assert receive_all(host) == ["a"]


def test_messages_without_source_and_target_are_deleted(host: ShardsHost) -> None:
    """And, after a while, their outbox."""
    stop_relays(host)
    dead_letter(host, "a")
    host.drop(DEAD)
    host.drop()
    restart_relays(host)
    assert count_in_outbox(host) == 0
    host.advance(400_000)
    host.advance(POLL_MS)
    assert host.values("SELECT count(*) FROM mq.outbox", url=host.urls[1]) == [0]


@pytest.mark.parametrize("fifo", [False, True])
def test_message_can_return_to_its_first_queue(shard_urls: list[str], *, fifo: bool) -> None:
    with hosting_shards(shard_urls) as host:
        there = "000000000000/there"
        host.create(QUEUE, fifo=fifo)
        host.create(there, fifo=fifo)
        assert (host.place_of(QUEUE), host.place_of(there)) == (0, 1)
        host.put(message("a", group="g", dedup_id="a"))
        ids = set()
        for intake, target in [(QUEUE, there), (there, QUEUE)] * 3:
            got = host.receive_one(queue=intake)
            ids.add(got.id)
            entries = (ForwardEntry(receipt=got.receipt, target=target),)
            assert host.do(Forward(queue=intake, entries=entries)) == [Forwarded(id=got.id)]
            assert sum(host.counts(intake)) == 0
        assert len(ids) == 1
        assert host.receive_one().body == "a"


def test_delay_of_the_target_starts_with_the_forward(shard_urls: list[str]) -> None:
    with hosting_shards(shard_urls) as host:
        there = "000000000000/there"
        host.create(QUEUE)
        host.create(there, delay_s=60)
        stop_relays(host)
        host.send("a")
        host.do(Forward(queue=QUEUE, entries=(ForwardEntry(receipt=host.receive_one().receipt, target=there),)))
        host.advance(30_000)
        restart_relays(host)
        assert host.counts(there) == (0, 0, 1)
        host.advance(30_000 - CLAIM_MS - POLL_MS - 1)
        assert host.counts(there) == (0, 0, 1)
        host.advance(1)
        assert host.counts(there) == (1, 0, 0)


def test_groups_of_a_standard_queue_are_relayed(shard_urls: list[str]) -> None:
    """They share fairly in the target, and leave no rows behind."""
    with hosting_shards(shard_urls) as host:
        there = "000000000000/there"
        host.create(QUEUE)
        host.create(there)
        host.put(*(message(body, group=body[0]) for body in ("a1", "a2", "b1")))
        entries = tuple(ForwardEntry(receipt=each.receipt, target=there) for each in host.receive(10))
        assert len(host.do(Forward(queue=QUEUE, entries=entries))) == 3
        assert sorted(receive_all(host, there)) == ["a1", "a2", "b1"]
        assert host.values("SELECT count(*) FROM mq.fair_turn JOIN mq.outbox USING (qp)") == [0]

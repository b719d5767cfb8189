"""Copies to a folder and to a database, and backups: positions, refusals, unfinished copies."""

import asyncio
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

from tests.store.host import QUEUE, hosting, message
from tests.store.postgres_host import PostgresHost, connected, copied, set_clock
from veilmq.core.claims import OpenSource
from veilmq.core.errors import ReceiptState
from veilmq.core.limits import BATCH_BYTES_MAX, RETENTION_S, SECOND_MS
from veilmq.core.receipts import KEY_BYTES, ReceiptCodec
from veilmq.core.settings import QueueSettings
from veilmq.server.stores import copy_store
from veilmq.store.copying import CopiedMessage, CopiedQueue, CopyRefused
from veilmq.store.events import EXPIRED_KEPT_S
from veilmq.store.postgres.copying import CopyTransaction, DatabaseSource, DatabaseTarget
from veilmq.store.sqlite.copying import FolderSource, FolderTarget, back_up
from veilmq.store.sqlite.database import DATABASE_NAME, FolderError
from veilmq.testing import VirtualClock

KEY = bytes(KEY_BYTES)
FIFO = QUEUE + ".fifo"
NOW_MS = VirtualClock().now_ms()
AT = NOW_MS << 20
SENT = CopiedMessage(AT, b"i" * 16, "", b"", 8, NOW_MS, NOW_MS, NOW_MS)
LEASED = SENT._replace(
    visible_at_ms=NOW_MS + 60_000,
    receive_count=1,
    generation=7,
    epoch=1,
    received_at_ms=NOW_MS,
    first_received_at_ms=NOW_MS,
)


async def fill(target: FolderTarget, **queues: list[CopiedMessage]) -> None:
    """Add these queues with their messages; the one named fifo is a FIFO queue."""
    await target.begin({"receipt_key": KEY}, now_ms=NOW_MS, last_queue=9)
    for number, (name, messages) in enumerate(queues.items(), 1):
        settings = QueueSettings(fifo=name == "fifo")
        queue = CopiedQueue(number, FIFO if settings.fifo else f"000000000000/{name}", settings, 0, 0)
        await target.add_queue(queue)
        await target.add_messages(queue, messages)


def filled(folder: Path, **queues: list[CopiedMessage]) -> None:
    async def fill_and_finish() -> None:
        await fill(target, **queues)
        await target.finish()

    with FolderTarget(folder) as target:
        asyncio.run(fill_and_finish())


def receipt(message: CopiedMessage, queue: int = 1) -> str:
    fields = message.position, message.generation, message.epoch, message.visible_at_ms
    return ReceiptCodec(key=KEY).issue(queue, *fields)


def test_a_position_becomes_the_seq_if_possible(tmp_path: Path) -> None:
    """It is possible if it is of the sending time and free; otherwise the message gets the next free seq."""
    jobs = [SENT, SENT._replace(position=5), LEASED._replace(position=AT + 1), LEASED._replace(position=AT + 9)]
    other = [LEASED, SENT._replace(position=7)]
    filled(tmp_path / "copy", jobs=jobs, other=other)
    with hosting(tmp_path / "copy") as host:
        assert host.rows(f"message WHERE seq IN ({AT}, {AT + 1}, {AT + 2}, {AT + 9}, {AT + 3}, {AT + 4})") == 6
        assert host.rows("renumbered") == 2
        receipts = [receipt(jobs[2]), receipt(jobs[3])]
        assert host.delete(*receipts) == [ReceiptState.LIVE, ReceiptState.LIVE]
        assert host.delete(receipt(other[0], 2), queue="000000000000/other") == [ReceiptState.LIVE]
        assert (host.counts(), host.counts("000000000000/other")) == ((2, 0, 0), (1, 0, 0))
        host.check()


def test_a_group_keeps_its_order_with_any_positions(tmp_path: Path) -> None:
    messages = [
        SENT._replace(position=AT + 9, group="g", body="a"),
        SENT._replace(position=AT + 3, group="g", body="b"),
        SENT._replace(position=1, sent_at_ms=NOW_MS - 1, group="g", body="c"),
    ]
    filled(tmp_path / "copy", fifo=messages)
    with hosting(tmp_path / "copy") as host:
        host.put(message("d", group="g", dedup_id="d"), queue=FIFO)
        assert host.bodies(10, queue=FIFO) == ["a", "b", "c", "d"]


def test_positions_are_deleted_when_no_receipt_can_act(tmp_path: Path) -> None:
    """A day after the longest retention, because until then a late delete is logged. Afterwards, receipts are gone."""
    leased = LEASED._replace(position=5)
    filled(tmp_path / "copy", jobs=[leased])
    with hosting(tmp_path / "copy") as host:
        assert host.rows("renumbered") == 1
        host.advance(RETENTION_S.maximum * SECOND_MS + 1)
        host.sweep()
        assert host.rows("renumbered") == 1
        host.advance(EXPIRED_KEPT_S * SECOND_MS)
        host.sweep()
        assert host.rows("renumbered") == 0
        assert host.delete(receipt(leased)) == [ReceiptState.GONE]


def test_large_messages_are_read_in_small_slices(tmp_path: Path) -> None:
    """A slice has at most the bytes of a batch, and the message that exceeds them."""
    body, count = "x" * (BATCH_BYTES_MAX // 4), 10
    filled(tmp_path / "store", jobs=[SENT._replace(position=AT + each, body=body) for each in range(count)])

    async def sizes() -> list[int]:
        with FolderSource.opened(tmp_path / "store", clock=VirtualClock()) as source:
            return [len(slice_) for queue in await source.queues() async for slice_ in source.messages(queue)]

    assert asyncio.run(sizes()) == [4, 4, 2]


def test_an_unfinished_copy_leaves_nothing(tmp_path: Path) -> None:
    """Neither the folder nor the unfinished one remains; an existing folder does not change."""
    with FolderTarget(tmp_path / "copy") as target:
        asyncio.run(fill(target, jobs=[SENT]))
        assert (tmp_path / "copy.unfinished").exists()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FolderError, match="is not overwritten"):
        FolderTarget(tmp_path)


def test_a_copy_that_breaks_an_invariant_is_discarded(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="has its count, its epoch and its times"):
        filled(tmp_path / "copy", jobs=[LEASED._replace(first_received_at_ms=None)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step_ms", [86_400_000, -30_000])
def test_after_a_step_of_the_clock_a_copy_has_shown_times_and_the_same_receipts(
    tmp_path: Path, postgres_url: str, step_ms: int
) -> None:
    """A database uses the wall clock, from which store time may differ. Leases and delays end when they should."""
    with hosting(tmp_path / "store") as host:
        host.create()
        host.create(FIFO, fifo=True)
        host.advance(60_000)
        host.clock.step_wall(step_ms)
        host.send("leased", "waits")
        host.send("delayed", delay_s=900)
        (leased,) = host.receive(timeout_s=60)
        host.put(*(message(each, group="g", dedup_id=each) for each in "ab"), queue=FIFO)
    PostgresHost.on_empty(postgres_url).close()
    wall_ms = host.clock.wall_ms()
    asyncio.run(set_clock(postgres_url, wall_ms))
    asyncio.run(copy_store(str(tmp_path / "store"), postgres_url, clock=host.clock))
    copied_host = PostgresHost(postgres_url)
    copied_host.advance(wall_ms - copied_host.clock.now_ms())
    assert copied_host.counts() == (1, 1, 1)
    assert [(each.body, each.sent_at_ms) for each in copied_host.receive(10)] == [("waits", wall_ms)]
    assert copied_host.delete(leased.receipt) == [ReceiptState.LIVE]
    copied_host.put(message("c", group="g", dedup_id="c"), queue=FIFO)
    assert copied_host.bodies(10, queue=FIFO) == ["a", "b", "c"]
    copied_host.close()


# Refusals of copies to and from a database, which leave nothing.


JOBS = CopiedQueue(1, QUEUE, QueueSettings(), 0, 0)


def filled_database(url: str, fill: Callable[[DatabaseTarget, CopyTransaction, int], Awaitable[None]]) -> None:
    """Start a copy to an empty database, call `fill` with the current time, and finish; assert that nothing remains."""
    PostgresHost.on_empty(url).close()

    async def run() -> None:
        async with CopyTransaction.open(url) as transaction:
            now_ms: int = await transaction.connection.fetchval("SELECT mq.now_ms()")
            target = DatabaseTarget(transaction)
            await target.begin({}, now_ms=now_ms, last_queue=1)
            await target.add_queue(JOBS)
            await fill(target, transaction, now_ms)
            await target.finish()

    async def queues() -> Any:
        async with connected(url) as connection:
            return await connection.fetchval("SELECT count(*) FROM mq.queue")

    try:
        asyncio.run(run())
    finally:
        assert asyncio.run(queues()) == 0


@asynccontextmanager
async def _node(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, server_settings={"application_name": "veilmq"})
    try:
        yield connection
    finally:
        await connection.close()


async def _blocked(transaction: CopyTransaction, node: Any) -> None:
    blocked = "SELECT pg_backend_pid() = ANY (pg_blocking_pids($1))"
    while not await transaction.connection.fetchval(blocked, node.get_server_pid()):
        pass


def test_an_inconsistent_copy_is_discarded(postgres_url: str) -> None:
    """It has a group without a message."""

    async def fill(target: DatabaseTarget, transaction: CopyTransaction, now_ms: int) -> None:
        await transaction.connection.execute(
            "INSERT INTO mq.fifo_group (qp, group_id, eligible_at, head, last_seq) VALUES (99, 'g', 0, 1, 1)"
        )

    with pytest.raises(CopyRefused, match="every group has a message"):
        filled_database(postgres_url, fill)


def test_a_position_in_the_future_is_refused(postgres_url: str) -> None:
    async def fill(target: DatabaseTarget, transaction: CopyTransaction, now_ms: int) -> None:
        position = now_ms + 60_001 << 20
        message = CopiedMessage(position, b"i" * 16, "body", b"", 8, now_ms, now_ms, now_ms, receive_count=1)
        await target.add_messages(JOBS, [message])

    with pytest.raises(CopyRefused, match="is in the future"):
        filled_database(postgres_url, fill)


def test_a_database_with_another_time_is_refused(postgres_url: str) -> None:
    PostgresHost.on_empty(postgres_url).close()

    async def run() -> None:
        async with CopyTransaction.open(postgres_url) as transaction:
            now_ms: int = await transaction.connection.fetchval("SELECT mq.now_ms()")
            await DatabaseTarget(transaction).begin({}, now_ms=now_ms + 60_001, last_queue=0)

    with pytest.raises(CopyRefused, match="more than a minute"):
        asyncio.run(run())


def test_few_messages_of_a_database_are_in_memory_at_a_time(postgres_url: str) -> None:
    """Each may have 1 MiB."""
    host = PostgresHost.on_empty(postgres_url)
    host.create()
    host.send(*(f"{number}" for number in range(200)))
    host.close()

    async def slices() -> list[list[str]]:
        async with CopyTransaction.open(postgres_url) as transaction:
            source = await DatabaseSource.open(transaction)
            slices = [slice_ for queue in await source.queues() async for slice_ in source.messages(queue)]
            return [[message.body for message in slice_] for slice_ in slices]

    found = asyncio.run(slices())
    assert sorted(body for slice_ in found for body in slice_) == sorted(f"{number}" for number in range(200))
    assert max(map(len, found)) <= 64


def test_a_node_that_reconnects_during_a_copy_aborts_it(postgres_url: str) -> None:
    """It had lost its connections when the copy started; later messages to it would be missing."""
    PostgresHost.on_empty(postgres_url).close()

    async def run() -> None:
        async with CopyTransaction.open(postgres_url) as transaction:
            source = await DatabaseSource.open(transaction)
            assert await source.queues() == []
            async with _node(postgres_url):
                with pytest.raises(CopyRefused, match="stop all servers"):
                    await source.deduplication_log()

    asyncio.run(run())


def test_a_node_that_waits_for_a_copy_does_not_abort_it(postgres_url: str) -> None:
    PostgresHost.on_empty(postgres_url).close()

    async def run() -> None:
        async with CopyTransaction.open(postgres_url) as transaction:
            source = await DatabaseSource.open(transaction)
            async with _node(postgres_url) as node:
                keys = asyncio.create_task(node.fetch("SELECT name FROM mq.setting"))
                await _blocked(transaction, node)
                assert await source.deduplication_log() == []
                await transaction.commit()
                assert len(await keys) > 0

    asyncio.run(run())


def test_the_error_names_rows_that_a_folder_cannot_have(postgres_url: str, tmp_path: Path) -> None:
    """Here a source; no folder is created."""
    host = PostgresHost.on_empty(postgres_url)
    host.create()
    host.do(OpenSource(queue=QUEUE, source="reader"))
    now_ms = host.clock.now_ms()
    host.close()
    with pytest.raises(CopyRefused, match="1 of source: close the readers"):
        copied(postgres_url, str(tmp_path / "copy"), now_ms)
    assert list(tmp_path.iterdir()) == []


# Backups.


BODIES = ["x" * 100_000] * 60  # more pages than one step copies


@pytest.mark.parametrize("name", ["copy", "copy.db"])
def test_a_backup_of_a_running_store_is_a_snapshot(tmp_path: Path, name: str) -> None:
    """It has leases, receive counts and receipt keys, without changes made between two steps of the backup."""
    target = tmp_path / "backups" / name
    with hosting(tmp_path / "store") as host:
        host.create()
        host.send("in flight", "again")
        (first,) = host.receive(1, timeout_s=100)
        host.receive(1, timeout_s=0)
        host.send(*BODIES)
        steps: list[int] = []

        def on_progress(copied: int, pages: int) -> None:
            steps.append(copied)
            host.send("meanwhile")
            host.delete(*(each.receipt for each in host.receive(1)))

        facts = back_up(tmp_path / "store", target, progress=on_progress)
        assert len(steps) > 1, "the copy was made in one step"
    assert facts["messages"] == len(BODIES) + 2
    folder = target
    if name.endswith(".db"):
        folder = tmp_path / "restored"
        folder.mkdir()
        target.rename(folder / DATABASE_NAME)
    assert [each.name for each in folder.iterdir()] == [DATABASE_NAME]
    assert stat.S_IMODE((folder / DATABASE_NAME).stat().st_mode) == 0o600
    with hosting(folder) as restored:
        assert restored.counts() == (len(BODIES) + 1, 1, 0)
        assert restored.bodies(1) == ["again"]
        assert restored.delete(first.receipt)[0].name == "LIVE"


def test_a_backup_contains_the_other_files_of_the_folder(tmp_path: Path) -> None:
    """Complete files with their permissions, except the process lock and unfinished files. Nothing is overwritten."""
    with hosting(tmp_path / "store"):
        for name in ("push.pem", "push.new"):
            (tmp_path / "store" / name).write_text("secret")
            (tmp_path / "store" / name).chmod(0o600)
        back_up(tmp_path / "store", tmp_path / "copy")
        with pytest.raises(FolderError, match="is not overwritten"):
            back_up(tmp_path / "store", tmp_path / "copy")
    assert sorted(each.name for each in (tmp_path / "copy").iterdir()) == ["push.pem", DATABASE_NAME]
    assert stat.S_IMODE((tmp_path / "copy" / "push.pem").stat().st_mode) == 0o600


def test_an_unsound_backup_is_discarded(tmp_path: Path) -> None:
    """Of a damaged store, and of a file that is no database. The rest of a killed backup is removed."""
    (tmp_path / "copy.unfinished").mkdir()
    with hosting(tmp_path / "store") as host:
        host.create()
        host.send("a")
    with apsw.Connection(str(tmp_path / "store" / DATABASE_NAME)) as damaged:
        damaged.execute("DELETE FROM message")
    damaged.close()
    with pytest.raises(FolderError, match="every run of the ready list has all of its messages"):
        back_up(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store" / DATABASE_NAME).write_bytes(b"no database" * 1_000)
    with pytest.raises(FolderError, match="cannot be copied"):
        back_up(tmp_path / "store", tmp_path / "copy")
    (tmp_path / "store" / DATABASE_NAME).unlink()
    with pytest.raises(FolderError, match="name a data folder"):
        back_up(tmp_path / "store", tmp_path / "copy")
    assert [each.name for each in tmp_path.iterdir()] == ["store"]

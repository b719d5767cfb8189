"""The event log of several nodes: each event is written and exported once, also if nodes fail."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset, fs

from tests.store.host import QUEUE, check_conservation, events_of, message, outcomes, plan
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, wait_until_no_advisory_lock
from veilmq.core.commands import (
    ChangeVisibility,
    Command,
    Delete,
    DeleteQueue,
    Receive,
    ReceivedMessage,
    VisibilityChange,
)
from veilmq.core.receipts import CountEvents, EventRange, ExportedElsewhere, ForgetEvents, PlanExport, ReadEvents
from veilmq.events.exporter import Exporter, Target, open_target
from veilmq.store.port import execute
from veilmq.store.postgres import queues, transaction
from veilmq.store.postgres.engine import PostgresEngine

OPTIONS = replace(RESTLESS, event_log="closed")
HOUR_MS = 3_600_000
BUSY = "000000000000/busy"
MESSAGES = 60
PLAN = PlanExport(events_max=10)

_EVENT = """
INSERT INTO mq.event
SELECT 1, $1, 1, 'queue', 'deleted', 0, 0, 0, 0, 1, 1, NULL, 1, decode('00', 'hex'), NULL
"""


@pytest.fixture
def host(host: PostgresHost) -> PostgresHost:
    host.create()
    return host


def exporter(host: PostgresHost, node: Any, target: Target) -> Exporter:
    return Exporter(
        execute=partial(execute, node), clock=host.clock, target=target, period_s=60, events_per_range=1_000
    )


def cycle(host: PostgresHost, messages: int) -> None:
    for number in range(messages):
        host.send(str(number))
        host.delete(host.receive_one().receipt)


def exported(folder: Path) -> list[int]:
    table = dataset.dataset(folder, partitioning="hive").to_table()
    return sorted(table["event"].to_pylist())


@pytest.mark.parametrize(
    ("settings", "groups"), [({}, 0), ({}, 5), ({"fifo": True}, 5)], ids=["standard", "fair", "fifo"]
)
def test_each_receipt_ends_once_with_several_nodes(host: PostgresHost, settings: dict[str, Any], groups: int) -> None:
    """Messages are deleted, released or expire, while events are numbered."""
    host.create(BUSY, **settings)
    for number in range(MESSAGES):
        host.put(message(str(number), group=str(number % groups) if groups else None, dedup_id=str(number)), queue=BUSY)
    issued: list[ReceivedMessage] = []

    async def work(node: PostgresEngine, rounds: int) -> None:
        for number in range(rounds):
            got = (await execute(node, Receive(queue=BUSY, count=10, timeout_s=30 * (number % 2)))).messages
            issued.extend(got)
            deleted = tuple(each.receipt for each in got[::3])
            back = tuple(VisibilityChange(receipt=each.receipt, timeout_s=0) for each in got[1::3])
            commands: list[Command] = [Delete(queue=BUSY, receipts=deleted), ChangeVisibility(queue=BUSY, changes=back)]
            await asyncio.gather(*(execute(node, each) for each in [*commands, CountEvents()]))

    async def together() -> None:
        async with host.others(3) as nodes:
            await asyncio.gather(*(work(node, 12) for node in nodes))

    host.run(together())
    host.advance(40_000)
    while got := host.receive(10, queue=BUSY):
        issued.extend(got)
        host.delete(*(each.receipt for each in got), queue=BUSY)
    assert host.counts(BUSY) == (0, 0, 0)
    assert len(check_conservation(events_of(host))) == len({each.receipt for each in issued}) > MESSAGES


# Numbers.


def test_late_commit_gets_a_later_number(host: PostgresHost) -> None:
    """Although its place in the table is earlier; no event is skipped, and no number is missing."""

    async def work() -> None:
        async with connected(host.url) as late, connected(host.url) as early:
            transaction = late.transaction()
            await transaction.start()
            await late.execute(_EVENT, 1)
            await early.execute(_EVENT, 2)
            assert (await execute(host.engine, CountEvents())).recorded == 1
            await transaction.commit()
            assert (await execute(host.engine, CountEvents())).recorded == 2

    host.run(work())
    assert plan(host) == (1, 2)
    assert outcomes(host) == [("deleted", 0)] * 2


def test_rolled_back_statement_writes_no_event(host: PostgresHost) -> None:
    host.send("a")
    receipt = host.receive_one().receipt
    host.values("ALTER TABLE mq.event ADD CONSTRAINT full_disk CHECK (false) NOT VALID")
    try:
        with pytest.raises(Exception, match="failed on this request"):
            host.delete(receipt)
    finally:
        host.values("ALTER TABLE mq.event DROP CONSTRAINT full_disk")
    assert host.counts() == (0, 1, 0)
    assert outcomes(host) == []
    host.delete(receipt)
    assert outcomes(host) == [("deleted", 0)]


def test_late_delete_overtaken_by_a_receive_is_logged(host: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receive follows the delete's check, which found only that the lease had ended."""
    host.create(BUSY, fifo=True)
    host.put(message("a", group="g", dedup_id="a"), queue=BUSY)
    (got,) = host.receive(queue=BUSY, timeout_s=1)
    host.advance(2_000)
    write = queues.write_late_deletes

    async def receive_first(*arguments: Any, **options: Any) -> None:
        assert (await execute(host.engine, Receive(queue=BUSY, count=1))).messages
        await write(*arguments, **options)

    monkeypatch.setattr(queues, "write_late_deletes", receive_first)
    host.delete(got.receipt, queue=BUSY)
    assert outcomes(host) == [("expired", 1_000), ("late_deleted", 2_000)]


@pytest.mark.parametrize("during_sweep", [False, True])
def test_expired_receipts_are_deleted_with_their_queue(
    host: PostgresHost, monkeypatch: pytest.MonkeyPatch, *, during_sweep: bool
) -> None:
    """Also if it is deleted while the janitor is at its purged partition."""
    host.send("a", "b")
    host.receive(2, timeout_s=1)
    host.advance(2_000)
    host.receive(2)
    host.purge()
    host.sweep()
    assert host.rows("expired_receipt") == 4
    host.send("c")
    host.receive_one()
    if during_sweep:
        host.advance(HOUR_MS)
        delete = transaction._delete_expired

        async def drop_first(*arguments: Any) -> None:
            monkeypatch.undo()
            await execute(host.engine, DeleteQueue(queue=QUEUE))
            await delete(*arguments)

        monkeypatch.setattr(transaction, "_delete_expired", drop_first)
        host.sweep()
    else:
        host.drop()
    for _ in range(2):
        host.sweep()
    assert host.rows("expired_receipt") == 0
    assert len(outcomes(host)) == 5


# The export lock.


@asynccontextmanager
async def exporting_nodes(host: PostgresHost) -> AsyncIterator[tuple[Any, EventRange, asyncio.Task[Any]]]:
    """Let a node hold the export lock and another wait; yield the first one, its planned range and the waiting task."""
    async with host.others() as (node,):
        planned = await execute(host.engine, PLAN)
        yield node, planned, asyncio.ensure_future(execute(node, PLAN))


def test_one_node_exports_while_others_wait(host: PostgresHost) -> None:
    cycle(host, 2)

    async def work() -> None:
        async with exporting_nodes(host) as (_, planned, waiting):
            await execute(host.engine, CountEvents())
            assert not waiting.done()
            await execute(host.engine, ForgetEvents(last=planned.last))
            assert await waiting is None

    host.run(work())


@pytest.mark.parametrize("already_read", [None, 0, 1], ids=["not at all", "from its beginning", "in its middle"])
def test_idle_exporter_loses_the_lock(host: PostgresHost, already_read: int | None) -> None:
    """If it continues later, it does not read its deleted range as empty: those files would replace complete ones."""
    for _ in range(2):  # two batches
        cycle(host, 1)
        host.do(CountEvents())

    async def work() -> None:
        async with exporting_nodes(host) as (node, first, waiting):
            host.clock.advance(60_000)
            assert await waiting == first == EventRange(node=first.node, first=1, last=2)
            await execute(node, ForgetEvents(last=first.last))
            if already_read is None:
                await execute(host.engine, ForgetEvents(last=first.last))
                return
            with pytest.raises(ExportedElsewhere, match="Another node"):
                await execute(host.engine, ReadEvents(first=1 + already_read, last=first.last, bytes_max=1))

    host.run(work())
    assert host.do(CountEvents()).exported == 2


def test_wait_for_the_export_lock_times_out(host: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.store.postgres.engine._EXPORT_LOCK_S_MAX", 0.05)
    cycle(host, 1)

    async def work() -> None:
        async with exporting_nodes(host) as (_, _, waiting):
            with pytest.raises(ExportedElsewhere, match="Another node"):
                await waiting

    host.run(work())


def test_node_closed_while_acquiring_releases_the_export_lock(host: PostgresHost) -> None:
    async def end_at_once() -> None:
        planned = asyncio.ensure_future(execute(host.engine, PLAN))
        await asyncio.sleep(0)
        await host.engine.close()
        assert await planned is None, "a submitted command finishes"
        await wait_until_no_advisory_lock(host.url)

    host._runner.run(end_at_once())


class HangingTarget(Target):
    """A folder whose writer puts one file, and then hangs until it is released."""

    def __init__(self, folder: Path) -> None:
        super().__init__(fs.LocalFileSystem(), str(folder), local=True)
        self.files = 0
        self.hangs = threading.Event()
        self.may_go_on = threading.Event()

    def put(self, folder: str, name: str, table: Any) -> None:
        self.files += 1
        if self.files == 2:
            self.hangs.set()
            assert self.may_go_on.wait(60)
        super().put(folder, name, table)


def test_interrupted_export_continues_on_another_node(host: PostgresHost, tmp_path: Path) -> None:
    """Both nodes put the same complete files, so each event is there once."""
    cycle(host, 3)
    host.advance(HOUR_MS)  # another file
    cycle(host, 3)
    stuck = HangingTarget(tmp_path)

    async def work() -> None:
        async with host.others() as (node,):
            flush = asyncio.ensure_future(exporter(host, node, stuck).flush())
            await asyncio.to_thread(stuck.hangs.wait, 60)
            await host.end_connections()
            async with host.others() as (another,):
                counts = await exporter(host, another, open_target(str(tmp_path))).flush()
            assert (counts.recorded, counts.exported, counts.waiting) == (6, 6, 0)
            assert exported(tmp_path) == [1, 2, 3, 4, 5, 6]
            stuck.may_go_on.set()
            await asyncio.gather(flush, return_exceptions=True)
        host.clock.advance(10_000)  # a node without a connection pauses

    host.run(work())
    assert exported(tmp_path) == [1, 2, 3, 4, 5, 6]
    cycle(host, 1)
    host.run(exporter(host, host.engine, open_target(str(tmp_path))).flush())
    assert exported(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")] == []

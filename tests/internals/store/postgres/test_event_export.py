"""The event log where several nodes write and export it: each event once, whichever of them ends in the middle."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset, fs

from tests.store.host import QUEUE, check_conservation, events_of, message, outcomes, plan
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres, open_engine
from veilmq.core.commands import (
    ChangeVisibility,
    Command,
    Delete,
    DeleteQueue,
    PurgeQueue,
    Receive,
    ReceivedMessage,
    Send,
    VisibilityChange,
)
from veilmq.core.errors import ShuttingDown
from veilmq.core.receipts import CountEvents, EventRange, ExportedElsewhere, ForgetEvents, PlanExport, ReadEvents
from veilmq.events.exporter import Exporter, Target, open_target
from veilmq.store.port import execute
from veilmq.store.postgres import messages, queues
from veilmq.store.postgres.engine import PostgresEngine

LOGGED = replace(RESTLESS, event_log="closed")
HOUR_MS = 3_600_000
BUSY = "000000000000/busy"
MESSAGES = 60

_EVENT = """
INSERT INTO mq.event
SELECT 1, $1, 1, 'queue', 'deleted', 0, 0, 0, 0, 1, 1, NULL, 1, decode('00', 'hex'), NULL
"""


@pytest.fixture
def host(postgres_url: str) -> Iterator[PostgresHost]:
    """Return a node with a logged queue."""
    with hosting_postgres(postgres_url, options=LOGGED) as opened:
        opened.create()
        yield opened


async def another(host: PostgresHost) -> PostgresEngine:
    """Return another node."""
    return await open_engine(host.url, clock=host.clock, options=LOGGED)


def exporter(host: PostgresHost, node: Any, target: Target) -> Exporter:
    """Return what exports at one node."""
    return Exporter(
        execute=partial(execute, node), clock=host.clock, target=target, period_s=60, events_per_range=1_000
    )


def cycle(host: PostgresHost, messages: int) -> None:
    """Send, receive and delete so many."""
    for number in range(messages):
        host.send(str(number))
        host.delete(host.receive_one().receipt)


def exported(folder: Path) -> list[int]:
    """Return the numbers of all events in the files."""
    table = dataset.dataset(folder, partitioning="hive").to_table()
    return sorted(table["event"].to_pylist())


@pytest.mark.parametrize(
    ("settings", "groups"), [({}, 0), ({}, 5), ({"fifo": True}, 5)], ids=["standard", "fair", "fifo"]
)
def test_each_receipt_ends_once_whichever_nodes_are_at_it(
    host: PostgresHost, settings: dict[str, Any], groups: int
) -> None:
    """Some messages are deleted, some released, some left to expire; meanwhile events are numbered."""
    host.create(BUSY, **settings)
    new = [
        message(str(number), group=str(number % groups) if groups else None, dedup_id=str(number))
        for number in range(MESSAGES)
    ]
    for at in range(0, MESSAGES, 10):
        host.do(Send(queue=BUSY, messages=tuple(new[at : at + 10])))
    issued: list[ReceivedMessage] = []

    async def work(node: PostgresEngine, rounds: int) -> None:
        for number in range(rounds):
            got = (await execute(node, Receive(queue=BUSY, count=10, timeout_s=30 * (number % 2)))).messages
            issued.extend(got)
            gone = tuple(each.receipt for each in got[::3])
            back = tuple(VisibilityChange(receipt=each.receipt, timeout_s=0) for each in got[1::3])
            commands: list[Command] = [Delete(queue=BUSY, receipts=gone), ChangeVisibility(queue=BUSY, changes=back)]
            await asyncio.gather(*(execute(node, each) for each in [*commands, CountEvents()]))

    async def together() -> None:
        nodes = [await another(host) for _ in range(3)]
        await asyncio.gather(*(work(node, 12) for node in nodes))
        for node in nodes:
            await node.close()

    host.run(together())
    host.advance(40_000)
    while got := host.receive(10, queue=BUSY):
        issued.extend(got)
        host.delete(*(each.receipt for each in got), queue=BUSY)
    assert host.counts(BUSY) == (0, 0, 0)
    assert len(check_conservation(events_of(host))) == len({each.receipt for each in issued}) > MESSAGES


# Numbers.


def test_what_commits_late_gets_a_later_number(host: PostgresHost) -> None:
    """Though its place was taken before; nothing is passed over, and no number is left out."""

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


def test_nodes_number_at_one_time(host: PostgresHost) -> None:
    """Without a gap, and nothing twice."""
    cycle(host, 10)

    async def work() -> None:
        nodes = [await another(host) for _ in range(2)]
        counts = await asyncio.gather(*(execute(node, CountEvents()) for node in nodes * 3))
        assert counts[-1].recorded == 10
        for node in nodes:
            await node.close()

    host.run(work())
    assert len(outcomes(host)) == 10


def test_a_statement_that_is_rolled_back_leaves_no_event(host: PostgresHost) -> None:
    """It was written in the transaction of the change."""
    host.send("a")
    receipt = host.receive_one().receipt

    async def work() -> None:
        async with connected(host.url) as connection:
            await connection.execute("ALTER TABLE mq.event ADD CONSTRAINT full_disk CHECK (false) NOT VALID")
            try:
                with pytest.raises(Exception, match="failed on this request"):
                    await execute(host.engine, Delete(queue=QUEUE, receipts=(receipt,)))
            finally:
                await connection.execute("ALTER TABLE mq.event DROP CONSTRAINT full_disk")

    host.run(work())
    assert host.counts() == (0, 1, 0)
    assert outcomes(host) == []
    host.delete(receipt)
    assert outcomes(host) == [("deleted", 0)]


def test_a_late_delete_that_a_receive_overtakes_is_written(host: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """The receive comes after the look at the message, which found its lease ended and nothing more."""
    host.create(BUSY, fifo=True)
    host.do(Send(queue=BUSY, messages=(message("a", group="g", dedup_id="a"),)))
    (got,) = host.receive(queue=BUSY, timeout_s=1)
    host.advance(2_000)
    write = queues.note_late

    async def overtaken(*arguments: Any, **more: Any) -> None:
        assert (await execute(host.engine, Receive(queue=BUSY, count=1))).messages
        await write(*arguments, **more)

    monkeypatch.setattr(messages, "note_late", overtaken)
    host.delete(got.receipt, queue=BUSY)
    assert outcomes(host) == [("expired", 1_000), ("late_deleted", 2_000)]


def test_what_is_kept_for_late_deletes_goes_with_its_queue(host: PostgresHost) -> None:
    """And stays when the queue is purged."""

    async def kept() -> int:
        async with connected(host.url) as connection:
            return int(await connection.fetchval("SELECT count(*) FROM mq.expired_receipt"))

    host.send("a", "b")
    host.receive(2, timeout_s=1)
    host.advance(2_000)
    host.receive(2)
    host.do(PurgeQueue(queue=QUEUE))
    host.sweep()
    assert host.run(kept()) == 4
    host.send("c")
    host.receive_one()
    host.do(DeleteQueue(queue=QUEUE))
    for _ in range(2):
        host.sweep()
    assert host.run(kept()) == 0
    assert len(outcomes(host)) == 5


# Turns.


def test_one_node_exports_and_the_others_wait_for_it(host: PostgresHost) -> None:
    cycle(host, 2)

    async def work() -> None:
        node = await another(host)
        planned = await execute(host.engine, PlanExport(events_max=10))
        waiting = asyncio.ensure_future(execute(node, PlanExport(events_max=10)))
        await execute(host.engine, CountEvents())
        assert not waiting.done()
        await execute(host.engine, ForgetEvents(last=planned.last))
        assert await waiting is None
        await node.close()

    host.run(work())


def test_a_node_that_does_nothing_with_its_turn_loses_it(host: PostgresHost) -> None:
    """It may still come to it: what it says then is known already, or not asked of it."""
    cycle(host, 2)

    async def work() -> None:
        node = await another(host)
        first = await execute(host.engine, PlanExport(events_max=10))
        waiting = asyncio.ensure_future(execute(node, PlanExport(events_max=10)))
        host.clock.advance(60_000)
        second = await waiting
        assert second == first
        await execute(node, ForgetEvents(last=second.last))
        await execute(host.engine, ForgetEvents(last=first.last))
        await node.close()

    host.run(work())
    assert host.do(CountEvents()).exported == 2


@pytest.mark.parametrize("already_read", [0, 1], ids=["from its beginning", "in its middle"])
def test_a_range_that_another_node_has_exported_is_not_read_as_an_empty_one(
    host: PostgresHost, already_read: int
) -> None:
    """Files of what is left would take the place of those that are whole."""
    for _ in range(2):  # two batches
        cycle(host, 1)
        host.do(CountEvents())

    async def work() -> None:
        node = await another(host)
        first = await execute(host.engine, PlanExport(events_max=10))
        waiting = asyncio.ensure_future(execute(node, PlanExport(events_max=10)))
        host.clock.advance(60_000)
        assert await waiting == first == EventRange(node=first.node, first=1, last=2)
        await execute(node, ForgetEvents(last=first.last))
        with pytest.raises(ExportedElsewhere, match="another node"):
            await execute(host.engine, ReadEvents(first=1 + already_read, last=first.last, bytes_max=1))
        await node.close()

    host.run(work())


def test_who_waits_too_long_for_the_turn_is_told_so(host: PostgresHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilmq.store.postgres.engine._EXPORT_TURN_S_MAX", 0.05)
    cycle(host, 1)

    async def work() -> None:
        node = await another(host)
        await execute(host.engine, PlanExport(events_max=10))
        with pytest.raises(ExportedElsewhere, match="another node"):
            await execute(node, PlanExport(events_max=10))
        await node.close()

    host.run(work())


class Stuck(Target):
    """A folder whose writer puts one file, and then hangs until it is let go on."""

    def __init__(self, folder: Path) -> None:
        """Nothing is put yet."""
        super().__init__(fs.LocalFileSystem(), str(folder), local=True)
        self.files = 0
        self.hangs = threading.Event()
        self.may_go_on = threading.Event()

    def put(self, folder: str, name: str, table: Any) -> None:
        """Put the first file, and wait before the second."""
        self.files += 1
        if self.files == 2:
            self.hangs.set()
            assert self.may_go_on.wait(60)
        super().put(folder, name, table)


def test_a_node_that_ends_in_the_middle_of_an_export_leaves_it_to_another(host: PostgresHost, tmp_path: Path) -> None:
    """Both put the same files, whole, in whatever order: each event is there once."""
    cycle(host, 3)
    host.advance(HOUR_MS)  # another file
    cycle(host, 3)
    stuck = Stuck(tmp_path)

    async def work() -> None:
        nodes = [await another(host)]
        flush = asyncio.ensure_future(exporter(host, nodes[0], stuck).flush())
        await asyncio.to_thread(stuck.hangs.wait, 60)
        await host.end_connections()
        nodes.append(await another(host))
        counts = await exporter(host, nodes[1], open_target(str(tmp_path))).flush()
        assert (counts.exported, counts.waiting) == (6, 0)
        assert exported(tmp_path) == [1, 2, 3, 4, 5, 6]
        stuck.may_go_on.set()
        await asyncio.gather(flush, return_exceptions=True)
        for node in nodes:
            await node.close()
        host.clock.advance(10_000)  # a node that has found no connection rests for a while

    host.run(work())
    assert exported(tmp_path) == [1, 2, 3, 4, 5, 6]
    cycle(host, 1)
    host.run(exporter(host, host.engine, open_target(str(tmp_path))).flush())
    assert exported(tmp_path) == [1, 2, 3, 4, 5, 6, 7]
    assert [path for path in tmp_path.rglob("*") if path.name.endswith(".tmp")] == []


def test_any_node_exports_what_others_have_written(host: PostgresHost, tmp_path: Path) -> None:
    cycle(host, 4)

    async def work() -> None:
        node = await another(host)
        counts = await exporter(host, node, open_target(str(tmp_path))).flush()
        assert (counts.recorded, counts.exported) == (4, 4)
        await node.close()

    host.run(work())
    assert exported(tmp_path) == [1, 2, 3, 4]


def test_a_node_that_ends_while_it_takes_its_turn_leaves_it(postgres_url: str) -> None:
    """Nothing else would end that connection."""
    with hosting_postgres(postgres_url, options=LOGGED) as host:

        async def end_at_once() -> tuple[int, Any]:
            planned = asyncio.ensure_future(execute(host.engine, PlanExport(events_max=1)))
            await asyncio.sleep(0)
            await host.engine.close()
            answer = (await asyncio.gather(planned, return_exceptions=True))[0]
            async with connected(host.url) as connection:
                return await connection.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), answer

        turns, answer = host._runner.run(end_at_once())
    assert turns == 0
    assert isinstance(answer, ShuttingDown)

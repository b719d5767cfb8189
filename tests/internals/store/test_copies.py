"""What a copy to a folder makes of positions, of one that does not come to its end, and of a clock that was set."""

import asyncio
from pathlib import Path

import pytest

from tests.store.host import QUEUE, hosting, message
from tests.store.postgres_host import PostgresHost, set_clock
from veilmq.core.commands import Send
from veilmq.core.errors import ReceiptState
from veilmq.core.limits import RETENTION_S, SECOND_MS
from veilmq.core.receipts import KEY_BYTES, ReceiptBook
from veilmq.core.settings import QueueSettings
from veilmq.server.stores import copy_store
from veilmq.store.copying import CopiedMessage, CopiedQueue
from veilmq.store.events import EXPIRED_KEPT_S
from veilmq.store.sqlite.copying import FolderTarget
from veilmq.store.sqlite.database import FolderError
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
    """Give it these queues with their messages; one that is called fifo is one."""
    await target.begin({"receipt_key": KEY}, now_ms=NOW_MS, last_queue=9)
    for number, (name, messages) in enumerate(queues.items(), 1):
        settings = QueueSettings(fifo=name == "fifo")
        queue = CopiedQueue(number, FIFO if settings.fifo else f"000000000000/{name}", settings, 0, 0)
        await target.add_queue(queue)
        await target.add_messages(queue, messages)


def filled(folder: Path, **queues: list[CopiedMessage]) -> None:
    async def whole() -> None:
        await fill(target, **queues)
        await target.finish()

    with FolderTarget(folder) as target:
        asyncio.run(whole())


def receipt(message: CopiedMessage, queue: int = 1) -> str:
    fields = message.position, message.generation, message.epoch, message.visible_at_ms
    return ReceiptBook(keys=[KEY]).issue(queue, *fields)


def test_a_position_becomes_the_seq_where_it_can(tmp_path: Path) -> None:
    """It is of the instant of sending, and no other message has it; else a message gets the next that is free."""
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


def test_a_group_keeps_its_order_whatever_the_positions(tmp_path: Path) -> None:
    messages = [
        SENT._replace(position=AT + 9, group="g", body="a"),
        SENT._replace(position=AT + 3, group="g", body="b"),
        SENT._replace(position=1, sent_at_ms=NOW_MS - 1, group="g", body="c"),
    ]
    filled(tmp_path / "copy", fifo=messages)
    with hosting(tmp_path / "copy") as host:
        host.do(Send(queue=FIFO, messages=(message("d", group="g", dedup_id="d"),)))
        assert [each.body for each in host.receive(10, queue=FIFO)] == ["a", "b", "c", "d"]


def test_positions_are_forgotten_when_no_receipt_acts_by_one(tmp_path: Path) -> None:
    """A day after the longest retention: until then a late delete is logged. Then the message is gone for them."""
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


def test_what_was_not_finished_leaves_nothing(tmp_path: Path) -> None:
    """No folder, nor what was to become one; and one that is there is not touched."""
    with FolderTarget(tmp_path / "copy") as target:
        asyncio.run(fill(target, jobs=[SENT]))
        assert (tmp_path / "copy.unfinished").exists()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FolderError, match="nothing is replaced"):
        FolderTarget(tmp_path)


def test_what_the_doctor_finds_fault_with_is_not_kept(tmp_path: Path) -> None:
    """A message that was received, and nobody knows when first."""
    with pytest.raises(FolderError, match="has its count, its epoch and its times"):
        filled(tmp_path / "copy", jobs=[LEASED._replace(first_received_at_ms=None)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step_ms", [86_400_000, -30_000])
def test_a_clock_that_was_set_moves_instants_and_no_receipts(tmp_path: Path, postgres_url: str, step_ms: int) -> None:
    """A database goes by the wall clock, from which the store's time may differ."""
    with hosting(tmp_path / "store") as host:
        host.create()
        host.create(FIFO, fifo=True)
        host.advance(60_000)
        host.clock.step_wall(step_ms)
        host.send("leased", "waits")
        (leased,) = host.receive(timeout_s=60)
        host.do(Send(queue=FIFO, messages=tuple(message(each, group="g", dedup_id=each) for each in "ab")))
    PostgresHost.on_empty(postgres_url).close()
    wall_ms = host.clock.wall_ms()
    asyncio.run(set_clock(postgres_url, wall_ms))
    asyncio.run(copy_store(str(tmp_path / "store"), postgres_url, clock=host.clock))
    there = PostgresHost(postgres_url)
    there.advance(wall_ms - there.clock.now_ms())
    assert [(each.body, each.sent_at_ms) for each in there.receive(10)] == [("waits", wall_ms)]
    assert there.delete(leased.receipt) == [ReceiptState.LIVE]
    there.do(Send(queue=FIFO, messages=(message("c", group="g", dedup_id="c"),)))
    assert [each.body for each in there.receive(10, queue=FIFO)] == ["a", "b", "c"]
    there.close()

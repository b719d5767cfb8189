"""Queue commands in both dialects: hooks of purge and deletion, expired cooldowns, and refused commands."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.store.host import QUEUE, Host
from tests.store.postgres_host import Store, on_sqlite
from veilmq.core import commands
from veilmq.core.errors import PurgeInProgress, QueueExists, SettingsConflict
from veilmq.core.messages import NewMessage
from veilmq.store import claims, publications
from veilmq.store.transaction import QueueRow, Transaction

DEAD = "000000000000/dead"


@pytest.fixture
def host(durable_store: Store) -> Iterator[Host]:
    with durable_store.open() as opened:
        opened.create()
        yield opened


PURGE, DELETE = commands.PurgeQueue(queue=QUEUE), commands.DeleteQueue(queue=QUEUE)


@pytest.mark.parametrize(("feature", "hook", "command"), [
    (claims, "lose_all", PURGE), (publications, "delete_writers", DELETE), (claims, "lose_all", DELETE),
], ids=["purge", "deletion-writers", "deletion-claims"])  # fmt: skip
def test_hooks_are_part_of_the_transaction_of_a_purge_and_a_deletion(
    host: Host, monkeypatch: pytest.MonkeyPatch, feature: ModuleType, hook: str, command: commands.Command
) -> None:
    """An error in a hook rolls back all earlier writes, including the retired partition."""
    calls: list[Any] = []
    original = getattr(feature, hook)

    async def refuse(tx: Transaction, queue: QueueRow) -> None:
        await original(tx, queue)
        calls.append((queue.name, queue.partition == queue.origin))
        await tx.run("put_setting", "hook", b"written")
        raise SettingsConflict("hook", "No.")

    async def read(tx: Transaction, queue: QueueRow) -> None:
        await original(tx, queue)
        calls.append(await tx.value("setting", "hook"))

    host.send("a")
    monkeypatch.setattr(feature, hook, refuse)
    with pytest.raises(SettingsConflict):
        host.do(command)
    assert (calls, host.counts()) == ([(QUEUE, True)], (1, 0, 0))
    monkeypatch.setattr(feature, hook, read)
    host.do(command)
    assert calls[1:] == [None]


def test_expired_cooldowns_are_deleted(durable_store: Store) -> None:
    with durable_store.open(purge_pause_s=90, queue_name_pause_s=30) as host:
        host.create()
        host.create(DEAD)
        host.purge()
        host.drop(DEAD)
        for time_ms, left in ((29_999, 2), (1, 1), (59_999, 1), (1, 0)):
            host.advance(time_ms)
            host.sweep()
            assert host.rows("pause") == left


def test_a_refused_command_does_not_change_the_counters(durable_store: Store) -> None:
    with durable_store.open(purge_pause_s=60) as host:
        host.create(delay_s=1)
        host.purge()
        host.send("a")
        for command, error in (
            (commands.PurgeQueue(queue=QUEUE), PurgeInProgress),
            (commands.SetQueue(queue=QUEUE, settings={"fifo": True}), SettingsConflict),
            (commands.CreateQueue(queue=QUEUE, settings={"delay_s": 2}), QueueExists),
        ):
            with pytest.raises(error):
                host.do(command)
        assert host.do(commands.ShowQueue(queue=QUEUE, counts=True)).counts.sent == 1


def test_a_queue_is_deleted_and_created_again_in_one_batch(tmp_path: Path) -> None:
    """Earlier messages and totals are deleted; later messages belong to the new queue."""
    with on_sqlite(tmp_path / "store").open() as host:
        assert isinstance(host, Host)
        host.create()
        send = commands.Send(queue=QUEUE, messages=(NewMessage(body="a", size_bytes=1),))
        delete, create = commands.DeleteQueue(queue=QUEUE), commands.CreateQueue(queue=QUEUE)
        show = commands.ShowQueue(queue=QUEUE, counts=True)
        *_, view = host.do_together(send, delete, create, send, send, show)
        assert (view.counts.visible, view.counts.sent) == (2, 2)
        host.sweep()
        host.check()
        assert host.rows("part") == 1
        host.forget()
        assert host.counts() == (2, 0, 0)

"""Cold commands on SQLite: what an error undoes, and that nothing suspends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.store.host import QUEUE, Host, message
from veilmq.core.commands import Command, Send, ShowQueue
from veilmq.core.errors import InternalError, MessageTooLong, VeilmqError
from veilmq.store.sqlite.batch import HANDLERS
from veilmq.store.sqlite.transaction import driven
from veilmq.store.transaction import Transaction


class Change(Command, frozen=True, kw_only=True):
    """Write something, then do what the test says."""


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Return an open store with a queue."""
    host = Host(tmp_path / "store")
    host.create()
    yield host
    host.close()


async def write(tx: Transaction) -> None:
    """Write rows, totals and the deduplication log."""
    for name in ("000000000000/a", "000000000000/b.fifo"):
        queue = await tx.queue(name)
        await tx.store(queue, [message("x", group="g", dedup_id="x")], [tx.ids.next()])
    await tx.run("put_setting", "name", b"value")


def test_an_error_undoes_what_its_command_wrote(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """What commands before and behind it in the batch wrote stays, totals and all."""

    async def change(tx: Transaction, command: Change) -> None:
        await write(tx)
        raise MessageTooLong(1)

    monkeypatch.setitem(HANDLERS, Change, driven(change, changes=True))  # type: ignore[misc]
    for name in ("000000000000/a", "000000000000/b.fifo"):
        host.create(name, fifo=name.endswith("fifo"))
    send = Send(queue=QUEUE, messages=(message("before"),))
    first, error, second, view = host.do_together(send, Change(), send, ShowQueue(queue=QUEUE, counts=True))
    assert [len(first), len(second), view.counts.visible] == [1, 1, 2]
    assert isinstance(error, MessageTooLong)
    host.check()
    assert host.rows("message") == 2
    assert host.rows("setting WHERE name = 'name'") == 0
    host.reopen()
    assert host.counts() == (2, 0, 0)


def test_a_cold_command_that_suspends_is_a_defect(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails alone, and what it wrote is undone."""

    async def change(tx: Transaction, command: Change) -> Any:
        await tx.run("put_setting", "name", b"value")
        await asyncio.sleep(0)

    monkeypatch.setitem(HANDLERS, Change, driven(change, changes=True))  # type: ignore[misc]
    with pytest.raises(VeilmqError) as raised:
        host.do(Change())
    assert type(raised.value) is InternalError
    assert host.rows("setting WHERE name = 'name'") == 0

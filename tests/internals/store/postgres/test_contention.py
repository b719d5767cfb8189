"""Commands that meet a row while another node changes it: what they answer is what was done."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from tests.store.host import QUEUE, message
from tests.store.postgres_host import RESTLESS, PostgresHost, connected, hosting_postgres
from veilmq.core import commands
from veilmq.core.commands import Command, VisibilityChange
from veilmq.core.errors import ReceiptState, StoreUnavailable
from veilmq.core.messages import NewMessage
from veilmq.store.port import execute
from veilmq.store.postgres.node import keys_of

PATIENCE_S = 60

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
_EXTEND = "UPDATE mq.msg SET visible_at = visible_at + 1000 WHERE qp > 0"


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[PostgresHost]:
    with hosting_postgres(postgres_url) as host:
        yield host


@asynccontextmanager
async def meanwhile(host: PostgresHost, statement: str) -> AsyncIterator[Any]:
    async with connected(host.url) as other, other.transaction():
        await other.execute(statement)
        yield other
        await until_somebody_waits(host)


async def until_somebody_waits(host: PostgresHost) -> None:
    async with connected(host.url) as looking, asyncio.timeout(PATIENCE_S):
        while not await looking.fetchval(_WAITING):
            pass


def while_extended(host: PostgresHost, command: Command) -> Any:
    """Return the result of `command`, which comes while another node makes the lease of its message longer."""

    async def act() -> Any:
        async with meanwhile(host, _EXTEND):
            asked = asyncio.ensure_future(execute(host.engine, command))
        return await asked

    return host.run(act())


def test_a_delete_deletes_what_another_node_changes_meanwhile(postgres: PostgresHost) -> None:
    """A heartbeat that was under way does not bring back a message whose deletion was acknowledged."""
    postgres.create()
    postgres.send("a")
    receipt = postgres.receive_one().receipt
    assert while_extended(postgres, commands.Delete(queue=QUEUE, receipts=(receipt,))) == [ReceiptState.LIVE]
    assert postgres.counts() == (0, 0, 0)


def test_a_change_holds_that_another_node_came_before(postgres: PostgresHost) -> None:
    """The later of two heartbeats is the one that counts."""
    postgres.create()
    postgres.send("a")
    receipt = postgres.receive_one(timeout_s=30).receipt
    change = VisibilityChange(receipt=receipt, timeout_s=100)
    (changed,) = while_extended(postgres, commands.ChangeVisibility(queue=QUEUE, changes=(change,)))
    assert changed.visible_at_ms == postgres.clock.now_ms() + 100_000
    assert postgres.values("SELECT visible_at FROM mq.msg WHERE qp > 0") == [changed.visible_at_ms]


def test_two_nodes_that_send_to_the_same_groups_wait_for_each_other_in_one_order(postgres: PostgresHost) -> None:
    """Whatever the order of the messages: else they would wait for a second, and one of them would begin again."""
    postgres.create()
    new = [message("", group=group) for group in "ab"]
    first, last = sorted(new, key=lambda each: keys_of([each]))

    async def act() -> None:
        async with meanwhile(postgres, _turn(first)) as other:
            asked = asyncio.ensure_future(execute(postgres.engine, commands.Send(queue=QUEUE, messages=(last, first))))
            await until_somebody_waits(postgres)
            await other.execute(f"SET LOCAL lock_timeout = '100ms'; {_turn(last)}")
        await asked

    postgres.run(act())
    assert postgres.counts() == (2, 0, 0)


def test_what_one_receive_has_leased_is_given_though_the_next_one_fails(postgres_url: str) -> None:
    """They travel together; nobody else would know of the lease, and its group would stay blocked."""
    with hosting_postgres(postgres_url, options=replace(RESTLESS, statement_s=1)) as host:
        host.create(fifo=True)
        new = tuple(message(body, group=body, dedup_id=body) for body in "ab")
        host.do(commands.Send(queue=QUEUE, messages=new))
        again = commands.Receive(queue=QUEUE, attempt_id="x", timeout_s=0)
        host.do(again)

        async def act() -> list[Any]:
            async with connected(host.url) as other, other.transaction():
                await other.execute("SELECT FROM mq.attempt FOR UPDATE")
                both = commands.Receive(queue=QUEUE, timeout_s=0), again
                return await asyncio.gather(*(execute(host.engine, each) for each in both), return_exceptions=True)

        first, second = host.run(act())
        assert len(first.messages) == 1
        assert isinstance(second, StoreUnavailable)


def _turn(new: NewMessage) -> str:
    (key,) = keys_of([new])
    return f"INSERT INTO mq.fair_turn (qp, group_key, priority, at, sent_at) SELECT qp, {key}, 108, 0, 0 FROM mq.part"

"""The statements of two queues on PostgreSQL without HTTP: the store's own, and those of pgmq.

Both send ten, receive ten and delete them. Filling a queue is not measured.
"""

from types import TracebackType
from typing import Any, Protocol, Self

import asyncpg
from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.commands import Received
from veilmq.core.messages import NewMessage
from veilmq.store.clock import SystemClock
from veilmq.store.port import execute
from veilmq.store.postgres import PostgresOptions, Shards

BODY = "x" * 256
GROUPS = 1_000
IN_FLIGHT = 100_000
TIMEOUT_S = 3_600
QUEUE = "000000000000/direct"

_FILL = """
INSERT INTO mq.msg (qp, seq, visible_at, sent_at, receive_count, priority, id, body)
SELECT qp, ((mq.now_ms() - 60000) << 20) + $1 + number, mq.now_ms() + $3, mq.now_ms() - 60000, $4, 8,
    decode(md5(number::text), 'hex'), $5
FROM mq.queue, generate_series(1, $2) AS number WHERE name = $6
"""

_PGMQ = """
DROP SCHEMA IF EXISTS pgmq CASCADE;
CREATE SCHEMA pgmq;
CREATE TABLE pgmq.q_bench (
    msg_id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    read_ct int NOT NULL DEFAULT 0,
    enqueued_at timestamptz NOT NULL DEFAULT now(),
    vt timestamptz NOT NULL,
    message jsonb
);
CREATE INDEX q_bench_vt_idx ON pgmq.q_bench (vt ASC);
"""
_PGMQ_SEND = """
INSERT INTO pgmq.q_bench (vt, message) SELECT clock_timestamp(), unnest($1::jsonb[]) RETURNING msg_id
"""
_PGMQ_READ = """
WITH cte AS (
    SELECT msg_id FROM pgmq.q_bench WHERE vt <= clock_timestamp()
    ORDER BY msg_id ASC LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE pgmq.q_bench m SET vt = clock_timestamp() + make_interval(secs => $2), read_ct = read_ct + 1
FROM cte WHERE m.msg_id = cte.msg_id
RETURNING m.msg_id, m.read_ct, m.enqueued_at, m.vt, m.message
"""
_PGMQ_DELETE = "DELETE FROM pgmq.q_bench WHERE msg_id = ANY($1) RETURNING msg_id"
_PGMQ_FILL = """
INSERT INTO pgmq.q_bench (vt, message)
SELECT clock_timestamp() + make_interval(secs => $2), $3::jsonb FROM generate_series(1, $1)
"""


class Direct(Protocol):
    """A queue that can be filled and driven."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def begin(self, *, waiting: int, in_flight: int) -> None:
        """Replace the contents of the queue with this many messages."""

    async def cycle(self, messages: int) -> None:
        """Send, receive and delete this many messages."""

    async def take(self, messages: int) -> None:
        """Receive and delete this many messages."""


class Ours:
    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Self:
        options = PostgresOptions(purge_pause_s=0, in_flight_max=1_000_000)
        self._engine = await Shards.open([self._url], clock=SystemClock(), options=options)
        self._connection = await asyncpg.connect(self._url)
        await execute(self._engine, commands.CreateQueue(queue=QUEUE, settings={}))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()
        await self._engine.close()

    async def begin(self, *, waiting: int, in_flight: int) -> None:
        """Fill the queue; TRUNCATE keeps the janitor's work out of the measurement."""
        await execute(self._engine, commands.PurgeQueue(queue=QUEUE))
        await self._connection.execute("TRUNCATE mq.msg")
        for first, count, delay_ms, receives in ((0, waiting, 0, 0), (waiting, in_flight, TIMEOUT_S * 1_000, 1)):
            await self._connection.execute(_FILL, first, count, delay_ms, receives, BODY, QUEUE, timeout=600)
        await self._connection.execute("VACUUM ANALYZE mq.msg", timeout=600)

    def _message(self) -> NewMessage:
        return NewMessage(body=BODY, properties=b"", size_bytes=len(BODY))

    async def cycle(self, messages: int) -> None:
        new = tuple(self._message() for _ in range(messages))
        await execute(self._engine, commands.Send(queue=QUEUE, messages=new))
        await self.take(messages)

    async def take(self, messages: int) -> None:
        received: Received = await execute(
            self._engine, commands.Receive(queue=QUEUE, count=messages, timeout_s=TIMEOUT_S)
        )
        assert len(received.messages) == messages, "too few were received"
        receipts = tuple(each.receipt for each in received.messages)
        await execute(self._engine, commands.Delete(queue=QUEUE, receipts=receipts))


class OursWithGroups(Ours):
    """The store with messages of many groups, in turn."""

    _sent = 0

    def _message(self) -> NewMessage:
        self._sent += 1
        return replace(super()._message(), group=f"tenant {self._sent % GROUPS}")


class PgmqStyle:
    """The statements of pgmq's functions, prepared."""

    def __init__(self, url: str) -> None:
        """Use it as a context manager."""
        self._url = url

    async def __aenter__(self) -> Self:
        self._connection: asyncpg.Connection[Any] = await asyncpg.connect(self._url)
        await self._connection.execute(_PGMQ)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def begin(self, *, waiting: int, in_flight: int) -> None:
        """Fill the queue; the messages in flight are the oldest."""
        await self._connection.execute("TRUNCATE pgmq.q_bench")
        for count, delay_s in ((in_flight, TIMEOUT_S), (waiting, 0)):
            await self._connection.execute(_PGMQ_FILL, count, delay_s, f'"{BODY}"', timeout=600)
        await self._connection.execute("VACUUM ANALYZE pgmq.q_bench", timeout=600)

    async def cycle(self, messages: int) -> None:
        await self._connection.fetch(_PGMQ_SEND, [f'"{BODY}"'] * messages)
        await self.take(messages)

    async def take(self, messages: int) -> None:
        rows = await self._connection.fetch(_PGMQ_READ, messages, TIMEOUT_S)
        assert len(rows) == messages, "too few were received"
        await self._connection.fetch(_PGMQ_DELETE, [row["msg_id"] for row in rows])

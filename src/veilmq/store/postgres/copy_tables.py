"""A copy from database to database: every table as it is, so that nothing has to be known of what it means.

Receipts act on the copy, claims and publications go on there, and what a later version adds is taken along. Counters go
on behind the source's. What a crash may empty (unlogged tables) is left out.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from veilmq.engines.copying import CopyRefused, Told
from veilmq.store.postgres.copy_lock import SQL, TROUBLE, CopyLock
from veilmq.store.postgres.copy_target import refuse_used

_EVERY_STORES = ("setting", "event_state")
"""What every store has from the beginning."""
_OF_MESSAGES = ("msg", "fifo_msg")
_PARTS_AHEAD = 16
_END = b""


async def copy_tables(source: CopyLock, target: CopyLock, *, told: Told | None = None) -> int:
    """Copy all that is in ``source``; return how many messages there were. Raises ``CopyRefused``.

    ``told`` hears of messages once their table is copied.
    """
    await source.require()
    await target.migrate()
    await source.hold()
    await target.hold()
    await refuse_used(target)
    formats = [await each.connection.fetchval(SQL["format"]) for each in (source, target)]
    if formats[0] != formats[1]:
        raise CopyRefused(
            f"{source.place} and {target.place} have other formats: run `veilmq migrate` on both, and copy again."
        )
    await target.without_triggers()
    tables = [name for (name,) in await source.connection.fetch(SQL["copied_tables"])]
    for name in _EVERY_STORES:
        await target.connection.execute(f"DELETE FROM mq.{name}")
    in_all = await source.connection.fetchval(SQL["copied_count"])
    messages = 0
    for table in tables:
        rows = await _copy_table(source, target, table)
        messages += rows if table in _OF_MESSAGES else 0
        if told is not None:
            told(messages, max(messages, in_all))
    await target.connection.execute(SQL["forget_urls"])
    await _copy_numbers(source.connection, target.connection)
    await source.check_alone()
    await target.commit()
    return messages


async def _copy_table(source: CopyLock, target: CopyLock, table: str) -> int:
    columns = [name for (name,) in await source.connection.fetch(SQL["columns"], f"mq.{table}")]
    terms: dict[str, Any] = {"schema_name": "mq", "columns": columns, "format": "binary"}
    parts: asyncio.Queue[bytes] = asyncio.Queue(_PARTS_AHEAD)

    async def read() -> None:
        with _failing(source):
            await source.connection.copy_from_table(table, output=parts.put, **terms)
        await parts.put(_END)

    async def arriving() -> AsyncIterator[bytes]:
        while (part := await parts.get()) != _END:
            yield part

    async def write() -> str:
        with _failing(target):
            own = "qp > 0" if "qp" in columns else None  # every store has the rows of mq.fill
            status: str = await target.connection.copy_to_table(table, source=arriving(), where=own, **terms)
            return status

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(read())
            copied = both.create_task(write())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from failures
    return int(copied.result().rsplit(" ", 1)[-1])


@contextmanager
def _failing(lock: CopyLock) -> Iterator[None]:
    """Say of which of the two servers an error is."""
    try:
        yield
    except TROUBLE as error:
        raise lock.failed(error) from error


async def _copy_numbers(source: Any, target: Any) -> None:
    for table, column, sequence in await source.fetch(SQL["sequences"]):
        last = await source.fetchval("SELECT pg_sequence_last_value($1::text::regclass)", sequence)
        if last is not None:
            await target.execute(SQL["number_behind"], f"mq.{table}", column, last)

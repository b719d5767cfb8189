"""The event log: what became of receipts, written by the statements that end them.

On a logged queue a statement is another one than elsewhere, where nothing is paid: it has the lines behind "log:" in
the files of statements, and writes an event for each receipt that it ends (``mq.outcomes``). What an event says of the
receive stands with the message (``engines.held``). Receipts that ended without a deletion are kept for a day, for the
delete that may come late. Events get their numbers later (``event_numbers``).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from veilmq.core.receipts import Receipt
from veilmq.core.results import ReceiptState
from veilmq.engines import held
from veilmq.engines.named_sql import load
from veilmq.store.events import is_logged
from veilmq.store.postgres.catalog import Queue
from veilmq.store.postgres.coalescing import FIFO, STANDARD, PartitionRetired, retention_ms
from veilmq.store.postgres.options import PostgresOptions

_WITHOUT = re.compile(r"^.*-- no log\n", re.MULTILINE)

SQL = load("veilmq.store.postgres", "events.sql")


def logged(statements: dict[str, str]) -> dict[str, str]:
    """Return the statements as they are for logged queues."""
    return {name: _WITHOUT.sub("", text).replace("-- log: ", "") for name, text in statements.items()}


_STANDARD_LOGGED = logged(STANDARD)


class EventLog:
    """Which queues are logged by one node, and how."""

    def __init__(self, *, options: PostgresOptions) -> None:
        """``options`` say it of queues that do not say it themselves."""
        self._default = options.event_log

    def has(self, queue: Queue) -> bool:
        """Tell whether the receipts of ``queue`` are logged."""
        return is_logged(queue.settings, self._default)

    def sql(self, queue: Queue) -> dict[str, str]:
        """Return the statements on messages of ``queue``, whose last terms are then its ``terms``."""
        if queue.settings.fifo:
            return FIFO
        return _STANDARD_LOGGED if self.has(queue) else STANDARD

    def terms(self, queue: Queue) -> tuple[Any, ...]:
        """Return what a statement is told about the log."""
        if self.has(queue):
            return queue.origin, queue.name
        return (queue.origin, None) if queue.settings.fifo else ()

    def check_moved(self, queue: Queue, living: Sequence[Any]) -> None:
        """Raise ``PartitionRetired`` where a dead letter, of which that is written, could not be moved."""
        if self.has(queue) and any(row["receive_count"] > queue.settings.receives_max for row in living):
            raise PartitionRetired

    async def place(self, connection: Any, queue: Queue, rows: Sequence[Any], shares: Sequence[int]) -> None:
        """Say anew of messages that a receive took in several steps which place each has in its share."""
        if not self.has(queue):
            return
        logs = []
        for place, (first, end) in zip(range(len(rows)), zip(*places_of(shares), strict=True), strict=False):
            waited_ms = max(0, rows[place]["now"] - rows[place]["received_at"])
            begun = held.begun(min(end, len(rows)) - first, waited_ms)
            logs.append(held.placed(begun, place - first))
        seqs = [row["seq"] for row in rows]
        await connection.execute(_STANDARD_LOGGED["log"], queue.partition, seqs, logs)

    async def note(self, connection: Any, queue: Queue, how: str, seqs: list[int]) -> None:
        """Write the ends of receipts, if ``queue`` is logged; ``how`` is for ``mq.outcomes``."""
        if seqs and self.has(queue):
            await connection.execute(self.sql(queue)["note"], queue.partition, how, seqs, queue.origin, queue.name)

    async def late(
        self,
        connection: Any,
        queue: Queue,
        useless: Mapping[ReceiptState, Sequence[Receipt]],
        *,
        earlier: Sequence[Receipt],
    ) -> None:
        """Write what deletes that do nothing tell of their receipts, which are given by what they were.

        ``earlier`` are superseded ones that did delete.
        """
        if not (useless or earlier) or not self.has(queue):
            return
        expired = useless.get(ReceiptState.EXPIRED, ())
        ended = await self._end(connection, queue, queue.partition, expired)
        superseded = [each for each in expired if each.position not in ended]  # by a receive since they were looked at
        await self._correct(connection, queue, [*superseded, *useless.get(ReceiptState.SUPERSEDED, ()), *earlier])
        left = await self._correct(connection, queue, useless.get(ReceiptState.GONE, ()))
        if left:  # what ended them may not have been seen by anybody yet
            rows = await connection.fetch(SQL["retired_parts"], queue.number)
            for partition in (queue.partition, *(number for (number,) in rows)):
                ended = await self._end(connection, queue, partition, left)
                left = [each for each in left if each.position not in ended]

    async def _correct(self, connection: Any, queue: Queue, gone: Sequence[Receipt]) -> list[Receipt]:
        """Correct the ends that are written; return the receipts that have none."""
        if not gone:
            return []
        rows = await connection.fetch(SQL["correct"], queue.origin, *_columns(gone))
        corrected = {seq for (seq,) in rows}
        return [each for each in gone if each.position not in corrected]

    async def _end(self, connection: Any, queue: Queue, partition: int, receipts: Sequence[Receipt]) -> set[int]:
        """Write the late ends of those that are open; return their positions."""
        if not receipts:
            return set()
        rows = await connection.fetch(
            self.sql(queue)["end_receipts"],
            partition,
            *_columns(receipts),
            retention_ms(queue),
            queue.origin,
            queue.name,
        )
        return {seq for (seq,) in rows}


def places_of(shares: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return where the share begins and ends to which each place belongs."""
    firsts: list[int] = []
    ends: list[int] = []
    for share in shares:
        first = len(firsts)
        firsts += [first] * share
        ends += [first + share] * share
    return firsts, ends


def _columns(receipts: Sequence[Receipt]) -> tuple[list[int], list[int]]:
    ordered = sorted({(each.position, each.generation) for each in receipts})
    return [position for position, _ in ordered], [generation for _, generation in ordered]

"""Attempts: a receive of a FIFO queue that can be repeated, because its answer may have been lost.

The same attempt id gives the same messages with the same receipts again, hidden anew from now on and without another
receive counted, as long as every one of them is as it was left (SQS API Reference, the receive's attempt id). Else the
attempt is void, and the receive an ordinary one, which is remembered in its place.
"""

from hashlib import blake2b
from typing import Any

from veilmq.core.limits import ATTEMPT_S, SECOND_MS
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.on_queue import FIFO, retention_ms
from veilmq.engines.postgres.ruled import Take, hide_by_class
from veilmq.engines.postgres.terms import Terms

_KEY_BYTES = 16


async def repeat_or_take(connection: Any, queue: Queue, attempt_id: str, terms: Terms, take: Take) -> list[Any]:
    """Return the rows of the attempt's messages again, or those that ``take`` gives, which are then the attempt's.

    A row of a repetition has ``issued_visible_at``, the deadline that its receipt says.
    """
    key = blake2b(attempt_id.encode(), digest_size=_KEY_BYTES).digest()
    async with connection.transaction():
        attempt = await connection.fetchrow(FIFO["find_attempt"], queue.origin, key, ATTEMPT_S * SECOND_MS)
        rows = [] if attempt is None else await _repeat(connection, queue, attempt, terms)
        if rows:
            await connection.execute(FIFO["move_attempt"], queue.origin, key, [row["visible_at"] for row in rows])
            return rows
        taken = await take()
        if taken:
            columns = [[row[name] for row in taken] for name in ("seq", "generation", "epoch", "visible_at")]
            await connection.execute(FIFO["note_attempt"], queue.origin, key, *columns)
        return taken


async def _repeat(connection: Any, queue: Queue, attempt: Any, terms: Terms) -> list[Any]:
    seqs, generations, epochs, issued, deadlines = attempt
    rows = await connection.fetch(
        FIFO["repeat"],
        queue.partition,
        seqs,
        generations,
        epochs,
        deadlines,
        terms.timeout_ms,
        terms.bound_ms,
        retention_ms(queue),
    )
    if terms.ruled:
        rows = await hide_by_class(connection, queue, rows, terms.bound_ms)
    found = {row["seq"]: row for row in rows}
    if not found:
        return []
    return [{**found[seq], "issued_visible_at": at_ms} for seq, at_ms in zip(seqs, issued, strict=True)]

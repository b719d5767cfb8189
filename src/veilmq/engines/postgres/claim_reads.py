"""Reading a claim: pages of a shard, by position.

A cursor is the position at which the next page begins, so it is worth the same however often it is used, and after a
message was evicted. A page ends early when its bodies are large.
"""

import re
from typing import Any

from veilmq.core import claims, limits
from veilmq.core.claims import ClaimedMessage, ClaimPage
from veilmq.core.errors import CursorInvalid, ShardNotFound
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.claim_rows import SQL, BoundClaim
from veilmq.engines.postgres.fifo_taking import properties_of

_CURSOR = re.compile(r"(?:[ug]([0-9]{0,19}))?")
_PREFETCHED = 100  # rows; their bodies may be large
_BEHIND_ALL = (1 << 63) - 1  # the highest number of the database; no message stands there


async def read(connection: Any, queue: Queue, claim: BoundClaim, command: claims.ReadClaim) -> ClaimPage:
    """Return the page at the command's cursor, in the transaction that has seen the claim."""
    if not 0 <= command.shard < claim.shards:
        raise ShardNotFound(command.shard, claim.shards)
    found = _CURSOR.fullmatch(command.cursor)
    if found is None or (position := int(found[1] or 0)) > _BEHIND_ALL:
        raise CursorInvalid
    count = max(1, min(command.messages_max, limits.CLAIM_PAGE_MESSAGES))
    name = "read_fifo" if queue.settings.fifo else "read"
    messages: list[ClaimedMessage] = []
    bytes_left = limits.CLAIM_PAGE_BYTES
    terms = (claim.partition, claim.id, command.shard, position, count)
    async for row in connection.cursor(SQL[name], *terms, prefetch=_PREFETCHED):
        messages.append(_told(queue, claim, row))
        bytes_left -= len(row["body"]) + len(row["properties"] or b"")
        if bytes_left <= 0 or len(messages) == count:
            return ClaimPage(messages=messages, cursor=f"u{row['seq'] + 1}")
    return ClaimPage(messages=messages, cursor="")


def _told(queue: Queue, claim: BoundClaim, row: Any) -> ClaimedMessage:
    return ClaimedMessage(
        row["id"],
        row["body"],
        properties_of(queue, row),
        row["sent_at"],
        claim.bound_at_ms,
        row["receive_count"],
        row["seq"] if queue.settings.fifo else None,
    )

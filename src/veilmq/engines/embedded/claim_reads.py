"""Reading a claim: pages of a shard, first its ungrouped messages, then those of groups, each by position.

A cursor is where the next page begins: in which of the two, and at which position. So it is worth the same however
often it is used, and after a message was evicted. A page ends early when its bodies are large, or when it has looked at
many messages of other shards.
"""

import re
from collections.abc import Iterator
from typing import Any

from veilmq.core import claims, limits
from veilmq.core.claims import ClaimedMessage, ClaimPage
from veilmq.core.errors import CursorInvalid, ShardNotFound
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.claim_store import BoundClaim
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.queue import Queue

_UNGROUPED, _GROUPED = "u", "g"
_CURSOR = re.compile(r"(?:([ug])([0-9]{0,19}))?")
_LOOKED_AT_MAX = 20_000  # a few milliseconds
_BEHIND_ALL = (1 << 63) - 1  # the highest number of SQLite; no message stands there


class ClaimReads:
    """Reads; nothing changes by it."""

    def __init__(self, *, journal: Journal) -> None:
        """``journal`` has the messages."""
        self._journal = journal

    def read(self, queue: Queue, claim: BoundClaim, command: claims.ReadClaim) -> ClaimPage:
        """Return the page at the command's cursor."""
        if not 0 <= command.shard < claim.shards:
            raise ShardNotFound(command.shard, claim.shards)
        found = _CURSOR.fullmatch(command.cursor)
        if found is None or (position := int(found[2] or 0)) > _BEHIND_ALL:
            raise CursorInvalid
        read = self._grouped if found[1] == _GROUPED else self._ungrouped
        return read(queue, claim, command, position)

    def _ungrouped(self, queue: Queue, claim: BoundClaim, command: claims.ReadClaim, position: int) -> ClaimPage:
        rows = self._journal.stream("shard_messages", claim.id, command.shard, position, _count(command))
        messages, position = _collect(rows, claim, command, None)
        if position:
            return ClaimPage(messages=messages, cursor=f"{_UNGROUPED}{position}")
        return ClaimPage(messages=messages, cursor=_GROUPED if claim.grouped else "")

    def _grouped(self, queue: Queue, claim: BoundClaim, command: claims.ReadClaim, position: int) -> ClaimPage:
        ends = self._journal.rows("group_shard_end", claim.id, position, _LOOKED_AT_MAX)
        end = ends[0][0] if ends else _BEHIND_ALL
        rows = self._journal.stream(
            "group_shard_messages", claim.id, command.shard, claim.shards, position, end, _count(command)
        )
        messages, position = _collect(rows, claim, command, queue if queue.settings.fifo else None)
        if position or ends:
            return ClaimPage(messages=messages, cursor=f"{_GROUPED}{position or end}")
        return ClaimPage(messages=messages, cursor="")


def _count(command: claims.ReadClaim) -> int:
    return max(1, min(command.messages_max, limits.CLAIM_PAGE_MESSAGES))


def _collect(
    rows: Iterator[tuple[Any, ...]], claim: BoundClaim, command: claims.ReadClaim, fifo: Queue | None
) -> tuple[list[ClaimedMessage], int]:
    """Return a page and the position at which the next one begins, 0 when ``rows`` ended."""
    messages = []
    bytes_left = limits.CLAIM_PAGE_BYTES
    ahead_ms = claim.ahead_ms
    received_at_ms = claim.bound_at_ms + ahead_ms
    for position, message_id, body, properties, sent_at_ms, receive_count in rows:
        sequence = None if fifo is None else _sequence(fifo, position)
        messages.append(
            ClaimedMessage(message_id, body, properties, sent_at_ms + ahead_ms, received_at_ms, receive_count, sequence)
        )
        bytes_left -= len(body) + len(properties)
        if bytes_left <= 0:
            break
    full = bytes_left <= 0 or len(messages) == _count(command)
    return messages, position + 1 if full else 0


def _sequence(queue: Queue, position: int) -> int:
    number = positions.lane_of(position)
    return next(lane.sequence_of(position) for lane in queue.lanes if lane.number == number)

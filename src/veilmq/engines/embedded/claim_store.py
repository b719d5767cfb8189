"""What the store keeps of claims, and the same in memory: sources, their claims, and the ranges of positions they have.

Sources and claims are few and stand in memory too; ranges may be many and are read when they are needed.
"""

from typing import NamedTuple

import msgspec

from veilmq.core.claims import ClaimState
from veilmq.core.limits import SECOND_MS, SOURCE_SILENCE_S
from veilmq.engines.embedded import positions
from veilmq.engines.embedded.journal import Journal

ACKNOWLEDGED = "acknowledged"
"""The state of a claim whose messages are being deleted; whoever asks hears its number only."""
GROUPED = -1
"""In place of a shard: the group of each message tells."""
_HELD = (ClaimState.BINDING.value, ClaimState.OPEN.value)


class BoundClaim(msgspec.Struct, eq=False):
    """A claim, in the order of its columns; ``by_lane`` counts its messages by the numbers of their lanes.

    ``bytes`` is how long they are, -1 after a restart: neither is stored. ``id`` is 0 until the claim is stored.
    ``ahead_ms`` is what its messages' times are shown ahead of store time.
    """

    id: int
    source: int | None
    queue: int
    number: int
    state: str
    messages: int = 0
    grouped: int = 0
    shards: int = 0
    filled: int = 0
    bound_at_ms: int = 0
    ahead_ms: int = 0
    by_lane: dict[int, int] = {}
    bytes: int = -1

    @property
    def is_held(self) -> bool:
        """Whether its messages are bound to its source."""
        return self.state in _HELD


class Source(msgspec.Struct, eq=False):
    """A source, in the order of its columns, and its claims by their numbers, in order; ``lost`` is JSON.

    ``number`` is 0 until it is stored.
    """

    number: int
    queue: int
    name: str
    consumer: str
    epoch: int
    acknowledged: int
    last: int
    lost: str
    hold_s: int
    lease_s: int
    beat_at_ms: int
    claims: dict[int, BoundClaim] = {}

    @property
    def lease_until_ms(self) -> int:
        """Until when it counts as alive."""
        return self.beat_at_ms + self.lease_s * SECOND_MS

    @property
    def hold_until_ms(self) -> int:
        """When its messages go back to the queue."""
        return self.beat_at_ms + self.hold_s * SECOND_MS

    @property
    def forgotten_ms(self) -> int:
        """When it is forgotten, if it has no open claims."""
        return self.beat_at_ms + SOURCE_SILENCE_S * SECOND_MS

    @property
    def holds(self) -> bool:
        """Whether any claim is open."""
        return any(claim.is_held for claim in self.claims.values())


class Range(NamedTuple):
    """All messages at the positions from ``first`` to ``last``."""

    first: int
    last: int
    shard: int
    messages: int
    leased: int

    @property
    def lane(self) -> int:
        """The number of the lane that they are in."""
        return positions.lane_of(self.first)


class ClaimStore:
    """The tables."""

    def __init__(self, *, journal: Journal) -> None:
        """``journal`` has them."""
        self._journal = journal

    # Sources and claims.

    def load(self) -> tuple[list[Source], list[BoundClaim]]:
        """Return all sources with their claims, and all claims."""
        claims = {row[0]: BoundClaim(*row) for row in self._journal.rows("all_claims")}
        for claim, lane, messages in self._journal.rows("claimed_by_lane"):
            claims[claim].by_lane[lane] = messages
        sources = {row[0]: Source(*row) for row in self._journal.rows("all_sources")}
        for each in sorted(claims.values(), key=lambda claim: claim.number):
            if each.source is not None and each.state != ACKNOWLEDGED:
                sources[each.source].claims[each.number] = each
        return list(sources.values()), list(claims.values())

    def put_source(self, source: Source) -> None:
        """Write a source as it is now."""
        number, *columns, _ = msgspec.structs.astuple(source)
        ((source.number,),) = self._journal.write("put_source", number or None, *columns)

    def delete_source(self, source: Source) -> None:
        """Remove a source."""
        self._journal.write("delete_source", source.number)

    def put_claim(self, claim: BoundClaim) -> None:
        """Write a claim as it is now."""
        number, *columns, _, _ = msgspec.structs.astuple(claim)
        ((claim.id,),) = self._journal.write("put_claim", number or None, *columns)

    def delete_claim(self, claim: BoundClaim) -> None:
        """Remove a claim, which has no ranges left."""
        self._journal.write("delete_claim", claim.id)

    # Ranges.

    def add(self, claim: BoundClaim, part: Range) -> None:
        """Add a range to a claim."""
        self._journal.write("add_range", part.first, part.last, claim.id, part.shard, part.messages, part.leased)

    def ranges(self, claim: BoundClaim, count: int) -> list[Range]:
        """Return up to ``count`` ranges of a claim."""
        return [Range(*row) for row in self._journal.rows("ranges_of", claim.id, count)]

    def find(self, claim: BoundClaim, message: bytes) -> int | None:
        """Return the position of a message of the claim, ``None`` when it has no such: looks at all that it has."""
        rows = self._journal.rows("claimed_message", claim.id, message)
        return rows[0][0] if rows else None

    def range_of(self, claim: BoundClaim, position: int) -> Range:
        """Return the range of the claim that the position is in."""
        ((first, last, _, shard, messages, leased),) = self._journal.rows("range_at", position)
        return Range(first, last, shard, messages, leased)

    def cut(self, part: Range, start: int, messages: int) -> None:
        """Leave of a range what is from position ``start`` on, so many messages; nothing when that is none."""
        if start > part.last:
            self._journal.write("delete_range", part.first)
        else:
            self._journal.write("cut_range", start, messages, part.first)

    def drop(self, part: Range) -> None:
        """Remove a range."""
        self._journal.write("delete_range", part.first)

    def take_out(self, claim: BoundClaim, part: Range, position: int) -> None:
        """Take one message out of a range: what is behind it is a range of its own, of the same shard."""
        ahead = len(self._journal.rows("positions_between", part.first, position, part.messages))
        behind = part.messages - ahead - 1
        if behind:
            self.add(claim, Range(position + 1, part.last, part.shard, behind, part.leased))
        if ahead:
            self._journal.write("end_range", position - 1, ahead, part.first)
        else:
            self.drop(part)

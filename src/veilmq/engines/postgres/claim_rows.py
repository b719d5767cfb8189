"""Sources and claims as the store has them, and what they tell of themselves.

Whoever changes a source, or a claim that has one, holds the lock of the source's row: so the nodes that serve one
source have an order. A slice of a claim's end holds the lock of the claim's row alone.
"""

from typing import Any, NamedTuple

from veilmq.core.claims import ClaimState, ClaimView, SourceView
from veilmq.core.errors import ClaimAcknowledged, ClaimLost, ClaimReleased
from veilmq.engines.named_sql import load
from veilmq.engines.postgres.catalog import Queue
from veilmq.engines.postgres.on_queue import retention_ms, sql

SQL = load("veilmq.engines.postgres", "claims.sql")

ACKNOWLEDGED = "acknowledged"
"""The state of a claim whose messages are being deleted; whoever asks hears its number only."""
_HELD = (ClaimState.BINDING.value, ClaimState.OPEN.value)
_REFUSED = {ClaimState.LOST.value: ClaimLost, ClaimState.RELEASED.value: ClaimReleased}


class BoundClaim(NamedTuple):
    """A claim; ``partition`` has its messages, ``filled`` are those in the last shard of a standard queue's."""

    id: int
    origin: int
    partition: int
    number: int
    state: str
    messages: int
    shards: int
    filled: int
    bound_at_ms: int
    is_ending: bool

    @property
    def is_held(self) -> bool:
        """Whether its messages are bound to its source."""
        return self.state in _HELD


class Source(NamedTuple):
    """A source as it was at ``now_ms``, with its claims by their numbers, in order."""

    origin: int
    name: str
    consumer: str
    epoch: int
    acknowledged: int
    last: int
    lost: list[int]
    hold_ms: int
    lease_ms: int
    beat_at_ms: int
    now_ms: int
    claims: dict[int, BoundClaim]

    @property
    def held(self) -> list[BoundClaim]:
        """Its open claims."""
        return [claim for claim in self.claims.values() if claim.is_held]

    @property
    def hold_has_ended(self) -> bool:
        """Whether its open claims are lost."""
        return self.now_ms >= self.beat_at_ms + self.hold_ms and bool(self.held)

    def as_expired(self) -> "Source":
        """Return what it is when its hold has ended."""
        lost = {claim.number: claim._replace(state=ClaimState.LOST.value, is_ending=True) for claim in self.held}
        return self._replace(claims=self.claims | lost)

    def open_claim(self, number: int) -> BoundClaim:
        """Return the claim of that number; raises what tells why there is no open one."""
        if number <= self.acknowledged:
            raise ClaimAcknowledged(number, self.acknowledged)
        claim = self.claims.get(number)
        if claim is None:
            raise ClaimLost(number)
        if not claim.is_held:
            raise _REFUSED[claim.state](number)
        return claim


def claim_of(row: Any) -> BoundClaim:
    """Return the claim of a row of ``mq.claim``."""
    return BoundClaim(
        id=row["claim_id"],
        origin=row["qp"],
        partition=row["part"],
        number=row["number"],
        state=row["state"],
        messages=row["messages"],
        shards=row["shards"],
        filled=row["filled"],
        bound_at_ms=row["bound_at"],
        is_ending=row["is_ending"],
    )


def source_of(row: Any, claims: list[Any]) -> Source:
    """Return the source of a row of ``mq.source``, with its ``claims``, rows too."""
    return Source(
        origin=row["qp"],
        name=row["name"],
        consumer=row["consumer"],
        epoch=row["epoch"],
        acknowledged=row["acknowledged"],
        last=row["last"],
        lost=list(row["lost"]),
        hold_ms=row["hold"],
        lease_ms=row["lease"],
        beat_at_ms=row["beat_at"],
        now_ms=row["now"],
        claims={each["number"]: claim_of(each) for each in claims},
    )


async def with_claims(connection: Any, row: Any) -> Source:
    """Return the source of a row, with its claims as they are now."""
    return source_of(row, await connection.fetch(SQL["claims_of"], row["qp"], row["name"]))


class Backlog(NamedTuple):
    """How many messages of a queue are visible, and when the oldest was sent."""

    messages: int
    oldest_sent_at_ms: int | None


async def ready(connection: Any, queue: Queue) -> Backlog:
    """Return what of ``queue`` is visible."""
    counted = sql(queue)["count"] if queue.settings.fifo else SQL["ready"]
    row = await connection.fetchrow(counted, queue.partition, retention_ms(queue))
    return Backlog(row["visible"], row["oldest_sent_at"])


def seen(source: Source, *, ready: Backlog) -> SourceView:
    """Tell how a source stands; ``ready`` is what of its queue is visible."""
    lease_until_ms = source.beat_at_ms + source.lease_ms
    return SourceView(
        source=source.name,
        consumer=source.consumer,
        epoch=source.epoch,
        acknowledged=source.acknowledged,
        last=source.last,
        alive=source.now_ms < lease_until_ms,
        lease_until_ms=lease_until_ms,
        hold_until_ms=source.beat_at_ms + source.hold_ms,
        claims=[_seen_claim(claim) for claim in source.claims.values()],
        ready=ready.messages,
        oldest_sent_at_ms=ready.oldest_sent_at_ms,
    )


def _seen_claim(claim: BoundClaim) -> ClaimView:
    return ClaimView(
        number=claim.number,
        state=ClaimState(claim.state),
        messages=claim.messages,
        shards=claim.shards,
        bound_at_ms=claim.bound_at_ms,
    )


async def lock_all(connection: Any, queue: Queue) -> None:
    """Have the sources of ``queue`` wait: its partition is about to be retired."""
    await connection.fetch(SQL["lock_sources"], queue.origin, None, "")


async def lose_all(connection: Any, queue: Queue) -> None:
    """Have the open claims of ``queue`` lost with their messages: its partition was retired in this transaction."""
    await connection.execute(SQL["lose_all"], queue.origin)
    await connection.execute(SQL["forget_detached"], queue.origin)


async def forget_all(connection: Any, queue: Queue) -> None:
    """Forget all sources of ``queue``, which is deleted in this transaction."""
    await connection.execute(SQL["forget_claims"], queue.origin)
    await connection.execute(SQL["forget_sources"], queue.origin)

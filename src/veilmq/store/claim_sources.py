"""Sources and their claims, as the store has them."""

from collections.abc import Iterable
from typing import NamedTuple

from veilmq.core.claims import ClaimState
from veilmq.core.errors import ClaimAcknowledged, ClaimLost, ClaimReleased
from veilmq.store.claimed import BoundClaim
from veilmq.store.transaction import Row, Transaction

_REFUSED = {ClaimState.LOST.value: ClaimLost, ClaimState.RELEASED.value: ClaimReleased}


class Source(NamedTuple):
    """A row of ``source`` as it was at ``now_ms``, with its claims by their numbers, in order."""

    origin: int
    name: str
    consumer: str
    epoch: int
    acknowledged: int
    last: int
    hold_ms: int
    lease_ms: int
    beat_at_ms: int
    now_ms: int
    claims: dict[int, BoundClaim]

    @property
    def held(self) -> list[BoundClaim]:
        """Its open claims."""
        return [each for each in self.claims.values() if each.is_held]

    @property
    def passed(self) -> list[BoundClaim]:
        """The lost and released claims that the last acknowledgement passed over."""
        return [each for each in self.claims.values() if each.number <= self.acknowledged]

    @property
    def hold_until_ms(self) -> int:
        """When its messages go back to the queue."""
        return self.beat_at_ms + self.hold_ms

    @property
    def hold_has_ended(self) -> bool:
        """Whether its open claims are lost."""
        return self.now_ms >= self.hold_until_ms and bool(self.held)

    def ended(self, claims: Iterable[BoundClaim], state: str) -> "Source":
        """Return what it is when ``claims``, which are open, have ended in that state."""
        return self._replace(
            claims=self.claims | {each.number: each._replace(state=state, is_ending=True) for each in claims}
        )

    def as_expired(self) -> "Source":
        """Return what it is when its hold has ended."""
        return self.ended(self.held, ClaimState.LOST.value)

    def open_claim(self, number: int) -> BoundClaim:
        """Return the claim of that number; raises the reason why there is no open one."""
        if number <= self.acknowledged:
            raise ClaimAcknowledged(number, self.acknowledged)
        found = self.claims.get(number)
        if found is None:
            raise ClaimLost(number)
        if not found.is_held:
            raise _REFUSED[found.state](number)
        return found


def claim_of(row: Row) -> BoundClaim:
    """Return the claim of a row."""
    return BoundClaim(*row)


def source_of(row: Row, claims: Iterable[BoundClaim], now_ms: int) -> Source:
    """Return the source of a row, with its claims."""
    origin, name, consumer, epoch, acknowledged, last, hold_ms, lease_ms, beat_at_ms = row
    by_number = {each.number: each for each in claims}
    return Source(origin, name, consumer, epoch, acknowledged, last, hold_ms, lease_ms, beat_at_ms, now_ms, by_number)


async def with_claims(tx: Transaction, row: Row, now_ms: int) -> Source:
    """Return the source of a row, with its claims as they are now."""
    origin, name, *_ = row
    return source_of(row, [claim_of(each) for each in await tx.rows("claims_of", origin, name)], now_ms)


async def put(tx: Transaction, source: Source) -> None:
    """Write a source, whose row is locked; its hold is looked at when it ends."""
    origin, name, consumer, epoch, acknowledged, last, hold_ms, lease_ms, beat_at_ms, *_ = source
    terms = (consumer, epoch, acknowledged, last, hold_ms, lease_ms, beat_at_ms)
    await tx.run("put_source", origin, name, *terms, source.hold_until_ms)

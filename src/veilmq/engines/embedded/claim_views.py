"""Sources as their readers and operators see them."""

from veilmq.core.claims import ClaimState, ClaimView, SourceView
from veilmq.engines.embedded.claim_store import BoundClaim, Source


def seen(source: Source, *, ready: int, now_ms: int) -> SourceView:
    """Tell how a source stands at ``now_ms``; ``ready`` messages of its queue are visible then."""
    return SourceView(
        source=source.name,
        consumer=source.consumer,
        epoch=source.epoch,
        acknowledged=source.acknowledged,
        last=source.last,
        alive=now_ms < source.lease_until_ms,
        lease_until_ms=source.lease_until_ms,
        hold_until_ms=source.hold_until_ms,
        claims=[_seen_claim(claim) for claim in source.claims.values()],
        ready=ready,
    )


def _seen_claim(claim: BoundClaim) -> ClaimView:
    return ClaimView(
        number=claim.number,
        state=ClaimState(claim.state),
        messages=claim.messages,
        shards=claim.shards,
        bound_at_ms=claim.bound_at_ms,
    )

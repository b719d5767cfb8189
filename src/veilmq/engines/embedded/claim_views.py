"""Sources as their readers and operators see them."""

from veilmq.core.claims import ClaimState, ClaimView, SourceView
from veilmq.core.results import QueueCounts
from veilmq.engines.embedded.claim_store import BoundClaim, Source


def seen(source: Source, *, counts: QueueCounts, now_ms: int) -> SourceView:
    """Tell how a source stands at ``now_ms``; ``counts`` are those of its queue."""
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
        ready=counts.visible,
        oldest_sent_at_ms=counts.oldest_sent_at_ms,
    )


def _seen_claim(claim: BoundClaim) -> ClaimView:
    return ClaimView(
        number=claim.number,
        state=ClaimState(claim.state),
        messages=claim.messages,
        shards=claim.shards,
        bound_at_ms=claim.bound_at_ms,
    )

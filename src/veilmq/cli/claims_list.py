"""``veilmq claims list``."""

from veilmq.cli.connection import connect_claims
from veilmq.cli.options import Endpoint, Json, Queue
from veilmq.cli.printing import instant, print_aligned, print_json
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.claims import ClaimView, SourceView


def list_sources(queue: Queue, /, *, json: Json = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Print who reads a queue by claims, and which claims each source has."""
    with connect_claims(endpoint, queue) as claims:
        sources = claims.sources()
    if json:
        print_json(sources)
        return
    for place, source in enumerate(sources):
        if place:
            print()
        print_aligned(_rows(source))


def _rows(source: SourceView) -> list[tuple[str, object]]:
    return [
        ("source", source.source),
        ("consumer", source.consumer or "none"),
        ("alive", "yes" if source.alive else "no"),
        ("epoch", source.epoch),
        ("acknowledged", f"{source.acknowledged} of {source.last}"),
        ("held until", instant(source.hold_until_ms)),
        *((f"claim {claim.number}", _told(claim)) for claim in source.claims),
    ]


def _told(claim: ClaimView) -> str:
    return f"{claim.state.value}, {claim.messages} messages since {instant(claim.bound_at_ms)}"

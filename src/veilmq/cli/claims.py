"""``veilmq claims``: list, release, evict and close what readers of a queue have claimed."""

from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.command import Endpoint, Json, Queue, Yes, confirm, instant, print_aligned, print_json, read_by
from veilmq.cli.connection import connect_claims
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.claims import ClaimView, SourceView
from veilmq.core.limits import Range
from veilmq.server.settings import whole_number

_NUMBER = whole_number(Range(minimum=0, maximum=2**53 - 1, default=0))

Source = Annotated[str, Parameter(help="Name of the source, as `veilmq claims list` tells it.")]
Number = Annotated[
    int, Parameter(converter=read_by(_NUMBER.read, allowed=_NUMBER.allowed), help="Number of the claim.")
]


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


def release(
    queue: Queue, source: Source, number: Number, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT
) -> None:
    """Give the messages of a claim back to the queue; its reader fails when it comes to it."""
    with connect_claims(endpoint, queue) as claims:
        confirm(f"Have the messages of claim {number} of {source} delivered again?", yes=yes)
        claims.release(source, number=number)
    print(f"Released claim {number} of {source}.")


def evict(
    queue: Queue,
    source: Source,
    number: Number,
    message: Annotated[str, Parameter(help="Id of the message.")],
    /,
    *,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Move a message that its reader cannot digest out of a claim, to the queue's dead-letter queue."""
    with connect_claims(endpoint, queue) as claims:
        claims.evict(source, number=number, message=message)
    print(f"Evicted {message} from claim {number} of {source}.")


def close(queue: Queue, source: Source, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Release all claims of a source and forget it; a reader that goes on with it fails."""
    with connect_claims(endpoint, queue) as claims:
        confirm(f"Have all messages that {source} holds delivered again, and forget it?", yes=yes)
        claims.close_source(source)
    print(f"Closed {source}.")

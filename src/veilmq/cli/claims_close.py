"""``veilmq claims close``."""

from veilmq.cli.claims_options import Source
from veilmq.cli.confirmation import confirm
from veilmq.cli.connection import connect_claims
from veilmq.cli.options import Endpoint, Queue, Yes
from veilmq.client.transport import DEFAULT_ENDPOINT


def close(queue: Queue, source: Source, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Release all claims of a source and forget it; a reader that goes on with it fails."""
    with connect_claims(endpoint, queue) as claims:
        confirm(f"Have all messages that {source} holds delivered again, and forget it?", yes=yes)
        claims.close_source(source)
    print(f"Closed {source}.")

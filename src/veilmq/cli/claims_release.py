"""``veilmq claims release``."""

from veilmq.cli.claims_options import Number, Source
from veilmq.cli.confirmation import confirm
from veilmq.cli.connection import connect_claims
from veilmq.cli.options import Endpoint, Queue, Yes
from veilmq.client.transport import DEFAULT_ENDPOINT


def release(
    queue: Queue, source: Source, number: Number, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT
) -> None:
    """Give the messages of a claim back to the queue; its reader fails when it comes to it."""
    with connect_claims(endpoint, queue) as claims:
        confirm(f"Have the messages of claim {number} of {source} delivered again?", yes=yes)
        claims.release(source, number=number)
    print(f"Released claim {number} of {source}.")

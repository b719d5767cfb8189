"""``veilmq claims evict``."""

from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.claims_options import Number, Source
from veilmq.cli.connection import connect_claims
from veilmq.cli.options import Endpoint, Queue
from veilmq.client.transport import DEFAULT_ENDPOINT


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

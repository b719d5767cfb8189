"""``veilmq queue redrive``."""

from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Queue, whole_number
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import SQS_MOVES_PER_S


def redrive(
    queue: Queue,
    /,
    *,
    to: Annotated[
        str | None, Parameter(metavar="QUEUE", help="Where they go, instead of where each one came from.")
    ] = None,
    rate: Annotated[int | None, whole_number(SQS_MOVES_PER_S, "Messages a second, instead of all at once.")] = None,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Move the messages of a dead-letter queue back; `veilmq queue redrives` tells how far it is."""
    with connect(endpoint) as client:
        client.start_move(queue, destination=to, moves_per_s_max=rate)
    print(f"Moving the messages of {queue} to {to or 'where they came from'}.")

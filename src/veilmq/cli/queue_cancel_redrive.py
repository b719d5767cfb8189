"""``veilmq queue cancel-redrive``."""

from veilmq.cli.connection import connect
from veilmq.cli.failures import CommandFailed
from veilmq.cli.options import Endpoint, Queue
from veilmq.client.transport import DEFAULT_ENDPOINT


def cancel_redrive(queue: Queue, /, *, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Stop the move out of a dead-letter queue; what is moved stays moved."""
    with connect(endpoint) as client:
        handle = next((move.handle for move in client.moves(queue) if move.handle is not None), None)
        if handle is None:
            raise CommandFailed(f"No move out of {queue} is running; `veilmq queue redrives` tells of the latest ones.")
        moved = client.cancel_move(handle)
    print(f"Cancelled; {moved} messages have been moved.")

"""``veilmq queue delete``."""

from veilmq.cli.confirmation import confirm
from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Queue, Yes
from veilmq.client.transport import DEFAULT_ENDPOINT


def delete(queue: Queue, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete a queue and all its messages."""
    with connect(endpoint) as client:
        confirm(f"Delete {queue} and all its messages at {endpoint}?", yes=yes)
        client.delete_queue(queue)
    print(f"Deleted {queue}.")

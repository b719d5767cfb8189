"""``veilmq queue purge``."""

from veilmq.cli.confirmation import confirm
from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Queue, Yes
from veilmq.client.transport import DEFAULT_ENDPOINT


def purge(queue: Queue, /, *, yes: Yes = False, endpoint: Endpoint = DEFAULT_ENDPOINT) -> None:
    """Delete all messages of a queue, and keep the queue."""
    with connect(endpoint) as client:
        confirm(f"Delete all messages of {queue} at {endpoint}?", yes=yes)
        client.purge(queue)
    print(f"Purged {queue}.")

"""``veilmq queue set``."""

from veilmq.cli.connection import connect
from veilmq.cli.failures import UsageError
from veilmq.cli.options import DEFAULT_ENDPOINT, Endpoint, Queue
from veilmq.cli.queue_options import QueueOptions


def set_queue(
    queue: Queue,
    /,
    *,
    options: QueueOptions = QueueOptions(),  # noqa: B008 (frozen)
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Change settings of a queue; messages in flight keep their deadlines."""
    settings = options.settings()
    if not settings:
        raise UsageError("Name at least one setting, for example --visibility-timeout 60.")
    with connect(endpoint) as client:
        client.set(queue, settings)
    print(f"Changed {queue}.")

"""``veilmq queue set``."""

from veilmq.cli.connection import connect, connect_settings
from veilmq.cli.failures import UsageError
from veilmq.cli.options import Endpoint, Queue
from veilmq.cli.queue_options import FIFO_FIELDS, QueueOptions
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.wire.sqs.names import is_fifo


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
    if settings.keys() & FIFO_FIELDS and not is_fifo(queue):  # SQS knows FIFO queues by their names
        with connect_settings(endpoint, queue) as door:
            door.set(settings)
    else:
        with connect(endpoint) as client:
            client.set(queue, settings)
    print(f"Changed {queue}.")

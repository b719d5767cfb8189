"""``veilmq queue create``."""

from veilmq.cli.connection import connect
from veilmq.cli.options import DEFAULT_ENDPOINT, Endpoint, Json, Queue
from veilmq.cli.printing import print_json
from veilmq.cli.queue_options import QueueOptions


def create(
    queue: Queue,
    /,
    *,
    options: QueueOptions = QueueOptions(),  # noqa: B008 (frozen)
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Create a queue, and print its URL.

    A queue that exists already with the same settings is found; with other settings it is an error.
    """
    with connect(endpoint) as client:
        url = client.create_queue(queue, options.settings())
    if json:
        print_json({"queue": queue, "url": url})
    else:
        print(url)

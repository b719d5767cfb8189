"""``veilmq queue create``."""

from veilmq.cli.connection import connect
from veilmq.cli.options import DEFAULT_ENDPOINT, Endpoint, Json, Queue
from veilmq.cli.printing import print_json
from veilmq.cli.queue_options import QueueOptions
from veilmq.client import ClientError, QueueClient


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
        url = _create(client, queue, options)
    if json:
        print_json({"queue": queue, "url": url})
    else:
        print(url)


def _create(client: QueueClient, queue: str, options: QueueOptions) -> str:
    try:
        return client.create_queue(queue, options.settings())
    except ClientError as error:
        if error.code != "InvalidParameterValueException":
            raise
        # The sentence of SQS about a name has no subject.
        raise ClientError(error.code, f"The queue name {queue!r} is invalid: {error.message}.", error.status) from error

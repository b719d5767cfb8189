"""``veilmq queue create``."""

from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect, connect_settings
from veilmq.cli.options import Endpoint, Json, Queue
from veilmq.cli.printing import print_json
from veilmq.cli.queue_options import QueueOptions
from veilmq.cli.tag_options import read_tag
from veilmq.client import ClientError, QueueClient
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.settings import SettingValue

_SMQ_NAME = "Take a name of SMQ: longer, and of a FIFO queue too without .fifo, which SQS clients then do not expect."


def create(
    queue: Queue,
    /,
    *,
    options: QueueOptions = QueueOptions(),  # noqa: B008 (frozen)
    fifo: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Keep order in each group; the name ends in .fifo.")
    ] = False,
    smq_name: Annotated[bool, Parameter(negative=(), show_default=False, help=_SMQ_NAME)] = False,
    tag: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, metavar="KEY=VALUE", help="A tag; may be repeated."),
    ] = (),
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Create a queue, and print its URL.

    A queue that exists already with the same settings is found; with other settings it is an error.
    """
    settings = options.settings() | ({"fifo": True} if fifo else {})
    tags = dict(read_tag(text) for text in tag)
    if smq_name:
        with connect_settings(endpoint, queue) as door:
            url = door.create(settings, tags=tags)
    else:
        with connect(endpoint) as client:
            url = _create(client, queue, settings, tags)
    if json:
        print_json({"queue": queue, "url": url})
    else:
        print(url)


def _create(client: QueueClient, queue: str, settings: dict[str, SettingValue], tags: dict[str, str]) -> str:
    try:
        return client.create_queue(queue, settings, tags=tags)
    except ClientError as error:
        if error.code != "InvalidParameterValueException" or str(error).startswith("Value "):
            raise
        # The sentence of SQS about a name has no subject.
        raise ClientError(error.code, f"The queue name {queue!r} is invalid: {error.message}.", error.status) from error

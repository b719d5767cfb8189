"""``veilmq queue tag``."""

from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Json, Queue
from veilmq.cli.printing import print_json
from veilmq.cli.tag_options import read_tag
from veilmq.client.transport import DEFAULT_ENDPOINT


def tag_queue(
    queue: Queue,
    /,
    *tags: Annotated[str, Parameter(help="Tags to put on the queue, as KEY=VALUE.")],
    remove: Annotated[
        tuple[str, ...],
        Parameter(negative=(), show_default=False, metavar="KEY", help="A tag to remove; may be repeated."),
    ] = (),
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Put tags on a queue or remove some, and print those that it has."""
    wanted = dict(read_tag(text) for text in tags)
    with connect(endpoint) as client:
        if remove:
            client.untag(queue, remove)
        if wanted:
            client.tag(queue, wanted)
        found = client.tags(queue)
    if json:
        print_json(found)
    else:
        for key, value in sorted(found.items()):
            print(f"{key}={value}")

"""``veilmq queue list``."""

from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Json
from veilmq.cli.printing import print_json
from veilmq.client.transport import DEFAULT_ENDPOINT


def list_queues(
    *,
    prefix: Annotated[str, Parameter(show_default=False, help="Only names that begin with this.")] = "",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
) -> None:
    """Print the names of all queues, one on each line."""
    with connect(endpoint) as client:
        names = client.list_queues(prefix)
    if json:
        print_json(names)
    else:
        for name in names:
            print(name)

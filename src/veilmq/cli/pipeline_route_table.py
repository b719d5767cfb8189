"""``veilmq pipeline route-table``."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.options import Endpoint, Json, whole_number
from veilmq.cli.pipeline_options import ClusterOptions, job, spark_session
from veilmq.cli.printing import print_aligned, print_json
from veilmq.cli.statistics_options import StatisticsOptions, facts
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import Range
from veilmq.core.settings import ROUTING_ATTRIBUTE_DEFAULT, RoutingTable

_HERE = ClusterOptions()
_USUAL = StatisticsOptions()
CLASSES = Range(minimum=1, maximum=32, default=4)


def route_table(
    queue: Annotated[str, Parameter(help="Name of the queue whose messages are routed.")],
    /,
    *,
    state: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the state of tune.")],
    to: Annotated[Path, Parameter(metavar="FILE", help="JSON file to write.")],
    classes: Annotated[int, whole_number(CLASSES, "Maximum number of classes.")] = CLASSES.default,
    attribute: Annotated[str, Parameter(metavar="NAME", help="Message attribute with the kind of work.")] = (
        ROUTING_ATTRIBUTE_DEFAULT
    ),
    queue_pattern: Annotated[
        str, Parameter(metavar="TEXT", help="Name of each class's queue; {queue} and {class} are replaced.")
    ] = "{queue}-{class}",
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    statistics: StatisticsOptions = _USUAL,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Compute the routing table of a queue: classes of routing keys that share a timeout.

    `veilmq pipeline route` forwards messages by this table.
    """
    with job("route-table"):
        from veilmq.pipeline.route import route_table

        known = facts(endpoint)
        with spark_session("route-table", cluster) as spark:
            made = route_table(
                spark,
                state=state,
                queue=queue,
                path=to,
                classes=classes,
                attribute=attribute,
                queue_pattern=queue_pattern,
                options=statistics.values(),
                facts=known.get(queue),
            )
        if json:
            print_json(made.table)
        else:
            print_table(made.table)


def print_table(table: RoutingTable) -> None:
    """Print a line for each class: queue, timeout and keys."""
    rows = []
    for index, each in enumerate(table.classes):
        keys = [key for key, place in table.keys.items() if place == index]
        others = ["all others"] if index == table.default else []
        rows.append((each.queue or each.name, f"{each.visibility_timeout_s} s: {', '.join([*keys, *others])}"))
    print_aligned(rows)

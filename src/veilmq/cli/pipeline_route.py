"""``veilmq pipeline route``."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.failures import UsageError
from veilmq.cli.options import Endpoint, whole_number
from veilmq.cli.pipeline_options import CONTINUOUS, HOLD, ON_LOST_CLAIM, BadRows, ClusterOptions, job, spark_session
from veilmq.cli.stopping import stop_on_signals
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import CLAIM_MESSAGES, SQS_RECEIVES_MAX
from veilmq.core.settings import RoutingTable

_HERE = ClusterOptions()
_ONCE = 1


def route(
    intake: Annotated[str, Parameter(help="Name of the intake queue.")],
    /,
    *,
    table: Annotated[Path, Parameter(metavar="FILE", help="Routing table, as written by route-table.")],
    checkpoint: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the checkpoint.")],
    create: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Create the class queues or change their settings.")
    ] = False,
    receives_max: Annotated[
        int, whole_number(SQS_RECEIVES_MAX, "With --create: receives in a class before the next longer class.")
    ] = _ONCE,
    continuous: Annotated[bool, CONTINUOUS] = False,
    batch: Annotated[int | None, whole_number(CLAIM_MESSAGES, "Maximum number of messages in a micro-batch.")] = None,
    consumer: Annotated[str, Parameter(metavar="NAME", help="Consumer name of the stream.")] = "route",
    takeover: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Replace another route job of this intake queue.")
    ] = False,
    hold: Annotated[int | None, HOLD] = None,
    on_lost_claim: Annotated[Literal["fail", "skip"], ON_LOST_CLAIM] = "fail",
    bad_rows: BadRows = "fail",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Forward each message of a queue to the queue of its class, exactly once.

    With --create, the dead-letter queue of each class is the next longer class,
    so a message whose work exceeds its timeout gets a longer one.
    """
    routing_table = _read(table)
    with job("route"):
        from veilmq.pipeline.route import ForwardOptions, checked, create_queues, forward
        from veilmq.pipeline.session import showing

        options = ForwardOptions(
            intake=intake,
            table=checked(routing_table, intake),
            endpoint=endpoint,
            checkpoint=checkpoint,
            continuous=continuous,
            batch_messages=batch,
            consumer=consumer,
            takeover=takeover,
            hold_s=hold,
            on_lost_claim=on_lost_claim,
            bad_rows=bad_rows,
        )
        with connect(endpoint) as client:
            visible = client.show(intake).visible
            if create:
                create_queues(client, routing_table, receives_max=receives_max)
        totals = {intake: None if continuous else visible}
        with (
            spark_session("route", cluster) as spark,
            stop_on_signals() as stop,
            showing(totals, what="messages") as report,
        ):
            forwarded = forward(spark, options, report=report, stop=stop)
    print(f"{intake}: {forwarded} messages forwarded")


def _read(path: Path) -> RoutingTable:
    """Read a routing table; raises ``UsageError``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RoutingTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--table {path}: not a routing table: {error}") from error

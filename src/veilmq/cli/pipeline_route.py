"""``veilmq pipeline route``."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.failures import UsageError
from veilmq.cli.options import Endpoint, whole_number
from veilmq.cli.pipeline_options import BadRows, ClusterOptions, job, spark_session
from veilmq.cli.stopping import stop_on_signals
from veilmq.client.endpoint import DEFAULT_ENDPOINT
from veilmq.core.limits import CLAIM_HOLD_S, CLAIM_MESSAGES, SQS_RECEIVES_MAX
from veilmq.core.routing import RoutingTable

_HERE = ClusterOptions()
_ONCE = 1


def route(
    intake: Annotated[str, Parameter(help="Name of the queue whose messages are forwarded.")],
    /,
    *,
    table: Annotated[Path, Parameter(metavar="FILE", help="Routing table, as route-table writes it.")],
    checkpoint: Annotated[str, Parameter(metavar="DIR", help="Folder or URL in which the job keeps how far it is.")],
    create: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Make the queues of the classes, or set them.")
    ] = False,
    receives_max: Annotated[
        int, whole_number(SQS_RECEIVES_MAX, "With --create: receives in a class before the next longer one.")
    ] = _ONCE,
    continuous: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Go on until stopped, instead of taking what is there.")
    ] = False,
    batch: Annotated[int | None, whole_number(CLAIM_MESSAGES, "Messages of a micro-batch at most.")] = None,
    consumer: Annotated[str, Parameter(metavar="NAME", help="What the stream is to the intake.")] = "route",
    takeover: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Take the place of another such job on this intake.")
    ] = False,
    hold: Annotated[
        int | None, whole_number(CLAIM_HOLD_S, "Seconds for which messages stay claimed when the job is down.")
    ] = None,
    on_lost_claim: Annotated[
        Literal["fail", "skip"], Parameter(help="When it was down for longer: end, or go on and log what comes twice.")
    ] = "fail",
    bad_rows: BadRows = "fail",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Forward each message of a queue to the queue of its class, once.

    With --create, each class has the next longer one as its dead-letter queue,
    so that work that outlasts its timeout goes on with a longer one.
    """
    rules = _read(table)
    with job("route"):
        from veilmq.pipeline.forward import ForwardOptions, checked, create_queues, forward
        from veilmq.pipeline.streams import showing

        options = ForwardOptions(
            intake=intake,
            table=checked(rules, intake),
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
            waiting = client.show(intake).visible
            if create:
                create_queues(client, rules, receives_max=receives_max)
        totals = {intake: None if continuous else waiting}
        with (
            spark_session("route", cluster) as spark,
            stop_on_signals() as stop,
            showing(totals, what="messages") as report,
        ):
            done = forward(spark, options, report=report, stop=stop)
    print(f"{intake}: {done} messages forwarded")


def _read(path: Path) -> RoutingTable:
    """Read a routing table; raises ``UsageError``."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=RoutingTable)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--table {path}: no routing table: {error}") from error

"""``veilmq pipeline replay``."""

from datetime import UTC, datetime
from typing import Annotated

from cyclopts import Parameter

from veilmq.cli.options import Endpoint, whole_number
from veilmq.cli.pipeline_options import BadRows, ClusterOptions, job, spark_session
from veilmq.cli.stopping import stop_on_signals
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import REPLAY_BATCH_MESSAGES

_HERE = ClusterOptions()


def replay(
    to: Annotated[str, Parameter(help="Name of the destination queue.")],
    /,
    *,
    table: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the archive.")],
    run: Annotated[str, Parameter(metavar="NAME", help="Name of the replay; the same name continues it.")],
    queue: Annotated[
        tuple[str, ...],
        Parameter(
            name="--queue",
            negative=(),
            show_default=False,
            metavar="QUEUE",
            help="Only messages of this queue; may be repeated.",
        ),
    ] = (),
    since: Annotated[
        datetime | None,
        Parameter(show_default=False, metavar="TIME", help="Only messages sent at this time (UTC) or later."),
    ] = None,
    until: Annotated[
        datetime | None,
        Parameter(show_default=False, metavar="TIME", help="Only messages sent before this time (UTC)."),
    ] = None,
    where: Annotated[
        str,
        Parameter(show_default=False, metavar="SQL", help="Only messages that match this condition on the columns."),
    ] = "",
    id: Annotated[  # noqa: A002 - the name of the option
        tuple[str, ...],
        Parameter(
            name="--id",
            negative=(),
            show_default=False,
            metavar="ID",
            help="Only the message with this id; may be repeated.",
        ),
    ] = (),
    batch: Annotated[int, whole_number(REPLAY_BATCH_MESSAGES, "Approximate number of messages in a transaction.")] = (
        REPLAY_BATCH_MESSAGES.default
    ),
    bad_rows: BadRows = "fail",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Send a slice of the archive to a queue, each message once for each run.

    A job that was killed continues when it is started again with the same
    name and slice. With another name it sends the messages again.
    """
    with job("replay"):
        from veilmq.pipeline.archive import Replay, Slice
        from veilmq.pipeline.session import showing

        part = Slice(to=to, queues=queue, since=_utc(since), until=_utc(until), where=where, ids=id)
        wanted = Replay(table=table, run=run, slice=part, endpoint=endpoint, batch_messages=batch, bad_rows=bad_rows)
        with (
            spark_session("replay", cluster) as spark,
            stop_on_signals() as stop,
            showing({to: None}, what="messages") as report,
        ):
            result = wanted.send(spark, report=report, stop=stop)
    before = f", {result.before} of them earlier" if result.before else ""
    print(f"{to}: {result.messages} messages replayed{before}")


def _utc(at: datetime | None) -> datetime | None:
    """Return the instant; without a time zone it is in UTC."""
    return at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at

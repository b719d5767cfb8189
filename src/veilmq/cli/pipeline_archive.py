"""``veilmq pipeline archive``."""

import sys
import time
from typing import Annotated, Literal

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Json, whole_number
from veilmq.cli.pipeline_options import ClusterOptions, job, spark_session
from veilmq.cli.printing import print_json
from veilmq.cli.stopping import stop_on_signals
from veilmq.client.endpoint import DEFAULT_ENDPOINT
from veilmq.core.limits import (
    ARCHIVE_COMPACT_MINUTES,
    ARCHIVE_EXPIRE_DAYS,
    ARCHIVE_KEEP_H,
    CLAIM_HOLD_S,
    CLAIM_MESSAGES,
)

_HERE = ClusterOptions()


def archive(
    queues: Annotated[tuple[str, ...], Parameter(negative=(), help="Names of the queues.")],
    /,
    *,
    table: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the archive; made where there is none.")],
    checkpoint: Annotated[
        str, Parameter(metavar="DIR", show_default=False, help="Where the streams keep how far they are.")
    ] = "",
    continuous: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Go on until stopped, instead of taking what is there.")
    ] = False,
    batch: Annotated[int | None, whole_number(CLAIM_MESSAGES, "Messages of a micro-batch at most.")] = None,
    consumer: Annotated[str, Parameter(metavar="NAME", help="What the streams are to their queues.")] = "archive",
    takeover: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Take the place of another archive of these queues.")
    ] = False,
    hold: Annotated[
        int | None, whole_number(CLAIM_HOLD_S, "Seconds for which messages stay claimed when the job is down.")
    ] = None,
    on_lost_claim: Annotated[
        Literal["fail", "skip"], Parameter(help="When it was down for longer: end, or go on and log what comes twice.")
    ] = "fail",
    compact_minutes: Annotated[
        int, whole_number(ARCHIVE_COMPACT_MINUTES, "Minutes between joining small files; 0 for never.")
    ] = ARCHIVE_COMPACT_MINUTES.default,
    keep_hours: Annotated[
        int, whole_number(ARCHIVE_KEEP_H, "Hours until files that do not count any more are deleted.")
    ] = ARCHIVE_KEEP_H.default,
    expire_days: Annotated[
        int,
        whole_number(ARCHIVE_EXPIRE_DAYS, "Days after which messages leave the archive; 0 for never."),
    ] = ARCHIVE_EXPIRE_DAYS.default,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Move the messages of queues into a Parquet table, each of them once.

    A message is deleted from its queue when it is durable in the table.
    Stopped or killed, the job goes on where it was when it is started again.
    """
    with connect(endpoint) as client:
        waiting: dict[str, int | None] = {queue: client.show(queue).visible for queue in queues}
    with job("archive"):
        from veilmq.pipeline.archive import ArchiveOptions, archive
        from veilmq.pipeline.streams import showing

        options = ArchiveOptions(
            queues=queues,
            table=table,
            endpoint=endpoint,
            checkpoint=checkpoint,
            continuous=continuous,
            batch_messages=batch,
            consumer=consumer,
            takeover=takeover,
            hold_s=hold,
            on_lost_claim=on_lost_claim,
            compact_minutes=compact_minutes,
            keep_h=keep_hours,
            expire_days=expire_days,
        )
        totals = dict.fromkeys(queues) if continuous else waiting
        with (
            spark_session("archive", cluster) as spark,
            stop_on_signals() as stop,
            showing(totals, what="messages") as report,
        ):
            done = archive(spark, options, report=report, stop=stop, clock_s=time.monotonic)
    if json:
        files = {"joined": done.compaction.removed, "expired": done.expired_files, "deleted": done.deleted_files}
        print_json({"messages": done.messages, **files})
        return
    for queue, messages in done.messages.items():
        print(f"{queue}: {messages} messages archived")
    expired = f"{done.expired_files} files expired, " if expire_days else ""
    joined = f"{done.compaction.removed} small files joined, {done.deleted_files} old ones deleted"
    print(f"{expired}{joined}", file=sys.stderr)

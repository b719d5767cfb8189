"""``veilmq pipeline archive``."""

import sys
import time
from typing import Annotated, Literal

from cyclopts import Parameter

from veilmq.cli.connection import connect
from veilmq.cli.options import Endpoint, Json, whole_number
from veilmq.cli.pipeline_options import CONTINUOUS, HOLD, ON_LOST_CLAIM, ClusterOptions, job, spark_session
from veilmq.cli.printing import print_json
from veilmq.cli.stopping import stop_on_signals
from veilmq.client.transport import DEFAULT_ENDPOINT
from veilmq.core.limits import (
    ARCHIVE_COMPACT_MINUTES,
    ARCHIVE_EXPIRE_DAYS,
    ARCHIVE_KEEP_H,
    CLAIM_MESSAGES,
)

_HERE = ClusterOptions()


def archive(
    queues: Annotated[tuple[str, ...], Parameter(negative=(), help="Names of the queues.")],
    /,
    *,
    table: Annotated[str, Parameter(metavar="DIR", help="Folder or URL of the archive; created if missing.")],
    checkpoint: Annotated[
        str, Parameter(metavar="DIR", show_default=False, help="Folder or URL of the checkpoints.")
    ] = "",
    continuous: Annotated[bool, CONTINUOUS] = False,
    batch: Annotated[int | None, whole_number(CLAIM_MESSAGES, "Maximum number of messages in a micro-batch.")] = None,
    consumer: Annotated[str, Parameter(metavar="NAME", help="Consumer name of the streams.")] = "archive",
    takeover: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Replace another archive job of these queues.")
    ] = False,
    hold: Annotated[int | None, HOLD] = None,
    on_lost_claim: Annotated[Literal["fail", "skip"], ON_LOST_CLAIM] = "fail",
    compact_minutes: Annotated[
        int, whole_number(ARCHIVE_COMPACT_MINUTES, "Minutes between compactions of small files; 0: never.")
    ] = ARCHIVE_COMPACT_MINUTES.default,
    keep_hours: Annotated[
        int, whole_number(ARCHIVE_KEEP_H, "Hours until files that left the table are deleted.")
    ] = ARCHIVE_KEEP_H.default,
    expire_days: Annotated[
        int,
        whole_number(ARCHIVE_EXPIRE_DAYS, "Days after which messages leave the table; 0: never."),
    ] = ARCHIVE_EXPIRE_DAYS.default,
    json: Json = False,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    cluster: ClusterOptions = _HERE,
) -> None:
    """Move the messages of queues into a Delta table, each exactly once.

    A message is deleted from its queue after it is durable in the table.
    A job that was stopped or killed continues when it is started again.
    """
    with connect(endpoint) as client:
        visible: dict[str, int | None] = {queue: client.show(queue).visible for queue in queues}
    with job("archive"):
        from veilmq.pipeline.archive import ArchiveOptions, archive
        from veilmq.pipeline.session import showing

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
        totals = dict.fromkeys(queues) if continuous else visible
        with (
            spark_session("archive", cluster) as spark,
            stop_on_signals() as stop,
            showing(totals, what="messages") as report,
        ):
            result = archive(spark, options, report=report, stop=stop, clock_s=time.monotonic)
    if json:
        files = {"joined": result.compaction.removed, "expired": result.expired_files, "deleted": result.deleted_files}
        print_json({"messages": result.messages, **files})
        return
    for queue, messages in result.messages.items():
        print(f"{queue}: {messages} messages archived")
    expired = f"{result.expired_files} files expired, " if expire_days else ""
    compacted = f"{result.compaction.removed} small files compacted, {result.deleted_files} removed files deleted"
    print(f"{expired}{compacted}", file=sys.stderr)

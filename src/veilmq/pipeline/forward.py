"""The job ``route``: an intake queue → the class queues of a routing table, each message once.

A checkpoint stores the routing table of its batches. An interrupted batch may already be published to some of the
queues, so its repetition must use the same table: a new table takes effect after the interrupted batch is finished.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

from veilmq.client.sqs import QueueClient
from veilmq.core.routing import RoutingTable
from veilmq.core.settings import SettingValue
from veilmq.pipeline.failures import PipelineFailed
from veilmq.pipeline.folders import Place
from veilmq.pipeline.forward_sink import FORMAT, ForwardSink
from veilmq.pipeline.session import activate
from veilmq.pipeline.streams import ReadOptions, Report, cleaned, read_queue, run_streams

CONSUMER = "route"
FIFO_SUFFIX = ".fifo"
_PINNED = "routing-table.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardOptions(ReadOptions):
    """What to forward, and how.

    ``checkpoint`` is the folder or URL of the stream's checkpoint, which also stores the routing table.
    ``bad_rows`` is the sink option for rows that cannot be sent.
    """

    intake: str
    table: RoutingTable
    checkpoint: str
    consumer: str = CONSUMER
    bad_rows: str = "fail"


def routed(messages: DataFrame, table: RoutingTable, *, fifo: bool) -> DataFrame:
    """Return messages with the columns of the forwarding sink; ``queue`` is the queue of their class.

    The class is ``RoutingTable.class_of`` the routing key and the number of earlier receives. In FIFO queues the id of
    a message is its deduplication id, so different messages with equal bodies are not duplicates.
    """
    keys = F.from_json(F.lit(msgspec.json.encode(table.keys).decode()), "map<string, int>")
    first_class = F.coalesce(keys[_key(table.attribute)], F.lit(table.default))
    index = F.least(first_class + F.greatest(F.col("receive_count") - 1, F.lit(0)), F.lit(len(table.classes) - 1))
    queue = F.element_at(F.array(*[F.lit(each.queue) for each in table.classes]), index + 1)
    chosen = messages.withColumn("queue", queue)
    columns = ["body", "attributes", "attribute_types", "group", "queue"]
    return chosen.withColumn("dedup_id", F.col("id")).select(*columns, "dedup_id") if fifo else chosen.select(*columns)


def _key(attribute: str) -> Column:
    """Return the text of an attribute; empty if it is missing or binary."""
    kind = F.coalesce(F.col("attribute_types").getItem(attribute), F.lit(""))
    text = F.coalesce(F.col("attributes").getItem(attribute), F.lit(""))
    return F.when(kind.startswith("Binary"), F.lit("")).otherwise(text)


def checked(table: RoutingTable, intake: str) -> RoutingTable:
    """Return ``table`` if it is valid for ``intake``; raises ``PipelineFailed``."""
    fifo = intake.endswith(FIFO_SUFFIX)
    for each in table.classes:
        if not each.queue:
            raise PipelineFailed(f"The class {each.name} of the routing table names no queue; add one to the table.")
        if each.queue == intake:
            raise PipelineFailed(f"The queue of the class {each.name} is the intake {intake} itself; name another one.")
        if each.queue.endswith(FIFO_SUFFIX) != fifo:
            raise PipelineFailed(f"{intake} and {each.queue} must both be FIFO queues or both be standard queues.")
    return table


def create_queues(
    client: QueueClient, table: RoutingTable, *, receives_max: int, settings: Mapping[str, SettingValue] | None = None
) -> None:
    """Create the class queues or change their settings: the timeout, and the next class as dead-letter queue.

    So a message that was received ``receives_max`` times in a class and not deleted moves to the next longer class. The
    last class keeps its dead-letter queue. ``settings`` are additional settings of all class queues.
    """
    longer: dict[str, SettingValue] = {}
    for each in reversed(table.classes):
        own = {**(settings or {}), "visibility_timeout_s": each.visibility_timeout_s, **longer}
        if each.queue not in client.list_queues(each.queue):
            client.create_queue(each.queue, {**own, **({"fifo": True} if each.queue.endswith(FIFO_SUFFIX) else {})})
        else:
            client.set(each.queue, own)
        longer = {"dead_letter_queue": each.queue, "receives_max": receives_max}


def forward(
    spark: SparkSession,
    options: ForwardOptions,
    *,
    report: Report = lambda name, rows: None,
    stop: threading.Event | None = None,
) -> int:
    """Forward the intake; return the number of messages. A restarted job continues where it stopped.

    Raises ``PipelineFailed``.
    """
    checked(options.table, options.intake)
    activate(spark)
    spark.dataSource.register(ForwardSink)
    stop = stop or threading.Event()
    folder = Place.at(options.checkpoint)
    previous = _pinned(folder)
    messages_before = 0
    if previous is not None and previous != options.table and _is_interrupted(folder):
        finishing = replace(options, table=previous, continuous=False)
        messages_before = _run(spark, finishing, folder, report, stop)
    if stop.is_set():
        return messages_before
    _pin(folder, options.table)
    return messages_before + _run(spark, options, folder, report, stop)


def _run(spark: SparkSession, options: ForwardOptions, folder: Place, report: Report, stop: threading.Event) -> int:
    rows = routed(read_queue(spark, options.intake, options), options.table, fifo=options.intake.endswith(FIFO_SUFFIX))
    writer = rows.writeStream.format(FORMAT).option("endpoint", options.endpoint).queryName(f"route {options.intake}")
    writer = writer.option("checkpointLocation", cleaned(folder)).option("badRows", options.bad_rows)
    writer = writer.trigger(processingTime="0 seconds") if options.continuous else writer.trigger(availableNow=True)
    return run_streams({options.intake: writer.start()}, report=report, stop=stop)[options.intake]


def _pinned(folder: Place) -> RoutingTable | None:
    content = folder.read(_PINNED)
    return None if content is None else msgspec.json.decode(content, type=RoutingTable)


def _pin(folder: Place, table: RoutingTable) -> None:
    folder.write(_PINNED, msgspec.json.encode(table))


def _is_interrupted(folder: Place) -> bool:
    """Return whether a batch was started and not finished: Spark logs starts in ``offsets``, ends in ``commits``."""
    return _last(folder / "offsets") > _last(folder / "commits")


def _last(folder: Place) -> int:
    return max((int(name) for name in folder.names() if name.isdigit()), default=-1)

"""The job ``route-table`` computes a routing table; the job ``route`` forwards messages by it, each exactly once.

A ``core.settings.RoutingTable`` assigns routing keys to timeout classes; a server can apply it as visibility rules.

``send_batch`` sends each row of a batch to the queue in its column ``queue``. Tasks stage the rows in their queues, and
the driver publishes to one queue after the other. Each queue accepts a batch of a query once. So a batch that was
published to only some queues can be repeated if its rows have the same queues again. Therefore a checkpoint stores the
routing table of its batches, and a new table takes effect only after an interrupted batch is finished.
"""

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name

from veilmq.client.sqs import QueueClient
from veilmq.core.settings import QueueSettings, RoutingTable, SettingValue, TimeoutClass
from veilmq.pipeline.cells import KeyCounts
from veilmq.pipeline.cost import classes_of
from veilmq.pipeline.estimate import RENEWALS_IN_TIMEOUT, Estimate, estimates
from veilmq.pipeline.event_log import CellStore
from veilmq.pipeline.folders import Place
from veilmq.pipeline.options import ClassOptions, ForwardOptions, TuneOptions
from veilmq.pipeline.session import PipelineFailed, Report, in_tasks, run_streams, start_stream
from veilmq.pipeline.tune import DEFAULTS, current_counts, explore_s, options_for, plain_name
from veilmq.spark.options import SinkOptions
from veilmq.spark.sink import PartitionWriter, Written, publish
from veilmq.wire.sqs.names import FIFO_SUFFIX, is_fifo

PINNED = "routing-table.json"


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
    """Return ``table``. Raises ``PipelineFailed`` if it is not valid for ``intake``."""
    from veilmq.consumer.forwarding import check_targets  # noqa: PLC0415 - tasks import this module without it
    from veilmq.consumer.forwarding_rules import RoutesError, TableRouter  # noqa: PLC0415

    try:
        check_targets(intake, TableRouter(table).targets)
    except RoutesError as error:
        raise PipelineFailed(str(error)) from error
    return table


def create_queues(client: QueueClient, table: RoutingTable, *, receives_max: int) -> None:
    """Create the class queues or change their settings: the timeout, and the next class as dead-letter queue.

    So a message that was received ``receives_max`` times without a delete moves to the next longer class. The last
    class keeps its dead-letter queue.
    """
    longer: dict[str, SettingValue] = {}
    for each in reversed(table.classes):
        own = {"visibility_timeout_s": each.visibility_timeout_s, **longer}
        if each.queue not in client.list_queues(each.queue):
            client.create_queue(each.queue, {**own, **({"fifo": True} if is_fifo(each.queue) else {})})
        else:
            client.set(each.queue, own)
        longer = {"dead_letter_queue": each.queue, "receives_max": receives_max}


def forward(
    spark: SparkSession,
    endpoint: str,
    intake: str,
    table: RoutingTable,
    options: ForwardOptions,
    *,
    report: Report = lambda name, rows: None,
    stop: threading.Event | None = None,
) -> int:
    """Forward ``intake`` by ``table``; return the number of messages. A restarted job continues where it stopped.

    Raises ``PipelineFailed``.
    """
    checked(table, intake)
    sink = SinkOptions.of({"endpoint": endpoint, "queue": COLUMN, "badRows": options.bad_rows})
    folder, new, fifo = Place.at(options.checkpoint), msgspec.json.encode(table), is_fifo(intake)
    pinned = folder.read(PINNED)
    previous = pinned or new
    started = max((int(name) for name in (folder / "offsets").names() if name.isdigit()), default=-1)

    def send(rows: DataFrame, query: str, number: int) -> None:
        nonlocal pinned
        own = previous if number <= started else new  # an interrupted batch keeps its table
        if pinned != own:
            folder.write(PINNED, own)
            pinned = own
        send_batch(sink, routed(rows, msgspec.json.decode(own, type=RoutingTable), fifo=fifo), query, number)

    name = f"route {intake}"
    start = partial(start_stream, spark, endpoint, options=options, write=send, name=name, checkpoint=folder)
    return run_streams([intake], start, report=report, stop=stop or threading.Event())[intake]


COLUMN = "queue"


def send_batch(options: SinkOptions, rows: DataFrame, query: str, number: int) -> None:
    """Send the rows of a batch to the queues in their column ``queue``, with the same ``options`` for each queue.

    Tasks stage the rows; then the driver publishes them, one queue after the other.
    """
    tasks = in_tasks(rows, partial(_stage, options, query, number))
    for queue in sorted({queue for queues in tasks for queue in queues}):
        publish(_to(options, queue), [queues[queue] for queues in tasks if queue in queues])


def _stage(
    options: SinkOptions, query: str, number: int, partition: int, batches: Iterator[pa.RecordBatch]
) -> dict[str, Written]:
    """Stage the rows of one task in their queues; return the staged rows by queue."""
    writers: dict[str, PartitionWriter] = {}
    with ExitStack() as closing:
        for batch in batches:
            queues = batch.column(COLUMN)
            rest = batch.select([name for name in batch.schema.names if name != COLUMN])
            for queue in pc.unique(queues).to_pylist():
                if queue not in writers:
                    writer = PartitionWriter(_to(options, queue), writer=query, batch=number, partition=partition)
                    writers[queue] = closing.enter_context(writer)
                writers[queue].add(rest.filter(pc.equal(queues, queue)))
        return {queue: each.finish() for queue, each in writers.items()}


def _to(options: SinkOptions, queue: str) -> SinkOptions:
    return replace(options, connection=replace(options.connection, queue=queue))


CLASSES = ClassOptions()


def route_table(
    spark: SparkSession,
    *,
    state: str,
    queue: str,
    path: Path | None = None,
    classes: ClassOptions = CLASSES,
    options: TuneOptions = DEFAULTS,
    settings: Mapping[str, QueueSettings] | None = None,
) -> RoutingTable:
    """Compute the routing table of ``queue`` from the cells of ``tune`` in ``state``; write it to ``path`` as JSON.

    The version is that of the table at ``path``, plus 1 if the content differs. Raises ``PipelineFailed`` if there is
    too little data.
    """
    counts = _counts_of_queue(current_counts(CellStore(spark, state).cells(), options), queue)
    options = options_for(counts, options, (settings or {}).get(counts[0].queue) if counts else None)
    _, found = estimates(counts, options=options)
    unnamed = routing_table_of(found, classes.classes, options)
    if unnamed is None:
        raise PipelineFailed(
            f"The queue {queue} has too few receipts in {state}: run tune again later, or correct the name or --state."
        )
    stem, ending = plain_name(queue).removesuffix(FIFO_SUFFIX), FIFO_SUFFIX if is_fifo(queue) else ""
    named = tuple(
        msgspec.structs.replace(
            each, queue=classes.queue_pattern.replace("{queue}", stem).replace("{class}", each.name) + ending
        )
        for each in unnamed.classes
    )
    table = msgspec.structs.replace(unnamed, attribute=classes.attribute, classes=named)
    return table if path is None else _written(path, table)


def _counts_of_queue(counts: list[KeyCounts], queue: str) -> list[KeyCounts]:
    """Return the counts of ``queue``, named with or without its account."""
    found = [each for each in counts if queue in {each.queue, plain_name(each.queue)}]
    names = sorted({each.queue for each in found})
    if len(names) > 1:
        raise PipelineFailed(f"Several accounts have a queue {queue}: name one of {', '.join(names)}.")
    return found


def routing_table_of(found: Mapping[str, Estimate], classes: int, options: TuneOptions) -> RoutingTable | None:
    """Return the table of the keys in ``found``, with at most ``classes``; ``None`` if no key has enough data.

    Unlisted keys belong to the longest class, because a timeout that is too short is expensive. For the same reason,
    keys whose work never ended in the log get an additional class, unless one has a timeout as long as the one to try
    for them. Keys of renewing consumers get the first class with time for three renewals.
    """
    useful = {key: each for key, each in found.items() if each.renewal_s is None and each.is_known}
    total = sum(each.first.receipts for each in useful.values())
    loads = {key: each.load(options.receives_max, weight=each.first.receipts / total) for key, each in useful.items()}
    if not loads:
        return None
    best = classes_of([*loads.values()], classes, prices=options)
    renewing = {
        key: math.ceil(RENEWALS_IN_TIMEOUT * each.renewal_s)
        for key, each in found.items()
        if each.renewal_s is not None
    }
    unfinished = {
        key: explore_s(each.first)
        for key, each in found.items()
        if each.renewal_s is None and each.first.receipts >= options.receipts_min and not each.is_known
    }
    longer_s = max(unfinished.values(), default=0)
    timeouts_s = best.timeouts_s if longer_s <= best.timeouts_s[-1] else (*best.timeouts_s, longer_s)
    last = len(timeouts_s) - 1
    keys = dict(zip(loads, best.members, strict=True))
    for key, minimum_s in (renewing | unfinished).items():
        keys[key] = next((index for index, each in enumerate(timeouts_s) if each >= minimum_s), last)
    return RoutingTable(
        version=1,
        classes=tuple(
            TimeoutClass(name=f"class-{number}", visibility_timeout_s=timeout_s)
            for number, timeout_s in enumerate(timeouts_s, start=1)
        ),
        keys=dict(sorted((key, index) for key, index in keys.items() if key)),
        default=last,
    )


def _written(path: Path, table: RoutingTable) -> RoutingTable:
    """Write ``table`` with its version atomically, and return it."""
    if path.exists():
        before = msgspec.json.decode(path.read_bytes(), type=RoutingTable)
        table = msgspec.structs.replace(table, version=before.version)
        if table == before:
            return before
        table = msgspec.structs.replace(table, version=before.version + 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")  # not with pyarrow, whose errors contain no file name
    part.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=2) + b"\n")
    part.replace(path)
    return table

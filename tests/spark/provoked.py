"""The source with an accident at a chosen point, for the crash matrix instead of `format("veilmq")`.

Option `accident` is `POINT:NUMBER:WHAT`. The point is `claimed` (the number is bound, Spark does not know it yet) or
`reading` (a task has passed on the first part of a shard of it). WHAT is `kill-driver` (SIGKILL to the JVM and to the
program that started it), `kill-server` (option `serverpid`) or `fail` (an exception, once; option `once` names the file
that records it).
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, InputPartition, WriterCommitMessage
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from veilmq.spark.claims_reader import ClaimsStreamReader, ShardPartition
from veilmq.spark.datasource import SCHEMA, VeilmqDataSource
from veilmq.spark.options import SinkOptions, SourceOptions
from veilmq.spark.sink import QueueStreamWriter, Written, sink_options

CLAIMED = "claimed"
READING = "reading"
OWN_OPTIONS = ("accident", "serverpid", "once")


class Provoked(Exception):
    """A deliberate failure of a task."""


class ProvokedSource(VeilmqDataSource):
    """`format("provoked")`."""

    @classmethod
    def name(cls) -> str:
        return "provoked"

    def schema(self) -> str:
        """Return the columns of a message."""
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if "accident" not in self.options:
            return super().streamReader(schema)
        given = {name.lower(): text for name, text in self.options.items()}
        own = {name: given.pop(name, "") for name in OWN_OPTIONS}
        return ProvokedReader(SourceOptions.of(given), own)


class ProvokedReader(ClaimsStreamReader):
    """The real reader with the accident."""

    def __init__(self, options: SourceOptions, own: Mapping[str, str]) -> None:
        """`own` are the options of the accident."""
        super().__init__(options)
        self._own = own

    def __reduce__(self) -> Any:
        """Pickle only the options."""
        return ProvokedReader, (self._options, self._own)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Claim, and then perhaps fail."""
        end = super().latestOffset(start, limit)
        if end != start:
            reach(self._own, CLAIMED, end["n"])
        return end

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read, and perhaps fail before the end."""
        assert isinstance(partition, ShardPartition)
        for count, batch in enumerate(super().read(partition)):
            yield batch.slice(0, 1)
            if not count and not partition.shard:
                reach(self._own, READING, partition.number)
            yield batch.slice(1)


def reach(own: Mapping[str, str], point: str, number: int) -> None:
    """Cause the accident of the options `own`, if it is for this point and batch."""
    where, _, rest = own["accident"].partition(":")
    when, _, what = rest.partition(":")
    if (where, when) == (point, str(number)):
        ACCIDENTS[what](own)


def kill_driver(own: Mapping[str, str]) -> None:
    """Kill the driver of this worker, with all its child processes, as a power failure would."""
    ancestors = psutil.Process().parents()
    java = next(index for index, process in enumerate(ancestors) if "java" in process.name())
    for process in (ancestors[java], ancestors[java + 1]):
        process.kill()
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_server(own: Mapping[str, str]) -> None:
    process = psutil.Process(int(own["serverpid"]))
    process.kill()


def _fail(own: Mapping[str, str]) -> None:
    try:
        Path(own["once"]).touch(exist_ok=False)
    except FileExistsError:
        return
    raise Provoked


ACCIDENTS: dict[str, Callable[[Mapping[str, str]], None]] = {
    "kill-driver": kill_driver,
    "kill-server": _kill_server,
    "fail": _fail,
}

# The sink with an accident at a chosen point, for tests instead of `format("veilmq")`.
#
# Option `accident` is `POINT:NUMBER:WHAT` with the number of a batch. The point is `staged` (a task has staged all its
# rows, without a reply to Spark) or `published` (the batch is in the queue, Spark does not know it yet). WHAT is as for
# `provoked`.


STAGED = "staged"
PUBLISHED = "published"


class ProvokedSink(VeilmqDataSource):
    """`format("provoked_sink")`."""

    @classmethod
    def name(cls) -> str:
        return "provoked_sink"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        given = {name.lower(): text for name, text in self.options.items()}
        own = {name: given.pop(name, "") for name in OWN_OPTIONS}
        return ProvokedWriter(sink_options(given, schema, overwrite=overwrite, stream=True), own)


class ProvokedWriter(QueueStreamWriter):
    """The real writer with the accident."""

    def __init__(self, options: SinkOptions, own: Mapping[str, str]) -> None:
        """`own` are the options of the accident."""
        super().__init__(options)
        self._own = own

    def write(self, iterator: Iterator[Any]) -> Written:
        """Stage, and then perhaps fail."""
        written = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            reach(self._own, STAGED, written.batch)
        return written

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish, and then perhaps fail."""
        super().commit(messages, batchId)
        reach(self._own, PUBLISHED, batchId)

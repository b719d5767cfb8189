"""Streaming queries: from a queue into a folder that stores each batch once, and from a queue to a queue.

`python -m tests.spark.stream KIND PLAN` runs one as a program of its own, to be killed; KIND is the name of its class,
PLAN its fields as JSON.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.provoked import ProvokedSink, ProvokedSource
from tests.spark.session import session

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A query with its checkpoint in `folder`."""

    endpoint: str
    folder: str
    options: dict[str, str] = field(default_factory=dict)
    write_options: dict[str, str] = field(default_factory=dict)
    master: str = "local[2]"

    def start(self, spark: SparkSession) -> StreamingQuery:
        raise NotImplementedError

    def run(self, spark: SparkSession) -> StreamingQuery:
        """Run the query to its end; raises its error."""
        query = self.start(spark)
        try:
            assert query.awaitTermination(PATIENCE_S), "the query does not end"
        finally:
            query.stop()
        return query

    def program(self) -> subprocess.Popen[bytes]:
        log = Path(self.folder).with_suffix(f".{os.urandom(2).hex()}.log")
        with log.open("wb") as output:
            plan = json.dumps(dataclasses.asdict(self))
            command = [sys.executable, "-m", "tests.spark.stream", type(self).__name__, plan]
            return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream(Plan):
    """A query from `queue` into `folder`; kills its driver after batch `kill_after`, fails after `fail_after`."""

    queue: str
    available_now: bool = True
    kill_after: int | None = None
    fail_after: int | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        spark.dataSource.register(ProvokedSource)
        out = Path(self.folder) / "out"
        out.mkdir(parents=True, exist_ok=True)
        reader = spark.readStream.format("provoked").options(endpoint=self.endpoint, queue=self.queue, **self.options)
        writer = reader.load().writeStream.foreachBatch(KeptOnce(out, self.kill_after, self.fail_after))
        writer = writer.options(checkpointLocation=str(Path(self.folder) / "checkpoint"), **self.write_options)
        return (writer.trigger(availableNow=True) if self.available_now else writer).start()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward(Plan):
    """A query from `source` to `target` that ends with the initial messages."""

    source: str
    target: str

    def start(self, spark: SparkSession) -> StreamingQuery:
        for source in (ProvokedSource, ProvokedSink):
            spark.dataSource.register(source)
        reader = spark.readStream.format("provoked").options(endpoint=self.endpoint, **self.options)
        frame = reader.load(self.source).select("body", "attributes", "group")
        writer = frame.writeStream.format("provoked_sink").options(endpoint=self.endpoint, **self.write_options)
        writer = writer.option("checkpointLocation", str(Path(self.folder) / "checkpoint"))
        return writer.trigger(availableNow=True).start(self.target)


class KeptOnce:
    """A sink that stores each batch once: a batch is complete when it is visible, and then skipped."""

    def __init__(self, out: Path, kill_after: int | None, fail_after: int | None) -> None:
        """Keep in `out`."""
        self._out = out
        self._kill_after = kill_after
        self._fail_after = fail_after

    def __call__(self, batch: DataFrame, number: int) -> None:
        place = self._out / str(number)
        if not place.exists():
            making = tempfile.mkdtemp(dir=self._out.parent, prefix="making-")
            batch.write.mode("overwrite").parquet(making)
            Path(making).rename(place)
        assert number != self._fail_after, "fails on purpose"
        if number == self._kill_after:
            for child in psutil.Process().children():
                child.kill()  # the JVM
            os.kill(os.getpid(), signal.SIGKILL)


def kept(folder: Path, column: str = "body", *, batch: int | None = None) -> list[str]:
    """Return the values of `column` that the stream of `folder` has stored, of all batches or of one."""
    files = sorted((folder / "out").glob(f"{'*' if batch is None else batch}/*.parquet"))
    return [value for file in files for value in pq.read_table(file, columns=[column])[column].to_pylist()]


def main() -> None:
    """Run the plan of the command line."""
    kind, fields = sys.argv[1:]
    plan: Plan = {"Stream": Stream, "Forward": Forward}[kind](**json.loads(fields))
    folder = Path(tempfile.mkdtemp(dir=plan.folder, prefix="spark-"))
    try:
        with session(folder, master=plan.master) as spark:
            plan.run(spark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

"""Shared by all jobs: the check for Java, Spark sessions, streams, and short error messages.

A session runs in this process, on a cluster, under spark-submit, or on a Spark Connect server. Spark's errors contain
the tracebacks of all processes involved; ``reason_of`` extracts the last message.
"""

import os
import pickle
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from veilmq.pipeline.folders import Place
from veilmq.pipeline.options import Cluster, ReadOptions

_RAISED = re.compile(r"(?:: |Caused by: )?(?:\w+\.)*([A-Z]\w*): (\S.*)")  # of Python or Java
_PLAN = "=== Streaming Query ==="  # followed by a description of the query

T = TypeVar("T")


class PipelineFailed(Exception):
    """The job cannot be done; ``str()`` is the reason and the remedy."""


def reason_of(error: BaseException | str) -> str:
    """Return the message of the last exception in the tracebacks, with its type unless it is one of veilmq's."""
    lines = str(error).partition(_PLAN)[0].splitlines()
    raised = [(line, found) for line in lines if (found := _RAISED.match(line))]
    if not raised:
        return next((line.strip() for line in lines if line.strip()), type(error).__name__)
    line, found = raised[-1]
    return found[2] if line.startswith("veilmq.") else f"{found[1]}: {found[2]}"


VERSION_MIN = 17
TIMEOUT_S = 20

MISSING = (
    f"Spark needs Java {VERSION_MIN} or newer: install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@21; elsewhere: https://adoptium.net), or set JAVA_HOME"
)

_VERSION = re.compile(r'version "(\d+)')


def has_java() -> bool:
    """Return whether the Java in ``JAVA_HOME``, or else in ``PATH``, is new enough for Spark."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None:
        return False
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):  # without Java, macOS has a stub `java` that fails
        return False
    found = _VERSION.search(done.stderr)
    return found is not None and int(found[1]) >= VERSION_MIN


LOCAL = "local[*]"

SETTINGS = {"spark.sql.execution.arrow.pyspark.enabled": "true", "spark.sql.session.timeZone": "UTC"}
"""Settings that every job requires."""

_OWN = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "veilmq.spark.daemon",
}
_S3A = {
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
}
"""Make Hadoop read ``s3://`` like its own scheme ``s3a://``."""

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),  # TCP delays each task by 40 ms
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
_LOGGING = files("veilmq.pipeline") / "log4j2.properties"
CONNECT_S = 10.0
"""The timeout for a Spark Connect server; by default its client retries for minutes."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit


@contextmanager
def open_session(name: str, cluster: Cluster) -> Iterator[SparkSession]:
    """Run Spark as the application ``name`` while the context lasts.

    Raises ``PipelineFailed`` if Spark does not start, and for Spark's errors inside the context.
    """
    with tempfile.TemporaryDirectory(prefix="veilmq-spark-") as folder, as_file(_LOGGING) as log_settings:
        try:
            session = _connect(cluster) if cluster.remote else _start(name, cluster, Path(folder), log_settings)
        except (PySparkException, PySparkRuntimeError, Py4JJavaError) as error:
            where = cluster.remote or cluster.master or "this process"
            reason = f"{reason_of(error).removesuffix('.')}. Check --master or --remote, and Spark's log (--verbose)."
            raise PipelineFailed(f"Spark does not start on {where}: {reason}") from error
        for setting, value in SETTINGS.items():
            session.conf.set(setting, value)
        try:
            yield session
        except (PySparkException, Py4JJavaError) as error:
            raise PipelineFailed(reason_of(error)) from error
        finally:
            session.stop()


def check_java() -> None:
    """Raise ``PipelineFailed``, with what to install, if there is no suitable Java."""
    if not has_java():
        raise PipelineFailed(f"{MISSING}.")


def _connect(cluster: Cluster) -> SparkSession:
    remote = cluster.remote
    if not remote.startswith("local"):
        import grpc  # noqa: PLC0415 - needed only for Spark Connect
        from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

        channel = DefaultChannelBuilder(remote).toChannel()
        try:
            grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
        except grpc.FutureTimeoutError as error:
            raise PipelineFailed(
                f"No Spark Connect server answers at {remote} within {CONNECT_S:g} s; start one "
                "(start-connect-server.sh), or give the URL of another one with --remote."
            ) from error
        finally:
            channel.close()
    return SparkSession.builder.remote(remote).config(map=cluster.settings).getOrCreate()


def _start(name: str, cluster: Cluster, folder: Path, log_settings: Path) -> SparkSession:
    submitted = _SUBMITTED in os.environ
    if not submitted:
        check_java()
    master = cluster.master or ("" if submitted else LOCAL)
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    # Hadoop accesses S3 with the environment variables of pyarrow and deltalake.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    s3a = {"endpoint": endpoint, "endpoint.region": region, "path.style.access": "true" if endpoint else None}
    settings = _OWN | _S3A | {f"spark.hadoop.fs.s3a.{name}": value for name, value in s3a.items() if value}
    if master.startswith("local"):
        settings |= _LOCAL
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not submitted:
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        if not cluster.verbose:
            settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log_settings}"
    return builder.config(map={**settings, **cluster.settings}).getOrCreate()


POLL_S = 0.5
BATCH_S = 60.0
"""The time that a stopped stream gets to finish its batch."""

Report = Callable[[str, int], None]
"""Called with the name of a stream and the number of rows processed in this run."""


def start_stream(
    spark: SparkSession,
    endpoint: str,
    queue: str,
    options: ReadOptions,
    write: Callable[[DataFrame, str, int], None],
    *,
    name: str,
    checkpoint: Place,
) -> StreamingQuery:
    """Process ``queue`` in batches until stopped; without ``continuous``, only the messages that are available now.

    The driver calls ``write`` with the batch, the query's id and the batch's number. A repeated batch has the same two.
    """
    # A kill while the first offset is written may leave only its temporary file; Spark refuses such a folder.
    offsets = checkpoint / "offsets"
    names = offsets.names()
    if not any(name[0].isdecimal() for name in names):
        for temporary in [name for name in names if name.startswith(".")]:
            offsets.files.delete_file(temporary)

    # A kill before that leaves a claim, which the id of the query names. Spark takes this id from the file.
    metadata = checkpoint.read("metadata")
    if metadata is None:
        checkpoint.write("metadata", metadata := msgspec.json.encode({"id": str(uuid.uuid4())}))
    query: str = msgspec.json.decode(metadata)["id"]

    options_by_name: dict[str, str | bool | int | None] = {
        "endpoint": endpoint,
        "queue": queue,
        "stream": query,
        "consumer": options.consumer,
        "takeover": options.takeover,
        "maxMessagesPerBatch": options.batch_messages,
        "hold": options.hold_s,
        "onLostClaim": options.on_lost_claim,
    }
    present = {name: value for name, value in options_by_name.items() if value is not None}
    messages = spark.readStream.format("veilmq").options(**present).load()
    writer = messages.writeStream.foreachBatch(lambda batch, number: write(batch, query, number)).queryName(name)
    trigger = writer.trigger(processingTime="0 seconds") if options.continuous else writer.trigger(availableNow=True)
    started = trigger.option("checkpointLocation", checkpoint.location).start()
    if str(started.id) != query:
        started.stop()
        raise PipelineFailed(f"Another job has started with the checkpoint {checkpoint.location} at the same moment.")
    return started


def in_tasks(rows: DataFrame, work: Callable[[int, Iterator[pa.RecordBatch]], T]) -> list[T]:
    """Call ``work`` with the number and the rows of each partition, in a task, and return the results.

    A task may run several times; there is one result for each partition.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None, "called only in tasks"
        result = work(context.partitionId(), batches)
        deque(batches, maxlen=0)  # Spark waits until all rows are read
        yield pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})

    return [pickle.loads(row.result) for row in rows.mapInArrow(run, "result binary").collect()]


def run_streams(
    names: Sequence[str],
    start: Callable[[str], StreamingQuery],
    *,
    report: Report,
    stop: threading.Event,
    every: Callable[[], None] = lambda: None,
) -> dict[str, int]:
    """Start a stream for each name; return the number of rows that each has processed when all end or ``stop`` is set.

    ``every`` is called about twice a second. Raises ``PipelineFailed`` if a stream does not start or fails; the others
    are then stopped.
    """
    queries: dict[str, StreamingQuery] = {}
    rows = dict.fromkeys(names, 0)
    batches = dict.fromkeys(names, -1)  # the last counted batch: Spark reports idle batches again

    def count(*, stopping: bool = False) -> bool:
        """Count new rows; return whether a stream runs. Raises ``PipelineFailed`` unless ``stopping``."""
        running = False
        for name, query in queries.items():
            running = query.isActive or running
            if not (query.isActive or stopping) and (error := query.exception()) is not None:
                raise PipelineFailed(f"{name}: {reason_of(error)}") from error
            for progress in query.recentProgress:
                if progress.batchId > batches[name] and progress.numInputRows > 0:
                    batches[name] = progress.batchId
                    rows[name] += progress.numInputRows  # Spark Connect reports it too, by source
            report(name, rows[name])
        return running

    try:
        for name in rows:
            queries[name] = start(name)
        while count() and not stop.wait(POLL_S):
            every()
        until_s = time.monotonic() + BATCH_S
        # A stop would interrupt a running batch.
        running = [query for query in queries.values() if query.isActive]
        while time.monotonic() < until_s and any(each.isActive and each.status["isDataAvailable"] for each in running):
            time.sleep(POLL_S / 5)
        count(stopping=True)  # a failure now is expected: the source may be stopping too
        return rows
    finally:
        for query in queries.values():
            query.stop()

"""The Spark session of a job: in this process, on a cluster, by spark-submit, or on a Spark Connect server."""

import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.errors.exceptions.base import PySparkRuntimeError
from pyspark.sql import SparkSession

from veilmq.pipeline.failures import PipelineFailed, reason_of
from veilmq.spark.java import MISSING, has_java

LOCAL = "local[*]"

SETTINGS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
"""Settings that every job requires."""

_OWN = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "veilmq.pipeline.quiet_daemon",
}
_S3A = {
    "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.s3.impl": "org.apache.hadoop.fs.s3a.S3A",
}
"""With these settings Hadoop reads ``s3://`` as its own scheme ``s3a://``."""

_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),  # TCP delays each task by 40 ms
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
}
ANSWER_S = 10.0
"""Seconds to wait for a Spark Connect server; by default its client retries for minutes."""

_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # set by spark-submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Where a job runs: ``master`` as for spark-submit, or ``remote``, the URL of a Spark Connect server.

    The default is the master chosen by spark-submit, else this process. ``settings`` are Spark settings by name.
    ``verbose`` keeps Spark's own logging.
    """

    master: str = ""
    remote: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False


@contextmanager
def open_session(name: str, cluster: Cluster) -> Iterator[SparkSession]:
    """Run Spark inside the context, as the application ``name``.

    Raises ``PipelineFailed`` if Spark does not start, and for errors of Spark inside the context.
    """
    with tempfile.TemporaryDirectory(prefix="veilmq-spark-") as folder, as_file(_log_settings()) as log_settings:
        try:
            session = _connect(cluster) if cluster.remote else _start(name, cluster, Path(folder), log_settings)
        except (PySparkException, PySparkRuntimeError) as error:
            where = cluster.remote or cluster.master or "this process"
            raise PipelineFailed(f"Spark does not start on {where}: {str(error).splitlines()[0]}") from error
        for setting, value in SETTINGS.items():
            session.conf.set(setting, value)
        try:
            yield session
        except PySparkException as error:
            raise PipelineFailed(reason_of(error)) from error
        finally:
            session.stop()


def check_java() -> None:
    """Raise ``PipelineFailed``, with what to install, if there is no suitable Java."""
    if not has_java():
        raise PipelineFailed(f"{MISSING}.")


def activate(session: SparkSession) -> None:
    """Make ``session`` the active session of this thread, in which the JVM looks up registered formats.

    Spark does so itself in the thread that creates the session, and when a DataFrame is created from Python values.
    """
    session.createDataFrame([], "nothing int")


def _connect(cluster: Cluster) -> SparkSession:
    if not cluster.remote.startswith("local"):
        _check_answer(cluster.remote)
    builder = SparkSession.builder.remote(cluster.remote)
    for name, value in cluster.settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _check_answer(remote: str) -> None:
    """Raise ``PipelineFailed`` if no server answers at ``remote``."""
    import grpc  # noqa: PLC0415 - needed only for Spark Connect
    from pyspark.sql.connect.client import DefaultChannelBuilder  # noqa: PLC0415

    channel = DefaultChannelBuilder(remote).toChannel()
    try:
        grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
    except grpc.FutureTimeoutError as error:
        raise PipelineFailed(
            f"No Spark Connect server answers at {remote} within {ANSWER_S:g} s; start one (start-connect-server.sh), "
            "or give the URL of another one with --remote."
        ) from error
    finally:
        channel.close()


def _start(name: str, cluster: Cluster, folder: Path, log_settings: Path) -> SparkSession:
    submitted = _SUBMITTED in os.environ
    if not submitted:
        check_java()
    master = cluster.master or ("" if submitted else LOCAL)
    builder = SparkSession.builder.appName(name)
    if master:
        builder = builder.master(master)
    settings = _OWN | _s3a()
    if master.startswith("local"):
        settings |= _LOCAL
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if not submitted:
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        settings["spark.sql.warehouse.dir"] = str(folder / "warehouse")
        if not cluster.verbose:
            settings["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile={log_settings}"
    for setting, value in {**settings, **cluster.settings}.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()


def _s3a() -> dict[str, str]:
    """Return the settings by which Hadoop accesses S3 with the environment variables of pyarrow and deltalake."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    found = {"endpoint": endpoint, "endpoint.region": region, "path.style.access": "true" if endpoint else None}
    return _S3A | {f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items() if value}


def _log_settings() -> Traversable:
    return files("veilmq.pipeline") / "log4j2.properties"

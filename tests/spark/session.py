"""The one Spark session of a test process, in local mode."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
WORKERS = Path(__file__).with_name("workers")
CONFIGURATION = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # for short processes
    "spark.driver.memory": "1g",
    "spark.log.level": "ERROR",
    "spark.python.unix.domain.socket.enabled": "true",  # as docs/spark.md advises
    "spark.sql.codegen.wholeStage": "false",  # compiling would take longer than a test's few rows
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def session(folder: Path, *, master: str = "local[2]") -> Iterator[SparkSession]:
    """Run Spark inside the context, with `folder` for its own files."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers' Python; Spark's default is any python3
    paths = (ROOT, ROOT / "src", WORKERS)  # for the workers: the tested code, and sitecustomize
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    builder = SparkSession.builder.master(master).appName("veilmq tests")
    folders = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
    for name, value in (CONFIGURATION | folders).items():
        builder = builder.config(name, value)
    running = builder.getOrCreate()
    try:
        yield running
    finally:
        running.stop()

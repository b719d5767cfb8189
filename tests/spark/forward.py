"""One streaming query from a queue to a queue: `python -m tests.spark.forward PLAN` runs it as a program, to be killed.

PLAN is JSON, the fields of `Forward`.
"""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.provoked import ProvokedSink, ProvokedSource
from tests.spark.session import session

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """A query that ends when it has what was in `source` at its start. `folder` has its checkpoint."""

    endpoint: str
    source: str
    target: str
    folder: str
    options: dict[str, str] = field(default_factory=dict)
    write_options: dict[str, str] = field(default_factory=dict)
    master: str = "local[2]"

    def run(self, spark: SparkSession) -> None:
        """Run it to its end; raises what it fails with."""
        for source in (ProvokedSource, ProvokedSink):
            spark.dataSource.register(source)
        reader = spark.readStream.format("provoked").options(endpoint=self.endpoint, **self.options)
        frame = reader.load(self.source).select("body", "attributes", "group")
        writer = frame.writeStream.format("provoked_sink").options(endpoint=self.endpoint, **self.write_options)
        writer = writer.option("checkpointLocation", str(Path(self.folder) / "checkpoint"))
        query = writer.trigger(availableNow=True).start(self.target)
        try:
            assert query.awaitTermination(PATIENCE_S), "the query does not end"
        finally:
            query.stop()

    def program(self) -> subprocess.Popen[bytes]:
        log = Path(self.folder).with_suffix(f".{os.urandom(2).hex()}.log")
        with log.open("wb") as output:
            command = [sys.executable, "-m", "tests.spark.forward", json.dumps(dataclasses.asdict(self))]
            return subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)


def main() -> None:
    """Run the plan of the command line."""
    forward = Forward(**json.loads(sys.argv[1]))
    folder = Path(tempfile.mkdtemp(dir=forward.folder, prefix="spark-"))
    try:
        with session(folder, master=forward.master) as spark:
            forward.run(spark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

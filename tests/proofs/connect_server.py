"""A Spark Connect server on this machine: a process that shares nothing with its clients but the disk."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

HOME = Path(pyspark.__file__).parent
MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_S_MAX = 120.0
SETTINGS = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
_STARTED = re.compile(r"Spark Connect server started at: (\S+:\d+)")


class ConnectServer:
    """A context manager: the server runs inside it, at ``remote``, and works in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """`folder` has its log, and is where it works: not where its clients do."""
        self._folder, self._log = folder, folder / "server.log"
        self.remote = ""

    def __enter__(self) -> Self:
        """Start it; returns when it says at which port it listens."""
        self._folder.mkdir()
        settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
        command = [str(HOME / "bin" / "spark-submit"), "--class", MAIN, "--master", "local[2]", *settings]
        environment = os.environ | {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, env=environment, stdout=log, stderr=log)
        deadline_s = time.monotonic() + START_S_MAX
        while (started := _STARTED.search(self.said())) is None:
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline_s, self.said()
            time.sleep(0.1)
        self.remote = f"sc://{started[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()

    def said(self) -> str:
        """Return its log."""
        return self._log.read_text(errors="replace")

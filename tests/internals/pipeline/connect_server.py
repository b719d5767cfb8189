"""A Spark Connect server on this machine: a process that shares nothing with its clients but the disk."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark
import pytest

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
        """`folder` is where it works: not where its clients do."""
        self._folder = folder
        self._lines: list[str] = []
        self._decided = threading.Event()  # it listens, or has ended
        self.remote = ""

    def __enter__(self) -> Self:
        """Start it; returns when it says at which port it listens."""
        self._folder.mkdir()
        settings = [word for name, value in SETTINGS.items() for word in ("--conf", f"{name}={value}")]
        command = [str(HOME / "bin" / "spark-submit"), "--class", MAIN, "--master", "local[2]", *settings]
        environment = os.environ | {"SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable}
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._listener = threading.Thread(target=self._listen, name="connect-server", daemon=True)
        self._listener.start()
        self._decided.wait(START_S_MAX)
        started = _STARTED.search(self.said())
        if started is None:
            self._end()
            pytest.fail(f"Spark Connect did not start: {self.said()}")
        self.remote = f"sc://{started[1]}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it."""
        self._end()

    def said(self) -> str:
        """Return what it has printed."""
        return "".join(self._lines)

    def _listen(self) -> None:
        """Take what it prints to its end, so that it never waits for a reader."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line)
                if _STARTED.search(line):
                    self._decided.set()
        self._decided.set()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()

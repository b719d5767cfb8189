"""A standalone Spark cluster on this machine: a master and workers as processes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

import pyspark

from tests.proofs.served import free_ports

HOME = Path(pyspark.__file__).parent
START_S_MAX = 120.0


class Standalone:
    """Run the cluster within a context; ``master`` is its URL."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder, self._workers = folder, workers
        self._processes: list[subprocess.Popen[bytes]] = []
        (port,) = free_ports(1)
        self.master = f"spark://127.0.0.1:{port}"
        self._port = port

    def __enter__(self) -> Self:
        self._folder.mkdir()
        master = "org.apache.spark.deploy.master.Master"
        self._start("master", master, "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        worker = "org.apache.spark.deploy.worker.Worker"
        for number in range(self._workers):
            place = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self._folder / f"work-{number}")]
            self._start(f"worker-{number}", worker, *place, "--cores", "1", "--memory", "1g", self.master)
        deadline_s = time.monotonic() + START_S_MAX
        while self._log("master").read_text(errors="replace").count("Registering worker") < self._workers:
            assert time.monotonic() < deadline_s, self._log("master").read_text(errors="replace")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self, name: str, main: str, *arguments: str) -> None:
        environment = os.environ | {
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with self._log(name).open("wb") as log:
            command = [str(HOME / "bin" / "spark-class"), main, *arguments]
            self._processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

"""The processes of the demonstration; all end with it."""

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from veilmq.pipeline.failures import PipelineFailed

_GUARDED = "veilmq.pipeline.demo.guarded"
_START_S_MAX = 60.0
_END_S_MAX = 20.0
_ENDPOINT = re.compile(r"at (http://\S+)")


class Processes:
    """A context manager: processes started inside it end when it exits, and when this process ends."""

    def __init__(self, logs: Path) -> None:
        """The output of the processes goes to files in ``logs``."""
        self._logs = logs
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        """Make the folder of the logs."""
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End them all, the last one first."""
        self.end(self._running[::-1])

    def start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a Python module with ``arguments``; its log is named after ``name``."""
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", _GUARDED, module, *arguments], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._running.append(process)
        return process

    def end(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """Terminate them and wait; kill those that do not end."""
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_END_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
            if process in self._running:
                self._running.remove(process)

    def serve(self, *, data: Path, events: Path) -> str:
        """Start a server that keeps ``data`` and exports ``events``; return its endpoint once it answers."""
        options = ["--host", "127.0.0.1", "--port", "0", "--admin-port", "0", "--data", str(data)]
        process = self.start(
            "server", "veilmq", "serve", *options, "--events-to", str(events), "--events-period-s", "1"
        )
        log = self._log("server")
        deadline_s = time.monotonic() + _START_S_MAX
        while time.monotonic() < deadline_s and process.poll() is None:
            if found := _ENDPOINT.search(log.read_text(encoding="utf-8", errors="replace")):
                return found[1]
            time.sleep(0.05)
        raise PipelineFailed(f"The server of the demonstration does not start; see {log}.")

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

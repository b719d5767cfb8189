"""A real server process on a data folder, to be killed and started again on the same port."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

START_S_MAX = 30.0


class ServedFolder:
    """`python -m veilmq serve` on `folder`."""

    def __init__(self, folder: Path, *options: str) -> None:
        """Choose a port; start nothing yet. `options` are more of `serve`."""
        self.folder = folder
        self._options = options
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder.with_suffix(".log")

    def start(self) -> None:
        """Start, and return when connections are accepted."""
        options = ["--data", str(self.folder), "--port", str(self.port), "--admin-port", "0", *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "veilmq", "serve", *options], stdout=log, stderr=log
            )
        deadline_s = time.monotonic() + START_S_MAX
        while not self._accepts():
            assert self._process.poll() is None, self._log.read_text(errors="replace")
            assert time.monotonic() < deadline_s, "the server does not start"
            time.sleep(0.01)

    @property
    def pid(self) -> int:
        """Return the id of its process."""
        assert self._process is not None
        return self._process.pid

    def await_end(self, within_s: float = START_S_MAX) -> None:
        """Wait until somebody else has killed it."""
        assert self._process is not None
        self._process.wait(within_s)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order, if it runs."""
        if self._process is not None:
            self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process = None

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

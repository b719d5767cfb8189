"""A server as a process: start, wait, measure, stop, kill.

Waits are bounded by a number of tries. After `running`, the process and its children have ended; only processes that
were started here are ended.
"""

import os
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TRY_EVERY_S = 0.05
TRIES = 1200
STOP_S = 20.0
SAID_BYTES = 1500


class ServerError(Exception):
    """The server did not start, or has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How to start a server, and the test for its readiness."""

    name: str
    arguments: Sequence[str]
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """CPU time so far and resident memory now, including children."""

    cpu_s: float
    rss_bytes: int


class Process:
    def __init__(self, command: Command, *, log: "tempfile._TemporaryFileWrapper[bytes]") -> None:
        self.command = command
        self._log = log
        self._popen = subprocess.Popen(
            command.arguments,
            env={**os.environ, **command.environment},
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._ps = psutil.Process(self._popen.pid)

    def wait_ready(self) -> None:
        """Wait until the server is ready; raise `ServerError` if it ends or is not ready in time."""
        for _ in range(TRIES):
            if self._popen.poll() is not None:
                raise ServerError(f"{self.command.name} ended with status {self._popen.returncode}: {self.output()}")
            if self.command.ready():
                return
            time.sleep(TRY_EVERY_S)
        raise ServerError(f"{self.command.name} was not ready after {TRIES * TRY_EVERY_S:.0f} s: {self.output()}")

    def ended(self) -> bool:
        return self._popen.poll() is not None

    def output(self) -> str:
        """Return the end of the server's output."""
        self._log.flush()
        text = Path(self._log.name).read_bytes()[-SAID_BYTES:]
        return text.decode(errors="replace").strip()

    def usage(self) -> Usage:
        cpu_s, rss_bytes = 0.0, 0
        for one in (self._ps, *self._ps.children(recursive=True)):
            times = one.cpu_times()
            cpu_s += times.user + times.system
            rss_bytes += one.memory_info().rss
        return Usage(cpu_s=cpu_s, rss_bytes=rss_bytes)

    def stop(self) -> None:
        """Terminate the process; kill it if it does not end."""
        if self._popen.poll() is None:
            self._popen.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._popen.wait(timeout=STOP_S)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to the process and its children (its own session, so no other process is affected)."""
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(timeout=STOP_S)


@contextmanager
def started(command: Command) -> Iterator[Process]:
    """Start `command` without waiting for it, and end it afterwards."""
    with tempfile.NamedTemporaryFile(prefix="bench-", suffix=".log") as log:
        process = Process(command, log=log)
        try:
            yield process
        finally:
            process.stop()


@contextmanager
def running(command: Command) -> Iterator[Process]:
    """Start `command`, wait until it is ready, and end it afterwards."""
    with started(command) as process:
        process.wait_ready()
        yield process


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Return whether `port` on loopback accepts connections."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def answers(url: str) -> bool:
    """Return whether `url` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=2.0) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False

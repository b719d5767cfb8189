"""Client programs: processes that a test talks to, and where their packages are installed.

A program writes one JSON object per line. Some are questions, `{"ask": name, "id": number, ...}`, which the test
answers with `{"id": number, "answer": any}`: only the test can move the server's clock or see parked requests. The
others are reports.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import botocore.session

from tests.conftest import need
from veilmq.testing import RunningServer

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".clients"
JAVASCRIPT = ROOT / "tests" / "clients" / "javascript"

ACTIONS = frozenset(botocore.session.get_session().get_service_model("sqs").operation_names)
"""All actions of SQS, as botocore knows them."""

Report = dict[str, Any]

_PATIENCE_S = 60.0
_HOW = "scripts/install-clients.sh installs it"


def node(*words: str) -> list[str]:
    """Return the command line that runs node; it finds the packages of scripts in the directory `JAVASCRIPT`."""
    need((INSTALLED / "javascript.stamp").exists() and shutil.which("node"), f"the npm packages ({_HOW})")
    return ["node", *words]


def python(*words: str) -> list[str]:
    """Return the command line that runs a module of tests/clients/python with only the ``packages`` installed."""
    return [sys.executable, "-S", "-P", "-m", *words]


def packages(*clients: str) -> dict[str, str]:
    """Return the environment in which ``python`` finds these clients; earlier ones take precedence."""
    for client in clients:
        need((INSTALLED / f"{client}.stamp").exists(), f"the Python packages of {client} ({_HOW})")
    return {"PYTHONPATH": os.pathsep.join(map(str, [*(INSTALLED / client for client in clients), ROOT]))}


def answers(server: RunningServer) -> dict[str, Callable[[Report], object]]:
    """Return the answers to `advance` (move the clock by `ms`) and `parked` (wait until a receive is parked)."""
    return {
        "advance": lambda report: server.advance(report["ms"]),
        "parked": lambda _: server.wait_until(lambda: server.parked == 1),
    }


class Program:
    """A context manager that runs a program, and kills it at the end if it is still running."""

    def __init__(self, words: list[str], *, endpoint: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            words,
            env={**os.environ, "VEILMQ_ENDPOINT": endpoint, "AWS_EC2_METADATA_DISABLED": "true", **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._stderr: list[str] = []
        self._readers = [threading.Thread(target=self._read_stdout), threading.Thread(target=self._read_stderr)]

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def read_report(self) -> Report | None:
        """Return the next report or question, or `None` once the program has exited successfully."""
        try:
            line = self._lines.get(timeout=_PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"the program reports nothing any more: {self.stderr}") from None
        if line is not None:
            report: Report = json.loads(line)
            return report
        assert self._process.wait(_PATIENCE_S) == 0, self.stderr
        return None

    def expect(self, kind: str, name: str) -> Report:
        """Return the next report, and check that it is the ``ask`` or ``event`` ``name``."""
        report = self.read_report()
        assert report is not None, f"the program exited before {name}: {self.stderr}"
        assert report.get(kind) == name, f"expected {name}: {report}"
        return report

    def answer(self, question: Report, answer: object = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": question["id"], "answer": answer}) + "\n")
        self._process.stdin.flush()

    def reports(self, answers: Mapping[str, Callable[[Report], object]]) -> list[Report]:
        """Answer the program's questions until it exits; return its other reports."""
        found = []
        while (report := self.read_report()) is not None:
            if "ask" in report:
                self.answer(report, answers[report["ask"]](report))
            else:
                found.append(report)
        return found

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend the program by SIGSTOP until the context ends."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Send SIGTERM; return the exit status."""
        self._process.terminate()
        return self._process.wait(_PATIENCE_S)

    @property
    def stderr(self) -> str:
        """Return what the program has written to its standard error: all of it once it has exited."""
        if self._process.poll() is not None:
            self._readers[1].join(_PATIENCE_S)
        return "".join(self._stderr)

    def _read_stdout(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        self._stderr.extend(self._process.stderr)

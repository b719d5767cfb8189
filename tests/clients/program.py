"""A client program: a process that the test talks with, and where its client is installed.

A program says one JSON object per line. Some are questions, `{"ask": what, "id": number, ...}`, to be answered by an
`{"id": number, "answer": any}`: only the test can move the server's clock or see who waits. Others are reports.
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
    """Return the words that run node, which finds the packages from within the folder `JAVASCRIPT`."""
    need((INSTALLED / "javascript.stamp").exists() and shutil.which("node"), f"the npm packages ({_HOW})")
    return ["node", *words]


def python(*words: str) -> list[str]:
    """Return the words that run a module of tests/clients/python, where only what ``packages`` returns is installed."""
    return [sys.executable, "-S", "-P", "-m", *words]


def packages(*clients: str) -> dict[str, str]:
    """Return the environment in which ``python`` finds these clients; the first one's version of a package counts."""
    for client in clients:
        need((INSTALLED / f"{client}.stamp").exists(), f"the Python packages of {client} ({_HOW})")
    return {"PYTHONPATH": os.pathsep.join(map(str, [*(INSTALLED / client for client in clients), ROOT]))}


def answers(server: RunningServer) -> dict[str, Callable[[Report], object]]:
    """Return what a server can be asked to do: `advance` its clock by `ms`, and wait until a receive is `parked`."""
    return {
        "advance": lambda report: server.advance(report["ms"]),
        "parked": lambda _: server.wait_until(lambda: server.parked == 1),
    }


class Program:
    """A context manager: the program runs inside it, and is killed at the end if it has not ended by itself."""

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
        self._said: queue.Queue[str | None] = queue.Queue()
        self._complaints: list[str] = []
        self._readers = [threading.Thread(target=self._listen), threading.Thread(target=self._note_complaints)]

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

    def hear(self) -> Report | None:
        """Return what it says next, `None` when it has ended well; fails with its own words when it has not."""
        try:
            line = self._said.get(timeout=_PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"it says nothing any more: {self.complaints}") from None
        if line is not None:
            report: Report = json.loads(line)
            return report
        assert self._process.wait(_PATIENCE_S) == 0, self.complaints
        return None

    def expect(self, kind: str, name: str) -> Report:
        """Return what it says next, an ``ask`` or ``event`` of this name; fails when it says something else."""
        report = self.hear()
        assert report is not None, f"it ended before {name}: {self.complaints}"
        assert report.get(kind) == name, f"not {name}: {report}"
        return report

    def answer(self, question: Report, answer: object = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": question["id"], "answer": answer}) + "\n")
        self._process.stdin.flush()

    def reports(self, answers: Mapping[str, Callable[[Report], object]]) -> list[Report]:
        """Answer its questions by name until it ends; returns what it said besides."""
        found = []
        while (report := self.hear()) is not None:
            if "ask" in report:
                self.answer(report, answers[report["ask"]](report))
            else:
                found.append(report)
        return found

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it stand still, by SIGSTOP; it goes on at the end."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def terminate(self) -> int:
        """Ask it to end, as SIGTERM does; returns its exit status."""
        self._process.terminate()
        return self._process.wait(_PATIENCE_S)

    @property
    def complaints(self) -> str:
        """Return what it wrote to its standard error: all of it when it has ended, else so far."""
        if self._process.poll() is not None:
            self._readers[1].join(_PATIENCE_S)
        return "".join(self._complaints)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(line)
        self._said.put(None)

    def _note_complaints(self) -> None:
        assert self._process.stderr is not None
        self._complaints.extend(self._process.stderr)

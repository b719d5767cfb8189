"""Client programs: processes that exchange JSON objects with the test, one per line.

A program writes reports, and calls of the test, `{"ask": name, "id": number, ...}`, with the reply
`{"id": number, "answer": any}`: only the test can move the server's clock or see parked polls.
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
from typing import Any, Self

import botocore.session

from tests.conftest import need
from veilmq.testing import RunningServer

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".clients"
JAVASCRIPT = ROOT / "tests" / "clients" / "javascript"

ACTIONS = frozenset(botocore.session.get_session().get_service_model("sqs").operation_names)
"""All actions of SQS in botocore's model."""

Report = dict[str, Any]

_PATIENCE_S = 60.0
_HOW = "scripts/install-clients.sh installs it"


def node(*words: str) -> list[str]:
    """Return a command of node, which finds its packages from the folder `JAVASCRIPT`."""
    need((INSTALLED / "javascript.stamp").exists() and shutil.which("node"), f"the npm packages ({_HOW})")
    return ["node", *words]


def python(*words: str) -> list[str]:
    """Return the command of a module of tests/clients/python, in which only ``packages`` are installed."""
    return [sys.executable, "-S", "-P", "-m", *words]


def packages(*clients: str) -> dict[str, str]:
    """Return the environment with these clients for ``python``; earlier ones have precedence."""
    for client in clients:
        need((INSTALLED / f"{client}.stamp").exists(), f"the Python packages of {client} ({_HOW})")
    return {"PYTHONPATH": os.pathsep.join(map(str, [*(INSTALLED / client for client in clients), ROOT]))}


def answers(server: RunningServer) -> dict[str, Callable[[Report], object]]:
    """Return the calls about a server: `advance` its clock by `ms`, and wait until a receive is `parked`."""
    return {
        "advance": lambda report: server.advance(report["ms"]),
        "parked": lambda _: server.wait_until(lambda: server.parked == 1),
    }


class Program:
    """A context manager that runs a program, and kills it at the end if it still runs."""

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
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read_output), threading.Thread(target=self._read_errors)]

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def next_report(self) -> Report | None:
        """Return the next object, or `None` at the end; fail with the error output if the exit status is not 0."""
        try:
            line = self._lines.get(timeout=_PATIENCE_S)
        except queue.Empty:
            raise AssertionError(f"no output: {self.errors}") from None
        if line is not None:
            report: Report = json.loads(line)
            return report
        assert self._process.wait(_PATIENCE_S) == 0, self.errors
        return None

    def expect(self, kind: str, name: str) -> Report:
        """Return the next object, which must be an ``ask`` or ``event`` of this name."""
        report = self.next_report()
        assert report is not None, f"it ended before {name}: {self.errors}"
        assert report.get(kind) == name, f"not {name}: {report}"
        return report

    def answer(self, call: Report, result: object = None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"id": call["id"], "answer": result}) + "\n")
        self._process.stdin.flush()

    def reports(self, answers: Mapping[str, Callable[[Report], object]]) -> list[Report]:
        """Answer the calls of the program until it ends; return its reports."""
        found = []
        while (report := self.next_report()) is not None:
            if "ask" in report:
                self.answer(report, answers[report["ask"]](report))
            else:
                found.append(report)
        return found

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Suspend the program with SIGSTOP; resume it at the end."""
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
    def errors(self) -> str:
        """The standard error: all of it after the end of the program, otherwise the part so far."""
        if self._process.poll() is not None:
            self._readers[1].join(_PATIENCE_S)
        return "".join(self._errors)

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)

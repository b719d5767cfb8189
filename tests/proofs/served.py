"""A server process that can be killed and restarted on the same ports.

It is forked from a process that has imported veilmq; `PROVE=whole` starts Python each time.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from pathlib import Path
from random import SystemRandom
from typing import Self

from tests.proofs.forking import Forked

WHOLE = os.environ.get("PROVE") == "whole"
START_S_MAX = 60.0
_PORTS = 750  # of each worker of pytest-xdist, so that none binds a port while a server of another restarts
_FIRST = 20_000 + _PORTS * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16)
_ports = cycle(SystemRandom().sample(range(_FIRST, _FIRST + _PORTS), _PORTS))


class Served:
    """`python -m veilmq serve` with `options`; its output is in the file `log`."""

    def __init__(self, *options: str, log: Path) -> None:
        self.port, self.admin_port = free_ports(2)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.admin_endpoint = f"http://127.0.0.1:{self.admin_port}"
        self.options = list(options)
        self.prefix: list[str] = []  # a program that runs the server
        self.environment: dict[str, str] = {}  # in addition to that of the tests
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self.log = log

    def start(self) -> None:
        with self.log.open("ab") as log:
            command, environment = self.command(), os.environ | self.environment
            if WHOLE or command[0] != sys.executable:
                self._process = subprocess.Popen([*self.prefix, *command], stdout=log, stderr=log, env=environment)
            else:
                self._process = Forked(command, stdout=log, stderr=log, env=environment, prefix=self.prefix)
        wait_until(self._accepts, what="the server does not start")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--admin-port", str(self.admin_port), *self.options]
        return [sys.executable, "-m", "veilmq", "serve", *options]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def await_end(self, within_s: float = START_S_MAX) -> None:
        """Wait until the process has been killed by another one."""
        assert self._process is not None
        self._process.wait(within_s)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        if self._process is not None:
            self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        try:
            self._process.wait(START_S_MAX)
        finally:
            self._process.kill()
            self._process = None

    def _accepts(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text(errors="replace")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


class ServedFolder(Served):
    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__("--data", str(folder), *options, log=folder.with_suffix(".log"))
        self.folder = folder


def wait_until(
    condition: Callable[[], object], *, within_s: float = START_S_MAX, what: str = "the condition does not become true"
) -> None:
    """Poll `condition()` until it is true."""
    give_up_at_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at_s, what
        time.sleep(0.02)


StartNode = Callable[..., Served]  # takes further options of `serve`


@contextlib.contextmanager
def starting_nodes(url: str, folder: Path) -> Iterator[StartNode]:
    """Yield a function that starts nodes on one database, with logs in `folder`; stop them all at the end."""
    numbers = count()
    with contextlib.ExitStack() as nodes:
        yield lambda *options: nodes.enter_context(
            Served("--store", url, *options, log=folder / f"node-{next(numbers)}.log")
        )


def free_ports(count: int) -> list[int]:
    """Return unused ports below the ephemeral range.

    An ephemeral port could be taken before the server starts or while it is down; a client that connects to it may
    even get the port itself, and connect to itself.
    """
    found: list[int] = []
    with contextlib.ExitStack() as held:
        while len(found) < count:
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", next(_ports)))
                found.append(probe.getsockname()[1])
    return found

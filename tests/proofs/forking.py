"""Python processes that start in a tenth of the time, as forks of one process that has imported veilmq.

Each has its own memory, environment and folder, and can be killed. Only the start itself, which imports modules and
reads the locale, is that of the one process; tests of it start Python.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
REQUEST_BYTES_MAX = 1 << 18
IMPORTED = (
    *("apsw", "asyncpg", "httptools", "prometheus_client", "starlette.applications", "uvicorn", "uvloop"),
    *("uvicorn.protocols.http.h11_impl", "veilmq.cli.app", "veilmq.client", "veilmq.consumer", "veilmq.server.app"),
    *("veilmq.console.app", "veilmq.store.sqlite", "veilmq.store.postgres", "veilmq.consumer.forwarding"),
)
"""Modules imported in advance; none of them starts a thread."""
PRELOADED = ("LD_", "FAKETIME_")
"""Prefixes of variables that take effect only at the start of Python; processes that differ in one share no parent."""


class Forked:
    """A process that runs `[sys.executable, "-m", module, ...]` or `"-c"` and code: a subset of `Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str] = os.environ,
        cwd: Path | str | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        prefix: Sequence[str] = (),
    ) -> None:
        """Start it; `prefix` is a program that runs Python."""
        python, how, *_ = words
        assert (python, how in {"-m", "-c"}) == (sys.executable, True), words
        self.args = list(words)
        self.returncode: int | Any = None
        given, ours = zip(*(_end(of, place) for place, of in enumerate((stdin, stdout, stderr))), strict=True)
        self.stdin, self.stdout, self.stderr = (_opened(end, place, text=text) for place, end in enumerate(ours))
        self._status, status = socket.socketpair()
        request = {"words": self.args[1:], "env": dict(env), "cwd": str(cwd or Path.cwd())}
        preloaded = sorted((name, value) for name, value in env.items() if name.startswith(PRELOADED))
        socket.send_fds(
            _host(tuple(prefix), tuple(preloaded)), [json.dumps(request).encode()], [*given, status.fileno()]
        )
        status.close()
        for end, of in zip(given, (stdin, stdout, stderr), strict=True):
            if of in {subprocess.PIPE, subprocess.DEVNULL}:
                os.close(end)
        self._status_lines = self._status.makefile("r")
        pid = self._status_lines.readline()
        assert pid, "the parent process has ended"
        self.pid = int(pid)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = int(self._status_lines.readline())
            self._status_lines.close()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        found: list[Any] = [None, None]

        def read(place: int, pipe: IO[Any]) -> None:
            found[place] = pipe.read()
            pipe.close()

        pipes = [(place, pipe) for place, pipe in enumerate((self.stdout, self.stderr)) if pipe and not pipe.closed]
        readers = [threading.Thread(target=read, args=each) for each in pipes]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return found[0], found[1]

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, failure: object, *_: object) -> None:
        if failure is not None:  # a thread of communicate may still read a pipe, whose close would wait for it
            self.kill()
        for pipe in (self.stdout, self.stderr, self.stdin):
            if pipe:
                pipe.close()
        self.wait()


def run(words: Sequence[str], *, timeout: float, **how: Any) -> "subprocess.CompletedProcess[Any]":
    """Run a process, killed after `timeout`; return its output and exit status."""
    with Forked(words, **how) as process:
        try:
            out, err = process.communicate(timeout)
        except BaseException:
            process.kill()
            raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _end(of: int | IO[Any] | None, place: int) -> tuple[int, int | None]:
    """Return the process's end of one of its three files, and our end of a pipe."""
    match of:
        case None:
            return place, None
        case subprocess.PIPE:
            reading, writing = os.pipe()
            return (reading, writing) if place == 0 else (writing, reading)
        case subprocess.DEVNULL:
            return os.open(os.devnull, os.O_RDWR), None
        case int():
            return of, None
    return of.fileno(), None


def _opened(end: int | None, place: int, *, text: bool) -> IO[Any] | None:
    if end is None:
        return None
    opened: IO[Any] = os.fdopen(end, "rb" if place else "wb")
    return io.TextIOWrapper(opened, write_through=True) if text else opened


@functools.cache
def _host(prefix: tuple[str, ...], preloaded: tuple[tuple[str, str], ...]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [*prefix, sys.executable, "-m", "tests.proofs.forking", str(theirs.fileno())],
        cwd=ROOT,
        env=os.environ | dict(preloaded),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
    )
    theirs.close()

    atexit.register(process.wait)
    atexit.register(ours.close)  # called first, which ends the process
    return ours


def _serve(requests: socket.socket) -> list[str]:
    """Fork a process for each request; return its words in each of them."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting: dict[int, int] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        selector.register(reading, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if reading in ready:
                os.read(reading, 4_096)
                _report_ended(waiting)
            if requests.fileno() not in ready:
                continue
            request, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
            if not request:
                os._exit(0)
            *three, status = files
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in (reading, writing, status, *waiting.values()):
                    os.close(each)
                requests.close()
                break
            waiting[pid] = status
            os.write(status, b"%d\n" % pid)
            for each in three:
                os.close(each)
    return _become(json.loads(request), three)


def _report_ended(waiting: dict[int, int]) -> None:
    for pid in list(waiting):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            socket_fd = waiting.pop(pid)
            with contextlib.suppress(OSError):
                os.write(socket_fd, b"%d\n" % os.waitstatus_to_exitcode(status))
            os.close(socket_fd)


def _become(request: dict[str, Any], files: list[int]) -> list[str]:
    for place, each in enumerate(files):
        os.dup2(each, place)
        os.close(each)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0] = request["cwd"]
    if "PYTHONUNBUFFERED" in os.environ:
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    words: list[str] = request["words"]
    return words


def main() -> None:
    """Import the common modules, and become each requested process."""
    for name in IMPORTED:
        importlib.import_module(name)
    assert threading.active_count() == 1
    gc.collect()
    gc.freeze()
    how, what, *arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv = [what, *arguments]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(what, {"__name__": "__main__"})


if __name__ == "__main__":
    main()

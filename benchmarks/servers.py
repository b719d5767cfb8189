"""The servers under test: veilmq, two that reply with a constant, and the peers from the registries.

A `Server` defines how to start it on a port and how to address it. If it is not installed, `missing` has the reason.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.process import Command, accepts, answers

CHECKOUT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A kind of server. `command(port, admin_port, data)` starts it; `modules` must be installed.

    `authorization`: the server finds the service only in the `Authorization` header. Without one, moto assumes S3, and
    answers a SendMessage with 200 and a list of buckets.
    """

    name: str
    modules: tuple[str, ...]
    command: Callable[[int, int, Path], Command]
    constant: bool = False
    authorization: bool = False
    connections: int = 64

    def missing(self) -> str | None:
        """Return why it cannot be started, or None."""
        for module in self.modules:
            if not _found(module):
                return f"not installed: no module {module}"
        return None


def _found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def paths(checkout: Path = CHECKOUT) -> Mapping[str, str]:
    """Return the paths of a checkout and its sources: the benchmark runs with and without an installed veilmq."""
    parts = (str(checkout), str(checkout / "src"), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(part for part in parts if part)}


def veilmq(*options: str, checkout: Path = CHECKOUT) -> Server:
    """Return veilmq with additional `options`; `{data}` in an option is its folder."""
    return _serving("veilmq", ("veilmq.__main__",), "--data", "{data}", *options, checkout=checkout)


def veilmq_on(url: str, *options: str, checkout: Path = CHECKOUT) -> Server:
    """Return a node on the database at `url`, which stores nothing in its folder."""
    modules = ("veilmq.__main__", "asyncpg")
    return _serving("veilmq on PostgreSQL", modules, "--store", url, *options, checkout=checkout)


def _serving(name: str, modules: tuple[str, ...], *options: str, checkout: Path = CHECKOUT) -> Server:
    def command(port: int, admin_port: int, data: Path) -> Command:
        return Command(
            name=name,
            arguments=[
                *(sys.executable, "-m", "veilmq", "serve", "--port", str(port), "--admin-port", str(admin_port)),
                *(option.format(data=data) for option in options),
            ],
            ready=lambda: answers(f"http://127.0.0.1:{admin_port}/health/ready"),
            environment=paths(checkout),
        )

    return Server(name=name, modules=modules, command=command)


def _constant(name: str, module: str) -> Callable[[int, int, Path], Command]:
    def command(port: int, admin_port: int, data: Path) -> Command:
        return Command(
            name=name,
            arguments=[sys.executable, "-m", module, "--port", str(port)],
            ready=lambda: accepts(port),
            environment=paths(),
        )

    return command


def _moto(port: int, admin_port: int, data: Path) -> Command:
    return Command(
        name="moto",
        arguments=[
            sys.executable,
            "-c",
            "from moto.server import main; main()",
            "-H",
            "127.0.0.1",
            "-p",
            str(port),
        ],
        ready=lambda: answers(f"http://127.0.0.1:{port}/moto-api/"),
        folder=data,
    )


def _ministack(port: int, admin_port: int, data: Path) -> Command:
    """Run it with its folders under `data` and persistence on, its most durable mode."""
    environment = {
        "GATEWAY_PORT": str(port),
        "BIND_HOST": "127.0.0.1",
        "SERVICES": "sqs",
        "LOG_LEVEL": "WARNING",
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "PERSIST_STATE": "1",
        "STATE_DIR": str(data / "state"),
        "S3_DATA_DIR": str(data / "s3"),
        "TMPDIR": str(data),
    }
    return Command(
        name="ministack",
        arguments=[sys.executable, "-m", "ministack"],
        ready=lambda: answers(f"http://127.0.0.1:{port}/_ministack/health"),
        environment=environment,
        folder=data,
    )


ROOMY = ("--in-flight-max", "1000000")  # receives without deletes exceed the in-flight limit
VEILMQ = veilmq(*ROOMY)
IN_MEMORY = _serving("veilmq --memory", ("veilmq.__main__",), "--memory", *ROOMY)
CEILING = Server(
    name="ceiling",
    modules=("uvloop", "httptools"),
    command=_constant("ceiling", "benchmarks.ceiling"),
    constant=True,
)
OWN_CLASS = Server(
    name="own HTTP class",
    modules=("veilmq.server.http",),
    command=_constant("own", "benchmarks.constant"),
    constant=True,
)
PEERS = (
    Server(name="moto[server]", modules=("moto.server", "werkzeug"), command=_moto, authorization=True),
    Server(name="ministack", modules=("ministack",), command=_ministack),
)

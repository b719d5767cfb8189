"""The image of deploy/Containerfile, built without a registry, and run as a container or in namespaces.

Its base consists of Debian packages (scripts/install-image.sh); the test downloads wheels beforehand and builds in a
temporary folder. A running server has its own network namespace, which clients enter.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import EVERYTHING, need
from tests.proofs.served import wait_until
from tests.release import Failed, run
from tests.server.keys import SECRETS, written
from tests.tidy.tree import ROOT

BASE = ROOT / ".clients" / "image" / "base.tar"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
PYTHON_OF_BASE = "3.11"
NAME = "localhost/veilmq"
USER = 10_001
DATA = "/srv/veilmq-data"
PORT = 9_324
HOW = "root, buildah, podman and a base of Debian's packages (scripts/install-image.sh)"
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"

Environment = Mapping[str, str]


def is_possible() -> bool:
    """Return whether the image can be built here."""
    programs = ("buildah", "podman", "unshare", "nsenter", "chroot")
    return os.geteuid() == 0 and BASE.exists() and all(shutil.which(each, path=PATH) for each in programs)


class Image:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        places = {"graphroot": folder / "storage", "runroot": folder / "run"}
        storage = "\n".join(
            ["[storage]", 'driver = "overlay"', *(f'{key} = "{place}"' for key, place in places.items())]
        )
        (folder / "storage.conf").write_text(storage, encoding="utf-8")
        self.environment = {"PATH": PATH, "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf")}
        self._build()
        (found,) = json.loads(run("podman", "image", "inspect", NAME, variables=self.environment))
        self.config: dict[str, Any] = found["Config"]
        self.health: list[str] = found["Healthcheck"]["Test"][1:]

    def _build(self) -> None:
        wheels = self._folder / "wheels"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        (extras,) = re.findall("^ARG EXTRAS=(.*)", CONTAINERFILE.read_text(encoding="utf-8"), re.MULTILINE)
        built = project["project"]["optional-dependencies"]["hocon"]  # has no wheel, and needs no compiler
        run(*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, *built)
        pip += ["download", "--quiet", "--only-binary", ":all:", "--find-links", str(wheels), "--dest", str(wheels)]
        run(*pip, "--python-version", PYTHON_OF_BASE, *project["build-system"]["requires"], f"{ROOT}[{extras}]")
        run("podman", "import", "--quiet", BASE, "localhost/base", variables=self.environment)
        options = ["--isolation", "chroot", "--format", "docker", "--volume", f"{wheels}:/wheels:ro"]
        arguments = {"BASE": "localhost/base", "PIP_OPTIONS": "--no-index --find-links /wheels"}
        options += [f"--build-arg={name}={value}" for name, value in arguments.items()]
        build = ["buildah", "build", *options, "--tag", NAME, "--file", str(CONTAINERFILE), str(ROOT)]
        run(*build, variables=self.environment)

    def compressed_bytes(self) -> int:
        archive = self._folder / "image.oci"
        run("buildah", "push", "--quiet", NAME, f"oci-archive:{archive}", variables=self.environment)
        return archive.stat().st_size

    @contextlib.contextmanager
    def unpacked(self) -> Iterator[Path]:
        """Mount the root file system of the image; yield its folder."""
        container = run("buildah", "from", NAME, variables=self.environment).strip()
        try:
            yield Path(run("buildah", "mount", container, variables=self.environment).strip())
        finally:
            run("buildah", "rm", container, variables=self.environment)


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A running server; ``pid`` is its process id on the host."""

    pid: int

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the image in the server's namespaces, as its user."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--root", f"--setgid={USER}"]
        lines = Path(f"/proc/{self.pid}/environ").read_text().split("\0")
        environment = dict(line.split("=", 1) for line in lines if line)
        command = [*enter, f"--setuid={USER}", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def client(self, program: str, **keys: str) -> str:
        """Run a Python program of the host in the server's network; return its output."""
        return run("nsenter", "--target", str(self.pid), "--net", sys.executable, "-c", program, variables=keys)

    def status(self, name: str) -> str:
        """Return a value of /proc/<pid>/status, such as ``Uid`` or ``CapEff``."""
        lines = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:"))

    def root_options(self) -> list[str]:
        """Return the mount options of the root file system."""
        mounts = Path(f"/proc/{self.pid}/mountinfo").read_text(encoding="utf-8").splitlines()
        return next(mount.split()[5].split(",") for mount in reversed(mounts) if mount.split()[4] == "/")


class Containers:
    """Run containers with podman, with a read-only root and without privileges."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._prefix: list[str] = []
        # The defaults of podman exceed the limits of some hosts.
        self._options = ["--ulimit=nofile=8192:8192", "--ulimit=nproc=1024:1024"]

    @contextlib.contextmanager
    def opened(self) -> Iterator[str]:
        """Prepare the host; yield the error of a test container, which is empty on success.

        Runtimes refuse a host with cgroups of both versions. There, containers run without cgroups, in a mount
        namespace from which version 2 is unmounted.
        """
        problem = self._problem()
        with contextlib.ExitStack() as held:
            if "hybrid" in problem:
                hidden = "umount /sys/fs/cgroup/unified && echo && exec sleep infinity"
                holding = held.enter_context(
                    subprocess.Popen(["unshare", "--mount", "sh", "-c", hidden], stdout=subprocess.PIPE)
                )
                held.callback(holding.kill)
                assert holding.stdout is not None
                holding.stdout.readline()
                self._prefix = ["nsenter", "--target", str(holding.pid), "--mount"]
                self._options.append("--cgroups=disabled")
                problem = self._problem()
            yield problem

    def _problem(self) -> str:
        try:
            self.podman("run", "--rm", "--network=none", *self._options, "--entrypoint=true", NAME)
        except Failed as error:
            return str(error)
        return ""

    def podman(self, *words: str) -> str:
        return run(*self._prefix, "podman", *words, variables=self._image.environment)

    @contextlib.contextmanager
    def running(self, data: Path, settings: Environment, mounts: Mapping[Path, str]) -> Iterator[ServerProcess]:
        """Start the image with ``settings`` and mounted files, as `docker run` does; stop it at the end."""
        options = ["--read-only", "--read-only-tmpfs=false", "--cap-drop=all", "--security-opt=no-new-privileges"]
        options += [f"--volume={data}:{DATA}", *(f"--volume={file}:{place}:ro" for file, place in mounts.items())]
        options += [f"--env={name}={value}" for name, value in settings.items()]
        name = self.podman("run", "--detach", "--network=none", *self._options, *options, NAME).strip()
        try:
            process = ServerProcess(int(self.podman("inspect", "--format={{.State.Pid}}", name)))
            wait_until(lambda: is_healthy(self._image, process), what="it does not become healthy")
            self.podman("healthcheck", "run", name)
            yield process
            self.podman("stop", "--time=30", name)
            assert self.podman("inspect", "--format={{.State.ExitCode}}", name).strip() == "0"
        finally:
            self.podman("rm", "--force", "--volumes", name)


class Namespaces:
    """Run the unpacked image in separate namespaces, for hosts on which containers cannot start."""

    SCRIPT = """
        set -e
        ip link set lo up
        root=$1; mount --bind "$root" "$root"; shift
        while [ "$1" != -- ]; do
            [ -e "$root$2" ] || touch "$root$2"
            mount --bind "$1" "$root$2"; shift 2
        done
        shift
        mount -t proc proc "$root/proc"
        mount -o remount,bind,ro "$root"
        exec setpriv --no-new-privs chroot --userspec="$0" "$root" env --chdir=/srv "$@"
    """

    def __init__(self, image: Image) -> None:
        self._image = image

    @contextlib.contextmanager
    def running(self, data: Path, settings: Environment, mounts: Mapping[Path, str]) -> Iterator[ServerProcess]:
        """Start the image as ``Containers.running`` does."""
        config = self._image.config
        environment = {**dict(each.split("=", 1) for each in config["Env"]), **settings}
        with self._image.unpacked() as root:
            bound = [str(word) for pair in {data: DATA, **mounts}.items() for word in pair]
            words = [f"{USER}:{USER}", str(root), *bound, "--", *config["Entrypoint"], *config["Cmd"]]
            own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "sh", "-c", self.SCRIPT]
            with subprocess.Popen(
                [*own, *words], env=environment | {"PATH": f"{environment['PATH']}:{PATH}"}
            ) as started:
                try:
                    children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
                    wait_until(children.read_text, what="it does not start")
                    process = ServerProcess(int(children.read_text()))
                    wait_until(lambda: is_healthy(self._image, process), what="it does not become healthy")
                    yield process
                    os.kill(process.pid, signal.SIGTERM)
                    assert started.wait(30) == 0
                finally:
                    started.kill()


def is_healthy(image: Image, process: ServerProcess) -> bool:
    """Return whether the image's health check passes."""
    return process.call(*image.health).returncode == 0


pytestmark = [EVERYTHING, pytest.mark.timeout(1_800), pytest.mark.xdist_group("image")]

COMPRESSED_BYTES_MAX = 150_000_000
KEYS = "/srv/keys.toml"
CLIENT = """
import boto3
sqs = boto3.client("sqs", endpoint_url="http://127.0.0.1:9324", region_name="us-east-1")
url = sqs.create_queue(QueueName="orders")["QueueUrl"]
"""
SEND = CLIENT + 'sqs.send_message(QueueUrl=url, MessageBody="hello")'
RECEIVE = (
    CLIENT
    + """
for message in sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5)["Messages"]:
    print(message["Body"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
"""
)
ANY = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
COMPILERS = ("cc", "gcc", "c++", "ld", "as", "make", "rustc", "/opt/veilmq/bin/pip")

Runtime = Containers | Namespaces


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    need(is_possible(), HOW)
    return Image(tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module", params=["container", "namespace"])
def runtime(image: Image, request: pytest.FixtureRequest) -> Iterator[Runtime]:
    if request.param == "namespace":
        yield Namespaces(image)
        return
    containers = Containers(image)
    with containers.opened() as problem:
        if problem:
            pytest.skip(f"this machine lets no container start: {problem}")
        yield containers


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    shutil.chown(folder, USER, USER)
    return folder


def test_the_image_is_small(image: Image) -> None:
    size = image.compressed_bytes()
    sys.stdout.write(f"compressed: {size / 1e6:.0f} MB\n")
    assert size <= COMPRESSED_BYTES_MAX


def test_the_image_has_a_non_root_user_and_a_volume(image: Image) -> None:
    assert image.config["User"] == f"{USER}:{USER}"
    assert set(image.config["Volumes"]) == {DATA}
    assert set(image.config["ExposedPorts"]) == {"9324/tcp", "9325/tcp", "9326/tcp"}
    assert (image.config["Entrypoint"], image.config["Cmd"]) == (["veilmq"], ["serve"])


def test_messages_survive_a_restart_of_an_unprivileged_container(runtime: Runtime, data: Path) -> None:
    """Its root file system is read-only."""
    with runtime.running(data, {}, {}) as process:
        process.client(SEND, **ANY)
        assert set(process.status("Uid").split()) == {str(USER)}
        assert set(process.status("CapEff")) == {"0"}
        assert process.status("NoNewPrivs") == "1"
        assert "ro" in process.root_options()
        for place in ("/", "/srv", "/tmp", "/opt/veilmq"):
            refused = process.call("touch", f"{place}/written")
            assert "Read-only file system" in refused.stderr, place
        assert process.call("veilmq", "queue", "list").stdout.split() == ["orders"]
        found = [process.call("sh", "-c", f"command -v {program}").stdout for program in COMPILERS]
        assert found == [""] * len(COMPILERS)
    with runtime.running(data, {}, {}) as process:
        assert process.client(RECEIVE, **ANY) == "hello\n"


def test_with_credentials_requests_must_be_signed(runtime: Runtime, data: Path, tmp_path: Path) -> None:
    """The file belongs to root and is readable for the server's group, like a mounted secret."""
    keys = written(tmp_path / "keys.toml")
    shutil.chown(keys, 0, USER)
    keys.chmod(0o440)
    with runtime.running(data, {"VEILMQ_CREDENTIALS": KEYS}, {keys: KEYS}) as process:
        with pytest.raises(Failed, match="InvalidClientTokenId"):
            process.client(SEND, **ANY)
        signed = {"AWS_ACCESS_KEY_ID": "AKIDOWNER", "AWS_SECRET_ACCESS_KEY": SECRETS["AKIDOWNER"]}
        process.client(SEND, **signed)
        assert process.client(RECEIVE, **signed) == "hello\n"


def test_the_image_has_the_extras(runtime: Runtime, data: Path, tmp_path: Path) -> None:
    """Parquet and S3 work with the reduced pyarrow; HOCON and asyncpg are installed."""
    queues = tmp_path / "queues.conf"
    queues.write_text("queues { invoices { delay = 5 seconds } }", encoding="utf-8")
    settings = {"VEILMQ_EVENTS_TO": DATA + "/events", "VEILMQ_QUEUES_FILE": "/srv/queues.conf"}
    with runtime.running(data, settings, {queues: "/srv/queues.conf"}) as process:
        assert process.call("veilmq", "queue", "list").stdout.split() == ["invoices"]
        process.client(SEND + RECEIVE.removeprefix(CLIENT), **ANY)
        modules = "pyarrow.parquet, pyarrow.fs, pyarrow.compute, pyarrow.dataset, asyncpg, cryptography.x509"
        assert process.call("python3", "-c", f"import {modules}; pyarrow.fs.S3FileSystem").stderr == ""
        flushed = process.client(
            "import urllib.request as http; print(http.urlopen('http://127.0.0.1:9325/events/flush', b'').status)"
        )
        assert flushed == "200\n"
    assert list(data.rglob("*.parquet"))

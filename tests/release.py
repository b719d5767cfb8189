"""The release checklist as one command, `make release-check`.

Each check is a function of the release and raises `Failed` with the remedy; the other checks still run. `dist/` gets
the files to publish: wheels, source archives, SBOMs and digests. Nothing is uploaded, signed or tagged
(docs/releasing.md).
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import time
import tomllib
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
DIST, WORK = ROOT / "dist", ROOT / "build" / "release"
DISTRIBUTIONS = {"veilmq": Path(), "pytest-veilmq": Path("packages/pytest-veilmq")}  # name → folder
EXTRAS = "server,console,push,postgres"  # of a server installation and its SBOM, without Spark and Java
STOP_S_MAX = 60.0
HEADING = re.compile(r"^## \[(?P<version>[^\]]+)\] - (?P<date>\d{4}-\d\d-\d\d)$", re.MULTILINE)
BODY = "the first message"
SUITE = """\
def test_a_queue_is_served(veilmq_server, veilmq_queue):
    veilmq_queue.send("tea")
    (message,) = veilmq_queue.receive()
    veilmq_server.advance(seconds=30)
    assert (message.body, veilmq_queue.counts.visible) == ("tea", 1)
"""


class Failed(Exception):
    """The release is not ready; `str()` names the remedy."""


@dataclass
class Release:
    """The commit to release, and the files made so far."""

    version: str
    epoch_s: int  # time of the commit, used as the time of the archives
    files: list[Path] = field(default_factory=list)


def run(
    *command: str | Path, cwd: Path = ROOT, with_errors: bool = False, variables: Mapping[str, str] = os.environ
) -> str:
    """Return the output of a command, with its errors if requested; raise `Failed` if it fails."""
    output = subprocess.STDOUT if with_errors else subprocess.PIPE
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=output, text=True, check=False
    )
    if done.returncode:
        printed = done.stdout + (done.stderr or "")
        raise Failed(f"{' '.join(map(str, command))} failed:\n{printed[-2_000:].strip()}")
    return done.stdout


def project(folder: Path) -> dict[str, Any]:
    with (ROOT / folder / "pyproject.toml").open("rb") as file:
        found: dict[str, Any] = tomllib.load(file)["project"]
    return found


def disagreements(metadata: Mapping[str, Mapping[str, Any]], changelog: str) -> list[str]:
    """Return the differences between the versions of the distributions and of the changelog."""
    main, kit = (metadata[name] for name in DISTRIBUTIONS)
    version = main["version"]
    found = [] if kit["version"] == version else [f"pytest-veilmq is {kit['version']}, veilmq is {version}"]
    needs = [each for each in map(Requirement, kit["dependencies"]) if each.name == "veilmq"]
    if not needs or not all(each.specifier.contains(version, prereleases=True) for each in needs):
        found.append(f"pytest-veilmq does not allow veilmq {version}: change its dependencies")
    newest = HEADING.search(changelog)
    if newest is None or newest["version"] != version:
        found.append(f'the newest version in CHANGELOG.md is not this one: write "## [{version}] - <date>"')
    return found


def check_tree(release: Release) -> str:
    """Check that everything is committed: a source archive takes all files in the folders."""
    if changed := run("git", "status", "--porcelain").splitlines():
        raise Failed("commit, ignore or remove what git status lists: " + ", ".join(line[3:] for line in changed[:5]))
    return run("git", "rev-parse", "--short", "HEAD").strip()


def check_versions(release: Release) -> str:
    metadata = {name: project(folder) for name, folder in DISTRIBUTIONS.items()}
    if found := disagreements(metadata, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")):
        raise Failed("; ".join(found))
    return release.version


def check_builds(release: Release) -> str:
    """Build twice, the second time from an export in another folder, and compare the bytes."""
    export = WORK / "export"
    export.mkdir(parents=True)
    archive = WORK / "export.tar"
    run("git", "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as tar:
        tar.extractall(export, filter="data")
    for place, source in (("first", ROOT), ("second", export)):
        for folder in DISTRIBUTIONS.values():
            build = (sys.executable, "-m", "build", "--no-isolation", "--outdir", WORK / place, source / folder)
            run(*build, cwd=source, variables={"SOURCE_DATE_EPOCH": str(release.epoch_s)})
    first, second = (digests(WORK / place) for place in ("first", "second"))
    if first != second:
        names = {name for name, _ in first.items() ^ second.items()}
        raise Failed(f"built twice, these differ: {', '.join(sorted(names))}; compare {WORK}/first and {WORK}/second")
    release.files += [Path(shutil.copy(WORK / "first" / name, DIST)) for name in first]
    return f"{len(first)} files, twice"


def check_metadata(release: Release) -> str:
    run(sys.executable, "-m", "twine", "check", "--strict", *release.files)
    return f"{len(release.files)} files"


def check_installation(release: Release) -> str:
    """Install into a new environment, serve, send and receive a message, and write the SBOM."""
    python = environment(release, "veilmq", extras=f"[{EXTRAS}]")
    components = write_sbom(release, "veilmq", python)
    program, data = python.with_name("veilmq"), WORK / "data"
    with serving(program, data) as endpoint:
        run(program, "queue", "create", "hello", "--endpoint", endpoint, cwd=WORK)
        run(program, "send", "hello", BODY, "--endpoint", endpoint, cwd=WORK)
        received = run(program, "receive", "hello", "--delete", "--endpoint", endpoint, cwd=WORK)
    if BODY not in received:
        raise Failed(f"the message does not come back; veilmq receive printed {received!r}")
    return f"one message, {components} components"


def check_kit(release: Release) -> str:
    """Install the wheel of the fixtures alone, and run a suite."""
    python = environment(release, "pytest-veilmq", "veilmq")
    components = write_sbom(release, "pytest-veilmq", python)
    suite = WORK / "suite"
    suite.mkdir()
    (suite / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")  # instead of the configuration of this repository
    (suite / "test_queue.py").write_text(SUITE, encoding="utf-8")
    printed = run(python, "-m", "pytest", "-q", suite, cwd=suite)
    if "1 passed" not in printed:
        raise Failed(f"the suite does not pass: {printed}")
    return f"one test, {components} components"


CHECKS: list[tuple[str, Callable[[Release], str]]] = [
    ("tree is clean", check_tree),
    ("versions agree", check_versions),
    ("built twice, identical", check_builds),
    ("metadata (twine)", check_metadata),
    ("wheel installs, serves", check_installation),
    ("fixtures install alone", check_kit),
]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def environment(release: Release, name: str, *others: str, extras: str = "") -> Path:
    """Create an environment without pip that has the wheel of a distribution; return its Python.

    The wheels of `name` and `others` are installed first, without an index, which may have files of the same names.
    """
    if not release.files:
        raise Failed("needs the wheels: see the builds above")
    folder = WORK / f"venv-{name}"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    ours = [f"{each}=={release.version}" for each in (name, *others)]
    run(*install, "--no-index", "--no-deps", "--find-links", DIST, *ours)
    run(*install, f"{name}{extras}=={release.version}")
    return python


def write_sbom(release: Release, name: str, python: Path) -> int:
    target = DIST / f"{name}-{release.version}.cdx.json"
    metadata = ROOT / DISTRIBUTIONS[name] / "pyproject.toml"
    options = ("--output-reproducible", "--mc-type", "library", "--pyproject", metadata)
    cyclonedx = Path(sys.executable).with_name("cyclonedx-py")
    variables = {"SOURCE_DATE_EPOCH": str(release.epoch_s)}
    run(cyclonedx, "environment", *options, "--output-file", target, python, variables=variables)
    release.files.append(target)
    listed = run(sys.executable, "-m", "pip", "--python", python, "list", "--format", "freeze").split()
    text = target.read_text(encoding="utf-8")
    if missing := [each for each in listed if f'"name": "{each.partition("==")[0]}"' not in text]:
        raise Failed(f"{target.name} lacks {', '.join(missing)}")
    return len(listed)


@contextmanager
def serving(program: Path, data: Path) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free, socket.create_server(("127.0.0.1", 0)) as other:
        port, admin_port = (str(each.getsockname()[1]) for each in (free, other))
    options = ["--data", str(data), "--port", port, "--admin-port", admin_port]
    with (WORK / "serve.log").open("wb") as log:
        server = subprocess.Popen([program, "serve", *options], stdout=subprocess.PIPE, stderr=log, cwd=WORK)
    try:
        assert server.stdout is not None
        if not server.stdout.readline():  # the line with its address
            raise Failed(f"veilmq serve does not start: {(WORK / 'serve.log').read_text()}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.communicate(timeout=STOP_S_MAX)
        if server.returncode:
            raise Failed(f"veilmq serve fails at its stop: {(WORK / 'serve.log').read_text()}")


def main() -> int:
    """Run every check, print a line for each, and return 1 if one failed."""
    for folder in (DIST, WORK):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    release = Release(version=project(Path())["version"], epoch_s=int(run("git", "log", "-1", "--format=%ct")))
    failed, began_s = 0, time.monotonic()
    for name, check in CHECKS:
        before_s = time.monotonic()
        try:
            mark, text = "ok    ", check(release)
        except Failed as error:
            mark, text, failed = "FAILED", str(error), failed + 1
        sys.stdout.write(f"{mark}  {name:24} {time.monotonic() - before_s:6.1f} s  {text}\n")
        sys.stdout.flush()
    lines = [f"{sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(release.files)]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="ascii")
    for path in sorted(release.files):
        sys.stdout.write(f"        {path.stat().st_size:>9,} bytes  dist/{path.name}\n")
    text = f"{failed} of {len(CHECKS)} checks failed" if failed else f"{release.version} is ready to be published"
    sys.stdout.write(f"veilmq: {text} ({time.monotonic() - began_s:.0f} s)\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""scripts/install-clients.sh, with a pip and an npm that only write down that they were called."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.program import ROOT

PINS = [*(ROOT / "tests/clients/python").glob("*.txt"), ROOT / "tests/clients/javascript/package-lock.json"]
TOOLS = ("cat", "cksum", "dirname", "mkdir", "rm", "sh", "tail")

_PYTHON = """#!/bin/sh
if [ "$1" = -V ]; then echo Python 3.11; exit; fi
while [ "$1" != --target ]; do shift; done
echo "pip $2" >>calls
mkdir -p "$2"
"""
_NPM = """#!/bin/sh
echo "npm $2" >>calls
mkdir -p "$2/node_modules"
"""


class Machine:
    """A machine with a checkout and few programs."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.bin = folder / "checkout", folder / "bin"
        for file in (ROOT / "scripts/install-clients.sh", *PINS):
            there = self.checkout / file.relative_to(ROOT)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, there)
        self.bin.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found, tool
            (self.bin / tool).symlink_to(found)
        self.program(self.checkout / ".venv/bin/python", _PYTHON)
        self.program(self.bin / "npm", _NPM)
        self.program(self.bin / "node", "#!/bin/sh\n")

    def program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def install(self) -> tuple[set[str], str]:
        """Run the script, which never fails; return who was called, and what was complained of."""
        calls = self.checkout / "calls"
        calls.write_text("")
        done = subprocess.run(
            [self.checkout / "scripts/install-clients.sh"],
            env={**os.environ, "PATH": str(self.bin)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return set(calls.read_text().splitlines()), done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine where nothing is installed."""
    return Machine(tmp_path)


ALL = {
    "pip .clients/boto3_query",
    "pip .clients/celery_sqs",
    "pip .clients/sqs_extended",
    "npm tests/clients/javascript",
}


def test_it_installs_once(machine: Machine) -> None:
    assert machine.install() == (ALL, "")
    assert machine.install() == (set(), "")


def test_a_changed_pin_installs_that_client_again(machine: Machine) -> None:
    machine.install()
    with (machine.checkout / "tests/clients/python/celery_sqs.txt").open("a") as pins:
        pins.write("vine==5.1.0\n")
    assert machine.install() == ({"pip .clients/celery_sqs"}, "")


def test_another_python_installs_the_python_clients_again(machine: Machine) -> None:
    machine.install()
    machine.program(machine.checkout / ".venv/bin/python", _PYTHON.replace("3.11", "3.12"))
    assert machine.install()[0] == ALL - {"npm tests/clients/javascript"}


def test_packages_that_were_removed_are_installed_again(machine: Machine) -> None:
    machine.install()
    shutil.rmtree(machine.checkout / "tests/clients/javascript/node_modules")
    shutil.rmtree(machine.checkout / ".clients/celery_sqs")
    assert machine.install() == ({"npm tests/clients/javascript", "pip .clients/celery_sqs"}, "")


def test_a_failure_is_told_and_tried_again(machine: Machine) -> None:
    machine.program(machine.bin / "npm", "#!/bin/sh\necho no route to the registry\nexit 1\n")
    called, complaint = machine.install()
    assert called == ALL - {"npm tests/clients/javascript"}
    assert "could not install the client javascript" in complaint
    assert "no route to the registry" in complaint
    machine.program(machine.bin / "npm", _NPM)
    assert machine.install() == ({"npm tests/clients/javascript"}, "")


@pytest.mark.parametrize("missing", ["node", "npm", "new"])
def test_without_node_it_says_what_to_do(machine: Machine, missing: str) -> None:
    if missing == "new":
        machine.program(machine.bin / "node", "#!/bin/sh\nexit 1\n")  # as it answers when it is older than 20
    else:
        (machine.bin / missing).unlink()
    called, complaint = machine.install()
    assert called == ALL - {"npm tests/clients/javascript"}
    assert "need node 20 or newer and npm" in complaint


def test_pins_name_no_registry() -> None:
    for pins in PINS:
        text = pins.read_text(encoding="utf-8")
        assert "://" not in text, pins
        assert '"resolved"' not in text, pins

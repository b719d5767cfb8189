"""scripts/install-browser.sh, on a machine without a package manager; and where a browser is looked for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.console import chromium as looked_for
from tests.console.chromium import chromium
from tests.tidy.tree import ROOT

SCRIPTS = ("scripts/install-browser.sh", "scripts/packages.sh", "tests/console/axe/package-lock.json")
TOOLS = ("cat", "cksum", "id", "mkdir", "sh")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with the script, and ``bin`` with the few tools that every machine has."""
    for name in SCRIPTS:
        there = tmp_path / name
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, there)
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found, tool
        program(tmp_path / "bin" / tool, f'#!/bin/sh\nexec {found} "$@"\n')
    program(tmp_path / "scripts/find-python.sh", "#!/bin/sh\necho bin/python\n")
    program(tmp_path / "bin/python", "#!/bin/sh\nexit 1\n")  # as if it had found no browser
    return tmp_path


def program(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def install(checkout: Path) -> str:
    """Run the script, which never fails; return what it complained of."""
    done = subprocess.run(
        [checkout / "scripts/install-browser.sh"],
        env={**os.environ, "PATH": str(checkout / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stderr


def test_it_says_what_to_install(checkout: Path) -> None:
    told = install(checkout)
    assert "need Chromium or Chrome" in told
    assert "need npm" in told


def test_it_asks_the_package_manager_once(checkout: Path) -> None:
    """It installs, is content with what is there then, and asks nobody the next time."""
    calls = checkout / "calls"
    program(checkout / "bin/apt-cache", "#!/bin/sh\n")
    program(checkout / "bin/apt-get", f'#!/bin/sh\necho "$*" >>{calls}; echo "#!/bin/sh" >{checkout}/bin/python\n')
    program(checkout / "bin/env", '#!/bin/sh\nshift; exec "$@"\n')
    program(checkout / "bin/sudo", '#!/bin/sh\nshift; exec "$@"\n')
    modules = checkout / "tests/console/axe/node_modules"
    program(
        checkout / "bin/npm",
        f"#!/bin/sh\necho npm >>{calls}; mkdir -p {modules}/axe-core\n: >{modules}/axe-core/axe.min.js\n",
    )
    assert install(checkout) == ""
    assert calls.read_text().splitlines() == [
        "update -qq",
        "install -y -qq --no-install-recommends chromium-headless-shell",
        "npm",
    ]
    assert install(checkout) == ""
    assert len(calls.read_text().splitlines()) == 3


def test_where_a_browser_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(looked_for, "APPLICATIONS", (str(tmp_path / "Chromium.app"),))
    assert chromium() is None
    (tmp_path / "Chromium.app").touch()
    assert chromium() == str(tmp_path / "Chromium.app")
    program(tmp_path / "google-chrome", "#!/bin/sh\n")
    assert chromium() == str(tmp_path / "google-chrome")
    program(tmp_path / "mine", "#!/bin/sh\n")
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "mine"))
    assert chromium() == str(tmp_path / "mine")

"""Imports run one way, as the contracts of pyproject.toml say; a new package finds its place in them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.tidy.tree import ROOT, SRC

LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


def lint_imports(*, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter in `folder`, which holds a pyproject.toml, on the package below `source`."""
    return subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def made_up_package(folder: Path, files: dict[str, str]) -> Path:
    """Write a package `veilmq` with `files` (path → text) and our contracts into `folder`."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    named = ("core", "consumer", "store", "events")
    needed = {"__init__.py": ""} | {f"{part}/__init__.py": "" for part in named}
    for path, text in (needed | files).items():
        file = folder / "veilmq" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def test_the_contracts_are_kept() -> None:
    """import-linter finds no broken contract in src."""
    done = lint_imports(source=SRC, folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_contracts_can_be_kept(tmp_path: Path) -> None:
    """A made-up package whose imports run downwards passes: what the next tests see is their one bad file."""
    files = {"wire/__init__.py": "import veilmq.core\n", "server/__init__.py": "import veilmq.wire, socket\n"}
    done = lint_imports(source=tmp_path, folder=made_up_package(tmp_path, files))
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_import_upwards_breaks_a_contract(tmp_path: Path) -> None:
    """Wire that imports the store is found."""
    files = {"store/__init__.py": "", "wire/__init__.py": "import veilmq.store\n"}
    done = lint_imports(source=tmp_path, folder=made_up_package(tmp_path, files))
    assert done.returncode == 1
    assert "veilmq.wire is not allowed to import veilmq.store" in done.stdout


def test_input_and_output_in_core_break_a_contract(tmp_path: Path) -> None:
    """Core that imports a socket is found."""
    done = lint_imports(source=tmp_path, folder=made_up_package(tmp_path, {"core/leak.py": "import socket\n"}))
    assert done.returncode == 1
    assert "veilmq.core is not allowed to import socket" in done.stdout


def test_a_consumer_that_meets_the_store_breaks_a_contract(tmp_path: Path) -> None:
    """Consumer that imports the store is found."""
    files = {"consumer/leak.py": "import veilmq.store\n"}
    done = lint_imports(source=tmp_path, folder=made_up_package(tmp_path, files))
    assert done.returncode == 1
    assert "veilmq.consumer is not allowed to import veilmq.store" in done.stdout


def test_a_package_without_a_place_breaks_a_contract(tmp_path: Path) -> None:
    """A new package that no layer lists is found."""
    done = lint_imports(source=tmp_path, folder=made_up_package(tmp_path, {"misc/__init__.py": ""}))
    assert done.returncode == 1
    assert "veilmq.misc" in done.stdout

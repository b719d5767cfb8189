"""The Makefile names tests that are there."""

import re
import subprocess

from tests.tidy.tree import ROOT

TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
PATH = re.compile(r"\btests/[a-z_/]+(?:\.py)?")


def test_each_test_that_a_target_runs_is_there() -> None:
    """pytest runs nothing at all where one of its paths is missing."""
    targets = TARGET.findall((ROOT / "Makefile").read_text())
    assert {"test", "test-fast", "prove-crash"} <= set(targets)
    shown = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = [line for line in shown.replace("\\\n", " ").splitlines() if "-m pytest" in line]
    paths = {found.group() for command in commands for found in PATH.finditer(command)}
    assert {"tests/store", "tests/proofs/test_crash.py"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []

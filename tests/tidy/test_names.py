"""One noun, one file: no module is a drawer for what found no name."""

import pytest

from tests.tidy.tree import ROOT

DRAWERS = {"common", "helper", "helpers", "misc", "util", "utilities", "utils"}
CODE = ("src", "tests", "benchmarks", "examples")


def is_drawer(path: str) -> bool:
    """Return whether a part of `path`, a Python file from the root, names a drawer."""
    return any(part.strip("_") in DRAWERS for part in path.removesuffix(".py").split("/"))


def test_no_module_is_a_drawer() -> None:
    """No module and no package is called utils, common, helpers or the like."""
    files = [file.relative_to(ROOT).as_posix() for folder in CODE for file in (ROOT / folder).rglob("*.py")]
    assert files
    assert [path for path in files if is_drawer(path)] == []


@pytest.mark.parametrize("path", ["src/veilmq/utils.py", "tests/helpers/clock.py", "src/veilmq/core/_common.py"])
def test_the_rule_sees_a_drawer(path: str) -> None:
    """A drawer is found as a module, as a package and behind an underscore."""
    assert is_drawer(path)
    assert not is_drawer("src/veilmq/core/receipts.py")

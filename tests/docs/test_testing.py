"""The page on testing: its programs are suites that pass, and its tables name what there is."""

import re
from pathlib import Path

import pytest

import pytest_veilmq
from veilmq.testing import faults
from veilmq.testing.faults import Fault

pytest_plugins = ["pytester"]

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_programs(pytester: pytest.Pytester) -> None:
    """Each is a test module as it stands there."""
    tests = sum(program.count("\ndef test_") + program.startswith("def test_") for program in PROGRAMS)
    assert tests == len(PROGRAMS)
    pytester.makepyfile(**{f"test_program_{number}": program for number, program in enumerate(PROGRAMS)})
    pytester.runpytest("-Werror").assert_outcomes(passed=tests)


def test_fixtures() -> None:
    """All are told of."""
    told = set(re.findall(r"^\| `(veilmq_\w+)` \|", PAGE, re.MULTILINE))
    assert told == {name for name in vars(pytest_veilmq) if name.startswith("veilmq_")}


def test_faults() -> None:
    """All are told of: values, and functions that return some."""
    told = set(re.findall(r"^\| `(\w+)[^`]*` \| (?:no|yes|later,.*|at once|the others) \|", PAGE, re.MULTILINE))
    values = {name for name, value in vars(faults).items() if isinstance(value, Fault)}
    makers = {
        name for name, value in vars(faults).items() if getattr(value, "__annotations__", {}).get("return") is Fault
    }
    assert told == values | makers

"""No test sleeps to see whether something is due: the clock is virtual.

What may sleep: the proofs, which run real load for real seconds, handlers on an event loop whose time is virtual, and
the files listed here with their reason.
`asyncio.sleep(0)` only yields to the loop and is free.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.tree import TESTS, Module, module, modules

PROOFS = ("tests/proofs/", "tests/internals/proofs/")
ALLOWED: dict[str, str] = {  # path → why nothing but real time will do, or how the time is virtual
    "tests/consumer/test_shape.py": "its handlers sleep in a bench's time",
    "tests/internals/testing/test_consumer_bench.py": "its handlers and its loop sleep in the bench's time",
}
SLEEPERS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}


def imported(tree: ast.Module) -> dict[str, str]:
    """Return name → full name of everything that `tree` imports."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def only_yields(name: str, call: ast.Call) -> bool:
    """Return whether `call` of the sleeper `name` is the literal sleep of 0 that lets an event loop turn."""
    delay = call.args[0] if call.args else None
    return name != "time.sleep" and isinstance(delay, ast.Constant) and delay.value == 0


def sleeps(source: Module) -> Iterator[str]:
    """Yield each place in `source` that sleeps."""
    tree = source.tree
    known = imported(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, dot, rest = ast.unparse(node.func).partition(".")
        name = known.get(first, first) + dot + rest
        if name in SLEEPERS and not only_yields(name, node):
            yield f"{source.path}:{node.lineno}: {name}; move the virtual clock, or wait for an event"


def test_no_test_sleeps() -> None:
    """No file under tests sleeps, but for the proofs and the listed files, which still do."""
    found = {source.path: list(sleeps(source)) for source in modules(under=TESTS) if not source.path.startswith(PROOFS)}
    assert [line for path, lines in found.items() if path not in ALLOWED for line in lines] == []
    assert [path for path in ALLOWED if not found.get(path)] == [], "no longer sleeps: take it out of ALLOWED"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import time\ntime.sleep(0)", id="time"),
        pytest.param("from time import sleep as nap\nnap(1)", id="renamed"),
        pytest.param("import asyncio as a\nawait a.sleep(0.1)", id="asyncio"),
        pytest.param("import asyncio\nawait asyncio.sleep(delay)", id="variable"),
    ],
)
def test_the_rule_sees_a_sleep(text: str) -> None:
    """Each way to sleep is found."""
    assert len(list(sleeps(module(text)))) == 1


def test_the_rule_lets_the_loop_turn() -> None:
    """asyncio.sleep(0) passes, and so does a sleep of something else."""
    assert list(sleeps(module("import asyncio\nawait asyncio.sleep(0)\nrobot.sleep(3)"))) == []

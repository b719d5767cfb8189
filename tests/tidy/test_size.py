"""A function fits on a screen and a module in a sitting.

What does not yet is listed in sizes.txt with its size, which may only shrink.
"""

import ast
from collections.abc import Iterator, Mapping

import pytest

from tests.tidy.tree import SRC, TESTS, Function, Module, module, modules

FUNCTION_LINES_MAX = 40
MODULE_LINES_MAX = 400
ALLOWED = TESTS / "tidy" / "sizes.txt"


def body_lines(function: Function) -> int:
    """Return the lines of the body of `function`, nested functions included, its docstring left out."""
    body = function.body
    if ast.get_docstring(function) is not None:
        body = body[1:]
    if not body:
        return 0
    last = body[-1].end_lineno
    assert last is not None
    return last - body[0].lineno + 1


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield (dotted name, function) of every function below `node`."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}."
        if isinstance(child, Function):
            yield name.rstrip("."), child
        yield from functions(child, name)


def too_long(source: Module) -> dict[str, int]:
    """Return name → lines of the module and of its functions where they exceed their limits."""
    sizes = {}
    lines = len(source.text.splitlines())
    if lines > MODULE_LINES_MAX:
        sizes[source.path] = lines
    for name, function in functions(source.tree):
        lines = body_lines(function)
        if lines > FUNCTION_LINES_MAX:
            sizes[f"{source.path}::{name}"] = lines
    return sizes


def allowed(text: str) -> dict[str, int]:
    """Return name → lines as the list of exceptions states them."""
    entries = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return {name: int(lines) for name, lines in entries}


def findings(present: Mapping[str, int], exceptions: Mapping[str, int]) -> list[str]:
    """Return what is wrong between the `present` sizes and the `exceptions`."""
    wrong = []
    for name, lines in present.items():
        if name not in exceptions:
            wrong.append(f"{name}: {lines} lines; over {FUNCTION_LINES_MAX} (function) or {MODULE_LINES_MAX} (module)")
        elif lines > exceptions[name]:
            wrong.append(f"{name}: grew from {exceptions[name]} to {lines} lines; it may only shrink")
        elif lines < exceptions[name]:
            wrong.append(f"{name}: shrank to {lines} lines; write that into {ALLOWED.name}")
    wrong += [f"{name}: within the limit; take it out of {ALLOWED.name}" for name in exceptions.keys() - present]
    return wrong


def test_functions_and_modules_are_short() -> None:
    """Nothing in src is longer than the limits, but for the listed exceptions at their exact size."""
    present: dict[str, int] = {}
    for source in modules(under=SRC):
        present |= too_long(source)
    assert findings(present, allowed(ALLOWED.read_text(encoding="utf-8"))) == []


def test_the_rule_sees_a_long_function_and_a_long_module() -> None:
    """A method of 41 lines and a module of 401 are found, 40 and 400 are not."""
    statement = "        pass\n"
    method = 'class Made:\n    def up(self):\n        """Doc."""\n'
    assert too_long(module(method + statement * 40)) == {}
    assert too_long(module(method + statement * 41)) == {"src/veilmq/core/made_up.py::Made.up": 41}
    assert too_long(module("pass\n" * 400)) == {}
    assert too_long(module("pass\n" * 401)) == {"src/veilmq/core/made_up.py": 401}


@pytest.mark.parametrize(
    ("present", "exceptions", "word"),
    [
        pytest.param({"a": 50}, "", "over", id="new"),
        pytest.param({"a": 50}, "a 49", "grew", id="grown"),
        pytest.param({"a": 50}, "# why\na 51", "shrank", id="shrunk"),
        pytest.param({}, "a 51", "take it out", id="gone"),
    ],
)
def test_the_ratchet_turns_one_way(present: dict[str, int], exceptions: str, word: str) -> None:
    """New, grown, shrunk and vanished exceptions are each told apart; an exact one passes."""
    (finding,) = findings(present, allowed(exceptions))
    assert word in finding
    assert findings(present, present) == []

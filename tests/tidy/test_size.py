"""Loose bounds on the single thing, so that a topic stands in one file; totals that only fall.

A module of 700 lines or a function of 70 is no aim: bounds that are much tighter make many rooms with a wall each.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.tree import SRC, Function, Module, module, modules

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 700
TOTALS = {"files": 221, "lines": 54_690, "lines of SQL": 3_536}
"""What the distributions have at the most. Whatever makes it smaller states the new figure here."""
SLACK = 0.01


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
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, Function | ast.ClassDef):
            name = f"{prefix}{child.name}."
        if isinstance(child, Function):
            yield name.rstrip("."), child
        yield from functions(child, name)


def too_long(source: Module) -> dict[str, int]:
    sizes = {}
    lines = len(source.text.splitlines())
    if lines > MODULE_LINES_MAX:
        sizes[source.path] = lines
    for name, function in functions(source.tree):
        lines = body_lines(function)
        if lines > FUNCTION_LINES_MAX:
            sizes[f"{source.path}::{name}"] = lines
    return sizes


def changed(name: str, stated: int, present: int) -> str | None:
    if present > stated:
        return f"{name}: grew from {stated} to {present}; a change that adds says what it replaces"
    if present < stated * (1 - SLACK):
        return f"{name}: fell from {stated} to {present}; write that into TOTALS"
    return None


def test_functions_and_modules_are_short() -> None:
    present: dict[str, int] = {}
    for source in modules(under=SRC):
        present |= too_long(source)
    assert present == {}


def test_totals_only_fall() -> None:
    texts = [source.text for source in modules(under=SRC)]
    sql = sum(file.read_text(encoding="utf-8").count("\n") for file in SRC.rglob("*.sql"))
    present = {"files": len(texts), "lines": sum(text.count("\n") for text in texts), "lines of SQL": sql}
    assert [wrong for name, stated in TOTALS.items() if (wrong := changed(name, stated, present[name]))] == []


def test_the_rule_sees_a_long_function_and_a_long_module() -> None:
    statement = "        pass\n"
    method = 'class Made:\n    def up(self):\n        """Doc."""\n'
    assert too_long(module(method + statement * 70)) == {}
    assert too_long(module(method + statement * 71)) == {"src/veilmq/core/made_up.py::Made.up": 71}
    assert too_long(module("pass\n" * 700)) == {}
    assert too_long(module("pass\n" * 701)) == {"src/veilmq/core/made_up.py": 701}


@pytest.mark.parametrize(
    ("present", "word"), [pytest.param(1_001, "grew", id="grown"), pytest.param(989, "fell", id="fallen")]
)
def test_the_ratchet_turns_one_way(present: int, word: str) -> None:
    assert word in (changed("files", 1_000, present) or "")
    assert changed("files", 1_000, 1_000) is changed("files", 1_000, 991) is None

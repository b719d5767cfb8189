"""Loose limits for functions and modules, and totals that only fall: files, lines, and words to replace.

The limits are not aims: tighter ones split topics into many small files.
"""

import ast
import re
import tokenize
from collections.abc import Iterator
from io import StringIO

import pytest

from tests.tidy.tree import SRC, TESTS, Function, Module, module, modules

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 700
TOTALS = {"files": 213, "lines": 53_471, "lines of SQL": 3_526}
"""The maximum sizes of the distributions; a change that reduces one states the new figure here."""
WORDS = frozenset(["told", "tell", "tells", "asked", "ask", "asks", "nobody", "whoever", "who"])
"""Words that personify programs. A program sends, requests, returns or reports; its client is a client."""
WORDS_MAX = {"src": 30, "tests": 10}
"""The maximum number of these words in names, comments and docstrings."""
SLACK, WORDS_SLACK = 0.01, 0.2


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


def changed(name: str, stated: int, present: int, slack: float = SLACK) -> str | None:
    if present > stated:
        return f"{name}: grew from {stated} to {present}; a change that adds says what it replaces"
    if present < stated * (1 - slack):
        return f"{name}: fell from {stated} to {present}; state the new figure in this file"
    return None


def test_functions_and_modules_are_short() -> None:
    assert [each for source in modules(under=SRC) for each in too_long(source).items()] == []


def test_totals_only_fall() -> None:
    texts = [source.text for source in modules(under=SRC)]
    sql = sum(file.read_text(encoding="utf-8").count("\n") for file in SRC.rglob("*.sql"))
    present = {"files": len(texts), "lines": sum(text.count("\n") for text in texts), "lines of SQL": sql}
    assert [wrong for name, stated in TOTALS.items() if (wrong := changed(name, stated, present[name]))] == []


def personifications(source: Module) -> int:
    """Count `WORDS` in the names, comments and docstrings of `source`."""
    tokens = tokenize.generate_tokens(StringIO(source.text).readline)
    texts = [token.string for token in tokens if token.type in (tokenize.NAME, tokenize.COMMENT)]
    alone = (node.value for node in ast.walk(source.tree) if isinstance(node, ast.Expr))
    texts += [str(value.value) for value in alone if isinstance(value, ast.Constant)]
    return sum(word.lower() in WORDS for text in texts for word in re.findall(r"[A-Z]?[a-z]+", text))


def test_personifications_only_fall() -> None:
    present = {under.name: sum(personifications(source) for source in modules(under=under)) for under in (SRC, TESTS)}
    checks = [changed(name, stated, present[name], WORDS_SLACK) for name, stated in WORDS_MAX.items()]
    assert [wrong for wrong in checks if wrong] == []


def test_the_rule_counts_words_of_names_comments_and_docstrings() -> None:
    text = '"""Tell the node."""\ndef asked_twice(whoIsIt): ...  # nobody\n'
    assert personifications(module(text)) == 4
    assert personifications(module('"""Told apart: tale, asking, whole."""\nerror = "nobody"\n')) == 1


def test_the_rule_finds_a_long_function_and_a_long_module() -> None:
    statement = "        pass\n"
    method = 'class Made:\n    def up(self):\n        """Doc."""\n'
    assert too_long(module(method + statement * 70)) == {}
    assert too_long(module(method + statement * 71)) == {"src/veilmq/core/made_up.py::Made.up": 71}
    assert too_long(module("pass\n" * 700)) == {}
    assert too_long(module("pass\n" * 701)) == {"src/veilmq/core/made_up.py": 701}


@pytest.mark.parametrize(
    ("present", "word"), [pytest.param(1_001, "grew", id="grown"), pytest.param(989, "fell", id="fallen")]
)
def test_a_total_must_be_lowered_when_it_falls(present: int, word: str) -> None:
    assert word in (changed("files", 1_000, present) or "")
    assert changed("files", 1_000, 1_000) is changed("files", 1_000, 991) is None

"""Every public name is documented: modules, classes, functions and methods of src.

Public is what no leading underscore hides, all the way up. Left out: nested functions; special methods,
setters, overloads and overrides, whose meaning is stated elsewhere; errors whose `text` states theirs.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.tidy.tree import SRC, Definition, Function, Module, module, modules

STATED_ELSEWHERE = {"overload", "override", "setter", "deleter"}


def is_public(name: str) -> bool:
    """Return whether `name` is neither private nor a special method."""
    return not name.startswith("_")


def is_stated_elsewhere(node: Definition) -> bool:
    """Return whether a decorator says that another definition documents `node`, or its `text` does."""
    if isinstance(node, ast.ClassDef) and any(ast.unparse(line).startswith("text = ") for line in node.body):
        return True
    return any(ast.unparse(mark).rpartition(".")[2] in STATED_ELSEWHERE for mark in node.decorator_list)


def public(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield (dotted name, definition) of what is public in `node`: under `if` and `try`, not in functions."""
    todo: list[ast.AST] = list(ast.iter_child_nodes(node))
    while todo:
        child = todo.pop(0)
        if isinstance(child, Definition):
            if is_public(child.name) and not is_stated_elsewhere(child):
                yield prefix + child.name, child
                if isinstance(child, ast.ClassDef):
                    yield from public(child, f"{prefix}{child.name}.")
        else:
            todo += ast.iter_child_nodes(child)


def is_public_module(path: str) -> bool:
    """Return whether no part of `path` is private; `__init__` and `__main__` are public."""
    return not any(part.startswith("_") and not part.startswith("__") for part in path.split("/"))


def undocumented(source: Module) -> Iterator[str]:
    """Yield each public name of `source` that has no docstring."""
    if not is_public_module(source.path):
        return
    tree = source.tree
    if not ast.get_docstring(tree):
        yield f"{source.path}: the module says nothing about itself"
    for name, node in public(tree):
        if not ast.get_docstring(node):
            kind = "function" if isinstance(node, Function) else "class"
            yield f"{source.path}:{node.lineno}: {kind} {name} is public and undocumented"


def test_public_names_are_documented() -> None:
    """Every public name of src has a docstring."""
    found: list[str] = []
    for source in modules(under=SRC):
        found += undocumented(source)
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x = 1", id="module"),
        pytest.param('"""Doc."""\ndef f(): ...', id="function"),
        pytest.param('"""Doc."""\nasync def f(): ...', id="coroutine"),
        pytest.param('"""Doc."""\nclass C:\n    x = 1', id="class"),
        pytest.param('"""Doc."""\nclass C:\n    """Doc."""\n    def f(self): ...', id="method"),
        pytest.param('"""Doc."""\nif x:\n    def f(): ...', id="conditional"),
    ],
)
def test_the_rule_sees_an_undocumented_name(text: str) -> None:
    """One missing docstring is one finding."""
    assert len(list(undocumented(module(text)))) == 1


def test_the_rule_lets_the_rest_pass() -> None:
    """Private, special, nested, overloaded and overriding definitions need no docstring."""
    text = '''"""Doc."""
def _f(): ...
class _C:
    def f(self): ...
class E:
    text = "It failed."
class C:
    """Doc."""
    def __init__(self): ...
    @override
    def f(self): ...
    @x.setter
    def x(self, value): ...
def g():
    """Doc."""
    def nested(): ...
'''
    assert list(undocumented(module(text))) == []
    assert list(undocumented(module("x = 1", path="src/veilmq/core/_made_up.py"))) == []

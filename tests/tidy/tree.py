"""The files that the rules check, and their syntax trees.

A rule is a function from a `Module` to its violations; tests of rules pass made-up modules.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
TESTS = ROOT / "tests"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Module:
    """A Python file: `path` from the root of the repository with `/` between its parts, and its text."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)


def modules(*, under: Path) -> Iterator[Module]:
    for file in sorted(under.rglob("*.py")):
        yield Module(path=file.relative_to(ROOT).as_posix(), text=file.read_text(encoding="utf-8"))


def shipped() -> Iterator[Module]:
    """Yield every Python file of the distributions."""
    for folder in (SRC, ROOT / "packages"):
        yield from modules(under=folder)


def queries(*, under: Path) -> Iterator[Module]:
    for file in sorted(under.rglob("*.sql")):
        lines = [line.partition("--")[0] for line in file.read_text(encoding="utf-8").splitlines()]
        yield Module(path=file.relative_to(ROOT).as_posix(), text="\n".join(lines))


def docstrings(tree: ast.Module) -> set[int]:
    """Return the `id` of every string in `tree` that is a statement."""
    return {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def words(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of every identifier, string and bytes constant in `tree`, except docstrings."""
    documentation = docstrings(tree)
    line = 1
    for node in ast.walk(tree):
        line = getattr(node, "lineno", line)
        if id(node) in documentation:
            continue
        for _, value in ast.iter_fields(node):
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str):
                    yield line, word
                elif isinstance(word, bytes):
                    yield line, word.decode("latin-1")


def module(text: str, *, path: str = "src/veilmq/core/made_up.py") -> Module:
    return Module(path=path, text=text)

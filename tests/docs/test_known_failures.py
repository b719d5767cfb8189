"""The page of what others' users complain about, and the tests of it: one section for each test, in the same order."""

import ast
import re

from tests.tidy.tree import ROOT

PAGE = ROOT / "docs" / "known-failures-of-others.md"
TESTS = ROOT / "tests" / "consumer" / "test_known_failures.py"
COMPLAINTS = 15


def sections() -> list[str]:
    """Return the text of each section."""
    return re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]


def functions() -> list[ast.FunctionDef]:
    """Return the tests of the file."""
    tree = ast.parse(TESTS.read_text(encoding="utf-8"))
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


def test_each_section_names_its_test_and_no_test_is_without() -> None:
    named = [re.findall(r"^Test: `(\w+)`$", section, re.MULTILINE) for section in sections()]
    assert named == [[test.name] for test in functions()]
    assert len(named) == COMPLAINTS


def test_sections_and_tests_have_the_same_numbers() -> None:
    numbers = [int(section.partition(".")[0]) for section in sections()]
    told = [int((ast.get_docstring(test) or "").partition(":")[0]) for test in functions()]
    assert numbers == told == [*range(1, COMPLAINTS + 1)]


def test_each_section_says_what_was_seen_where_and_why_and_what_is_done() -> None:
    for section in sections():
        parts = re.findall(r"^\*\*(\w+)\*\*: ", section, re.MULTILINE)
        assert parts == ["Seen", "Why", "Here"], section.splitlines()[0]
        assert "https://github.com/" in section.partition("**Why**")[0], section.splitlines()[0]

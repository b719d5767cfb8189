"""Time is an argument: rules, stores and consumers read no clock, in Python or in SQL; three files alone do.

Commands carry no time; the store's one `Clock` (store/clock.py) stamps them, or, where many nodes share a database,
the one function of its clock. A consumer reckons with durations and
has a clock of its own (consumer/clock.py), since it knows no store. Tests put virtual ones in: a clock read anywhere
else would be a moment that no test can choose.
"""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.tidy.tree import SRC, Module, module, modules, queries, words

TIMELESS = ("core", "store", "consumer")
CLOCKS = (
    "src/veilmq/store/clock.py",
    "src/veilmq/store/postgres/functions.sql",
    "src/veilmq/consumer/clock.py",
)

READERS = {
    "time": {
        "clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime", "monotonic", "monotonic_ns",
        "perf_counter", "perf_counter_ns", "time", "time_ns",
    },
    "datetime": {"now", "today", "utcnow"},
}  # fmt: skip
SQL_READERS = re.compile(
    r"'now'|\bCURRENT_(?:TIMESTAMP|TIME|DATE)\b|\bLOCALTIME(?:STAMP)?\b|\bnow\s*\(\s*\)|\bunixepoch\s*\(\s*\)"
    r"|\b(?:clock|statement|transaction)_timestamp\s*\(",
    re.IGNORECASE,
)


def aliases(tree: ast.Module) -> dict[str, str]:
    """Return name → full name of what `tree` imports from the modules that hold clocks."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in READERS:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return {name: full for name, full in names.items() if full.partition(".")[0] in READERS}


def python_readings(source: Module) -> Iterator[str]:
    """Yield each place in `source` that names a function which reads a clock, called or handed on."""
    tree = source.tree
    known = aliases(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        first, _, rest = ast.unparse(node).partition(".")
        full = ".".join(filter(None, [known.get(first), rest]))
        home, _, reader = full.rpartition(".")
        if first in known and reader in READERS.get(home.partition(".")[0], ()):
            yield f"{source.path}:{node.lineno}: reads {full}; take now_ms, or ask the Clock"


def sql_readings(source: Module) -> Iterator[str]:
    """Yield each string in `source` in which SQL reads a clock."""
    for line, text in words(source.tree):
        for match in SQL_READERS.finditer(text):
            yield f"{source.path}:{line}: SQL reads {match[0]}; bind now_ms"


def file_readings(query: Module) -> Iterator[str]:
    """Yield each line of the SQL file `query` that reads a clock."""
    for line, text in enumerate(query.text.splitlines(), start=1):
        for match in SQL_READERS.finditer(text):
            yield f"{query.path}:{line}: SQL reads {match[0]}; bind now_ms"


def test_rules_stores_and_consumers_read_no_clock() -> None:
    """Nothing under core, store and consumer but the clock modules reads a clock."""
    found: list[str] = []
    for part in TIMELESS:
        for source in modules(under=SRC / "veilmq" / part):
            if source.path not in CLOCKS:
                found += [*python_readings(source), *sql_readings(source)]
        for query in queries(under=SRC / "veilmq" / part):
            if query.path not in CLOCKS:
                found += file_readings(query)
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("import time\ntime.time()", id="module"),
        pytest.param("import time as t\nread = t.monotonic", id="handed-on"),
        pytest.param("from time import perf_counter_ns as tick\ntick()", id="renamed"),
        pytest.param("import datetime\ndatetime.datetime.now()", id="datetime-module"),
        pytest.param("from datetime import date, datetime\ndatetime.now(tz)", id="datetime-class"),
    ],
)
def test_the_rule_sees_a_clock_read_in_python(text: str) -> None:
    """Each way to reach a clock of the standard library is found once."""
    assert len(list(python_readings(module(text)))) == 1


def test_the_rule_lets_time_without_a_clock_pass() -> None:
    """A name that only looks like a clock is not one."""
    text = "import time\nfrom datetime import timedelta\ntime.strptime(a, b)\nnow.time()\nself.clock.now_ms()"
    assert list(python_readings(module(text))) == []


@pytest.mark.parametrize(
    "text",
    ["strftime('%s', 'now')", "CURRENT_TIMESTAMP", "select now()", "unixepoch()", "clock_timestamp()"],
    ids=["strftime", "current", "now", "unixepoch", "postgres"],
)
def test_the_rule_sees_a_clock_read_in_sql(text: str) -> None:
    """A clock read by SQL is found in a string and in a query file, and not in a docstring."""
    assert len(list(sql_readings(module(f'QUERY = "{text}"')))) == 1
    assert len(list(file_readings(module(text, path="made_up.sql")))) == 1
    assert list(sql_readings(module(f'"""Says {text}."""'))) == []

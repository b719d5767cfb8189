"""Tests of behaviour know what users have: a socket, a command, Spark, a documented class, a store's port.

A test that knows a private module lives in `tests/internals/<package>`: whoever rebuilds the inside rewrites those, and
no others. Fixtures (`conftest.py`) and the files of `HARNESS` open what the tests run on, and may know it.
"""

import ast
from collections.abc import Iterator
from importlib import import_module

import pytest

from tests.tidy.tree import TESTS, Module, module, modules

PUBLIC = (
    "pyspark_veilmq",
    "pytest_veilmq",
    "veilmq.client",
    "veilmq.core",  # what a store takes and answers: commands, results, errors, settings, limits
    "veilmq.pipeline.archive",
    "veilmq.pipeline.event_log",
    "veilmq.pipeline.cells",
    "veilmq.spark.retries",
    "veilmq.spark.snapshots",
    "veilmq.wire.sqs.actions",  # with the errors, the tables of docs/protocols/sqs.md
    "veilmq.wire.sqs.errors",
    "veilmq.wire.v1",  # the rows and routes of our own API, of which OpenAPI is made
    # and what these packages export or document as the place of something: docs/consumer.md, docs/testing.md
    "veilmq.consumer.renewal_policies",
    "veilmq.consumer.records",
    "veilmq.testing.faults",
    "veilmq.testing.running_server",
    "veilmq.testing.clocks",
)
EXPORTING = ("veilmq.consumer", "veilmq.testing")
"""Packages whose `__all__` is public, and their modules are not."""
ELSEWHERE = tuple(f"tests/{folder}/" for folder in ("internals", "tidy", "docs", "benchmarks"))
"""Internals, and what is about this tree: its rules, pages and benchmarks."""
HARNESS = {
    "tests/cli/every_command.py",
    "tests/console/every_page.py",
    "tests/consumer/simulation.py",
    "tests/pipeline/closed.py",
    "tests/server/http_host.py",
    "tests/server/keys.py",
    "tests/spark/provoked.py",
    "tests/store/host.py",
    "tests/store/postgres_host.py",
    "tests/stories/through_engine.py",
}


def is_public(name: str) -> bool:
    package, _, last = name.rpartition(".")
    if name in EXPORTING or name == "veilmq.__version__":
        return True
    if package in EXPORTING and last in import_module(package).__all__:
        return True
    return any(f"{name}.".startswith(f"{each}.") for each in PUBLIC)


def crossings(source: Module) -> Iterator[str]:
    """Yield each import in `source` of what is not public, or of a test that is not."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            ours = name.partition(".")[0] in {"veilmq", "pytest_veilmq", "pyspark_veilmq"}
            if name.startswith("tests.internals") or (ours and not is_public(name)):
                yield f"{source.path}:{node.lineno}: {name}"


def behaviour() -> list[Module]:
    return [
        source
        for source in modules(under=TESTS)
        if not source.path.startswith(ELSEWHERE) and not source.path.endswith("conftest.py")
    ]


def test_behaviour_knows_nothing_private() -> None:
    """What needs a private module goes into tests/internals, what opens a store or a server for others into HARNESS."""
    found = {source.path: list(crossings(source)) for source in behaviour()}
    assert [line for path, lines in found.items() if path not in HARNESS for line in lines] == []
    assert [path for path in sorted(HARNESS) if not found.get(path)] == [], (
        "knows nothing private: take it out of HARNESS"
    )


def test_the_fixtures_know_what_their_users_know() -> None:
    """They are another distribution, and go with each version of veilmq that their own metadata allows."""
    assert [line for source in modules(under=TESTS.parent / "packages") for line in crossings(source)] == []


def test_a_harness_is_no_test() -> None:
    """It opens what tests run on; a test in it would not be held to the border."""
    assert [path for path in HARNESS if path.rpartition("/")[2].startswith("test_")] == []


def test_internals_are_of_a_package() -> None:
    known = {folder.name for folder in (TESTS.parent / "src" / "veilmq").iterdir()}
    beside = {folder.name for folder in TESTS.iterdir()}
    folders = {folder.name for folder in (TESTS / "internals").iterdir() if folder.is_dir() and folder.name[0] != "_"}
    assert folders <= known | beside


@pytest.mark.parametrize(
    ("text", "crosses"),
    [
        ("from veilmq.client import HttpQueueClient", False),
        ("from veilmq.consumer import Consumer", False),
        ("from veilmq.core.commands import Send", False),
        ("from veilmq.consumer import intake", True),
        ("from veilmq.consumer.intake import Intake", True),
        ("from veilmq import store", True),
        ("import veilmq.server.dispatch", True),
        ("from tests.internals.wire import asking", True),
    ],
)
def test_the_border_is_seen(text: str, *, crosses: bool) -> None:
    assert bool(list(crossings(module(text)))) is crosses

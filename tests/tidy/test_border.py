"""Tests of behaviour import only what users have: clients, commands, Spark, documented classes, a store's port.

Tests that import private modules are in `tests/internals/<package>`, so that a change of the implementation changes no
other tests. Fixtures (`conftest.py`) and the files in `HARNESS` start servers and stores, and may import them.
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
    "veilmq.core",  # the port of a store: commands, results, errors, settings, limits
    "veilmq.pipeline.archive",
    "veilmq.pipeline.event_log",
    "veilmq.pipeline.cells",
    "veilmq.spark.retries",
    "veilmq.spark.snapshots",
    "veilmq.wire.sqs.actions",  # the source of tables in docs/protocols/sqs.md
    "veilmq.wire.sqs.errors",
    "veilmq.wire.v1",  # the source of the OpenAPI description
    # documented in docs/consumer.md and docs/testing.md
    "veilmq.consumer.renewal_policies",
    "veilmq.consumer.records",
    "veilmq.testing.faults",
    "veilmq.testing.running_server",
    "veilmq.testing.clocks",
)
EXPORTING = ("veilmq.consumer", "veilmq.testing")
"""Packages with a public `__all__` and private modules."""
ELSEWHERE = tuple(f"tests/{folder}/" for folder in ("internals", "tidy", "docs", "benchmarks"))
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
    """Yield each import in `source` of a private module, or of a test in tests/internals."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            is_veilmq = name.partition(".")[0] in {"veilmq", "pytest_veilmq", "pyspark_veilmq"}
            if name.startswith("tests.internals") or (is_veilmq and not is_public(name)):
                yield f"{source.path}:{node.lineno}: {name}"


def behaviour() -> list[Module]:
    return [
        source
        for source in modules(under=TESTS)
        if not source.path.startswith(ELSEWHERE) and not source.path.endswith("conftest.py")
    ]


def test_tests_of_behaviour_import_no_private_modules() -> None:
    """Move such a test to tests/internals; add a helper that starts a store or a server to HARNESS."""
    found = {source.path: list(crossings(source)) for source in behaviour()}
    assert [line for path, lines in found.items() if path not in HARNESS for line in lines] == []
    needless = [path for path in sorted(HARNESS) if not found.get(path)]
    assert needless == [], "imports no private modules: remove it from HARNESS"
    assert [path for path in HARNESS if path.rpartition("/")[2].startswith("test_")] == []


def test_pytest_veilmq_imports_no_private_modules() -> None:
    """It is another distribution, which works with a range of versions of veilmq."""
    assert [line for source in modules(under=TESTS.parent / "packages") for line in crossings(source)] == []


def test_each_folder_of_internals_has_the_name_of_a_package() -> None:
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
def test_the_rule_finds_private_imports(text: str, *, crosses: bool) -> None:
    assert bool(list(crossings(module(text)))) is crosses

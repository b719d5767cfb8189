"""Rules of the code, with their reasons."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SRC, TESTS, Definition, Function, Module, module, modules, queries, shipped, words

TIMELESS = ("core", "store", "consumer")
CLOCKS = ("src/veilmq/store/clock.py", "src/veilmq/store/postgres/functions.sql", "src/veilmq/consumer/clock.py")

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
    """Return name → full name of imports from the modules with clocks."""
    return {name: full for name, full in imported(tree).items() if full.partition(".")[0] in READERS}


def python_readings(source: Module) -> Iterator[str]:
    """Yield each reference in `source` to a function that reads a clock."""
    tree = source.tree
    known = aliases(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        first, _, rest = ast.unparse(node).partition(".")
        full = ".".join(filter(None, [known.get(first), rest]))
        home, _, reader = full.rpartition(".")
        if first in known and reader in READERS.get(home.partition(".")[0], ()):
            yield f"{source.path}:{node.lineno}: reads {full}; take now_ms, or use the Clock"


def sql_readings(source: Module) -> Iterator[str]:
    for line, text in words(source.tree):
        for match in SQL_READERS.finditer(text):
            yield f"{source.path}:{line}: SQL reads {match[0]}; bind now_ms"


def file_readings(query: Module) -> Iterator[str]:
    for line, text in enumerate(query.text.splitlines(), start=1):
        for match in SQL_READERS.finditer(text):
            yield f"{query.path}:{line}: SQL reads {match[0]}; bind now_ms"


def test_core_stores_and_consumers_read_no_clock() -> None:
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
    ["strftime('%s', 'now')", "CURRENT_TIMESTAMP", "select now()", "unixepoch()", "clock_timestamp()"],
    ids=["strftime", "current", "now", "unixepoch", "postgres"],
)
def test_the_rule_finds_a_clock_in_sql(text: str) -> None:
    assert len(list(sql_readings(module(f'QUERY = "{text}"')))) == 1
    assert len(list(file_readings(module(text, path="made_up.sql")))) == 1
    assert list(sql_readings(module(f'"""Says {text}."""'))) == []


# Every public module, class, function and method of src has a docstring.
#
# Exempt are functions of one statement in packages that users do not import; nested functions; special methods,
# setters, overloads, overrides, methods that a base class documents; handlers of commands, documented elsewhere;
# errors with a `text`; requests and results of SQS actions.


SHAPES = {"Shape", "QueueRequest", "MessageToSend"}
IMPORTED = tuple(f"src/veilmq/{package}/" for package in ("client", "consumer", "core", "spark", "testing"))
"""The packages that users import; `docs/reference` has their names."""
STATED_ELSEWHERE = {"overload", "override", "setter", "deleter", "changes", "reads", "snapshot"}


def is_public(name: str) -> bool:
    return not name.startswith("_")


def is_stated_elsewhere(node: Definition) -> bool:
    """Return whether `node` is exempt by a decorator, its `text` or its name."""
    if isinstance(node, ast.ClassDef):
        is_shape = any(ast.unparse(base).rpartition(".")[2] in SHAPES for base in node.bases)
        has_text = any(ast.unparse(line).startswith("text = ") for line in node.body)
        return has_text or (is_shape and node.name.endswith(("Request", "Result")))
    return any(ast.unparse(mark).rpartition(".")[2] in STATED_ELSEWHERE for mark in node.decorator_list)


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for node in (each for source in modules(under=SRC) for each in ast.walk(source.tree)):
        if isinstance(node, ast.ClassDef):
            found.setdefault(node.name, []).append(node)
    return found


def stated_by_bases(node: ast.Module | ast.ClassDef) -> set[str]:
    """Return the names of methods that the bases of `node` document, at any depth."""
    stated: set[str] = set()
    for base in node.bases if isinstance(node, ast.ClassDef) else []:
        for each in classes().get(ast.unparse(base).rpartition(".")[2], []):
            stated |= {line.name for line in each.body if isinstance(line, Function) and ast.get_docstring(line)}
            stated |= stated_by_bases(each) if each is not node else set()
    return stated


def public(node: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Yield (dotted name, definition) of public definitions in `node`, also under `if` and `try`."""
    stated = stated_by_bases(node)
    todo: list[ast.AST] = list(ast.iter_child_nodes(node))
    while todo:
        child = todo.pop(0)
        if isinstance(child, Definition):
            if is_public(child.name) and child.name not in stated and not is_stated_elsewhere(child):
                yield prefix + child.name, child
                if isinstance(child, ast.ClassDef):
                    yield from public(child, f"{prefix}{child.name}.")
        else:
            todo += ast.iter_child_nodes(child)


def is_public_module(path: str) -> bool:
    """Return whether no part of `path` is private; `__init__` and `__main__` are public."""
    return not any(part.startswith("_") and not part.startswith("__") for part in path.split("/"))


def is_trivial(node: Definition) -> bool:
    return isinstance(node, Function) and len(node.body) == 1 and not hasattr(node.body[0], "body")


def undocumented(source: Module) -> Iterator[str]:
    if not is_public_module(source.path):
        return
    tree = source.tree
    if not ast.get_docstring(tree):
        yield f"{source.path}: the module has no docstring"
    for name, node in public(tree):
        if not ast.get_docstring(node) and (source.path.startswith(IMPORTED) or not is_trivial(node)):
            kind = "function" if isinstance(node, Function) else "class"
            yield f"{source.path}:{node.lineno}: {kind} {name} is public and undocumented"


def test_public_names_are_documented() -> None:
    assert [line for source in shipped() for line in undocumented(source)] == []


# Imports obey the contracts in pyproject.toml, which name every package.


LINT = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"


def lint_imports(*, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter in `folder`, which has a pyproject.toml, on the package in `source`."""
    command, variables = [sys.executable, "-c", LINT, "--no-cache"], os.environ | {"PYTHONPATH": str(source)}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=60, check=False)


def made_up_package(folder: Path, files: dict[str, str]) -> Path:
    """Write a package `veilmq` with `files` (path → text) and the contracts into `folder`."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    named = ("core", "consumer", "store", "events")
    needed = {"__init__.py": "", "../pytest_veilmq/__init__.py": ""} | {f"{part}/__init__.py": "" for part in named}
    for path, text in (needed | files).items():
        file = folder / "veilmq" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def test_imports_obey_the_contracts() -> None:
    done = lint_imports(source=SRC, folder=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("path", "text", "error"),
    [
        ("server/__init__.py", "import veilmq.wire, socket\n", ""),
        ("wire/__init__.py", "import veilmq.store\n", "veilmq.wire is not allowed to import veilmq.store"),
        ("core/leak.py", "import socket\n", "veilmq.core is not allowed to import socket"),
        ("consumer/leak.py", "import veilmq.store\n", "veilmq.consumer is not allowed to import veilmq.store"),
        ("misc/__init__.py", "", "veilmq.misc"),  # in no contract
    ],
)
def test_the_contracts_find_a_wrong_import(tmp_path: Path, path: str, text: str, error: str) -> None:
    files = {"wire/__init__.py": "import veilmq.core\n", path: text}
    done = lint_imports(source=tmp_path, folder=made_up_package(tmp_path, files))
    assert (done.returncode, error in done.stdout) == (1 if error else 0, True), done.stdout + done.stderr


# Modules have the name of a topic.


CATCH_ALLS = {"common", "helper", "helpers", "misc", "util", "utilities", "utils"}
CODE = ("src", "packages", "tests", "benchmarks", "examples")


def is_catch_all(path: str) -> bool:
    return any(part.strip("_") in CATCH_ALLS for part in path.removesuffix(".py").split("/"))


def test_no_module_is_a_catch_all() -> None:
    files = [file.relative_to(ROOT).as_posix() for folder in CODE for file in (ROOT / folder).rglob("*.py")]
    assert files
    assert [path for path in files if is_catch_all(path)] == []


@pytest.mark.parametrize("path", ["src/veilmq/utils.py", "tests/helpers/clock.py", "src/veilmq/core/_common.py"])
def test_the_rule_finds_a_catch_all(path: str) -> None:
    assert is_catch_all(path)
    assert not is_catch_all("src/veilmq/core/receipts.py")


# Tests do not sleep: they move a virtual clock.
#
# Exempt are the proofs, which run real load, and the files in ALLOWED. `asyncio.sleep(0)` only yields to the loop.


PROOFS = ("tests/proofs/", "tests/internals/proofs/")
ALLOWED: dict[str, str] = {
    "tests/consumer/test_policies.py": "handlers sleep in a bench's time",
    "tests/internals/testing/test_consumer_bench.py": "its handlers sleep in the bench's time",
}
SLEEPERS = {"time.sleep", "asyncio.sleep", "anyio.sleep"}


def imported(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def only_yields(name: str, call: ast.Call) -> bool:
    """Return whether `call` is an asynchronous sleep of a literal 0."""
    delay = call.args[0] if call.args else None
    return name != "time.sleep" and isinstance(delay, ast.Constant) and delay.value == 0


def sleeps(source: Module) -> Iterator[str]:
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
    found = {source.path: list(sleeps(source)) for source in modules(under=TESTS) if not source.path.startswith(PROOFS)}
    assert [line for path, lines in found.items() if path not in ALLOWED for line in lines] == []
    assert [path for path in ALLOWED if not found.get(path)] == [], "no longer sleeps: remove it from ALLOWED"


# Protocol names appear only in wire/ and in the packages for users of SQS and SMQ: cli/, client/ and console/.
#
# Elsewhere it is `visible_at_ms`, `receipt` and `delay_s`. Comments and docstrings may have protocol names.


USER_INTERFACES = ("src/veilmq/wire/", "src/veilmq/cli/", "src/veilmq/client/", "src/veilmq/console/")

SQS = """ApproximateFirstReceiveTimestamp ApproximateNumberOfMessages ApproximateReceiveCount BinaryValue DelaySeconds
    KmsMasterKeyId MaxNumberOfMessages MaxReceiveCount MaximumMessageSize MD5Of MessageAttributes? MessageBody
    MessageDeduplicationId MessageGroupId MessageRetentionPeriod MessageSystemAttributes? QueueArn QueueName QueueUrl
    ReceiptHandle ReceiveMessageWaitTimeSeconds ReceiveRequestAttemptId RedriveAllowPolicy RedrivePolicy SentTimestamp
    StringValue VisibilityTimeout WaitTimeSeconds"""
SMQ = """ActiveMessages DelayMessages DequeueCount EnqueueTime FirstDequeueTime InactiveMessages NextVisibleTime
    PollingWaitSeconds"""
FOREIGN = re.compile("|".join([*SQS.split(), *SMQ.split()]), re.IGNORECASE)


def foreign(source: Module) -> Iterator[str]:
    """Yield each identifier and string of `source` with a name of a protocol."""
    for line, text in words(source.tree):
        for match in FOREIGN.finditer(text):
            yield f"{source.path}:{line}: {match[0]} belongs to wire/; use the name of core"


def test_protocol_names_appear_only_in_wire_and_user_interfaces() -> None:
    found = [line for each in shipped() if not each.path.startswith(USER_INTERFACES) for line in foreign(each)]
    for query in queries(under=SRC):
        found += [f"{query.path}: {match[0]} belongs to wire/" for match in FOREIGN.finditer(query.text)]
    assert found == []


# Tests of the rules.


Rule = Callable[[Module], Iterator[str]]
BROKEN: dict[Rule, list[str]] = {
    python_readings: [
        *("import time\ntime.time()", "import time as t\nread = t.monotonic"),
        *("from time import perf_counter_ns as tick\ntick()", "import datetime\ndatetime.datetime.now()"),
        "from datetime import date, datetime\ndatetime.now(tz)",
    ],
    undocumented: [
        *("x = 1", '"""Doc."""\ndef f(): ...', '"""Doc."""\nasync def f(): ...', '"""Doc."""\nclass C:\n    x = 1'),
        *('"""Doc."""\nclass C(Clock):\n    """Doc."""\n    def f(self): ...', '"""Doc."""\nif x:\n    def f(): ...'),
        *('"""Doc."""\nclass Entry(Shape): ...', '"""Doc."""\nclass BulkRequest(Command): ...'),
    ],
    sleeps: [
        *("import time\ntime.sleep(0)", "from time import sleep as nap\nnap(1)"),
        *("import asyncio as a\nawait a.sleep(0.1)", "import asyncio\nawait asyncio.sleep(delay)"),
    ],
    foreign: [
        *("class VisibilityTimeoutTooLong: ...", "def take(*, receiptHandle): ...", "command.QueueUrl"),
        *("send(DelaySeconds=5)", "import a.NextVisibleTime", "name = 'WaitTimeSeconds'"),
        *("name = f'{x} DequeueCount'", "name = b'MessageBody'"),
    ],
}
DOCUMENTED = '''"""Doc."""
def _f(): ...
class _C:
    def f(self): ...
class E:
    text = "It failed."
class SendMessageRequest(members.QueueRequest): ...
class C:
    """Doc."""
    def __init__(self): ...
    @override
    def f(self): ...
    @x.setter
    def x(self, value): ...
class D(commands.Clock):
    """Doc."""
    def now_ms(self): ...
@changes
async def h(tx, command): ...
def g():
    """Doc."""
    def nested(): ...
'''
KEPT: dict[Rule, str] = {
    python_readings: (
        "import time\nfrom datetime import timedelta\ntime.strptime(a, b)\nnow.time()\nself.clock.now_ms()"
    ),
    undocumented: DOCUMENTED,
    sleeps: "import asyncio\nawait asyncio.sleep(0)\nrobot.sleep(3)",
    foreign: '"""VisibilityTimeout."""\n# ReceiptHandle\nreceipt = 1\n"""QueueUrl, documented."""\n',
}


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in BROKEN.items() for text in texts])
def test_a_rule_finds_a_violation(rule: Rule, text: str) -> None:
    assert len(list(rule(module(text)))) == 1


@pytest.mark.parametrize("rule", KEPT)
def test_a_rule_accepts_valid_code(rule: Rule) -> None:
    assert list(rule(module(KEPT[rule]))) == []


def test_private_modules_need_no_documentation() -> None:
    assert list(undocumented(module("x = 1", path="src/veilmq/core/_made_up.py"))) == []


def test_a_function_of_one_statement_needs_documentation_only_where_users_import_it() -> None:
    text = '"""Doc."""\ndef f():\n    return 1'
    assert list(undocumented(module(text, path="src/veilmq/server/made_up.py"))) == []
    assert len(list(undocumented(module(text, path="src/veilmq/consumer/made_up.py")))) == 1
    assert (
        len(
            list(
                undocumented(module(f"{text}\ndef g():\n    a = 1\n    return a", path="src/veilmq/server/made_up.py"))
            )
        )
        == 1
    )

"""Mutations of the product, and how many of them the tests detect: `make mutations`, in an environment with cosmic-ray.

A seed draws small changes of `src/veilmq`, over all packages by size: inverted comparisons, bounds off by one, dropped
branches, locks, `await`s and conditions of SQL queries, changed arithmetic and loops. Each is applied to a copy of the
tree, so that processes run it, too. The tests that executed its line run, the most specific first, for at most a
minute; a run of the whole suite with coverage contexts (`--record`) finds these tests.

A failure counts only if the test passes without the mutation. Results are appended to a file, so that an interrupted
run can resume. `--compare` prints the shares of two files by package, and the mutations only the first one detects.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from queue import Queue

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from coverage.numbits import numbits_to_nums

ROOT = Path(__file__).parents[1]
SOURCE = Path("src/veilmq")
BUILD = ROOT / "build" / "mutations"
SECONDS_MAX = 60.0
SECONDS_OF_TESTS = 40.0  # of the chosen tests in the recorded run; starting pytest takes the rest of the minute
PER_PACKAGE_MIN = 5
MODULES = ("tests/clients/javascript/node_modules", "tests/console/axe/node_modules")
INSTALLED = (".venv", ".clients", "build/docs", *MODULES)
SQL_SHARE = 0.1

_OPPOSITES = (("Eq", "NotEq"), ("Lt", "GtE"), ("Gt", "LtE"), ("Is", "IsNot"))
_INVERTED = {name: opposite for pair in _OPPOSITES for name, opposite in (pair, pair[::-1])}
_OFF_BY_ONE = {"Lt": "LtE", "LtE": "Lt", "Gt": "GtE", "GtE": "Gt"}
_ARITHMETIC = {"Add": "Sub", "Sub": "Add", "Mul": "FloorDiv", "FloorDiv": "Mul", "Div": "Mul", "Mod": "FloorDiv"}


def _comparisons(changes: dict[str, str]) -> tuple[str, ...]:
    return tuple(f"core/ReplaceComparisonOperator_{before}_{after}" for before, after in changes.items())


KINDS = {
    "comparison inverted": _comparisons(_INVERTED),
    "bound off by one": (*_comparisons(_OFF_BY_ONE), "core/NumberReplacer"),
    "condition changed": ("core/ReplaceAndWithOr", "core/ReplaceOrWithAnd", "core/ReplaceUnaryOperator_Delete_Not"),
    "constant inverted": ("core/ReplaceTrueWithFalse", "core/ReplaceFalseWithTrue"),
    "arithmetic": tuple(f"core/ReplaceBinaryOperator_{before}_{after}" for before, after in _ARITHMETIC.items()),
    "loop": ("core/ZeroIterationForLoop", "core/ReplaceBreakWithContinue", "core/ReplaceContinueWithBreak"),
    "branch dropped": (),
    "await or lock dropped": (),
}
"""Kind → operators of cosmic-ray; kinds without any are implemented here."""
_WEIGHTS = (4, 4, 3, 1, 2, 1, 4, 2)

_SQL_NAME = re.compile(r"^-- name: (\w+)", re.MULTILINE)
_SQL_CONDITION = re.compile(
    r"\bAND\s+(?:[^()\n;]|\((?:[^()]|\([^()]*\))*\))+?"
    r"(?=\s+(?:AND|OR|ORDER|LIMIT|FOR|RETURNING|GROUP|ON|THEN)\b|\s*[;)\n]|\s*$)"
)


@dataclass(frozen=True)
class Edit:
    """A change: the new text of a file, and the replaced line (from 1); ``query`` is set in SQL files."""

    file: str
    kind: str
    line: int
    before: str
    after: str
    text: str = field(repr=False)
    query: str = ""

    @property
    def key(self) -> str:
        """Return an identifier that is the same in any checkout with the same sources."""
        return f"{self.file}:{self.line} {self.kind}: {self.before.strip()} → {self.after.strip()}"

    @property
    def package(self) -> str:
        parts = Path(self.file).relative_to(SOURCE).parts
        return "/".join(parts[:2]) if parts[0] == "store" and len(parts) > 2 else parts[0]


@dataclass(frozen=True)
class Result:
    """``detected`` by ``test``, ``survived`` all tests that ran, or ``uncovered``: no test runs the line."""

    key: str
    package: str
    outcome: str
    tests: int = 0
    test: str = ""


def places_of(code: str, kind: str) -> list[tuple[int, Callable[[], str | None]]]:
    """Return the places of a Python file that can be mutated: the line, and a function that returns the new text."""
    found: list[tuple[int, Callable[[], str | None]]] = []
    for operator in map(get_operator, KINDS[kind]):
        made = operator()
        positions = [place for node in ast_nodes(get_ast(code)) for place in made.mutation_positions(node)]
        found += [(start[0], partial(mutate_code, code, made, number)) for number, (start, _) in enumerate(positions)]
    if kind == "branch dropped":
        found += _branches(code)
    if kind == "await or lock dropped":
        found += _waits(code)
    return [place for place in found if place[0] not in _lines_of_types(code)]


def _edit(name: str, kind: str, line: int, code: str, changed: str) -> Edit:
    before, after = code.splitlines(), changed.splitlines()
    at = next((n for n, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), line - 1)
    return Edit(name, kind, line, before[at], after[at] if at < len(after) else "", changed)


def _replaced(code: str, node: ast.expr, start: str, end: str | None = None) -> str:
    """Surround an expression by ``start`` and ``end``; without ``end`` replace it."""
    lines = code.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    stop = sum(map(len, lines[: (node.end_lineno or 0) - 1])) + (node.end_col_offset or 0)
    raw = code.encode()
    kept = b"" if end is None else raw[begin:stop] + end.encode()
    return (raw[:begin] + start.encode() + kept + raw[stop:]).decode()


def _branches(code: str) -> Iterator[tuple[int, Callable[[], str]]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.If):
            yield node.lineno, partial(_replaced, code, node.test, "False and (", ")")


def _waits(code: str) -> Iterator[tuple[int, Callable[[], str]]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Await):
            yield node.lineno, partial(_replaced, code, node.value, "None")
        elif (
            isinstance(node, ast.With | ast.AsyncWith) and len(node.items) == 1 and node.items[0].optional_vars is None
        ):
            entered = node.items[0].context_expr
            if re.search(r"lock|gate|savepoint|transaction", ast.unparse(entered)):
                yield node.lineno, partial(_replaced, code, entered, "__import__('contextlib').nullcontext()")


@cache
def _lines_of_types(code: str) -> frozenset[int]:
    """Return the lines that no run executes: `if TYPE_CHECKING`, protocols, overloads."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        is_protocol = isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).startswith("Protocol") for base in node.bases
        )
        if (is_guard or is_protocol) and isinstance(node, ast.stmt):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return frozenset(lines)


def sql_edits_of(path: Path) -> list[Edit]:
    code = path.read_text(encoding="utf-8")
    found = []
    for match in _SQL_CONDITION.finditer(code):
        start_of_line = code.rfind("\n", 0, match.start()) + 1
        names = _SQL_NAME.findall(code[: match.start()])
        line = code[start_of_line : match.start()]
        if names and "BETWEEN" not in line and not line.lstrip().startswith("--"):
            text = code[: match.start()] + "AND TRUE" + code[match.end() :]
            number = code.count("\n", 0, match.start()) + 1
            name = str(path.relative_to(ROOT))
            found.append(Edit(name, "SQL condition dropped", number, match[0], "AND TRUE", text, names[-1]))
    return found


def draw(seed: int, count: int) -> list[Edit]:
    """Return ``count`` edits, over the packages by lines and at least some of each; equal for equal seeds."""
    chance = random.Random(seed)
    files = sorted(path for path in (ROOT / SOURCE).glob("*/**/*.py") if path.name != "__init__.py")
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    packages: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        packages[Edit(str(path.relative_to(ROOT)), "", 0, "", "", "").package].append(path)
    total = sum(lines.values())
    drawn: dict[str, Edit] = {}
    for _, members in sorted(packages.items()):
        share = sum(lines[path] for path in members) / total
        wanted = max(PER_PACKAGE_MIN, round(count * (1 - SQL_SHARE) * share))
        for _ in range(wanted * 20):
            path = chance.choices(members, [lines[path] for path in members])[0]
            kind = chance.choices(list(KINDS), _WEIGHTS)[0]
            code = path.read_text(encoding="utf-8")
            places = places_of(code, kind) if wanted else []
            if places:
                line, mutate = chance.choice(places)
                changed = mutate()
                if changed is not None and changed != code and _is_python(changed):
                    edit = _edit(str(path.relative_to(ROOT)), kind, line, code, changed)
                    wanted -= edit.key not in drawn
                    drawn[edit.key] = edit
    conditions = [edit for path in sorted((ROOT / SOURCE).rglob("*.sql")) for edit in sql_edits_of(path)]
    for edit in chance.sample(conditions, min(len(conditions), round(count * SQL_SHARE))):
        drawn[edit.key] = edit
    return list(drawn.values())


def _is_python(code: str) -> bool:
    try:
        ast.parse(code)
    except SyntaxError:  # the asterisk of parameters is no multiplication
        return False
    return True


class Suite:
    """The tests of a checkout and the lines that each executed, as ``record`` stored them."""

    def __init__(self, recorded: Path) -> None:
        self._database = sqlite3.connect(recorded / "coverage.db")
        self._seconds = _seconds(recorded / "tests.xml")
        self._tests = {
            number: _without_group(name.rpartition("|")[0])
            for number, name in self._database.execute("SELECT id, context FROM context")
        }
        self._files = {
            path[path.rindex(str(SOURCE)) :]: number
            for number, path in self._database.execute("SELECT id, path FROM file")
            if str(SOURCE) in path
        }
        self._breadth = self._breadths()
        self.sound: set[str] = set()

    def _breadths(self) -> Counter[str]:
        """Return the number of files that each test executed: the fewer, the more specific it is."""
        breadth: Counter[str] = Counter()
        for context, files in self._database.execute("SELECT context_id, count(*) FROM line_bits GROUP BY context_id"):
            breadth[self._tests[context]] += files
        return breadth

    def covering(self, edit: Edit) -> list[str]:
        """Return the tests that executed the line of ``edit``, the most specific first, up to ``SECONDS_OF_TESTS``.

        For code that runs at import, or a later line of a statement, return those of the whole file.
        """
        tests: set[str] = set()
        for file, line in _places(edit):
            rows = self._rows(file)
            of_line = {test for test, lines in rows if line in lines}
            tests |= of_line - {""} or {test for test, _ in rows if test}
        chosen: list[str] = []
        seconds = 0.0
        for test in sorted(tests, key=lambda test: (self._breadth[test], test)):
            seconds += self._seconds.get(test, 0.1)
            if chosen and seconds > SECONDS_OF_TESTS:
                break
            chosen.append(test)
        return chosen

    def _rows(self, file: str) -> list[tuple[str, frozenset[int]]]:
        number = self._files.get(file)
        rows = self._database.execute("SELECT context_id, numbits FROM line_bits WHERE file_id = ?", (number,))
        return [(self._tests[context], frozenset(numbits_to_nums(bits))) for context, bits in rows]

    def run(self, tests: Sequence[str], work: Path) -> tuple[int | None, str]:
        """Run tests in the copy ``work``; return the exit status (``None`` after a minute) and the failed test."""
        command = [".venv/bin/python", "-m", "pytest", "-x", "-q", "-n0", "-rfE", "--timeout", "30", "--no-header"]
        command += ["--hypothesis-profile", "unshrunk"]  # shrinking takes minutes; a mutation would seem to survive
        environment = os.environ | {"PYTHONPATH": str(work / "src"), "CI": "true"}
        selected = work / "selected.txt"  # thousands of tests exceed a command line
        selected.write_text("\n".join(tests), encoding="utf-8")
        with subprocess.Popen(
            [*command, f"@{selected}"],
            cwd=work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=SECONDS_MAX)
            except subprocess.TimeoutExpired:
                for number in (signal.SIGINT, signal.SIGKILL):
                    os.killpg(process.pid, number)
                    try:
                        process.communicate(timeout=10)
                        break
                    except subprocess.TimeoutExpired:
                        continue
                return None, ""
        ends = [line.partition(" ")[2] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        failed = [test for test in tests for end in ends if end == test or end.startswith(f"{test} - ")]
        return process.returncode, failed[0] if failed else ""


def _places(edit: Edit) -> Iterator[tuple[str, int]]:
    if not edit.query:
        yield edit.file, edit.line
        return
    folder = (ROOT / edit.file).parent
    modules = sorted((folder.parent if folder.name == "queries" else folder).rglob("*.py"))
    for name in (f'"{edit.query}"', f'"{Path(edit.file).name}"'):  # those of the doctor are named by sentences
        found = [
            (str(path.relative_to(ROOT)), number)
            for path in modules
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            if name in line
        ]
        if found:
            yield from found
            return


def _seconds(report: Path) -> dict[str, float]:
    cases = ET.parse(report).getroot().iter("testcase")
    return {
        _without_group(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"): float(
            case.get("time", 0)
        )
        for case in cases
    }


def _without_group(test: str) -> str:
    """Return the id of a test without the group name that pytest-xdist appends."""
    return re.sub(r"@[^@\[\]]+$", "", test)


def record(checkout: Path, recorded: Path, arguments: list[str]) -> int:
    """Run the whole suite once; store which test executes which lines, and its time."""
    recorded.mkdir(parents=True, exist_ok=True)
    settings = recorded / "coveragerc"
    settings.write_text("[run]\nbranch = false\nsource_pkgs = veilmq\n", encoding="utf-8")
    command = [".venv/bin/python", "-m", "pytest", "--numprocesses", "2", "--dist", "loadgroup", "-m", "not everything"]
    command += ["--cov=veilmq", f"--cov-config={settings}", "--cov-context=test", "--cov-report="]
    command += ["-o", "junit_family=xunit2", f"--junitxml={recorded / 'tests.xml'}", *arguments]
    environment = os.environ | {"COVERAGE_FILE": str(recorded / "coverage.db"), "PYTHONPATH": str(checkout / "src")}
    return subprocess.run(command, cwd=checkout, env=environment, check=False).returncode


def judge(edit: Edit, tests: list[str], suite: Suite, work: Path) -> Result:
    """Apply ``edit`` to the copy in ``work``, run the covering ``tests``, and undo it.

    Raises ``RuntimeError`` if the tests cannot run at all, because the record is not of this checkout.
    """
    if not tests:
        return Result(edit.key, edit.package, "uncovered")
    path, original = work / edit.file, ROOT / edit.file
    while tests:
        _write(path, edit.text)
        try:
            status, failed = suite.run(tests, work)
        finally:
            _write(path, original.read_text(encoding="utf-8"))
        if status == 0:
            break
        if failed in suite.sound or suite.run([failed] if failed else tests, work)[0] == 0:
            suite.sound |= {failed} - {""}
            return Result(edit.key, edit.package, "detected", len(tests), "they hang" if status is None else failed)
        if status is None:  # without the mutation, too
            break
        if not failed:
            raise RuntimeError("the tests do not run without a mutation either: record the suite again (--record)")
        tests.remove(failed)  # it also fails without the mutation
    return Result(edit.key, edit.package, "survived", len(tests))


def _write(path: Path, text: str) -> None:
    """Write a source, and delete its bytecode, which identifies a source by its second and size only."""
    path.write_text(text, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def results_in(path: Path) -> dict[str, Result]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {result.key: result for result in (Result(**json.loads(line)) for line in lines)}


def table(files: list[Path]) -> str:
    """Return the detected shares by package, and the mutations that only the first suite detects."""
    suites = [results_in(path) for path in files]
    keys = set.intersection(*map(set, suites))
    lines = [
        "| package | mutations | " + " | ".join(path.stem for path in files) + " |",
        "| --- | --- |" + " --- |" * len(files),
    ]
    packages = Counter(suites[0][key].package for key in keys)
    for package in [*sorted(packages), "all"]:
        members = [key for key in keys if package in {"all", suites[0][key].package}]
        shares = [sum(suite[key].outcome == "detected" for key in members) for suite in suites]
        cells = " | ".join(f"{share} ({share / len(members):.0%})" for share in shares)
        lines.append(f"| {package} | {len(members)} | {cells} |")
    if len(suites) > 1:
        lost = [key for key in sorted(keys) if suites[0][key].outcome == "detected" != suites[-1][key].outcome]
        lines += ["", *(f"- no longer detected: {key} (before: {suites[0][key].test})" for key in lost)]
    return "\n".join(lines)


def _show(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def _copy(checkout: Path, work: Path) -> Path:
    """Copy the tests of ``checkout`` and our sources into ``work``, and link what is installed; return it."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=checkout, check=True, capture_output=True, text=True).stdout
    for name in (name for name in names.split("\0") if name and not name.startswith("src/")):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(checkout / name, work / name)
    for name in INSTALLED:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).unlink(missing_ok=True)
        (work / name).symlink_to((checkout / name).resolve())
    shutil.copytree(ROOT / "src", work / "src", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return work


def main() -> int:
    """Draw mutations, try those without a result, and print the table."""
    parser = argparse.ArgumentParser(prog="make mutations", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000, help="draws the mutations")
    parser.add_argument("--count", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--workers", type=int, default=2, help="how many are tried at a time (default 2)")
    parser.add_argument("--name", default="suite", help="the name of the suite that is tried")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="where its tests are; the product is this one")
    parser.add_argument("--record", action="store_true", help="run the suite, keep what covers which line")
    parser.add_argument("--list", action="store_true", help="print the mutations and their covering tests, try none")
    parser.add_argument("--compare", type=Path, nargs="+", help="result files: only print their table")
    options, rest = parser.parse_known_args()
    if options.compare:
        _show(table(options.compare))
        return 0
    recorded = BUILD / options.name
    if rest and not options.record:
        parser.error(f"{' '.join(rest)}: only --record passes options on, to pytest")
    if options.record or not (recorded / "tests.xml").exists():
        return record(options.checkout, recorded, rest)
    _show(f"seed {options.seed}: --seed {options.seed} draws these mutations again")
    suite, out = Suite(recorded), BUILD / f"{options.seed}-{options.name}.jsonl"
    edits = draw(options.seed, options.count)
    if options.list:
        for edit in edits:
            _show(edit.key, len(suite.covering(edit)))
        return 0
    known = results_in(out)
    left = [(edit, suite.covering(edit)) for edit in edits if edit.key not in known]
    with ThreadPoolExecutor(options.workers) as threads:
        copies: Queue[Path] = Queue()
        for number in range(options.workers):
            copies.put(_copy(options.checkout, BUILD / f"work-{number}"))

        def judged(edit: Edit, tests: list[str]) -> Result:
            work = copies.get()
            try:
                return judge(edit, tests, suite, work)
            finally:
                copies.put(work)

        for number, done in enumerate(as_completed([threads.submit(judged, *each) for each in left]), 1):
            if done.exception() is not None:
                threads.shutdown(cancel_futures=True)
            result = done.result()
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
            _show(f"{number} of {len(left)}: {result.outcome}: {result.key} {result.test}")
    _show(table([out]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

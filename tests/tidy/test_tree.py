"""Rules for other committed files."""

import ast
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from hashlib import sha256
from importlib.resources import files

import pytest

from tests.conftest import need
from tests.tidy.tree import ROOT, SRC, modules
from veilmq.console.assets import ASSETS, FOLDER
from veilmq.store.named_queries import load, shared

BYTES_MAX = 200_000
TEMPLATES = SRC / "veilmq/console/templates"
VENDOR = FOLDER / "vendor"
PINS = [*(ROOT / "tests/clients/python").glob("*.txt"), *(ROOT / "tests").glob("*/*/package-lock.json")]
ROW = re.compile(r"^\| (?P<file>[\w.-]+) \|.*, (?P<licence>[\w.-]+) \| (?P<sha256>[0-9a-f]{64}) \|$", re.MULTILINE)


def test_the_assets_of_the_console_are_small() -> None:
    assert sum(len(asset.body) for asset in ASSETS.values()) <= BYTES_MAX  # sent without compression


def test_vendored_files_are_unmodified_and_have_licences() -> None:
    rows = list(ROW.finditer((VENDOR / "README.md").read_text(encoding="utf-8")))
    assert {row["file"] for row in rows} == {path.name for path in VENDOR.glob("*") if path.suffix in {".css", ".js"}}
    for row in rows:
        assert sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"]
        assert (VENDOR / row["licence"]).stat().st_size > 100


def marked(pattern: str, flags: int = 0) -> list[str]:
    """Return the matches of a pattern in the templates, with their files."""
    return [
        f"{path.name}: {match[0].strip()}"
        for path in sorted(TEMPLATES.rglob("*.html"))
        for match in re.finditer(pattern, path.read_text(encoding="utf-8"), flags)
    ]


def test_scrolling_elements_have_a_name_and_keyboard_focus() -> None:
    """axe checks them only where the content is wider than the element."""
    scrolling = marked(r"<\w+ class=\"scroll[^>]*>")
    assert [each for each in scrolling if not ('tabindex="0"' in each and "aria-label" in each)] == []


def test_templates_have_no_inline_scripts_or_styles() -> None:
    """The content security policy forbids them."""
    wrong = r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|\bhx-on|javascript:|\|\s*safe\b"
    assert marked(wrong, re.IGNORECASE) == []


def test_pinned_packages_have_no_registry_urls() -> None:
    assert PINS
    for pins in PINS:
        text = pins.read_text(encoding="utf-8")
        assert "://" not in text, pins
        assert '"resolved"' not in text, pins


TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
PATH = re.compile(r"\btests/[a-z_/]+(?:\.py)?")


def test_the_test_paths_of_the_makefile_exist() -> None:
    """pytest runs no tests at all if one of its paths is missing."""
    targets = TARGET.findall((ROOT / "Makefile").read_text())
    assert {"test", "test-fast", "prove-crash"} <= set(targets)
    shown = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = [line for line in shown.replace("\\\n", " ").splitlines() if "-m pytest" in line]
    paths = {found.group() for command in commands for found in PATH.finditer(command)}
    assert {"tests/store", "tests/proofs/test_crash.py"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


# Committed files contain no paths or tools of the machines on which they were written.
#
# The rule compares digests of words and assembles paths, as this file is committed too.


PLACES = re.compile(
    rf"(?<![\w.~-])/(?:{'work'}/(?:main|shared)\b|{'tmp'}/w\b|{'root'}/\.)|\b(?:{'pypi'}|{'python'}hosted)\.org\b"
)
WORD = re.compile(r"[a-z]+")


def digest(word: str) -> str:
    return sha256(word.encode()).hexdigest()[:16]


DIGESTS = """053ea4804ef1bb33 3ea125d0bff386e6 487b91042c7cf27a 57de4cf40144bdf7 60965168ce762e94 7d3194f79e645c42
    c70eca6b0f88f44d c857d09db23e6822 de2187af3fb01170"""
FORBIDDEN = frozenset(DIGESTS.split())


def names(path: str, text: str, *, forbidden: Collection[str] = FORBIDDEN) -> Iterator[str]:
    for match in PLACES.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: contains {match[0]}"
    for word in sorted(set(WORD.findall(text.lower()))):
        if digest(word) in forbidden:
            yield f"{path}: contains {word}"


def test_tracked_files_contain_no_local_paths_or_tools() -> None:
    need(shutil.which("git") and (ROOT / ".git").exists(), "git and a clone of the repository, for the tracked files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    found: list[str] = []
    for path in filter(None, listed.stdout.split("\0")):
        file = ROOT / path
        if file.is_symlink():
            found += names(path, str(file.readlink()))
        elif file.is_file() and b"\0" not in (content := file.read_bytes()):
            found += names(path, content.decode("utf-8", errors="replace"))
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "/".join(["see ", "work", "main", "src"]),
        "/".join(["", "tmp", "w", "v"]),
        ".".join(["https://pypi", "org"]),
        ".".join(["files", "python" + "hosted", "org"]),
        "Written with Madeupium.",
    ],
    ids=["checkout", "scratch", "registry", "files", "tool"],
)
def test_the_rule_finds_a_local_path_or_tool(text: str) -> None:
    assert len(list(names("made_up.md", text, forbidden={digest("madeupium")}))) == 1


def test_the_rule_accepts_ordinary_paths() -> None:
    assert list(names("made_up.md", "/tmp/work src/work/main.py ./work/ https://example.org/work/main")) == []


# Cold features share the text of their queries between both dialects, except for those in TWO_TEXTS.
#
# The rule excludes locks, which are in the port as SQLite needs none, and queries on messages, whose tables differ.


QUERY_METHODS = {"many", "row", "rows", "run", "value"}
"""The methods of a transaction that take the name of a query."""
TWO_TEXTS = {
    "event_state": "SQLite derives the last number from the last batch, to save a write per batch of commands",
    "find_claimed": "claims consist of runs of messages on SQLite",
    "insert_publication": "stages are an array on PostgreSQL",
    "put_publication": "stages are an array on PostgreSQL",
    "queue_sources": "SQLite has an index of a generated column",
}
SHARE_MIN = 0.6
DIALECTS = ("veilmq.store.sqlite", "veilmq.store.postgres")


def cold_queries() -> set[str]:
    """Return the names of the queries that the cold features use."""
    return {
        str(call.args[0].value)
        for source in modules(under=SRC / "veilmq" / "store")
        if source.path.count("/") == 3  # excludes the dialects
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in QUERY_METHODS
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def of_dialect(package: str) -> set[str]:
    entries = [entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql")]
    return {name for entry in entries for name in load(package, entry)}


def test_cold_features_share_the_text_of_their_queries() -> None:
    one, two = set(shared()), cold_queries() - set(shared())
    assert two == set(TWO_TEXTS)
    assert len(one) >= SHARE_MIN * len(one | two), f"{len(one)} have one text, {len(two)} have two"
    assert {package: of_dialect(package) & set(shared()) for package in DIALECTS} == {each: set() for each in DIALECTS}

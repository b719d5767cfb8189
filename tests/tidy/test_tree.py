"""Rules of what is committed beside code."""

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


def test_all_assets_together_are_small() -> None:
    """Not compressed, which they are not on the way either."""
    assert sum(len(asset.body) for asset in ASSETS.values()) <= BYTES_MAX


def test_files_of_others_are_as_they_were_published() -> None:
    """Each has a row with its digest and a licence that lies beside it, and nothing else is there."""
    rows = list(ROW.finditer((VENDOR / "README.md").read_text(encoding="utf-8")))
    assert {row["file"] for row in rows} == {path.name for path in VENDOR.glob("*") if path.suffix in {".css", ".js"}}
    for row in rows:
        assert sha256((VENDOR / row["file"]).read_bytes()).hexdigest() == row["sha256"]
        assert (VENDOR / row["licence"]).stat().st_size > 100


def marked(pattern: str, flags: int = 0) -> list[str]:
    """Return what of the templates fits a pattern, with its file."""
    return [
        f"{path.name}: {match[0].strip()}"
        for path in sorted(TEMPLATES.rglob("*.html"))
        for match in re.finditer(pattern, path.read_text(encoding="utf-8"), flags)
    ]


def test_what_scrolls_by_itself_is_reached_by_keys() -> None:
    """And has a name: axe sees it only where it is too narrow for what is in it."""
    scrolling = marked(r"<\w+ class=\"scroll[^>]*>")
    assert [each for each in scrolling if not ('tabindex="0"' in each and "aria-label" in each)] == []


def test_no_page_has_scripts_or_styles_of_its_own() -> None:
    """The policy of the pages would not let them run."""
    wrong = r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|\bhx-on|javascript:|\|\s*safe\b"
    assert marked(wrong, re.IGNORECASE) == []


def test_pins_of_other_packages_name_no_registry() -> None:
    assert PINS
    for pins in PINS:
        text = pins.read_text(encoding="utf-8")
        assert "://" not in text, pins
        assert '"resolved"' not in text, pins


# The Makefile names tests that are there.


TARGET = re.compile(r"^([a-z-]+):", re.MULTILINE)
PATH = re.compile(r"\btests/[a-z_/]+(?:\.py)?")


def test_each_test_that_a_target_runs_is_there() -> None:
    """pytest runs nothing at all where one of its paths is missing."""
    targets = TARGET.findall((ROOT / "Makefile").read_text())
    assert {"test", "test-fast", "prove-crash"} <= set(targets)
    shown = subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    commands = [line for line in shown.replace("\\\n", " ").splitlines() if "-m pytest" in line]
    paths = {found.group() for command in commands for found in PATH.finditer(command)}
    assert {"tests/store", "tests/proofs/test_crash.py"} <= paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


# What is committed stands on its own: it names no machine, no workplace and no tool at hand.
#
# Words are compared by their digests, and paths are put together here, as this file is committed too.


PLACES = re.compile(
    "|".join(
        [
            rf"(?<![\w.~-])/{'work'}/(?:main|shared)\b",
            rf"(?<![\w.~-])/{'tmp'}/w\b",
            rf"(?<![\w.~-])/{'root'}/\.",
            rf"\b{'pypi'}\.org\b",
            rf"\b{'python'}hosted\.org\b",
        ]
    )
)
WORD = re.compile(r"[a-z]+")


def digest(word: str) -> str:
    return sha256(word.encode()).hexdigest()[:16]


FORBIDDEN = frozenset(
    re.findall(
        r"\w{16}",
        "053ea4804ef1bb33 3ea125d0bff386e6 487b91042c7cf27a 57de4cf40144bdf7 60965168ce762e94 7d3194f79e645c42 "
        "c70eca6b0f88f44d c857d09db23e6822 de2187af3fb01170",
    )
)


def names(path: str, text: str, *, forbidden: Collection[str] = FORBIDDEN) -> Iterator[str]:
    for match in PLACES.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: names {match[0]}"
    for word in sorted(set(WORD.findall(text.lower()))):
        if digest(word) in forbidden:
            yield f"{path}: names {word}"


def test_tracked_files_name_no_workplace() -> None:
    need(shutil.which("git") and (ROOT / ".git").exists(), "git and a clone of the repository, for the tracked files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    found: list[str] = []
    for path in filter(None, listed.stdout.split("\0")):
        file = ROOT / path
        if file.is_symlink():
            found += names(path, str(file.readlink()))
        elif file.is_file() and b"\0" not in (content := file.read_bytes()):
            found += names(path, content.decode("utf-8", errors="replace"))  # three letters are in any archive
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
def test_the_rule_sees_a_workplace(text: str) -> None:
    assert len(list(names("made_up.md", text, forbidden={digest("madeupium")}))) == 1


def test_the_rule_lets_ordinary_paths_pass() -> None:
    assert list(names("made_up.md", "/tmp/work src/work/main.py ./work/ https://example.org/work/main")) == []


# Cold features are written once: what they ask by name has one text for both dialects, but for a few that are listed.
#
# Locks are no part of this: SQLite needs none, so they stand in the port. Nor is what a dialect does behind the port,
# with messages that stand in other tables in each.


ASKING = {"many", "row", "rows", "run", "value"}
"""The methods of a transaction that take the name of a query."""
TWO_TEXTS = {
    "event_state": "the last number is in the last batch of SQLite, whose row every batch of commands would write",
    "find_claimed": "claims have runs of messages on SQLite",
    "insert_publication": "stages are an array on PostgreSQL",
    "put_publication": "stages are an array on PostgreSQL",
    "queue_sources": "SQLite finds them by an index of a generated column",
}
SHARE_MIN = 0.6
DIALECTS = ("veilmq.store.sqlite", "veilmq.store.postgres")


def asked() -> set[str]:
    return {
        str(call.args[0].value)
        for source in modules(under=SRC / "veilmq" / "store")
        if source.path.count("/") == 3  # without the dialects
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in ASKING
        and call.args
        and isinstance(call.args[0], ast.Constant)
    }


def of_dialect(package: str) -> set[str]:
    entries = [entry.name for entry in files(package).iterdir() if entry.name.endswith(".sql")]
    return {name for entry in entries for name in load(package, entry)}


def test_cold_features_ask_with_one_text() -> None:
    one, two = set(shared()), asked() - set(shared())
    assert two == set(TWO_TEXTS)
    assert len(one) >= SHARE_MIN * len(one | two), f"{len(one)} have one text, {len(two)} have two"


def test_no_dialect_has_a_text_beside_the_shared_one() -> None:
    """It would be used in place of it, or by nothing."""
    assert {package: of_dialect(package) & set(shared()) for package in DIALECTS} == {each: set() for each in DIALECTS}

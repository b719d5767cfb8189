"""What is committed stands on its own: it names no machine, no workplace and no tool at hand.

Words are compared by their digests, and paths are put together here, as this file is committed too.
"""

import hashlib
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator

import pytest

from tests.conftest import need
from tests.tidy.tree import ROOT

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
    """Return the first 16 hex digits of the SHA-256 of `word`."""
    return hashlib.sha256(word.encode()).hexdigest()[:16]


FORBIDDEN: frozenset[str] = frozenset(
    {
        "053ea4804ef1bb33",
        "3ea125d0bff386e6",
        "487b91042c7cf27a",
        "57de4cf40144bdf7",
        "60965168ce762e94",
        "7d3194f79e645c42",
        "c70eca6b0f88f44d",
        "c857d09db23e6822",
        "de2187af3fb01170",
    }
)


def names(path: str, text: str, *, forbidden: Collection[str] = FORBIDDEN) -> Iterator[str]:
    """Yield each place or word in `text` that the file `path` should not name."""
    for match in PLACES.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path}:{line}: names {match[0]}"
    for word in sorted(set(WORD.findall(text.lower()))):
        if digest(word) in forbidden:
            yield f"{path}: names {word}"


def tracked() -> list[str]:
    """Return the path of every file that git tracks, from the root."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True)
    return [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]


def test_tracked_files_name_no_workplace() -> None:
    """No tracked text file names a path of one machine, a registry's host or a tool of the workplace."""
    need(
        shutil.which("git") and (ROOT / ".git").exists(),
        "git and a clone of the repository, to list the tracked files",
    )
    found: list[str] = []
    for path in tracked():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:  # three letters are somewhere in any archive
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
def test_the_rule_sees_a_workplace(text: str) -> None:
    """A path, a host and a word are each found once."""
    assert len(list(names("made_up.md", text, forbidden={digest("madeupium")}))) == 1


def test_the_rule_lets_ordinary_paths_pass() -> None:
    """Paths that everyone has are no workplace."""
    assert list(names("made_up.md", "/tmp/work src/work/main.py ./work/ https://example.org/work/main")) == []

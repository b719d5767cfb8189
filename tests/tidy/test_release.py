"""Checks of a release that need no build; they hold for every commit."""

import re
from pathlib import Path

import pytest

from tests.release import CHECKS, DISTRIBUTIONS, ROOT, SUITE, digests, disagreements, project

pytest_plugins = ["pytester"]

MAIN = {"version": "0.3.0"}
KIT = {"version": "0.3.0", "dependencies": ["pytest>=8", "veilmq[server]>=0.3.0,<0.4"]}
CHANGELOG = "## [Unreleased]\n\n### Added\n\n- A.\n\n## [0.3.0] - 2027-01-31\n\n## [0.2.0] - 2027-01-01\n"


def test_the_distributions_have_consistent_complete_metadata() -> None:
    metadata = {name: project(folder) for name, folder in DISTRIBUTIONS.items()}
    assert disagreements(metadata, f"## [{metadata['veilmq']['version']}] - 2026-01-01") == []
    for name, fields in metadata.items():
        assert fields["name"] == name
        assert fields.keys() >= {"authors", "classifiers", "description", "keywords"}
        assert fields.keys() >= {"license", "readme", "requires-python"}
    assert len((ROOT / DISTRIBUTIONS["pytest-veilmq"] / "README.md").read_text().splitlines()) <= 40


@pytest.mark.parametrize(
    ("kit", "changelog", "errors"),
    [
        pytest.param(KIT, CHANGELOG, [], id="ready"),
        pytest.param(KIT | {"version": "0.2.9"}, CHANGELOG, ["pytest-veilmq is 0.2.9"], id="versions"),
        pytest.param(KIT | {"dependencies": ["veilmq<0.3"]}, CHANGELOG, ["does not allow veilmq 0.3.0"], id="excluded"),
        pytest.param(KIT | {"dependencies": ["pytest"]}, CHANGELOG, ["does not allow veilmq 0.3.0"], id="no-server"),
        pytest.param(KIT, CHANGELOG.replace("[0.3.0] - 2027-01-31", "[0.3.0]"), ['write "## [0.3.0] -'], id="undated"),
        pytest.param(KIT, CHANGELOG.replace("## [0.3.0]", "## [0.3.1]"), ['write "## [0.3.0] -'], id="newer"),
    ],
)
def test_inconsistent_metadata_is_reported(kit: dict[str, object], changelog: str, errors: list[str]) -> None:
    found = disagreements({"veilmq": MAIN, "pytest-veilmq": kit}, changelog)
    assert len(found) == len(errors)
    assert all(words in each for words, each in zip(errors, found, strict=True))


def test_digests_compare_builds(tmp_path: Path) -> None:
    for folder, content in (("first", b"a"), ("second", b"a"), ("third", b"b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "veilmq-0.3.0.tar.gz").write_bytes(content)
    first, second, third = (digests(tmp_path / folder) for folder in ("first", "second", "third"))
    assert first == second != third


@pytest.mark.slow
def test_the_suite_of_the_release_passes(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.runpytest("-Werror").assert_outcomes(passed=1)


def test_the_page_has_every_check() -> None:
    page = (ROOT / "docs" / "releasing.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ([\w (),]+) \| ", page, re.MULTILINE)[1:] == [name for name, _ in CHECKS]

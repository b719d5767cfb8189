"""The console's files load at once over a slow line, and those of others are the ones that their licences are for."""

import re
from hashlib import sha256

from tests.tidy.tree import SRC
from veilmq.console.assets import ASSETS, FOLDER

BYTES_MAX = 200_000
TEMPLATES = SRC / "veilmq/console/templates"
VENDOR = FOLDER / "vendor"
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


def test_what_scrolls_by_itself_is_reached_by_keys() -> None:
    """And has a name: axe sees it only where it is too narrow for what is in it."""
    scrolling = re.compile(r"<\w+ class=\"scroll[^>]*>")
    found = {
        f"{path.name}: {match[0]}"
        for path in sorted(TEMPLATES.rglob("*.html"))
        for match in scrolling.finditer(path.read_text(encoding="utf-8"))
        if not ('tabindex="0"' in match[0] and "aria-label" in match[0])
    }
    assert found == set()


def test_no_page_has_scripts_or_styles_of_its_own() -> None:
    """The policy of the pages would not let them run."""
    wrong = re.compile(
        r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=|\bhx-on|javascript:|\|\s*safe\b", re.IGNORECASE
    )
    found = [
        f"{path.name}: {match[0].strip()}"
        for path in sorted(TEMPLATES.rglob("*.html"))
        for match in wrong.finditer(path.read_text(encoding="utf-8"))
    ]
    assert found == []

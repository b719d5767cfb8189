"""The site that `make docs` built: it needs nothing from outside, and all its links lead somewhere."""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.conftest import need
from tests.tidy.tree import ROOT

SITE = ROOT / "build" / "docs"
LOADED = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src"}


class Page(HTMLParser):
    """What a page loads and links to, and the places in it."""

    def __init__(self, path: Path) -> None:
        """Read it."""
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what `tag` refers to."""
        given = dict(attrs)
        if place := given.get("id"):
            self.places.add(place)
        if tag == "a" and (target := given.get("href")):
            self.links.append(target)
        if (attribute := LOADED.get(tag)) and (source := given.get(attribute)):
            self.loaded.append(source)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    """Return the pages by their paths."""
    need((SITE / "index.html").exists(), "the site (make docs)")
    return {path: Page(path) for path in SITE.rglob("*.html")}


def dead(pages: dict[Path, Page]) -> Iterator[str]:
    """Yield each link within the site that leads nowhere."""
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if not parts.scheme and not parts.netloc and not _leads(pages, path, unquote(parts.path), parts.fragment):
                yield f"{path.name}: {link}"


def _leads(pages: dict[Path, Page], path: Path, target: str, place: str) -> bool:
    there = (path.parent / target).resolve() if target else path
    return there.exists() and (not place or there not in pages or unquote(place) in pages[there].places)


def test_every_page_is_there(pages: dict[Path, Page]) -> None:
    told = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert told <= {path.relative_to(SITE) for path in pages}


def test_links_lead_somewhere(pages: dict[Path, Page]) -> None:
    assert list(dead(pages)) == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    outside = {source for page in pages.values() for source in page.loaded if urlsplit(source).netloc}
    assert outside == set()

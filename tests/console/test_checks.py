"""What the tests of the console rest on: the watch, axe, the pictures, and a browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route

from tests.console import chromium as looked_for
from tests.console.barriers import Watch, barriers
from tests.console.chromium import chromium
from tests.console.pictures import FOLDER, SHOWN

ORIGIN = "http://127.0.0.1:1"  # nobody listens there: what is asked is answered by the test

WRONGS = {
    "error": ("<script>nowhere()</script>", {}, "nowhere is not defined"),
    "inline": ("<script>1</script>", {"content-security-policy": "script-src 'self'"}, "Content Security Policy"),
    "style": ("<p style='color: red'>", {"content-security-policy": "style-src 'self'"}, "Content Security Policy"),
    "elsewhere": ("<img src='http://127.0.0.2:1/x.png'>", {}, "another host was asked: http://127.0.0.2:1/x.png"),
    "missing": ("<script src='/missing.js'></script>", {}, "404 for script"),
    "warning": ("<script>console.warn('beware')</script>", {}, "console warning: beware"),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_it_sees(blank: Page, wrong: str) -> None:
    html, headers, fault = WRONGS[wrong]
    assert fault in "\n".join(faults(blank, html, headers))


def test_a_page_that_fails_is_seen(blank: Page) -> None:
    assert faults(blank, "broken", {}, status=500) != []


def test_a_refusal_is_none(blank: Page) -> None:
    assert faults(blank, "<p>from 0 to 43,200</p>", {}, status=400) == []


def faults(blank: Page, html: str, headers: dict[str, str], *, status: int = 200) -> list[str]:
    def answer(route: Route) -> None:
        if route.request.url == f"{ORIGIN}/":
            route.fulfill(status=status, body=f"<!doctype html><title>t</title>{html}", headers=headers | HTML)
        else:
            route.fulfill(status=404)

    blank.context.route("**/*", answer)
    watch = Watch(blank.context, origin=ORIGIN)
    blank.goto(ORIGIN)
    blank.evaluate("0")  # and all that the page has said is here
    blank.context.unroute_all()
    return watch.faults


HTML = {"content-type": "text/html"}

# Barriers are found where there are some.


FINE = "<!doctype html><html lang=en><title>t</title><main><h1>h</h1><label>Name <input></label></main>"


def test_a_page_without_barriers(blank: Page) -> None:
    blank.set_content(FINE)
    assert barriers(blank) == []


def test_a_field_without_a_name_and_pale_words(blank: Page) -> None:
    blank.set_content(FINE + "<input id=x><p style='color: #ccc; background: #fff'>pale</p>")
    assert [each.partition(":")[0] for each in barriers(blank)] == ["color-contrast", "label"]


# The pictures of the documentation are there, shown and small (``make screenshots``).


FILE_BYTES_MAX = 130_000
ALL_BYTES_MAX = 6_000_000
LINK = re.compile(r"\]\(([^)]+\.png)\)")


def test_each_picture_is_shown_and_each_that_is_shown_is_there() -> None:
    assert {path.name for path in FOLDER.glob("*.png")} == set(LINK.findall(SHOWN.read_text(encoding="utf-8")))


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.glob("*.png")}
    assert {name: size for name, size in sizes.items() if size > FILE_BYTES_MAX} == {}
    assert sum(sizes.values()) <= ALL_BYTES_MAX


# Where a browser is looked for.


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def test_where_a_browser_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(looked_for, "APPLICATIONS", (str(tmp_path / "Chromium.app"),))
    assert chromium() is None
    (tmp_path / "Chromium.app").touch()
    assert chromium() == str(tmp_path / "Chromium.app")
    program(tmp_path / "google-chrome", "#!/bin/sh\n")
    assert chromium() == str(tmp_path / "google-chrome")
    program(tmp_path / "mine", "#!/bin/sh\n")
    monkeypatch.setenv("CHROMIUM", str(tmp_path / "mine"))
    assert chromium() == str(tmp_path / "mine")

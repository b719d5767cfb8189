"""The tools of the console's tests: the watch, axe, screenshots and the browser."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route

from tests.console import chromium as chromium_module
from tests.console.barriers import Watch, barriers
from tests.console.chromium import chromium
from tests.console.pictures import FOLDER, SHOWN

ORIGIN = "http://127.0.0.1:1"  # the test fulfils all requests

WRONGS = {
    "error": ("<script>nowhere()</script>", {}, "nowhere is not defined"),
    "inline": ("<script>1</script>", {"content-security-policy": "script-src 'self'"}, "Content Security Policy"),
    "style": ("<p style='color: red'>", {"content-security-policy": "style-src 'self'"}, "Content Security Policy"),
    "elsewhere": ("<img src='http://127.0.0.2:1/x.png'>", {}, "request to another host: http://127.0.0.2:1/x.png"),
    "missing": ("<script src='/missing.js'></script>", {}, "404 for script"),
    "warning": ("<script>console.warn('beware')</script>", {}, "console warning: beware"),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_the_watch_finds_faults(blank: Page, wrong: str) -> None:
    html, headers, fault = WRONGS[wrong]
    assert fault in "\n".join(faults(blank, html, headers))


def test_a_server_error_is_a_fault_and_a_client_error_is_not(blank: Page) -> None:
    assert faults(blank, "broken", {}, status=500) != []
    assert faults(blank, "<p>from 0 to 43,200</p>", {}, status=400) == []


def faults(blank: Page, html: str, headers: dict[str, str], *, status: int = 200) -> list[str]:
    def fulfill(route: Route) -> None:
        if route.request.url == f"{ORIGIN}/":
            route.fulfill(status=status, body=f"<!doctype html><title>t</title>{html}", headers=headers | HTML)
        else:
            route.fulfill(status=404)

    blank.context.route("**/*", fulfill)
    watch = Watch(blank.context, origin=ORIGIN)
    blank.goto(ORIGIN)
    blank.evaluate("0")  # events of the page arrive before the result
    blank.context.unroute_all()
    return watch.faults


HTML = {"content-type": "text/html"}


def test_axe_finds_barriers(blank: Page) -> None:
    fine = "<!doctype html><html lang=en><title>t</title><main><h1>h</h1><label>Name <input></label></main>"
    blank.set_content(fine)
    assert barriers(blank) == []
    blank.set_content(fine + "<input id=x><p style='color: #ccc; background: #fff'>pale</p>")
    assert [each.partition(":")[0] for each in barriers(blank)] == ["color-contrast", "label"]


# Screenshots (``make screenshots``).


FILE_BYTES_MAX = 130_000
ALL_BYTES_MAX = 6_000_000
LINK = re.compile(r"\]\(([^)]+\.png)\)")


def test_screenshots_are_small_and_shown_on_their_page() -> None:
    sizes = {path.name: path.stat().st_size for path in FOLDER.glob("*.png")}
    assert sizes.keys() == set(LINK.findall(SHOWN.read_text(encoding="utf-8")))
    assert {name: size for name, size in sizes.items() if size > FILE_BYTES_MAX} == {}
    assert sum(sizes.values()) <= ALL_BYTES_MAX


def test_a_browser_is_found_by_variable_path_and_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    application, program, chosen = (tmp_path / name for name in ("Chromium.app", "google-chrome", "chosen"))
    monkeypatch.setattr(chromium_module, "APPLICATIONS", (str(application),))
    assert chromium() is None
    application.touch()
    assert chromium() == str(application)
    program.touch(mode=0o755)
    assert chromium() == str(program)
    chosen.touch(mode=0o755)
    monkeypatch.setenv("CHROMIUM", str(chosen))
    assert chromium() == str(chosen)

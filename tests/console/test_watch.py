"""What looks on sees what pages may not do: made-up pages do it."""

import pytest
from playwright.sync_api import Page, Route

from tests.console.watch import Watch

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
    """A form that is answered with 400 says why."""
    assert faults(blank, "<p>from 0 to 43,200</p>", {}, status=400) == []


def faults(blank: Page, html: str, headers: dict[str, str], *, status: int = 200) -> list[str]:
    """Return what is found in a page."""

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

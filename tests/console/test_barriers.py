"""Barriers are found where there are some."""

from playwright.sync_api import Browser, Page

from tests.console.barriers import barriers

FINE = "<!doctype html><html lang=en><title>t</title><main><h1>h</h1><label>Name <input></label></main>"


def test_a_page_without_barriers(browser: Browser) -> None:
    assert barriers(showing(browser, FINE)) == []


def test_a_field_without_a_name_and_pale_words(browser: Browser) -> None:
    found = barriers(showing(browser, FINE + "<input id=x><p style='color: #ccc; background: #fff'>pale</p>"))
    assert [each.partition(":")[0] for each in found] == ["color-contrast", "label"]


def showing(browser: Browser, html: str) -> Page:
    """Return a page with this content."""
    page = browser.new_page()
    page.set_content(html)
    return page

"""Barriers are found where there are some."""

from playwright.sync_api import Page

from tests.console.barriers import barriers

FINE = "<!doctype html><html lang=en><title>t</title><main><h1>h</h1><label>Name <input></label></main>"


def test_a_page_without_barriers(blank: Page) -> None:
    blank.set_content(FINE)
    assert barriers(blank) == []


def test_a_field_without_a_name_and_pale_words(blank: Page) -> None:
    blank.set_content(FINE + "<input id=x><p style='color: #ccc; background: #fff'>pale</p>")
    assert [each.partition(":")[0] for each in barriers(blank)] == ["color-contrast", "label"]

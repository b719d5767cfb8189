"""A real Chromium for the whole session, and a watched page that the tests of a module share.

A page in a new context costs two seconds of CPU time, a navigation of an open page a fifth of a second.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.conftest import need
from tests.console.barriers import Watch
from tests.console.chromium import chromium
from tests.console.visitor import Visitor
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

PATIENCE_MS = 60_000
SIZE: ViewportSize = {"width": 1280, "height": 720}
FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # no external hosts
    "--no-first-run",
    "--no-sandbox",  # build machines run as root
]

Visit = Callable[..., Page]


@pytest.fixture
def visitor(server: RunningServer) -> Iterator[Visitor]:
    """A client of the console of ``server`` without a browser."""
    with Visitor(server) as someone:
        yield someone


@pytest.fixture
def queues(client: HttpQueueClient) -> HttpQueueClient:
    return client


@contextmanager
def launched() -> Iterator[Browser]:
    path = chromium()
    need(path, "Chromium (scripts/install-browser.sh)")
    expect.set_options(timeout=PATIENCE_MS)
    driver = sync_playwright().start()
    started = driver.chromium.launch(executable_path=path, headless=True, args=FLAGS)
    loop = _hidden()
    yield started
    asyncio._set_running_loop(loop)
    started.close()
    driver.stop()


class Tab:
    """A page of the console of ``server`` in a separate context; ``watch`` collects its faults."""

    def __init__(self, browser: Browser, server: RunningServer, **options: Any) -> None:
        self.context = browser.new_context(base_url=server.admin_endpoint, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.watch = Watch(self.context, origin=server.admin_endpoint)
        self.page = self.context.new_page()

    def reset(self) -> None:
        """Reset what another test may have changed: cookies, size and colour scheme."""
        self.context.clear_cookies()
        self.page.set_viewport_size(SIZE)
        self.page.emulate_media(color_scheme="light")

    def end(self) -> list[str]:
        """Return the faults up to now, and clear them."""
        self.page.evaluate("0")  # events of the page arrive before the result
        faults, self.watch.faults = self.watch.faults, []
        return faults


@contextmanager
def seen(whole_browser: Browser) -> Iterator[None]:
    """Make Playwright's event loop the running one of this thread, where other tests run their own loops."""
    asyncio._set_running_loop(whole_browser._impl_obj._loop)
    try:
        yield
    finally:
        _hidden()


@pytest.fixture
def browser(whole_browser: Browser) -> Iterator[Browser]:
    """The browser; the contexts that a test opens are closed at its end."""
    kept = whole_browser.contexts
    with seen(whole_browser):
        yield whole_browser
        for context in whole_browser.contexts:
            if context not in kept:
                context.close()


@pytest.fixture(scope="module")
def empty(whole_browser: Browser) -> Iterator[Page]:
    with seen(whole_browser):
        page = whole_browser.new_page()
    yield page
    with seen(whole_browser):
        page.context.close()


@pytest.fixture
def blank(browser: Browser, empty: Page) -> Page:
    """An empty page without a server, shared by the tests of a module."""
    return empty


@pytest.fixture(scope="module")
def tab(whole_browser: Browser, server: RunningServer) -> Iterator[Tab]:
    """A page of the module's ``server``, shared by the tests of the module."""
    with seen(whole_browser):
        opened = Tab(whole_browser, server)
    yield opened
    with seen(whole_browser):
        opened.context.close()


@pytest.fixture
def visit(browser: Browser, server: RunningServer, tab: Tab) -> Iterator[Visit]:
    """Return a function that opens a path of the console in a new session; a fault of any page fails the test.

    Its keyword arguments are those of a Playwright context: ``color_scheme``, ``viewport``, ``java_script_enabled``.
    """
    with visiting(browser, server, tab) as open_at:
        yield open_at


@pytest.fixture
def page(visit: Visit) -> Page:
    """The first page of the console, without a sign-in."""
    return visit()


@contextmanager
def visiting(browser: Browser, server: RunningServer, tab: Tab | None = None) -> Iterator[Visit]:
    """Yield a function that opens a path of the console; at the end, assert that no page has faults.

    The first visit without options uses ``tab``.
    """
    tabs: list[Tab] = []
    faults: list[str] = []

    def open_at(path: str = "/", **options: Any) -> Page:
        if tab is None or tab in tabs or options:
            tabs.append(Tab(browser, server, **options))
        else:
            tab.reset()
            tabs.append(tab)
        page = tabs[-1].page
        page.goto(path)
        return page

    try:
        yield open_at
    finally:
        for each in tabs:
            faults += each.end()
            if each is not tab:
                each.context.close()
    assert faults == []


def _hidden() -> asyncio.AbstractEventLoop:
    """Unset this thread's running event loop, as other tests run their own; return it."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    return loop

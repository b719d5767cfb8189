"""A real Chromium, one for the whole session, and a page of it that the tests of a module share, which is looked on at.

To open a page in a context of its own costs two seconds of a processor, to go on to the next address a fifth of one.
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
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # pages that ask elsewhere find nobody
    "--no-first-run",
    "--no-sandbox",  # build machines run as root
]

Visit = Callable[..., Page]


@pytest.fixture
def visitor(server: RunningServer) -> Iterator[Visitor]:
    """Somebody at the console of a module's ``server``, without a browser."""
    with Visitor(server) as someone:
        yield someone


@pytest.fixture
def queues(client: HttpQueueClient) -> HttpQueueClient:
    """A client of a module's ``server``."""
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
    """A page of the console of ``server``, in a context of its own; ``watch`` looks on."""

    def __init__(self, browser: Browser, server: RunningServer, **options: Any) -> None:
        self.context = browser.new_context(base_url=server.admin_endpoint, **options)
        self.context.set_default_timeout(PATIENCE_MS)
        self.watch = Watch(self.context, origin=server.admin_endpoint)
        self.page = self.context.new_page()

    def begin_anew(self) -> None:
        """Forget what another test has left: cookies, size and light."""
        self.context.clear_cookies()
        self.page.set_viewport_size(SIZE)
        self.page.emulate_media(color_scheme="light")

    def end(self) -> list[str]:
        """Return the faults up to now, and forget them; what the page has said until then has arrived."""
        self.page.evaluate("0")
        faults, self.watch.faults = self.watch.faults, []
        return faults


@contextmanager
def seen(whole_browser: Browser) -> Iterator[None]:
    """Have Playwright's event loop be that of this thread for a while: other tests run one of their own."""
    asyncio._set_running_loop(whole_browser._impl_obj._loop)
    try:
        yield
    finally:
        _hidden()


@pytest.fixture
def browser(whole_browser: Browser) -> Iterator[Browser]:
    """The browser; contexts that a test opens end with it."""
    kept = whole_browser.contexts
    with seen(whole_browser):
        yield whole_browser
        for context in whole_browser.contexts:
            if context not in kept:
                context.close()


@pytest.fixture(scope="module")
def empty(whole_browser: Browser) -> Iterator[Page]:
    """A page of nothing; ``blank`` is what tests ask for."""
    with seen(whole_browser):
        page = whole_browser.new_page()
    yield page
    with seen(whole_browser):
        page.context.close()


@pytest.fixture
def blank(browser: Browser, empty: Page) -> Page:
    """The page that tests of a module share which have no server."""
    return empty


@pytest.fixture(scope="module")
def tab(whole_browser: Browser, server: RunningServer) -> Iterator[Tab]:
    """The page that the tests of a module share, which has one ``server``."""
    with seen(whole_browser):
        opened = Tab(whole_browser, server)
    yield opened
    with seen(whole_browser):
        opened.context.close()


@pytest.fixture
def visit(browser: Browser, server: RunningServer, tab: Tab) -> Iterator[Visit]:
    """Give a call that opens the console of ``server`` at a path, as a visitor of its own; no page may do wrong.

    Keywords are Playwright's of a context: ``color_scheme``, ``viewport``, ``java_script_enabled``.
    """
    with visiting(browser, server, tab) as open_at:
        yield open_at


@pytest.fixture
def page(visit: Visit) -> Page:
    """The first page of the console, as somebody sees it whom nobody asks who he is."""
    return visit()


@contextmanager
def visiting(browser: Browser, server: RunningServer, tab: Tab | None = None) -> Iterator[Visit]:
    """Yield a call that opens the console of ``server``, and look whether any page did wrong when it ends well.

    The first visit that wants nothing special is in ``tab``.
    """
    tabs: list[Tab] = []
    faults: list[str] = []

    def open_at(path: str = "/", **options: Any) -> Page:
        if tab is None or tab in tabs or options:
            tabs.append(Tab(browser, server, **options))
        else:
            tab.begin_anew()
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
    """Take this thread's running event loop out of sight: other tests run one of their own. Return it."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    return loop

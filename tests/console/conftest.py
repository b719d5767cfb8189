"""A real Chromium, one for the whole session, and a new context of it for each test, which is looked on at."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.conftest import need
from tests.console.chromium import chromium
from tests.console.visitor import Visitor
from tests.console.watch import Watch
from veilmq.testing import RunningServer

PATIENCE_MS = 60_000
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


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield a browser whose event loop is out of sight (``browser``)."""
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


@pytest.fixture
def browser(whole_browser: Browser) -> Iterator[Browser]:
    """The browser. Playwright's event loop is that of this thread while the test runs, and not beside other tests."""
    asyncio._set_running_loop(whole_browser._impl_obj._loop)
    yield whole_browser
    for context in whole_browser.contexts:
        context.close()
    _hidden()


@pytest.fixture
def visit(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    """Give a call that opens the console of ``server`` at a path, as a visitor of its own; no page may do wrong.

    Keywords are Playwright's of a context: ``color_scheme``, ``viewport``, ``java_script_enabled``.
    """
    with visiting(browser, server) as open_at:
        yield open_at


@pytest.fixture
def page(visit: Visit) -> Page:
    """The first page of the console, as somebody sees it whom nobody asks who he is."""
    return visit()


@contextmanager
def visiting(browser: Browser, server: RunningServer) -> Iterator[Visit]:
    """Yield a call that opens the console of ``server``, and look whether any page did wrong when it ends well."""
    watches: list[Watch] = []
    contexts: list[BrowserContext] = []

    def open_at(path: str = "/", **options: Any) -> Page:
        context = browser.new_context(base_url=server.admin_endpoint, **options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        watches.append(Watch(context, origin=server.admin_endpoint))
        page = context.new_page()
        page.goto(path)
        return page

    try:
        yield open_at
    finally:
        for context in contexts:
            context.close()
    assert [fault for watch in watches for fault in watch.faults] == []


def _hidden() -> asyncio.AbstractEventLoop:
    """Take this thread's running event loop out of sight: other tests run one of their own. Return it."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    return loop

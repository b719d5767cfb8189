"""Every page as it looks: nothing keeps people out of it, in light and in dark, and it fits a telephone.

``make screenshots`` has the same pages kept as the pictures of the documentation.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.barriers import barriers
from tests.console.conftest import Visit, visiting
from tests.console.every_page import ACCOUNT
from tests.console.pictures import HEIGHT, NARROW, SCHEMES, WIDE, go_on, keep, places, staged
from tests.console.test_timeout_page import advice
from tests.internals.console.test_browser_sign_in import sign_in
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, written
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

SIGNED_IN = ("login", "accounts")  # have most to show where there are accounts
SEEN: Final = {name: path for name, path in places().items() if name not in SIGNED_IN}

REASON = "p99 is 66 s; 0.4 % of the work outlives 75 s, and 3 % of the receipts wait so long after a crash"
SEARCHED = {("light", WIDE), ("dark", NARROW)}  # both lights and both widths, at the price of two

CUT = """() => [...document.querySelectorAll('select')].filter(choice => {
  const given = choice.offsetWidth, width = choice.style.width;
  choice.style.width = 'max-content';
  const wanted = choice.offsetWidth;
  choice.style.width = width;
  return wanted > given;
}).map(choice => choice.id)"""
"""The choices that are too narrow for the words of their longest option, which no browser breaks into lines."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The shop, for all pages; what `veilmq pipeline tune` would say of its orders, too.

    It works in a folder of its own, so that pictures of its settings name no folder of this machine.
    """
    with contextlib.chdir(tmp_path_factory.mktemp("shop")):
        advice(Path("tuned"), queue=f"{ACCOUNT}/orders", current_s=45, recommended_s=75, reason=REASON)
        with RunningServer(events_to="events", recommendations=Path("tuned")) as running:
            with HttpQueueClient(running.endpoint) as queues:
                staged(running, queues)
            running.wait_until(lambda: list(Path("events").rglob("*.parquet")))
            yield running


@pytest.mark.parametrize("name", SEEN)
def test_a_page_keeps_nobody_out_and_fits(visit: Visit, server: RunningServer, name: str) -> None:
    page = visit(SEEN[name])
    if name == "queue":
        expect(page.locator("html")).to_have_attribute("data-live", "on")
        with HttpQueueClient(server.endpoint) as queues:
            go_on(server, queues, lambda message, kind: see(page, message, kind))
    look_at(page, name)


def test_the_way_in_and_the_accounts_do_too(browser: Browser, tmp_path: Path) -> None:
    keys = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=keys, account=OWNER, region=REGION) as running:
        sqs = client(running)
        url = sqs.create_queue(QueueName="orders")["QueueUrl"]
        sqs.add_permission(QueueUrl=url, Label="shop", AWSAccountIds=[FRIEND], Actions=["SendMessage"])
        with visiting(browser, running) as visit:
            page = visit("/console/accounts")
            look_at(page, "login")
            sign_in(page, "AKIDOWNER", SECRETS["AKIDOWNER"])
            expect(page.get_by_role("heading", level=1)).to_have_text("Accounts and policies")
            look_at(page, "accounts")


def see(page: Page, message: str, kind: str) -> None:
    expect(page.locator(f".bar.{kind}").filter(has_text=message[:8])).to_have_count(1)


def look_at(page: Page, name: str) -> None:
    assert page.get_by_role("heading", level=1).count() == 1
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        for width in (WIDE, NARROW):
            page.set_viewport_size({"width": width, "height": HEIGHT})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)
            assert page.evaluate(CUT) == [], (name, width)
            if (scheme, width) in SEARCHED:
                assert barriers(page) == [], (name, scheme, width)
            keep(page, name, scheme=scheme, width=width)

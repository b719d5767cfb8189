"""Every page in a real browser: accessible, responsive, and safe from requests of foreign pages.

``make screenshots`` keeps the pages as pictures of the documentation.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.console.barriers import Keyboard, barriers
from tests.console.conftest import PATIENCE_MS, Visit, visiting
from tests.console.every_page import ACCOUNT
from tests.console.pictures import HEIGHT, NARROW, SCHEMES, WIDE, go_on, keep, places, staged
from tests.console.test_timeout_page import recommend
from tests.pipeline.made_report import KEYS, QUEUES, content, made_queues
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, written
from veilmq.client import HttpQueueClient
from veilmq.pipeline.report import page as report
from veilmq.pipeline.tune import DEFAULTS
from veilmq.testing import RunningServer

SIGNED_IN = ("login", "accounts")  # shown with accounts
SEEN: Final = {name: path for name, path in places().items() if name not in SIGNED_IN}
EVIL = "http://evil.example/"
OPENED_S_MAX = 1.0

REASON = "p99 is 66 s; 0.4 % of the work outlives 75 s, and 3 % of the receipts wait so long after a crash"
SEARCHED = {("light", WIDE), ("dark", NARROW)}  # both schemes and both widths, at the cost of two

CUT = """() => [...document.querySelectorAll('select')].filter(choice => {
  const given = choice.offsetWidth, width = choice.style.width;
  choice.style.width = 'max-content';
  const wanted = choice.offsetWidth;
  choice.style.width = width;
  return wanted > given;
}).map(choice => choice.id)"""
"""The selects that are too narrow for their longest option, which browsers do not wrap."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The shop, for all pages, with a recommendation of `veilmq pipeline tune` for its orders.

    It works in its own folder, so that pictures of its settings name no folder of this machine.
    """
    with contextlib.chdir(tmp_path_factory.mktemp("shop")):
        recommend(Path("tuned"), queue=f"{ACCOUNT}/orders", current_s=45, recommended_s=75, reason=REASON)
        with RunningServer(events_to="events", recommendations=Path("tuned")) as running:
            with HttpQueueClient(running.endpoint) as queues:
                staged(running, queues)
            running.wait_until(lambda: list(Path("events").rglob("*.parquet")))
            yield running


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with two accounts, and a queue that the owner shares."""
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with RunningServer(credentials=path, account=OWNER, region=REGION) as running:
        url = client(running).create_queue(QueueName="orders")["QueueUrl"]
        client(running).add_permission(QueueUrl=url, Label="shop", AWSAccountIds=[FRIEND], Actions=["SendMessage"])
        yield running


def sign_in(page: Page) -> None:
    page.get_by_label("Access key id").fill("AKIDOWNER")
    page.get_by_label("Secret access key").fill(SECRETS["AKIDOWNER"])
    page.get_by_role("button", name="Sign in").click()


def look_at(page: Page, name: str) -> None:
    """Check a page in each colour scheme and at each width."""
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


@pytest.mark.parametrize("name", SEEN)
def test_a_page_is_accessible_and_fits(visit: Visit, server: RunningServer, name: str) -> None:
    page = visit(SEEN[name])

    def see(message: str, kind: str) -> None:
        expect(page.locator(f".bar.{kind}").filter(has_text=message[:8])).to_have_count(1)

    if name == "queue":
        expect(page.locator("html")).to_have_attribute("data-live", "on")
        with HttpQueueClient(server.endpoint) as queues:
            go_on(server, queues, see)
    look_at(page, name)


def test_a_page_with_accounts_is_accessible_and_fits(browser: Browser, accounts: RunningServer) -> None:
    with visiting(browser, accounts) as visit:
        page = visit("/console/accounts")
        look_at(page, "login")
        sign_in(page)
        expect(page.get_by_role("heading", level=1)).to_have_text("Accounts and policies")
        look_at(page, "accounts")


def test_the_keyboard_suffices(browser: Browser, accounts: RunningServer) -> None:
    with visiting(browser, accounts) as visit:
        page = visit()
        keyboard = Keyboard(page)
        keyboard.write(page.get_by_label("Access key id"), "AKIDOWNER")
        keyboard.write(page.get_by_label("Secret access key"), SECRETS["AKIDOWNER"])
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name="orders")).to_be_visible()
        keyboard.press(page.get_by_role("button", name="Sign out"))
        expect(page.get_by_role("status")).to_have_text("You have signed out.")
        assert keyboard.unseen == []


def test_a_search_after_the_end_of_the_session_leads_to_the_sign_in(browser: Browser, accounts: RunningServer) -> None:
    with visiting(browser, accounts) as visit:
        page = visit()
        sign_in(page)
        page.wait_for_selector("[data-live=on]")
        page.context.clear_cookies()
        page.get_by_role("searchbox").press_sequentially("or")
        expect(page).to_have_title(re.compile("Sign in"))
        assert page.get_by_role("heading", level=1).all_inner_texts() == ["Sign in"]


def test_a_foreign_page_changes_nothing(browser: Browser, accounts: RunningServer) -> None:
    """Its form is sent without the cookie, and refused for its origin."""
    context = browser.new_context(base_url=accounts.admin_endpoint)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/")
    sign_in(page)
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    target = f"{accounts.admin_endpoint}/console/queues/{OWNER}/orders/delete"
    form = f"<form method=post action='{target}'><input name=confirmation value=orders><button>Win</button></form>"
    page.route(EVIL, lambda route: route.fulfill(status=200, body=form, headers={"content-type": "text/html"}))
    page.goto(EVIL)
    with page.expect_response(re.compile("/delete$")) as answered:
        page.get_by_role("button", name="Win").click()
    assert answered.value.status == 403
    assert "cookie" not in answered.value.request.all_headers()
    assert client(accounts).list_queues()["QueueUrls"] == [f"{accounts.endpoint}/{OWNER}/orders"]


# The pipeline's report, opened as a file.


def opened(browser: Browser, path: Path, text: str) -> tuple[Page, list[str], float]:
    """Open the page; return it, its foreign requests and errors, and the processor time that it took in seconds."""
    path.write_text(text, encoding="utf-8")
    shown = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    wrong: list[str] = []
    shown.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
    shown.on("pageerror", lambda error: wrong.append(str(error)))
    figures = shown.context.new_cdp_session(shown)
    figures.send("Performance.enable", {"timeDomain": "threadTicks"})  # excludes other processes
    shown.goto(path.as_uri())
    shown.wait_for_selector("html[data-ready]")
    found = {each["name"]: each["value"] for each in figures.send("Performance.getMetrics")["metrics"]}
    return shown, wrong, found["TaskDuration"]


def test_a_reader_finds_a_queue_and_its_problems(browser: Browser, tmp_path: Path) -> None:
    """The report opens quickly, can be searched and sorted, and shows the charts and keys of an opened queue."""
    text = report(made_queues(QUEUES), title="Timeouts", at_ms=0, options=DEFAULTS)
    shown, wrong, took_s = opened(browser, tmp_path / "report.html", text)
    assert took_s < OPENED_S_MAX
    rows = shown.locator("#rows > tr")
    expect(rows).to_have_count(QUEUES)
    queues = content(text)["queues"]
    expect(rows.first).to_contain_text(queues[0]["name"])
    shown.get_by_role("searchbox").fill("queue-077")
    expect(rows).to_have_count(1)
    expect(shown.get_by_role("status")).to_have_text(f"1 of {QUEUES} queues")
    shown.get_by_role("button", name="queue-077").click()
    expect(shown.locator("section figure svg")).to_have_count(4)
    expect(shown.locator("section tbody tr")).to_have_count(KEYS)
    assert barriers(shown) == []
    shown.emulate_media(color_scheme="dark")
    assert barriers(shown) == []
    shown.get_by_role("button", name="queue-077").click()
    expect(shown.locator("section")).to_have_count(0)
    shown.get_by_role("searchbox").fill("")
    shown.get_by_role("button", name="duplicates").click()
    expect(rows.first).to_contain_text(max(queues, key=lambda queue: queue["row"][5])["name"])
    assert wrong == []


def test_a_report_of_few_queues_has_no_list_and_escapes_markup(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "few.html"
    seen: list[str] = []
    for count in (0, 1):
        few = made_queues(count)
        for each in few:
            each["name"] = each["keys"][0][0] = each["row"][-1] = "<b onclick=x>&amp;"
        seen.append(report(few, title="</title><b>", at_ms=0, options=DEFAULTS))
    shown, wrong, _ = opened(browser, path, seen[0])
    for text, words, charts in ((seen[0], "No receipt has ended yet", 0), (seen[1], "Unfinished work", 4)):
        path.write_text(text, encoding="utf-8")
        shown.reload()
        expect(shown.locator("#content")).to_contain_text(words)
        expect(shown.locator("b[onclick]")).to_have_count(0)
        expect(shown.locator("h1")).to_have_text("</title><b>")
        assert shown.locator("svg").count() == charts
    assert wrong == []

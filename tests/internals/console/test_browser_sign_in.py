"""Who one is: signing in, by keys alone too; what others see; and that forms of others change nothing."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.console.barriers import Keyboard
from tests.console.conftest import PATIENCE_MS, Visit
from tests.server.keys import OWNER, REGION, SECRETS, client, written
from veilmq.console.page import Page as ConsolePage
from veilmq.console.pages import PAGES
from veilmq.testing import RunningServer

Fields = dict[str, str | float | bool]

OF_A_QUEUE = [page for page in PAGES if "{name}" in page.path]
EVIL = "http://evil.example/"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml")
    with RunningServer(credentials=path, account=OWNER, region=REGION) as running:
        sqs = client(running)
        url = sqs.create_queue(QueueName="treasure")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="gold")
        yield running


def sign_in(page: Page, key: str, secret: str) -> None:
    page.get_by_label("Access key id").fill(key)
    page.get_by_label("Secret access key").fill(secret)
    page.get_by_role("button", name="Sign in").click()


def address(page: ConsolePage) -> str:
    of_queue = page.path.replace("{account}", OWNER).replace("{name}", "treasure")
    return re.sub(r"\{[^}]*\}", "x", of_queue)


def messages(server: RunningServer) -> int:
    sqs = client(server)
    if not sqs.list_queues().get("QueueUrls"):
        return -1
    url = sqs.get_queue_url(QueueName="treasure")["QueueUrl"]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])
    return int(found["Attributes"]["ApproximateNumberOfMessages"])


def test_keys_alone_lead_in_and_out(visit: Visit) -> None:
    page = visit()
    keyboard = Keyboard(page)
    keyboard.write(page.get_by_label("Access key id"), "AKIDOWNER")
    keyboard.write(page.get_by_label("Secret access key"), SECRETS["AKIDOWNER"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="treasure")).to_be_visible()
    keyboard.press(page.get_by_role("button", name="Sign out"))
    expect(page.get_by_role("status")).to_have_text("You have signed out.")
    assert keyboard.unseen == []


def test_a_wrong_secret_keeps_the_form_and_says_so(visit: Visit) -> None:
    page = visit()
    sign_in(page, "AKIDOWNER", "guessed")
    expect(page.get_by_role("alert")).to_contain_text("There is no key with this id and secret")
    expect(page.get_by_label("Access key id")).to_have_value("AKIDOWNER")
    expect(page.get_by_label("Secret access key")).to_have_value("")


def test_one_comes_to_the_page_that_one_wanted(visit: Visit) -> None:
    page = visit(f"/console/queues/{OWNER}/treasure")
    sign_in(page, "AKIDOWNER", SECRETS["AKIDOWNER"])
    expect(page.get_by_role("heading", level=1)).to_contain_text("treasure")


def test_another_account_sees_and_does_nothing(visit: Visit, server: RunningServer) -> None:
    page = visit()
    sign_in(page, "AKIDFRIEND", SECRETS["AKIDFRIEND"])
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    assert page.get_by_text("treasure").count() == 0
    token = page.locator("input[name=csrf]").first.input_value()
    for each in OF_A_QUEUE:
        page.goto(address(each), wait_until="domcontentloaded")
        may_be_allowed = each.path.endswith("/send")  # to others who may not look: the form is empty
        assert page.get_by_role("alert").count() > 0 or may_be_allowed, each.path
        assert "gold" not in page.content()
        if each.change is not None:
            fields: Fields = {"csrf": token, "confirmation": "treasure", "receipt": "x", "body": "brass"}
            refused = page.request.post(address(each), form=fields)
            assert refused.status in {400, 403, 404, 422}, each.path
            assert "gold" not in refused.text()
    assert messages(server) == 1


def test_forms_without_the_token_change_nothing(visit: Visit, server: RunningServer) -> None:
    page = visit()
    sign_in(page, "AKIDOWNER", SECRETS["AKIDOWNER"])
    expect(page.get_by_role("link", name="treasure")).to_be_visible()
    changing = [each for each in PAGES if each.change is not None]
    assert len(changing) > len(OF_A_QUEUE) // 2
    for each in changing:
        for token in ("", "guessed"):
            fields: Fields = {"csrf": token, "confirmation": "treasure", "body": "brass", "name": "new"}
            refused = page.request.post(address(each), form=fields)
            assert (refused.status, "Nothing was changed" in refused.text()) == (403, True), each.path
    assert messages(server) == 1


def test_a_page_of_another_site_changes_nothing(browser: Browser, server: RunningServer) -> None:
    """Its form is sent without the cookie, and refused for where it comes from."""
    context = browser.new_context(base_url=server.admin_endpoint)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto("/")
    sign_in(page, "AKIDOWNER", SECRETS["AKIDOWNER"])
    expect(page.get_by_role("link", name="treasure")).to_be_visible()
    target = f"{server.admin_endpoint}/console/queues/{OWNER}/treasure/delete"
    form = f"<form method=post action='{target}'><input name=confirmation value=treasure><button>Win</button></form>"
    page.route(EVIL, lambda route: _answer(route, form))
    page.goto(EVIL)
    with page.expect_response(re.compile("/delete$")) as answered:
        page.get_by_role("button", name="Win").click()
    assert answered.value.status == 403
    assert "cookie" not in answered.value.request.all_headers()
    assert messages(server) == 1


def _answer(route: Route, html: str) -> None:
    route.fulfill(status=200, body=html, headers={"content-type": "text/html"})

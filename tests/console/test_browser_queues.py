"""Queues, made, changed, emptied and deleted in a browser, as others see it: boto3, and the SDK of SMQ."""

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from mns.account import Account
from playwright.sync_api import Page, expect

from tests.clients import boto
from tests.conftest import EVERYTHING
from tests.console.conftest import Visit
from tests.console.keyboard import Keyboard
from veilmq.testing import RunningServer

pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated")  # what the SDK of SMQ does itself

TIMEOUT = re.compile("^Visibility timeout")


_NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server, for queues with a name of their own in each test."""
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def sqs(server: RunningServer) -> Any:
    """A stock client of SQS."""
    return boto.client(server.endpoint)


@pytest.fixture
def orders() -> str:
    """The name of a queue that is not there yet; none of another test begins with it."""
    return f"orders{next(_NUMBERS)}-"


def is_there(sqs: Any, name: str) -> bool:
    """Return whether there is a queue with this name."""
    return "QueueUrls" in sqs.list_queues(QueueNamePrefix=name)


def attributes(sqs: Any, name: str) -> dict[str, str]:
    """Return all that SQS says of a queue."""
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


def to_new_queue(page: Page) -> None:
    """Go from the list of queues to the form of a new one."""
    page.get_by_role("link", name="New queue").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New queue")


def test_a_queue_made_here_is_read_back_by_others(page: Page, server: RunningServer, sqs: Any, orders: str) -> None:
    """Through both protocols, with the timeout that was filled in."""
    to_new_queue(page)
    page.get_by_label("Name", exact=True).fill(orders)
    page.get_by_label(TIMEOUT).fill("45")
    page.get_by_role("button", name="Create the queue").click()
    expect(page.get_by_role("status").first).to_have_text("The queue was created.")
    expect(page.get_by_role("heading", level=1)).to_have_text(orders)
    assert attributes(sqs, orders)["VisibilityTimeout"] == "45"
    account = Account(server.endpoint, "any", "any")
    assert account.get_queue(orders).get_attributes().visibility_timeout == 45
    account.mns_client.close_connection()


@pytest.mark.parametrize("wrong", ["soon", *(pytest.param(each, marks=EVERYTHING) for each in ("43201", "-1", "1e3"))])
def test_a_wrong_value_keeps_the_form_and_says_the_range(page: Page, sqs: Any, orders: str, wrong: str) -> None:
    to_new_queue(page)
    page.get_by_label("Name", exact=True).fill(orders)
    page.get_by_label(TIMEOUT).fill(wrong)
    page.get_by_role("button", name="Create the queue").click()
    expect(page.get_by_role("alert").first).to_contain_text("Nothing was changed")
    field = page.get_by_label(TIMEOUT)
    expect(field).to_have_value(wrong)
    expect(field).to_have_accessible_description(re.compile("0 to 43,?200"))
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Name", exact=True)).to_have_value(orders)
    assert not is_there(sqs, orders)
    field.fill("0")
    page.get_by_role("button", name="Create the queue").click()
    expect(page.get_by_role("status").first).to_have_text("The queue was created.")
    assert attributes(sqs, orders)["VisibilityTimeout"] == "0"


def test_a_timeout_is_changed(page: Page, server: RunningServer, sqs: Any, orders: str) -> None:
    server.queue(orders, delay_s=7)
    page.goto("/console/queues")
    page.get_by_role("link", name=orders, exact=True).click()
    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_label(TIMEOUT)).to_have_value("30")
    page.get_by_label(TIMEOUT).fill("600")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_have_text("The settings were changed.")
    found = attributes(sqs, orders)
    assert (found["VisibilityTimeout"], found["DelaySeconds"]) == ("600", "7")


@pytest.mark.parametrize(("way", "button"), [("Purge", "Delete all messages"), ("Delete", "Delete the queue")])
def test_what_destroys_wants_the_name_typed(
    visit: Visit, server: RunningServer, sqs: Any, orders: str, way: str, button: str
) -> None:
    """A wrong name does nothing, and says so beside the field."""
    url = server.queue(orders).url
    sqs.send_message(QueueUrl=url, MessageBody="one")
    page = visit(f"/console/queues/000000000000/{orders}")
    page.get_by_role("link", name=way, exact=True).click()
    confirmation = page.get_by_label("Type the queue's name to confirm")
    for wrong in (orders[:-1], orders.capitalize(), f"{orders}2"):
        confirmation.fill(wrong)
        page.get_by_role("button", name=button).click()
        expect(confirmation).to_have_attribute("aria-invalid", "true")
        assert attributes(sqs, orders)["ApproximateNumberOfMessages"] == "1"
    confirmation.fill(orders)
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("status").first).to_be_visible()
    if way == "Purge":
        assert attributes(sqs, orders)["ApproximateNumberOfMessages"] == "0"
    else:
        assert not is_there(sqs, orders)


def test_keys_alone_make_and_delete_a_queue(page: Page, sqs: Any, orders: str) -> None:
    """Tab and Enter lead everywhere, and what has the focus shows it."""
    keyboard = Keyboard(page)
    keyboard.press(page.get_by_role("link", name="New queue").first)
    expect(page.get_by_role("heading", level=1)).to_have_text("New queue")
    keyboard.write(page.get_by_label("Name", exact=True), orders)
    keyboard.write(page.get_by_label(TIMEOUT), "45")
    keyboard.press(page.get_by_role("button", name="Create the queue"))
    expect(page.get_by_role("status").first).to_have_text("The queue was created.")
    assert attributes(sqs, orders)["VisibilityTimeout"] == "45"
    keyboard.press(page.get_by_role("link", name="Delete", exact=True))
    expect(page.get_by_role("heading", name="Delete the queue")).to_be_visible()
    keyboard.write(page.get_by_label("Type the queue's name to confirm"), orders)
    keyboard.press(page.get_by_role("button", name="Delete the queue"))
    expect(page.get_by_role("status").first).to_have_text("The queue and its messages were deleted.")
    assert not is_there(sqs, orders)
    assert keyboard.unseen == []


def test_typing_searches(page: Page, server: RunningServer, orders: str) -> None:
    """The list follows without another page, the address too; and the field keeps the focus."""
    for name in (orders, f"{orders}dead", "letters"):
        server.queue(name)
    page.goto("/")
    page.get_by_role("searchbox").press_sequentially(orders)
    expect(page.get_by_role("link", name="letters")).to_have_count(0)
    expect(page.get_by_role("link", name=re.compile(f"^{orders}"))).to_have_count(2)
    expect(page.get_by_role("searchbox")).to_be_focused()
    expect(page).to_have_url(re.compile(f"search={orders}"))
    page.reload()
    expect(page.get_by_role("searchbox")).to_have_value(orders)
    expect(page.get_by_role("link", name=re.compile(f"^{orders}"))).to_have_count(2)


def test_the_first_tab_leads_past_the_menu(page: Page) -> None:
    skip = page.get_by_role("link", name="Skip to the content")
    page.keyboard.press("Tab")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_everything_is_read_without_scripts(visit: Visit, server: RunningServer, sqs: Any, orders: str) -> None:
    """And a form works."""
    sqs.send_message(QueueUrl=server.queue(orders).url, MessageBody="one")
    page = visit("/", java_script_enabled=False)
    page.get_by_role("link", name=orders, exact=True).click()
    expect(page.get_by_role("term").filter(has_text="Visible")).to_be_visible()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label(TIMEOUT).fill("12")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_have_text("The settings were changed.")
    assert attributes(sqs, orders)["VisibilityTimeout"] == "12"

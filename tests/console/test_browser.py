"""The console in a real browser: by keyboard, with search as you type, without scripts, and with live updates."""

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.clients import boto
from tests.console.barriers import Keyboard
from tests.console.conftest import Visit
from veilmq.client import HttpQueueClient
from veilmq.client.api import Settings
from veilmq.testing import RunningServer

TIMEOUT = re.compile("^Visibility timeout")


_NUMBERS = count()


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="module")
def sqs(server: RunningServer) -> Any:
    return boto.client(server.endpoint)


@pytest.fixture
def orders() -> str:
    """The name of a missing queue, with a unique prefix."""
    return f"orders{next(_NUMBERS)}-"


@pytest.fixture
def jobs(queues: HttpQueueClient) -> str:
    """The name of a new queue with a visibility timeout of 30 seconds."""
    name = f"jobs{next(_NUMBERS)}-"
    queues.create_queue(name, {"visibility_timeout_s": 30})
    return name


def is_there(sqs: Any, name: str) -> bool:
    return "QueueUrls" in sqs.list_queues(QueueNamePrefix=name)


def attributes(sqs: Any, name: str) -> dict[str, str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


def counts(queues: HttpQueueClient, name: str) -> tuple[int, int]:
    shown = queues.show(name)
    return shown.visible, shown.in_flight


def place(name: str) -> str:
    return f"/console/queues/000000000000/{name}"


def test_a_queue_is_created_and_deleted_by_keyboard(page: Page, sqs: Any, orders: str) -> None:
    """The focus is visible; an invalid value keeps the form and shows the valid range."""
    keyboard = Keyboard(page)
    keyboard.press(page.get_by_role("link", name="New queue").first)
    expect(page.get_by_role("heading", level=1)).to_have_text("New queue")
    keyboard.write(page.get_by_label("Name", exact=True), orders)
    field = page.get_by_label(TIMEOUT)
    keyboard.write(field, "soon")
    keyboard.press(page.get_by_role("button", name="Create the queue"))
    expect(page.get_by_role("alert").first).to_contain_text("Not saved")
    expect(field).to_have_value("soon")
    expect(field).to_have_accessible_description(re.compile("0 to 43,?200"))
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Name", exact=True)).to_have_value(orders)
    assert not is_there(sqs, orders)
    keyboard.write(field, "45")
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


def test_messages_are_sent_received_and_deleted_by_keyboard(visit: Visit, queues: HttpQueueClient, jobs: str) -> None:
    page = visit()
    keyboard = Keyboard(page)
    keyboard.press(page.get_by_role("link", name=jobs, exact=True))
    keyboard.press(page.get_by_role("link", name="Messages", exact=True))
    keyboard.press(page.get_by_role("link", name="Send a message"))
    keyboard.write(page.get_by_label("Body"), "by hand")
    keyboard.press(page.get_by_role("button", name="Send"))
    expect(page.get_by_role("status").first).to_be_visible()
    assert counts(queues, jobs) == (1, 0)

    keyboard.press(page.get_by_text("Receive messages"))
    keyboard.write(page.get_by_label("Visibility timeout"), "600")
    keyboard.press(page.get_by_role("button", name="Receive", exact=True))
    message = page.get_by_role("article", name=re.compile("^Message"))
    expect(message).to_contain_text("received by you")
    assert counts(queues, jobs) == (0, 1)

    keyboard.press(message.get_by_role("checkbox"), "Space")
    expect(message.get_by_role("checkbox")).to_be_checked()
    keyboard.choose(page.get_by_role("radio", name=re.compile("^Delete")))
    keyboard.press(page.get_by_role("button", name="Apply"))
    expect(message).to_have_count(0)
    assert counts(queues, jobs) == (0, 0)
    assert keyboard.unseen == []


def test_typing_filters_the_list(page: Page, server: RunningServer, orders: str) -> None:
    """List and address change without a navigation, and the field keeps the focus."""
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


def test_the_first_tab_skips_the_menu(page: Page) -> None:
    skip = page.get_by_role("link", name="Skip to content")
    page.keyboard.press("Tab")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_the_console_works_without_scripts(visit: Visit, queues: HttpQueueClient, jobs: str) -> None:
    """Leases are a drawing and a table, and forms work."""
    queues.send(jobs, "one")
    (held,) = queues.receive(jobs)
    page = visit("/", java_script_enabled=False)
    page.get_by_role("link", name=jobs, exact=True).click()
    expect(page.get_by_role("term").filter(has_text="Visible")).to_be_visible()
    expect(page.locator("svg.leases .bar.held")).to_have_count(1)
    page.get_by_text("As a table").click()
    expect(page.get_by_role("rowheader", name=held.id)).to_be_visible()
    page.get_by_role("link", name="Edit").click()
    expect(page.get_by_label(TIMEOUT)).to_have_value("30")
    page.get_by_label(TIMEOUT).fill("12")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_have_text("The settings were saved.")
    assert queues.show(jobs).settings.visibility_timeout_s == 12


# Live updates.


def connected(page: Page) -> Page:
    """Return ``page`` once its event stream is connected."""
    expect(page.locator("html")).to_have_attribute("data-live", "on")
    return page


def end_of(bar: Locator) -> float:
    rect = bar.locator("rect")
    place, width = (float((rect.get_attribute(name) or "").rstrip("%")) for name in ("x", "width"))
    return place + width


def test_a_lease_is_a_bar_until_its_timeout_ends(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str
) -> None:
    """It appears without a reload, a renewal moves its end, and it ends by the server's clock."""
    queues.send(jobs, "m")
    page = connected(visit(place(jobs)))
    bars = page.locator("svg.leases .bar")
    expect(bars).to_have_count(0)
    (held,) = queues.receive(jobs)
    server.advance(1_000)
    expect(bars).to_have_count(1)
    expect(bars).to_have_class("bar held")
    expect(bars.locator("text")).to_have_text(f"{held.id[:8]} ×1")
    expect(page.locator("dd.in-flight")).to_have_text("1")
    queues.change_visibility(jobs, held.receipt, 50)
    before = end_of(bars)
    server.advance(1_000)
    expect(bars.locator(".renewal")).to_have_count(1)
    assert end_of(bars) > before
    server.advance(48_000)
    expect(page.locator(".now")).not_to_have_attribute("x1", "0%")
    expect(bars).to_have_class("bar held")
    server.advance(2_000)
    expect(bars).to_have_class("bar expired")
    expect(page.locator("dd.visible")).to_have_text("1")
    for _ in range(11):
        server.advance(1_000)
    expect(bars).to_have_count(0)


def test_counts_in_the_list_change_without_a_reload(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str
) -> None:
    """Also after a search has replaced the list."""
    queues.create_queue("other")
    page = connected(visit("/console/queues"))
    cell = page.locator(f'tr[data-queue="{jobs}"] [data-figure="visible"]')
    expect(cell).to_have_text("0")
    queues.send(jobs, "m")
    server.advance(1_000)
    expect(cell).to_have_text("1")
    page.get_by_role("searchbox").fill(jobs)
    expect(page.locator("tr[data-queue]")).to_have_count(1)
    connected(page)
    queues.send(jobs, "m")
    server.advance(2_000)
    expect(cell).to_have_text("2")


def test_a_double_click_sends_a_form_once(visit: Visit, jobs: str) -> None:
    page = visit(f"{place(jobs)}/messages/send")
    event = "new SubmitEvent('submit', {bubbles: true, cancelable: true})"  # a real one would leave the page
    assert page.evaluate(f"[0, 1].map(() => document.forms[0].dispatchEvent({event}))") == [True, False]


@pytest.fixture
def dead(server: RunningServer, queues: HttpQueueClient, jobs: str) -> str:
    """The name of the dead-letter queue of ``jobs``, with three messages."""
    name = f"{jobs}dead"
    queues.create_queue(name)
    with Settings(server.endpoint, jobs) as settings:
        settings.set({"visibility_timeout_s": 1, "dead_letter_queue": name, "receives_max": 1})
    for _ in range(3):
        queues.send(jobs, "m")
    queues.receive(jobs, count=3)
    server.advance(1_000)
    queues.receive(jobs, count=3)
    return name


def moving(page: Page) -> Locator:
    """Start a redrive of a message a second on the page of dead letters; return its row."""
    page.locator("[name=rate]").fill("1")
    page.get_by_role("button", name="Start redrive").click()
    connected(page)
    return page.locator("[data-live=moves] tbody tr")


def test_the_progress_of_a_move_changes_without_a_reload(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str, dead: str
) -> None:
    page = connected(visit(f"{place(dead)}/dead-letters"))
    expect(page.get_by_role("link", name=jobs, exact=True)).to_be_visible()
    row = moving(page)
    for _ in range(5):
        server.advance(1_000)
    expect(row).to_contain_text("3 of 3")
    expect(row).to_contain_text("completed")
    assert counts(queues, jobs) == (3, 0)
    page.locator("[name=rate]").fill("0")
    with page.expect_request_finished(lambda request: request.resource_type == "fetch"):  # for the table of moves
        page.get_by_role("button", name="Start redrive").click()
    page.evaluate("new Promise(setTimeout)")
    expect(page.get_by_text("must be 1 to 500")).to_be_visible()
    expect(page.locator("[name=rate]")).to_have_value("0")


def test_a_move_that_ends_while_its_page_is_hidden_or_its_button_has_the_focus_is_shown_then(
    visit: Visit, server: RunningServer, dead: str
) -> None:
    shown, hidden = (connected(visit(f"{place(dead)}/dead-letters")) for _ in range(2))
    row = moving(shown)
    hidden.reload()
    connected(hidden)
    shown.get_by_role("button", name="Cancel").focus()
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true})"
    changed = "document.dispatchEvent(new Event('visibilitychange'))"
    hidden.evaluate(f"{hide % 'true'}; {changed}")
    for _ in range(5):
        server.advance(1_000)
    expect(shown.get_by_role("button", name="Cancel")).to_be_focused()
    shown.get_by_role("link", name="Overview").focus()
    expect(row).to_contain_text("completed")
    hidden.evaluate(f"{hide % 'false'}; {changed}")
    expect(hidden.locator("[data-live=moves] tbody tr")).to_contain_text("completed")


def test_a_queue_that_is_deleted_elsewhere_leaves_its_list_and_its_page_says_so(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str
) -> None:
    stays = f"{jobs}stays"
    queues.create_queue(stays)
    listed, shown = connected(visit(f"/console/queues?search={jobs}")), connected(visit(place(jobs)))
    queues.delete_queue(jobs)
    server.advance(1_000)
    expect(listed.locator("tr[data-queue]")).to_have_count(1)
    expect(listed.locator("tr[data-queue]")).to_contain_text(stays)
    expect(shown.get_by_role("alert")).to_have_text(re.compile("no longer updated.* does not exist"))


def test_a_page_without_updates_says_so_until_they_continue(visit: Visit, jobs: str) -> None:
    page = visit()
    page.route("**/console/live?*", lambda route: route.fulfill(status=429))
    page.goto(place(jobs))
    stale = page.get_by_role("alert").filter(has_text="not updated at present")
    expect(stale).to_be_visible()
    page.unroute("**/console/live?*")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    connected(page)
    expect(stale).to_have_count(0)

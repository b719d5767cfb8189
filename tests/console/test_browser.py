"""Queues, made, changed, emptied and deleted in a browser, as others see it: boto3, and the SDK of SMQ."""

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from mns.account import Account
from playwright.sync_api import Locator, Page, expect

from tests.clients import boto
from tests.conftest import EVERYTHING
from tests.console.barriers import Keyboard
from tests.console.conftest import Visit
from veilmq.client import HttpQueueClient
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
    """The name of a queue that is not there yet; none of another test begins with it."""
    return f"orders{next(_NUMBERS)}-"


def is_there(sqs: Any, name: str) -> bool:
    return "QueueUrls" in sqs.list_queues(QueueNamePrefix=name)


def attributes(sqs: Any, name: str) -> dict[str, str]:
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    return found


def to_new_queue(page: Page) -> None:
    """Go from the list of queues to the form of a new one."""
    page.get_by_role("link", name="New queue").first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New queue")


@pytest.mark.filterwarnings("ignore:Call to deprecated")
def test_a_queue_made_here_is_read_back_by_others(page: Page, server: RunningServer, sqs: Any, orders: str) -> None:
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


@pytest.mark.filterwarnings("ignore:Call to deprecated")
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


@pytest.mark.filterwarnings("ignore:Call to deprecated")
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


@pytest.mark.filterwarnings("ignore:Call to deprecated")
@pytest.mark.parametrize(("way", "button"), [("Purge", "Delete all messages"), ("Delete", "Delete the queue")])
def test_what_destroys_wants_the_name_typed(
    visit: Visit, server: RunningServer, sqs: Any, orders: str, way: str, button: str
) -> None:
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


@pytest.mark.filterwarnings("ignore:Call to deprecated")
def test_keys_alone_make_and_delete_a_queue(page: Page, sqs: Any, orders: str) -> None:
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


@pytest.mark.filterwarnings("ignore:Call to deprecated")
def test_typing_searches(page: Page, server: RunningServer, orders: str) -> None:
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


@pytest.mark.filterwarnings("ignore:Call to deprecated")
def test_the_first_tab_leads_past_the_menu(page: Page) -> None:
    skip = page.get_by_role("link", name="Skip to the content")
    page.keyboard.press("Tab")
    expect(skip).to_be_focused()
    expect(skip).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


@pytest.mark.filterwarnings("ignore:Call to deprecated")
def test_everything_is_read_without_scripts(visit: Visit, server: RunningServer, sqs: Any, orders: str) -> None:
    sqs.send_message(QueueUrl=server.queue(orders).url, MessageBody="one")
    page = visit("/", java_script_enabled=False)
    page.get_by_role("link", name=orders, exact=True).click()
    expect(page.get_by_role("term").filter(has_text="Visible")).to_be_visible()
    page.get_by_role("link", name="Edit").click()
    page.get_by_label(TIMEOUT).fill("12")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status").first).to_have_text("The settings were changed.")
    assert attributes(sqs, orders)["VisibilityTimeout"] == "12"


# Messages in a browser: sent, received and deleted by keys alone, extended, read as text, moved back from the dead.


IMAGE = "<img src=x onerror=\"window.broken='image'\">"
SCRIPT = "\"'></textarea></pre></title><script>window.broken='script'</script>"
TIGHT = "<svg/onload=window.broken='svg'>"  # without a space, as groups have to be


@pytest.fixture
def stocked(sqs: Any) -> str:
    """The name of an empty queue, which no other test has."""
    name = f"orders{next(_NUMBERS)}"
    sqs.create_queue(QueueName=name)
    return name


def place(name: str) -> str:
    return f"/console/queues/000000000000/{name}"


def url_of(sqs: Any, name: str) -> str:
    return str(sqs.get_queue_url(QueueName=name)["QueueUrl"])


def counts(sqs: Any, name: str) -> tuple[int, int]:
    wanted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url_of(sqs, name), AttributeNames=wanted)["Attributes"]
    return int(found[wanted[0]]), int(found[wanted[1]])


def test_keys_alone_send_receive_and_delete(visit: Visit, sqs: Any, stocked: str) -> None:
    page = visit()
    keyboard = Keyboard(page)
    keyboard.press(page.get_by_role("link", name=stocked, exact=True))
    keyboard.press(page.get_by_role("link", name="Messages", exact=True))
    keyboard.press(page.get_by_role("link", name="Send a message"))
    keyboard.write(page.get_by_label("Body"), "by hand")
    keyboard.press(page.get_by_role("button", name="Send"))
    expect(page.get_by_role("status").first).to_be_visible()
    assert counts(sqs, stocked) == (1, 0)

    keyboard.press(page.get_by_text("Receive messages"))
    keyboard.write(page.get_by_label("Visibility timeout"), "600")
    keyboard.press(page.get_by_role("button", name="Receive", exact=True))
    message = page.get_by_role("article", name=re.compile("^Message"))
    expect(message).to_contain_text("received by you")
    assert counts(sqs, stocked) == (0, 1)

    keyboard.press(message.get_by_role("checkbox"), "Space")
    expect(message.get_by_role("checkbox")).to_be_checked()
    keyboard.choose(page.get_by_role("radio", name=re.compile("^Delete")))
    keyboard.press(page.get_by_role("button", name="Do it"))
    expect(message).to_have_count(0)
    assert counts(sqs, stocked) == (0, 0)
    assert keyboard.unseen == []


def test_what_is_received_is_extended_and_released(visit: Visit, server: RunningServer, sqs: Any, stocked: str) -> None:
    sqs.send_message(QueueUrl=url_of(sqs, stocked), MessageBody="one")
    page = visit(f"{place(stocked)}/messages")
    page.get_by_text("Receive messages").click()
    page.get_by_label("Visibility timeout").fill("30")
    page.get_by_role("button", name="Receive", exact=True).click()
    message = page.get_by_role("article")
    expect(message).to_contain_text("30 s left")
    server.advance(seconds=20)
    message.get_by_role("checkbox").check()
    page.get_by_role("radio", name="Extend").check()
    page.get_by_label("Hidden for, from now on").fill("120")
    page.get_by_role("button", name="Do it").click()
    expect(message).to_contain_text("2 min left")
    server.advance(seconds=60)
    assert counts(sqs, stocked) == (0, 1)
    message.get_by_role("checkbox").check()
    page.get_by_role("radio", name=re.compile("^Release")).check()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status").first).to_have_text("Released: 1.")
    assert counts(sqs, stocked) == (1, 0)


@pytest.mark.parametrize("view", ["Text", "JSON", "Hex"])
def test_markup_is_read_as_it_was_sent(visit: Visit, sqs: Any, stocked: str, view: str) -> None:
    attributes = {
        "plain": {"DataType": f"String.{TIGHT}", "StringValue": SCRIPT},
        "bytes": {"DataType": "Binary", "BinaryValue": IMAGE.encode()},
    }
    url = url_of(sqs, stocked)
    for body in (IMAGE, SCRIPT, "{{7*7}}", "\nfirst line empty"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageGroupId=TIGHT)
    page = visit(f"{place(stocked)}/messages")
    page.get_by_role("link", name=view, exact=True).click()
    expect(page.get_by_role("link", name=view, exact=True)).to_have_attribute("aria-current", "true")
    assert page.evaluate("window.broken") is None
    assert page.locator("img[src=x], svg[onload], script:not([src])").count() == 0
    for words in (SCRIPT, TIGHT):
        expect(page.get_by_text(words).first).to_be_visible()
    bodies = page.locator("pre").all_inner_texts()
    if view == "Text":
        assert sorted(bodies) == sorted([IMAGE, SCRIPT, "{{7*7}}", "\nfirst line empty"])
    if view == "Hex":
        assert any("3c 69 6d 67" in body for body in bodies)


def test_redrive_empties_the_dead_letter_queue(visit: Visit, server: RunningServer, sqs: Any) -> None:
    server.queue("dead")
    server.queue("fragile", dead_letter_queue="dead", receives_max=1, visibility_timeout_s=1)
    for number in range(5):
        sqs.send_message(QueueUrl=url_of(sqs, "fragile"), MessageBody=f"order {number}")
    for _ in range(2):
        sqs.receive_message(QueueUrl=url_of(sqs, "fragile"), MaxNumberOfMessages=10)
        server.advance(seconds=2)
    assert counts(sqs, "dead") == (5, 0)
    page = visit(f"{place('dead')}/dead-letters")
    expect(page.get_by_role("link", name="fragile")).to_be_visible()
    page.get_by_role("button", name="Start to move").click()
    expect(page.get_by_role("status").first).to_be_visible()
    server.advance(seconds=2)
    server.wait_until(lambda: counts(sqs, "dead") == (0, 0))
    assert counts(sqs, "fragile") == (5, 0)
    page.goto("/console/moves")
    expect(page.get_by_role("row", name=re.compile("dead"))).to_contain_text("5 of 5")


# What moves by itself on open pages, in a real browser: figures, leases as bars, moves.


@pytest.fixture(scope="module")
def queues(server: RunningServer) -> Iterator[HttpQueueClient]:
    with HttpQueueClient(server.endpoint) as queues:
        yield queues


@pytest.fixture
def jobs(queues: HttpQueueClient) -> str:
    """The name of a queue with a timeout of half a minute, which no other test has."""
    name = f"jobs{next(_NUMBERS)}-"
    queues.create_queue(name, {"visibility_timeout_s": 30})
    return name


def connected(page: Page) -> Page:
    expect(page.locator("html")).to_have_attribute("data-live", "on")
    return page


def end_of(bar: Locator) -> float:
    rect = bar.locator("rect")
    place, width = (float((rect.get_attribute(name) or "").rstrip("%")) for name in ("x", "width"))
    return place + width


def test_a_received_message_is_a_bar_until_its_timeout_ends(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str
) -> None:
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


def test_a_list_moves_where_something_happened(
    visit: Visit, server: RunningServer, queues: HttpQueueClient, jobs: str
) -> None:
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


def test_a_timeline_is_there_without_scripts(visit: Visit, queues: HttpQueueClient, jobs: str) -> None:
    queues.send(jobs, "m")
    (held,) = queues.receive(jobs)
    page = visit(place(jobs), java_script_enabled=False)
    expect(page.locator("svg.leases .bar.held")).to_have_count(1)
    page.get_by_text("As a table").click()
    expect(page.get_by_role("rowheader", name=held.id)).to_be_visible()


def test_a_move_goes_on_before_ones_eyes(visit: Visit, server: RunningServer, queues: HttpQueueClient) -> None:
    queues.create_queue("ended")
    queues.create_queue("failing", {"visibility_timeout_s": 1, "dead_letter_queue": "ended", "receives_max": 1})
    for _ in range(3):
        queues.send("failing", "m")
    queues.receive("failing", count=3)
    server.advance(1_000)
    queues.receive("failing", count=3)
    queues.start_move("ended", moves_per_s_max=1)
    page = connected(visit(f"{place('ended')}/dead-letters"))
    for _ in range(5):
        server.advance(1_000)
    expect(page.locator("[data-live=moves] tbody tr")).to_contain_text("3 of 3")
    expect(page.locator("[data-live=moves] tbody tr")).to_contain_text("completed")

"""Messages in a browser: sent, received and deleted by keys alone, extended, read as text, moved back from the dead."""

import re
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.clients import boto
from tests.console.conftest import Visit
from tests.console.keyboard import Keyboard
from veilmq.testing import RunningServer

IMAGE = "<img src=x onerror=\"window.broken='image'\">"
SCRIPT = "\"'></textarea></pre></title><script>window.broken='script'</script>"
TIGHT = "<svg/onload=window.broken='svg'>"  # without a space, as groups have to be


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
def orders(sqs: Any) -> str:
    """The name of an empty queue, which no other test has."""
    name = f"orders{next(_NUMBERS)}"
    sqs.create_queue(QueueName=name)
    return name


def place(name: str) -> str:
    """Return the address of the page of a queue."""
    return f"/console/queues/000000000000/{name}"


def url_of(sqs: Any, name: str) -> str:
    """Return the URL of a queue."""
    return str(sqs.get_queue_url(QueueName=name)["QueueUrl"])


def counts(sqs: Any, name: str) -> tuple[int, int]:
    """Return how many messages are visible and in flight."""
    wanted = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=url_of(sqs, name), AttributeNames=wanted)["Attributes"]
    return int(found[wanted[0]]), int(found[wanted[1]])


def test_keys_alone_send_receive_and_delete(visit: Visit, sqs: Any, orders: str) -> None:
    page = visit()
    keyboard = Keyboard(page)
    keyboard.press(page.get_by_role("link", name=orders, exact=True))
    keyboard.press(page.get_by_role("link", name="Messages", exact=True))
    keyboard.press(page.get_by_role("link", name="Send a message"))
    keyboard.write(page.get_by_label("Body"), "by hand")
    keyboard.press(page.get_by_role("button", name="Send"))
    expect(page.get_by_role("status").first).to_be_visible()
    assert counts(sqs, orders) == (1, 0)

    keyboard.press(page.get_by_text("Receive messages"))
    keyboard.write(page.get_by_label("Visibility timeout"), "600")
    keyboard.press(page.get_by_role("button", name="Receive", exact=True))
    message = page.get_by_role("article", name=re.compile("^Message"))
    expect(message).to_contain_text("received by you")
    assert counts(sqs, orders) == (0, 1)

    keyboard.press(message.get_by_role("checkbox"), "Space")
    expect(message.get_by_role("checkbox")).to_be_checked()
    keyboard.choose(page.get_by_role("radio", name=re.compile("^Delete")))
    keyboard.press(page.get_by_role("button", name="Do it"))
    expect(message).to_have_count(0)
    assert counts(sqs, orders) == (0, 0)
    assert keyboard.unseen == []


def test_what_is_received_is_extended_and_released(visit: Visit, server: RunningServer, sqs: Any, orders: str) -> None:
    """The deadline moves to so long from now; released, the message is visible at once."""
    sqs.send_message(QueueUrl=url_of(sqs, orders), MessageBody="one")
    page = visit(f"{place(orders)}/messages")
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
    assert counts(sqs, orders) == (0, 1)
    message.get_by_role("checkbox").check()
    page.get_by_role("radio", name=re.compile("^Release")).check()
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status").first).to_have_text("Released: 1.")
    assert counts(sqs, orders) == (1, 0)


@pytest.mark.parametrize("view", ["Text", "JSON", "Hex"])
def test_markup_is_read_as_it_was_sent(visit: Visit, sqs: Any, orders: str, view: str) -> None:
    """In bodies, in the types and the values of attributes, and in groups."""
    attributes = {
        "plain": {"DataType": f"String.{TIGHT}", "StringValue": SCRIPT},
        "bytes": {"DataType": "Binary", "BinaryValue": IMAGE.encode()},
    }
    url = url_of(sqs, orders)
    for body in (IMAGE, SCRIPT, "{{7*7}}", "\nfirst line empty"):
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageGroupId=TIGHT)
    page = visit(f"{place(orders)}/messages")
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
    """The letters are where they came from again, and the page says so."""
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

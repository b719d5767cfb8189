"""Every page escapes markup in bodies, attributes, tags, groups, policies and addresses."""

import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.clients import boto
from tests.console.conftest import Visit
from tests.console.every_page import addresses
from veilmq.testing import RunningServer

IMAGE = "<img src=x onerror=\"window.broken='image'\">"
SCRIPT = "\"'></textarea></pre></title><script>window.broken='script'</script>"
TIGHT = "<svg/onload=window.broken='svg'>"  # without a space, which groups may not have
TEMPLATE = "{{7*7}}{% raw %}"
WRONG = "img[src=x], svg[onload], script:not([src]), [onerror], [onload], [onfocus], [onclick]"
BODIES = (
    IMAGE,
    SCRIPT,
    TEMPLATE,
    json.dumps({IMAGE: [SCRIPT]}),
    "javascript:alert(1)",
    "\u202e\u0009 \U0001f4a3",
    "\nfirst line empty",
)
WORDS = (
    *("search", "sort", "size", "page", "state", "body", "count", "whole", "mine", "next", "done", "after"),
    *("queue", "who", "source", "number", "message"),
)
SEEN: Final = addresses("jobs")
LONGEST: Final = "a" * 80
LONG: Final = addresses(LONGEST)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        sqs = boto.client(running.endpoint)
        dead = sqs.create_queue(QueueName="dead")["QueueUrl"]
        arn = sqs.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        url = sqs.create_queue(
            QueueName="jobs",
            Attributes={"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})},
            tags={"javascript:alert": "a + b = c@d"},
        )["QueueUrl"]
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy()})
        _send(sqs, url)
        sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=2)
        yield running


def policy() -> str:
    statement = {"Sid": TIGHT, "Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": "*"}
    return json.dumps({"Version": "2012-10-17", "Id": IMAGE, "Statement": [statement]})


def _send(sqs: Any, url: str) -> None:
    attributes = {
        "plain": {"DataType": "String", "StringValue": IMAGE},
        "labelled": {"DataType": f"String.{TIGHT}", "StringValue": SCRIPT},
        "bytes": {"DataType": "Binary", "BinaryValue": IMAGE.encode()},
    }
    for body in BODIES:
        sqs.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes, MessageGroupId=TIGHT)


def assert_escaped(page: Page) -> None:
    """Assert that no input became an element or ran; the watch finds blocked scripts."""
    assert page.locator(WRONG).count() == 0
    assert page.evaluate("window.broken") is None
    assert "49{%" not in page.content()


@pytest.mark.parametrize("name", SEEN)
def test_a_page_escapes_markup(visit: Visit, name: str) -> None:
    page = visit(SEEN[name])
    assert_escaped(page)
    page.goto(f"{SEEN[name]}?{'&'.join(f'{word}={quote(SCRIPT)}' for word in WORDS)}")
    assert_escaped(page)


@pytest.mark.parametrize("name", SEEN)
def test_the_longest_name_fits_a_narrow_page(visit: Visit, server: RunningServer, name: str) -> None:
    boto.client(server.endpoint).create_queue(QueueName=LONGEST)
    page = visit(LONG[name])
    page.set_viewport_size({"width": 390, "height": 720})
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_live_update_escapes_markup(visit: Visit, server: RunningServer) -> None:
    page = visit(SEEN["queue"])
    expect(page.locator("html")).to_have_attribute("data-live", "on")
    sqs = boto.client(server.endpoint)
    url = sqs.get_queue_url(QueueName="jobs")["QueueUrl"]
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    server.advance(seconds=1)
    bar = page.locator(".bar").filter(has_text=message["MessageId"][:8])
    expect(bar.locator("text")).to_contain_text(TIGHT[:24])
    assert_escaped(page)


def test_tags_and_policies_are_shown_unchanged(visit: Visit) -> None:
    page = visit(SEEN["queue"])
    for words in ("javascript:alert", policy()):
        expect(page.get_by_text(words).first).to_be_visible()


def test_bodies_are_shown_unchanged(visit: Visit) -> None:
    page = visit(f"{SEEN['queue-messages']}?count=100")
    assert sorted(page.locator("pre").all_inner_texts()) == sorted(BODIES)


def test_a_form_with_errors_escapes_its_values(visit: Visit) -> None:
    page = visit("/console/queues/new")
    page.get_by_label("Name", exact=True).fill(SCRIPT)
    page.get_by_label("Key of tag 1").fill(IMAGE)
    page.get_by_label("Value of tag 1").fill(SCRIPT)
    page.get_by_role("button", name="Create the queue").click()
    expect(page.get_by_role("alert").first).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value(SCRIPT)
    expect(page.get_by_label("Key of tag 1")).to_have_value(IMAGE)
    assert_escaped(page)


RIGHT_TO_LEFT: Final = "\u202e"
_IN_ORDER = """element => {
    const node = [...element.childNodes].at(-1), text = node.textContent;
    const left = (index) => {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + 1);
        return range.getBoundingClientRect().left;
    };
    return left(text.length - 2) < left(text.length - 1);
}"""


def test_a_value_does_not_reverse_the_text_after_it(visit: Visit, server: RunningServer) -> None:
    sqs = boto.client(server.endpoint)
    url = sqs.create_queue(QueueName="reversed")["QueueUrl"]
    value = {"DataType": "String", "StringValue": RIGHT_TO_LEFT + "x" * 600}
    sqs.send_message(QueueUrl=url, MessageBody="m", MessageAttributes={"long": value})
    assert visit(addresses("reversed")["queue-messages"]).locator(".attributes dd").evaluate(_IN_ORDER)
    statement = {"Sid": RIGHT_TO_LEFT, "Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Resource": "*"}
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Statement": [statement]})})
    assert visit("/console/accounts?search=reversed").locator("main li strong").evaluate(_IN_ORDER)

"""The rules on the page of forwarding and in the examples are rules, and the call by hand answers as the page says."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from tests.forwarding.received import received
from veilmq.client import HttpQueueClient
from veilmq.consumer.forwarding_rules import Rules, read_rules
from veilmq.testing import RunningServer

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "forwarding.md").read_text(encoding="utf-8")


def on_the_page() -> Rules:
    """Return the rules that the page shows."""
    (shown,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)
    return read_rules(shown)


def in_the_examples() -> Rules:
    """Return the rules of the examples."""
    return read_rules((ROOT / "examples" / "routes.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("rules", [on_the_page, in_the_examples])
def test_the_rules_route_as_they_say(rules: object) -> None:
    assert callable(rules)
    chosen = rules()
    pages = json.dumps({"job": {"pages": 100}})
    assert chosen.route(received(kind="video")).queue == "jobs-1h"
    assert chosen.route(received(pages)).queue == "jobs-10min"
    assert chosen.route(received(pages + " " * 65_536)).queue == "jobs-30s"
    assert chosen.route(received(kind="text")).queue == "jobs-30s"
    assert chosen.targets["jobs-1h"] == 3_600


def test_the_examples_have_a_rule_for_a_group() -> None:
    assert in_the_examples().route(received(group="nightly-7")).queue == "jobs-10min"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """Give a server with an intake and a target."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("jobs")
        client.create_queue("jobs-1h")
        yield running


def test_the_call_by_hand_has_the_members_of_the_page(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as client:
        client.send("jobs", "a")
        (message,) = client.receive("jobs")
    (body,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    body = body.replace("…", message.receipt)
    answer = urllib3.request("POST", f"{server.endpoint}/v1/queues/000000000000/jobs/forward", body=body)
    forwarded, refused = answer.json()["entries"]
    (shown,) = re.findall(r'`(\{"id": .*?\})`', TEXT)
    assert forwarded == json.loads(shown) | {"id": message.id}
    assert refused["code"] == "ReceiptEnded"
    assert set(re.findall(r"^\| `(\w+)`(?:, `(\w+)`)? \|", TEXT, re.MULTILINE)) >= {("ReceiptEnded", "")}

"""The page of one queue: figures, settings in words, where it is, and who may see it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.console.visitor import Visitor
from tests.server.keys import OWNER, REGION, SECRETS, client, written
from veilmq.client import HttpQueueClient
from veilmq.client.api import Settings
from veilmq.testing import RunningServer

ACCOUNT = "000000000000"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """One server; each test has queues of its own."""
    with RunningServer() as running:
        yield running


def path_of(name: str) -> str:
    """Return the path of a queue's page."""
    return f"/console/queues/{ACCOUNT}/{name}"


def test_it_says_how_many_messages_are_in_which_state(server: RunningServer, visitor: Visitor) -> None:
    with Settings(server.endpoint, "counted") as settings, HttpQueueClient(server.endpoint) as queue:
        settings.create()
        for number in range(3):
            queue.send("counted", f"m{number}")
        queue.send("counted", "later", delay_s=60)
        queue.receive("counted")
        first = visitor.get(path_of("counted"))
        queue.send("counted", "m")
        server.advance(10_000)
        seen = visitor.get(path_of("counted"))
    assert "Visible 2 In flight 1 Delayed 1 Oldest 0 s Sent/s – " in first.text
    assert "Visible 3 In flight 1 Delayed 1 Oldest 10 s Sent/s 0.1 Received/s 0.0 Deleted/s 0.0" in seen.text


def test_settings_are_in_words_with_their_units(server: RunningServer, visitor: Visitor) -> None:
    with Settings(server.endpoint, "told") as settings:
        settings.create({"visibility_timeout_s": 5_400, "delay_s": 1}, tags={"team": "a + b"})
    text = visitor.get(path_of("told")).text
    for words in ("Visibility timeout 5,400 seconds (1 h 30 min)", "Delay 1 second ", "Kind standard", "team a + b"):
        assert words in text
    assert "Deduplication scope" not in text


def test_it_says_where_programs_reach_it(server: RunningServer, visitor: Visitor) -> None:
    """Under the port of the queues, not that of the console; what it says works."""
    with Settings(server.endpoint, "reached") as settings:
        url = settings.create()
    text = visitor.get(path_of("reached")).text
    assert f"URL (SQS) {url} ARN arn:aws:sqs:us-east-1:{ACCOUNT}:reached" in text
    assert f"Name (SMQ) reached URL (SMQ) {server.endpoint}/queues/reached" in text


def test_dead_letters_lead_both_ways(server: RunningServer, visitor: Visitor) -> None:
    with Settings(server.endpoint, "failed") as failed, Settings(server.endpoint, "source") as source:
        failed.create()
        source.create({"dead_letter_queue": "failed", "receives_max": 3})
    assert f'<a href="{path_of("failed")}">failed</a>' in visitor.get(path_of("source")).html
    seen = visitor.get(path_of("failed"))
    assert f'<a href="{path_of("source")}">source</a>' in seen.html
    assert "No queue names this one" in visitor.get(path_of("source")).text


def test_the_page_that_is_shown_is_marked_in_the_way_about(server: RunningServer, visitor: Visitor) -> None:
    with Settings(server.endpoint, "about") as settings:
        settings.create()
    for page in ("", "/edit", "/purge", "/delete"):
        target = path_of("about") + page
        assert f'<a href="{target}" aria-current="page">' in visitor.get(target).html


@pytest.mark.parametrize("name", ["nowhere", "%3Cscript%3E", "a%3Fb", "a%0Ab"])
def test_a_queue_that_is_not_there_is_said_so(visitor: Visitor, name: str) -> None:
    for page in ("", "/edit", "/purge", "/delete"):
        seen = visitor.get(path_of(name) + page)
        assert seen.status == 404
        assert "<script>" not in seen.html


def test_policies_decide_who_sees_it(tmp_path: Path) -> None:
    """Others see nothing; who may see the queue, but not what names it, sees the rest."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        sqs = client(server)
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        with Visitor(server, key=("AKIDFRIEND", SECRETS["AKIDFRIEND"])) as friend:
            for page in ("", "/edit", "/purge", "/delete"):
                seen = friend.get(f"/console/queues/{OWNER}/jobs{page}")
                assert seen.status == 403
                assert "Not allowed" in seen.text
            allowed = {"Effect": "Allow", "Principal": "*", "Action": "sqs:GetQueueAttributes"}
            sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Statement": [allowed]})})
            seen = friend.get(f"/console/queues/{OWNER}/jobs")
            assert seen.status == 200
            assert "You may not see which queues name this one" in seen.text
            assert "Visible 0 In flight 0 Delayed 0 Oldest – Sent/s – " in seen.text

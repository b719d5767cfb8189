"""Purging and deleting by a page: what is lost is said before, and only the typed name does it."""

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


@pytest.fixture
def queues(server: RunningServer) -> Iterator[HttpQueueClient]:
    """A client."""
    with HttpQueueClient(server.endpoint) as connected:
        yield connected


def make(server: RunningServer, queues: HttpQueueClient, name: str) -> str:
    """Make a queue of two messages and return the path of its page."""
    with Settings(server.endpoint, name) as settings:
        settings.create()
    queues.send(name, "a")
    queues.send(name, "b")
    return f"/console/queues/{ACCOUNT}/{name}"


def test_a_purge_deletes_all_messages(server: RunningServer, visitor: Visitor, queues: HttpQueueClient) -> None:
    path = make(server, queues, "purged")
    assert "Visible 2" in visitor.get(f"{path}/purge").text
    seen = visitor.post(f"{path}/purge", confirmation=" purged ")
    assert seen.path == f"{path}?done=purged"
    assert "All messages of the queue were deleted." in seen.text
    assert queues.show("purged").visible == 0
    again = visitor.post(f"{path}/purge", confirmation="purged")
    assert again.status == 403
    assert "Only one PurgeQueue operation" in again.text


def test_a_queue_is_deleted(server: RunningServer, visitor: Visitor, queues: HttpQueueClient) -> None:
    path = make(server, queues, "deleted")
    seen = visitor.post(f"{path}/delete", confirmation="deleted")
    assert seen.path == "/console/queues?done=deleted"
    assert visitor.get(path).status == 404
    assert visitor.get(f"{path}/delete").status == 404


@pytest.mark.parametrize("action", ["purge", "delete"])
@pytest.mark.parametrize("typed", ["", "Kept", f"{ACCOUNT}/kept", "<script>"])
def test_without_the_name_nothing_is_deleted(
    server: RunningServer, visitor: Visitor, queues: HttpQueueClient, action: str, typed: str
) -> None:
    name = f"kept-{action}"
    path = f"/console/queues/{ACCOUNT}/{name}"
    if visitor.get(path).status == 404:
        make(server, queues, name)
    for seen in (visitor.post(f"{path}/{action}", confirmation=typed), visitor.post(f"{path}/{action}")):
        assert seen.status == 422
        assert "This is not the queue's name, so nothing was deleted." in seen.text
    assert queues.show(name).visible == 2


@pytest.mark.parametrize("action", ["purge", "delete"])
def test_nothing_is_deleted_without_the_token(
    server: RunningServer, visitor: Visitor, queues: HttpQueueClient, action: str
) -> None:
    path = make(server, queues, f"guarded-{action}")
    assert visitor.send(f"{path}/{action}", {"confirmation": f"guarded-{action}"}).status == 403
    assert queues.show(f"guarded-{action}").visible == 2


def test_a_dead_letter_queue_says_whose_it_is(server: RunningServer, visitor: Visitor, queues: HttpQueueClient) -> None:
    path = make(server, queues, "dead")
    with Settings(server.endpoint, "living") as settings:
        settings.create({"dead_letter_queue": "dead", "receives_max": 1})
    seen = visitor.get(f"{path}/delete")
    assert "It is the dead-letter queue of these queues" in seen.text
    assert f'href="/console/queues/{ACCOUNT}/living"' in seen.html


@pytest.mark.parametrize("action", ["purge", "delete"])
def test_whoever_may_only_see_deletes_nothing(tmp_path: Path, action: str) -> None:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        sqs = client(server)
        url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="m")
        allowed = {"Effect": "Allow", "Principal": "*", "Action": "sqs:GetQueueAttributes"}
        sqs.set_queue_attributes(QueueUrl=url, Attributes={"Policy": json.dumps({"Statement": [allowed]})})
        with Visitor(server, key=("AKIDFRIEND", SECRETS["AKIDFRIEND"])) as friend:
            seen = friend.post(f"/console/queues/{OWNER}/jobs/{action}", confirmation="jobs")
            assert seen.status == 403
            assert f"sqs:{action}queue" in seen.text
        counted = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["ApproximateNumberOfMessages"])["Attributes"]
        assert counted["ApproximateNumberOfMessages"] == "1"

"""The pages of dead letters and moves: sources and targets, starting, progress, cancelling and permissions."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from tests.clients import boto
from tests.console.visitor import Seen, Visitor
from tests.server.keys import OWNER, REGION, client, written
from veilmq.testing import RunningQueue, RunningServer

ACCOUNT = "000000000000"
MOVES = "/console/moves"
SCRIPT = "<script>alert(1)</script>"


def at(queue: str, account: str = ACCOUNT) -> str:
    return f"/console/queues/{account}/{queue}/dead-letters"


def failed(server: RunningServer, count: int, *, name: str = "orders") -> tuple[RunningQueue, RunningQueue]:
    dead = server.queue(f"{name}-dead")
    queue = server.queue(name, dead_letter_queue=f"{name}-dead", receives_max=1)
    sqs = boto.client(server.endpoint)
    for number in range(count):
        sqs.send_message(QueueUrl=queue.url, MessageBody=str(number))
    while queue.counts.visible:
        sqs.receive_message(QueueUrl=queue.url, MaxNumberOfMessages=10, VisibilityTimeout=0)
    assert dead.counts.visible == count
    return queue, dead


def start(visitor: Visitor, queue: str, **fields: str) -> Seen:
    return visitor.post(at(queue), **{"do": "start", **fields})


def cancel(visitor: Visitor, page: Seen) -> Seen:
    handle = re.search(r'name="handle" value="([^"]+)"', page.html)
    assert handle is not None
    return visitor.post(at("orders-dead"), at=page.path, do="cancel", handle=unescape(handle[1]))


def test_the_pages_of_source_and_dead_letter_queue_link_to_each_other(server: RunningServer, visitor: Visitor) -> None:
    failed(server, 2)
    source = visitor.get(at("orders"))
    assert "becomes visible again after 1 receive" in source.text
    assert f'href="{at("orders-dead")}"' in source.html
    assert "Start redrive" not in source.text
    dead = visitor.get(at("orders-dead"))
    assert "This is the dead-letter queue of: orders" in dead.text
    assert "Visible 2" in dead.text


def test_the_pages_of_a_queue_without_dead_letters_explain_that(server: RunningServer, visitor: Visitor) -> None:
    server.queue("plain")
    seen = visitor.get(at("plain")).text
    assert "None: messages are delivered again" in seen
    assert "No queue uses this one" in seen
    assert "Start redrive" not in seen
    assert "No queue of this account has a dead-letter queue" in visitor.get(MOVES).text


def test_a_move_shows_its_progress_until_it_completes(server: RunningServer, visitor: Visitor) -> None:
    queue, dead = failed(server, 30)
    begun = start(visitor, "orders-dead", rate="5")
    assert begun.path.endswith("?done=move-started")
    assert "running" in begun.text
    assert "5 / s" in begun.text
    assert "Start redrive" not in begun.text
    server.advance(seconds=2)
    for page in (visitor.get(at("orders-dead")), visitor.get(MOVES)):
        assert re.search(r"\b1[01] of 30\b", page.text)
        assert re.search(r'<progress max="100" value="3[36]"', page.html)
    server.advance(seconds=10)
    ended = visitor.get(at("orders-dead")).text
    assert "completed 30 of 30" in ended
    assert "Start redrive" in ended
    assert (queue.counts.visible, dead.counts.visible) == (30, 0)


def test_a_move_may_have_a_destination_and_no_rate(server: RunningServer, visitor: Visitor) -> None:
    _, dead = failed(server, 300)
    target = server.queue("inspection")
    assert "inspection" in start(visitor, "orders-dead", destination="inspection").text
    server.advance(seconds=5)
    assert "300 of 300" in visitor.get(MOVES).text
    assert (target.counts.visible, dead.counts.visible) == (300, 0)


@pytest.mark.parametrize("page", [at("orders-dead"), MOVES])
def test_a_cancelled_move_keeps_the_moved_messages(server: RunningServer, visitor: Visitor, page: str) -> None:
    queue, dead = failed(server, 30)
    start(visitor, "orders-dead", rate="5")
    server.advance(seconds=2)
    assert "The redrive was cancelled" in cancel(visitor, visitor.get(page)).text
    moved = queue.counts.visible
    server.advance(seconds=20)
    assert (queue.counts.visible, dead.counts.visible) == (moved, 30 - moved)
    assert f"cancelled {moved} of 30" in visitor.get(MOVES).text


def test_cancelling_a_completed_move_is_an_error(server: RunningServer, visitor: Visitor) -> None:
    failed(server, 3)
    page = start(visitor, "orders-dead", rate="1")
    server.advance(seconds=10)
    seen = cancel(visitor, page)
    assert (seen.status, "Task does not exist." in seen.text) == (404, True)


def test_a_failed_move_has_a_reason(server: RunningServer, visitor: Visitor) -> None:
    _, dead = failed(server, 0)
    boto.client(server.endpoint).send_message(QueueUrl=dead.url, MessageBody="sent directly")
    start(visitor, "orders-dead")
    server.advance(seconds=1)
    assert "failed: a message was sent to this queue directly" in visitor.get(at("orders-dead")).text


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"rate": "0"}, "This must be 1 to 500 messages per second."),
        ({"rate": "501"}, "This must be 1 to 500 messages per second."),
        ({"rate": SCRIPT}, "This must be a whole number, 1 to 500 messages per second."),
        ({"destination": SCRIPT}, "Queue names may contain only letters"),
        ({"destination": "nowhere"}, "There is no such queue in this account."),
        ({"destination": "orders-dead"}, "cannot be moved to itself"),
        ({"destination": "other.fifo"}, "has another type"),
    ],
)
def test_invalid_fields_start_no_move(
    server: RunningServer, visitor: Visitor, fields: dict[str, str], error: str
) -> None:
    server.queue("other.fifo")
    _, dead = failed(server, 1)
    seen = start(visitor, "orders-dead", **fields)
    assert (seen.status, error in seen.text) == (422, True)
    assert SCRIPT not in seen.html
    assert unescape(seen.html).count(next(iter(fields.values()))) >= 1
    server.advance(seconds=5)
    assert (dead.counts.visible, "Latest redrives" in visitor.get(at("orders-dead")).text) == (1, False)


def test_a_queue_has_one_move_at_a_time(server: RunningServer, visitor: Visitor) -> None:
    failed(server, 10)
    start(visitor, "orders-dead", rate="1")
    seen = start(visitor, "orders-dead")
    assert (seen.status, "There is already a task running" in seen.text) == (400, True)


def test_the_page_of_moves_has_running_moves_first(server: RunningServer, visitor: Visitor) -> None:
    for name in ("a", "b"):
        failed(server, 5, name=name)
    start(visitor, "a-dead", rate="1")
    server.advance(seconds=1)
    start(visitor, "b-dead")
    server.advance(seconds=1)
    text = visitor.get(MOVES).text
    assert text.index("a-dead") < text.index("running") < text.index("b-dead") < text.index("completed")


def test_only_the_owner_sees_and_starts_moves(tmp_path: Path) -> None:
    """Whatever a policy allows."""
    with RunningServer(credentials=written(tmp_path / "credentials.toml"), account=OWNER, region=REGION) as running:
        owner = client(running)
        policy = json.dumps({"Statement": [{"Effect": "Allow", "Principal": "*", "Action": "sqs:Get*"}]})
        dead = owner.create_queue(QueueName="dead", Attributes={"Policy": policy})["QueueUrl"]
        arn = attribute(owner, dead, "QueueArn")
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
        owner.create_queue(QueueName="work", Attributes={"RedrivePolicy": redrive})
        owner.send_message(QueueUrl=dead, MessageBody="x")
        with Visitor(running, key="AKIDFRIEND") as friend:
            seen = friend.get(at("dead", OWNER))
            assert seen.status == 200
            assert "You may not see which queues use this one" in seen.text
            assert "Latest redrives You may not see them." in seen.text
            assert friend.post(at("dead", OWNER), do="start").status in {403, 404}
            assert friend.get(MOVES).status == 200
        running.advance(seconds=5)
        assert attribute(owner, dead, "ApproximateNumberOfMessages") == "1"
        with Visitor(running, key="AKIDOWNER") as mine:
            assert "The redrive was started." in mine.post(at("dead", OWNER), do="start").text


def attribute(sqs: Any, url: str, name: str) -> str:
    return str(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name])["Attributes"][name])

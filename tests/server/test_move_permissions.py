"""A move task sends as its starter: the policy of each queue that messages go to decides, with each batch."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.keys import OWNER, REGION, client, written
from veilmq.testing import RunningServer

CAROL = f"arn:aws:iam::{OWNER}:user/carol"
MESSAGES = 30


def policy(effect: str, action: str) -> str:
    """Return a policy that allows all that carol asks for, and says that of one action besides."""
    statements = [
        {"Effect": "Allow", "Principal": {"AWS": CAROL}, "Action": "sqs:*", "Resource": "*"},
        {"Effect": effect, "Principal": {"AWS": CAROL}, "Action": f"sqs:{action}", "Resource": "*"},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


class Moving:
    """A dead-letter queue with messages of one source, and carol, who may move them."""

    def __init__(self, server: RunningServer) -> None:
        """Make the queues and have the messages die."""
        self.server = server
        self.owner, self.carol = client(server), client(server, "AKIDCAROL")
        self.dead = self.owner.create_queue(QueueName="dead", Attributes={"Policy": policy("Allow", "SendMessage")})
        redrive = json.dumps({"deadLetterTargetArn": self.arn("dead"), "maxReceiveCount": 1})
        self.work = self.owner.create_queue(
            QueueName="work", Attributes={"RedrivePolicy": redrive, "Policy": policy("Allow", "SendMessage")}
        )["QueueUrl"]
        for begin in range(0, MESSAGES, 10):
            entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(begin, begin + 10)]
            self.owner.send_message_batch(QueueUrl=self.work, Entries=entries)
        for _ in range(2):
            for _ in range(MESSAGES // 10):
                self.owner.receive_message(QueueUrl=self.work, MaxNumberOfMessages=10, VisibilityTimeout=0)

    def arn(self, queue: str) -> str:
        """Return the ARN of a queue."""
        return f"arn:aws:sqs:{REGION}:{OWNER}:{queue}"

    def start(self, **terms: Any) -> None:
        """Start a task as carol, slow enough to be seen."""
        self.carol.start_message_move_task(SourceArn=self.arn("dead"), MaxNumberOfMessagesPerSecond=10, **terms)

    def deny(self, queue: str) -> None:
        """Forbid carol to send to a queue."""
        self.owner.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy("Deny", "SendMessage")})

    def task(self) -> dict[str, Any]:
        """Return the latest task."""
        found: dict[str, Any] = self.owner.list_message_move_tasks(SourceArn=self.arn("dead"))["Results"][0]
        return found


@pytest.fixture(params=["memory", "postgres"])
def moving(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]], tmp_path: Path) -> Iterator[Moving]:
    """Give the queues on a server with accounts."""
    credentials = written(tmp_path / "credentials.toml")
    with RunningServer(credentials=credentials, account=OWNER, region=REGION, **place(request.param)) as server:
        yield Moving(server)


@pytest.mark.parametrize("names_destination", [False, True])
def test_a_deny_stops_a_task_that_runs(moving: Moving, names_destination: bool) -> None:
    """With the reason; what is moved stays moved, and the rest stays where it is."""
    moving.start(**({"DestinationArn": moving.arn("work")} if names_destination else {}))
    moving.server.advance(seconds=1)
    assert moving.task()["Status"] == "RUNNING"
    moving.deny(moving.work)
    moving.server.advance(seconds=20)
    task = moving.task()
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AccessDenied")
    moved = task["ApproximateNumberOfMessagesMoved"]
    assert 0 < moved < MESSAGES
    left = moving.owner.get_queue_attributes(
        QueueUrl=moving.dead["QueueUrl"], AttributeNames=["ApproximateNumberOfMessages"]
    )
    assert left["Attributes"]["ApproximateNumberOfMessages"] == str(MESSAGES - moved)


def test_a_starter_who_may_not_send_moves_nothing(moving: Moving) -> None:
    """From the first batch on."""
    moving.deny(moving.work)
    moving.start()
    moving.server.advance(seconds=5)
    task = moving.task()
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AccessDenied")
    assert task.get("ApproximateNumberOfMessagesMoved", 0) == 0


def test_a_starter_who_may_send_moves_all(moving: Moving) -> None:
    """As the root user, who owns the queues, does."""
    moving.start()
    moving.server.advance(seconds=20)
    assert (moving.task()["Status"], moving.task()["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", MESSAGES)


def test_a_task_knows_its_starter_after_a_restart(tmp_path: Path) -> None:
    """And is stopped then, too."""
    settings: dict[str, Any] = {"account": OWNER, "region": REGION, "data": tmp_path / "store"}
    settings["credentials"] = written(tmp_path / "credentials.toml")
    with RunningServer(**settings) as server:
        moving = Moving(server)
        moving.start()
        server.advance(seconds=1)
        moving.deny(moving.work)
        clock = server.clock
    with RunningServer(clock=clock, **settings) as server:
        server.advance(seconds=20)
        (task,) = client(server).list_message_move_tasks(SourceArn=moving.arn("dead"))["Results"]
        assert (task["Status"], task["FailureReason"]) == ("FAILED", "AccessDenied")

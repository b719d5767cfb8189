"""The AWS CLI as a client: the commands of the README, as a person would type them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.program import Program
from veilmq.testing import RunningServer

AWS = Path(sys.executable).with_name("aws")


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

Run = Callable[..., Any]


def _words(server: RunningServer, words: tuple[str, ...]) -> list[str]:
    return ["--endpoint-url", server.endpoint, "--output", "json", "sqs", *words]


def _aws(server: RunningServer, *words: str) -> Any:
    done = subprocess.run(
        [sys.executable, str(AWS), *_words(server, words)],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        return done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


@contextmanager
def running(server: RunningServer) -> Iterator[Run]:
    """Give what runs a command; it returns what that prints, or what it complains of."""
    words = [sys.executable, "-m", "tests.clients.python.cli"]
    with Program(words, endpoint=server.endpoint, **ENVIRONMENT) as program:

        def run(*words: str) -> Any:
            program.answer(program.expect("ask", "command"), _words(server, words))
            done = program.expect("event", "done")
            if done["status"]:
                return done["complaint"]
            return json.loads(done["output"]) if done["output"].strip() else None

        yield run


@pytest.fixture
def run(server: RunningServer) -> Iterator[Run]:
    """Runs a command."""
    with running(server) as run:
        yield run


def test_the_life_of_a_message(verifying_server: RunningServer) -> None:
    """The first command and the last one as processes of their own."""
    url = _aws(verifying_server, "create-queue", "--queue-name", "jobs", "--attributes", "VisibilityTimeout=60")[
        "QueueUrl"
    ]
    with running(verifying_server) as run:
        sent = run("send-message", "--queue-url", url, "--message-body", "hello")
        (message,) = run("receive-message", "--queue-url", url, "--wait-time-seconds", "5")["Messages"]
        assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello")
        handle = ("--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
        assert run("change-message-visibility", *handle, "--visibility-timeout", "0") is None
        (again,) = run("receive-message", "--queue-url", url, "--attribute-names", "All")["Messages"]
        assert again["Attributes"]["ApproximateReceiveCount"] == "2"
        handle = ("--queue-url", url, "--receipt-handle", again["ReceiptHandle"])
        assert run("delete-message", *handle) is None
        found = run("get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
        assert (found["ApproximateNumberOfMessages"], found["VisibilityTimeout"]) == ("0", "60")
        assert run("delete-queue", "--queue-url", url) is None
    assert "NonExistentQueue" in _aws(verifying_server, "get-queue-url", "--queue-name", "jobs")


def _attribute(run: Run, url: str, name: str) -> str:
    found = run("get-queue-attributes", "--queue-url", url, "--attribute-names", name)
    return str(found["Attributes"][name])


def test_batches_tags_and_permissions(run: Run) -> None:
    url = run("create-queue", "--queue-name", "jobs", "--tags", "made=with,gone=soon")["QueueUrl"]
    on_queue = ("--queue-url", url)
    run("tag-queue", *on_queue, "--tags", "team=a")
    run("untag-queue", *on_queue, "--tag-keys", "gone")
    assert run("list-queue-tags", *on_queue)["Tags"] == {"made": "with", "team": "a"}
    who = ("--aws-account-ids", "123456789012", "--actions", "SendMessage")
    assert run("add-permission", *on_queue, "--label", "share", *who) is None
    assert json.loads(_attribute(run, url, "Policy"))["Statement"][0]["Sid"] == "share"
    assert run("remove-permission", *on_queue, "--label", "share") is None
    run("send-message-batch", *on_queue, "--entries", "Id=a,MessageBody=1", "Id=b,MessageBody=2")
    first, second = run("receive-message", *on_queue, "--max-number-of-messages", "10")["Messages"]
    release = f"Id=a,ReceiptHandle={first['ReceiptHandle']},VisibilityTimeout=0"
    done = run("change-message-visibility-batch", *on_queue, "--entries", release)
    assert [each["Id"] for each in done["Successful"]] == ["a"]
    delete = f"Id=b,ReceiptHandle={second['ReceiptHandle']}"
    done = run("delete-message-batch", *on_queue, "--entries", delete)
    assert [each["Id"] for each in done["Successful"]] == ["b"]
    assert _attribute(run, url, "ApproximateNumberOfMessages") == "1"
    assert run("purge-queue", *on_queue) is None
    assert run("list-queues")["QueueUrls"] == [url]


def test_dead_letters_go_there_and_back(run: Run, server: RunningServer) -> None:
    dead = run("create-queue", "--queue-name", "dead")["QueueUrl"]
    arn = _attribute(run, dead, "QueueArn")
    policy = json.dumps({"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})})
    url = run("create-queue", "--queue-name", "jobs", "--attributes", policy)["QueueUrl"]
    assert run("list-dead-letter-source-queues", "--queue-url", dead)["queueUrls"] == [url]
    run("send-message", "--queue-url", url, "--message-body", "m")
    run("receive-message", "--queue-url", url, "--visibility-timeout", "0")
    assert run("receive-message", "--queue-url", url) is None
    assert _attribute(run, dead, "ApproximateNumberOfMessages") == "1"
    task = run("start-message-move-task", "--source-arn", arn)
    server.advance(1_000)
    (found,) = run("list-message-move-tasks", "--source-arn", arn)["Results"]
    assert (found["Status"], found["ApproximateNumberOfMessagesMoved"]) == ("COMPLETED", 1)
    assert _attribute(run, url, "ApproximateNumberOfMessages") == "1"
    assert "ResourceNotFound" in run("cancel-message-move-task", "--task-handle", task["TaskHandle"])

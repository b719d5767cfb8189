"""The AWS CLI as a client: the commands of the README, as a person would type them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from veilmq.testing import RunningServer

AWS = Path(sys.executable).with_name("aws")


def _aws(server: RunningServer, *words: str) -> Any:
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    done = subprocess.run(
        [sys.executable, str(AWS), "--endpoint-url", server.endpoint, "--output", "json", "sqs", *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        return done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


def test_the_life_of_a_message(verifying_server: RunningServer) -> None:
    server = verifying_server
    url = _aws(server, "create-queue", "--queue-name", "jobs", "--attributes", "VisibilityTimeout=60")["QueueUrl"]
    sent = _aws(server, "send-message", "--queue-url", url, "--message-body", "hello")
    (message,) = _aws(server, "receive-message", "--queue-url", url, "--wait-time-seconds", "5")["Messages"]
    assert (message["MessageId"], message["Body"]) == (sent["MessageId"], "hello")
    handle = ("--queue-url", url, "--receipt-handle", message["ReceiptHandle"])
    assert _aws(server, "change-message-visibility", *handle, "--visibility-timeout", "0") is None
    (again,) = _aws(server, "receive-message", "--queue-url", url, "--attribute-names", "All")["Messages"]
    assert again["Attributes"]["ApproximateReceiveCount"] == "2"
    handle = ("--queue-url", url, "--receipt-handle", again["ReceiptHandle"])
    assert _aws(server, "delete-message", *handle) is None
    found = _aws(server, "get-queue-attributes", "--queue-url", url, "--attribute-names", "All")["Attributes"]
    assert (found["ApproximateNumberOfMessages"], found["VisibilityTimeout"]) == ("0", "60")
    assert _aws(server, "delete-queue", "--queue-url", url) is None
    assert "NonExistentQueue" in _aws(server, "get-queue-url", "--queue-name", "jobs")

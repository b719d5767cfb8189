"""A stock boto3 client of queues that have visibility rules."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from veilmq.testing import RunningServer

CLASSES = [{"name": "short", "visibility_timeout_s": 5}, {"name": "long", "visibility_timeout_s": 60}]
RULES = json.dumps({"version": 1, "classes": CLASSES, "keys": {"mail": 0}, "default": 1})


def send(sqs: Any, url: str, *kinds: str, **more: str) -> None:
    """Send messages of these kinds, which are their bodies."""
    for kind in kinds:
        attributes = {"Type": {"DataType": "String", "StringValue": kind}}
        more_of_it = {**more, "MessageDeduplicationId": kind} if more else {}
        sqs.send_message(QueueUrl=url, MessageBody=kind, MessageAttributes=attributes, **more_of_it)


def arrivals(sqs: Any, url: str, server: RunningServer, *waits_s: int, **more: int) -> list[str]:
    """Receive now and after each wait; return the bodies of each answer, in a word."""
    got = []
    for wait_s in (0, *waits_s):
        server.advance(wait_s * 1_000)
        answer = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **more)
        got.append(" ".join(message["Body"] for message in answer.get("Messages", [])))
    return got


def test_each_message_is_hidden_for_the_timeout_of_its_kind_and_longer_when_it_comes_back(
    sqs: Any, server: RunningServer
) -> None:
    """To the second; what a receive names itself goes before the rules."""
    url = sqs.create_queue(QueueName="ruled", Attributes={"VeilmqVisibilityRules": RULES})["QueueUrl"]
    send(sqs, url, "mail", "video")
    assert arrivals(sqs, url, server, 4, 1, 54, 1, 4, 1) == ["mail video", "", "mail", "", "video", "", "mail"]
    server.advance(60_000)
    assert arrivals(sqs, url, server, 6, 1, VisibilityTimeout=7) == ["video mail", "", "mail video"]


def test_a_group_of_a_fifo_queue_waits_for_the_longest(sqs: Any, server: RunningServer) -> None:
    """And goes on in order."""
    attributes = {"FifoQueue": "true", "VeilmqVisibilityRules": RULES}
    url = sqs.create_queue(QueueName="ruled.fifo", Attributes=attributes)["QueueUrl"]
    send(sqs, url, "video", "mail", MessageGroupId="g")
    assert arrivals(sqs, url, server, 5, 54, 1) == ["video mail", "", "", "video mail"]


def test_what_is_no_routing_table_is_refused(sqs: Any, url: str) -> None:
    """With what is wrong; rules that were set are shown, and taken away with empty text."""
    name = "VeilmqVisibilityRules"
    wrong = json.dumps({"version": 1, "classes": CLASSES[::-1], "default": 0})
    with pytest.raises(ClientError, match="rising order") as refused:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={name: wrong})
    assert refused.value.response["Error"]["Code"].rpartition(".")[2] == "InvalidAttributeValue"
    for text, shown in ((RULES, {name: RULES}), ("", {})):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={name: text})
        assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name]).get("Attributes", {}) == shown

"""What a request may change is read off it, and one that is not known to only read is a change."""

import json
from typing import Any

import pytest

from veilmq.console.asking import Asked
from veilmq.console.changes import change_of

OWN = "333333333333"
URL = "http://localhost/111111111111/orders"
HEADER = {b"x-amz-target": b"AmazonSQS.DeleteQueue"}


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        (b"GET", b"/v1/queues/-", HEADER),  # the header decides, not the path
        (b"GET", b"/v1/queues/-", {b"x-mns-version": b"2015-06-06"}),
        (b"GET", b"/?Action=DeleteQueue", {}),
        (b"DELETE", b"/queues/orders", {}),
        (b"HEAD", b"/v1/queues/-/orders/show", {}),
        (b"get", b"/v1/queues/-/orders/show", {}),
        (b"POST", b"/v1/queues/-/orders/show", {}),
        (b"POST", b"/v1/", {}),
        (b"POST", b"/v1/////", {}),
        (b"POST", b"/v1/\xff/\xfe", {}),
        (b"POST", b"", {b"x-amz-target": b""}),
        (b"POST", b"/", {b"x-amz-target": b"AmazonSQS.GetQueueUrl "}),
        (b"POST", b"/", {b"x-amz-target": b"\xff.GetQueueUrl"}),
    ],
)
def test_what_is_not_known_to_only_read_is_a_change(method: bytes, target: bytes, headers: dict[bytes, bytes]) -> None:
    assert change_of(Asked(method, target, headers, b"", None, None), account=OWN) is not None


@pytest.mark.parametrize("target", [b"/v1/queues/-", b"/v1/queues/-/orders/show?x=1", b"/v1/messages/-/orders"])
def test_what_our_api_reads_is_none(target: bytes) -> None:
    assert change_of(Asked(b"GET", target, {}, b"", None, None), account=OWN) is None


@pytest.mark.parametrize(
    ("fields", "queue"),
    [
        ({"QueueUrl": URL}, "111111111111/orders"),
        ({"QueueUrl": "orders"}, f"{OWN}/orders"),
        ({"QueueUrl": f"{URL}?x=/222222222222/other"}, "111111111111/orders"),
        ({"QueueUrl": f"{URL}#/222222222222/other"}, "111111111111/orders"),
        ({"QueueUrl": f"{URL}/"}, "111111111111/orders"),
        ({"QueueUrl": "nothing of ours"}, None),
        ({"QueueUrl": 7}, None),
        ({"QueueName": "new"}, f"{OWN}/new"),
        ({"SourceArn": "arn:aws:sqs:us-east-1:111111111111:dead"}, "111111111111/dead"),
        ({}, None),
    ],
)
def test_the_queue_is_the_one_that_the_action_finds(fields: dict[str, Any], queue: str | None) -> None:
    change = change_of(Asked(b"POST", b"/", HEADER, json.dumps(fields).encode(), None, None), account=OWN)
    assert change is not None
    assert change.queue == queue


def test_a_path_without_an_account_is_of_the_callers() -> None:
    change = change_of(Asked(b"POST", b"/v1/queues/-/orders/set", {}, b"{}", None, None), account=OWN)
    assert change is not None
    assert change.queue == f"{OWN}/orders"


@pytest.mark.parametrize("body", [b"\xff", b"[1]", b"[" * 100_000, b'{"a":' * 100_000, b"x" * 1_000])
def test_what_cannot_be_read_is_told_by_its_length(body: bytes) -> None:
    change = change_of(Asked(b"POST", b"/", HEADER, body, None, None), account=OWN)
    assert change is not None
    assert change.fields == {"unread": f"{len(body):,} bytes"}

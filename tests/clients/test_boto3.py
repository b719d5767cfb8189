"""boto3, in addition to python/sdk.py: receipt handles, attribute filters, FIFO queues, pages and visibility rules."""

import base64
import json
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from botocore.exceptions import ClientError

from tests.clients import boto
from tests.clients.smq.raw import smq_request
from veilmq.testing import RunningServer


def _counts(sqs: Any, url: str) -> tuple[int, ...]:
    names = [f"ApproximateNumberOfMessages{state}" for state in ("", "NotVisible", "Delayed")]
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return tuple(int(found[name]) for name in names)


def _bodies(reply: Any) -> list[str]:
    return [message["Body"] for message in reply.get("Messages", [])]


def test_a_receipt_handle_of_an_older_version_is_valid(sqs: Any, url: str, server: RunningServer) -> None:
    """Older versions encoded the same bytes in base64url instead of hex."""
    sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": str(n), "MessageBody": str(n)} for n in range(4)])
    received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=4, VisibilityTimeout=30)["Messages"]
    old = [base64.urlsafe_b64encode(bytes.fromhex(message["ReceiptHandle"])).decode() for message in received]
    assert not any("=" in handle for handle in old)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=old[0], VisibilityTimeout=600)
    server.advance(29_000)
    entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(old[1:3])]
    assert len(sqs.delete_message_batch(QueueUrl=url, Entries=entries)["Successful"]) == 2
    assert smq_request(server, "DELETE", f"/queues/jobs/messages?ReceiptHandle={old[3]}").status == 204
    server.advance(1_000)
    assert _counts(sqs, url) == (0, 1, 0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=old[0])
    assert _counts(sqs, url) == (0, 0, 0)
    with pytest.raises(sqs.exceptions.ReceiptHandleIsInvalid):
        sqs.delete_message(QueueUrl=url, ReceiptHandle=old[0][:-1] + ("A" if old[0][-1] != "A" else "B"))


def test_a_name_with_a_nul_finds_no_queue(sqs: Any, url: str, server: RunningServer) -> None:
    """PostgreSQL does not allow NUL in a text."""
    for name, owner in (("jobs\0", "0" * 12), ("jobs", "\0")):
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            sqs.get_queue_url(QueueName=name, QueueOwnerAWSAccountId=owner)
    assert "QueueUrls" not in sqs.list_queues(QueueNamePrefix="\0")
    for listing in ("/queues", "/topics"):
        assert smq_request(server, "GET", listing, "", "x-mns-marker: AA==").code == "InvalidArgument"
    with urlopen(f"{server.endpoint}/v1/queues/-?names=%00,jobs") as reply:
        assert [queue["name"] for queue in json.load(reply)["queues"]] == ["jobs"]


def test_message_attributes_are_filtered(sqs: Any, url: str) -> None:
    attributes = {name: {"DataType": "String", "StringValue": name} for name in ("trace.id", "trace.span", "blob")}
    sqs.send_message(QueueUrl=url, MessageBody="b", MessageAttributes=attributes)
    (message,) = sqs.receive_message(QueueUrl=url, MessageAttributeNames=["trace.*"])["Messages"]
    assert set(message["MessageAttributes"]) == {"trace.id", "trace.span"}


def test_a_body_may_have_one_mebibyte_and_every_legal_character(sqs: Any, url: str) -> None:
    body = "x" * 1_048_576
    sqs.send_message(QueueUrl=url, MessageBody=body)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == [body]
    odd = '\t\n\r \ud7ff\ue000\ufffd\U00010000\U0010ffff é 漢 "\\/'
    sqs.send_message(QueueUrl=url, MessageBody=odd)
    assert _bodies(sqs.receive_message(QueueUrl=url)) == [odd]


def test_a_delayed_entry_of_a_fifo_batch_fails_alone(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="strict.fifo", Attributes={"FifoQueue": "true"})["QueueUrl"]
    whole = {"MessageBody": "m", "MessageGroupId": "g", "MessageDeduplicationId": "d"}
    for lacking in ("MessageGroupId", "MessageDeduplicationId"):
        entry = {name: value for name, value in whole.items() if name != lacking}
        with pytest.raises(ClientError, match=lacking):
            sqs.send_message_batch(QueueUrl=url, Entries=[{"Id": "good", **whole}, {"Id": "bad", **entry}])
    entries = [
        {"Id": "good", **whole},
        {"Id": "delay", **whole, "DelaySeconds": 1},
        {"Id": "zero", **whole, "MessageDeduplicationId": "e", "DelaySeconds": 0},
    ]
    reply = sqs.send_message_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in reply["Successful"]] == ["good", "zero"]
    assert {each["Id"]: each["Code"] for each in reply["Failed"]} == {"delay": "InvalidParameterValue"}


def test_a_standard_queue_accepts_message_groups(sqs: Any, url: str) -> None:
    sent = sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId="tenant")
    assert "SequenceNumber" not in sent
    (message,) = sqs.receive_message(QueueUrl=url, MessageSystemAttributeNames=["All"])["Messages"]
    assert message["Attributes"]["MessageGroupId"] == "tenant"
    assert not {"SequenceNumber", "MessageDeduplicationId"} & set(message["Attributes"])
    with pytest.raises(ClientError, match="not valid for this queue type"):
        sqs.send_message(QueueUrl=url, MessageBody="m", MessageDeduplicationId="d")


def test_a_next_token_is_valid_after_a_restart_for_the_same_listing_only(tmp_path: Path) -> None:
    with RunningServer(data=tmp_path / "data") as server:
        sqs = boto.client(server.endpoint)
        for name in ("a1", "a2", "a3"):
            sqs.create_queue(QueueName=name)
        page = sqs.list_queues(QueueNamePrefix="a", MaxResults=2)
        assert len(page["QueueUrls"]) == 2
    with RunningServer(data=tmp_path / "data") as server:
        sqs = boto.client(server.endpoint)
        rest = sqs.list_queues(QueueNamePrefix="a", MaxResults=2, NextToken=page["NextToken"])
        assert [url.rpartition("/")[2] for url in rest["QueueUrls"]] == ["a3"]
        assert "NextToken" not in rest
        with pytest.raises(ClientError, match="Invalid or expired next token"):
            sqs.list_queues(QueueNamePrefix="b", MaxResults=2, NextToken=page["NextToken"])


def test_the_sources_of_a_dead_letter_queue_are_listed_in_pages(sqs: Any, url: str) -> None:
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"5"}}'
    sources = [
        sqs.create_queue(QueueName=f"source-{number}", Attributes={"RedrivePolicy": policy})["QueueUrl"]
        for number in range(3)
    ]
    assert sqs.list_dead_letter_source_queues(QueueUrl=sources[0])["queueUrls"] == []
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(QueueUrl=url, PaginationConfig={"PageSize": 2})
    assert [page["queueUrls"] for page in pages] == [sources[:2], sources[2:]]


CLASSES = [{"name": "short", "visibility_timeout_s": 5}, {"name": "long", "visibility_timeout_s": 60}]
RULES = json.dumps({"version": 1, "classes": CLASSES, "keys": {"mail": 0}, "default": 1})


def send(sqs: Any, url: str, *kinds: str, **more: str) -> None:
    for kind in kinds:
        attributes = {"Type": {"DataType": "String", "StringValue": kind}}
        more_of_it = {**more, "MessageDeduplicationId": kind} if more else {}
        sqs.send_message(QueueUrl=url, MessageBody=kind, MessageAttributes=attributes, **more_of_it)


def arrivals(sqs: Any, url: str, server: RunningServer, *waits_s: int, **more: int) -> list[str]:
    """Receive now and after each wait; return the bodies of each reply, joined by spaces."""
    got = []
    for wait_s in (0, *waits_s):
        server.advance(wait_s * 1_000)
        reply = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **more)
        got.append(" ".join(_bodies(reply)))
    return got


def test_visibility_rules_select_the_timeout_by_type_and_extend_it_when_it_expires(
    sqs: Any, server: RunningServer
) -> None:
    url = sqs.create_queue(QueueName="ruled", Attributes={"VeilmqVisibilityRules": RULES})["QueueUrl"]
    send(sqs, url, "mail", "video")
    assert arrivals(sqs, url, server, 4, 1, 54, 1, 4, 1) == ["mail video", "", "mail", "", "video", "", "mail"]
    server.advance(60_000)
    assert arrivals(sqs, url, server, 6, 1, VisibilityTimeout=7) == ["video mail", "", "mail video"]


def test_invalid_visibility_rules_are_refused(sqs: Any, url: str) -> None:
    name = "VeilmqVisibilityRules"
    wrong = json.dumps({"version": 1, "classes": CLASSES[::-1], "default": 0})
    with pytest.raises(ClientError, match="rising order") as refused:
        sqs.set_queue_attributes(QueueUrl=url, Attributes={name: wrong})
    assert refused.value.response["Error"]["Code"].rpartition(".")[2] == "InvalidAttributeValue"
    for text, shown in ((RULES, {name: RULES}), ("", {})):
        sqs.set_queue_attributes(QueueUrl=url, Attributes={name: text})
        assert sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name]).get("Attributes", {}) == shown

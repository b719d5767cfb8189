"""Queues used over two protocols, with boto3 and with the official Python SDK of SMQ."""

import json
from typing import Any

import pytest
import urllib3
from botocore.exceptions import ClientError
from mns.account import Account
from mns.message_property import MessagePropertyValue, MessageSystemPropertyValue, SystemPropertyName
from mns.queue import Message, Queue, QueueMeta

from tests.clients.smq.conftest import account_at
from tests.clients.smq.raw import element, smq_request
from tests.clients.smq.test_queues import counts, refused
from veilmq.testing import RunningServer


@pytest.fixture
def url(sqs: Any, queue: Queue) -> str:
    queue.set_encoding(False)
    return str(sqs.get_queue_url(QueueName="jobs")["QueueUrl"])


def received(sqs: Any, url: str, **more: Any) -> list[Any]:
    names = {"MessageAttributeNames": ["All"], "MessageSystemAttributeNames": ["All"]}
    found: list[Any] = sqs.receive_message(QueueUrl=url, **names, **more).get("Messages", [])
    return found


def attribute(sqs: Any, url: str, name: str) -> str | None:
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=[name]).get("Attributes", {})
    text: str | None = found.get(name)
    return text


def failed(code: str) -> "pytest.RaisesExc[ClientError]":
    """Expect boto3's exception with that code."""
    return pytest.RaisesExc(ClientError, check=lambda error: error.response["Error"]["Code"].rpartition(".")[2] == code)


def test_a_message_of_sqs_is_received_by_smq(sqs: Any, url: str, queue: Queue) -> None:
    values = {
        "s": {"DataType": "String", "StringValue": "text"},
        "j": {"DataType": "String.json", "StringValue": "{}"},
        "n": {"DataType": "Number.int", "StringValue": "7"},
        "b": {"DataType": "Binary.png", "BinaryValue": b"\x00\xff"},
        "t": {"DataType": "String.boolean", "StringValue": "true"},
    }
    sent = sqs.send_message(QueueUrl=url, MessageBody="Grüße", MessageAttributes=values, MessageGroupId="g")
    got = queue.receive_message()
    assert got.message_id == sent["MessageId"].replace("-", "").upper()
    assert (got.message_body, got.message_body_md5) == ("Grüße", sent["MD5OfMessageBody"].upper())
    assert (got.priority, got.message_group_id) == (8, "g")
    found = {name: (each.get_data_type(), each.get_raw_value()) for name, each in got.get_user_properties().items()}
    assert found == {
        "s": ("STRING", "text"),
        "j": ("STRING", "{}"),
        "n": ("NUMBER", "7"),
        "b": ("BINARY", b"\x00\xff"),
        "t": ("BOOLEAN", "true"),
    }
    queue.delete_message(got.receipt_handle)
    assert received(sqs, url) == []


def test_a_message_of_smq_is_received_by_sqs(sqs: Any, url: str, queue: Queue) -> None:
    message = Message("Grüße", priority=3)
    message.set_user_properties(
        {
            "s": MessagePropertyValue.create_string("text"),
            "n": MessagePropertyValue.create_number(7),
            "b": MessagePropertyValue.create_binary(b"\x00\xff"),
            "t": MessagePropertyValue.create_boolean(True),
        }
    )
    message.add_system_property(SystemPropertyName.TRACEPARENT, MessageSystemPropertyValue("STRING", "00-1"))
    sent = queue.send_message(message)
    (got,) = received(sqs, url)
    assert got["MessageId"].replace("-", "").upper() == sent.message_id
    assert (got["Body"], got["MD5OfBody"].upper()) == ("Grüße", sent.message_body_md5)
    assert got["MessageAttributes"] == {
        "s": {"DataType": "String", "StringValue": "text"},
        "n": {"DataType": "Number", "StringValue": "7"},
        "b": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        "t": {"DataType": "String.boolean", "StringValue": "true"},
    }
    assert "AWSTraceHeader" not in got["Attributes"]


def test_priorities_of_smq_also_order_messages_of_sqs(sqs: Any, url: str, queue: Queue) -> None:
    queue.send_message(Message("a", priority=9))
    sqs.send_message(QueueUrl=url, MessageBody="b")
    queue.send_message(Message("c"))
    queue.send_message(Message("d", priority=1))
    assert [each["Body"] for each in received(sqs, url, MaxNumberOfMessages=10)] == ["d", "b", "c", "a"]


def test_a_lease_of_one_protocol_hides_the_message_in_the_other(
    sqs: Any, url: str, queue: Queue, server: RunningServer
) -> None:
    queue.batch_send_message([Message("a"), Message("b")])
    got = queue.receive_message()
    (held,) = received(sqs, url, VisibilityTimeout=10)
    assert (got.message_body, held["Body"]) == ("a", "b")
    with refused("MessageNotExist"):
        queue.receive_message()
    server.advance(9_999)
    with refused("MessageNotExist"):
        queue.receive_message()
    server.advance(1)
    assert queue.receive_message().dequeue_count == 2


def test_a_receipt_of_one_protocol_is_valid_in_the_other(
    sqs: Any, url: str, queue: Queue, server: RunningServer
) -> None:
    queue.batch_send_message([Message("a"), Message("b")])
    (got,) = received(sqs, url)
    changed = queue.change_message_visibility(got["ReceiptHandle"], 60)
    assert int(changed.next_visible_time) == server.clock.now_ms() + 60_000
    with refused("MessageNotExist"):
        queue.delete_message(got["ReceiptHandle"])
    queue.delete_message(changed.receipt_handle)
    mine = queue.receive_message()
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=mine.receipt_handle, VisibilityTimeout=0)
    assert counts(queue) == (1, 0, 0)


def test_a_receive_of_one_protocol_invalidates_receipts_of_the_other(
    sqs: Any, url: str, queue: Queue, server: RunningServer
) -> None:
    queue.send_message(Message("m"))
    mine = queue.receive_message()
    server.advance(seconds=30)
    (theirs,) = received(sqs, url)
    with refused("MessageNotExist"):
        queue.delete_message(mine.receipt_handle)
    with refused("MessageNotExist"):
        queue.change_message_visibility(mine.receipt_handle, 1)
    server.advance(seconds=30)
    mine = queue.receive_message()
    sqs.delete_message(QueueUrl=url, ReceiptHandle=theirs["ReceiptHandle"])
    assert counts(queue) == (0, 1, 0)
    queue.delete_message(mine.receipt_handle)
    assert counts(queue) == (0, 0, 0)


def test_a_change_over_smq_invalidates_the_receipt_of_sqs(
    sqs: Any, url: str, queue: Queue, server: RunningServer
) -> None:
    queue.send_message(Message("m"))
    (got,) = received(sqs, url)
    changed = queue.change_message_visibility(got["ReceiptHandle"], 60)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"], VisibilityTimeout=0)
    assert counts(queue) == (0, 1, 0)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=changed.receipt_handle, VisibilityTimeout=90)
    server.advance(seconds=89)
    queue.delete_message(changed.receipt_handle)
    assert counts(queue) == (0, 0, 0)


def test_smq_lists_and_uses_queues_of_sqs(sqs: Any, account: Account, server: RunningServer) -> None:
    for name, more in (("a_b", {"VisibilityTimeout": "0", "MessageRetentionPeriod": "1209600"}), ("c.fifo", {})):
        fifo = {"FifoQueue": "true"} if name.endswith(".fifo") else {}
        sqs.create_queue(QueueName=name, Attributes=more | fifo)
    urls, _ = account.list_queue()
    assert urls == [f"{server.endpoint}/queues/a_b", f"{server.endpoint}/queues/c.fifo"]
    found = account.get_queue("a_b").get_attributes()
    assert (found.visibility_timeout, found.message_retention_period) == (0, 1_209_600)
    assert found.maximum_message_size == 1_048_576
    account.get_queue("a_b").send_message(Message("m"))
    assert account.get_queue("a_b").receive_message().message_body == b"m"


def test_both_protocols_share_the_attributes_of_a_queue(sqs: Any, url: str, queue: Queue) -> None:
    queue.set_attributes(QueueMeta(vis_timeout=77, polling_wait_sec=20, logging_enabled=True))
    assert attribute(sqs, url, "VisibilityTimeout") == "77"
    assert attribute(sqs, url, "ReceiveMessageWaitTimeSeconds") == "20"
    assert attribute(sqs, url, "VeilmqSmqLogging") == "true"
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "9"})
    assert queue.get_attributes().delay_seconds == 9


def test_both_protocols_share_the_dead_letter_policy(
    sqs: Any, account: Account, url: str, queue: Queue, server: RunningServer
) -> None:
    account.get_queue("dead").create(QueueMeta())
    policy = element("DeadLetterTargetQueue", "dead") + element("MaxReceiveCount", 1)
    assert smq_request(server, "PUT", "/queues/jobs?metaoverride=true", f"<Queue>{policy}</Queue>").status == 204
    assert json.loads(attribute(sqs, url, "RedrivePolicy") or "") == {
        "deadLetterTargetArn": "arn:aws:sqs:us-east-1:000000000000:dead",
        "maxReceiveCount": 1,
    }
    queue.send_message(Message("m"))
    received(sqs, url)
    server.advance(seconds=30)
    assert received(sqs, url) == []
    (dead,) = received(sqs, url.replace("jobs", "dead"))
    assert dead["Attributes"]["DeadLetterQueueSourceArn"].endswith(":jobs")
    ended = f"<Queue>{element('DeadLetterTargetQueue', '')}</Queue>"
    assert smq_request(server, "PUT", "/queues/jobs?metaoverride=true", ended).status == 204
    assert attribute(sqs, url, "RedrivePolicy") is None


@pytest.mark.parametrize("target", ["jobs", "none", "c.fifo"])
def test_an_invalid_dead_letter_queue_is_refused(sqs: Any, url: str, server: RunningServer, target: str) -> None:
    sqs.create_queue(QueueName="c.fifo", Attributes={"FifoQueue": "true"})
    policy = element("DeadLetterTargetQueue", target) + element("MaxReceiveCount", 1)
    refusal = smq_request(server, "PUT", "/queues/jobs?metaoverride=true", f"<Queue>{policy}</Queue>")
    assert (refusal.status, refusal.code) == (400, "InvalidArgument")
    assert "dead-letter queue" in refusal.text("Message")


def test_a_queue_whose_name_ends_in_fifo_is_a_fifo_queue_for_both_protocols(
    sqs: Any, account: Account, server: RunningServer
) -> None:
    for name, kind in (("a.fifo", ""), ("b.fifo", element("QueueType", "fifo"))):
        assert smq_request(server, "PUT", f"/queues/{name}", f"<Queue>{kind}</Queue>").status == 201
        url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
        assert attribute(sqs, url, "FifoQueue") == "true"
        account.get_queue(name).send_message(Message("of smq", message_group_id="g"))
        with refused("InvalidArgument"):
            account.get_queue(name).send_message(Message("of no group"))
        sqs.send_message(QueueUrl=url, MessageBody="of sqs", MessageGroupId="g", MessageDeduplicationId="d")
        got = account.get_queue(name).receive_message_with_str_body()
        assert (got.message_body, got.message_group_id) == ("of smq", "g")
        assert received(sqs, url) == []
        account.get_queue(name).delete_message(got.receipt_handle)
        assert [each["Body"] for each in received(sqs, url)] == ["of sqs"]
    wrong = smq_request(server, "PUT", "/queues/c.fifo", f"<Queue>{element('QueueType', 'normal')}</Queue>")
    assert wrong.code == "InvalidArgument"


def test_sqs_can_use_a_fifo_queue_with_another_name(sqs: Any, account: Account, server: RunningServer) -> None:
    """It sends only with content-based deduplication; an expired receipt handle has no effect."""
    assert smq_request(server, "PUT", "/queues/plain", f"<Queue>{element('QueueType', 'fifo')}</Queue>").status == 201
    url = sqs.get_queue_url(QueueName="plain")["QueueUrl"]
    with failed("InvalidParameterValue"):
        sqs.send_message(QueueUrl=url, MessageBody="m", MessageGroupId="g")
    account.get_queue("plain").send_message(Message("of smq", message_group_id="g"))
    path = f"{server.endpoint}/v1/queues/-/plain/set"
    assert urllib3.request("POST", path, json={"content_deduplication": True}).status == 200
    sqs.send_message(QueueUrl=url, MessageBody="of sqs", MessageGroupId="g")
    (got,) = received(sqs, url, MaxNumberOfMessages=1)
    assert received(sqs, url) == []
    server.advance(seconds=30)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert attribute(sqs, url, "ApproximateNumberOfMessages") == "2"
    (got,) = received(sqs, url, MaxNumberOfMessages=1)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=got["ReceiptHandle"])
    assert [each["Body"] for each in received(sqs, url)] == ["of sqs"]


def test_messages_of_smq_are_deduplicated_only_by_content(account: Account, sqs: Any) -> None:
    """They need no deduplication id, even on a queue that requires one of SQS."""
    for name, by_content, kept in (("d.fifo", "false", 2), ("e.fifo", "true", 1)):
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": by_content}
        url = sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        ids = {account.get_queue(name).send_message(Message("same", message_group_id="g")).message_id for _ in "ab"}
        assert len(ids) == kept
        assert attribute(sqs, url, "ApproximateNumberOfMessages") == str(kept)


def test_a_receive_of_smq_at_the_in_flight_limit_finds_no_message() -> None:
    with RunningServer(in_flight_max=1) as server, account_at(server) as account:
        queue = account.get_queue("jobs")
        queue.create(QueueMeta())
        queue.batch_send_message([Message("a"), Message("b")])
        queue.receive_message()
        with refused("MessageNotExist"):
            queue.receive_message()
        with refused("MessageNotExist"):
            queue.batch_receive_message(16)


def test_both_protocols_share_the_receive_rate_limit(sqs: Any, url: str, queue: Queue, server: RunningServer) -> None:
    limit = f"<Queue>{element('MaxReceivesPerSecond', 2)}</Queue>"
    assert smq_request(server, "PUT", "/queues/jobs?metaoverride=true", limit).status == 204
    queue.batch_send_message([Message("a"), Message("b"), Message("c")])
    queue.receive_message()
    received(sqs, url)
    with refused("TooManyRequests"):
        queue.receive_message()
    assert smq_request(server, "GET", "/queues/jobs/messages").status == 429
    with failed("RequestThrottled"):
        received(sqs, url)
    server.advance(seconds=1)
    assert queue.receive_message().message_body == "c"


def test_a_queue_may_decode_the_base64_of_smq_for_sqs(sqs: Any, url: str, queue: Queue) -> None:
    """The digest of each protocol covers its own form of the body."""
    queue.set_encoding(True)
    queue.send_message(Message("Grüße"))
    assert [each["Body"] for each in received(sqs, url)] == ["R3LDvMOfZQ=="]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VeilmqSmqBase64": "true"})
    sent = queue.send_message(Message("Grüße"))
    seen = queue.peek_message_with_str_body()
    assert (seen.message_body, seen.message_body_md5) == ("Grüße", sent.message_body_md5)
    assert [each["Body"] for each in received(sqs, url)] == ["Grüße"]
    sqs.send_message(QueueUrl=url, MessageBody="von SQS")
    assert queue.batch_receive_message_with_str_body(1)[0].message_body == "von SQS"

    queue.set_encoding(False)
    for body in ("no base64!", "/w==", "AA=="):  # other text, not UTF-8, a character that is not allowed
        with refused("InvalidArgument"):
            queue.send_message(Message(body))
    assert counts(queue)[0] == 0


def test_the_server_may_allow_larger_messages_of_smq() -> None:
    with RunningServer(smq_message_bytes_max=524_288) as server, account_at(server) as account:
        queue = account.get_queue("jobs")
        queue.create(QueueMeta())
        queue.set_encoding(False)
        with refused("InvalidArgument"):
            queue.send_message(Message("x" * 65_537))
        queue.set_attributes(QueueMeta(max_msg_size=524_288))
        queue.send_message(Message("x" * 524_288))
        queue.batch_send_message([Message("x" * 262_144)] * 2)
        with refused("InvalidArgument"):
            queue.set_attributes(QueueMeta(max_msg_size=524_289))

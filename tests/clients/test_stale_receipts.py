"""`stale_receipts = act`: receipts of earlier receives are valid on standard queues, as at Amazon (docs/lifecycle.md).

The stories of the life cycle test the default, with which they have no effect.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from pyarrow import dataset

from tests.clients.smq.raw import smq_request
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import Claims
from veilmq.client.messages import RECEIPT_SUPERSEDED
from veilmq.core.commands import VisibilityChange
from veilmq.testing import RunningServer

Counts = tuple[int, int]
Act = Callable[[Any, str, str], object]


@pytest.fixture
def veilmq_settings(veilmq_settings: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {**veilmq_settings, "stale_receipts": "act", "events_to": str(tmp_path / "events")}


def counts(sqs: Any, url: str) -> Counts:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def received_twice(sqs: Any, url: str, messages: int = 1) -> list[tuple[str, str]]:
    """Send messages and receive each twice; return the pairs of receipts."""
    pairs = []
    for _ in range(messages):
        sqs.send_message(QueueUrl=url, MessageBody="a")
        (first,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=0)["Messages"]
        (second,) = sqs.receive_message(QueueUrl=url)["Messages"]
        assert first["MessageId"] == second["MessageId"]
        pairs.append((first["ReceiptHandle"], second["ReceiptHandle"]))
    return pairs


def query(url: str, **parameters: str) -> None:
    reply = urllib3.request("POST", f"{url}?{urlencode(parameters)}")
    assert reply.status == 200, reply.data


def delete(sqs: Any, url: str, receipt: str, way: str) -> None:
    if way == "json":
        sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
    elif way == "query":
        query(url, Action="DeleteMessage", ReceiptHandle=receipt)
    else:
        sqs.delete_message_batch(QueueUrl=url, Entries=[{"Id": "e", "ReceiptHandle": receipt}])


def release(sqs: Any, url: str, receipt: str, way: str) -> None:
    change = {"ReceiptHandle": receipt, "VisibilityTimeout": 0}
    if way == "json":
        sqs.change_message_visibility(QueueUrl=url, **change)
    elif way == "query":
        query(url, Action="ChangeMessageVisibility", ReceiptHandle=receipt, VisibilityTimeout="0")
    else:
        sqs.change_message_visibility_batch(QueueUrl=url, Entries=[{"Id": "e", **change}])


@pytest.mark.parametrize("way", ["json", "query", "batch"])
def test_an_earlier_receipt_deletes_and_releases_a_message(sqs: Any, url: str, way: str) -> None:
    (first, second), (other, _) = received_twice(sqs, url, 2)
    delete(sqs, url, first, way)
    assert counts(sqs, url) == (0, 1)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second)
    with pytest.raises(sqs.exceptions.ClientError, match="does not exist or is not available"):
        sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=second, VisibilityTimeout=5)
    release(sqs, url, other, way)
    assert counts(sqs, url) == (1, 0)


def test_a_batch_may_have_earlier_and_current_receipts(sqs: Any, url: str) -> None:
    (a1, _), (_, b2), (c1, c2), _ = received_twice(sqs, url, 4)
    entries = [{"Id": str(n), "ReceiptHandle": receipt} for n, receipt in enumerate((a1, b2, c1, c2, "x"))]
    reply = sqs.delete_message_batch(QueueUrl=url, Entries=entries)
    assert [each["Id"] for each in reply["Successful"]] == ["0", "1", "2", "3"]
    assert [each["Code"] for each in reply["Failed"]] == ["ReceiptHandleIsInvalid"]
    assert counts(sqs, url) == (0, 1)


def test_a_delete_by_an_earlier_receipt_lowers_the_in_flight_count(sqs: Any) -> None:
    url = sqs.create_queue(QueueName="narrow", Attributes={"VeilmqInFlightMax": "1"})["QueueUrl"]
    ((first, _),) = received_twice(sqs, url)
    sqs.send_message(QueueUrl=url, MessageBody="next")
    with pytest.raises(sqs.exceptions.OverLimit):
        sqs.receive_message(QueueUrl=url)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first)
    assert [each["Body"] for each in sqs.receive_message(QueueUrl=url)["Messages"]] == ["next"]


def test_earlier_receipts_are_invalid_over_smq(server: RunningServer, sqs: Any, url: str) -> None:
    ((first, second),) = received_twice(sqs, url)
    target = f"/queues/jobs/messages?ReceiptHandle={first}"
    assert smq_request(server, "DELETE", target).code == "MessageNotExist"
    assert smq_request(server, "PUT", f"{target}&VisibilityTimeout=60").code == "MessageNotExist"
    changed = smq_request(server, "PUT", f"/queues/jobs/messages?ReceiptHandle={second}&VisibilityTimeout=60")
    assert smq_request(server, "DELETE", f"/queues/jobs/messages?ReceiptHandle={second}").code == "MessageNotExist"
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second)  # still valid over SQS
    target = f"/queues/jobs/messages?ReceiptHandle={changed.text('ReceiptHandle')}"
    assert smq_request(server, "DELETE", target).status == 404
    assert counts(sqs, url) == (0, 0)


def test_earlier_receipts_do_not_affect_claims(server: RunningServer, sqs: Any, url: str) -> None:
    ((first, second),) = received_twice(sqs, url)
    sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=second, VisibilityTimeout=0)
    with Claims(server.endpoint, "jobs") as claims:
        claims.open("reader")
        claims.claim("reader", epoch=1, number=1, messages_max=1)
        for receipt in (first, second):
            sqs.delete_message(QueueUrl=url, ReceiptHandle=receipt)
            sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
        assert counts(sqs, url) == (0, 1)


def test_the_client_reports_a_superseded_receipt(server: RunningServer, sqs: Any, url: str) -> None:
    """The renewal extends the other consumer's lease; the error makes a consumer give up its own."""
    ((first, second),) = received_twice(sqs, url)
    with HttpQueueClient(server.endpoint) as client:
        (result,) = client.change_visibility_batch("jobs", [VisibilityChange(receipt=first, timeout_s=60)])
        assert isinstance(result, ClientError)
        assert result.code == RECEIPT_SUPERSEDED
        server.advance(59_999)
        assert counts(sqs, url) == (0, 1)
        assert client.delete_batch("jobs", [first]) == [None]
    assert counts(sqs, url) == (0, 0)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second)


def test_the_event_log_has_the_end_of_each_receipt(server: RunningServer, sqs: Any, url: str, tmp_path: Path) -> None:
    """The earlier receipt ends the current lease; its own event is corrected, as its work took longer."""
    sqs.send_message(QueueUrl=url, MessageBody="a")
    (first,) = sqs.receive_message(QueueUrl=url, VisibilityTimeout=10)["Messages"]
    server.advance(10_000)
    (second,) = sqs.receive_message(QueueUrl=url)["Messages"]
    server.advance(5_000)
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    sqs.delete_message(QueueUrl=url, ReceiptHandle=second["ReceiptHandle"])
    assert urllib3.request("POST", f"{server.admin_endpoint}/events/flush").status == 200
    rows = dataset.dataset(tmp_path / "events", partitioning="hive").to_table().sort_by("event").to_pylist()
    found = [(row["receive_count"], row["outcome"], row["held_ms"], row["visibility_ms"]) for row in rows]
    assert sorted(found) == [
        (1, "expired", 10_000, 10_000),
        (1, "late_deleted", 15_000, 10_000),
        (2, "deleted_by_earlier", 5_000, 30_000),
    ]

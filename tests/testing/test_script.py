"""When faults happen: in order, as often as they were asked for, on the actions that they were asked for."""

from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3
from botocore.exceptions import ClientError

from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.client.messages import ClientError as OwnClientError
from veilmq.testing import ANY, RunningServer, faults


def outcomes(sqs: Any, count: int) -> list[int]:
    """Return the statuses of so many requests."""
    found = []
    for _ in range(count):
        try:
            found.append(sqs.list_queues()["ResponseMetadata"]["HTTPStatusCode"])
        except ClientError as refused:
            found.append(refused.response["ResponseMetadata"]["HTTPStatusCode"])
    return found


def test_rows_play_in_order(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    """Each as often as it was asked for; then all is as ever."""
    veilmq_server.faults.script("ListQueues", faults.UNAVAILABLE, times=2)
    veilmq_server.faults.script("SendMessage", faults.FAILED)
    veilmq_server.faults.script(ANY, faults.THROTTLED_403)
    assert veilmq_server.faults.left == [
        "ListQueues: UNAVAILABLE × 2", "SendMessage: FAILED × 1", "*: THROTTLED_403 × 1"
    ]  # fmt: skip
    assert outcomes(veilmq_boto3, 4) == [503, 503, 403, 200]
    assert veilmq_server.faults.left == ["SendMessage: FAILED × 1"]
    assert veilmq_server.faults.happened == [
        ("ListQueues", faults.UNAVAILABLE), ("ListQueues", faults.UNAVAILABLE), ("ListQueues", faults.THROTTLED_403)
    ]  # fmt: skip


def test_until_it_is_cleared(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    """A fault without a number plays on and on."""
    veilmq_server.faults.script("ListQueues", faults.UNAVAILABLE, times=None)
    veilmq_server.faults.script("SendMessage", faults.FAILED)
    assert outcomes(veilmq_boto3, 3) == [503, 503, 503]
    assert veilmq_server.faults.left[0] == "ListQueues: UNAVAILABLE × always"
    veilmq_server.faults.clear("ListQueues")
    assert outcomes(veilmq_boto3, 1) == [200]
    assert veilmq_server.faults.left == ["SendMessage: FAILED × 1"]
    veilmq_server.faults.clear()
    assert veilmq_server.faults.left == []


def test_mistakes_are_named(veilmq_server: RunningServer) -> None:
    """An action that there is not would never happen."""
    with pytest.raises(ValueError, match=r"no action is called 'SendMesage'; there are .*SendMessage,"):
        veilmq_server.faults.script("SendMesage", faults.FAILED)
    with pytest.raises(ValueError, match="at least 1"):
        veilmq_server.faults.script("SendMessage", faults.FAILED, times=0)


def test_every_protocol_is_refused_in_its_own_words(veilmq_server: RunningServer) -> None:
    """The Query protocol in XML, the API of our own in its JSON."""
    form = urlencode({"Action": "ListQueues", "Version": "2012-11-05"})
    veilmq_server.faults.script("ListQueues", faults.UNAVAILABLE)
    with urllib3.PoolManager() as pool:
        answer = pool.request(
            "POST", veilmq_server.endpoint, body=form, headers={"Content-Type": "application/x-www-form-urlencoded"}
        )
    assert (answer.status, b"<Code>ServiceUnavailable</Code>" in answer.data) == (503, True)

    with HttpQueueClient(veilmq_server.endpoint) as own, Claims(veilmq_server.endpoint, "jobs") as claims:
        own.create_queue("jobs")
        veilmq_server.faults.script(ANY, faults.THROTTLED)
        with pytest.raises(OwnClientError, match="throttling"):
            own.queue_url("jobs")
        veilmq_server.queue("jobs")
        veilmq_server.faults.script("claims.list", faults.THROTTLED)
        with pytest.raises(OwnClientError, match="throttling"):
            claims.sources()


def test_what_no_protocol_knows_is_left_alone(veilmq_server: RunningServer) -> None:
    """Only actions can be scripted."""
    veilmq_server.faults.script(ANY, faults.REQUEST_DROPPED)
    with urllib3.PoolManager() as pool:
        assert pool.request("POST", veilmq_server.endpoint, body=b"").status == 404
        unknown = {"X-Amz-Target": "AmazonSQS.Nonsense"}
        assert pool.request("POST", veilmq_server.endpoint, body=b"{}", headers=unknown).status == 400
    assert len(veilmq_server.faults.left) == 1

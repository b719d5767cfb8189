"""`BotoQueueClient`: against a running server, and errors of boto3 as errors of the client."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from tests.consumer.workbench import WAIT, Workbench
from veilmq.client import ClientError, NewMessage, Unreachable
from veilmq.client.boto import BotoQueueClient
from veilmq.consumer import Consumer, Context
from veilmq.core.commands import VisibilityChange
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer


def boto(endpoint: str) -> Any:
    return boto3.client(
        "sqs", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[BotoQueueClient]:
    with BotoQueueClient(boto(server.endpoint)) as made:
        yield made


def test_a_message_is_received_as_it_was_sent(client: BotoQueueClient) -> None:
    client.create_queue("whole", {"visibility_timeout_s": 45})
    attributes = {"kind": Attribute(type="String", text="a"), "raw": Attribute(type="Binary", data=b"\x00\xff")}
    sent = client.send("whole", "é", attributes=attributes)
    (message,) = client.receive("whole", count=10, wait_s=0)
    assert (message.id, message.body, message.attributes) == (sent.id, "é", attributes)
    assert message.receive_count == 1
    client.change_visibility("whole", message.receipt, 0)
    (again,) = client.receive("whole", count=10, wait_s=0)
    assert not client.dead_letter("whole", again.receipt, "whole", {})
    client.delete("whole", again.receipt)
    status = client.show("whole")
    assert (status.settings.visibility_timeout_s, status.visible, status.in_flight) == (45, 0, 0)


def test_entries_of_a_batch_succeed_or_fail_alone(client: BotoQueueClient) -> None:
    client.create_queue("batches")
    client.send_batch("batches", [NewMessage(body="a"), NewMessage(body="b")])
    first, second = client.receive("batches", count=10, wait_s=0)
    changes = [VisibilityChange(receipt=first.receipt, timeout_s=60), VisibilityChange(receipt="none", timeout_s=60)]
    done, refused = client.change_visibility_batch("batches", changes, call_timeout_s=60)
    assert done is None
    assert isinstance(refused, ClientError)
    assert refused.code == "ReceiptHandleIsInvalid"
    assert client.delete_batch("batches", [first.receipt, second.receipt]) == [None, None]


def test_an_error_has_the_code_of_the_exception(client: BotoQueueClient) -> None:
    """Not the older code, which boto3 has in ``Code``."""
    with pytest.raises(ClientError) as raised:
        client.receive("nowhere")
    assert (raised.value.code, raised.value.status) == ("QueueDoesNotExist", 400)


def test_no_reply_is_unreachable() -> None:
    made = boto("http://127.0.0.1:1")
    with Stubber(made):
        made.get_queue_url = _unreachable
        with pytest.raises(Unreachable, match="Could not connect"):
            BotoQueueClient(made).queue_url("a")


def test_a_reply_of_another_service_is_unexpected() -> None:
    made = boto("http://127.0.0.1:1")
    with Stubber(made) as stub:
        stub.add_response("get_queue_url", {}, {"QueueName": "a"})
        with pytest.raises(ClientError, match="not that of a queue server"):
            BotoQueueClient(made).queue_url("a")


def test_throttling_keeps_its_code_and_status() -> None:
    made = boto("http://127.0.0.1:1")
    with Stubber(made) as stub:
        stub.add_client_error("get_queue_url", "RequestThrottled", "Slower.", http_status_code=403)
        with pytest.raises(ClientError) as raised:
            BotoQueueClient(made).queue_url("a")
    assert (raised.value.code, raised.value.status, raised.value.message) == ("RequestThrottled", 403, "Slower.")


async def test_a_consumer_runs_over_boto3(server: RunningServer, client: BotoQueueClient) -> None:
    client.create_queue("consumed")
    client.send_batch("consumed", [NewMessage(body=text) for text in "abc"])
    app = Consumer("consumed", client=client)
    handled: list[str] = []

    @app.handler(wait=WAIT)
    async def work(body: str, ctx: Context) -> None:
        async with ctx.fence():
            handled.append(body)

    bench = Workbench(server, client)
    async with bench.working(app) as running:
        await bench.settled(running)
    assert sorted(handled) == ["a", "b", "c"]
    status = client.show("consumed")
    assert (status.visible, status.in_flight) == (0, 0)


def _unreachable(**parameters: Any) -> None:
    raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")

"""A queue made by name, and what a test sees of it without receiving."""

from typing import Any

import pytest

from veilmq.core.errors import QueueNotFound
from veilmq.testing import MessageState, RunningServer
from veilmq.wire.sqs.errors import SqsError


def test_a_queue_is_made_once(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    """By its name; again it is the same; clients find it where its URL says."""
    queue = veilmq_server.queue("jobs", visibility_timeout_s=7)
    assert str(queue) == queue.url == veilmq_boto3.get_queue_url(QueueName="jobs")["QueueUrl"]
    assert veilmq_server.queue("jobs").url == queue.url
    veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody="a")
    veilmq_boto3.receive_message(QueueUrl=queue.url)
    assert queue.in_flight[0].visible_at_ms == veilmq_server.clock.now_ms() + 7_000


def test_kinds_of_queues(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    """A FIFO queue by its name, a dead-letter queue by the name of that."""
    veilmq_server.queue("dead.fifo")
    queue = veilmq_server.queue("jobs.fifo", dead_letter_queue="dead.fifo", receives_max=2)
    told = veilmq_boto3.get_queue_attributes(QueueUrl=queue.url, AttributeNames=["FifoQueue", "RedrivePolicy"])
    assert told["Attributes"]["FifoQueue"] == "true"
    assert '"maxReceiveCount":2' in told["Attributes"]["RedrivePolicy"].replace(" ", "")


def test_mistakes_are_named(veilmq_server: RunningServer) -> None:
    """Unknown settings, values out of range, other settings than the queue has, names that cannot be."""
    with pytest.raises(ValueError, match="'visibility' is not a setting of a queue; these are visibility_timeout_s,"):
        veilmq_server.queue("jobs", visibility=3)
    with pytest.raises(SqsError, match="VisibilityTimeout"):
        veilmq_server.queue("jobs", visibility_timeout_s=43_201)
    veilmq_server.queue("jobs")
    with pytest.raises(SqsError, match="already exists"):
        veilmq_server.queue("jobs", delay_s=1)
    with pytest.raises(SqsError, match="alphanumeric"):
        veilmq_server.queue("no spaces")


def test_counts_and_messages(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    queue = veilmq_server.queue("jobs")
    for body, delay_s in (("a", 0), ("b", 0), ("c", 5)):
        veilmq_boto3.send_message(QueueUrl=queue.url, MessageBody=body, DelaySeconds=delay_s)
    veilmq_boto3.receive_message(QueueUrl=queue.url)
    counts = queue.counts
    assert (counts.visible, counts.in_flight, counts.delayed) == (1, 1, 1)
    (held,) = queue.in_flight
    assert (held.body, held.receive_count, held.state) == ("a", 1, MessageState.IN_FLIGHT)
    assert [message.body for message in queue.visible] == ["b"]
    assert [message.body for message in queue.delayed] == ["c"]
    assert repr(queue) == "<queue jobs: 1 visible, 1 in flight, 1 delayed>"
    assert [message.body for message in queue.messages(count=2)] == ["a", "b"]
    (received,) = veilmq_boto3.receive_message(
        QueueUrl=queue.url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]
    assert received["Attributes"] == {"ApproximateReceiveCount": "1"}


def test_a_queue_that_is_gone(veilmq_server: RunningServer, veilmq_boto3: Any) -> None:
    queue = veilmq_server.queue("jobs")
    veilmq_boto3.delete_queue(QueueUrl=queue.url)
    with pytest.raises(QueueNotFound):
        queue.messages()

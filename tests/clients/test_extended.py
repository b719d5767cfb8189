"""AWS's extended client for Python, which keeps large bodies in S3 and puts their place before the receipt handle."""

import pytest

from tests.clients import boto
from tests.clients.program import Program, packages, python
from veilmq.testing import RunningServer

pytestmark = pytest.mark.slow

MESSAGES = 32  # it takes as the handle what follows the last `-`, which a quarter of those before had of their own


def test_bodies_in_s3_are_received_hidden_and_deleted(verifying_server: RunningServer) -> None:
    """The client gives every handle back whole: to a change of the timeout, to a delete and in a batch."""
    sqs = boto.client(verifying_server.endpoint)
    url = sqs.create_queue(QueueName="large")["QueueUrl"]

    def counts() -> list[str]:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return [found[name] for name in names]

    extended = Program(
        python("tests.clients.python.extended"),
        endpoint=verifying_server.endpoint,
        QUEUE=url,
        **packages("sqs_extended"),
    )
    with extended as program:
        assert program.expect("event", "sent")["objects"] == MESSAGES
        assert program.expect("event", "received")["whole"] == MESSAGES
        question = program.expect("ask", "hidden")
        verifying_server.advance(60_000)
        assert counts() == ["0", str(MESSAGES)]
        program.answer(question)
        assert program.expect("event", "deleted")["objects"] == 0
        assert program.hear() is None
    assert counts() == ["0", "0"]

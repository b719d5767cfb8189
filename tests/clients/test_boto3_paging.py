"""Pages that a stock boto3 client turns, also those of a server that was started again."""

from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.clients import boto
from veilmq.testing import RunningServer


def test_a_token_outlives_a_restart_and_no_other_listing_takes_it(tmp_path: Path) -> None:
    """It is made with a key of the store, over what was listed."""
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


def test_the_sources_of_a_dead_letter_queue_are_listed_by_pages(sqs: Any, url: str) -> None:
    """By the client's own paginator."""
    arn = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":"5"}}'
    sources = [
        sqs.create_queue(QueueName=f"source-{number}", Attributes={"RedrivePolicy": policy})["QueueUrl"]
        for number in range(3)
    ]
    assert sqs.list_dead_letter_source_queues(QueueUrl=sources[0])["queueUrls"] == []
    pages = sqs.get_paginator("list_dead_letter_source_queues").paginate(QueueUrl=url, PaginationConfig={"PageSize": 2})
    assert [page["queueUrls"] for page in pages] == [sources[:2], sources[2:]]

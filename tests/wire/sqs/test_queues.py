"""The actions on queues beyond their errors."""

import pytest

from tests.wire.sqs.asking import QUEUE, URL, VIEW, answer, ask
from veilmq.core.commands import CreateQueue, ListQueues, ShowQueue
from veilmq.core.results import QueuePage
from veilmq.wire.sqs.paging import token_after


def test_a_queue_without_attributes() -> None:
    """Absent, null and empty attributes and tags are the same."""
    plain = CreateQueue(queue=QUEUE)
    assert ask("CreateQueue", QueueName="orders").command == plain
    assert ask("CreateQueue", QueueName="orders", Attributes={}, tags={}).command == plain


def test_a_queue_of_another_account() -> None:
    """Is looked for there."""
    call = ask("GetQueueUrl", QueueName="orders", QueueOwnerAWSAccountId="111111111111")
    assert call.command == ShowQueue(queue="111111111111/orders")


def test_a_listing_that_says_nothing() -> None:
    """Up to a thousand names and no token, as on AWS, where paging is only for those who ask for it."""
    assert ask("ListQueues").command == ListQueues(account="000000000000", count=1_000)
    assert answer("ListQueues", QueuePage(names=["orders"], more=True)) == {"QueueUrls": [URL]}


def test_a_listing_of_nothing_has_no_member_at_all() -> None:
    """As on AWS."""
    assert answer("ListQueues", QueuePage(names=[], more=False), MaxResults=5) == {}


def test_a_listing_goes_on_after_the_token() -> None:
    """Which is there while more follows."""
    page = answer("ListQueues", QueuePage(names=["a", "b"], more=True), MaxResults=2)
    assert page["NextToken"] == token_after("b")
    command = ask("ListQueues", MaxResults=2, NextToken=page["NextToken"]).command
    assert command == ListQueues(account="000000000000", after="b", count=2)
    assert "NextToken" not in answer("ListQueues", QueuePage(names=["c"], more=False), MaxResults=2)


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        ([], False),
        (["QueueArn", "VisibilityTimeout"], False),
        (["QueueArn", "ApproximateNumberOfMessages"], True),
        (["All"], True),
    ],
    ids=["none", "settings", "counter", "all"],
)
def test_counters_are_asked_of_the_engine_only_when_wanted(names: list[str], counts: bool) -> None:
    """They are the one part that may cost something."""
    assert ask("GetQueueAttributes", AttributeNames=names).command == ShowQueue(queue=QUEUE, counts=counts)


def test_no_names_get_no_attributes() -> None:
    """As on AWS."""
    assert answer("GetQueueAttributes", VIEW) == {}

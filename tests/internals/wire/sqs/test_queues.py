"""The actions on queues beyond their errors."""

import pytest

from tests.internals.wire.sqs.asking import CONTEXT, QUEUE, URL, VIEW, answer, ask, refusal
from veilmq.core.commands import CreateQueue, ListQueues, ShowQueue
from veilmq.core.results import QueuePage
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.names import Listing


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
    assert page["NextToken"] == Listing("ListQueues", "", CONTEXT).token_after("b")
    command = ask("ListQueues", MaxResults=2, NextToken=page["NextToken"]).command
    assert command == ListQueues(account="000000000000", after="b", count=2)
    assert "NextToken" not in answer("ListQueues", QueuePage(names=["c"], more=False), MaxResults=2)


def test_the_token_of_another_prefix_is_refused() -> None:
    """It belongs to one listing."""
    page = answer("ListQueues", QueuePage(names=["a"], more=True), MaxResults=1, QueueNamePrefix="a")
    error = refusal("ListQueues", MaxResults=1, QueueNamePrefix="b", NextToken=page["NextToken"])
    assert error.code is errors.INVALID_PARAMETER_VALUE


def test_a_fifo_queue_has_the_name_and_the_attribute() -> None:
    """Both or neither."""
    call = ask("CreateQueue", QueueName="a.fifo", Attributes={"FifoQueue": "true"})
    assert call.command == CreateQueue(queue="000000000000/a.fifo", settings={"fifo": True})


@pytest.mark.parametrize(
    ("name", "attributes", "code", "text"),
    [
        ("a", {"FifoQueue": "true"}, errors.INVALID_PARAMETER_VALUE, "must end with .fifo suffix"),
        ("a.fifo", {}, errors.INVALID_PARAMETER_VALUE, "Can only include alphanumeric characters, hyphens"),
        ("a.fifo", {"FifoQueue": "false"}, errors.INVALID_PARAMETER_VALUE, "Can only include alphanumeric characters"),
        (".fifo", {"FifoQueue": "true"}, errors.INVALID_PARAMETER_VALUE, "must end with .fifo suffix"),
        ("a" * 76 + ".fifo", {"FifoQueue": "true"}, errors.INVALID_PARAMETER_VALUE, "1 to 80 in length"),
        ("a", {"FifoQueue": "false"}, errors.INVALID_ATTRIBUTE_NAME, "Unknown Attribute FifoQueue."),
    ],
)
def test_a_name_and_an_attribute_that_contradict(
    name: str, attributes: dict[str, str], code: errors.Code, text: str
) -> None:
    """Are refused, whichever is missing."""
    error = refusal("CreateQueue", QueueName=name, Attributes=attributes)
    assert error.code is code
    assert text in error.message


def test_the_tags_of_a_new_queue() -> None:
    """Are no settings: they do not tell queues apart."""
    assert ask("CreateQueue", QueueName="orders", tags={"team": "a"}).command == CreateQueue(
        queue=QUEUE, tags={"team": "a"}
    )


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

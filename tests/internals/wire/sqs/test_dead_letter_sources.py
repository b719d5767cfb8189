"""ListDeadLetterSourceQueues."""

from tests.internals.wire.sqs.asking import QUEUE, URL, answer, ask, refusal
from veilmq.core.commands import ListDeadLetterSources
from veilmq.core.results import QueuePage
from veilmq.wire.sqs import errors


def test_nobody_names_this_queue() -> None:
    """The list is there, and empty."""
    assert ask("ListDeadLetterSourceQueues").command == ListDeadLetterSources(queue=QUEUE, count=1_000)
    assert answer("ListDeadLetterSourceQueues", QueuePage(names=[], more=False)) == {"queueUrls": []}


def test_pages_are_for_those_who_ask_for_them() -> None:
    """As on AWS."""
    page = QueuePage(names=[QUEUE], more=True)
    assert answer("ListDeadLetterSourceQueues", page) == {"queueUrls": [URL]}
    token = answer("ListDeadLetterSourceQueues", page, MaxResults=1)["NextToken"]
    command = ask("ListDeadLetterSourceQueues", MaxResults=1, NextToken=token).command
    assert command == ListDeadLetterSources(queue=QUEUE, after=QUEUE, count=1)


def test_the_token_of_another_queue_is_refused() -> None:
    """It belongs to one listing."""
    token = answer("ListDeadLetterSourceQueues", QueuePage(names=[QUEUE], more=True), MaxResults=1)["NextToken"]
    for action, members in (("ListDeadLetterSourceQueues", {"QueueUrl": URL + "-2"}), ("ListQueues", {})):
        error = refusal(action, MaxResults=1, NextToken=token, **members)
        assert error.code is errors.INVALID_PARAMETER_VALUE

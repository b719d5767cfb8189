"""Tags of queues beyond their errors."""

import msgspec
import pytest

from tests.internals.wire.sqs.asking import QUEUE, VIEW, answer, ask, refusal
from veilmq.core.commands import ShowQueue, TagQueue
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.queues import read_tags


def test_tags_are_put_and_removed() -> None:
    """One command for both."""
    assert ask("TagQueue", Tags={"team": "a"}).command == TagQueue(queue=QUEUE, tags={"team": "a"})
    assert ask("UntagQueue", TagKeys=["team", "x"]).command == TagQueue(queue=QUEUE, removed=("team", "x"))


def test_the_tags_of_a_queue_are_told() -> None:
    """And none is no member at all."""
    assert ask("ListQueueTags").command == ShowQueue(queue=QUEUE)
    tagged = msgspec.structs.replace(VIEW, settings=QueueSettings(tags={"team": "a", "empty": ""}))
    assert answer("ListQueueTags", tagged) == {"Tags": {"team": "a", "empty": ""}}
    assert answer("ListQueueTags", VIEW) == {}


@pytest.mark.parametrize("key", ["a", "é", "a b", "_.:/=+-@", "x" * 128, "awsome", "x-aws:a"])
def test_good_keys_and_values(key: str) -> None:
    """Letters of any alphabet, digits, spaces and a few signs; a value may be empty."""
    assert read_tags({key: ""}, QUEUE) == {key: ""}
    assert read_tags({key: key * 2}, QUEUE) == {key: key * 2}


@pytest.mark.parametrize("key", ["", "x" * 129, "aws:a", "AWS:a", "a\n", "a*", "a?"])
def test_bad_keys(key: str) -> None:
    """Are refused with the rule, by both actions."""
    for error in (refusal("TagQueue", Tags={key: "x"}), refusal("UntagQueue", TagKeys=["ok", key])):
        assert error.code is errors.INVALID_PARAMETER_VALUE
        assert "1 to 128 characters" in error.message or "between 1 and 128 characters" in error.message


@pytest.mark.parametrize("value", ["x" * 257, "a\n", "a*"])
def test_bad_values(value: str) -> None:
    """Are refused with the rule."""
    error = refusal("TagQueue", Tags={"a": value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "A tag's value has up to 256 characters" in error.message


def test_more_tags_than_a_queue_may_have() -> None:
    """Are refused at once, at creation too."""
    tags = {str(number): "" for number in range(51)}
    for error in (refusal("TagQueue", Tags=tags), refusal("CreateQueue", QueueName="orders", tags=tags)):
        assert error.code is errors.INVALID_PARAMETER_VALUE
        assert error.message == "Too many tags added for queue orders. A queue may have 50."
    tags.popitem()
    assert read_tags(tags, QUEUE) == tags

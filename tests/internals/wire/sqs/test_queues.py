"""The actions on queues, their tags and permissions."""

import json
from typing import Any

import msgspec
import pytest

from tests.internals.wire.sqs.asking import CONTEXT, QUEUE, URL, VIEW, answer, ask, refusal
from tests.internals.wire.sqs.test_golden import STATEMENT
from veilmq.core.commands import (
    CreateQueue,
    EditQueue,
    ListDeadLetterSources,
    ListQueues,
    QueuePage,
    ShowQueue,
    TagQueue,
)
from veilmq.core.errors import EditRefused
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.names import Listing
from veilmq.wire.sqs.policies import read_policy
from veilmq.wire.sqs.queues import Grant, Revoke, read_tags


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


# Tags of queues beyond their errors.


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


# ListDeadLetterSourceQueues.


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


# AddPermission and RemovePermission: what they make of a policy; and the attribute that holds it.


ARN = "arn:aws:sqs:us-east-1:000000000000:orders"


def granted(**members: Any) -> dict[str, Any]:
    """Return the statement that AddPermission adds."""
    asked = {"Label": "send", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]} | members
    command = ask("AddPermission", **asked).command
    assert isinstance(command, EditQueue)
    assert isinstance(command.edit, Grant)
    return command.edit.statement


def refused(edit: Grant | Revoke, text: str) -> SqsError:
    """Return the error with which an edit of the policy ``text`` is refused."""
    with pytest.raises(EditRefused) as caught:
        edit(text)
    assert isinstance(caught.value.reason, SqsError)
    return caught.value.reason


def test_one_is_a_text_and_several_are_a_list() -> None:
    """As AWS writes them; what is given twice counts once."""
    assert granted() == STATEMENT
    both = granted(AWSAccountIds=["111111111111", "222222222222"], Actions=["SendMessage", "*", "SendMessage"])
    assert both["Principal"] == {"AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]}
    assert both["Action"] == ["SQS:SendMessage", "SQS:*"]


def test_the_first_permission_begins_a_policy_and_the_last_one_ends_it() -> None:
    """What stands between is a policy that can be read."""
    first = Grant(STATEMENT)("")
    assert json.loads(first) == {"Version": "2008-10-17", "Id": f"{ARN}/SQSDefaultPolicy", "Statement": [STATEMENT]}
    second = Grant(STATEMENT | {"Sid": "more"})(first)
    assert [statement["Sid"] for statement in json.loads(second)["Statement"]] == ["send", "more"]
    read_policy(second, ARN)
    assert Revoke("send")(Revoke("more")(second)) == ""
    assert Revoke("more")(second) == first


def test_the_owners_own_statements_stay_as_they_are() -> None:
    """A single statement that was no list becomes one of a list."""
    own = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    text = json.dumps({"Version": "2008-10-17", "Id": "mine", "Statement": own})
    both = json.loads(Grant(STATEMENT)(text))
    assert both == {"Version": "2008-10-17", "Id": "mine", "Statement": [own, STATEMENT]}
    assert json.loads(Revoke("send")(json.dumps(both)))["Statement"] == [own]


def test_a_label_is_there_once() -> None:
    """Added twice, or removed where it is not, it is refused in the words of AWS."""
    text = Grant(STATEMENT)("")
    error = refused(Grant(STATEMENT), text)
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert error.message == "Value send for parameter Label is invalid. Reason: Already exists."
    for revoke in (refused(Revoke("x"), text), refused(Revoke("x"), "")):
        assert revoke.code is errors.INVALID_PARAMETER_VALUE
        assert revoke.message == "Value x for parameter Label is invalid. Reason: can't find label on existing policy."


def test_a_policy_has_an_end() -> None:
    """Twenty statements, and 8,192 bytes."""
    text = ""
    for number in range(20):
        text = Grant(STATEMENT | {"Sid": str(number)})(text)
    error = refused(Grant(STATEMENT), text)
    assert (error.code, error.message) == (errors.OVER_LIMIT, "21 statements were found, maximum allowed is 20.")
    long = STATEMENT | {"Principal": {"AWS": ["111111111111"] * 500}}
    error = refused(Grant(long | {"Sid": "b"}), Grant(long)(""))
    assert error.code is errors.OVER_LIMIT
    assert "8192 bytes" in error.message


def test_the_attribute_is_kept_as_it_was_given() -> None:
    """Spaces and all; an empty text removes it."""
    text = json.dumps({"Statement": [STATEMENT]}, indent=2)
    command: Any = ask("SetQueueAttributes", Attributes={"Policy": text}).command
    assert command.settings == {"policy": text}
    command = ask("CreateQueue", QueueName="orders", Attributes={"Policy": ""}).command
    assert command.settings == {"policy": ""}


def test_what_is_no_policy_is_not_kept() -> None:
    error = refusal("SetQueueAttributes", Attributes={"Policy": "x"})
    assert error.code is errors.INVALID_ATTRIBUTE_VALUE
    assert error.message == "Invalid value for the parameter Policy. Reason: It is no JSON."

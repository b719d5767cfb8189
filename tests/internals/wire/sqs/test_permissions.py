"""AddPermission and RemovePermission: what they make of a policy; and the attribute that holds it."""

import json
from typing import Any

import pytest

from tests.internals.wire.sqs.asking import ask, refusal
from tests.internals.wire.sqs.test_golden import STATEMENT
from veilmq.core.commands import EditQueue
from veilmq.core.errors import EditRefused
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.policies import read_policy
from veilmq.wire.sqs.queues import Grant, Revoke

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

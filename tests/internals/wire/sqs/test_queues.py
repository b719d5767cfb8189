"""The actions on queues, their tags, permissions and move tasks."""

import json
from base64 import b64decode, b64encode
from typing import Any

import msgspec
import pytest

from tests.internals.wire.sqs.requests import CONTEXT, ID, ID_TEXT, QUEUE, URL, VIEW, answer, ask, refusal
from tests.internals.wire.sqs.test_actions import STATEMENT
from veilmq.core.commands import (
    QUEUE_MISSING,
    SOURCE_UNKNOWN,
    CancelMove,
    Command,
    CreateQueue,
    EditQueue,
    ListDeadLetterSources,
    ListMoves,
    ListQueues,
    MoveStatus,
    MoveTask,
    QueuePage,
    ShowQueue,
    StartMove,
    TagQueue,
)
from veilmq.core.errors import EditRefused, QueueNotFound
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.json import encode
from veilmq.wire.sqs.moves import task_handle, task_of
from veilmq.wire.sqs.names import Listing
from veilmq.wire.sqs.policies import read_policy
from veilmq.wire.sqs.queues import Grant, Revoke, read_tags

FIFO = {"QueueName": "a.fifo", "Attributes": {"FifoQueue": "true"}}
COUNTS = {"AttributeNames": ["QueueArn", "ApproximateNumberOfMessages"]}
TAGGED = msgspec.structs.replace(VIEW, settings=QueueSettings(tags={"team": "a", "empty": ""}))
MORE = QueuePage(names=["orders"], more=True)


@pytest.mark.parametrize(("action", "members", "command"), [
    ("CreateQueue", {"QueueName": "orders"}, CreateQueue(queue=QUEUE)),
    ("CreateQueue", {"QueueName": "orders", "Attributes": {}, "tags": {}}, CreateQueue(queue=QUEUE)),
    ("CreateQueue", {"QueueName": "orders", "tags": {"team": "a"}}, CreateQueue(queue=QUEUE, tags={"team": "a"})),
    ("CreateQueue", FIFO, CreateQueue(queue="000000000000/a.fifo", settings={"fifo": True})),
    ("GetQueueUrl", {"QueueName": "orders", "QueueOwnerAWSAccountId": "111111111111"},
        ShowQueue(queue="111111111111/orders")),
    ("ListQueues", {}, ListQueues(account="000000000000", count=1_000)),
    ("GetQueueAttributes", {"AttributeNames": []}, ShowQueue(queue=QUEUE)),
    ("GetQueueAttributes", {"AttributeNames": ["QueueArn", "VisibilityTimeout"]}, ShowQueue(queue=QUEUE)),
    ("GetQueueAttributes", COUNTS, ShowQueue(queue=QUEUE, counts=True)),
    ("GetQueueAttributes", {"AttributeNames": ["All"]}, ShowQueue(queue=QUEUE, counts=True)),
    ("TagQueue", {"Tags": {"team": "a"}}, TagQueue(queue=QUEUE, tags={"team": "a"})),
    ("UntagQueue", {"TagKeys": ["team", "x"]}, TagQueue(queue=QUEUE, removed=("team", "x"))),
    ("ListQueueTags", {}, ShowQueue(queue=QUEUE)),
    ("ListDeadLetterSourceQueues", {}, ListDeadLetterSources(queue=QUEUE, count=1_000)),
], ids=range(14))  # fmt: skip
def test_what_a_request_becomes(action: str, members: dict[str, Any], command: Command) -> None:
    assert ask(action, **members).command == command


@pytest.mark.parametrize(("action", "members", "result", "reply"), [
    # pages are for those who ask for them, and an empty list is no member, as on AWS
    ("ListQueues", {}, MORE, {"QueueUrls": [URL]}),
    ("ListQueues", {"MaxResults": 5}, QueuePage(names=[], more=False), {}),
    ("GetQueueAttributes", {}, VIEW, {}),
    ("ListQueueTags", {}, TAGGED, {"Tags": {"team": "a", "empty": ""}}),
    ("ListQueueTags", {}, VIEW, {}),
    ("ListDeadLetterSourceQueues", {}, QueuePage(names=[QUEUE], more=True), {"queueUrls": [URL]}),
    ("ListDeadLetterSourceQueues", {}, QueuePage(names=[], more=False), {"queueUrls": []}),
], ids=range(7))  # fmt: skip
def test_what_a_result_becomes(action: str, members: dict[str, Any], result: Any, reply: dict[str, Any]) -> None:
    assert answer(action, result, **members) == reply


def test_a_listing_goes_on_after_the_token() -> None:
    page = answer("ListQueues", QueuePage(names=["a", "b"], more=True), MaxResults=2)
    assert page["NextToken"] == Listing("ListQueues", "", CONTEXT).token_after("b")
    command = ask("ListQueues", MaxResults=2, NextToken=page["NextToken"]).command
    assert command == ListQueues(account="000000000000", after="b", count=2)
    assert "NextToken" not in answer("ListQueues", QueuePage(names=["c"], more=False), MaxResults=2)


def test_the_token_of_another_prefix_is_refused() -> None:
    page = answer("ListQueues", QueuePage(names=["a"], more=True), MaxResults=1, QueueNamePrefix="a")
    error = refusal("ListQueues", MaxResults=1, QueueNamePrefix="b", NextToken=page["NextToken"])
    assert error.code is errors.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize(("name", "attributes", "code", "text"), [
    ("a", {"FifoQueue": "true"}, errors.INVALID_PARAMETER_VALUE, "must end with .fifo suffix"),
    ("a.fifo", {}, errors.INVALID_PARAMETER_VALUE, "Can only include alphanumeric characters, hyphens"),
    ("a.fifo", {"FifoQueue": "false"}, errors.INVALID_PARAMETER_VALUE, "Can only include alphanumeric characters"),
    (".fifo", {"FifoQueue": "true"}, errors.INVALID_PARAMETER_VALUE, "must end with .fifo suffix"),
    ("a" * 76 + ".fifo", {"FifoQueue": "true"}, errors.INVALID_PARAMETER_VALUE, "1 to 80 in length"),
    ("a", {"FifoQueue": "false"}, errors.INVALID_ATTRIBUTE_NAME, "Unknown Attribute FifoQueue."),
])  # fmt: skip
def test_a_name_and_an_attribute_that_contradict(
    name: str, attributes: dict[str, str], code: errors.Code, text: str
) -> None:
    error = refusal("CreateQueue", QueueName=name, Attributes=attributes)
    assert error.code is code
    assert text in error.message


# Tags of queues beyond their errors.


@pytest.mark.parametrize("key", ["a", "é", "a b", "_.:/=+-@", "x" * 128, "awsome", "x-aws:a"])
def test_good_keys_and_values(key: str) -> None:
    """Letters of any alphabet, digits, spaces and a few signs; a value may be empty."""
    assert read_tags({key: ""}, QUEUE) == {key: ""}
    assert read_tags({key: key * 2}, QUEUE) == {key: key * 2}


@pytest.mark.parametrize("key", ["", "x" * 129, "aws:a", "AWS:a", "a\n", "a*", "a?"])
def test_bad_keys(key: str) -> None:
    for error in (refusal("TagQueue", Tags={key: "x"}), refusal("UntagQueue", TagKeys=["ok", key])):
        assert error.code is errors.INVALID_PARAMETER_VALUE
        assert "1 to 128 characters" in error.message or "between 1 and 128 characters" in error.message


@pytest.mark.parametrize("value", ["x" * 257, "a\n", "a*"])
def test_bad_values(value: str) -> None:
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


def test_dead_letter_sources_go_on_after_the_token() -> None:
    token = answer("ListDeadLetterSourceQueues", QueuePage(names=[QUEUE], more=True), MaxResults=1)["NextToken"]
    command = ask("ListDeadLetterSourceQueues", MaxResults=1, NextToken=token).command
    assert command == ListDeadLetterSources(queue=QUEUE, after=QUEUE, count=1)


def test_the_token_of_another_queue_is_refused() -> None:
    token = answer("ListDeadLetterSourceQueues", QueuePage(names=[QUEUE], more=True), MaxResults=1)["NextToken"]
    for action, members in (("ListDeadLetterSourceQueues", {"QueueUrl": URL + "-2"}), ("ListQueues", {})):
        error = refusal(action, MaxResults=1, NextToken=token, **members)
        assert error.code is errors.INVALID_PARAMETER_VALUE


# AddPermission and RemovePermission: what they make of a policy; and the attribute that holds it.

ARN = "arn:aws:sqs:us-east-1:000000000000:orders"


def granted(**members: Any) -> dict[str, Any]:
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
    first = Grant(STATEMENT)("")
    assert json.loads(first) == {"Version": "2008-10-17", "Id": f"{ARN}/SQSDefaultPolicy", "Statement": [STATEMENT]}
    second = Grant(STATEMENT | {"Sid": "more"})(first)
    assert [statement["Sid"] for statement in json.loads(second)["Statement"]] == ["send", "more"]
    read_policy(second, ARN)
    assert Revoke("send")(Revoke("more")(second)) == ""
    assert Revoke("more")(second) == first


def test_the_owners_own_statements_stay_as_they_are() -> None:
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
    text = json.dumps({"Statement": [STATEMENT]}, indent=2)
    command: Any = ask("SetQueueAttributes", Attributes={"Policy": text}).command
    assert command.settings == {"policy": text}
    command = ask("CreateQueue", QueueName="orders", Attributes={"Policy": ""}).command
    assert command.settings == {"policy": ""}


def test_what_is_no_policy_is_not_kept() -> None:
    error = refusal("SetQueueAttributes", Attributes={"Policy": "x"})
    assert error.code is errors.INVALID_ATTRIBUTE_VALUE
    assert error.message == "Invalid value for the parameter Policy. Reason: It is no JSON."


# Move tasks.


def task(status: MoveStatus = MoveStatus.RUNNING, failure: str | None = None) -> MoveTask:
    """Return a task as the engine tells it."""
    return MoveTask(
        id=ID,
        source=QUEUE,
        destination=None,
        moves_per_s_max=None,
        status=status,
        messages_moved=3,
        messages_to_move=7,
        started_at_ms=1_700_000_000_123,
        failure=failure,
    )


HANDLE = task_handle(task(), CONTEXT)


def test_a_start_that_says_only_where_from() -> None:
    assert ask("StartMessageMoveTask", SourceArn=ARN).command == StartMove(source=QUEUE)
    assert answer("StartMessageMoveTask", task(), SourceArn=ARN) == {"TaskHandle": HANDLE}


def test_a_handle_is_what_that_of_aws_is() -> None:
    assert json.loads(b64decode(HANDLE, validate=True)) == {"taskId": ID_TEXT, "sourceArn": ARN}
    assert ask("CancelMessageMoveTask", TaskHandle=HANDLE).command == CancelMove(source=QUEUE, task=ID)
    assert answer("CancelMessageMoveTask", task(), TaskHandle=HANDLE) == {"ApproximateNumberOfMessagesMoved": 3}


def handle(**members: object) -> str:
    return b64encode(json.dumps(members).encode()).decode()


@pytest.mark.parametrize("text", [
    "x", "é", "!" + HANDLE, HANDLE + "\n", b64encode(b"\xff").decode(), b64encode(b"[" * 50_000).decode(),
    handle(taskId=ID_TEXT), handle(sourceArn=ARN), handle(taskId="x", sourceArn=ARN), handle(taskId=1, sourceArn=ARN),
])  # fmt: skip
def test_what_is_no_handle(text: str) -> None:
    with pytest.raises(SqsError, match=r"^Value for parameter TaskHandle is invalid\.$") as caught:
        task_of(text, CONTEXT)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE


@pytest.mark.parametrize("arn", ["arn:aws:sqs:invalid:x:y", ARN.replace("000000000000", "111111111111")])
def test_a_handle_of_elsewhere(arn: str) -> None:
    with pytest.raises(SqsError, match="specified for the SourceArn parameter doesn't exist") as caught:
        task_of(handle(taskId=ID_TEXT, sourceArn=arn), CONTEXT)
    assert caught.value.code is errors.RESOURCE_NOT_FOUND


@pytest.mark.parametrize(("action", "member", "others"), [
    ("StartMessageMoveTask", "SourceArn", {}),
    ("StartMessageMoveTask", "DestinationArn", {"SourceArn": ARN}),
    ("ListMessageMoveTasks", "SourceArn", {}),
])  # fmt: skip
def test_a_task_of_a_queue_of_another_account(action: str, member: str, others: dict[str, str]) -> None:
    error = refusal(action, **others | {member: ARN.replace("000000000000", "111111111111")})
    assert error.code is errors.RESOURCE_NOT_FOUND
    assert f"specified for the {member} parameter doesn't exist" in error.message


def test_a_task_that_runs_has_a_handle() -> None:
    assert ask("ListMessageMoveTasks", SourceArn=ARN).command == ListMoves(source=QUEUE, count=1)
    (told,) = answer("ListMessageMoveTasks", [task()], SourceArn=ARN)["Results"]
    assert told == {
        "TaskHandle": HANDLE,
        "Status": "RUNNING",
        "SourceArn": ARN,
        "ApproximateNumberOfMessagesMoved": 3,
        "ApproximateNumberOfMessagesToMove": 7,
        "StartedTimestamp": 1_700_000_000_123,
    }


@pytest.mark.parametrize("status", [MoveStatus.COMPLETED, MoveStatus.CANCELLED])
def test_a_task_that_ended_has_none(status: MoveStatus) -> None:
    (told,) = answer("ListMessageMoveTasks", [task(status)], SourceArn=ARN)["Results"]
    assert told["Status"] == status.name
    assert not {"TaskHandle", "FailureReason"} & set(told)


@pytest.mark.parametrize(("failure", "reason"), [
    (SOURCE_UNKNOWN, "CouldNotDetermineMessageSource"),
    (QUEUE_MISSING, "AWS.SimpleQueueService.NonExistentQueue"),
])  # fmt: skip
def test_a_task_that_failed_says_why_as_aws_does(failure: str, reason: str) -> None:
    (told,) = answer("ListMessageMoveTasks", [task(MoveStatus.FAILED, failure)], SourceArn=ARN)["Results"]
    assert (told["Status"], told["FailureReason"]) == ("FAILED", reason)
    assert "TaskHandle" not in told


def test_a_task_whose_queue_is_gone_cannot_be_cancelled() -> None:
    reply = encode(ask("CancelMessageMoveTask", TaskHandle=HANDLE), QueueNotFound(QUEUE))
    assert reply.code == errors.RESOURCE_NOT_FOUND.name
    assert b"specified for the SourceArn parameter doesn't exist" in reply.body


def test_a_queue_without_tasks_has_an_empty_list() -> None:
    assert answer("ListMessageMoveTasks", [], SourceArn=ARN, MaxResults=10) == {"Results": []}

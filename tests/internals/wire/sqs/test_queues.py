"""The actions on queues, their attributes, tags, permissions and move tasks."""

import json
import tracemalloc
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.requests import (
    CONTEXT,
    ID,
    ID_TEXT,
    QUEUE,
    VIEW,
    decode_request,
    error_of,
    parsed_reply,
    raises,
)
from tests.internals.wire.sqs.test_actions import STATEMENT
from veilmq.core.commands import (
    QUEUE_MISSING,
    SOURCE_UNKNOWN,
    EditQueue,
    MoveStatus,
    MoveTask,
)
from veilmq.core.errors import EditRefused
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.moves import task_handle, task_of
from veilmq.wire.sqs.policies import read_policy
from veilmq.wire.sqs.queue_attributes import ATTRIBUTE_OF, NAMES, READ_ONLY, SETTINGS, describe, read_settings
from veilmq.wire.sqs.queues import Grant, Revoke, read_tags

ARN = "arn:aws:sqs:us-east-1:000000000000:orders"


# Tags.


@pytest.mark.parametrize("key", ["a", "é", "a b", "_.:/=+-@", "x" * 128, "awsome", "x-aws:a"])
def test_valid_tags(key: str) -> None:
    """Letters of any script, digits, spaces and some signs; a value may be empty."""
    assert read_tags({key: ""}, QUEUE) == {key: ""}
    assert read_tags({key: key * 2}, QUEUE) == {key: key * 2}


@pytest.mark.parametrize("key", ["", "x" * 129, "aws:a", "AWS:a", "a\n", "a*", "a?"])
def test_invalid_tag_keys(key: str) -> None:
    for error in (error_of("TagQueue", Tags={key: "x"}), error_of("UntagQueue", TagKeys=["ok", key])):
        assert error.code is errors.INVALID_PARAMETER_VALUE
        assert "1 to 128 characters" in error.message or "between 1 and 128 characters" in error.message


@pytest.mark.parametrize("value", ["x" * 257, "a\n", "a*"])
def test_invalid_tag_values(value: str) -> None:
    error = error_of("TagQueue", Tags={"a": value})
    assert error.code is errors.INVALID_PARAMETER_VALUE
    assert "A tag's value has up to 256 characters" in error.message


# AddPermission, RemovePermission and the attribute Policy.


def grant_statement(**members: Any) -> dict[str, Any]:
    request = {"Label": "send", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]} | members
    command = decode_request("AddPermission", **request).command
    assert isinstance(command, EditQueue)
    assert isinstance(command.edit, Grant)
    return command.edit.statement


def edit_error(edit: Grant | Revoke, text: str) -> SqsError:
    """Return the error of an edit of the policy ``text``."""
    with pytest.raises(EditRefused) as caught:
        edit(text)
    assert isinstance(caught.value.reason, SqsError)
    return caught.value.reason


def test_single_values_of_a_statement_are_texts() -> None:
    """As on AWS; repeated values are omitted."""
    assert grant_statement() == STATEMENT
    both = grant_statement(AWSAccountIds=["111111111111", "222222222222"], Actions=["SendMessage", "*", "SendMessage"])
    assert both["Principal"] == {"AWS": ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]}
    assert both["Action"] == ["SQS:SendMessage", "SQS:*"]


def test_the_first_permission_creates_a_policy_and_the_last_removes_it() -> None:
    first = Grant(STATEMENT)("")
    assert json.loads(first) == {"Version": "2008-10-17", "Id": f"{ARN}/SQSDefaultPolicy", "Statement": [STATEMENT]}
    second = Grant(STATEMENT | {"Sid": "more"})(first)
    assert [statement["Sid"] for statement in json.loads(second)["Statement"]] == ["send", "more"]
    read_policy(second, ARN)
    assert Revoke("send")(Revoke("more")(second)) == ""
    assert Revoke("more")(second) == first


def test_other_statements_do_not_change() -> None:
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


def test_limits_of_a_policy() -> None:
    """Twenty statements, 50 principals in each, and 8,192 bytes."""
    text = ""
    for number in range(20):
        text = Grant(STATEMENT | {"Sid": str(number)})(text)
    error = edit_error(Grant(STATEMENT), text)
    assert (error.code, error.message) == (errors.OVER_LIMIT, "21 statements were found, maximum allowed is 20.")
    text, long = "", STATEMENT | {"Principal": {"AWS": ["111111111111"] * 50}}
    for number in range(9):
        text = Grant(long | {"Sid": str(number)})(text)
    error = edit_error(Grant(long), text)
    assert error.code is errors.OVER_LIMIT
    assert "8192 bytes" in error.message


# Move tasks.


def task(status: MoveStatus = MoveStatus.RUNNING, failure: str | None = None) -> MoveTask:
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


def handle(**members: object) -> str:
    return b64encode(json.dumps(members).encode()).decode()


@pytest.mark.parametrize("text", [
    "x", "é", "!" + HANDLE, HANDLE + "\n", b64encode(b"\xff").decode(), b64encode(b'{"a":' * 50_000).decode(),
    handle(taskId=ID_TEXT), handle(sourceArn=ARN), handle(taskId="x", sourceArn=ARN), handle(taskId=1, sourceArn=ARN),
])  # fmt: skip
def test_invalid_task_handles(text: str) -> None:
    with raises(errors.INVALID_PARAMETER_VALUE, r"^Value for parameter TaskHandle is invalid\.$"):
        task_of(text, CONTEXT)


@pytest.mark.parametrize("arn", ["arn:aws:sqs:invalid:x:y", ARN.replace("000000000000", "111111111111")])
def test_task_handles_of_other_regions_and_accounts(arn: str) -> None:
    with raises(errors.RESOURCE_NOT_FOUND, "specified for the SourceArn parameter doesn't exist"):
        task_of(handle(taskId=ID_TEXT, sourceArn=arn), CONTEXT)


@pytest.mark.parametrize(("action", "member", "others"), [
    ("StartMessageMoveTask", "SourceArn", {}),
    ("StartMessageMoveTask", "DestinationArn", {"SourceArn": ARN}),
    ("ListMessageMoveTasks", "SourceArn", {}),
])  # fmt: skip
def test_moves_in_another_account_are_refused(action: str, member: str, others: dict[str, str]) -> None:
    error = error_of(action, **others | {member: ARN.replace("000000000000", "111111111111")})
    assert error.code is errors.RESOURCE_NOT_FOUND
    assert f"specified for the {member} parameter doesn't exist" in error.message


@pytest.mark.parametrize(("failure", "reason"), [
    (SOURCE_UNKNOWN, "CouldNotDetermineMessageSource"),
    (QUEUE_MISSING, "AWS.SimpleQueueService.NonExistentQueue"),
])  # fmt: skip
def test_failure_reasons_have_the_names_of_aws(failure: str, reason: str) -> None:
    (entry,) = parsed_reply("ListMessageMoveTasks", [task(MoveStatus.FAILED, failure)], SourceArn=ARN)["Results"]
    assert (entry["Status"], entry["FailureReason"]) == ("FAILED", reason)
    assert "TaskHandle" not in entry


# Queue attributes.

RANGES = {
    "VisibilityTimeout": (0, 43_200),
    "MaximumMessageSize": (1_024, 1_048_576),
    "MessageRetentionPeriod": (60, 1_209_600),
    "DelaySeconds": (0, 900),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "KmsDataKeyReusePeriodSeconds": (60, 86_400),
    "VeilmqInFlightMax": (1, 1_000_000),
    "VeilmqReceivesPerSecond": (0, 1_000_000),
}
NOT_ATTRIBUTES = {"purges", "tags"}
VEILMQ_NAMES = {
    "VeilmqInFlightMax", "VeilmqVisibilityRules", "VeilmqEventLog", "VeilmqReceivesPerSecond", "VeilmqSmqBase64",
    "VeilmqSmqLogging",
}  # fmt: skip
FIFO = "000000000000/orders.fifo"


def test_attribute_names_match_the_service_model() -> None:
    assert set(service_model().shape_for("QueueAttributeName").enum) | VEILMQ_NAMES == NAMES
    assert all(name.startswith("Veilmq") for name in VEILMQ_NAMES)


def test_every_setting_has_one_attribute() -> None:
    fields = [field for setting in SETTINGS.values() for field in setting.fields]
    assert sorted(fields) == sorted({field.name for field in msgspec.structs.fields(QueueSettings)} - NOT_ATTRIBUTES)
    assert {ATTRIBUTE_OF[field] for field in fields} == set(SETTINGS)


def read_attribute(name: str, text: str, queue: str = QUEUE) -> dict[str, Any]:
    return read_settings({name: text}, queue, CONTEXT)


def shown_attributes(*names: str, queue: str = QUEUE, **settings: Any) -> dict[str, str]:
    """Return the attributes of a queue with ``settings``."""
    return describe(msgspec.structs.replace(VIEW, queue=queue, settings=QueueSettings(**settings)), names, CONTEXT)


@pytest.mark.parametrize(("text", "why"), [
    ("{}", "missing required field"), ("é" * 32_769, "at most 65,536 bytes"), (" " * 65_536, "truncated")
], ids=["no table", "too long", "just not too long"])  # fmt: skip
def test_invalid_visibility_rules(text: str, why: str) -> None:
    with raises(errors.INVALID_ATTRIBUTE_VALUE, f"VeilmqVisibilityRules.*{why}"):
        read_attribute("VeilmqVisibilityRules", text)


@pytest.mark.parametrize("name", list(RANGES))
def test_ranges_of_number_attributes(name: str) -> None:
    least, most = RANGES[name]
    (field,) = SETTINGS[name].fields
    assert [read_attribute(name, str(value)) for value in (least, most)] == [{field: least}, {field: most}]
    for value in (least - 1, most + 1):
        with raises(errors.INVALID_ATTRIBUTE_VALUE, f"between {least} and {most}"):
            read_attribute(name, str(value))


RULES = '{"version": 1, "classes": [{"name": "a", "visibility_timeout_s": 5}], "default": 0}'


@pytest.mark.parametrize(("name", "text", "changes"), [
    ("FifoQueue", "true", {"fifo": True}),
    ("ContentBasedDeduplication", "true", {"content_deduplication": True}),
    ("ContentBasedDeduplication", "false", {"content_deduplication": False}),
    ("DeduplicationScope", "messageGroup", {"deduplication_scope": "group"}),
    ("DeduplicationScope", "queue", {"deduplication_scope": "queue"}),
    ("FifoThroughputLimit", "perMessageGroupId", {"throughput_limit": "group"}),
    ("FifoThroughputLimit", "perQueue", {"throughput_limit": "queue"}),
    ("KmsMasterKeyId", "alias/aws/sqs", {"kms_key": "alias/aws/sqs"}), ("KmsMasterKeyId", "", {"kms_key": ""}),
    ("SqsManagedSseEnabled", "false", {"managed_encryption": False}),
    ("VeilmqInFlightMax", "7", {"in_flight_max": 7}), ("VeilmqInFlightMax", "", {"in_flight_max": None}),
    ("VeilmqEventLog", "closed", {"event_log": "closed"}), ("VeilmqEventLog", "off", {"event_log": "off"}),
    ("VeilmqEventLog", "", {"event_log": None}),
    ("VeilmqVisibilityRules", RULES, {"visibility_rules": RULES}),
    ("VeilmqVisibilityRules", "", {"visibility_rules": ""}),
])  # fmt: skip
def test_attributes_are_read_and_written(name: str, text: str, changes: dict[str, Any]) -> None:
    """An empty text removes the setting, which is then not shown."""
    assert read_attribute(name, text, FIFO) == changes
    assert shown_attributes(name, queue=FIFO, **{"fifo": True} | changes) == ({name: text} if text else {})


@pytest.mark.parametrize(("name", "text"), [
    ("ContentBasedDeduplication", "1"), ("DeduplicationScope", "group"), ("FifoThroughputLimit", ""),
    ("SqsManagedSseEnabled", "yes"), ("KmsMasterKeyId", "x" * 2_049), ("KmsMasterKeyId", "a\nb"),
    ("VeilmqEventLog", "on"),
])  # fmt: skip
def test_invalid_attribute_values(name: str, text: str) -> None:
    with raises(errors.INVALID_ATTRIBUTE_VALUE, f"^Invalid value for the parameter {name}. Reason: Must be "):
        read_attribute(name, text, FIFO)


@pytest.mark.parametrize("text", ["", " 5", "5 ", "+5", "-0", "5.0", "1e1", "x", "٣", "5\n", "0x5", "9" * 5_000])
def test_only_ascii_digits_are_numbers(text: str) -> None:
    error = error_of("SetQueueAttributes", Attributes={"DelaySeconds": text})
    assert error.code is errors.INVALID_ATTRIBUTE_VALUE


@pytest.mark.parametrize("name", [*READ_ONLY, "All", "Foo", "", "delayseconds"])
def test_read_only_and_unknown_attributes_cannot_be_set(name: str) -> None:
    """As on AWS."""
    error = error_of("SetQueueAttributes", Attributes={name: "1"})
    assert (error.code, error.message) == (errors.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


# RedrivePolicy and RedriveAllowPolicy.

DEAD = "arn:aws:sqs:us-east-1:000000000000:dead"
REDRIVE = "RedrivePolicy"
ALLOW = "RedriveAllowPolicy"


@pytest.mark.parametrize("text", ["x", "[]", "[" * 100_000, '{"a": "\ud800"}'], ids=["text", "list", "deep", "half"])
def test_invalid_json_in_a_redrive_policy(text: str) -> None:
    with raises(errors.INVALID_ATTRIBUTE_VALUE, r"RedrivePolicy\. Reason: Redrive policy is not a valid JSON map\.$"):
        read_attribute(REDRIVE, text)


@pytest.mark.parametrize("name", [REDRIVE, ALLOW])
def test_a_long_redrive_policy_is_refused_with_little_memory(name: str) -> None:
    """A body of 8 MiB can have two million values in one attribute, which take twenty times as much as objects."""
    members = {"deadLetterTargetArn": DEAD, "maxReceiveCount": [{}] * 100_000}
    text = json.dumps(
        members if name == REDRIVE else {"redrivePermission": "byQueue", "sourceQueueArns": ["a"] * 100_000}
    )
    tracemalloc.start()
    try:
        with raises(errors.INVALID_ATTRIBUTE_VALUE, name):
            read_attribute(name, text)
        assert tracemalloc.get_traced_memory()[1] < len(text)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("text", "reason"), [
    (json.dumps({"redrivePermission": "byQueue"}), "also specify one or more sourceQueueArns values."),
    (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": []}), "also specify one or more sourceQueueArns"),
    (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DEAD] * 11}),
        "The maximum number of source queue ARNs you can specify is 10."),
    (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DEAD, "x"]}), "must be the ARN of a queue"),
    (json.dumps({"redrivePermission": "denyAll", "sourceQueueArns": [DEAD]}),
        "you must set redrivePermission to byQueue."),
])  # fmt: skip
def test_invalid_redrive_allow_policies(text: str, reason: str) -> None:
    with pytest.raises(SqsError) as caught:
        read_attribute(ALLOW, text)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE
    assert "for parameter RedriveAllowPolicy is invalid. Reason: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["{}", json.dumps({"redrivePermission": "all"}), "[" * 100_000, '{"a": "\ud800"}'])
def test_redrive_allow_policies_of_another_form(text: str) -> None:
    with raises(errors.INVALID_ATTRIBUTE_VALUE, "one of allowAll, denyAll, byQueue, and with byQueue the list"):
        read_attribute(ALLOW, text)

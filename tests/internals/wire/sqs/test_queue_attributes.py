"""Queue attributes: what may be set, to what, and what is shown."""

import json
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from tests.clients.sqs_client import service_model
from tests.internals.wire.sqs.requests import CONTEXT, QUEUE, VIEW, answer, refusal
from veilmq.core.errors import DeadLetterQueueRefused, SettingsConflict
from veilmq.core.settings import QueueSettings
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.queue_attributes import COUNTED, NAMES, READ_ONLY, SETTINGS, attribute_of, describe, read_settings

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
NOT_ON_THE_WIRE = {"purges", "tags"}
OURS = {
    "VeilmqInFlightMax", "VeilmqVisibilityRules", "VeilmqEventLog", "VeilmqReceivesPerSecond", "VeilmqSmqBase64",
    "VeilmqSmqLogging",
}  # fmt: skip
UNSET = {"Policy", "RedrivePolicy", "RedriveAllowPolicy", "KmsMasterKeyId", *OURS}
FIFO = "000000000000/orders.fifo"


def test_the_names_are_those_of_the_service_model() -> None:
    assert set(service_model().shape_for("QueueAttributeName").enum) | OURS == NAMES
    assert all(name.startswith("Veilmq") for name in OURS)


def test_every_field_of_the_settings_is_of_one_attribute() -> None:
    fields = [field for setting in SETTINGS.values() for field in setting.kind.fields]
    assert sorted(fields) == sorted({field.name for field in msgspec.structs.fields(QueueSettings)} - NOT_ON_THE_WIRE)
    assert {attribute_of(field) for field in fields} == set(SETTINGS)


def test_a_quota_of_the_queues_own_is_given_up_with_empty_text() -> None:
    """It is told while there is one; without one the server's is in force, of which the queue tells nothing."""
    name = "VeilmqInFlightMax"
    own = msgspec.structs.replace(VIEW, settings=QueueSettings(in_flight_max=7))
    assert describe(own, [name], CONTEXT) == {name: "7"}
    assert describe(own, ["All"], CONTEXT) == describe(VIEW, ["All"], CONTEXT) | {name: "7"}
    assert read_settings({name: ""}, QUEUE, CONTEXT) == {"in_flight_max": None}
    assert describe(VIEW, [name], CONTEXT) == {}


def test_what_a_queue_logs_is_given_up_with_empty_text() -> None:
    name = "VeilmqEventLog"
    own = msgspec.structs.replace(VIEW, settings=QueueSettings(event_log="closed"))
    assert describe(own, [name], CONTEXT) == {name: "closed"}
    assert describe(VIEW, [name], CONTEXT) == {}
    assert read_settings({name: ""}, QUEUE, CONTEXT) == {"event_log": None}
    assert read_settings({name: "off"}, QUEUE, CONTEXT) == {"event_log": "off"}
    with pytest.raises(SqsError, match="off or closed"):
        read_settings({name: "on"}, QUEUE, CONTEXT)


def test_visibility_rules_are_kept_as_they_are_given() -> None:
    name = "VeilmqVisibilityRules"
    text = '{"version": 1, "classes": [{"name": "a", "visibility_timeout_s": 5}], "default": 0}'
    assert read_settings({name: text}, QUEUE, CONTEXT) == {"visibility_rules": text}
    own = msgspec.structs.replace(VIEW, settings=QueueSettings(visibility_rules=text))
    assert describe(own, [name], CONTEXT) == {name: text}
    assert describe(VIEW, [name], CONTEXT) == {}
    assert read_settings({name: ""}, QUEUE, CONTEXT) == {"visibility_rules": ""}


@pytest.mark.parametrize(("text", "why"), [
    ("{}", "missing required field"), ("é" * 32_769, "at most 65,536 bytes"), (" " * 65_536, "truncated")
], ids=["no table", "too long", "just not too long"])  # fmt: skip
def test_visibility_rules_that_are_none(text: str, why: str) -> None:
    with pytest.raises(SqsError, match=f"VeilmqVisibilityRules.*{why}") as caught:
        read_settings({"VeilmqVisibilityRules": text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE


@pytest.mark.parametrize("name", list(RANGES))
def test_the_borders_of_each_number(name: str) -> None:
    least, most = RANGES[name]
    (field,) = SETTINGS[name].kind.fields
    assert read_settings({name: str(least)}, QUEUE, CONTEXT) == {field: least}
    assert read_settings({name: str(most)}, QUEUE, CONTEXT) == {field: most}
    for value in (least - 1, most + 1):
        with pytest.raises(SqsError, match=f"between {least} and {most}") as caught:
            read_settings({name: str(value)}, QUEUE, CONTEXT)
        assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE


@pytest.mark.parametrize(("name", "text", "changes"), [
    ("FifoQueue", "true", {"fifo": True}),
    ("ContentBasedDeduplication", "true", {"content_deduplication": True}),
    ("ContentBasedDeduplication", "false", {"content_deduplication": False}),
    ("DeduplicationScope", "messageGroup", {"deduplication_scope": "group"}),
    ("DeduplicationScope", "queue", {"deduplication_scope": "queue"}),
    ("FifoThroughputLimit", "perMessageGroupId", {"throughput_limit": "group"}),
    ("FifoThroughputLimit", "perQueue", {"throughput_limit": "queue"}),
    ("KmsMasterKeyId", "alias/aws/sqs", {"kms_key": "alias/aws/sqs"}),
    ("KmsMasterKeyId", "", {"kms_key": ""}),
    ("SqsManagedSseEnabled", "false", {"managed_encryption": False}),
])  # fmt: skip
def test_a_word_is_read_and_written(name: str, text: str, changes: dict[str, object]) -> None:
    assert read_settings({name: text}, FIFO, CONTEXT) == changes
    settings = QueueSettings(fifo=True).changed(changes)  # type: ignore[arg-type]
    view = msgspec.structs.replace(VIEW, queue=FIFO, settings=settings)
    assert describe(view, [name], CONTEXT) == ({name: text} if text else {})


@pytest.mark.parametrize(("name", "text"), [
    ("ContentBasedDeduplication", "1"), ("DeduplicationScope", "group"), ("FifoThroughputLimit", ""),
    ("SqsManagedSseEnabled", "yes"), ("KmsMasterKeyId", "x" * 2_049), ("KmsMasterKeyId", "a\nb"),
])  # fmt: skip
def test_a_word_that_there_is_not(name: str, text: str) -> None:
    with pytest.raises(SqsError, match=f"^Invalid value for the parameter {name}. Reason: Must be ") as caught:
        read_settings({name: text}, FIFO, CONTEXT)
    assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE


@pytest.mark.parametrize("name", [name for name, row in SETTINGS.items() if row.fifo])
def test_what_only_fifo_queues_have_is_unknown_to_others(name: str) -> None:
    """As on AWS; and nothing is told of it."""
    error = refusal("SetQueueAttributes", Attributes={name: "true"})
    assert error.code is errors.INVALID_ATTRIBUTE_NAME
    assert error.message in {
        f"Unknown Attribute {name}.",
        f"You can specify the {name} only when FifoQueue is set to true.",
    }
    assert describe(VIEW, [name], CONTEXT) == {}


def test_the_attributes_of_a_fifo_queue_that_chose_nothing() -> None:
    view = msgspec.structs.replace(VIEW, queue=FIFO, settings=QueueSettings(fifo=True))
    assert describe(view, [name for name, row in SETTINGS.items() if row.fifo], CONTEXT) == {
        "FifoQueue": "true",
        "ContentBasedDeduplication": "false",
        "DeduplicationScope": "queue",
        "FifoThroughputLimit": "perQueue",
    }


def test_the_period_of_a_key_is_told_with_the_key() -> None:
    name = "KmsDataKeyReusePeriodSeconds"
    assert describe(VIEW, [name], CONTEXT) == {}
    view = msgspec.structs.replace(VIEW, settings=QueueSettings(kms_key="k"))
    assert describe(view, [name], CONTEXT) == {name: "300"}


def test_a_setting_that_the_engine_refuses_is_named_as_the_wire_has_it() -> None:
    attributes = {"FifoThroughputLimit": "perMessageGroupId"}
    with pytest.raises(ClientError, match=r"parameter DeduplicationScope\. Reason: Why") as caught:
        answer(
            "SetQueueAttributes", SettingsConflict("deduplication_scope", "Why."), QueueUrl=FIFO, Attributes=attributes
        )
    assert caught.value.response["Error"]["Code"] == "InvalidAttributeValue"


@pytest.mark.parametrize("text", ["", " 5", "5 ", "+5", "-0", "5.0", "1e1", "x", "٣", "5\n", "0x5", "9" * 5_000])
def test_a_value_is_a_whole_number_in_ascii(text: str) -> None:
    """Anything else is refused."""
    error = refusal("SetQueueAttributes", Attributes={"DelaySeconds": text})
    assert error.code is errors.INVALID_ATTRIBUTE_VALUE


@pytest.mark.parametrize("name", [*READ_ONLY, "All", "Foo", "", "delayseconds"])
def test_what_cannot_be_set_is_an_unknown_attribute(name: str) -> None:
    """As on AWS."""
    error = refusal("SetQueueAttributes", Attributes={name: "1"})
    assert (error.code, error.message) == (errors.INVALID_ATTRIBUTE_NAME, f"Unknown Attribute {name}.")


def test_one_attribute_by_its_name() -> None:
    assert describe(VIEW, ["QueueArn", "QueueArn"], CONTEXT) == {
        "QueueArn": "arn:aws:sqs:us-east-1:000000000000:orders"
    }


def test_counters_are_told_only_when_asked_for() -> None:
    uncounted = msgspec.structs.replace(VIEW, counts=None)
    told = set(describe(uncounted, NAMES - COUNTED - {"All"}, CONTEXT))
    plain = {name for name, row in SETTINGS.items() if not row.fifo and not row.only_with}
    assert told == plain - UNSET | READ_ONLY.keys() - COUNTED


def test_unknown_names_are_refused() -> None:
    assert refusal("GetQueueAttributes", AttributeNames=["All", "Foo", "Bar"]).message == "Unknown Attribute Foo."


# RedrivePolicy and RedriveAllowPolicy: what is read, what is refused, what is shown.

DEAD = "arn:aws:sqs:us-east-1:000000000000:dead"
REDRIVE = "RedrivePolicy"
ALLOW = "RedriveAllowPolicy"


def told(changes: Any, name: str) -> str | None:
    view = msgspec.structs.replace(VIEW, settings=VIEW.settings.changed(changes))
    return describe(view, [name], CONTEXT).get(name)


@pytest.mark.parametrize("count", [1, 1_000, "1", "1000", "007"], ids=repr)
def test_a_redrive_policy_is_read_and_shown(count: int | str) -> None:
    changes = read_settings(
        {REDRIVE: json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": count})}, QUEUE, CONTEXT
    )
    assert changes == {"dead_letter_queue": "000000000000/dead", "receives_max": int(count)}
    assert told(changes, REDRIVE) == f'{{"deadLetterTargetArn":"{DEAD}","maxReceiveCount":{int(count)}}}'


def test_an_empty_redrive_policy_removes_it() -> None:
    changes = read_settings({REDRIVE: ""}, QUEUE, CONTEXT)
    assert changes == {"dead_letter_queue": "", "receives_max": 0}
    assert told(changes, REDRIVE) is None


@pytest.mark.parametrize(("text", "reason"), [
    ('{"deadLetterTargetArn": 1, "maxReceiveCount": 1}', "deadLetterTargetArn"),
    (json.dumps({"maxReceiveCount": 1}), "does not contain mandatory attribute: deadLetterTargetArn."),
    (json.dumps({"deadLetterTargetArn": DEAD}), "does not contain mandatory attribute: maxReceiveCount."),
    *((json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": count}),
        f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive.") for count in (0,
        1_001, -1, "0", "1001", "x", "", "1.0", "٣")),
    (json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1.5}), "maxReceiveCount"),
    (json.dumps({"deadLetterTargetArn": DEAD.replace("us-east-1", "eu-west-1"), "maxReceiveCount": 1}),
        "must be the ARN of a queue in us-east-1."),
    (json.dumps({"deadLetterTargetArn": "dead", "maxReceiveCount": 1}), "must be the ARN of a queue in us-east-1."),
    (json.dumps({"deadLetterTargetArn": DEAD.replace("000000000000", "111111111111"), "maxReceiveCount": 1}),
        "Dead-letter target owner should be same as the source."),
    (json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1, "more": 1}), "Only following attributes are"),
])  # fmt: skip
def test_a_redrive_policy_that_breaks_a_rule(text: str, reason: str) -> None:
    with pytest.raises(SqsError) as caught:
        read_settings({REDRIVE: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE
    assert caught.value.message.startswith(f"Value {text[:10]}")
    assert "for parameter RedrivePolicy is invalid. Reason: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["x", "[]", "[" * 100_000, '{"a": "\ud800"}'], ids=["text", "list", "deep", "half"])
def test_a_redrive_policy_that_is_no_map(text: str) -> None:
    with pytest.raises(SqsError, match=r"RedrivePolicy\. Reason: Redrive policy is not a valid JSON map\.$") as caught:
        read_settings({REDRIVE: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE


def test_a_dead_letter_queue_that_the_engine_refuses() -> None:
    policy = json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 3})
    refused = DeadLetterQueueRefused("000000000000/dead", "Dead letter target does not exist.")
    with pytest.raises(ClientError) as caught:
        answer("CreateQueue", refused, QueueName="orders", Attributes={REDRIVE: policy})
    assert caught.value.response["Error"]["Message"] == (
        f"Value {policy} for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist."
    )


@pytest.mark.parametrize(("policy", "changes"), [
    ({"redrivePermission": "allowAll"}, {"redrive_permission": "all", "redrive_sources": ()}),
    ({"redrivePermission": "denyAll"}, {"redrive_permission": "none", "redrive_sources": ()}),
    ({"redrivePermission": "byQueue", "sourceQueueArns": [f"{DEAD}-{number}" for number in range(10)]},
        {"redrive_permission": "listed",
        "redrive_sources": tuple(f"000000000000/dead-{number}" for number in range(10))}),
], ids=["all", "none", "listed"])  # fmt: skip
def test_a_redrive_allow_policy_is_read_and_shown(policy: dict[str, Any], changes: dict[str, Any]) -> None:
    assert read_settings({ALLOW: json.dumps(policy)}, QUEUE, CONTEXT) == changes
    assert json.loads(told(changes, ALLOW) or "") == policy


def test_an_empty_redrive_allow_policy_removes_it() -> None:
    changes = read_settings({ALLOW: ""}, QUEUE, CONTEXT)
    assert changes == {"redrive_permission": "", "redrive_sources": ()}
    assert told(changes, ALLOW) is None


@pytest.mark.parametrize(("text", "reason"), [
    (json.dumps({"redrivePermission": "byQueue"}), "also specify one or more sourceQueueArns values."),
    (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": []}), "also specify one or more sourceQueueArns"),
    (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DEAD] * 11}),
        "The maximum number of source queue ARNs you can specify is 10."),
    (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DEAD, "x"]}), "must be the ARN of a queue"),
    (json.dumps({"redrivePermission": "denyAll", "sourceQueueArns": [DEAD]}),
        "you must set redrivePermission to byQueue."),
])  # fmt: skip
def test_a_redrive_allow_policy_that_breaks_a_rule(text: str, reason: str) -> None:
    with pytest.raises(SqsError) as caught:
        read_settings({ALLOW: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE
    assert "for parameter RedriveAllowPolicy is invalid. Reason: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["{}", json.dumps({"redrivePermission": "all"}), "[" * 100_000, '{"a": "\ud800"}'])
def test_a_redrive_allow_policy_of_no_kind(text: str) -> None:
    with pytest.raises(SqsError, match="one of allowAll, denyAll, byQueue, and with byQueue the list") as caught:
        read_settings({ALLOW: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE

"""RedrivePolicy and RedriveAllowPolicy: what is read, what is refused, what is shown."""

import json
from typing import Any

import msgspec
import pytest
from botocore.exceptions import ClientError

from tests.internals.wire.sqs.asking import CONTEXT, QUEUE, VIEW, answer
from veilmq.core.errors import DeadLetterQueueRefused
from veilmq.wire.sqs import errors
from veilmq.wire.sqs.errors import SqsError
from veilmq.wire.sqs.queue_attributes import describe, read_settings

DEAD = "arn:aws:sqs:us-east-1:000000000000:dead"
REDRIVE = "RedrivePolicy"
ALLOW = "RedriveAllowPolicy"


def told(changes: Any, name: str) -> str | None:
    """Return what a queue with these settings shows."""
    view = msgspec.structs.replace(VIEW, settings=VIEW.settings.changed(changes))
    return describe(view, [name], CONTEXT).get(name)


@pytest.mark.parametrize("count", [1, 1_000, "1", "1000", "007"], ids=repr)
def test_a_redrive_policy_is_read_and_shown(count: int | str) -> None:
    """The number may be a text, and is shown as a number."""
    changes = read_settings(
        {REDRIVE: json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": count})}, QUEUE, CONTEXT
    )
    assert changes == {"dead_letter_queue": "000000000000/dead", "receives_max": int(count)}
    assert told(changes, REDRIVE) == f'{{"deadLetterTargetArn":"{DEAD}","maxReceiveCount":{int(count)}}}'


def test_an_empty_redrive_policy_removes_it() -> None:
    """Both fields, and nothing is shown any more."""
    changes = read_settings({REDRIVE: ""}, QUEUE, CONTEXT)
    assert changes == {"dead_letter_queue": "", "receives_max": 0}
    assert told(changes, REDRIVE) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"deadLetterTargetArn": 1, "maxReceiveCount": 1}', "deadLetterTargetArn"),
        (json.dumps({"maxReceiveCount": 1}), "does not contain mandatory attribute: deadLetterTargetArn."),
        (json.dumps({"deadLetterTargetArn": DEAD}), "does not contain mandatory attribute: maxReceiveCount."),
        *(
            (
                json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": count}),
                f"Invalid value for maxReceiveCount: {count}, valid values are from 1 to 1000 both inclusive.",
            )
            for count in (0, 1_001, -1, "0", "1001", "x", "", "1.0", "٣")
        ),
        (json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1.5}), "maxReceiveCount"),
        (
            json.dumps({"deadLetterTargetArn": DEAD.replace("us-east-1", "eu-west-1"), "maxReceiveCount": 1}),
            "must be the ARN of a queue in us-east-1.",
        ),
        (json.dumps({"deadLetterTargetArn": "dead", "maxReceiveCount": 1}), "must be the ARN of a queue in us-east-1."),
        (
            json.dumps({"deadLetterTargetArn": DEAD.replace("000000000000", "111111111111"), "maxReceiveCount": 1}),
            "Dead-letter target owner should be same as the source.",
        ),
        (json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 1, "more": 1}), "Only following attributes are"),
    ],
)
def test_a_redrive_policy_that_breaks_a_rule(text: str, reason: str) -> None:
    """Is refused with the policy and the reason."""
    with pytest.raises(SqsError) as caught:
        read_settings({REDRIVE: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE
    assert caught.value.message.startswith(f"Value {text[:10]}")
    assert "for parameter RedrivePolicy is invalid. Reason: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["x", "[]", "[" * 100_000, '{"a": "\ud800"}'], ids=["text", "list", "deep", "half"])
def test_a_redrive_policy_that_is_no_map(text: str) -> None:
    """Has another error, and is not repeated."""
    with pytest.raises(SqsError, match=r"RedrivePolicy\. Reason: Redrive policy is not a valid JSON map\.$") as caught:
        read_settings({REDRIVE: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE


def test_a_dead_letter_queue_that_the_engine_refuses() -> None:
    """Is an invalid policy, with the policy and the engine's reason."""
    policy = json.dumps({"deadLetterTargetArn": DEAD, "maxReceiveCount": 3})
    refused = DeadLetterQueueRefused("000000000000/dead", "Dead letter target does not exist.")
    with pytest.raises(ClientError) as caught:
        answer("CreateQueue", refused, QueueName="orders", Attributes={REDRIVE: policy})
    assert caught.value.response["Error"]["Message"] == (
        f"Value {policy} for parameter RedrivePolicy is invalid. Reason: Dead letter target does not exist."
    )


@pytest.mark.parametrize(
    ("policy", "changes"),
    [
        ({"redrivePermission": "allowAll"}, {"redrive_permission": "all", "redrive_sources": ()}),
        ({"redrivePermission": "denyAll"}, {"redrive_permission": "none", "redrive_sources": ()}),
        (
            {"redrivePermission": "byQueue", "sourceQueueArns": [f"{DEAD}-{number}" for number in range(10)]},
            {
                "redrive_permission": "listed",
                "redrive_sources": tuple(f"000000000000/dead-{number}" for number in range(10)),
            },
        ),
    ],
    ids=["all", "none", "listed"],
)
def test_a_redrive_allow_policy_is_read_and_shown(policy: dict[str, Any], changes: dict[str, Any]) -> None:
    """Up to ten sources, as they were given."""
    assert read_settings({ALLOW: json.dumps(policy)}, QUEUE, CONTEXT) == changes
    assert json.loads(told(changes, ALLOW) or "") == policy


def test_an_empty_redrive_allow_policy_removes_it() -> None:
    """And nothing is shown any more."""
    changes = read_settings({ALLOW: ""}, QUEUE, CONTEXT)
    assert changes == {"redrive_permission": "", "redrive_sources": ()}
    assert told(changes, ALLOW) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (json.dumps({"redrivePermission": "byQueue"}), "also specify one or more sourceQueueArns values."),
        (
            json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": []}),
            "also specify one or more sourceQueueArns",
        ),
        (
            json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DEAD] * 11}),
            "The maximum number of source queue ARNs you can specify is 10.",
        ),
        (json.dumps({"redrivePermission": "byQueue", "sourceQueueArns": [DEAD, "x"]}), "must be the ARN of a queue"),
        (
            json.dumps({"redrivePermission": "denyAll", "sourceQueueArns": [DEAD]}),
            "you must set redrivePermission to byQueue.",
        ),
    ],
)
def test_a_redrive_allow_policy_that_breaks_a_rule(text: str, reason: str) -> None:
    """Is refused with the reason."""
    with pytest.raises(SqsError) as caught:
        read_settings({ALLOW: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_PARAMETER_VALUE
    assert "for parameter RedriveAllowPolicy is invalid. Reason: " in caught.value.message
    assert reason in caught.value.message


@pytest.mark.parametrize("text", ["{}", json.dumps({"redrivePermission": "all"}), "[" * 100_000, '{"a": "\ud800"}'])
def test_a_redrive_allow_policy_of_no_kind(text: str) -> None:
    """Is refused with those that there are."""
    with pytest.raises(SqsError, match="one of allowAll, denyAll, byQueue, and with byQueue the list") as caught:
        read_settings({ALLOW: text}, QUEUE, CONTEXT)
    assert caught.value.code is errors.INVALID_ATTRIBUTE_VALUE

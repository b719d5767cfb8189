"""What a policy says, in words."""

import json
from typing import Any

import pytest

from veilmq.console.policy_words import in_words


def words(**element: Any) -> Any:
    """Return the words of a statement with these elements beside those that it needs."""
    whole = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", **element}
    told = in_words(json.dumps({"Statement": {name: value for name, value in whole.items() if value is not None}}))
    assert told is not None
    return told[0]


@pytest.mark.parametrize(
    ("elements", "who"),
    [
        ({"Principal": "*"}, "everybody"),
        ({"Principal": {"AWS": "*"}}, "everybody"),
        ({"Principal": {"AWS": ["111111111111", "222222222222"]}}, "111111111111, 222222222222"),
        ({"Principal": {"Service": "s3.amazonaws.com"}}, "Service s3.amazonaws.com"),
        ({"Principal": None, "NotPrincipal": {"AWS": "111111111111"}}, "all but 111111111111"),
    ],
)
def test_who(elements: dict[str, Any], who: str) -> None:
    assert words(**elements).who == who


def test_what_and_where() -> None:
    told = words(Action=None, NotAction=["sqs:DeleteQueue", "sqs:PurgeQueue"], Resource="arn:aws:sqs:*:*:o*")
    assert (told.what, told.where) == ("all but sqs:DeleteQueue, sqs:PurgeQueue", "arn:aws:sqs:*:*:o*")
    assert words(Action="*").what == "everything"


@pytest.mark.parametrize(
    ("condition", "when"),
    [
        ({"IpAddress": {"aws:SourceIp": ["10.0.0.0/8", "::1"]}}, ["aws:SourceIp is in 10.0.0.0/8 or ::1"]),
        ({"Bool": {"aws:SecureTransport": True}}, ["aws:SecureTransport is true"]),
        ({"Null": {"aws:SourceArn": "true"}}, ["aws:SourceArn is absent"]),
        ({"Null": {"aws:SourceArn": "false"}}, ["aws:SourceArn is there"]),
        ({"StringLikeIfExists": {"aws:UserAgent": "curl*"}}, ["aws:UserAgent is like curl*, if it is there"]),
        ({"ForAnyValue:StringEquals": {"aws:username": "x"}}, ["any value of aws:username is x"]),
        (
            {"DateLessThan": {"aws:CurrentTime": "2027-01-01T00:00:00Z"}, "NumericLessThan": {"aws:EpochTime": 5}},
            ["aws:CurrentTime is before 2027-01-01T00:00:00Z", "aws:EpochTime is less than 5"],
        ),
    ],
)
def test_when(condition: dict[str, Any], when: list[str]) -> None:
    assert words(Condition=condition).when == when


@pytest.mark.parametrize("policy", ["", "x", "[]", '{"Statement": []}', '{"Statement": [1]}', "[" * 5_000])
def test_what_nobody_can_read_has_no_words(policy: str) -> None:
    assert in_words(policy) is None

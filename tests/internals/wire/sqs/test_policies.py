"""Queue policies: verdicts on requests, and invalid documents."""

import json
from typing import Any, NamedTuple

import pytest

from tests.clients.sqs_client import service_model
from veilmq.wire.exchange import Caller, caller_named
from veilmq.wire.sqs.policies import (
    GRANTABLE,
    OWNER_ONLY,
    Policy,
    PolicyError,
    PolicyRequest,
    Verdict,
    actions_of,
    permits,
    read_policy,
)

OWNER, FRIEND, STRANGER = "111111111111", "222222222222", "333333333333"
ARN = f"arn:aws:sqs:us-east-1:{OWNER}:orders"
BOB = caller_named(FRIEND, "bob")
CAROL = caller_named(OWNER, "carol")
ALLOW, DENY, NO_MATCH = Verdict.ALLOW, Verdict.DENY, Verdict.NO_MATCH


def request_of(
    caller: Caller,
    action: str = "SendMessage",
    *,
    address: str | None = "192.0.2.7",
    agent: str | None = "Boto3/1.43",
    secure: bool = False,
    now_s: float = 1_700_000_000,
) -> PolicyRequest:
    return PolicyRequest(
        caller=caller,
        owner=OWNER,
        action=actions_of(action)[0],
        secure=secure,
        now_s=now_s,
        region="us-east-1",
        client=lambda: (address, agent),
    )


def statement(**elements: Any) -> dict[str, Any]:
    """Return a statement that allows all principals to send, changed by ``elements`` (``None`` removes one)."""
    changed = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage", "Resource": ARN} | elements
    return {name: value for name, value in changed.items() if value is not None}


def policy(*statements: dict[str, Any], **top: Any) -> Policy:
    return read_policy(json.dumps({"Version": "2012-10-17", "Statement": list(statements)} | top), ARN)


class Row(NamedTuple):
    """An allowing statement, a request, and the verdict."""

    elements: dict[str, Any]
    request: PolicyRequest
    verdict: Verdict = ALLOW


def when(operator: str, key: str, values: Any) -> dict[str, Any]:
    return {"Condition": {operator: {key: values}}}


FROM_BOB = request_of(BOB)
PRINCIPALS = [
    Row({}, FROM_BOB), Row({"Principal": {"AWS": "*"}}, FROM_BOB), Row({"Principal": {"AWS": FRIEND}}, FROM_BOB),
    Row({"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:root"}}, FROM_BOB),
    Row({"Principal": {"AWS": f"arn:aws-cn:iam::{FRIEND}:root"}}, FROM_BOB),
    Row({"Principal": {"AWS": [STRANGER, FRIEND]}}, FROM_BOB),
    Row({"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:user/bob"}}, FROM_BOB),
    Row({"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:user/bobby"}}, FROM_BOB, NO_MATCH),
    Row({"Principal": {"AWS": f"arn:aws:iam::{FRIEND}:user/bob"}}, request_of(caller_named(FRIEND)), NO_MATCH),
    Row({"Principal": {"AWS": STRANGER}}, FROM_BOB, NO_MATCH),
    Row({"Principal": {"Service": "sns.amazonaws.com"}}, FROM_BOB, NO_MATCH),
    Row({"Principal": {"Service": "sns.amazonaws.com", "AWS": FRIEND}}, FROM_BOB),
    Row({"Principal": None, "NotPrincipal": {"AWS": STRANGER}}, FROM_BOB),
    Row({"Principal": None, "NotPrincipal": {"AWS": FRIEND}}, request_of(caller_named(FRIEND)), NO_MATCH),
    Row({"Principal": None, "NotPrincipal": "*"}, FROM_BOB, NO_MATCH),
]  # fmt: skip
ACTIONS = [
    Row({"Action": "*"}, FROM_BOB), Row({"Action": "sqs:*"}, FROM_BOB), Row({"Action": "SQS:SendMessage"}, FROM_BOB),
    Row({"Action": "sqs:sendmessage"}, FROM_BOB), Row({"Action": "sqs:Send*"}, FROM_BOB),
    Row({"Action": "sqs:*Message"}, request_of(BOB, "ReceiveMessage")),
    Row({"Action": "sqs:?endMessage"}, FROM_BOB),
    Row({"Action": ["sqs:ReceiveMessage", "sqs:SendMessage"]}, FROM_BOB),
    Row({"Action": "sqs:ReceiveMessage"}, FROM_BOB, NO_MATCH), Row({}, request_of(BOB, "SendMessageBatch")),
    Row({"Action": "sqs:DeleteMessage"}, request_of(BOB, "DeleteMessageBatch")),
    Row({"Action": "sqs:ChangeMessageVisibility"}, request_of(BOB, "ChangeMessageVisibilityBatch")),
    Row({"Action": None, "NotAction": "sqs:ReceiveMessage"}, FROM_BOB),
    Row({"Action": None, "NotAction": "sqs:Send*"}, FROM_BOB, NO_MATCH),
]  # fmt: skip
RESOURCES = [
    Row({"Resource": "*"}, FROM_BOB), Row({"Resource": None}, FROM_BOB),
    Row({"Resource": f"arn:aws:sqs:*:{OWNER}:ord*"}, FROM_BOB),
    Row({"Resource": f"arn:aws:sqs:us-east-?:{OWNER}:orders"}, FROM_BOB),
    Row({"Resource": [f"{ARN}2", ARN]}, FROM_BOB), Row({"Resource": f"{ARN}2"}, FROM_BOB, NO_MATCH),
    Row({"Resource": ARN.upper()}, FROM_BOB, NO_MATCH),
    Row({"Resource": ARN.replace("orders", "[o]rders")}, FROM_BOB, NO_MATCH),
    Row({"Resource": None, "NotResource": f"{ARN}2"}, FROM_BOB),
    Row({"Resource": None, "NotResource": "*"}, FROM_BOB, NO_MATCH),
]  # fmt: skip
NOW = "2023-11-14T22:13:20Z"  # is 1,700,000,000
STRINGS = [
    Row(when("StringEquals", "aws:username", "bob"), FROM_BOB),
    Row(when("StringEquals", "AWS:UserName", "bob"), FROM_BOB),
    Row(when("stringequals", "aws:username", ["x", "bob"]), FROM_BOB),
    Row(when("StringEquals", "aws:username", "Bob"), FROM_BOB, NO_MATCH),
    Row(when("StringEquals", "aws:username", "bob"), request_of(caller_named(FRIEND)), NO_MATCH),
    Row(when("StringEqualsIgnoreCase", "aws:username", "BOB"), FROM_BOB),
    Row(when("StringNotEquals", "aws:username", "alice"), FROM_BOB),
    Row(when("StringNotEquals", "aws:username", ["alice", "bob"]), FROM_BOB, NO_MATCH),
    Row(when("StringNotEquals", "aws:username", "bob"), request_of(caller_named(FRIEND))),
    Row(when("StringNotEqualsIgnoreCase", "aws:username", "BOB"), FROM_BOB, NO_MATCH),
    Row(when("StringLike", "aws:username", "b?b"), FROM_BOB), Row(when("StringLike", "aws:username", "*o*"), FROM_BOB),
    Row(when("StringLike", "aws:username", "b"), FROM_BOB, NO_MATCH),
    Row(when("StringNotLike", "aws:username", "b*"), FROM_BOB, NO_MATCH),
    Row(when("StringEquals", "aws:PrincipalAccount", FRIEND), FROM_BOB),
    Row(when("StringEquals", "aws:PrincipalType", "User"), FROM_BOB),
    Row(when("StringEquals", "aws:PrincipalType", "Account"), request_of(caller_named(FRIEND))),
    Row(when("StringEquals", "aws:userid", BOB.sender_id), FROM_BOB),
    Row(when("StringEquals", "aws:RequestedRegion", "us-east-1"), FROM_BOB),
    Row(when("StringEquals", "aws:ResourceAccount", OWNER), FROM_BOB),
    Row(when("StringLike", "aws:UserAgent", "Boto3/*"), FROM_BOB),
    Row(when("StringLike", "aws:UserAgent", "Boto3/*"), request_of(BOB, agent=None), NO_MATCH),
    Row(when("BinaryEquals", "aws:username", "bob"), FROM_BOB),
]  # fmt: skip
OTHERS = [
    Row(when("ArnEquals", "aws:PrincipalArn", BOB.arn), FROM_BOB),
    Row(when("ArnLike", "aws:PrincipalArn", f"arn:aws:iam::{FRIEND}:user/*"), FROM_BOB),
    Row(when("ArnLike", "aws:PrincipalArn", "arn:*:bob"), FROM_BOB, NO_MATCH),
    Row(when("ArnLike", "aws:PrincipalArn", "*"), FROM_BOB, NO_MATCH),
    Row(when("ArnNotLike", "aws:PrincipalArn", f"arn:aws:iam::{FRIEND}:*"), FROM_BOB, NO_MATCH),
    Row(when("ArnNotEquals", "aws:PrincipalArn", CAROL.arn), FROM_BOB),
    Row(when("ArnLike", "aws:SourceArn", "arn:aws:sns:*:*:*"), FROM_BOB, NO_MATCH),
    Row(when("StringEquals", "aws:SourceAccount", FRIEND), FROM_BOB, NO_MATCH),
    Row(when("Bool", "aws:SecureTransport", "true"), FROM_BOB, NO_MATCH),
    Row(when("Bool", "aws:SecureTransport", True), request_of(BOB, secure=True)),
    Row(when("Bool", "aws:SecureTransport", "False"), FROM_BOB),
    Row(when("StringEquals", "aws:SecureTransport", False), FROM_BOB),
    Row(when("Bool", "aws:PrincipalIsAWSService", "false"), FROM_BOB),
    Row(when("Bool", "aws:ViaAWSService", "true"), FROM_BOB, NO_MATCH),
    Row(when("IpAddress", "aws:SourceIp", "192.0.2.0/24"), FROM_BOB),
    Row(when("IpAddress", "aws:SourceIp", ["10.0.0.0/8", "192.0.2.7"]), FROM_BOB),
    Row(when("IpAddress", "aws:SourceIp", "192.0.3.0/24"), FROM_BOB, NO_MATCH),
    Row(when("IpAddress", "aws:SourceIp", "2001:db8::/32"), request_of(BOB, address="2001:db8::1")),
    Row(when("IpAddress", "aws:SourceIp", "192.0.2.0/24"), request_of(BOB, address=None), NO_MATCH),
    Row(when("NotIpAddress", "aws:SourceIp", "192.0.2.0/24"), FROM_BOB, NO_MATCH),
    Row(when("NotIpAddress", "aws:SourceIp", "10.0.0.0/8"), FROM_BOB),
    Row(when("DateLessThan", "aws:CurrentTime", "2023-11-14T22:13:21Z"), FROM_BOB),
    Row(when("DateLessThan", "aws:CurrentTime", NOW), FROM_BOB, NO_MATCH),
    Row(when("DateLessThanEquals", "aws:CurrentTime", NOW), FROM_BOB),
    Row(when("DateGreaterThan", "aws:CurrentTime", NOW), FROM_BOB, NO_MATCH),
    Row(when("DateGreaterThanEquals", "aws:CurrentTime", NOW), FROM_BOB),
    Row(when("DateEquals", "aws:CurrentTime", "2023-11-14T22:13:20"), FROM_BOB),
    Row(when("DateNotEquals", "aws:CurrentTime", NOW), FROM_BOB, NO_MATCH),
    Row(when("DateEquals", "aws:EpochTime", NOW), FROM_BOB),
    Row(when("DateGreaterThan", "aws:EpochTime", 1_699_999_999), FROM_BOB),
    Row(when("NumericEquals", "aws:EpochTime", 1_700_000_000), FROM_BOB),
    Row(when("NumericNotEquals", "aws:EpochTime", "1700000000"), FROM_BOB, NO_MATCH),
    Row(when("NumericLessThan", "aws:EpochTime", "1700000000.5"), FROM_BOB),
    Row(when("NumericGreaterThan", "aws:EpochTime", "1700000000"), FROM_BOB, NO_MATCH),
    Row(when("NumericLessThanEquals", "aws:EpochTime", "1700000000"), FROM_BOB),
    Row(when("NumericGreaterThanEquals", "aws:EpochTime", "1700000001"), FROM_BOB, NO_MATCH),
    Row(when("NumericEquals", "aws:username", "1"), FROM_BOB, NO_MATCH),
    Row(when("Null", "aws:username", "false"), FROM_BOB),
    Row(when("Null", "aws:username", "true"), FROM_BOB, NO_MATCH),
    Row(when("Null", "aws:SourceArn", True), FROM_BOB),
    Row(when("Null", "aws:SourceArn", False), FROM_BOB, NO_MATCH),
    Row(when("StringEqualsIfExists", "aws:SourceAccount", FRIEND), FROM_BOB),
    Row(when("StringEqualsIfExists", "aws:username", "alice"), FROM_BOB, NO_MATCH),
    Row(when("IpAddressIfExists", "aws:SourceIp", "10.0.0.0/8"), request_of(BOB, address=None)),
    Row(when("ForAllValues:StringEquals", "aws:TagKeys", "x"), FROM_BOB),
    Row(when("ForAllValues:StringLike", "aws:username", "b*"), FROM_BOB),
    Row(when("ForAllValues:StringLike", "aws:username", "c*"), FROM_BOB, NO_MATCH),
    Row(when("ForAnyValue:StringEquals", "aws:TagKeys", "x"), FROM_BOB, NO_MATCH),
    Row(when("ForAnyValue:StringEquals", "aws:username", ["x", "bob"]), FROM_BOB),
    Row(when("ForAnyValue:StringNotEquals", "aws:username", "alice"), FROM_BOB),
    Row(when("ForAnyValue:StringNotEquals", "aws:TagKeys", "x"), FROM_BOB, NO_MATCH),
    Row(when("ForAnyValue:StringEqualsIfExists", "aws:TagKeys", "x"), FROM_BOB, NO_MATCH),
    Row(when("StringEquals", "nobody:knows", "x"), FROM_BOB, NO_MATCH),
    Row({"Condition": {"Bool": {"aws:SecureTransport": False}, "StringLike": {"aws:userid": "c"}}}, FROM_BOB, NO_MATCH),
    Row({"Condition": {"StringLike": {"aws:username": "b*", "aws:UserAgent": "Java*"}}}, FROM_BOB, NO_MATCH),
    Row({"Condition": {"StringLike": {"aws:username": "b*", "aws:UserAgent": "Boto*"}}}, FROM_BOB),
    Row({"Condition": {}}, FROM_BOB),
]  # fmt: skip
ROWS = [*PRINCIPALS, *ACTIONS, *RESOURCES, *STRINGS, *OTHERS]


@pytest.mark.parametrize("row", [pytest.param(row, id=str(number)) for number, row in enumerate(ROWS)])
def test_statements_match_requests(row: Row) -> None:
    assert policy(statement(**row.elements)).verdict(row.request) is row.verdict
    denying = policy(statement(**row.elements, Effect="Deny"))
    assert denying.verdict(row.request) is (DENY if row.verdict is ALLOW else NO_MATCH)


@pytest.mark.parametrize(("caller", "verdict"), [
    (BOB, NO_MATCH), (caller_named(FRIEND), NO_MATCH), (caller_named(FRIEND, "eve"), DENY), (CAROL, DENY),
], ids=["named-user", "named-account", "other-user", "other-account"])  # fmt: skip
@pytest.mark.parametrize("account", [FRIEND, f"arn:aws:iam::{FRIEND}:root"])
def test_a_deny_for_all_but_a_user_and_its_account_denies_the_other_users(
    account: str, caller: Caller, verdict: Verdict
) -> None:
    """The example of the IAM User Guide, "AWS JSON policy elements: NotPrincipal"."""
    exempt = {"AWS": [BOB.arn, account]}
    denying = policy(statement(Effect="Deny", Principal=None, NotPrincipal=exempt))
    assert denying.verdict(request_of(caller)) is verdict
    allowing = policy(statement(Principal=None, NotPrincipal=exempt))
    assert allowing.verdict(request_of(caller)) is (ALLOW if caller is CAROL else NO_MATCH)


def test_varies_if_a_condition_may_change_between_requests() -> None:
    changing = policy(statement(**when("DateLessThan", "aws:CurrentTime", NOW)))
    assert changing.varies("sendmessage")
    assert not changing.varies("receivemessage")
    assert policy(statement(**when("StringLike", "aws:UserAgent", "*"))).varies("sendmessage")
    assert changing.verdict(request_of(BOB, now_s=1_699_999_999)) is ALLOW
    assert changing.verdict(request_of(BOB)) is NO_MATCH
    by_name = policy(statement(**when("StringEquals", "aws:username", "bob")))
    by_address = policy(statement(**when("IpAddress", "aws:SourceIp", "10.0.0.0/8")))
    assert not by_name.varies("sendmessage")
    assert not by_address.varies("sendmessage")
    assert (by_name.uses_address, by_address.uses_address) == (False, True)


def test_only_the_owner_is_permitted_without_a_policy() -> None:
    for action in (*GRANTABLE, *OWNER_ONLY):
        assert permits(None, request_of(CAROL, action))
        assert permits(None, request_of(caller_named(OWNER), action))
        assert not permits(None, request_of(BOB, action))


def test_only_grantable_actions_can_be_permitted_to_others() -> None:
    """The list of AWS; a policy cannot permit other actions."""
    everything = policy(statement(Action="sqs:*"))
    assert [name for name in (*GRANTABLE, *OWNER_ONLY) if permits(everything, request_of(BOB, name))] == list(GRANTABLE)


def test_the_owner_cannot_be_locked_out() -> None:
    nothing = policy(statement(Effect="Deny", Action="sqs:*"))
    assert not any(permits(nothing, request_of(CAROL, name)) for name in (*GRANTABLE, *OWNER_ONLY))
    left = [name for name in (*GRANTABLE, *OWNER_ONLY) if permits(nothing, request_of(caller_named(OWNER), name))]
    assert left == ["GetQueueAttributes", "AddPermission", "RemovePermission", "SetQueueAttributes"]


def test_every_action_is_grantable_or_owner_only() -> None:
    names = {name.removesuffix("Batch") for name in service_model().operation_names}
    assert names == {*GRANTABLE, *OWNER_ONLY}


@pytest.mark.parametrize(("text", "words"), [
    ("", "not JSON"), ("[]", "a JSON object"), ("[" * 5_000, "not JSON"), ('{"Statement": []}', "Statement must be"),
    ("{}", "Statement must be an object or a list of objects"), ('{"Statement": "x"}', "Statement must be"),
    ('{"Version": "2020", "Statement": {}}', "Version must be"), ('{"Id": 1, "Statement": {}}', "Id must be"),
    ('{"Foo": 1, "Statement": {}}', "no element Foo"), (" " * 8_193, "8192 bytes"),
    (json.dumps({"Statement": [{}] * 21}), "20 statements"),
    (json.dumps({"Statement": [statement(Sid="a"), statement(Sid="a")]}), "same Sid"),
    (json.dumps({"Statement": statement(Sid=1)}), "Sid must be"),
], ids=range(13))  # fmt: skip
def test_invalid_documents_are_refused(text: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        read_policy(text, ARN)


@pytest.mark.parametrize(("elements", "words"), [
    ({"Effect": "allow"}, "Effect"), ({"Foo": 1}, "no element Foo"), ({"Principal": None}, "one of Principal"),
    ({"NotPrincipal": "*"}, "one of Principal"), ({"Action": None}, "one of Action"),
    ({"NotAction": "*"}, "one of Action"), ({"NotResource": "*"}, "one of Resource"),
    ({"Principal": "x"}, "Principal must be"), ({"Principal": {}}, "Principal must be"),
    ({"Principal": {"Foo": "x"}}, "Principal must be"), ({"Principal": {"AWS": []}}, "Principal AWS"),
    ({"Principal": {"AWS": "12345"}}, "12345 is not a principal"),
    ({"Principal": {"AWS": f"arn:aws:iam::{OWNER}:user/"}}, "is not a principal"),
    ({"Principal": {"AWS": f"arn:aws:iam::{OWNER}:user/*"}}, "is not a principal"),
    ({"Principal": {"AWS": [OWNER] * 51}}, "50 principals"), ({"Action": []}, "Action must be"),
    ({"Action": 5}, "Action must be"), ({"Action": "SendMessage"}, "not an action of SQS"),
    ({"Action": "sns:Publish"}, "not an action of SQS"), ({"Action": "sqs:Foo"}, "no action sqs:Foo"),
    ({"Action": "sqs:SendMessageBatch"}, "sqs:sendmessage covers it"),
    ({"Action": ["sqs:*"] * 8}, "7 actions"), ({"Resource": []}, "Resource must be"),
    ({"Resource": "${aws:username}"}, "variables"), ({"Condition": []}, "Condition must be"),
    ({"Condition": {"StringEquals": []}}, "StringEquals must be"),
    (when("StringEquals", "a", []), "StringEquals of a"), (when("StringEquals", "a", {}), "StringEquals of a"),
    (when("StringSimilar", "a", "b"), "no condition operator StringSimilar"),
    (when("NumericEquals", "a", "b"), "'b' is no number"), (when("DateEquals", "a", "b"), "'b' is no date"),
    (when("IpAddress", "a", "b"), "'b' is no address range"), (when("Bool", "a", "b"), "neither true nor false"),
    ({"Condition": {"StringEquals": {str(n): "x" for n in range(11)}}}, "10 conditions"),
], ids=range(34))  # fmt: skip
def test_invalid_statements_are_refused(elements: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        policy(statement() | {"Sid": "other"}, statement(**elements))


def test_variables_are_plain_text_in_the_older_version() -> None:
    assert policy(statement(Resource="${aws:username}"), Version="2008-10-17").verdict(FROM_BOB) is NO_MATCH


def test_patterns_match_in_linear_time() -> None:
    """A backtracking matcher would take hours for this pattern."""
    evil = policy(statement(**when("StringLike", "aws:UserAgent", "*a" * 60 + "b")))
    assert evil.verdict(request_of(BOB, agent="a" * 20_000)) is NO_MATCH

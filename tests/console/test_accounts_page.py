"""Accounts and policies in the console: keys without secrets, and policies in words, as far as one may see them."""

import json
from collections.abc import Iterator

import pytest

from tests.console.visitor import Visitor
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, TEXT, TOKEN, client, written
from veilmq.testing import RunningServer

POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Sid": "friends",
            "Effect": "Allow",
            "Principal": {"AWS": FRIEND},
            "Action": ["sqs:SendMessage", "sqs:GetQueueAttributes"],
            "Condition": {"IpAddress": {"aws:SourceIp": ["127.0.0.0/8"]}},
        },
        {"Effect": "Deny", "Principal": {"AWS": f"arn:aws:iam::{OWNER}:user/carol"}, "Action": "sqs:PurgeQueue"},
    ],
}
ENDED = """
[[accounts.keys]]
id = "AKIDENDED"
secret = "ended"
user = "dave"
expires = 2001-01-01T00:00:00Z
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    path = written(tmp_path_factory.mktemp("keys") / "credentials.toml", TEXT + ENDED)
    with RunningServer(credentials=path, account=OWNER, region=REGION) as running:
        sqs = client(running)
        sqs.create_queue(QueueName="orders", Attributes={"Policy": json.dumps(POLICY)})
        sqs.create_queue(QueueName="plain")
        yield running


def read(server: RunningServer, key: str, query: str = "") -> str:
    """Return what the holder of ``key`` reads."""
    with Visitor(server, key=key) as visitor:
        seen = visitor.get(f"/console/accounts{query}")
    assert seen.status == 200
    assert "<b>" not in seen.html
    return seen.text


def test_an_account_sees_its_own_keys_and_no_secret(server: RunningServer) -> None:
    seen = read(server, "AKIDOWNER")
    assert "AKIDOWNER the account itself (root) for programs and people never" in seen
    assert "AKIDCAROL carol for programs and people never" in seen
    assert "AKIDFRIEND" not in seen
    for secret in (*SECRETS.values(), TOKEN):
        assert secret not in seen


def test_keys_that_end_say_when(server: RunningServer) -> None:
    seen = read(server, "AKIDFRIEND")
    assert "ASIDBOB bob temporary, with a session token 2100-01-01T00:00:00Z" in seen
    assert "AKIDENDED dave for programs and people has expired , 2001-01-01T00:00:00Z" in seen


def test_policies_are_told_in_words(server: RunningServer) -> None:
    seen = read(server, "AKIDOWNER")
    allowed = "sqs:SendMessage, sqs:GetQueueAttributes, if aws:SourceIp is in 127.0.0.0/8"
    assert f"friends: Allowed to {FRIEND}: {allowed}" in seen
    assert f"Denied to arn:aws:iam::{OWNER}:user/carol: sqs:PurgeQueue" in seen
    assert "plain No policy: its account may do everything, others nothing. You may do everything here." in seen


def test_what_one_may_do_oneself_is_told(server: RunningServer) -> None:
    assert "You may not: PurgeQueue." in read(server, "AKIDCAROL", "?search=orders")
    assert "You may: GetQueueAttributes, SendMessage." in read(server, "AKIDFRIEND", f"?search={OWNER}/orders")


def test_what_one_may_not_see_is_not_shown(server: RunningServer) -> None:
    assert "There is no queue" in read(server, "AKIDFRIEND")
    for queue in (f"{OWNER}/plain", f"{OWNER}/nothing", "<b>/x"):
        seen = read(server, "AKIDFRIEND", f"?search={queue}")
        assert "You may not see its policy, or there is no such queue." in seen


def test_where_nobody_is_asked_there_are_no_keys() -> None:
    with RunningServer() as running, Visitor(running) as visitor:
        seen = visitor.get("/console/accounts").text
    assert "Nobody is asked who he is" in seen
    assert "There is no queue yet" in seen

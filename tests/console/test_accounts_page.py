"""The pages of accounts, policies and the audit log: no secrets, and only what the user may see."""

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.console.visitor import Visitor, form_of
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
    """Return the text of the page for the user of ``key``."""
    with Visitor(server, key=key) as visitor:
        seen = visitor.get(f"/console/accounts{query}")
    assert seen.status == 200
    assert "<b>" not in seen.html
    return seen.text


def test_an_account_sees_only_its_own_keys_and_no_secrets(server: RunningServer) -> None:
    seen = read(server, "AKIDOWNER")
    assert "AKIDOWNER the account itself (root) for programs and people never" in seen
    assert "AKIDCAROL carol for programs and people never" in seen
    assert "AKIDFRIEND" not in seen
    for secret in (*SECRETS.values(), TOKEN):
        assert secret not in seen
    seen = read(server, "AKIDFRIEND")
    assert "ASIDBOB bob temporary, with a session token 2100-01-01T00:00:00Z" in seen
    assert "AKIDENDED dave for programs and people expired , 2001-01-01T00:00:00Z" in seen


def test_policies_are_described_in_words(server: RunningServer) -> None:
    seen = read(server, "AKIDOWNER")
    allowed = "sqs:SendMessage, sqs:GetQueueAttributes, if aws:SourceIp is in 127.0.0.0/8"
    assert f"friends: Allowed to {FRIEND}: {allowed}" in seen
    assert f"Denied to arn:aws:iam::{OWNER}:user/carol: sqs:PurgeQueue" in seen
    assert "plain No policy: its account may do everything, others nothing. You may do everything here." in seen
    assert "You may not: PurgeQueue." in read(server, "AKIDCAROL", "?search=orders")
    assert "You may: GetQueueAttributes, SendMessage." in read(server, "AKIDFRIEND", f"?search={OWNER}/orders")


def test_the_page_hides_policies_of_other_accounts(server: RunningServer) -> None:
    assert "No queues yet" in read(server, "AKIDFRIEND")
    for queue in (f"{OWNER}/plain", f"{OWNER}/nothing", "<b>/x"):
        seen = read(server, "AKIDFRIEND", f"?search={queue}")
        assert "You may not see its policy, or the queue does not exist." in seen


def test_without_credentials_the_page_has_no_keys() -> None:
    with RunningServer() as running, Visitor(running) as visitor:
        seen = visitor.get("/console/accounts").text
    assert "Authentication is off" in seen
    assert "No queues yet" in seen


# The audit log.


QUEUE = f"/console/queues/{OWNER}/orders"


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("audit")
    path = written(folder / "credentials.toml")
    with RunningServer(data=folder / "data", credentials=path, account=OWNER, region="eu-west-1") as running:
        client(running).create_queue(QueueName="orders")
        with Visitor(running, key="AKIDCAROL") as carol:
            form = form_of(carol.get(f"{QUEUE}/edit").html, f"{QUEUE}/edit")
            assert carol.send(f"{QUEUE}/edit", {**form, "visibility_timeout_s": "45"}).status == 200
        with Visitor(running, key="AKIDFRIEND") as friend:
            form = form_of(friend.get("/console/queues/new").html, "/console/queues/new")
            assert friend.send("/console/queues/new", {**form, "name": "elsewhere"}).status == 200
        yield running


def audit(audited: RunningServer, key: str, query: str = "") -> str:
    """Return the text of the audit log for the user of ``key``."""
    with Visitor(audited, key=key) as visitor:
        seen = visitor.get(f"/console/audit{query}")
    assert seen.status == 200
    assert "<script>" not in seen.html
    return seen.text


def called(audited: RunningServer, path: str, **fields: Any) -> int:
    """Send a request to the admin API as the owner; return the status."""
    headers = urllib3.make_headers(basic_auth=f"AKIDOWNER:{SECRETS['AKIDOWNER']}")
    return urllib3.request("POST", f"{audited.admin_endpoint}/api/{path}", json=fields, headers=headers).status


def test_the_log_has_changes_with_their_user_and_values(audited: RunningServer) -> None:
    """The server's account sees all changes, others only those of their account."""
    seen = audit(audited, "AKIDOWNER")
    for words in (f"arn:aws:iam::{OWNER}:user/carol 127.0.0.1", "visibility_timeout_s: 30 → 45", "done", "elsewhere"):
        assert words in seen
    carol = audit(audited, "AKIDCAROL")
    assert "visibility_timeout_s" in carol
    assert "elsewhere" not in carol
    friend = audit(audited, "AKIDFRIEND")
    assert "elsewhere" in friend
    assert "carol 127" not in friend


def test_the_log_hides_settings_that_the_user_may_not_see(audited: RunningServer) -> None:
    deny = {"Effect": "Deny", "Principal": {"AWS": f"arn:aws:iam::{OWNER}:user/carol"}, "Action": "sqs:GetQueue*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    client(audited).create_queue(QueueName="private", Attributes={"Policy": policy})
    assert called(audited, "queues/-/private/set", visibility_timeout_s=4321) == 200
    assert "4321" in audit(audited, "AKIDOWNER")
    carol = audit(audited, "AKIDCAROL")
    assert ("private" in carol, "4321" in carol, "30 → 45" in carol) == (True, False, True)


def test_the_whole_account_sees_a_cancelled_move(audited: RunningServer) -> None:
    """The entry has the task but no queue."""
    assert called(audited, "sqs/CancelMessageMoveTask", TaskHandle="none") == 400
    assert "CancelMessageMoveTask" in audit(audited, "AKIDCAROL")
    assert "CancelMessageMoveTask" not in audit(audited, "AKIDFRIEND")


def test_the_log_is_searched_by_queue_and_by_user(audited: RunningServer) -> None:
    assert "elsewhere" not in audit(audited, "AKIDOWNER", "?queue=ord")
    assert "visibility_timeout_s" in audit(audited, "AKIDOWNER", "?queue=ORD&who=carol")
    assert "No matching changes." in audit(audited, "AKIDOWNER", f"?queue=orders&who={FRIEND}")
    assert "No matching changes." in audit(audited, "AKIDOWNER", "?queue=%3Cscript%3E")


def test_markup_in_a_change_is_escaped(audited: RunningServer) -> None:
    tags = {"<b>team</b>": "<script>x</script>"}
    assert called(audited, "sqs/TagQueue", QueueUrl=f"http://localhost/{OWNER}/orders", Tags=tags) == 400
    with Visitor(audited, key="AKIDOWNER") as visitor:
        seen = visitor.get("/console/audit")
    assert "Tags.<b>team</b>: <script>x</script>" in unescape(seen.html).replace("<ins>", "").replace("</ins>", "")
    assert "<script>x" not in seen.html
    assert "<b>" not in seen.html


def test_the_page_of_a_log_in_memory_explains_that() -> None:
    with RunningServer() as running, Visitor(running) as visitor:
        seen = visitor.get("/console/audit").text
        assert "keeps the last thousand lines in memory" in seen
        assert "No changes." in seen


def test_the_page_of_a_log_that_cannot_be_read_shows_why(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log"
    with RunningServer(data=path.parent, audit_log=path) as running, Visitor(running) as visitor:
        path.unlink()
        path.mkdir()
        seen = visitor.get("/console/audit")
        assert seen.status == 503
        assert f"The audit log {path} cannot be read: Is a directory." in seen.text

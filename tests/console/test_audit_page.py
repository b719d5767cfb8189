"""The audit log in the console: what was changed here, for those whom it concerns."""

import json
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
import urllib3

from tests.console.visitor import Visitor, form_of
from tests.server.keys import FRIEND, OWNER, SECRETS, client, written
from veilmq.testing import RunningServer

QUEUE = f"/console/queues/{OWNER}/orders"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
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


def audit(server: RunningServer, key: str, query: str = "") -> str:
    """Return what the holder of ``key`` reads."""
    with Visitor(server, key=key) as visitor:
        seen = visitor.get(f"/console/audit{query}")
    assert seen.status == 200
    assert "<script>" not in seen.html
    return seen.text


def called(server: RunningServer, path: str, **fields: Any) -> int:
    """Call the API of the admin port as the owner; return the status."""
    headers = urllib3.make_headers(basic_auth=f"AKIDOWNER:{SECRETS['AKIDOWNER']}")
    return urllib3.request("POST", f"{server.admin_endpoint}/api/{path}", json=fields, headers=headers).status


def test_a_change_is_told_with_who_and_before_and_after(server: RunningServer) -> None:
    seen = audit(server, "AKIDOWNER")
    for words in (f"arn:aws:iam::{OWNER}:user/carol 127.0.0.1", "visibility_timeout_s: 30 → 45", "done", "elsewhere"):
        assert words in seen, "the server's own account sees all"


def test_others_see_what_concerns_them(server: RunningServer) -> None:
    carol = audit(server, "AKIDCAROL")
    assert "visibility_timeout_s" in carol
    assert "elsewhere" not in carol
    friend = audit(server, "AKIDFRIEND")
    assert "elsewhere" in friend
    assert "carol 127" not in friend


def test_who_may_not_see_a_queues_settings_does_not_see_them_here(server: RunningServer) -> None:
    deny = {"Effect": "Deny", "Principal": {"AWS": f"arn:aws:iam::{OWNER}:user/carol"}, "Action": "sqs:GetQueue*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    client(server).create_queue(QueueName="private", Attributes={"Policy": policy})
    assert called(server, "queues/-/private/set", visibility_timeout_s=4321) == 200
    assert "4321" in audit(server, "AKIDOWNER")
    carol = audit(server, "AKIDCAROL")
    assert ("private" in carol, "4321" in carol, "30 → 45" in carol) == (True, False, True)


def test_the_end_of_a_move_is_seen_by_all_of_the_account(server: RunningServer) -> None:
    """It names the task and no queue."""
    assert called(server, "sqs/CancelMessageMoveTask", TaskHandle="none") == 400
    assert "CancelMessageMoveTask" in audit(server, "AKIDCAROL")
    assert "CancelMessageMoveTask" not in audit(server, "AKIDFRIEND")


def test_one_searches_by_queue_and_by_who(server: RunningServer) -> None:
    assert "elsewhere" not in audit(server, "AKIDOWNER", "?queue=ord")
    assert "visibility_timeout_s" in audit(server, "AKIDOWNER", "?queue=ORD&who=carol")
    assert "Nothing was changed that fits." in audit(server, "AKIDOWNER", f"?queue=orders&who={FRIEND}")
    assert "Nothing was changed that fits." in audit(server, "AKIDOWNER", "?queue=%3Cscript%3E")


def test_markup_in_a_change_stays_text(server: RunningServer) -> None:
    tags = {"<b>team</b>": "<script>x</script>"}
    assert called(server, "sqs/TagQueue", QueueUrl=f"http://localhost/{OWNER}/orders", Tags=tags) == 400
    with Visitor(server, key="AKIDOWNER") as visitor:
        seen = visitor.get("/console/audit")
    assert "Tags.<b>team</b>: <script>x</script>" in unescape(seen.html).replace("<ins>", "").replace("</ins>", "")
    assert "<script>x" not in seen.html
    assert "<b>" not in seen.html


def test_a_log_without_a_file_says_so() -> None:
    with RunningServer() as running, Visitor(running) as visitor:
        seen = visitor.get("/console/audit").text
        assert "keeps the last thousand lines in memory" in seen
        assert "Nothing was changed." in seen

"""Permissions over real sockets with boto3: policies, long polls, move tasks."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.http_host import dial
from tests.server.keys import (
    ARN,
    FRIEND,
    OWNER,
    REGION,
    TEXT,
    client,
    denied,
    sender_id,
    set_policy,
    signed_action,
    statement,
    written,
)
from veilmq.core import commands
from veilmq.core.commands import Command
from veilmq.testing import RunningServer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        yield running


@pytest.fixture
def owner(server: RunningServer) -> Any:
    return client(server)


@pytest.fixture
def friend(server: RunningServer) -> Any:
    return client(server, "AKIDFRIEND")


@pytest.fixture
def url(owner: Any) -> str:
    return str(owner.create_queue(QueueName="jobs")["QueueUrl"])


def test_only_the_owner_may_use_a_queue(owner: Any, friend: Any, url: str) -> None:
    """The error names the caller, the action, the queue and the reason."""
    assert denied(friend.send_message, QueueUrl=url, MessageBody="x") == (
        f"User: arn:aws:iam::{FRIEND}:root is not authorized to perform: sqs:sendmessage on resource: {ARN} "
        "because no resource-based policy allows the sqs:sendmessage action"
    )
    denied(friend.get_queue_url, QueueName="jobs", QueueOwnerAWSAccountId=OWNER)
    denied(friend.delete_queue, QueueUrl=url)
    assert "Messages" not in owner.receive_message(QueueUrl=url)


def test_a_policy_allows_actions_to_another_account(owner: Any, friend: Any, url: str) -> None:
    """The permission of an action covers its batch; a changed policy takes effect at once."""
    set_policy(owner, url, statement(Action=["sqs:SendMessage", "sqs:GetQueueUrl"]))
    assert friend.get_queue_url(QueueName="jobs", QueueOwnerAWSAccountId=OWNER)["QueueUrl"] == url
    friend.send_message(QueueUrl=url, MessageBody="one")
    friend.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "two"}])
    denied(friend.receive_message, QueueUrl=url)
    assert len(owner.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == 2
    set_policy(owner, url)
    denied(friend.send_message, QueueUrl=url, MessageBody="three")


def test_messages_have_the_id_of_their_sender(server: RunningServer, owner: Any, friend: Any, url: str) -> None:
    """The account's or the user's; with and without attributes, single and in a batch."""
    set_policy(owner, url, statement(Action="sqs:*"))
    carol, bob = client(server, "AKIDCAROL"), client(server, "ASIDBOB")
    owner.send_message(QueueUrl=url, MessageBody="owner")
    friend.send_message(QueueUrl=url, MessageBody="friend")
    typed = {"a": {"DataType": "String", "StringValue": "b"}}
    carol.send_message(QueueUrl=url, MessageBody="carol", MessageAttributes=typed)
    bob.send_message_batch(QueueUrl=url, Entries=[{"Id": "a", "MessageBody": "bob"}])
    names = {"MessageSystemAttributeNames": ["SenderId"], "MessageAttributeNames": ["All"]}
    messages = friend.receive_message(QueueUrl=url, MaxNumberOfMessages=10, **names)["Messages"]
    assert {message["Body"]: message["Attributes"]["SenderId"] for message in messages} == {
        "owner": OWNER,
        "friend": FRIEND,
        "carol": sender_id(OWNER, "carol"),
        "bob": sender_id(FRIEND, "bob"),
    }
    assert {message["Body"] for message in messages if "MessageAttributes" in message} == {"carol"}


def test_a_deny_applies_to_the_owner_too(server: RunningServer, owner: Any, url: str) -> None:
    """But the account can always change its policy; its users cannot."""
    carol = client(server, "AKIDCAROL")
    set_policy(owner, url, statement(Effect="Deny", Principal="*", Action="sqs:*"))
    assert "with an explicit deny in a resource-based policy" in denied(
        owner.send_message, QueueUrl=url, MessageBody="x"
    )
    denied(carol.set_queue_attributes, QueueUrl=url, Attributes={"Policy": ""})
    assert "Policy" in owner.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]
    set_policy(owner, url)
    carol.send_message(QueueUrl=url, MessageBody="x")


def test_conditions_compare_the_request(owner: Any, friend: Any, url: str) -> None:
    fitting = {
        "IpAddress": {"aws:SourceIp": "127.0.0.0/8"},
        "StringLike": {"aws:UserAgent": "Boto3/*"},
        "Bool": {"aws:SecureTransport": "false"},
        "DateGreaterThan": {"aws:CurrentTime": "2020-01-01T00:00:00Z"},
    }
    set_policy(owner, url, statement(Condition=fitting))
    friend.send_message(QueueUrl=url, MessageBody="x")
    for other in ({"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}, {"Bool": {"aws:SecureTransport": "true"}}):
        set_policy(owner, url, statement(Condition=fitting | other))
        denied(friend.send_message, QueueUrl=url, MessageBody="x")


def test_permissions_are_added_and_removed_by_label(owner: Any, friend: Any, url: str) -> None:
    owner.add_permission(QueueUrl=url, Label="send", AWSAccountIds=[FRIEND], Actions=["SendMessage"])
    friend.send_message(QueueUrl=url, MessageBody="x")
    with pytest.raises(ClientError, match=r"\(InvalidParameterValue\).*Already exists"):
        owner.add_permission(QueueUrl=url, Label="send", AWSAccountIds=[FRIEND], Actions=["*"])
    denied(friend.add_permission, QueueUrl=url, Label="more", AWSAccountIds=[FRIEND], Actions=["*"])
    with pytest.raises(owner.exceptions.OverLimit, match="50 principals"):
        owner.add_permission(
            QueueUrl=url, Label="many", AWSAccountIds=[f"{number:012}" for number in range(51)], Actions=["*"]
        )
    friend.send_message(QueueUrl=url, MessageBody="x")
    owner.remove_permission(QueueUrl=url, Label="send")
    denied(friend.send_message, QueueUrl=url, MessageBody="x")
    assert "Policy" not in owner.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]


def test_concurrent_additions_of_permissions_are_not_lost(server: RunningServer, owner: Any, url: str) -> None:
    def add(number: int) -> None:
        client(server).add_permission(QueueUrl=url, Label=str(number), AWSAccountIds=[FRIEND], Actions=["*"])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(20)))
    text = owner.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"]
    assert sorted(int(each["Sid"]) for each in json.loads(text)["Statement"]) == list(range(20))
    with pytest.raises(owner.exceptions.OverLimit, match="maximum allowed is 20"):
        add(20)


def test_an_invalid_policy_is_refused(owner: Any, url: str) -> None:
    reason = r"parameter Policy\. Reason: .*no action sqs:Sendmessages"
    with pytest.raises(owner.exceptions.InvalidAttributeValue, match=reason):
        set_policy(owner, url, statement(Action="sqs:Sendmessages"))


def test_a_missing_queue_is_the_same_error_for_every_account(owner: Any, friend: Any, url: str) -> None:
    """Also directly after its deletion."""
    for sqs in (owner, friend):
        with pytest.raises(sqs.exceptions.QueueDoesNotExist):
            sqs.send_message(QueueUrl=url + "x", MessageBody="x")
    set_policy(owner, url, statement())
    friend.send_message(QueueUrl=url, MessageBody="x")
    owner.delete_queue(QueueUrl=url)
    with pytest.raises(friend.exceptions.QueueDoesNotExist):
        friend.send_message(QueueUrl=url, MessageBody="x")


def test_a_policy_changed_by_another_node_takes_effect_within_seconds(
    server: RunningServer, owner: Any, friend: Any, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the cached one applies; no request waits for the new one."""
    monkeypatch.setattr("veilmq.server.permissions.FRESH_S", 0.0)
    members = {"QueueUrl": url, "MessageBody": "x"}
    denied(friend.send_message, **members)
    policy = json.dumps({"Statement": [statement()]})
    _submit(server, commands.SetQueue(queue=f"{OWNER}/jobs", settings={"policy": policy}))
    denied(friend.send_message, **members)
    server.settle()
    friend.send_message(**members)


def test_a_policy_of_an_unknown_version_denies_everything(
    server: RunningServer, owner: Any, friend: Any, url: str
) -> None:
    """The account can replace it."""
    _submit(server, commands.SetQueue(queue=f"{OWNER}/jobs", settings={"policy": '{"Version": "2050-01-01"}'}))
    denied(owner.send_message, QueueUrl=url, MessageBody="x")
    denied(friend.send_message, QueueUrl=url, MessageBody="x")
    set_policy(owner, url)
    owner.send_message(QueueUrl=url, MessageBody="x")


def test_a_long_poll_may_be_the_first_request_on_a_queue(server: RunningServer, owner: Any, url: str) -> None:
    """The policy is not cached yet."""
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(owner.receive_message, QueueUrl=url, WaitTimeSeconds=20)
        server.wait_parked()
        client(server).send_message(QueueUrl=url, MessageBody="x")
        assert waiting.result(60)["Messages"][0]["Body"] == "x"


@pytest.mark.parametrize("store", ["memory", "postgres"])
@pytest.mark.parametrize("reason", ["policy", "key", "account of the key", "policy of another node"])
def test_a_parked_poll_needs_permission_when_a_message_arrives(
    store_settings: Callable[[str], dict[str, Any]],
    tmp_path: Path,
    store: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A changed policy, or a key that is removed or moved, ends it, and the message goes to another poll."""
    if reason == "policy of another node":
        monkeypatch.setattr("veilmq.server.permissions.FRESH_S", 0.0)
    keys = written(tmp_path / "keys.toml")
    with RunningServer(**store_settings(store), credentials=keys, region=REGION) as server:
        owner, friend = client(server), client(server, "AKIDFRIEND")
        url = str(owner.create_queue(QueueName="jobs")["QueueUrl"])
        set_policy(owner, url, statement(Action="sqs:ReceiveMessage"))
        with ThreadPoolExecutor() as threads:
            refused = threads.submit(friend.receive_message, QueueUrl=url, WaitTimeSeconds=20)
            server.wait_parked()
            allowed = threads.submit(owner.receive_message, QueueUrl=url, WaitTimeSeconds=20)
            server.wait_parked(2)
            if reason == "key":
                written(keys, TEXT.replace("AKIDFRIEND", "AKIDOTHER"))
                server.reload()
            elif reason == "account of the key":
                written(keys, TEXT.replace(FRIEND, "333333333333"))
                server.reload()
            elif reason == "policy":
                set_policy(owner, url)
            else:
                _submit(server, commands.SetQueue(queue=f"{OWNER}/jobs", settings={"policy": ""}))
            owner.send_message(QueueUrl=url, MessageBody="x")
            assert allowed.result(60)["Messages"][0]["Body"] == "x"
            with pytest.raises(ClientError) as caught:
                refused.result(60)
            code = caught.value.response["Error"]["Code"]
            assert code == ("InvalidClientTokenId" if reason == "key" else "AccessDenied")
            assert server.parked == 0


def test_a_parked_poll_continues_if_a_changed_policy_allows_it(server: RunningServer, tmp_path: Path) -> None:
    """Also after a reload of other keys."""
    owner, friend = client(server), client(server, "AKIDFRIEND")
    url = str(owner.create_queue(QueueName="jobs")["QueueUrl"])
    set_policy(owner, url, statement(Action="sqs:ReceiveMessage"))
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(friend.receive_message, QueueUrl=url, WaitTimeSeconds=20)
        server.wait_parked()
        written(tmp_path / "keys.toml", TEXT.replace("AKIDCAROL", "AKIDOTHER"))
        server.reload()
        set_policy(owner, url, statement(Action="sqs:*"))
        owner.send_message(QueueUrl=url, MessageBody="x")
        assert waiting.result(60)["Messages"][0]["Body"] == "x"


@pytest.mark.parametrize("wait_s", [0, 20])
def test_a_pipelined_receive_needs_permission_when_it_starts(
    server: RunningServer, owner: Any, url: str, wait_s: int
) -> None:
    """It starts after the reply to the previous request on its connection; it was allowed when it arrived."""
    empty = owner.create_queue(QueueName="empty", Attributes={"Policy": ""})["QueueUrl"]
    set_policy(owner, empty, statement(Action="sqs:ReceiveMessage", Resource="*"))
    set_policy(owner, url, statement(Action="sqs:ReceiveMessage"))
    owner.send_message(QueueUrl=url, MessageBody="x")
    receive = partial(signed_action, server, "ReceiveMessage", "AKIDFRIEND")
    with dial(server.endpoint) as connection:
        connection.sendall(receive(QueueUrl=empty, WaitTimeSeconds=20))
        server.wait_parked()
        connection.sendall(receive(QueueUrl=url, WaitTimeSeconds=wait_s))
        connection.sendall(receive(QueueUrl="nonsense"))
        set_policy(owner, url)
        server.advance(seconds=20)
        with connection.makefile("rb") as replies:
            while (line := replies.readline()) and not line.startswith(b"x-amzn-query-error"):
                pass
    assert line.startswith(b"x-amzn-query-error: AccessDenied")
    assert owner.receive_message(QueueUrl=url)["Messages"]


@pytest.mark.parametrize("part", ["Credential", "SignedHeaders", "Signature"])
def test_a_repeated_part_of_the_authorization_header_is_refused(owner: Any, url: str, part: str) -> None:
    """Otherwise a proxy could use the other value."""

    def repeat(request: Any, **_: Any) -> None:
        header = request.headers["Authorization"]
        if isinstance(header, bytes):
            header = header.decode()
        (given,) = [item.strip() for item in header.partition(" ")[2].split(",") if item.strip().startswith(part + "=")]
        request.headers["Authorization"] = header.replace(given, f"{given}, {given}")

    owner.meta.events.register("before-send.sqs", repeat)
    with pytest.raises(ClientError) as caught:
        owner.list_queues()
    assert caught.value.response["Error"]["Code"] == "IncompleteSignature"


def test_move_tasks_tags_and_sources_are_the_owners_only(owner: Any, friend: Any, url: str) -> None:
    set_policy(owner, url, statement(Action="sqs:*"))
    for call in (friend.list_message_move_tasks, friend.start_message_move_task):
        with pytest.raises(ClientError, match="ResourceNotFoundException"):
            call(SourceArn=ARN)
    denied(friend.tag_queue, QueueUrl=url, Tags={"a": "b"})
    assert friend.list_dead_letter_source_queues(QueueUrl=url)["queueUrls"] == []


def test_cancelling_a_task_needs_permission(owner: Any, friend: Any, url: str) -> None:
    """No other account has it, and a policy may deny it to the owner."""
    dying = json.dumps({"deadLetterTargetArn": ARN, "maxReceiveCount": 1})
    owner.create_queue(QueueName="dying", Attributes={"RedrivePolicy": dying})
    set_policy(owner, url, statement(Effect="Deny", Principal="*", Action="sqs:CancelMessageMoveTask"))
    handle = owner.start_message_move_task(SourceArn=ARN)["TaskHandle"]
    denied(owner.cancel_message_move_task, TaskHandle=handle)
    with pytest.raises(ClientError, match="ResourceNotFoundException"):
        friend.cancel_message_move_task(TaskHandle=handle)


@pytest.mark.parametrize("action", ["sqs:StartMessageMoveTask", "sqs:ReceiveMessage", "sqs:DeleteMessage"])
def test_a_move_needs_the_permissions_to_start_receive_and_delete(
    server: RunningServer, owner: Any, action: str
) -> None:
    dead = owner.create_queue(QueueName="dead")["QueueUrl"]
    arn = ARN.replace("jobs", "dead")
    dying = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 1})
    owner.create_queue(QueueName="dying", Attributes={"RedrivePolicy": dying})
    carol = {"AWS": f"arn:aws:iam::{OWNER}:user/carol"}
    set_policy(owner, dead, statement(Effect="Deny", Principal=carol, Action=action, Resource=arn))
    denied(client(server, "AKIDCAROL").start_message_move_task, SourceArn=arn)
    owner.start_message_move_task(SourceArn=arn)


def _submit(server: RunningServer, command: Command) -> None:
    done = threading.Event()
    server._loop.call_soon_threadsafe(server.bound.engine.submit, command, lambda result: done.set())
    assert done.wait(60)


# A move task sends with the permissions of the user that started it; they are checked for each batch.


CAROL = f"arn:aws:iam::{OWNER}:user/carol"
MESSAGES = 30


def policy(effect: str, action: str) -> str:
    """Return a policy that allows carol all actions, with another statement about one action."""
    statements = [
        {"Effect": "Allow", "Principal": {"AWS": CAROL}, "Action": "sqs:*", "Resource": "*"},
        {"Effect": effect, "Principal": {"AWS": CAROL}, "Action": f"sqs:{action}", "Resource": "*"},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


class Moving:
    """A dead-letter queue with messages of one source; the user carol may move them."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.owner, self.carol = client(server), client(server, "AKIDCAROL")
        self.dead = self.owner.create_queue(QueueName="dead", Attributes={"Policy": policy("Allow", "SendMessage")})
        redrive = json.dumps({"deadLetterTargetArn": self.arn("dead"), "maxReceiveCount": 1})
        self.work = self.owner.create_queue(
            QueueName="work", Attributes={"RedrivePolicy": redrive, "Policy": policy("Allow", "SendMessage")}
        )["QueueUrl"]
        for begin in range(0, MESSAGES, 10):
            entries = [{"Id": str(n), "MessageBody": str(n)} for n in range(begin, begin + 10)]
            self.owner.send_message_batch(QueueUrl=self.work, Entries=entries)
        for _ in range(2):
            for _ in range(MESSAGES // 10):
                self.owner.receive_message(QueueUrl=self.work, MaxNumberOfMessages=10, VisibilityTimeout=0)

    def arn(self, queue: str) -> str:
        return f"arn:aws:sqs:{REGION}:{OWNER}:{queue}"

    def start(self, **terms: Any) -> None:
        """Start a slow task as carol."""
        self.carol.start_message_move_task(SourceArn=self.arn("dead"), MaxNumberOfMessagesPerSecond=10, **terms)

    def deny(self, queue: str) -> None:
        self.owner.set_queue_attributes(QueueUrl=queue, Attributes={"Policy": policy("Deny", "SendMessage")})

    def task(self) -> dict[str, Any]:
        found: dict[str, Any] = self.owner.list_message_move_tasks(SourceArn=self.arn("dead"))["Results"][0]
        return found


@pytest.fixture(params=["memory", "postgres"])
def moving(
    request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]], tmp_path: Path
) -> Iterator[Moving]:
    credentials = written(tmp_path / "credentials.toml")
    with RunningServer(
        credentials=credentials, account=OWNER, region=REGION, **store_settings(request.param)
    ) as server:
        yield Moving(server)


@pytest.mark.parametrize("names_destination", [False, True])
def test_a_deny_stops_a_running_task(moving: Moving, names_destination: bool) -> None:
    """The task has a reason; it moves no more messages."""
    moving.start(**({"DestinationArn": moving.arn("work")} if names_destination else {}))
    moving.server.advance(seconds=1)
    assert moving.task()["Status"] == "RUNNING"
    moving.deny(moving.work)
    moving.server.advance(seconds=20)
    task = moving.task()
    assert (task["Status"], task["FailureReason"]) == ("FAILED", "AccessDenied")
    moved = task["ApproximateNumberOfMessagesMoved"]
    assert 0 < moved < MESSAGES
    left = moving.owner.get_queue_attributes(
        QueueUrl=moving.dead["QueueUrl"], AttributeNames=["ApproximateNumberOfMessages"]
    )
    assert left["Attributes"]["ApproximateNumberOfMessages"] == str(MESSAGES - moved)


def test_a_task_keeps_its_user_over_a_restart(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"account": OWNER, "region": REGION, "data": tmp_path / "store"}
    settings["credentials"] = written(tmp_path / "credentials.toml")
    with RunningServer(**settings) as server:
        moving = Moving(server)
        moving.start()
        server.advance(seconds=1)
        moving.deny(moving.work)
        clock = server.clock
    with RunningServer(clock=clock, **settings) as server:
        server.advance(seconds=20)
        (task,) = client(server).list_message_move_tasks(SourceArn=moving.arn("dead"))["Results"]
        assert (task["Status"], task["FailureReason"]) == ("FAILED", "AccessDenied")

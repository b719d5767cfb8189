"""Forwards and publications through a server: errors, wake-ups, permissions, rates and crashes."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import msgspec
import pytest

from tests.proofs.served import ServedFolder
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, set_policy, statement, written
from veilmq.client import ClientError, HttpQueueClient, Unreachable
from veilmq.client.api import Forwards, Publications, Settings
from veilmq.client.transport import SigningKey
from veilmq.core.claims import Published
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer
from veilmq.wire.v1.publications import ForwardedEntry, OutgoingRow
from veilmq.wire.v1.routes import ROUTES

Api = TypeVar("Api", Forwards, Publications)


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """A server with the queues ``jobs`` and ``fast``."""
    with RunningServer(**store_settings(request.param)) as running, HttpQueueClient(running.endpoint) as queue:
        queue.create_queue("jobs")
        queue.create_queue("fast")
        yield running


def test_a_forwarded_message_keeps_its_id_and_attributes(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as queue, Forwards(server.endpoint, "jobs") as jobs:
        attributes = {"kind": Attribute("String", "x"), "raw": Attribute("Binary", data=b"\x00")}
        sent = queue.send("jobs", "a", attributes=attributes, group="tenant")
        (message,) = queue.receive("jobs")
        assert jobs.forward([(message.receipt, "fast")]) == [ForwardedEntry(id=sent.id)]
        (got,) = queue.receive("fast")
        assert (got.id, got.body, got.attributes, got.group) == (sent.id, "a", attributes, "tenant")
        assert queue.receive("jobs") == []
        (again,) = jobs.forward([(message.receipt, "fast")])
        assert isinstance(again, ClientError)
        assert (again.code, again.status, again.fields["state"]) == ("ReceiptEnded", 410, "gone")
        assert queue.show("fast").in_flight == 1


def test_an_empty_forward_checks_only_the_queue(server: RunningServer) -> None:
    with Forwards(server.endpoint, "jobs") as jobs:
        assert jobs.forward([]) == []
    with (
        Forwards(server.endpoint, f"{server.endpoint}/000000000000/none") as none,
        pytest.raises(ClientError, check=lambda error: error.code == "QueueNotFound"),
    ):
        none.forward([])


def test_a_forward_wakes_a_long_poll(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as queue, Forwards(server.endpoint, "jobs") as jobs:
        queue.send("jobs", "a")
        (message,) = queue.receive("jobs")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(queue.receive, "fast", wait_s=20)
            jobs.forward([(message.receipt, "fast")])
            assert [got.body for got in waiting.result(60)] == ["a"]


# Permissions.


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with two accounts; the owner has the queues ``jobs`` and ``fast``."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        for name in ("jobs", "fast"):
            client(running).create_queue(QueueName=name)
        yield running


@pytest.fixture
def receipt(guarded: RunningServer) -> str:
    """The receipt handle of a message that was received from ``jobs``."""
    sqs, url = client(guarded), f"{guarded.endpoint}/{OWNER}/jobs"
    sqs.send_message(QueueUrl=url, MessageBody="a")
    (message,) = sqs.receive_message(QueueUrl=url)["Messages"]
    return str(message["ReceiptHandle"])


def signed(api: type[Api], server: RunningServer, key: str) -> Api:
    signing = SigningKey(id=key, secret=SECRETS[key], region=REGION)
    return api(server.endpoint, f"{server.endpoint}/{OWNER}/jobs", key=signing)


ARN = f"arn:aws:sqs:{REGION}:{OWNER}"
RECEIVE = statement(Action="sqs:ReceiveMessage", Resource=f"{ARN}:jobs")
DELETE = statement(Action="sqs:DeleteMessage", Resource=f"{ARN}:jobs")
SEND = statement(Action="sqs:SendMessage", Resource=f"{ARN}:fast")


@pytest.mark.parametrize(("intake", "target", "missing"), [
    pytest.param([DELETE], [SEND], "sqs:receivemessage", id="receive"),
    pytest.param([RECEIVE], [SEND], "sqs:deletemessage", id="delete"),
    pytest.param([RECEIVE, DELETE], [], "sqs:sendmessage", id="send"),
])  # fmt: skip
def test_a_forward_needs_the_permissions_to_receive_delete_and_send(
    guarded: RunningServer, receipt: str, intake: list[dict[str, Any]], target: list[dict[str, Any]], missing: str
) -> None:
    sqs = client(guarded)
    set_policy(sqs, f"{guarded.endpoint}/{OWNER}/jobs", *intake)
    set_policy(sqs, f"{guarded.endpoint}/{OWNER}/fast", *target)
    entry = (receipt, f"{OWNER}/fast")
    with signed(Forwards, guarded, "AKIDFRIEND") as friend:
        with pytest.raises(ClientError) as caught:
            friend.forward([entry])
        assert caught.value.code == "AccessDenied"
        assert missing in caught.value.message
        assert FRIEND in caught.value.message
        set_policy(sqs, f"{guarded.endpoint}/{OWNER}/jobs", RECEIVE, DELETE)
        set_policy(sqs, f"{guarded.endpoint}/{OWNER}/fast", SEND)
        (done,) = friend.forward([entry])
    assert isinstance(done, ForwardedEntry)


def test_a_policy_allows_forwards_to_a_queue_of_another_account(guarded: RunningServer, receipt: str) -> None:
    theirs = client(guarded, "AKIDFRIEND")
    url = theirs.create_queue(QueueName="theirs")["QueueUrl"]
    entry = (receipt, f"{FRIEND}/theirs")
    with signed(Forwards, guarded, "AKIDOWNER") as owner:
        with pytest.raises(ClientError, match=r"AccessDenied|not authorized"):
            owner.forward([entry])
        allowed = statement(Principal={"AWS": OWNER}, Resource=f"arn:aws:sqs:{REGION}:{FRIEND}:theirs")
        set_policy(theirs, url, allowed)
        (done,) = owner.forward([entry])
    assert isinstance(done, ForwardedEntry)
    (got,) = theirs.receive_message(QueueUrl=url)["Messages"]
    assert got["Body"] == "a"


def test_a_forward_to_a_missing_queue_is_an_error(guarded: RunningServer) -> None:
    with signed(Forwards, guarded, "AKIDOWNER") as owner:
        with pytest.raises(ClientError) as caught:
            owner.forward([("r", "none")])
        assert (caught.value.code, caught.value.fields["queue"]) == ("QueueNotFound", f"{OWNER}/none")


# Publications.


MANY = 600
RATE = 300


def rows(*bodies: str) -> list[OutgoingRow]:
    return [OutgoingRow(body=body) for body in bodies]


def drained(queue: HttpQueueClient) -> list[str]:
    found: list[str] = []
    while got := queue.receive("jobs", count=10, wait_s=0, timeout_s=600):
        found += [message.body for message in got]
    return found


def test_a_fifo_queue_with_any_name_takes_deduplication_ids(server: RunningServer) -> None:
    row = OutgoingRow(body="x", group="g", dedup_id="1")
    with Settings(server.endpoint, "ordered") as settings, Publications(server.endpoint, "ordered") as ordered:
        settings.create({"fifo": True})
        ordered.stage("w", batch=0, attempt="a", part=0, messages=[row, row])
        assert ordered.publish("w", batch=0, attempts=[("a", 2)]) == Published(messages=2, duplicates=1)
        with pytest.raises(ClientError, match="delay_s must be 0: a FIFO queue has one delay"):
            ordered.stage("w", batch=1, attempt="a", part=0, messages=[msgspec.structs.replace(row, delay_s=1)])
    with (
        Publications(server.endpoint, "jobs") as jobs,
        pytest.raises(ClientError, match="Message 0 was refused, and nothing staged: dedup_id is for FIFO queues only"),
    ):
        jobs.stage("w", batch=0, attempt="a", part=0, messages=[row])


# Errors.


PROVOKED = {
    "publications.stage": {"StageRefused", "QueueNotFound"},
    "publications.publish": {"StageMissing", "QueueNotFound"},
    "publications.abandon": {"QueueNotFound"},
    "publications.list": {"QueueNotFound"},
}


def calls(jobs: Publications, messages: int = 7) -> dict[str, Callable[[], Any]]:
    """Return a call of each route; those that a FIFO queue can refuse are refused."""
    return {
        "publications.stage": lambda: jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("x")),
        "publications.publish": lambda: jobs.publish("w", batch=0, attempts=[("a", messages)]),
        "publications.abandon": lambda: jobs.abandon("w", batch=1),
        "publications.list": jobs.writers,
    }


def test_an_error_of_a_publication_has_a_code_a_status_and_details() -> None:
    found: dict[str, set[str]] = {label: set() for label in PROVOKED}
    replies: dict[str, Any] = {}
    with RunningServer() as server, HttpQueueClient(server.endpoint) as queues:
        queues.create_queue("jobs.fifo", {"fifo": True})
        for queue in ("jobs.fifo", f"{server.endpoint}/000000000000/none"):
            with Publications(server.endpoint, queue) as jobs:
                for label, call in calls(jobs).items():
                    try:
                        call()
                    except ClientError as error:
                        found[label].add(error.code)
                        replies[error.code] = {**error.fields, "status": error.status}
    assert found == PROVOKED
    assert all(each.pop("message") for each in replies.values())
    assert replies == {
        "StageRefused": {"code": "StageRefused", "status": 400, "index": 0, "why": "GroupMissing", "bytes_max": None},
        "StageMissing": {"code": "StageMissing", "status": 409, "attempt": "a", "messages": 0, "wanted": 7},
        "QueueNotFound": {"code": "QueueNotFound", "status": 404, "queue": "000000000000/none"},
    }


def test_every_error_of_every_route_is_tested() -> None:
    routes = {route.label: route.errors for route in ROUTES.values() if route.noun == b"publications"}
    wanted = {label: {error.__name__ for error in listed} | {"QueueNotFound"} for label, listed in routes.items()}
    assert wanted == PROVOKED


def test_publications_need_the_permission_to_send(guarded: RunningServer) -> None:
    with signed(Publications, guarded, "AKIDFRIEND") as friend, signed(Publications, guarded, "AKIDOWNER") as owner:
        for call in calls(friend, 1).values():
            with pytest.raises(ClientError, match=FRIEND) as caught:
                call()
            assert caught.value.code == "AccessDenied"
        assert owner.writers() == []
        sqs = client(guarded)
        set_policy(sqs, f"{guarded.endpoint}/{OWNER}/jobs", statement())
        for call in calls(friend, 1).values():
            call()
    (message,) = sqs.receive_message(
        QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs", MessageSystemAttributeNames=["SenderId"]
    )["Messages"]
    assert (message["Body"], message["Attributes"]["SenderId"]) == ("x", FRIEND)


# Rates and shutdown.


def publish_slowly(jobs: Publications) -> Published:
    fields = {"writer": "w", "batch": 0, "attempts": [["a", 10]], "messages_per_s_max": 1}
    return jobs.post("publish", fields, Published)


def test_a_slow_publication_continues_after_its_reply(server: RunningServer) -> None:
    """The reply has `more`."""
    with Publications(server.endpoint, "jobs") as jobs, HttpQueueClient(server.endpoint) as queue:
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abcdefghij"))
        with ThreadPoolExecutor(1) as thread:
            publishing = thread.submit(publish_slowly, jobs)
            while not publishing.done():
                server.advance(500)
        assert publishing.result().more
        assert queue.show("jobs").visible >= 4
        server.advance(10_000)
        assert drained(queue) == list("abcdefghij")


def test_a_publication_continues_after_a_restart_of_the_server(tmp_path: Path) -> None:
    """The server sends the reply, with `more`, before it stops."""
    folder = tmp_path / "store"
    with (
        RunningServer(data=folder) as first,
        HttpQueueClient(first.endpoint) as queue,
        Publications(first.endpoint, "jobs") as jobs,
        ThreadPoolExecutor(1) as thread,
    ):
        queue.create_queue("jobs")
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abcdefghij"))
        publishing = thread.submit(publish_slowly, jobs)
        while queue.show("jobs").visible == 0:
            assert not publishing.done()
        first.stop()
        assert publishing.result().more
    with (
        RunningServer(data=folder) as second,
        HttpQueueClient(second.endpoint) as queue,
        Publications(second.endpoint, "jobs") as jobs,
    ):
        second.advance(20_000)
        assert jobs.publish("w", batch=0, attempts=[("a", 10)]) == Published(messages=10, again=True)
        assert drained(queue) == list("abcdefghij")


def test_staged_messages_are_a_metric_and_not_counted_as_visible(server: RunningServer) -> None:
    metric = 'veilmq_queue_messages_staged{queue="000000000000/jobs"}'
    with Publications(server.endpoint, "jobs") as jobs, HttpQueueClient(server.endpoint) as queue:
        assert metric not in urlopen(f"{server.admin_endpoint}/metrics").read().decode()
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abc"))
        assert f"{metric} 3.0" in urlopen(f"{server.admin_endpoint}/metrics").read().decode()
        assert (queue.show("jobs").visible, queue.show("jobs").in_flight, queue.show("jobs").delayed) == (0, 0, 0)


@pytest.mark.slow
def test_a_killed_server_neither_loses_nor_duplicates_published_messages(tmp_path: Path) -> None:
    bodies = [str(number) for number in range(MANY)]
    with (
        ServedFolder(tmp_path / "store") as served,
        HttpQueueClient(served.endpoint) as queue,
        Publications(served.endpoint, "jobs") as jobs,
    ):
        queue.create_queue("jobs")
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*bodies))
        jobs.stage("w", batch=0, attempt="never", part=0, messages=rows("never"))

        def publish() -> Published | None:
            try:
                return jobs.publish("w", batch=0, attempts=[("a", MANY)], messages_per_s_max=RATE)
            except Unreachable:
                return None

        with ThreadPoolExecutor(1) as thread:
            publishing = thread.submit(publish)
            for part in (0, MANY // 3):
                while queue.show("jobs").visible <= part:
                    assert part or not publishing.done()
                served.kill()
                served.start()
        last = publish()
        assert last is not None
        assert (last.again, last.more, last.messages) == (True, False, MANY)
        assert drained(queue) == bodies

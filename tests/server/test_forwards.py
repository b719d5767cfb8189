"""Forwards and publications through a server: errors, who is woken, who may, rates, and what a kill leaves."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen

import pytest

from tests.proofs.served import ServedFolder
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, set_policy, statement, written
from veilmq.client import ClientError, HttpQueueClient, Unreachable
from veilmq.client.api import Forwards, Publications
from veilmq.client.transport import SigningKey
from veilmq.core.claims import Published
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer
from veilmq.wire.v1.publications import ForwardedEntry, OutgoingRow
from veilmq.wire.v1.routes import ROUTES

Api = TypeVar("Api", Forwards, Publications)


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """A server with an intake and a target."""
    with RunningServer(**place(request.param)) as running, HttpQueueClient(running.endpoint) as queue:
        queue.create_queue("jobs")
        queue.create_queue("fast")
        yield running


def test_a_message_arrives_with_its_id_and_its_attributes(server: RunningServer) -> None:
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


def test_a_server_tells_that_it_can(server: RunningServer) -> None:
    with Forwards(server.endpoint, "jobs") as jobs:
        assert jobs.forward([]) == []
    with Forwards(server.endpoint, f"{server.endpoint}/000000000000/none") as none:
        with pytest.raises(ClientError) as caught:
            none.forward([])
        assert caught.value.code == "QueueNotFound"


def test_a_waiting_receive_gets_what_is_forwarded(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as queue, Forwards(server.endpoint, "jobs") as jobs:
        queue.send("jobs", "a")
        (message,) = queue.receive("jobs")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(queue.receive, "fast", wait_s=20)
            jobs.forward([(message.receipt, "fast")])
            assert [got.body for got in waiting.result(60)] == ["a"]


# Who may.


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[RunningServer]:
    """A server of two accounts; the owner has an intake and a target."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as running:
        for name in ("jobs", "fast"):
            client(running).create_queue(QueueName=name)
        yield running


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
def test_a_forward_needs_what_its_parts_need(
    guarded: RunningServer, intake: list[object], target: list[object], missing: str
) -> None:
    sqs = client(guarded)
    sqs.send_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs", MessageBody="a")
    (message,) = sqs.receive_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs")["Messages"]
    set_policy(sqs, f"{guarded.endpoint}/{OWNER}/jobs", *intake)  # type: ignore[arg-type]
    set_policy(sqs, f"{guarded.endpoint}/{OWNER}/fast", *target)  # type: ignore[arg-type]
    entry = (message["ReceiptHandle"], f"{OWNER}/fast")
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


def test_the_owner_forwards_to_a_friends_queue_that_lets_him_send(guarded: RunningServer) -> None:
    theirs = client(guarded, "AKIDFRIEND")
    url = theirs.create_queue(QueueName="theirs")["QueueUrl"]
    sqs = client(guarded)
    sqs.send_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs", MessageBody="a")
    (message,) = sqs.receive_message(QueueUrl=f"{guarded.endpoint}/{OWNER}/jobs")["Messages"]
    entry = (message["ReceiptHandle"], f"{FRIEND}/theirs")
    with signed(Forwards, guarded, "AKIDOWNER") as owner:
        with pytest.raises(ClientError, match=r"AccessDenied|not authorized"):
            owner.forward([entry])
        allowed = statement(Principal={"AWS": OWNER}, Resource=f"arn:aws:sqs:{REGION}:{FRIEND}:theirs")
        set_policy(theirs, url, allowed)
        (done,) = owner.forward([entry])
    assert isinstance(done, ForwardedEntry)
    (got,) = theirs.receive_message(QueueUrl=url)["Messages"]
    assert got["Body"] == "a"


def test_a_target_that_does_not_exist_is_told_before_anything_is_moved(guarded: RunningServer) -> None:
    with signed(Forwards, guarded, "AKIDOWNER") as owner:
        with pytest.raises(ClientError) as caught:
            owner.forward([("r", "none")])
        assert (caught.value.code, caught.value.fields["queue"]) == ("QueueNotFound", f"{OWNER}/none")


# Publications through a server: who may, what a kill between the decision and its end leaves, and a hasty client.


MANY = 600
RATE = 300


def rows(*bodies: str) -> list[OutgoingRow]:
    return [OutgoingRow(body=body) for body in bodies]


def drained(queue: HttpQueueClient) -> list[str]:
    """Receive all that `jobs` has, in order."""
    found: list[str] = []
    while got := queue.receive("jobs", count=10, wait_s=0, timeout_s=600):
        found += [message.body for message in got]
    return found


# Errors.


PROVOKED = {
    "publications.stage": {"StageRefused", "QueueNotFound"},
    "publications.publish": {"StageMissing", "QueueNotFound"},
    "publications.abandon": {"QueueNotFound"},
    "publications.list": {"QueueNotFound"},
}


def calls(jobs: Publications, messages: int = 7) -> dict[str, Callable[[], Any]]:
    """Return a call of each route, which a FIFO queue refuses where it can."""
    return {
        "publications.stage": lambda: jobs.stage("w", batch=0, attempt="a", part=0, messages=rows("x")),
        "publications.publish": lambda: jobs.publish("w", batch=0, attempts=[("a", messages)]),
        "publications.abandon": lambda: jobs.abandon("w", batch=1),
        "publications.list": jobs.writers,
    }


def test_every_error_of_every_route_is_told() -> None:
    found: dict[str, set[str]] = {label: set() for label in PROVOKED}
    told: dict[str, Any] = {}
    with RunningServer() as server, HttpQueueClient(server.endpoint) as queues:
        queues.create_queue("jobs.fifo", {"fifo": True})
        for queue in ("jobs.fifo", f"{server.endpoint}/000000000000/none"):
            with Publications(server.endpoint, queue) as jobs:
                for label, call in calls(jobs).items():
                    try:
                        call()
                    except ClientError as error:
                        found[label].add(error.code)
                        told[error.code] = {**error.fields, "status": error.status}
    assert found == PROVOKED
    assert all(each.pop("message") for each in told.values())
    assert told == {
        "StageRefused": {"code": "StageRefused", "status": 400, "index": 0, "why": "GroupMissing", "bytes_max": None},
        "StageMissing": {"code": "StageMissing", "status": 409, "attempt": "a", "messages": 0, "wanted": 7},
        "QueueNotFound": {"code": "QueueNotFound", "status": 404, "queue": "000000000000/none"},
    }


def test_a_new_error_of_a_route_needs_a_provocation() -> None:
    routes = {route.label: route.errors for route in ROUTES.values() if route.noun == b"publications"}
    wanted = {label: {error.__name__ for error in listed} | {"QueueNotFound"} for label, listed in routes.items()}
    assert wanted == PROVOKED


def test_whoever_may_send_may_publish_and_nobody_else(guarded: RunningServer) -> None:
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


# A rate, and clients that do not wait.


def ask_slowly(jobs: Publications) -> Published:
    fields = {"writer": "w", "batch": 0, "attempts": [["a", 10]], "messages_per_s_max": 1}
    return jobs.post("publish", fields, Published)


def test_an_answer_does_not_take_longer_than_its_time(server: RunningServer) -> None:
    """A slow publication is answered with `more`, and comes by itself."""
    with Publications(server.endpoint, "jobs") as jobs, HttpQueueClient(server.endpoint) as queue:
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abcdefghij"))
        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(ask_slowly, jobs)
            while not asking.done():
                server.advance(500)
        assert asking.result().more
        assert queue.show("jobs").visible >= 4
        server.advance(10_000)
        assert drained(queue) == list("abcdefghij")


def test_a_server_that_stops_answers_with_what_there_is(tmp_path: Path) -> None:
    """The next one goes on."""
    folder = tmp_path / "store"
    with (
        RunningServer(data=folder) as first,
        HttpQueueClient(first.endpoint) as queue,
        Publications(first.endpoint, "jobs") as jobs,
        ThreadPoolExecutor(1) as thread,
    ):
        queue.create_queue("jobs")
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abcdefghij"))
        asking = thread.submit(ask_slowly, jobs)
        while queue.show("jobs").visible == 0:
            assert not asking.done()
        first.stop()
        assert asking.result().more
    with (
        RunningServer(data=folder) as second,
        HttpQueueClient(second.endpoint) as queue,
        Publications(second.endpoint, "jobs") as jobs,
    ):
        second.advance(20_000)
        assert jobs.publish("w", batch=0, attempts=[("a", 10)]) == Published(messages=10, again=True)
        assert drained(queue) == list("abcdefghij")


def test_what_is_staged_is_a_metric_and_in_no_count(server: RunningServer) -> None:
    metric = 'veilmq_queue_messages_staged{queue="000000000000/jobs"}'
    with Publications(server.endpoint, "jobs") as jobs, HttpQueueClient(server.endpoint) as queue:
        assert metric not in urlopen(f"{server.admin_endpoint}/metrics").read().decode()
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*"abc"))
        assert f"{metric} 3.0" in urlopen(f"{server.admin_endpoint}/metrics").read().decode()
        assert (queue.show("jobs").visible, queue.show("jobs").in_flight, queue.show("jobs").delayed) == (0, 0, 0)


# A kill.


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedFolder]:
    server = ServedFolder(tmp_path / "store")
    server.start()
    yield server
    server.stop()


@pytest.mark.slow
def test_a_kill_between_the_decision_and_its_end_loses_and_doubles_nothing(served: ServedFolder) -> None:
    endpoint = f"http://127.0.0.1:{served.port}"
    bodies = [str(number) for number in range(MANY)]
    with HttpQueueClient(endpoint) as queue, Publications(endpoint, "jobs") as jobs:
        queue.create_queue("jobs")
        jobs.stage("w", batch=0, attempt="a", part=0, messages=rows(*bodies))
        jobs.stage("w", batch=0, attempt="never", part=0, messages=rows("never"))

        def publish() -> Published | None:
            try:
                return jobs.publish("w", batch=0, attempts=[("a", MANY)], messages_per_s_max=RATE)
            except Unreachable:
                return None

        with ThreadPoolExecutor(1) as thread:
            asking = thread.submit(publish)
            for part in (0, MANY // 3):
                while queue.show("jobs").visible <= part:
                    assert part or not asking.done()
                served.kill()
                served.start()
        last = publish()
        assert last is not None
        assert (last.again, last.more, last.messages) == (True, False, MANY)
        assert drained(queue) == bodies

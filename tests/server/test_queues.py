"""The queue API over real sockets: listings, settings, messages, leases and permissions; in-flight limits."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from tests.clients import boto
from tests.server.keys import FRIEND, OWNER, REGION, SECRETS, client, denied, set_policy, statement, written
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import QueueApi, Settings
from veilmq.client.transport import SigningKey, Transport
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer
from veilmq.wire.v1.queues import ListedLeases, ListedMessages, PeekedMessages


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, store_settings: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    with RunningServer(**store_settings(request.param)) as running:
        yield running


def listed(server: RunningServer, *, path: str = "-", key: Any = None, **query: Any) -> tuple[int, Any]:
    with closing(Transport(server.endpoint, key=key)) as transport:
        reply = transport.request("GET", f"/v1/queues/{path}?{urlencode(query)}", headers={}, body=b"", wait_s=0)
    return reply.status, msgspec.json.decode(reply.data)


def test_a_listing_has_counts_rates_and_types_of_queues(server: RunningServer) -> None:
    """Rates need two listings."""
    server.queue("dead")
    server.queue("jobs.fifo", fifo=True)
    server.queue("jobs", dead_letter_queue="dead", receives_max=3)
    _, first = listed(server)
    assert [queue["name"] for queue in first["queues"]] == ["dead", "jobs", "jobs.fifo"]
    assert (first["in_all"], first["queues"][1]["dead_letter_queue"]) == (3, "000000000000/dead")
    assert [queue["fifo"] for queue in first["queues"]] == [False, False, True]
    server.advance(1_000)  # counts of the same second replace each other
    with HttpQueueClient(server.endpoint) as queue:
        for _ in range(10):
            queue.send("jobs", "m")
        queue.receive("jobs")
        server.advance(1_000)
        status, found = listed(server, names="jobs,none,jobs")
    (jobs,) = found["queues"]
    assert status == 200
    assert (jobs["visible"], jobs["in_flight"], jobs["sent_per_s"], jobs["received_per_s"]) == (9, 1, 5.0, 0.5)
    seen = [visible for _, visible in jobs["history"]]
    assert (seen[0], seen[-1]) == (0, 9)
    _, found = listed(server, sort="received", descending="true", count=1)
    assert [queue["name"] for queue in found["queues"]] == ["jobs"]


def test_a_listing_is_sorted_searched_and_paged(server: RunningServer) -> None:
    """Queues without messages are the last by age, in both directions; a search ignores case and the account."""
    for name in ("a", "b", "c", "Other"):
        server.queue(name)
    with HttpQueueClient(server.endpoint) as queue:
        queue.send("b", "m")
        server.advance(1)
        queue.send("a", "m")

    def names(**query: Any) -> tuple[list[str], int]:
        _, found = listed(server, **query)
        return [queue["name"] for queue in found["queues"]], found["in_all"]

    assert names(sort="visible", descending="true", first=1, count=2) == (["b", "Other"], 4)
    assert names(sort="oldest") == (["a", "b", "Other", "c"], 4)
    assert names(sort="oldest", descending="true") == (["b", "a", "Other", "c"], 4)
    assert names(search="OTH") == names(search="oth") == (["Other"], 1)
    assert names(search="0/") == ([], 0)


def test_an_invalid_listing_is_an_error(server: RunningServer) -> None:
    names = ",".join(f"q{number}" for number in range(201))
    for query in (
        {"sort": "size"}, {"count": "0"}, {"count": "201"}, {"first": "-1"}, {"what": "1"}, {"names": names}
    ):  # fmt: skip
        status, error = listed(server, **query)
        assert (status, error["code"]) == (400, "InvalidRequest")
    status, error = listed(server, path="111111111111")
    assert (status, error["code"]) == (403, "AccessDenied")


def test_a_listing_hides_the_counts_of_queues_that_a_policy_denies(tmp_path: Path) -> None:
    """Another account sees only its own queues."""
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        owner = client(server)
        url = owner.create_queue(QueueName="jobs")["QueueUrl"]
        owner.send_message(QueueUrl=url, MessageBody="m")
        owner.create_queue(QueueName="open")
        carol = f"arn:aws:iam::{OWNER}:user/carol"
        denial = {"Effect": "Deny", "Principal": {"AWS": carol}, "Action": "sqs:GetQueueAttributes"}
        set_policy(owner, url, {**denial, "Resource": f"arn:aws:sqs:{REGION}:{OWNER}:jobs"})

        def seen(key: str, **query: Any) -> dict[str, int | None]:
            signing = SigningKey(id=key, secret=SECRETS[key], region=REGION)
            _, found = listed(server, key=signing, **query)
            hidden = [queue for queue in found["queues"] if queue["visible"] is None]
            assert all(value in (None, []) for queue in hidden for field, value in queue.items() if field != "name")
            return {queue["name"]: queue["visible"] for queue in found["queues"]}

        assert seen("AKIDOWNER") == {"jobs": 1, "open": 0}
        assert seen("AKIDCAROL") == {"jobs": None, "open": 0}
        assert seen("AKIDCAROL", names="jobs") == {"jobs": None}
        for descending in ("false", "true"):
            assert list(seen("AKIDCAROL", sort="visible", descending=descending)) == ["open", "jobs"]
        assert seen("AKIDFRIEND") == {}


# Settings.


@pytest.mark.parametrize("name", ["in-order", "long-" * 40 + "name", "in_order.fifo"])
def test_a_fifo_queue_may_have_any_name(server: RunningServer, name: str) -> None:
    """The SQS protocol shows it too, and it keeps the order of messages."""
    with Settings(server.endpoint, name) as settings, HttpQueueClient(server.endpoint) as queue:
        url = settings.create({"fifo": True, "delay_s": 0}, tags={"a": "b"})
        assert settings.create({"fifo": True}) == url == f"{server.endpoint}/000000000000/{name}"
        settings.set({"content_deduplication": True, "receives_per_s_max": 100})
        shown = settings.show()
        assert (shown.queue, shown.url, shown.visible) == (name, url, 0)
        assert (shown.settings.fifo, shown.settings.content_deduplication) == (True, True)
        assert shown.settings.tags == {"a": "b"}
        assert queue.show(name).settings.fifo
        assert queue.show(name).settings.receives_per_s_max == 100
        for body in ("first", "second", "first"):
            queue.send(name, body, group="g")
        assert [message.body for message in queue.receive(name, count=10)] == ["first", "second"]


def test_invalid_settings_are_an_error(server: RunningServer) -> None:
    null: Any = None
    with Settings(server.endpoint, "jobs") as settings:
        for call, code in (
            (settings.show, "QueueNotFound"),
            (lambda: settings.set({"delay_s": 1}), "QueueNotFound"),
            (lambda: settings.create({"delay_s": 604_801}), "InvalidRequest"),
            (lambda: settings.create({"content_deduplication": True}), "SettingsConflict"),
            (lambda: settings.create({"dead_letter_queue": "none", "receives_max": 1}), "DeadLetterQueueRefused"),
        ):
            with pytest.raises(ClientError) as caught:
                call()
            assert caught.value.code == code
        settings.create()
        with pytest.raises(ClientError) as caught:
            settings.create({"fifo": True})
        assert (caught.value.code, caught.value.fields["setting"]) == ("QueueExists", "fifo")
        with pytest.raises(ClientError, match="cannot be its own dead-letter queue") as caught:
            settings.set({"dead_letter_queue": "jobs", "receives_max": 1})
        assert caught.value.code == "DeadLetterQueueRefused"
        with pytest.raises(ClientError, match="dead_letter_queue: expected `str`, got `null`"):
            settings.set({"dead_letter_queue": null})


def test_settings_are_their_owners_only(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        url = client(server).create_queue(QueueName="jobs")["QueueUrl"]

        def settings(key: str, queue: str) -> Settings:
            return Settings(server.endpoint, queue, key=SigningKey(id=key, secret=SECRETS[key], region=REGION))

        with settings("AKIDFRIEND", url) as foreign:
            for call in (foreign.show, foreign.create, lambda: foreign.set({"delay_s": 1})):
                with pytest.raises(ClientError) as caught:
                    call()
                assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)
        with settings("AKIDFRIEND", "jobs") as own:
            assert own.create() == f"{server.endpoint}/{FRIEND}/jobs"
        with settings("AKIDCAROL", "jobs") as users:
            users.set({"delay_s": 1})
            assert users.show().url == f"{server.endpoint}/{OWNER}/jobs"


# Inspection of messages and leases, which changes nothing.


class Messages(QueueApi):
    noun = "messages"

    def all(self, **query: str) -> ListedMessages:
        return self.get("", query, ListedMessages)

    def bodies(self, **query: str) -> list[str]:
        return [message.body for message in self.all(**query).messages]

    def peek(self, **query: str) -> list[str]:
        return [message.body for message in self.get("peek", query, PeekedMessages).messages]


class Leases(QueueApi):
    noun = "leases"

    def all(self, **query: str) -> ListedLeases:
        return self.get("", query, ListedLeases)


def test_messages_are_listed_by_state(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as queue, Messages(server.endpoint, "jobs") as messages:
        server.queue("jobs")
        queue.send("jobs", "taken")
        (taken,) = queue.receive("jobs", timeout_s=30)
        queue.send("jobs", "later", delay_s=60)
        queue.send("jobs", "waiting", attributes={"kind": Attribute("Number", "17")})
        for _ in range(2):
            assert set(messages.bodies()) == {"taken", "later", "waiting"}
            assert messages.bodies(state="visible") == messages.peek() == ["waiting"]
            assert messages.bodies(state="delayed") == ["later"]
            (seen,) = messages.all(state="in_flight").messages
            assert (seen.id, seen.body, seen.receive_count, seen.receipt) == (taken.id, "taken", 1, None)
        (waiting,) = messages.all(state="visible").messages
        assert (waiting.attributes, waiting.attribute_types) == ({"kind": "17"}, {"kind": "Number"})
        assert (waiting.receive_count, waiting.state) == (0, "visible")
        assert messages.bodies(id=taken.id) == ["taken"]
        assert messages.bodies(id=taken.id, body_characters_max="2") == ["ta"]
        server.advance(30_000)
        assert messages.bodies(state="in_flight") == []


def test_leases_are_listed_and_their_receipts_are_valid(server: RunningServer) -> None:
    with HttpQueueClient(server.endpoint) as queue, Messages(server.endpoint, "jobs") as messages:
        server.queue("jobs")
        queue.send("jobs", "m")
        (held,) = queue.receive("jobs", timeout_s=30)
        with Leases(server.endpoint, "jobs") as leases:
            (lease,) = leases.all().leases
            assert (lease.message_id, lease.receive_count) == (held.id, 1)
            assert lease.visible_at_ms - lease.received_at_ms == 30_000
            (seen,) = messages.all(state="in_flight", receipts="true").messages
            assert seen.receipt == held.receipt
            queue.delete("jobs", seen.receipt or "")
            assert leases.all().leases == []


def test_inspection_needs_the_permission_to_receive_and_receipts_that_to_purge(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        owner, friend = client(server), client(server, "AKIDFRIEND")
        url = owner.create_queue(QueueName="jobs")["QueueUrl"]
        owner.send_message(QueueUrl=url, MessageBody="m")
        owner.receive_message(QueueUrl=url)
        key = SigningKey(id="AKIDFRIEND", secret=SECRETS["AKIDFRIEND"], region=REGION)
        with Messages(server.endpoint, url, key=key) as messages, Leases(server.endpoint, url, key=key) as leases:
            calls = (messages.all, messages.peek, leases.all)
            for call in calls:
                with pytest.raises(ClientError) as caught:
                    call()
                assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)
            set_policy(owner, url, statement(Action="sqs:ReceiveMessage"))
            for call in calls:
                call()
            with pytest.raises(ClientError) as caught:
                messages.all(receipts="true")
            assert "sqs:purgequeue" in str(caught.value)
            set_policy(owner, url, statement(Action=["sqs:ReceiveMessage", "sqs:PurgeQueue"]))
            (seen,) = messages.all(receipts="true").messages
            assert seen.receipt is not None
            assert "sqs:deletemessage" in denied(friend.delete_message, QueueUrl=url, ReceiptHandle=seen.receipt)


# In-flight limits.

LIMIT = 3


class Full:
    """A queue at its in-flight limit, with the receipts of its messages in flight and two more messages."""

    def __init__(self, server: RunningServer, pool: ThreadPoolExecutor) -> None:
        self.server = server
        self._pool = pool
        self.sqs = boto.client(server.endpoint)
        self.url = self.sqs.create_queue(QueueName="q")["QueueUrl"]
        for body in "abcde":
            self.sqs.send_message(QueueUrl=self.url, MessageBody=body)
        taken = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10)["Messages"]
        self.receipts = [each["ReceiptHandle"] for each in taken]
        assert len(self.receipts) == LIMIT

    def receive(self, wait_s: int = 0) -> list[str]:
        reply = self.sqs.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10, WaitTimeSeconds=wait_s)
        return [each["Body"] for each in reply.get("Messages", [])]

    def check_over_limit(self) -> None:
        with pytest.raises(self.sqs.exceptions.OverLimit):
            self.receive()

    def delete(self, receipt: str) -> None:
        self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=receipt)

    def poll(self) -> "Future[list[str]]":
        parked = self.server.parked
        poll = self._pool.submit(self.receive, 20)
        self.server.wait_parked(parked + 1)
        return poll


@pytest.fixture
def full() -> Iterator[Full]:
    with RunningServer(in_flight_max=LIMIT) as server, ThreadPoolExecutor() as pool:
        yield Full(server, pool)


def test_a_receive_without_wait_fails_at_the_in_flight_limit(full: Full) -> None:
    full.check_over_limit()
    full.sqs.send_message(QueueUrl=full.url, MessageBody="f")
    full.check_over_limit()
    full.delete(full.receipts[0])
    assert full.receive() == ["d"]
    full.check_over_limit()
    full.server.advance(30_000)
    assert len(full.receive()) == LIMIT


def test_a_long_poll_at_the_in_flight_limit_times_out_without_an_error(full: Full) -> None:
    poll = full.poll()
    full.server.advance(19_999)
    assert full.server.parked == 1
    full.server.advance(1)
    assert poll.result(60) == []


def test_a_delete_at_the_in_flight_limit_wakes_one_long_poll(full: Full) -> None:
    """The first gets one message though it requested ten; the second continues to wait."""
    polls = [full.poll(), full.poll()]
    for poll, body, left in zip(polls, "de", (1, 0), strict=True):
        full.delete(full.receipts.pop())
        assert poll.result(60) == [body]
        assert full.server.parked == left
    full.check_over_limit()

"""Looking at messages and leases through a server, and who may: nothing changes by it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.keys import REGION, SECRETS, client, denied, set_policy, statement, written
from veilmq.client import ClientError, HttpQueueClient
from veilmq.client.api import QueueApi
from veilmq.client.transport import SigningKey
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer
from veilmq.wire.v1.queues import ListedLeases, ListedMessages, PeekedMessages

NONE = "http://h/000000000000/none"


class Messages(QueueApi):
    """Looks at messages."""

    noun = "messages"

    def all(self, **query: str) -> ListedMessages:
        """Return the list."""
        return self.get("", query, ListedMessages)

    def bodies(self, **query: str) -> list[str]:
        """Return the bodies of the list."""
        return [message.body for message in self.all(**query).messages]

    def peek(self, **query: str) -> list[str]:
        """Return the bodies that a receive would give."""
        return [message.body for message in self.get("peek", query, PeekedMessages).messages]


class Leases(QueueApi):
    """Looks at leases."""

    noun = "leases"

    def all(self, **query: str) -> ListedLeases:
        """Return the list."""
        return self.get("", query, ListedLeases)


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """A server whose clock the test moves."""
    with RunningServer(**place(request.param)) as running:
        yield running


def test_messages_are_seen_in_their_states(server: RunningServer) -> None:
    """As often as one likes: they are received once."""
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


def test_a_lease_is_seen_until_it_ends(server: RunningServer) -> None:
    """A receipt that a look shows acts as the one that its holder has."""
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


def test_what_is_no_queue_is_not_found(server: RunningServer) -> None:
    with Messages(server.endpoint, NONE) as messages, Leases(server.endpoint, NONE) as leases:
        for call in (messages.all, messages.peek, leases.all):
            with pytest.raises(ClientError) as caught:
                call()
            assert caught.value.code == "QueueNotFound"


def test_who_may_receive_may_look_and_who_may_purge_sees_receipts(tmp_path: Path) -> None:
    with RunningServer(credentials=written(tmp_path / "keys.toml"), region=REGION) as server:
        owner, friend = client(server), client(server, "AKIDFRIEND")
        url = owner.create_queue(QueueName="jobs")["QueueUrl"]
        owner.send_message(QueueUrl=url, MessageBody="m")
        owner.receive_message(QueueUrl=url)
        key = SigningKey(id="AKIDFRIEND", secret=SECRETS["AKIDFRIEND"], region=REGION)
        with Messages(server.endpoint, url, key=key) as messages, Leases(server.endpoint, url, key=key) as leases:
            looks = (messages.all, messages.peek, leases.all)
            for look in looks:
                with pytest.raises(ClientError) as caught:
                    look()
                assert (caught.value.code, caught.value.status) == ("AccessDenied", 403)
            set_policy(owner, url, statement(Action="sqs:ReceiveMessage"))
            for look in looks:
                look()
            with pytest.raises(ClientError) as caught:
                messages.all(receipts="true")
            assert "sqs:purgequeue" in str(caught.value)
            set_policy(owner, url, statement(Action=["sqs:ReceiveMessage", "sqs:PurgeQueue"]))
            (seen,) = messages.all(receipts="true").messages
            assert seen.receipt is not None
            assert "sqs:deletemessage" in denied(friend.delete_message, QueueUrl=url, ReceiptHandle=seen.receipt)

"""Both ways to carry messages over, against a real server: what arrives, what stays, order, and lost answers."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from veilmq.client import ClientError, HttpQueueClient, NewMessage, ReceivedMessage, SentMessage, Unreachable
from veilmq.client.api import Forwards
from veilmq.consumer.forwarding import (
    BATCH_BYTES_MAX,
    GROUP_HELD,
    ForwardRelay,
    Relay,
    RelayedMessage,
    RelayOutcome,
    SendRelay,
)
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer

QUEUES = ("jobs", "fast", "slow", "jobs.fifo", "fast.fifo", "slow.fifo")


class Tampered(HttpQueueClient):
    """A client whose batches can be tampered with, before and after they are sent."""

    def __init__(self, endpoint: str) -> None:
        """Tamper with nothing."""
        super().__init__(endpoint)
        self.sends: list[list[str]] = []
        self.refused: set[str] = set()
        self.lost_sends = 0
        self.lost_deletes = 0

    def send_batch(self, queue: str, messages: Sequence[NewMessage]) -> list[SentMessage | ClientError]:
        """Send all but those that are to be refused; lose the answer."""
        self.sends.append([each.body for each in messages])
        kept = [each for each in messages if each.body not in self.refused]
        answers = iter(super().send_batch(queue, kept)) if kept else iter(())
        refused = ClientError("InternalError", "Not now.", 500)
        found = [refused if each.body in self.refused else next(answers) for each in messages]
        if self.lost_sends:
            self.lost_sends -= 1
            raise Unreachable("here", "no answer in time")
        return found

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[ClientError | None]:
        """Delete nothing where the request is to be lost."""
        if self.lost_deletes:
            self.lost_deletes -= 1
            raise Unreachable("here", "no answer in time")
        return super().delete_batch(queue, receipts)


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server whose clock stands still, with an intake and two targets of each type."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as client:
        for name in QUEUES:
            client.create_queue(name, {"fifo": True} if name.endswith(".fifo") else {})
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[Tampered]:
    """A client that can be tampered with."""
    with Tampered(server.endpoint) as connected:
        yield connected


@pytest.fixture(params=["forward", "send"])
def way(request: pytest.FixtureRequest) -> str:
    """Which way messages are carried over."""
    name: str = request.param
    return name


def relay_of(way: str, client: Tampered, server: RunningServer, intake: str) -> Relay:
    """Return the carrier of a way."""
    fifo = intake.endswith(".fifo")
    if way == "forward":
        return ForwardRelay(Forwards(server.endpoint, intake), fifo=fifo)
    return SendRelay(client, intake, fifo=fifo)


def fill(client: HttpQueueClient, intake: str, *bodies: str, **more: Any) -> list[ReceivedMessage]:
    """Send to the intake, groups being first letters, and receive."""
    for body in bodies:
        fifo = intake.endswith(".fifo")
        client.send(intake, body, group=body[0], dedup_id=body if fifo else None, **more)
    return client.receive(intake, count=10, timeout_s=60)


def to(target: str, messages: Sequence[ReceivedMessage]) -> list[RelayedMessage]:
    """Return the messages on their way to one queue."""
    return [RelayedMessage(message, target) for message in messages]


def bodies(client: HttpQueueClient, queue: str) -> list[str]:
    """Receive and delete all that is in a queue."""
    found = []
    while got := client.receive(queue, count=10):
        found += [each.body for each in got]
        client.delete_batch(queue, [each.receipt for each in got])
    return found


def codes(outcomes: Sequence[RelayOutcome]) -> list[str | None]:
    """Return the codes of what went wrong."""
    return [None if each is None else getattr(each, "code", "Unreachable") for each in outcomes]


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_messages_come_to_their_queues_with_what_they_carry(
    server: RunningServer, client: Tampered, way: str, suffix: str
) -> None:
    attributes = {
        "kind": Attribute("String.x", "é"),
        "n": Attribute("Number", "1"),
        "raw": Attribute("Binary", data=b"\0"),
    }
    got = fill(client, f"jobs{suffix}", "a1", "b1", "a2", "b2", attributes=attributes)
    messages = [RelayedMessage(each, f"fast{suffix}" if each.body[0] == "a" else f"slow{suffix}") for each in got]
    assert relay_of(way, client, server, f"jobs{suffix}").relay(messages) == [None] * 4
    fast = client.receive(f"fast{suffix}", count=10)
    assert sorted(each.body for each in fast) == ["a1", "a2"]
    assert all((each.attributes, each.group) == (attributes, "a") for each in fast)
    assert sorted(bodies(client, f"slow{suffix}")) == ["b1", "b2"]
    status = client.show(f"jobs{suffix}")
    assert (status.visible, status.in_flight) == (0, 0)
    if way == "forward":
        assert {each.id for each in fast} == {each.id for each in got if each.body[0] == "a"}


@pytest.mark.parametrize("suffix", ["", ".fifo"], ids=["standard", "fifo"])
def test_one_missing_queue_keeps_its_messages_and_no_others(
    server: RunningServer, client: Tampered, way: str, suffix: str
) -> None:
    """In a FIFO queue the messages behind one that stays wait with it, and those of other groups go on."""
    got = fill(client, f"jobs{suffix}", "a1", "b1", "a2")
    by_body = {each.body: each for each in got}
    messages = [
        RelayedMessage(by_body["a1"], f"none{suffix}"),
        RelayedMessage(by_body["b1"], f"fast{suffix}"),
        RelayedMessage(by_body["a2"], f"fast{suffix}"),
    ]
    missing, *others = codes(relay_of(way, client, server, f"jobs{suffix}").relay(messages))
    assert missing in ("QueueNotFound", "QueueDoesNotExist")
    assert others == ([None, GROUP_HELD.code] if suffix else [None, None])
    assert bodies(client, f"fast{suffix}") == (["b1"] if suffix else ["b1", "a2"])
    assert client.show(f"jobs{suffix}").in_flight == (2 if suffix else 1)


def test_a_request_that_is_refused_as_a_whole_is_made_singly(server: RunningServer, client: Tampered) -> None:
    """As a server with credentials refuses a forward to several queues of which one is missing."""

    class Strict(Forwards):
        def forward(self, entries: Sequence[tuple[str, str]]) -> Any:
            if any(target == "none.fifo" for _, target in entries):
                raise ClientError("QueueNotFound", "There is none.", 404)
            return super().forward(entries)

    got = {each.body: each for each in fill(client, "jobs.fifo", "a1", "b1", "a2")}
    with Strict(server.endpoint, "jobs.fifo") as forwards:
        messages = [*to("none.fifo", [got["a1"]]), *to("fast.fifo", [got["b1"], got["a2"]])]
        outcomes = ForwardRelay(forwards, fifo=True).relay(messages)
    assert codes(outcomes) == ["QueueNotFound", None, GROUP_HELD.code]
    assert bodies(client, "fast.fifo") == ["b1"]


def test_a_target_may_be_named_by_its_url(server: RunningServer, client: Tampered, way: str) -> None:
    got = fill(client, "jobs", "a")
    url = f"{server.endpoint}/000000000000/fast"
    assert relay_of(way, client, server, "jobs").relay(to(url, got)) == [None]
    assert bodies(client, "fast") == ["a"]


# Sending and deleting.


def test_order_holds_where_a_message_of_a_batch_is_refused(server: RunningServer, client: Tampered) -> None:
    """Of each group one message at a time: what follows one that failed is not tried."""
    got = fill(client, "jobs.fifo", "a1", "a2", "b1", "a3", "b2")
    client.refused = {"a2"}
    outcomes = SendRelay(client, "jobs.fifo", fifo=True).relay(to("fast.fifo", got))
    found = dict(zip([each.body for each in got], codes(outcomes), strict=True))
    assert found == {"a1": None, "a2": "InternalError", "a3": GROUP_HELD.code, "b1": None, "b2": None}
    assert client.sends == [["a1", "b1"], ["a2", "b2"]]


@pytest.mark.parametrize("lost", ["lost_sends", "lost_deletes"])
def test_what_is_sent_and_not_deleted_comes_again_and_a_fifo_queue_stores_it_once(
    server: RunningServer, client: Tampered, lost: str
) -> None:
    """The id is the deduplication id, for five minutes; a standard queue stores it twice."""
    for suffix in ("", ".fifo"):
        got = fill(client, f"jobs{suffix}", "a1")
        setattr(client, lost, 1)
        (outcome,) = SendRelay(client, f"jobs{suffix}", fifo=bool(suffix)).relay(to(f"fast{suffix}", got))
        assert isinstance(outcome, Unreachable)
        server.advance(60_000)
        again = client.receive(f"jobs{suffix}")
        assert SendRelay(client, f"jobs{suffix}", fifo=bool(suffix)).relay(to(f"fast{suffix}", again)) == [None]
        assert bodies(client, f"fast{suffix}") == (["a1"] if suffix else ["a1", "a1"])
        assert client.show(f"jobs{suffix}").in_flight == 0


def test_a_forward_after_a_send_that_was_not_deleted_stores_it_once(server: RunningServer, client: Tampered) -> None:
    """Whoever changes from the one way to the other."""
    got = fill(client, "jobs.fifo", "a1")
    client.lost_deletes = 1
    SendRelay(client, "jobs.fifo", fifo=True).relay(to("fast.fifo", got))
    assert relay_of("forward", client, server, "jobs.fifo").relay(to("fast.fifo", got)) == [None]
    assert bodies(client, "fast.fifo") == ["a1"]
    assert client.show("jobs.fifo").in_flight == 0


def test_no_send_is_larger_than_every_server_takes(server: RunningServer, client: Tampered) -> None:
    """Large messages go alone."""
    large = "x" * (BATCH_BYTES_MAX - 10)
    got = fill(client, "jobs", "y", large, "z" * 20)
    assert SendRelay(client, "jobs", fifo=False).relay(to("fast", got)) == [None] * 3
    assert all(sum(map(len, batch)) <= BATCH_BYTES_MAX for batch in client.sends)
    assert len(client.sends) == 2
    assert sorted(map(len, bodies(client, "fast"))) == [1, 20, len(large)]

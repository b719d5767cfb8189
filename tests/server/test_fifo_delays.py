"""The delay of a FIFO queue counts for what waits: a message is due so long after its sending as the queue says now."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients import boto
from tests.clients.smq.raw import ask, message
from veilmq.testing import RunningServer

ACCOUNT = "000000000000"
STORES = pytest.mark.parametrize("store", ["folder", "postgres"])
BOTH = pytest.mark.parametrize("store", ["memory", "postgres"])

Place = Callable[[str], dict[str, Any]]
Step = tuple[str, Any]


class Orders:
    """A FIFO queue over a socket; a message's group is the first letter of its body."""

    def __init__(self, server: RunningServer, **settings: str) -> None:
        """Create the queue."""
        self.server = server
        self.sqs = boto.client(server.endpoint)
        attributes = {"FifoQueue": "true", "ContentBasedDeduplication": "true", **settings}
        self.url = self.sqs.create_queue(QueueName="orders.fifo", Attributes=attributes)["QueueUrl"]
        self.receipts: dict[str, str] = {}

    def delay(self, seconds: int) -> None:
        """Change the queue's delay."""
        self.sqs.set_queue_attributes(QueueUrl=self.url, Attributes={"DelaySeconds": str(seconds)})

    def send(self, bodies: str) -> None:
        """Send messages of one request."""
        entries = [{"Id": body, "MessageBody": body, "MessageGroupId": body[0]} for body in bodies.split()]
        assert "Failed" not in self.sqs.send_message_batch(QueueUrl=self.url, Entries=entries)

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.server.advance(seconds=seconds)

    def receive(self, expected: str, timeout_s: int = 600) -> None:
        """Receive, and compare bodies with how often each was received."""
        answer = self.sqs.receive_message(
            QueueUrl=self.url,
            MaxNumberOfMessages=10,
            VisibilityTimeout=timeout_s,
            AttributeNames=["ApproximateReceiveCount"],
        ).get("Messages", [])
        self.receipts |= {each["Body"]: each["ReceiptHandle"] for each in answer}
        shown = [f"{each['Body']}*{each['Attributes']['ApproximateReceiveCount']}" for each in answer]
        assert " ".join(shown).replace("*1", "") == expected

    def return_(self, body: str) -> None:
        """Make a message visible that was received."""
        self.sqs.change_message_visibility(QueueUrl=self.url, ReceiptHandle=self.receipts[body], VisibilityTimeout=0)

    def delete(self, bodies: str) -> None:
        """Delete messages that were received."""
        for body in bodies.split():
            self.sqs.delete_message(QueueUrl=self.url, ReceiptHandle=self.receipts[body])

    def counts(self, expected: str) -> None:
        """Compare how many messages are visible, in flight and delayed."""
        names = ["", "NotVisible", "Delayed"]
        answer = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        assert " ".join(answer[f"ApproximateNumberOfMessages{name}"] for name in names) == expected

    def play(self, *steps: Step) -> None:
        """Do one step after the other."""
        for name, value in steps:
            getattr(self, name)(value)


CASES: dict[str, tuple[int, tuple[Step, ...]]] = {
    "lowered to 0": (
        60,
        (("send", "a1"), ("counts", "0 0 1"), ("delay", 0), ("counts", "1 0 0"), ("send", "a2"), ("receive", "a1 a2")),
    ),
    "lowered, and some of it is left": (
        60,
        (
            *(("send", "a1"), ("wait", 5), ("delay", 10), ("send", "a2"), ("receive", ""), ("counts", "0 0 2")),
            *(("wait", 4.999), ("receive", ""), ("wait", 0.001), ("receive", "a1"), ("delete", "a1")),
            *(("wait", 4.999), ("receive", ""), ("wait", 0.001), ("receive", "a2"), ("counts", "0 1 0")),
        ),
    ),
    "lowered, with several groups": (
        60,
        (
            *(("send", "a1 b1"), ("wait", 1), ("send", "c1 a2"), ("delay", 0), ("send", "b2 d1")),
            ("receive", "a1 a2 b1 b2 c1 d1"),
        ),
    ),
    "raised": (
        0,
        (
            *(("send", "a1 b1"), ("wait", 5), ("delay", 10), ("counts", "0 0 2"), ("receive", ""), ("send", "a2")),
            *(("wait", 4.999), ("receive", ""), ("wait", 0.001), ("receive", "a1 b1"), ("counts", "0 2 1")),
        ),
    ),
    "raised, lowered, raised": (
        30,
        (
            *(("send", "a1"), ("delay", 60), ("wait", 30), ("receive", ""), ("delay", 20), ("delay", 40)),
            *(("counts", "0 0 1"), ("wait", 10), ("receive", "a1")),
        ),
    ),
    "what was received once is not delayed again": (
        0,
        (
            *(("send", "a1 a2 b1"), ("wait", 1), ("receive", "a1 a2 b1"), ("delay", 900), ("return_", "a2")),
            *(("return_", "a1"), ("counts", "2 1 0"), ("receive", "a1*2 a2*2")),
        ),
    ),
    "what comes back goes before what the new delay makes due": (
        60,
        (
            *(("send", "a1"), ("wait", 60), ("receive", "a1"), ("send", "a2"), ("delay", 0), ("counts", "1 1 0")),
            *(("receive", ""), ("return_", "a1"), ("receive", "a1*2 a2")),
        ),
    ),
}


@BOTH
@pytest.mark.parametrize("case", CASES)
def test_a_new_delay_counts_for_what_waits(case: str, store: str, place: Place) -> None:
    """And leaves the order of a group, its receive counts, and what was received as they were."""
    delay_s, steps = CASES[case]
    with RunningServer(**place(store)) as server:
        Orders(server, DelaySeconds=str(delay_s)).play(*steps)


@BOTH
def test_a_message_keeps_a_delay_of_its_own(store: str, place: Place) -> None:
    """SMQ gives one; it neither ends with the queue's nor begins with it."""
    with RunningServer(**place(store)) as server:
        orders = Orders(server)
        for body, delay_s in (("a1", 30), ("a2", 0)):
            sent = ask(
                server, "POST", "/queues/orders.fifo/messages", message(body, DelaySeconds=delay_s, MessageGroupId="a")
            )
            assert sent.status == 201, sent
        orders.play(("delay", 60), ("counts", "1 0 1"), ("receive", "a2"), ("delete", "a2"), ("delay", 0))
        orders.play(("counts", "0 0 1"), ("send", "a3"), ("receive", "a3"), ("delete", "a3"))
        orders.play(("wait", 30), ("receive", "a1"))


@BOTH
def test_a_long_poll_is_answered_when_the_delay_is_lowered(store: str, place: Place) -> None:
    """At once, though it was parked until the end of the old delay."""
    with RunningServer(**place(store)) as server:
        orders = Orders(server, DelaySeconds="900")
        orders.send("a1")
        answers: list[Any] = []

        def poll() -> None:
            answers.extend(orders.sqs.receive_message(QueueUrl=orders.url, WaitTimeSeconds=20)["Messages"])

        polling = threading.Thread(target=poll)
        polling.start()
        server.wait_parked()
        orders.delay(0)
        polling.join(10)
        assert [each["Body"] for each in answers] == ["a1"]


@STORES
def test_a_new_delay_counts_after_a_restart(store: str, place: Place) -> None:
    """Whichever way it was changed."""
    settings = place(store)
    with RunningServer(**settings) as server:
        orders = Orders(server, DelaySeconds="60")
        orders.play(("send", "a1 b1"), ("wait", 1), ("delay", 0), ("receive", "a1 b1"), ("delete", "a1"))
        orders.play(("send", "a2"), ("delay", 100), ("send", "c1"))
    with RunningServer(**settings, clock=server.clock) as server:
        orders = Orders(server, DelaySeconds="100")
        orders.play(("counts", "0 1 2"), ("receive", ""), ("delay", 10), ("wait", 9))
    with RunningServer(**settings, clock=server.clock) as server:
        orders = Orders(server, DelaySeconds="10")
        orders.play(("receive", ""), ("wait", 1), ("receive", "a2 c1"), ("counts", "0 3 0"))

"""Which visibility timeout a receive sends, and what is read of the queue."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from veilmq.client import HttpQueueClient
from veilmq.consumer.adaptive import Adaptive
from veilmq.consumer.clock import SystemClock
from veilmq.consumer.handlers import Options
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.nservicebus import NServiceBusPolicy
from veilmq.consumer.policies import Fixed, Policy
from veilmq.consumer.receiving import Receiver
from veilmq.testing import RunningServer

QUEUE = "orders"


class WatchedClient:
    """The real client; notes the timeouts that were sent, and how often the queue's settings were read."""

    def __init__(self, client: HttpQueueClient) -> None:
        """Note nothing yet."""
        self._client = client
        self.sent: list[int | None] = []
        self.reads = 0
        self.rules = ""

    def show(self, queue: str) -> Any:
        """Note the read."""
        self.reads += 1
        status = self._client.show(queue)
        return replace(status, settings=status.settings.changed({"visibility_rules": self.rules}))

    def receive(self, queue: str, **options: Any) -> Any:
        """Note the timeout."""
        self.sent.append(options["timeout_s"])
        return self._client.receive(queue, **{**options, "wait_s": 0})


@pytest.fixture
def client() -> Iterator[HttpQueueClient]:
    """Give a client of a server of its own."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as made:
        yield made


def received(client: HttpQueueClient, policy: Policy, *, rules: str = "") -> tuple[WatchedClient, list[int]]:
    """Receive three times from a queue with a message; return what was asked, and the leases' timeouts."""
    client.create_queue(QUEUE, {"visibility_timeout_s": 45})
    client.send(QUEUE, "x")
    watched: Any = WatchedClient(client)
    watched.rules = rules
    receiver = Receiver(watched, Options(queue=QUEUE, policy=policy), LeaseTable(SystemClock()))
    leases = [lease for _ in range(3) for lease in receiver.receive(10)]
    return watched, [lease.timeout_s for lease in leases]


@pytest.mark.parametrize("policy", [NServiceBusPolicy(), Adaptive()], ids=["nservicebus", "adaptive"])
def test_without_a_timeout_of_its_own_the_queues_is_read_once(client: HttpQueueClient, policy: Policy) -> None:
    """And nothing is sent, as long as nothing was observed."""
    watched, timeouts = received(client, policy)
    assert (watched.sent, watched.reads, timeouts) == ([None] * 3, 1, [45])


@pytest.mark.parametrize(
    "policy", [NServiceBusPolicy(message_visibility_timeout=120), Fixed(120)], ids=["nservicebus", "fixed"]
)
def test_a_timeout_of_its_own_is_sent_with_each_receive(client: HttpQueueClient, policy: Policy) -> None:
    """And nothing is read."""
    watched, timeouts = received(client, policy)
    assert (watched.sent, watched.reads, timeouts) == ([120] * 3, 0, [120])


def test_a_queue_that_would_give_each_message_another_timeout_is_sent_its_own(client: HttpQueueClient) -> None:
    """With visibility rules nobody tells which one a message was given."""
    watched, timeouts = received(client, NServiceBusPolicy(), rules="some")
    assert (watched.sent, watched.reads, timeouts) == ([45] * 3, 1, [45])

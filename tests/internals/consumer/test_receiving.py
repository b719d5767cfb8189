"""Which visibility timeout a receive sends, and what is read of the queue."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from veilmq.client import HttpQueueClient
from veilmq.consumer.clock import SystemClock
from veilmq.consumer.handlers import Options
from veilmq.consumer.intake import Receiver
from veilmq.consumer.leases import LeaseTable
from veilmq.consumer.renewal_policies import Adaptive, Fixed, NServiceBusPolicy, RenewalPolicy
from veilmq.core.settings import SettingValue
from veilmq.testing import RunningServer

QUEUE = "orders"
RULES = json.dumps({"version": 1, "classes": [{"name": "short", "visibility_timeout_s": 5}], "keys": {}, "default": 0})


class WatchedClient:
    """The real client; notes the timeouts that were sent, and how often the queue's settings were read."""

    def __init__(self, client: HttpQueueClient) -> None:
        """Note nothing yet."""
        self._client = client
        self.sent: list[int | None] = []
        self.reads = 0

    def show(self, queue: str) -> Any:
        """Note the read."""
        self.reads += 1
        return self._client.show(queue)

    def receive(self, queue: str, **options: Any) -> Any:
        """Note the timeout."""
        self.sent.append(options["timeout_s"])
        return self._client.receive(queue, **{**options, "wait_s": 0})


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """Run a server."""
    with RunningServer() as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[HttpQueueClient]:
    """Connect a client."""
    with HttpQueueClient(server.endpoint) as made:
        yield made


def received(
    client: HttpQueueClient, policy: RenewalPolicy, **settings: SettingValue
) -> tuple[WatchedClient, list[int]]:
    """Receive three times from a queue with a message; return what was asked, and the leases' timeouts."""
    client.create_queue(QUEUE, {"visibility_timeout_s": 45, **settings})
    client.send(QUEUE, "x")
    watched: Any = WatchedClient(client)
    receiver = Receiver(watched, Options(queue=QUEUE, policy=policy), LeaseTable(SystemClock()))
    leases = [lease for _ in range(3) for lease in receiver.receive(10)]
    return watched, [lease.timeout_s for lease in leases]


def test_nservicebus_reads_the_queues_timeout_once_and_sends_none(client: HttpQueueClient) -> None:
    """Where it has none of its own."""
    watched, timeouts = received(client, NServiceBusPolicy())
    assert (watched.sent, watched.reads, timeouts) == ([None] * 3, 1, [45])


def test_until_it_has_observed_something_adaptive_sends_the_queues_timeout(client: HttpQueueClient) -> None:
    """As it was read, once: whoever changes the queue's timeout meanwhile does not change the end of our leases."""
    watched, timeouts = received(client, Adaptive())
    assert (watched.sent, watched.reads, timeouts) == ([45] * 3, 1, [45])


@pytest.mark.parametrize(
    "policy", [NServiceBusPolicy(message_visibility_timeout=120), Fixed(120)], ids=["nservicebus", "fixed"]
)
def test_a_timeout_of_its_own_is_sent_with_each_receive(client: HttpQueueClient, policy: RenewalPolicy) -> None:
    """And nothing is read."""
    watched, timeouts = received(client, policy)
    assert (watched.sent, watched.reads, timeouts) == ([120] * 3, 0, [120])


@pytest.mark.parametrize("policy", [NServiceBusPolicy(), Adaptive()], ids=["nservicebus", "adaptive"])
def test_a_lease_ends_when_its_consumer_thinks_whatever_the_queues_rules(
    server: RunningServer, client: HttpQueueClient, policy: RenewalPolicy
) -> None:
    """With visibility rules no answer says which timeout a message was given; so each receive names one."""
    watched, timeouts = received(client, policy, visibility_rules=RULES)
    (held,) = server.queue(QUEUE).in_flight
    assert (watched.sent, watched.reads, timeouts) == ([45] * 3, 1, [45])
    assert held.visible_at_ms == server.clock.now_ms() + 45_000


def test_at_a_queue_with_rules_adaptive_sends_what_it_has_observed(
    server: RunningServer, client: HttpQueueClient
) -> None:
    """Nothing is left to the rules then either."""
    client.create_queue(QUEUE, {"visibility_rules": RULES})
    client.send(QUEUE, "x")
    table = LeaseTable(SystemClock())
    receiver = Receiver(client, Options(queue=QUEUE, policy=Adaptive(), wait_s=0), table)
    receiver.subscription.hold.add(100.0, now_s=table.clock.now_s())
    (lease,) = receiver.receive(10)
    (held,) = server.queue(QUEUE).in_flight
    assert lease.timeout_s > 120
    assert held.visible_at_ms == server.clock.now_ms() + lease.timeout_s * 1_000

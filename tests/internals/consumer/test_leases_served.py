"""Leases against the real server over real sockets: both clocks are moved together, by what is due."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import EVERYTHING
from tests.consumer.simulation import Play
from veilmq.client import HttpQueueClient
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.renewal_policies import Fixed, NServiceBusPolicy, RenewalPolicy
from veilmq.consumer.renewer import Renewer
from veilmq.testing import RunningServer


@pytest.fixture(params=["memory", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """Run a server with the queues "orders" and "orders.fifo", with a timeout of 30 s."""
    with RunningServer(**place(request.param)) as running, HttpQueueClient(running.endpoint) as client:
        client.create_queue("orders", {"visibility_timeout_s": 30})
        client.create_queue("orders.fifo", {"visibility_timeout_s": 30, "fifo": True, "content_deduplication": True})
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[HttpQueueClient]:
    """Connect a client."""
    with HttpQueueClient(server.endpoint) as connected:
        yield connected


class Served(Play):
    """A play whose other side is a server; ``receive`` holds what it gets."""

    def __init__(
        self, policy: RenewalPolicy, server: RunningServer, client: HttpQueueClient, *, queue: str = "orders"
    ) -> None:
        """Begin with both clocks at their origins."""
        super().__init__(policy, fifo=queue.endswith(".fifo"))
        self.renewer = Renewer(self.table, client, calls_max=1)
        self._server, self._client, self._name = server, client, queue
        self.subscription = self.table.subscribe(queue, policy, fifo=queue.endswith(".fifo"))

    def receive(self, *, timeout_s: int = 30) -> Lease:
        """Receive one message, and start its handler."""
        now_s = self.clock.now_s()
        messages = self._client.receive(self._name, timeout_s=timeout_s)
        (lease,) = self.table.take(
            self.subscription, messages, requested_at_s=now_s, answered_at_s=now_s, timeout_s=timeout_s
        )
        self.table.start(lease)
        return lease

    def until(self, at_s: float, *, late_s: float = 0.0) -> None:
        """Go to ``at_s``, renewing what is due on the way."""
        while (due_s := self.table.next_due_s()) is not None and max(due_s, self.clock.now_s()) + late_s <= at_s:
            self.stand_still(max(due_s, self.clock.now_s()) + late_s)
            self.renewer.run_due()
        self.stand_still(at_s)

    def stand_still(self, until_s: float) -> None:
        """Let the time pass without renewing anything."""
        self._server.advance(round((until_s - self.clock.now_s()) * 1_000))
        self.clock.set(until_s)


def test_the_last_renewal_and_what_comes_after_it(server: RunningServer, client: HttpQueueClient) -> None:
    """Renewed until T+290, receivable at T+330 and not before; the handler's late delete is tried and does no harm."""
    play = Served(NServiceBusPolicy(), server, client)
    client.send("orders", "hello")
    lease = play.receive()
    play.until(329.999)
    assert client.receive("orders") == []
    assert play.news == []
    play.until(330)
    assert play.news == [(330, lease.message.receipt, LeaseState.SUSPECT)]
    assert lease.renewals == 10
    (again,) = client.receive("orders")
    assert (again.id, again.receive_count) == (lease.message.id, 2)
    client.delete("orders", lease.message.receipt)
    client.delete("orders", again.receipt)


def test_two_seconds_late_and_alone(server: RunningServer, client: HttpQueueClient) -> None:
    """The message is hidden again for 32 s, and deleted when its handler ends."""
    play = Served(NServiceBusPolicy(), server, client)
    client.send("orders", "hello")
    lease = play.receive()
    play.stand_still(32)
    play.renewer.run_due()
    assert play.news == [(32, lease.message.receipt, LeaseState.SUSPECT)]
    assert lease.state is LeaseState.HELD, "the server says that nobody has had it"
    play.stand_still(32 + 31.9)
    assert client.receive("orders") == []
    client.delete("orders", lease.message.receipt)
    play.table.settle(lease)
    play.stand_still(100)
    assert client.receive("orders") == []


def test_two_seconds_late_with_a_competitor(server: RunningServer, client: HttpQueueClient) -> None:
    """Somebody else has received the message since: the lease is lost, at once, and his is not touched."""
    play = Served(NServiceBusPolicy(), server, client)
    client.send("orders", "hello")
    lease = play.receive()
    play.stand_still(31)
    (theirs,) = client.receive("orders", timeout_s=5)
    play.stand_still(32)
    play.renewer.run_due()
    assert play.news[-1:] == [(32, lease.message.receipt, LeaseState.LOST)]
    play.stand_still(36)
    assert client.receive("orders")[0].id == theirs.id


def test_a_message_that_is_deleted_under_its_handler_is_lost(server: RunningServer, client: HttpQueueClient) -> None:
    """V = 2: the next renewal finds out."""
    play = Served(NServiceBusPolicy(), server, client)
    client.send("orders", "hello")
    lease = play.receive(timeout_s=2)
    client.purge("orders")
    play.until(1)
    assert play.news == [(1, lease.message.receipt, LeaseState.LOST)]


def test_a_short_timeout_outlives_a_longer_handler(server: RunningServer, client: HttpQueueClient) -> None:
    """V = 1, a handler of 2 s: nobody else gets the message."""
    play = Served(NServiceBusPolicy(), server, client)
    client.send("orders", "hello")
    lease = play.receive(timeout_s=1)
    for tenth in range(1, 21):
        play.until(tenth / 10)
        assert client.receive("orders") == []
    assert lease.state is LeaseState.HELD


def test_a_heartbeat_and_a_crash(server: RunningServer, client: HttpQueueClient) -> None:
    """Two minutes, every minute; the process dies at 130 s, and the message is visible at 240 s."""
    play = Served(Fixed(120, 60), server, client)
    client.send("orders", "hello")
    play.receive(timeout_s=120)
    play.until(130)
    play.stand_still(239.999)
    assert client.receive("orders") == []
    play.stand_still(240)
    assert len(client.receive("orders")) == 1


@pytest.mark.parametrize("server", ["memory", pytest.param("postgres", marks=EVERYTHING)], indirect=True)
def test_the_twelve_hours_of_the_server_are_never_exceeded(server: RunningServer, client: HttpQueueClient) -> None:
    """It never refuses a renewal, and the lease ends with it and not by it."""
    play = Served(Fixed(3_600, 3_000), server, client)
    client.send("orders", "hello")
    lease = play.receive(timeout_s=3_600)
    play.until(43_197)
    assert client.receive("orders") == []
    assert lease.state is LeaseState.HELD
    play.until(43_198)
    assert play.news == [(43_198, lease.message.receipt, LeaseState.ENDED)]
    assert len(play.warnings) == 1
    assert len(client.receive("orders")) == 1


def test_a_fifo_lease_that_passed_is_lost(server: RunningServer, client: HttpQueueClient) -> None:
    """Whether by the clock or by the server's word, its group goes on with somebody else."""
    for policy in (Fixed(30, 20), NServiceBusPolicy()):
        play = Served(policy, server, client, queue="orders.fifo")
        client.send("orders.fifo", type(policy).__name__, group="a")
        lease = play.receive()
        play.stand_still(31)
        play.renewer.run_due()
        assert lease.state is LeaseState.LOST
        (again,) = client.receive("orders.fifo")
        client.delete("orders.fifo", again.receipt)

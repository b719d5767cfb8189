"""A database clock that steps: retention deletes nothing until the clock is right or trusted."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import urllib3

from tests.clients import boto
from tests.store.postgres_host import connected, leading, prepare
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.testing import RunningServer, VirtualClock
from veilmq.testing.clocks import START_MS
from veilmq.testing.running_server import Follow

DAY_MS = 86_400_000
STEP_MS = 5 * DAY_MS
RETENTION_S = 4 * 86_400
BODIES = [f"{group}{number}" for number in range(3) for group in "ab"]
CHECK_S = 25  # a node checks the clock every ten seconds, and doubts it after a second check
QUEUES = ("plain", "fair", "ordered.fifo")


class Stepping:
    """A database with the test's clock, which is ``ahead_ms`` ahead of the clocks of its nodes."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ahead_ms = 0

    def step(self, by_ms: int) -> None:
        self.ahead_ms += by_ms
        asyncio.run(self._step(by_ms))

    async def _step(self, by_ms: int) -> None:
        async with connected(self.url) as connection:
            await connection.execute("UPDATE mq.test_clock SET now_ms = now_ms + $1", by_ms)

    def node(self, start_ms: int = START_MS) -> RunningServer:
        """Return a node whose local clocks never step."""
        return RunningServer(store=self.url, follow=self._following, clock=VirtualClock(start_ms))

    @contextlib.asynccontextmanager
    async def _following(self) -> AsyncIterator[Follow]:
        async with leading(self.url) as lead:

            async def follow(now_ms: int) -> None:
                await lead(now_ms + self.ahead_ms)

            yield follow


@pytest.fixture
def database(new_database: str) -> Stepping:
    """A database whose retention is guarded against steps, as in production."""
    asyncio.run(prepare(new_database, guarded=True))
    return Stepping(new_database)


@pytest.fixture
def node(database: Stepping) -> Iterator[RunningServer]:
    """A node that has confirmed the clock; queues of each kind with six messages each."""
    with database.node() as server:
        server.advance(seconds=CHECK_S)
        with HttpQueueClient(server.endpoint) as client:
            for name in QUEUES:
                server.queue(name, retention_s=RETENTION_S)
                client.send_batch(name, [_message(name, body) for body in BODIES])
        yield server


def _message(queue: str, body: str) -> NewMessage:
    if queue == "plain":
        return NewMessage(body=body)
    return NewMessage(body=body, group=body[0], dedup_id=body if queue.endswith(".fifo") else None)


def received(server: RunningServer, queue: str) -> list[str]:
    with HttpQueueClient(server.endpoint) as client:
        return sorted(message.body for message in client.receive(queue, count=10, wait_s=0, timeout_s=0))


def health(server: RunningServer) -> str:
    reply = urllib3.request("GET", server.admin_endpoint + "/health/ready")
    assert reply.status == 200
    return reply.data.decode()


def is_doubted(server: RunningServer) -> bool:
    metrics = urllib3.request("GET", server.admin_endpoint + "/metrics").data.decode()
    (line,) = [line for line in metrics.splitlines() if line.startswith("veilmq_store_clock_doubted ")]
    return line.endswith(" 1.0")


def trust(server: RunningServer) -> Any:
    """Trust the clock through the API; return the message of the reply."""
    reply = urllib3.request("POST", server.admin_endpoint + "/api/clock/trust")
    assert reply.status == 200
    return reply.json()["message"]


@pytest.mark.parametrize("queue", QUEUES)
def test_a_step_forward_deletes_no_messages(database: Stepping, node: RunningServer, queue: str) -> None:
    """Neither the next receive nor the janitor deletes any while the clock is doubted."""
    database.step(STEP_MS)
    received(node, queue)
    node.advance(seconds=3 * CHECK_S)
    assert "degraded" in health(node)
    assert "veilmq clock trust" in health(node)
    assert is_doubted(node)
    node.advance(seconds=300)  # long enough for the janitor
    assert received(node, queue) == sorted(BODIES)


def test_a_short_retention_deletes_no_messages_while_the_clock_is_doubted(
    database: Stepping, node: RunningServer
) -> None:
    node.queue("brief", retention_s=300)
    with HttpQueueClient(node.endpoint) as client:
        client.send("brief", "kept")
    database.step(STEP_MS)
    node.advance(seconds=CHECK_S)
    assert is_doubted(node)
    node.advance(seconds=600)
    assert received(node, "brief") == ["kept"]


@pytest.mark.parametrize("step_ms", [STEP_MS, -STEP_MS], ids=["forward", "backward"])
def test_the_doubt_ends_when_the_step_is_undone(
    database: Stepping, node: RunningServer, step_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    database.step(step_ms)
    node.advance(seconds=300)
    assert is_doubted(node)
    assert "the database's clock is doubted" in caplog.text
    console = urllib3.request("GET", node.admin_endpoint + "/console/health").data.decode()
    assert "The clock of the database is doubted" in console
    database.step(-step_ms)
    node.advance(seconds=CHECK_S)
    assert not is_doubted(node)
    assert "degraded" not in health(node)
    assert [received(node, queue) for queue in QUEUES] == [sorted(BODIES)] * len(QUEUES)


def test_retention_uses_a_trusted_clock(database: Stepping, node: RunningServer) -> None:
    database.step(STEP_MS)
    node.advance(seconds=CHECK_S)
    assert "retention deletes again" in trust(node)
    assert not is_doubted(node)
    assert [received(node, queue) for queue in QUEUES] == [[]] * len(QUEUES)
    assert trust(node) == "The clock is trusted: nothing is held back."


def test_a_node_that_started_after_the_step_deletes_no_messages(database: Stepping, node: RunningServer) -> None:
    """Not even if its own wall clock agrees with the database's."""
    database.step(STEP_MS)
    node.advance(seconds=CHECK_S)
    with database.node(START_MS + STEP_MS) as other:
        database.ahead_ms = 0  # of the other's clocks
        other.advance(seconds=300)
        assert is_doubted(other)
        assert received(other, "plain") == sorted(BODIES)


def test_days_without_a_node_are_no_step(database: Stepping, node: RunningServer) -> None:
    """If a new node's wall clock agrees with the database's, retention deletes."""
    node.stop()
    with database.node(START_MS + STEP_MS) as later:
        later.advance(seconds=2 * CHECK_S)
        assert not is_doubted(later)
        assert received(later, "plain") == []


def test_a_new_node_doubts_a_clock_that_differs_from_its_own(database: Stepping, node: RunningServer) -> None:
    node.stop()
    database.step(STEP_MS)
    with database.node(START_MS + 60_000) as later:
        later.advance(seconds=CHECK_S)
        assert is_doubted(later)
        assert received(later, "plain") == sorted(BODIES)


def test_retention_deletes_messages_when_they_are_due(database: Stepping, node: RunningServer) -> None:
    node.advance(seconds=RETENTION_S - 60)
    assert not is_doubted(node)
    assert received(node, "plain") == sorted(BODIES)
    node.advance(seconds=700)
    assert received(node, "plain") == []


@pytest.mark.parametrize("store", ["memory", "postgres"])
def test_a_lower_delay_of_a_fifo_queue_wakes_long_polls(
    store: str, store_settings: Callable[[str], dict[str, Any]]
) -> None:
    """The delay applies to waiting messages too."""
    with RunningServer(**store_settings(store)) as server, HttpQueueClient(server.endpoint) as client:
        server.queue("orders.fifo", fifo=True, delay_s=900)
        client.send("orders.fifo", "a1", group="a", dedup_id="1")
        with ThreadPoolExecutor(1) as pool:
            polling = pool.submit(client.receive, "orders.fifo", wait_s=20)
            server.wait_parked()
            delay = {"DelaySeconds": "0"}
            sqs = boto.client(server.endpoint)
            sqs.set_queue_attributes(QueueUrl=f"{server.endpoint}/000000000000/orders.fifo", Attributes=delay)
            assert [each.body for each in polling.result(60)] == ["a1"]

"""Rejected messages: a veilmq server moves them, so that a redrive brings them back; elsewhere they are copied."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients import boto
from veilmq.client import HttpQueueClient, SigningKey
from veilmq.client.boto import BotoQueueClient
from veilmq.client.sqs import QueueClient
from veilmq.consumer import Consumer, Reject
from veilmq.core.messages import Attribute
from veilmq.testing import RunningServer

OWN = {"kind": Attribute("String", "x"), "raw": Attribute("Binary", data=b"\x00")}
REASON = "no such article: 🧦"
TEN = {f"a{number}": Attribute("String", "x") for number in range(10)}


@pytest.fixture(params=["folder", "postgres"])
def server(request: pytest.FixtureRequest, place: Callable[[str], dict[str, Any]]) -> Iterator[RunningServer]:
    """A server with two queues of each type, and the dead-letter queue of each pair."""
    with RunningServer(**place(request.param)) as running, HttpQueueClient(running.endpoint) as client:
        for suffix, settings in (("", {}), (".fifo", {"fifo": True})):
            client.create_queue(f"dead{suffix}", settings)
            client.create_queue(f"work{suffix}", {**settings, "dead_letter_queue": f"dead{suffix}", "receives_max": 9})
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[HttpQueueClient]:
    """Look at the queues from beside the consumer."""
    with HttpQueueClient(server.endpoint) as connected:
        yield connected


def run(
    server: RunningServer, queue: str, *, until: Callable[[], object], reject: bool, own: QueueClient | None = None
) -> list[str]:
    """Consume ``queue`` until something holds, rejecting all of it or nothing; return the bodies that were handled."""
    app = Consumer(queue, endpoint=server.endpoint, client=own)
    bodies: list[str] = []

    @app.handler(wait="1s")
    async def work(body: str) -> None:
        bodies.append(body)
        if reject:
            raise Reject(f"{REASON}\x08")

    async def consume() -> None:
        async with app.running() as running:
            await asyncio.to_thread(server.wait_until, until)
            stopping = asyncio.create_task(running.stop())
            while not stopping.done():  # a poll through boto3 waits for its time
                if server.parked:
                    server.advance(1_000)
                await asyncio.sleep(0)

    asyncio.run(consume())
    return bodies


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_a_redrive_brings_a_rejected_message_back(server: RunningServer, client: HttpQueueClient, suffix: str) -> None:
    """The dead letter is the message itself, with the reason; its source is the queue that it was rejected in."""
    work, dead = f"work{suffix}", f"dead{suffix}"
    group, dedup_id = ("g", "d") if suffix else (None, None)
    sent = client.send(work, "a", attributes=OWN, group=group, dedup_id=dedup_id)
    run(server, work, reject=True, until=lambda: client.show(dead).visible)
    assert (client.show(work).visible, client.show(work).in_flight) == (0, 0)

    (letter,) = client.receive(dead, timeout_s=0)
    assert (letter.id, letter.body, letter.receive_count, letter.group) == (sent.id, "a", 2, group)
    assert {name: letter.attributes[name] for name in OWN} == OWN
    assert letter.attributes["veilmq-reason"].text == REASON
    assert letter.attributes["veilmq-queue"].text == work

    client.start_move(dead)
    handled = run(server, work, reject=False, until=lambda: _moved(server, client, dead, work))
    assert handled == ["a"]
    assert client.show(dead).visible == 0


def _moved(server: RunningServer, client: HttpQueueClient, dead: str, work: str) -> bool:
    server.advance(1_000)
    (move,) = client.moves(dead)
    status = client.show(work)
    return (move.status, move.messages_moved) == ("completed", 1) and not (status.visible or status.in_flight)


def test_the_reason_stays_readable_beside_ten_attributes(server: RunningServer, client: HttpQueueClient) -> None:
    """No message is sent with more, but this one was."""
    client.send("work", "a", attributes=TEN)
    run(server, "work", reject=True, until=lambda: client.show("dead").visible)
    (letter,) = client.receive("dead")
    assert letter.attributes == TEN | {"veilmq-reason": Attribute("String", REASON)}


def test_a_dead_letter_is_visible_at_once_whatever_the_delay(server: RunningServer, client: HttpQueueClient) -> None:
    client.set("dead", {"delay_s": 600})
    client.send("work", "a")
    run(server, "work", reject=True, until=lambda: client.show("dead").visible)


def test_a_rejected_dead_letter_of_a_fifo_queue_is_nobodys_duplicate(
    server: RunningServer, client: HttpQueueClient
) -> None:
    """Two messages that shared a deduplication id in their lives are two dead letters, in order."""
    for number in range(2):
        client.send("work.fifo", str(number), group="g", dedup_id=f"d{number}")
    run(server, "work.fifo", reject=True, until=lambda: client.show("dead.fifo").visible == 2)
    assert [letter.body for letter in client.receive("dead.fifo", count=10)] == ["0", "1"]


def test_through_boto3_it_is_copied(server: RunningServer, client: HttpQueueClient) -> None:
    """As on a server that knows no dead letters of clients: another message, which names the first."""
    sqs = boto.client(server.endpoint)
    sent = client.send("work", "a")
    run(server, "work", reject=True, until=lambda: client.show("dead").visible, own=BotoQueueClient(sqs))
    (letter,) = client.receive("dead")
    assert letter.id != sent.id
    assert letter.attributes["veilmq-message-id"].text == sent.id


def is_there(client: HttpQueueClient) -> bool:
    """Tell whether the message is in its queue still."""
    status = client.show("work")
    return bool(status.visible or status.in_flight or status.delayed)


def test_in_another_region_it_stays_there() -> None:
    """The dead-letter queue that a queue names is of its region."""
    key = SigningKey(id="123456789012", secret="any", region="eu-west-1")
    with RunningServer(regions="by-request") as server, HttpQueueClient(server.endpoint, key=key) as there:
        there.create_queue("dead", {})
        url = there.create_queue("work", {"dead_letter_queue": "dead", "receives_max": 9})
        for queue in ("work", url):
            there.send("work", queue)
            own = HttpQueueClient(server.endpoint, key=key)
            run(server, queue, reject=True, until=lambda: not is_there(there), own=own)
        assert sorted(letter.body for letter in there.receive("dead", count=10)) == sorted(["work", url])

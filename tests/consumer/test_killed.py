"""A worker process that is killed in the middle of its handlers: each message is handled by another, none is lost."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from tests.clients.program import Program
from tests.consumer.workbench import WAIT, Workbench, workbench
from tests.tidy.tree import SRC
from veilmq.client import NewMessage, ReceivedMessage

QUEUE = "work"
MESSAGES = 24
CONCURRENCY = 8


@pytest.fixture
def bench() -> Iterator[Workbench]:
    """Give a server."""
    with workbench() as made:
        yield made


def test_each_message_of_a_killed_worker_is_handled_by_another(bench: Workbench) -> None:
    """What it had deleted is not delivered again; what it had not is, exactly that, when its lease has ended."""
    app, queue = bench.consumer(QUEUE), bench.server.queue(QUEUE)
    sent = {f"m{number}" for number in range(MESSAGES)}
    bodies = sorted(sent)
    for first in range(0, MESSAGES, 8):
        bench.client.send_batch(QUEUE, [NewMessage(body=body) for body in bodies[first : first + 8]])
    program = Program(
        [sys.executable, "-m", "tests.consumer.stuck_worker"], endpoint=bench.server.endpoint, PYTHONPATH=str(SRC)
    )
    with program:
        begun = {program.expect("event", "begun")["body"] for _ in range(CONCURRENCY + 4)}
    bench.server.settle()
    leased = {message.body for message in queue.in_flight}
    deleted = sent - set(queue.bodies)
    assert {body for body in begun if not ends(body)} <= leased, "it was killed in the middle of these"
    assert all(map(ends, deleted))
    handled: list[tuple[str, int]] = []

    @app.handler(wait=WAIT)
    async def work(message: ReceivedMessage) -> None:
        handled.append((message.body, message.receive_count))

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)
            assert not leased.intersection(body for body, _ in handled), "leases of the dead are respected"
            bench.server.advance(30_000)
            await bench.settled(running)

    asyncio.run(scenario())
    assert sorted(body for body, _ in handled) == sorted(sent - deleted), "none is lost, none is handled twice here"
    assert {body for body, count in handled if count > 1} == leased, "delivered again is what it held, and only that"
    assert bench.counts(QUEUE) == (0, 0)


def ends(body: str) -> bool:
    """Tell whether the worker's handler ends with a message of this body, or gets stuck."""
    return int(body[1:]) % 2 == 0

"""A worker process that is killed in the middle of its handlers: each message is handled by another, none is lost."""

import asyncio
import sys
from collections.abc import Iterator

import pytest

from tests.clients.program import Program
from tests.consumer.workbench import WAIT, Workbench, workbench
from tests.tidy.tree import SRC
from veilmq.client import NewMessage

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
    app = bench.consumer(QUEUE)
    sent = [f"m{number}" for number in range(MESSAGES)]
    for first in range(0, MESSAGES, 8):
        bench.client.send_batch(QUEUE, [NewMessage(body=body) for body in sent[first : first + 8]])
    program = Program(
        [sys.executable, "-m", "tests.consumer.stuck_worker"], endpoint=bench.server.endpoint, PYTHONPATH=str(SRC)
    )
    with program:
        begun = {program.expect("event", "begun")["body"] for _ in range(CONCURRENCY + 4)}
    done = {body for body in begun if int(body[1:]) % 2 == 0}
    _, in_flight = bench.counts(QUEUE)
    assert len(begun) == CONCURRENCY + 4
    handled: list[tuple[str, int]] = []

    @app.handler(wait=WAIT)
    async def work(body: str) -> None:
        handled.append((body, 1))

    async def scenario() -> None:
        async with bench.working(app) as running:
            await bench.settled(running)
            assert len(handled) <= MESSAGES - in_flight, "leases of the dead are respected"
            bench.server.advance(30_000)
            await bench.settled(running)
            events = running.runners[0].counts.events
            assert events["redelivered"] == in_flight

    asyncio.run(scenario())
    bodies = [body for body, _ in handled]
    assert len(bodies) == len(set(bodies)), "nothing is handled twice here"
    assert set(sent) - set(bodies) <= done, "none is lost: what is not handled here was done before"
    assert bench.counts(QUEUE) == (0, 0)

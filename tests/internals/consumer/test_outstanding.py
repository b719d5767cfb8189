"""Bodies in our hands: what is asked for next, and that the limit keeps nobody waiting for good."""

import asyncio
from dataclasses import replace

from tests.consumer.simulation import message
from tests.consumer.workbench import WAIT, until, workbench
from veilmq.client import NewMessage
from veilmq.consumer.intake import Outstanding, body_bytes

BODY = replace(message("r"), body="x" * 10)


def test_without_a_message_there_is_room() -> None:
    """Nobody knows how large the first will be."""
    assert Outstanding(1).room(10) == 10


def test_the_mean_says_how_many_may_come() -> None:
    """As many as fit, one while anything is left, none beyond the limit."""
    outstanding = Outstanding(45)
    outstanding.add(BODY)
    assert [outstanding.room(most) for most in (10, 3, 0, -2)] == [3, 3, 0, -2]
    for _ in range(3):
        outstanding.add(BODY)
    assert outstanding.room(10) == 1
    outstanding.add(BODY)
    assert (outstanding.held_bytes, outstanding.room(10)) == (50, 0)
    outstanding.remove(BODY)
    assert outstanding.room(10) == 1


def test_one_that_is_too_large_is_handled_all_the_same() -> None:
    """Alone."""
    outstanding = Outstanding(5)
    outstanding.add(BODY)
    assert outstanding.room(10) == 0
    outstanding.remove(BODY)
    assert outstanding.room(10) == 1


def test_bodies_are_measured_as_they_travel() -> None:
    """In UTF-8."""
    assert [body_bytes(replace(BODY, body=body)) for body in ("", "abc", "äöü", "€")] == [0, 3, 6, 3]


def test_a_consumer_holds_no_more_than_its_limit_and_goes_on_after_each_settle() -> None:
    """25 bytes are two messages and half of a third, which is the last that may come; the others wait at the queue."""
    with workbench() as bench:
        app = bench.consumer("large")
        held: list[int] = []
        bodies: list[str] = []

        @app.handler(wait=WAIT, max_outstanding_bytes=25, concurrency=8)
        async def work(body: str) -> None:
            bodies.append(body)

        async def scenario() -> None:
            bench.client.send("large", "0" * 30)
            async with bench.working(app) as running:
                await until(lambda: bodies)
                app.on("receive", lambda ctx: held.append(running.runners[0].held))
                for number in range(1, 31, 10):
                    batch = [NewMessage(body=f"{place:010d}") for place in range(number, number + 10)]
                    bench.client.send_batch("large", batch)
                await until(lambda: len(bodies) == 31)
                await bench.settled(running)

        asyncio.run(scenario())
    assert max(held) <= 3

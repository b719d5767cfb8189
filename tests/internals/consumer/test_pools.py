"""Each outcome in each pool, against a real server: what becomes of the message."""

from collections.abc import Iterator

import pytest

from tests.consumer import acting
from tests.consumer.workbench import WAIT, Workbench, workbench
from veilmq.consumer import Backoff
from veilmq.core.limits import MESSAGE_BYTES

POOLS = {"async": acting.act_async, "thread": acting.act, "process": acting.act}


@pytest.fixture
def bench() -> Iterator[Workbench]:
    with workbench() as made:
        made.client.create_queue("dead")
        yield made


@pytest.mark.parametrize("pool", POOLS)
async def test_each_outcome_in_each_pool(bench: Workbench, pool: str) -> None:
    """Done and dropped are deleted; retried are hidden for just as long; rejected are copied with the reason."""
    app = bench.consumer("work")
    app.declare(
        POOLS[pool], pool=pool, concurrency=2, wait=WAIT, dead_letter="dead", retry=Backoff("3s", jitter="none")
    )
    ids = {body: bench.client.send("work", body).id for body in ("done", "drop", "reject", "retry", "crash")}

    async with bench.working(app) as running:
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert (events["acked"], events["dropped"], events["rejected"], events["retried"]) == (1, 1, 1, 2)
        assert bench.counts("work") == (0, 2)
        bench.server.advance(2_999)
        assert bench.counts("work") == (0, 2), "three seconds of backoff are not over"
        bench.server.advance(1)
        await bench.settled(running)
        assert (events["acked"], bench.counts("work")) == (2, (0, 1))
        bench.server.advance(1_000 * acting.RETRY_S - 3_001)
        assert bench.counts("work") == (0, 1)
        bench.server.advance(1)
        await bench.settled(running)
        assert (events["acked"], bench.counts("work")) == (3, (0, 0))
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    told = {name: value.text for name, value in letter.attributes.items()}
    assert letter.body == "reject"
    assert told["veilmq-reason"] == "bad schema"
    assert told["veilmq-error"] == "Reject"
    assert told["veilmq-message-id"] == ids["reject"]
    assert (told["veilmq-queue"], told["veilmq-attempt"]) == ("work", "1")


@pytest.mark.parametrize("pool", ["thread", "process"])
async def test_what_cannot_be_decoded_is_rejected(bench: Workbench, pool: str) -> None:
    """The handler never sees it; the next message is handled."""
    app = bench.consumer("numbers")
    app.declare(acting.takes_number, pool=pool, concurrency=1, wait=WAIT, dead_letter="dead")
    for body in ("one", "1"):
        bench.client.send("numbers", body)

    async with bench.working(app) as running:
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert (events["acked"], events["rejected"]) == (1, 1)
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    assert (letter.body, letter.attributes["veilmq-error"].text) == ("one", "Undecodable")


async def test_a_process_that_dies_fails_its_message_alone(bench: Workbench) -> None:
    """The message comes back and is handled by another process."""
    app = bench.consumer("deadly")
    app.declare(acting.die, pool="process", concurrency=1, wait=WAIT, retry=Backoff("2s", jitter="none"))
    bench.client.send("deadly", "x")

    async with bench.working(app) as running:
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert (events["retried"], bench.counts("deadly")) == (1, (0, 1))
        bench.server.advance(2_000)
        await bench.settled(running)
        assert (events["acked"], bench.counts("deadly")) == (1, (0, 0))


async def test_a_rejected_message_stays_while_it_cannot_be_copied(bench: Workbench) -> None:
    """No dead-letter queue, no deletion: the copy comes first."""
    app = bench.consumer("kept")
    app.declare(acting.act_async, wait=WAIT, dead_letter="nowhere", retry=Backoff("5s", jitter="none"))
    bench.client.send("kept", "reject")

    async with bench.working(app) as running:
        await bench.settled(running)
        assert bench.counts("kept") == (0, 1)
        bench.client.create_queue("nowhere")
        bench.server.advance(5_000)
        await bench.settled(running)
        assert (bench.counts("kept"), bench.counts("nowhere")) == ((0, 0), (1, 0))


async def test_a_message_of_the_greatest_length_is_copied_without_reasons(bench: Workbench) -> None:
    """It would be too long with them."""
    app = bench.consumer("long")
    app.declare(acting.takes_number, wait=WAIT, dead_letter="dead")
    bench.client.send("long", "x" * MESSAGE_BYTES.maximum)

    async with bench.working(app) as running:
        await bench.settled(running)
        assert running.runners[0].counts.events["rejected"] == 1
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    assert (len(letter.body), letter.attributes) == (MESSAGE_BYTES.maximum, {})


async def test_the_queues_own_dead_letter_queue_is_used(bench: Workbench) -> None:
    """Without an option the redrive rule of the queue names it; attempts that are used up are a rejection."""
    app = bench.consumer("ruled", dead_letter_queue="dead", receives_max=9)
    bench.client.send("ruled", "crash")
    app.declare(acting.act_async, wait=WAIT, retry=Backoff("1s", attempts=1))

    async with bench.working(app) as running:
        await bench.settled(running)
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    assert letter.attributes["veilmq-error"].text == "LookupError"
    assert "not yet" in (letter.attributes["veilmq-trace"].text or "")

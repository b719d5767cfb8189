"""Each outcome in each pool, against a real server: what becomes of the message."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.consumer import acting
from tests.consumer.workbench import WAIT, Workbench, event, workbench
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
    options: Any = {"pool": pool, "concurrency": 2, "dead_letter": "dead", "retry": Backoff("3s", jitter="none")}
    async with bench.handling(POOLS[pool], "done", "drop", "reject", "retry", "crash", **options) as running:
        await bench.settled(running)
        events = running.runners[0].counts.events
        assert (events["acked"], events["dropped"], events["rejected"], events["retried"]) == (1, 1, 1, 2)
        assert bench.counts("orders") == (0, 2)
        bench.server.advance(2_999)
        assert bench.counts("orders") == (0, 2), "three seconds of backoff are not over"
        bench.server.advance(1)
        await bench.settled(running)
        assert (events["acked"], bench.counts("orders")) == (2, (0, 1))
        bench.server.advance(1_000 * acting.RETRY_S - 3_001)
        assert bench.counts("orders") == (0, 1)
        bench.server.advance(1)
        await bench.settled(running)
        assert (events["acked"], bench.counts("orders")) == (3, (0, 0))
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    told = {name: value.text for name, value in letter.attributes.items()}
    assert letter.body == "reject"
    assert told["veilmq-reason"] == "bad schema"
    assert told["veilmq-error"] == "Reject"
    assert told["veilmq-message-id"] == bench.sent[2]
    assert (told["veilmq-queue"], told["veilmq-attempt"]) == ("orders", "1")


@pytest.mark.parametrize("pool", ["thread", "process"])
async def test_what_cannot_be_decoded_is_rejected(bench: Workbench, pool: str) -> None:
    """The handler never sees it; the next message is handled."""
    options: Any = {"pool": pool, "concurrency": 1, "dead_letter": "dead"}
    async with bench.handling(acting.takes_number, "one", "1", **options) as running:
        await bench.settled(running)
        assert (event(running, "acked"), event(running, "rejected")) == (1, 1)
    (letter,) = bench.client.receive("dead", count=10, wait_s=0)
    assert (letter.body, letter.attributes["veilmq-error"].text) == ("one", "Undecodable")


async def test_a_process_that_dies_fails_its_message_alone(bench: Workbench) -> None:
    """The message comes back and is handled by another process."""
    options: Any = {"pool": "process", "concurrency": 1, "retry": Backoff("2s", jitter="none")}
    async with bench.handling(acting.die, "x", **options) as running:
        await bench.settled(running)
        assert (event(running, "retried"), bench.counts("orders")) == (1, (0, 1))
        bench.server.advance(2_000)
        await bench.settled(running)
        assert (event(running, "acked"), bench.counts("orders")) == (1, (0, 0))


async def test_a_rejected_message_stays_while_it_cannot_be_copied(bench: Workbench) -> None:
    """No dead-letter queue, no deletion: the copy comes first."""
    options: Any = {"dead_letter": "nowhere", "retry": Backoff("5s", jitter="none")}
    async with bench.handling(acting.act_async, "reject", **options) as running:
        await bench.settled(running)
        assert bench.counts("orders") == (0, 1)
        bench.client.create_queue("nowhere")
        bench.server.advance(5_000)
        await bench.settled(running)
        assert (bench.counts("orders"), bench.counts("nowhere")) == ((0, 0), (1, 0))


async def test_a_message_of_the_greatest_length_is_copied_without_reasons(bench: Workbench) -> None:
    async with bench.handling(acting.takes_number, "x" * MESSAGE_BYTES.maximum, dead_letter="dead") as running:
        await bench.settled(running)
        assert event(running, "rejected") == 1
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

"""The proof of wake-ups: on an idle cluster of three nodes, long polls at one hear of sends at another."""

import os
import random
import statistics
import threading
import time
from contextlib import closing
from typing import Any

import pytest

from tests.proofs.callers import PATIENCE_S
from tests.proofs.served import Served, StartNode
from tests.proofs.sqs_caller import SqsCaller

WHOLE = os.environ.get("PROVE") == "whole"
NODES = 3
WAKES = 100 if WHOLE else 3
SEED = 20_261_123
QUEUE = "polled"
WAKE_MS_MAX = 50
LOOKS_MAX = 6  # should the send be late


@pytest.fixture
def nodes(start_node: StartNode) -> list[Served]:
    """Return running nodes on one database with a queue."""
    running = [start_node() for _ in range(NODES)]
    with closing(SqsCaller(running[0].port, QUEUE)) as maker:
        maker.call("CreateQueue", QueueName=QUEUE)
    return running


@pytest.mark.slow
def test_long_polls_hear_of_sends_at_other_nodes(nodes: list[Served], capsys: pytest.CaptureFixture[str]) -> None:
    """On an idle cluster, within milliseconds."""
    chance = random.Random(SEED)
    latencies_ms = [wake_ms(nodes, chance) for _ in range(WAKES)]
    with capsys.disabled():
        print(f"\n{wakes(latencies_ms)}")  # noqa: T201 - a proof shows its figures
    if WHOLE:  # that it is a notice that wakes, and no look of the node's own, is shown in virtual time
        assert statistics.median(latencies_ms) <= WAKE_MS_MAX


def wakes(latencies_ms: list[float]) -> str:
    """Return how fast a long poll heard of a send at another node."""
    return (
        f"from a send acknowledged at one node to its long poll answered at another:"
        f" median {statistics.median(latencies_ms):.1f} ms, at most {max(latencies_ms):.1f} ms, of {len(latencies_ms)}"
    )


def wake_ms(nodes: list[Served], chance: random.Random) -> float:
    """Return how long after a send at one node its message was there for a long poll at another."""
    here, there = chance.sample(nodes, 2)
    got: list[float] = []

    def received(caller: SqsCaller) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = caller.call("ReceiveMessage", WaitTimeSeconds=9).get("Messages", [])
        return messages

    def wait() -> None:
        with closing(SqsCaller(there.port, QUEUE)) as caller:
            (message,) = next(filter(None, (received(caller) for _ in range(LOOKS_MAX))))
            got.append(time.monotonic())
            caller.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(chance.uniform(0.2, 0.4))
    with closing(SqsCaller(here.port, QUEUE)) as caller:
        caller.call("SendMessage", MessageBody="wake")
    sent_s = time.monotonic()
    waiting.join(PATIENCE_S)
    (got_s,) = got
    return max(0.0, got_s - sent_s) * 1_000

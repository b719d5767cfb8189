"""The proof of nodes: producers and consumers ask any of three nodes, which are killed and started again.

A standard queue and a FIFO queue are filled and emptied at one time, each request through any node; nodes are killed
with SIGKILL at any moment. Afterwards every acknowledged send is there unless its delete was asked for, no message was
delivered while a receipt of it was in force, no delete came undone, receive counts lie between the receives answered
and attempted, and each group was given in its order. Before that, on an idle cluster, long polls at one node hear of
sends at another. `PROVE=whole` kills thirty times.
"""

import os
import random
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from tests.proofs.callers import PATIENCE_S, Callers, Step
from tests.proofs.ledger import Ledger, Receipt
from tests.proofs.order import GroupOrder
from tests.proofs.served import Served, StartNode
from tests.proofs.sqs_caller import NodesCaller, Refused, SqsCaller
from tests.proofs.test_crash import BUSY, TIMEOUT_S, Load, counts, now_s, receive

WHOLE = os.environ.get("PROVE") == "whole"
NODES = 3
KILLS = 30 if WHOLE else 3
WAKES = 100 if WHOLE else 3
GROUPS = 10
SEED = 20_261_123
ORDERED = "ordered.fifo"
WAKE_MS_MAX = 50
LOOKS_MAX = 6  # should the send be late


class OrderedLoad:
    """Producers and consumers on a FIFO queue: each producer has groups of its own, and sends until it is told."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.ledger = Ledger()
        self.order = GroupOrder()
        self._next: dict[str, int] = {}
        self._untold: dict[str, str] = {}

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        """Send the next message of a group; the same one again, under its id, until it is acknowledged."""
        group = f"{threading.get_ident()}.{chance.randrange(GROUPS)}"
        body = self._untold.get(group)
        if body is None:
            body = self._untold[group] = f"{group}:{self._next.get(group, 0)}"
            self.ledger.send_asked([body])
        caller.call("SendMessage", MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body)
        self.ledger.send_told([body])
        del self._untold[group]
        self._next[group] = self._next.get(group, 0) + 1
        time.sleep(0.02)

    def consume(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        """Receive some, and delete, release or lose each of them."""
        receipts = self.receive(caller, chance.choice((1, 5, 10)))
        for receipt in receipts:
            fate = chance.random()
            if fate < 0.88:
                self._delete(caller, receipt)
            elif fate < 0.98:
                self._release(caller, receipt)
        if not receipts:
            time.sleep(0.01)

    def take(self, caller: SqsCaller, count: int) -> list[Receipt]:
        """Receive what is to be deleted, whatever is told."""
        receipts = self.receive(caller, count)
        for receipt in receipts:
            self.order.delete_asked(*_place(receipt))
        return receipts

    def receive(self, caller: SqsCaller, count: int) -> list[Receipt]:
        """Receive, and note what came in which order."""
        receipts = receive(caller, self.ledger, count=count)
        self.order.given([_place(receipt) for receipt in receipts])
        return receipts

    def _delete(self, caller: SqsCaller, receipt: Receipt) -> None:
        self.ledger.delete_asked(receipt)
        self.order.delete_asked(*_place(receipt))
        try:
            caller.call("DeleteMessage", ReceiptHandle=receipt.handle)
        except Refused:
            return  # its time was over: it comes back
        self.ledger.delete_told(receipt, told_s=now_s())

    def _release(self, caller: SqsCaller, receipt: Receipt) -> None:
        self.ledger.change_asked(receipt, asked_s=now_s(), timeout_s=0)
        try:
            caller.call("ChangeMessageVisibility", ReceiptHandle=receipt.handle, VisibilityTimeout=0)
        except Refused:
            return


def _place(receipt: Receipt) -> tuple[str, int]:
    group, number = receipt.body.split(":")
    return group, int(number)


def produce(load: Load) -> Step:
    """Return a producer for the standard queue that leaves the consumers time."""

    def step(caller: SqsCaller, chance: random.Random, number: int) -> None:
        load.produce(caller, chance, number)
        time.sleep(0.1)

    return step


def drain(caller: SqsCaller, take: Callable[[SqsCaller, int], list[Receipt]]) -> set[str]:
    """Take everything out of a queue, waiting for the leases to end; return the bodies."""
    bodies: set[str] = set()
    deadline_s = now_s() + PATIENCE_S
    while counts(caller) != (0, 0):
        assert now_s() < deadline_s, "the queue does not drain"
        receipts = take(caller, 10)
        entries = [{"Id": str(at), "ReceiptHandle": each.handle} for at, each in enumerate(receipts)]
        if entries:
            caller.call("DeleteMessageBatch", Entries=entries)
        else:
            time.sleep(0.05)
        bodies |= {each.body for each in receipts}
    return bodies


@pytest.fixture
def nodes(start_node: StartNode) -> list[Served]:
    """Return running nodes on one database with the two queues."""
    running = [start_node() for _ in range(NODES)]
    timeout = {"VisibilityTimeout": str(TIMEOUT_S)}
    with closing(SqsCaller(running[0].port, BUSY)) as maker:
        maker.call("CreateQueue", QueueName=BUSY, Attributes=timeout)
        maker.call("CreateQueue", QueueName=ORDERED, Attributes={"FifoQueue": "true", **timeout})
    return running


def kill_and_restart(nodes: list[Served], chance: random.Random) -> None:
    """Let the load run for a moment, kill a node somewhere in it, and start it again while the others go on."""
    time.sleep(chance.uniform(0.2, 1.0))
    node = chance.choice(nodes)
    node.kill()
    node.start()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nodes(nodes: list[Served], capsys: pytest.CaptureFixture[str]) -> None:
    """Wake-ups across nodes; durability, exclusivity, counts and order over many kills."""
    chance = random.Random(SEED)
    latencies_ms = [wake_ms(nodes, chance) for _ in range(WAKES)]
    load, ordered = Load(), OrderedLoad()
    left, ordered_left = under_kills(nodes, chance, load, ordered)
    with capsys.disabled():
        print(f"\n{wakes(latencies_ms)}")  # noqa: T201 - a proof shows its figures
        print(figures("standard", load.ledger, left))  # noqa: T201
        print(figures("FIFO", ordered.ledger, ordered_left))  # noqa: T201
    assert load.ledger.settle(left) == []
    assert ordered.ledger.settle(ordered_left) == []
    assert ordered.order.violations == []
    if WHOLE:  # that it is a notice that wakes, and no look of the node's own, is shown in virtual time
        assert statistics.median(latencies_ms) <= WAKE_MS_MAX


def under_kills(
    nodes: list[Served], chance: random.Random, load: Load, ordered: OrderedLoad
) -> tuple[set[str], set[str]]:
    """Have eight producers and eight consumers ask any node while nodes are killed; return what was left."""
    ports = [node.port for node in nodes]
    steps = [produce(load)] * 4 + [load.consume] * 4
    ordered_steps = [ordered.produce] * 4 + [ordered.consume] * 4
    with Callers(ports, BUSY, steps, seed=SEED) as callers, Callers(ports, ORDERED, ordered_steps, seed=SEED):
        for _ in range(KILLS):
            kill_and_restart(nodes, chance)
        callers.until(lambda: is_enough(load.ledger) and is_enough(ordered.ledger))
    with closing(NodesCaller(ports, BUSY, chance)) as caller:
        left = drain(caller, partial(_take, ledger=load.ledger))
    with closing(NodesCaller(ports, ORDERED, chance)) as caller:
        return left, drain(caller, ordered.take)


def _take(caller: SqsCaller, count: int, *, ledger: Ledger) -> list[Receipt]:
    return receive(caller, ledger, count=count)


def wakes(latencies_ms: list[float]) -> str:
    """Return how fast a long poll heard of a send at another node."""
    return (
        f"from a send acknowledged at one node to its long poll answered at another:"
        f" median {statistics.median(latencies_ms):.1f} ms, at most {max(latencies_ms):.1f} ms, of {len(latencies_ms)}"
    )


def is_enough(ledger: Ledger) -> bool:
    """Tell whether there is something to prove, however slow the machine is."""
    told, _, deleted = ledger.told()
    return told > 10 * KILLS and deleted > 5 * KILLS


def figures(kind: str, ledger: Ledger, left: set[str]) -> str:
    """Return what the run amounted to."""
    told, received, deleted = ledger.told()
    return (
        f"{kind}, {KILLS} kills of {NODES} nodes: {told} sends acknowledged of {len(ledger.messages)},"
        f" {received} deliveries ({ledger.receives_untold} receives unanswered), {deleted} deletes acknowledged,"
        f" {len(left)} left"
    )


def wake_ms(nodes: list[Served], chance: random.Random) -> float:
    """Return how long after a send at one node its message was there for a long poll at another."""
    here, there = chance.sample(nodes, 2)
    got: list[float] = []

    def received(caller: SqsCaller) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = caller.call("ReceiveMessage", WaitTimeSeconds=9).get("Messages", [])
        return messages

    def wait() -> None:
        with closing(SqsCaller(there.port, BUSY)) as caller:
            (message,) = next(filter(None, (received(caller) for _ in range(LOOKS_MAX))))
            got.append(now_s())
            caller.call("DeleteMessage", ReceiptHandle=message["ReceiptHandle"])

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(chance.uniform(0.2, 0.4))
    with closing(SqsCaller(here.port, BUSY)) as caller:
        caller.call("SendMessage", MessageBody="wake")
    sent_s = now_s()
    waiting.join(PATIENCE_S)
    (got_s,) = got
    return max(0.0, got_s - sent_s) * 1_000

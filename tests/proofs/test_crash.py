"""The crash proof: producers and consumers run, the server is killed with SIGKILL again and again.

Afterwards every acknowledged send is there unless its delete was asked for, no delete acknowledged for the current
receipt came back, no message was delivered before its deadline, every receive count lies between the receives
answered and attempted, and receipts issued before a kill worked after it. `PROVE=whole` kills thirty times.
"""

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proofs.callers import Callers
from tests.proofs.ledger import Ledger, Receipt
from tests.proofs.served import ServedFolder
from tests.proofs.sqs_caller import Refused, SqsCaller, Unanswered, Unreached

WHOLE = os.environ.get("PROVE") == "whole"
KILLS = 30 if WHOLE else 3
SEED = 20_240_229
TIMEOUT_S = 2
LONGER_S = 5 if WHOLE else 3
HELD_TIMEOUT_S = 3_600
BUSY = "busy"
HELD = "held"
DRAIN_S_MAX = 120.0

now_s = time.monotonic


class Load:
    """Producers and consumers on one queue, and what they know."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.ledger = Ledger()

    def callers(self, port: int) -> Callers:
        """Return two producers and three consumers."""
        return Callers(port, BUSY, [self.produce] * 2 + [self.consume] * 3, seed=SEED)

    def produce(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        """Send one message or five."""
        bodies = [f"{number}-{place}" for place in range(chance.choice((1, 1, 5)))]
        self.ledger.send_asked(bodies)
        entries = [{"Id": str(index), "MessageBody": body} for index, body in enumerate(bodies)]
        answer = caller.call("SendMessageBatch", Entries=entries)
        assert not answer.get("Failed")
        self.ledger.send_told(bodies)
        time.sleep(0.004)

    def consume(self, caller: SqsCaller, chance: random.Random, number: int) -> None:
        """Receive some, and delete, release, hold or lose each of them."""
        receipts = receive(caller, self.ledger, count=chance.choice((1, 5, 10)))
        for receipt in receipts:
            fate = chance.random()
            if fate < 0.6:
                self._delete(caller, receipt)
            elif fate < 0.85:
                self._change(caller, receipt, timeout_s=chance.choice((0, 0, 1, LONGER_S)))
            # else its consumer has died: it comes back by itself
        if not receipts:
            time.sleep(0.01)

    def _delete(self, caller: SqsCaller, receipt: Receipt) -> None:
        self.ledger.delete_asked(receipt)
        caller.call("DeleteMessage", ReceiptHandle=receipt.handle)
        self.ledger.delete_told(receipt, told_s=now_s())

    def _change(self, caller: SqsCaller, receipt: Receipt, *, timeout_s: int) -> None:
        asked_s = now_s()
        self.ledger.change_asked(receipt, asked_s=asked_s, timeout_s=timeout_s)
        caller.call("ChangeMessageVisibility", ReceiptHandle=receipt.handle, VisibilityTimeout=timeout_s)
        self.ledger.change_told(receipt, asked_s=asked_s, told_s=now_s(), timeout_s=timeout_s)


def receive(caller: SqsCaller, ledger: Ledger, *, count: int) -> list[Receipt]:
    """Receive, and note what came; returns the receipts."""
    asked_s = now_s()
    try:
        answer = caller.call(
            "ReceiveMessage", MaxNumberOfMessages=count, MessageSystemAttributeNames=["ApproximateReceiveCount"]
        )
    except Unreached:
        raise
    except Unanswered:
        ledger.receive_untold()
        raise
    told_s = now_s()
    return [
        ledger.received(
            each["Body"],
            each["ReceiptHandle"],
            int(each["Attributes"]["ApproximateReceiveCount"]),
            asked_s=asked_s,
            told_s=told_s,
            timeout_s=TIMEOUT_S,
        )
        for each in answer.get("Messages", [])
    ]


def counts(caller: SqsCaller) -> tuple[int, int]:
    """Return how many messages of the caller's queue are visible and in flight."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = caller.call("GetQueueAttributes", AttributeNames=names)["Attributes"]
    return int(attributes[names[0]]), int(attributes[names[1]])


def drain(caller: SqsCaller, ledger: Ledger) -> set[str]:
    """Take everything out of the queue, waiting for the leases to end; return the bodies."""
    bodies: set[str] = set()
    deadline_s = now_s() + DRAIN_S_MAX
    while counts(caller) != (0, 0):
        assert now_s() < deadline_s, "the queue does not drain"
        receipts = receive(caller, ledger, count=10)
        for receipt in receipts:
            caller.call("DeleteMessage", ReceiptHandle=receipt.handle)
            bodies.add(receipt.body)
        if not receipts:
            time.sleep(0.05)
    return bodies


def hold(caller: SqsCaller, number: int) -> str:
    """Send a message of its own and receive it; return the handle."""
    caller.call("SendMessage", MessageBody=f"held-{number}")
    (only,) = caller.call("ReceiveMessage", MaxNumberOfMessages=10)["Messages"]
    assert only["Body"] == f"held-{number}"
    handle: str = only["ReceiptHandle"]
    return handle


def check_handles(caller: SqsCaller, handles: list[str]) -> None:
    """Assert that handles issued before a kill act after it: extend all, delete the oldest."""
    assert caller.call("ReceiveMessage", MaxNumberOfMessages=10).get("Messages", []) == []
    for handle in handles:
        caller.call("ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout=HELD_TIMEOUT_S)
    assert counts(caller) == (0, len(handles))
    if len(handles) > 2:
        caller.call("DeleteMessage", ReceiptHandle=handles[0])
        with pytest.raises(Refused, match="InvalidParameterValue"):
            caller.call("ChangeMessageVisibility", ReceiptHandle=handles.pop(0), VisibilityTimeout=1)
        assert counts(caller) == (0, len(handles))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedFolder]:
    """Return a running server with the two queues."""
    server = ServedFolder(tmp_path / "store")
    server.start()
    maker = SqsCaller(server.port, BUSY)
    for queue, timeout_s in ((BUSY, TIMEOUT_S), (HELD, HELD_TIMEOUT_S)):
        maker.call("CreateQueue", QueueName=queue, Attributes={"VisibilityTimeout": str(timeout_s)})
    maker.close()
    yield server
    server.stop()


def kill_and_restart(server: ServedFolder, chance: random.Random) -> None:
    """Let the load run for a moment, kill the server somewhere in it, and start it again."""
    time.sleep(chance.uniform(0.2, 1.2))
    server.kill()
    server.start()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crash(served: ServedFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """Durability, exclusivity of what is in flight, and receipts, over many kills."""
    chance = random.Random(SEED)
    load, held, handles = Load(), SqsCaller(served.port, HELD), list[str]()
    with load.callers(served.port) as callers:
        for number in range(KILLS):
            handles.append(hold(held, number))
            kill_and_restart(served, chance)
            held.close()
            check_handles(held, handles)
        callers.until(lambda: is_enough(load.ledger))
    caller = SqsCaller(served.port, BUSY)
    drained = drain(caller, load.ledger)
    caller.close()
    held.close()
    with capsys.disabled():
        print(f"\n{figures(load.ledger, drained)}")  # noqa: T201 - a proof shows its figures
    assert load.ledger.settle(drained) == []


def is_enough(ledger: Ledger) -> bool:
    """Tell whether there is something to prove, however slow the machine is."""
    told, _, deleted = ledger.told()
    return told > 10 * KILLS and deleted > 5 * KILLS


def figures(ledger: Ledger, drained: set[str]) -> str:
    """Return what the run amounted to."""
    told, received, deleted = ledger.told()
    return (
        f"{KILLS} kills: {told} sends acknowledged of {len(ledger.messages)}, {received} deliveries"
        f" ({ledger.receives_untold} receives unanswered), {deleted} deletes acknowledged, {len(drained)} drained"
    )

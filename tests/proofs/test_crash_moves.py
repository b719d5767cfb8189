"""The crash proof of dead letters and moves: SIGKILL while messages die, and while a move task runs.

Afterwards every message whose sending was acknowledged has arrived, once, none has arrived twice, and the task has
counted each of them.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.proofs.served import ServedFolder
from tests.proofs.sqs_caller import SqsCaller, Unanswered

WHOLE = os.environ.get("PROVE") == "whole"
KILLS = 15 if WHOLE else 3
SEED = 20_240_229
PATIENCE_S = 120.0

DEAD_ARN = "arn:aws:sqs:us-east-1:000000000000:dead"
BACK_ARN = "arn:aws:sqs:us-east-1:000000000000:back"


def patiently(caller: SqsCaller, action: str, **members: Any) -> dict[str, Any]:
    """Ask until there is an answer; for what may be asked twice."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return caller.call(action, **members)
        except Unanswered:
            assert time.monotonic() < deadline_s, f"no answer to {action}"
            time.sleep(0.01)


def count(caller: SqsCaller) -> int:
    """Return how many messages the caller's queue has, visible or not."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = patiently(caller, "GetQueueAttributes", AttributeNames=names)["Attributes"]
    return sum(int(attributes[name]) for name in names)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedFolder]:
    """Return a running server; the messages of `jobs` die after one receive."""
    server = ServedFolder(tmp_path / "store")
    server.start()
    maker = SqsCaller(server.port, "jobs")
    redrive = f'{{"deadLetterTargetArn": "{DEAD_ARN}", "maxReceiveCount": 1}}'
    for name, attributes in (("dead", {}), ("back", {}), ("jobs", {"RedrivePolicy": redrive})):
        maker.call("CreateQueue", QueueName=name, Attributes=attributes)
    maker.close()
    yield server
    server.stop()


class Mill:
    """Sends messages and receives each of them until it dies, in a thread of its own."""

    def __init__(self, port: int) -> None:
        """Start nothing yet."""
        self.asked: set[str] = set()
        self.told: set[str] = set()
        self._caller = SqsCaller(port, "jobs")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sending; return when everything has died."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(Unanswered):
                self._send([str(len(self.asked) + number) for number in range(5)])
            with suppress(Unanswered):
                self._caller.call("ReceiveMessage", MaxNumberOfMessages=10, VisibilityTimeout=0)
            time.sleep(0.004)
        while count(self._caller):
            patiently(self._caller, "ReceiveMessage", MaxNumberOfMessages=10, VisibilityTimeout=0)
        self._caller.close()

    def _send(self, bodies: list[str]) -> None:
        self.asked.update(bodies)
        entries = [{"Id": str(number), "MessageBody": body} for number, body in enumerate(bodies)]
        assert not self._caller.call("SendMessageBatch", Entries=entries).get("Failed")
        self.told.update(bodies)


def kill_often(server: ServedFolder, chance: random.Random, longest_s: float) -> None:
    """Kill and restart the server, each time after another while."""
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.02, longest_s))
        server.kill()
        server.start()


def drain(caller: SqsCaller) -> Counter[str]:
    """Return how often each body is in the caller's queue."""
    found = Counter[str]()
    while messages := caller.call("ReceiveMessage", MaxNumberOfMessages=10, VisibilityTimeout=600).get("Messages"):
        found.update(each["Body"] for each in messages)
    return found


def move_task(caller: SqsCaller) -> dict[str, Any]:
    """Return the latest move task."""
    task: dict[str, Any]
    (task,) = patiently(caller, "ListMessageMoveTasks", SourceArn=DEAD_ARN)["Results"]
    return task


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_crash_while_messages_die_and_move(served: ServedFolder) -> None:
    """Conservation over many kills, and a count that is exact."""
    chance = random.Random(SEED)
    mill = Mill(served.port)
    mill.start()
    kill_often(served, chance, 1.0)
    mill.stop()
    dead, back = SqsCaller(served.port, "dead"), SqsCaller(served.port, "back")
    total = count(dead)
    assert len(mill.told) <= total <= len(mill.asked)
    rate = max(1, min(500, total // KILLS))  # so that it takes longer than the kills
    dead.call("StartMessageMoveTask", SourceArn=DEAD_ARN, DestinationArn=BACK_ARN, MaxNumberOfMessagesPerSecond=rate)
    kill_often(served, chance, 0.8)
    assert move_task(dead)["Status"] == "RUNNING", "it was too fast to be killed"
    deadline_s = time.monotonic() + PATIENCE_S
    while (task := move_task(dead))["Status"] == "RUNNING":
        assert time.monotonic() < deadline_s, task
        time.sleep(0.05)
    assert (task["Status"], task["ApproximateNumberOfMessagesMoved"], count(dead)) == ("COMPLETED", total, 0)
    arrived = drain(back)
    assert arrived.total() == len(arrived) == total
    assert mill.told <= set(arrived) <= mill.asked
    dead.close()
    back.close()

"""The event log under kills: a server that exports often is killed again and again; every event is in the files once.

The clients keep a ledger of what was answered. In the end everything is exported, and the table has the end of each
receipt that was answered, exactly one; each delete in time that was acknowledged as a deletion, and no event twice or
left out (numbers of events have no gap). `PROVE=whole` kills six times.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from tests.proofs.callers import Callers
from tests.proofs.served import ServedFolder
from tests.proofs.sqs_caller import SqsCaller

WHOLE = os.environ.get("PROVE") == "whole"
KILLS = 6 if WHOLE else 3
CALLERS = 4
QUEUE = "logged"
TIMEOUT_S = 1
LATE_SHARE = 0.05
SEED = 20_260_229


class Ledger:
    """What clients know for certain: receipts that were answered, and which deletes were acknowledged well in time."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.received: set[str] = set()  # message ids
        self.deleted: set[str] = set()
        self.late: set[str] = set()

    def turn(self, caller: SqsCaller, chance: random.Random, _number: int) -> None:
        """Send, receive and delete, now and then too late; note what was answered."""
        caller.call("SendMessage", MessageBody="x")
        asked_s = time.monotonic()
        for each in caller.call("ReceiveMessage", MaxNumberOfMessages=3).get("Messages", []):
            message = each["MessageId"].replace("-", "")
            self.received.add(message)
            if chance.random() < LATE_SHARE:
                time.sleep(TIMEOUT_S * 1.1)
                caller.call("DeleteMessage", ReceiptHandle=each["ReceiptHandle"])
                self.late.add(message)
                return
            caller.call("DeleteMessage", ReceiptHandle=each["ReceiptHandle"])
            if time.monotonic() < asked_s + TIMEOUT_S / 2:
                self.deleted.add(message)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedFolder]:
    """Return a running server that exports every second, by small ranges."""
    options = ("--events-to", str(tmp_path / "events"), "--events-period-s", "1", "--events-per-file", "40")
    server = ServedFolder(tmp_path / "store", *options)
    server.start()
    maker = SqsCaller(server.port, QUEUE)
    maker.call("CreateQueue", QueueName=QUEUE, Attributes={"VisibilityTimeout": str(TIMEOUT_S)})
    maker.close()
    yield server
    server.stop()


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the table."""
    table = dataset.dataset(folder / "receipt_closed", format="parquet", partitioning="hive").to_table()
    return table.sort_by("event").to_pylist()  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_event_is_in_the_files_once(served: ServedFolder, tmp_path: Path) -> None:
    """Over many kills, at any moment of an export."""
    chance, ledger = random.Random(SEED), Ledger()
    with Callers(served.port, QUEUE, [ledger.turn] * CALLERS, seed=SEED) as callers:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.7, 1.6))
            served.kill()
            served.start()
        callers.until(lambda: ledger.late and len(ledger.deleted) > 10 * KILLS)
    settle(served)
    check(rows(tmp_path / "events"), ledger)


def settle(served: ServedFolder) -> None:
    """Receive and delete what is left, so that every receipt has been seen to end, and stop: all is exported then."""
    caller = SqsCaller(served.port, QUEUE)
    time.sleep(TIMEOUT_S * 1.1)
    while messages := caller.call("ReceiveMessage", MaxNumberOfMessages=10).get("Messages", []):
        for each in messages:
            caller.call("DeleteMessage", ReceiptHandle=each["ReceiptHandle"])
    caller.close()
    served.stop()


def check(events: list[dict[str, Any]], ledger: Ledger) -> None:
    """Assert that the table is whole, and agrees with what the clients know."""
    assert [row["event"] for row in events] == list(range(1, len(events) + 1))
    ends = Counter((row["message_id"], row["receipt"]) for row in events if row["outcome"] != "late_deleted")
    assert set(ends.values()) == {1}
    late = Counter((row["message_id"], row["receipt"]) for row in events if row["outcome"] == "late_deleted")
    assert set(late.values()) <= {1}
    assert set(late) <= {(row["message_id"], row["receipt"]) for row in events if row["outcome"] == "expired"}
    assert ledger.received <= {message for message, _ in ends}
    assert ledger.deleted <= {row["message_id"] for row in events if row["outcome"] in {"deleted", "late_deleted"}}
    assert ledger.late <= {message for message, _ in late}
    assert len(ledger.deleted) > 10 * KILLS
    assert ledger.late

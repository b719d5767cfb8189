"""The event log under kills: a server that exports often is killed again and again; every event is in the files once.

The clients keep a ledger of what was answered. In the end everything is exported, and the table has the end of each
receipt that was answered, exactly one; each delete in time that was acknowledged as a deletion, and no event twice or
left out (numbers of events have no gap).
"""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import dataset

from tests.proofs.served import ServedFolder
from tests.proofs.sqs_caller import SqsCaller, Unanswered

KILLS = 6
QUEUE = "logged"
TIMEOUT_S = 2
LATE_SHARE = 0.02
SEED = 20_260_229


class Ledger:
    """What clients know for certain: receipts that were answered, and which deletes were acknowledged well in time."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.received: set[str] = set()  # message ids
        self.deleted: set[str] = set()
        self.late: set[str] = set()


class Load:
    """Threads that send, receive and delete, until told to stop."""

    def __init__(self, port: int) -> None:
        """Start nothing yet."""
        self.ledger = Ledger()
        self.errors: list[BaseException] = []
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(4)]

    def start(self) -> None:
        """Start all."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop all, and wait for their end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run(self, seed: int) -> None:
        caller, chance = SqsCaller(self._port, QUEUE), random.Random(SEED + seed)
        try:
            while not self._stop.is_set():
                try:
                    self._turn(caller, chance)
                except Unanswered:
                    time.sleep(0.02)
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            caller.close()

    def _turn(self, caller: SqsCaller, chance: random.Random) -> None:
        caller.call("SendMessage", MessageBody="x")
        asked_s = time.monotonic()
        for each in caller.call("ReceiveMessage", MaxNumberOfMessages=3).get("Messages", []):
            self.ledger.received.add(each["MessageId"].replace("-", ""))
            if chance.random() < LATE_SHARE:
                time.sleep(TIMEOUT_S * 1.1)
                caller.call("DeleteMessage", ReceiptHandle=each["ReceiptHandle"])
                self.ledger.late.add(each["MessageId"].replace("-", ""))
                return
            caller.call("DeleteMessage", ReceiptHandle=each["ReceiptHandle"])
            if time.monotonic() < asked_s + TIMEOUT_S / 2:
                self.ledger.deleted.add(each["MessageId"].replace("-", ""))


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
    chance, load = random.Random(SEED), Load(served.port)
    load.start()
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(1.0, 2.5))
            served.kill()
            served.start()
    finally:
        load.stop()
    assert load.errors == []
    settle(served)
    check(rows(tmp_path / "events"), load.ledger)


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

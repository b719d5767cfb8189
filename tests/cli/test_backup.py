"""`veilmq backup` beside a real server under load, and a server that is started on what it wrote."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

from tests.cli.conftest import Veilmq
from tests.client.traffic import drained
from tests.proofs.served import ServedFolder
from veilmq.client import HttpQueueClient

BEFORE_MIN = 300
"""Messages that are acknowledged before the backup begins."""


class Sender:
    """Sends numbers until it is told to stop, and remembers which were acknowledged."""

    def __init__(self, endpoint: str) -> None:
        """Send to the queue `orders` of `endpoint`."""
        self._endpoint = endpoint
        self.acknowledged: list[str] = []
        self.enough = Event()
        self.stop = Event()

    def run(self) -> None:
        """Do so."""
        with HttpQueueClient(self._endpoint) as client:
            number = 0
            while not self.stop.is_set():
                client.send("orders", str(number))
                self.acknowledged.append(str(number))
                number += 1
                if number == BEFORE_MIN:
                    self.enough.set()


def endpoint(server: ServedFolder) -> str:
    """Return where it listens."""
    return f"http://127.0.0.1:{server.port}"


def test_a_backup_under_load_has_all_that_was_acknowledged(tmp_path: Path, veilmq: Veilmq) -> None:
    """Every message sent before it began, leases and receive counts as they were; the server goes on meanwhile."""
    server = ServedFolder(tmp_path / "store")
    server.start()
    try:
        with HttpQueueClient(endpoint(server)) as client, ThreadPoolExecutor(1) as beside:
            client.create_queue("orders")
            client.create_queue("leased")
            client.send("leased", "in flight")
            client.send("leased", "again")
            (held,) = client.receive("leased", timeout_s=600)
            client.receive("leased", timeout_s=0)
            sender = Sender(endpoint(server))
            sending = beside.submit(sender.run)
            try:
                assert sender.enough.wait(60)
                before = len(sender.acknowledged)
                answer = veilmq("backup", "--data", str(tmp_path / "store"), "--to", str(tmp_path / "copy"), "--json")
                meanwhile = len(sender.acknowledged) - before
            finally:
                sender.stop.set()
            sending.result()
    finally:
        server.stop()
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["path"] == str(tmp_path / "copy")
    assert meanwhile > 0, "nothing was sent while the backup was made"
    restored = ServedFolder(tmp_path / "copy")
    restored.start()
    try:
        with HttpQueueClient(endpoint(restored)) as client:
            assert set(sender.acknowledged[:before]) <= {each.body for each in drained(client, "orders")}
            (again,) = client.receive("leased", count=10)
            assert (again.body, again.receive_count) == ("again", 2)
            client.delete("leased", held.receipt)
            assert client.receive("leased") == []
    finally:
        restored.stop()


def test_a_backup_is_told_in_lines(tmp_path: Path, veilmq: Veilmq) -> None:
    """Where it is, and what is in it; a second one nothing is replaced."""
    server = ServedFolder(tmp_path / "store")
    server.start()
    server.stop()
    asked = ("backup", "--data", str(tmp_path / "store"), "--to", str(tmp_path / "copy"))
    answer = veilmq(*asked)
    assert answer.code == 0
    assert answer.out.splitlines()[0].split() == ["backup", str(tmp_path / "copy")]
    again = veilmq(*asked)
    assert (again.code, again.out) == (1, "")
    assert "nothing is replaced" in again.err

"""A real server whose disk fills under load: it replies, keeps acknowledged messages, and recovers."""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.proofs.served import ServedFolder
from tests.server.service_client import JSON, ServiceClient, SqsReply
from tests.small_disk import MIB, resize, small_file_system

pytestmark = pytest.mark.slow

REPLY_S_MAX = 60  # only a server that hangs takes longer
PATIENCE_S = 120
QUEUES = ("a", "b", "c.fifo")
REFUSED_MIN = 200
FULL = "The store is full"


class Caller(ServiceClient):
    """A client with one connection; a reply must arrive within `REPLY_S_MAX`."""

    def __init__(self, served: ServedFolder) -> None:
        super().__init__(served.endpoint, JSON, timeout_s=REPLY_S_MAX)

    def call_on(self, queue: str, action: str, **members: Any) -> SqsReply:
        return self.request(action, QueueUrl=f"http://x/000000000000/{queue}", **members)

    def send_status(self, queue: str, body: str) -> int:
        name = body.split(maxsplit=1)[0]
        fifo = {"MessageGroupId": name, "MessageDeduplicationId": name} if queue.endswith(".fifo") else {}
        return self.call_on(queue, "SendMessage", MessageBody=body, **fifo).status

    def receive_page(self, queue: str, timeout_s: int = 600) -> tuple[int, list[dict[str, str]]]:
        reply = self.call_on(queue, "ReceiveMessage", MaxNumberOfMessages=10, VisibilityTimeout=timeout_s)
        return reply.status, reply.body.get("Messages", [])


class Load:
    """Threads that send, and some that receive and delete, until they are stopped; and the results."""

    def __init__(self, served: ServedFolder, body_bytes: int) -> None:
        self._served = served
        self._filler = "x" * body_bytes
        self._stop = threading.Event()
        self.sent: set[str] = set()  # acknowledged sends
        self.deleted: set[str] = set()  # acknowledged deletes
        self.refused = 0
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(self._send, number)) for number in range(12)]
        self._threads += [threading.Thread(target=self._run, args=(self._delete, number)) for number in range(3)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * REPLY_S_MAX)
        assert not any(thread.is_alive() for thread in self._threads), "a request has no reply"

    def _run(self, step: Callable[[Caller, int, int], None], number: int) -> None:
        count = 0
        try:
            with Caller(self._served) as call:
                while not self._stop.is_set():
                    step(call, number, count)
                    count += 1
        except BaseException as error:  # noqa: BLE001 - the test fails with it
            self.errors.append(error)

    def _send(self, call: Caller, number: int, count: int) -> None:
        name = f"{number}-{count}"
        status = call.send_status(QUEUES[number % len(QUEUES)], f"{name} {self._filler}")
        if status == 200:
            self.sent.add(name)
        else:
            assert status == 503
            self.refused += 1

    def _delete(self, call: Caller, number: int, count: int) -> None:
        _, messages = call.receive_page(QUEUES[number], timeout_s=1)
        for message in messages[:1]:
            if call.call_on(QUEUES[number], "DeleteMessage", ReceiptHandle=message["ReceiptHandle"]).status == 200:
                self.deleted.add(message["Body"].split()[0])
        self._stop.wait(0.05)


def get(served: ServedFolder, path: str) -> tuple[int, str]:
    """Return the status and the text of a page of the admin port."""
    reply = urllib3.request("GET", served.admin_endpoint + path, timeout=REPLY_S_MAX, retries=False)
    return reply.status, reply.data.decode()


def is_full(status: int, text: str) -> bool:
    return status == 503 and FULL in text


def eventually(condition: Callable[[], object], error: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, error
        threading.Event().wait(0.05)


def drained(call: Caller) -> set[str]:
    found: set[str] = set()

    def is_empty() -> bool:
        for queue in QUEUES:
            messages = call.receive_page(queue)[1]
            found.update(message["Body"].split()[0] for message in messages)
            entries = [{"Id": str(at), "ReceiptHandle": each["ReceiptHandle"]} for at, each in enumerate(messages)]
            if entries:
                reply = call.call_on(queue, "DeleteMessageBatch", Entries=entries)
                assert (reply.status, reply.body.get("Failed", [])) == (200, [])
        return all(counts(call, queue) == ["0", "0"] for queue in QUEUES)

    eventually(is_empty, "the queues do not become empty")
    return found


def counts(call: Caller, queue: str) -> list[str]:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    attributes = call.call_on(queue, "GetQueueAttributes", AttributeNames=names).body["Attributes"]
    return [attributes[name] for name in names]


@pytest.fixture(params=["without a reserve", "with the default reserve"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[ServedFolder, Path, int]]:
    options, size_bytes = (
        ((), 72 * MIB) if "default" in request.param else (("--free-space-reserve-bytes", "0"), 8 * MIB)
    )
    folder = tmp_path / "disk"
    with small_file_system(folder, size_bytes=size_bytes):
        served = ServedFolder(folder / "store", *options)
        served.log = tmp_path / "log"  # on another disk
        with served:
            yield served, folder, size_bytes


def test_a_full_disk_loses_no_acknowledged_messages(disk: tuple[ServedFolder, Path, int]) -> None:
    """Every request has a reply, the health page reports the full store, and the process recovers with more space."""
    served, folder, size_bytes = disk
    pid = served.pid
    with Caller(served) as call:
        fill_and_recover(served, call, folder, size_bytes)
    assert served.pid == pid
    assert get(served, "/health/live")[0] == 200
    assert "full: sends are refused until there is room" in served.log.read_text(encoding="utf-8")


def fill_and_recover(served: ServedFolder, call: Caller, folder: Path, size_bytes: int) -> None:
    for queue in QUEUES:
        call.call("CreateQueue", QueueName=queue, Attributes={"FifoQueue": "true"} if queue.endswith(".fifo") else {})
    with Load(served, 16_000) as load:
        eventually(lambda: load.refused >= REFUSED_MIN or load.errors, "the disk does not fill")
        assert load.errors == []
        eventually(lambda: is_full(*get(served, "/health/ready")), "health says nothing")
        if size_bytes > 64 * MIB:
            load.deleted.add(receive_and_delete(call))
        resize(folder, size_bytes=32 * size_bytes)
        eventually(
            lambda: call.send_status("a", "again") == 200 or load.errors, "sends are refused though there is space"
        )
        load.sent.add("again")
    assert load.errors == []
    assert get(served, "/health/ready") == (200, "ready\n")
    assert load.sent - load.deleted <= drained(call)


def receive_and_delete(call: Caller) -> str:
    """Assert that a full disk with a reserve refuses sends only; return the deleted message."""
    messages: list[dict[str, str]] = []

    def received() -> bool:
        status, found = call.receive_page("b")
        assert status == 200
        messages.extend(found)
        return len(messages) >= 2

    eventually(received, "a receive gives nothing")
    first = messages[0]["ReceiptHandle"]
    assert call.call_on("b", "DeleteMessage", ReceiptHandle=first).status == 200
    for message in messages[1:]:
        change = {"ReceiptHandle": message["ReceiptHandle"], "VisibilityTimeout": 0}
        assert call.call_on("b", "ChangeMessageVisibility", **change).status == 200
    return messages[0]["Body"].split()[0]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedFolder]:
    """A server that checkpoints its log early, as its reserve is small."""
    with ServedFolder(tmp_path / "store", "--free-space-reserve-bytes", str(MIB)) as served:
        yield served


def wal_bytes(served: ServedFolder) -> float:
    (line,) = [each for each in get(served, "/metrics")[1].splitlines() if each.startswith("veilmq_store_wal_bytes ")]
    return float(line.split()[1])


def test_a_log_that_a_reader_pins_is_a_metric_and_a_warning(served: ServedFolder) -> None:
    """Requests succeed meanwhile; the warning ends with the reader's transaction."""
    with Caller(served) as call:
        pin_and_release(served, call)


def pin_and_release(served: ServedFolder, call: Caller) -> None:
    call.call("CreateQueue", QueueName="a")
    assert call.send_status("a", "first") == 200
    reader = sqlite3.connect(served.folder / "store.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
    body = "x" * 500_000

    def is_degraded() -> bool:
        assert call.send_status("a", body) == 200
        return get(served, "/health/ready")[1].startswith("degraded\n")

    assert get(served, "/health/ready") == (200, "ready\n")
    eventually(is_degraded, "health does not say it")
    assert get(served, "/health/ready")[0] == 200
    assert "write-ahead log is too long" in get(served, "/health/ready")[1]
    assert wal_bytes(served) > 4 * MIB
    assert "write-ahead log is too long" in served.log.read_text()
    reader.close()

    def is_ready() -> bool:
        assert call.send_status("a", "small") == 200
        return get(served, "/health/ready") == (200, "ready\n")

    eventually(is_ready, "the log is not moved")
    assert wal_bytes(served) < MIB

"""The server is killed with SIGKILL again and again while messages are published and pushed.

Afterwards both subscribed queues have the same messages, each once: all those whose publication was answered, and of
the others all or none. The receiver of pushes got each of them, at least once, or its push still waits: one that a kill
cut short waits for the end of its lease. `PROVE=whole` kills twenty times, and waits for the last push.
"""

import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection, HTTPException
from itertools import count
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.proofs.served import ServedFolder
from tests.server.push_receiver import Receiver

WHOLE = os.environ.get("PROVE") == "whole"
KILLS = 20 if WHOLE else 3
PUBLISHERS = 3
PER_KILL = 40
PATIENCE_S = 60
TOPIC = "/topics/news"
QUEUES = ("first", "second")
_WAITING = re.compile(r"<MessageCount>(\d+)</MessageCount>")
_BODY = re.compile(r"<MessageBody>([^<]*)</MessageBody>")


@pytest.fixture
def served(tmp_path: Path, receiver: Receiver) -> Iterator[ServedFolder]:
    """A server process with a topic that has two queues and a receiver."""
    folder = ServedFolder(tmp_path / "store", "--push-allow", "127.0.0.1")
    folder.start()
    try:
        assert call(folder, "PUT", TOPIC)[0] == 201
        for name in QUEUES:
            assert call(folder, "PUT", f"/queues/{name}")[0] == 201
            subscribe(folder, name, f"acs:mns:r:000000000000:queues/{name}")
        subscribe(folder, "pushed", receiver.url)
        yield folder
    finally:
        folder.stop()


def call(served: ServedFolder, method: str, target: str, body: str = "") -> tuple[int, str]:
    """Return status and body of one answer; raises `OSError` and `HTTPException` where there is none."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        connection.request(method, target, body.encode(), {"x-mns-version": "2015-06-06"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def subscribe(served: ServedFolder, name: str, endpoint: str) -> None:
    """Subscribe; what arrives is the body alone."""
    told = f"<Endpoint>{endpoint}</Endpoint><NotifyContentFormat>SIMPLIFIED</NotifyContentFormat>"
    target = f"{TOPIC}/subscriptions/{name}"
    assert call(served, "PUT", target, f"<Subscription>{told}</Subscription>")[0] == 201


class Publishers:
    """Threads that publish numbers, each once, and remember which were answered."""

    def __init__(self, served: ServedFolder) -> None:
        """Begin at once."""
        self.asked: list[str] = []
        self.answered: list[str] = []
        self._served = served
        self._numbers = count()
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(PUBLISHERS)]
        for thread in self._threads:
            thread.start()

    def have(self, wanted: int) -> bool:
        """Tell whether so many publications were answered."""
        return len(self.answered) >= wanted

    def stop(self) -> None:
        """Let them end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            body = str(next(self._numbers))
            self.asked.append(body)
            try:
                status, _ = call(
                    self._served, "POST", f"{TOPIC}/messages", f"<Message><MessageBody>{body}</MessageBody></Message>"
                )
            except (OSError, HTTPException):
                sleep(0.01)
                continue
            if status == 201:
                self.answered.append(body)


def waiting(served: ServedFolder) -> int:
    """Return how many messages wait to be pushed, or are being pushed."""
    (count,) = _WAITING.findall(call(served, "GET", TOPIC)[1])
    return int(count)


def drain(served: ServedFolder, queue: str) -> Counter[str]:
    """Receive all that a queue has."""
    found: Counter[str] = Counter()
    while True:
        status, page = call(served, "GET", f"/queues/{queue}/messages?numOfMessages=16")
        if status == 404:
            return found
        found.update(_BODY.findall(page))


def until(condition: Callable[[], object]) -> None:
    """Wait until `condition()` is true."""
    give_up_at_s = monotonic() + PATIENCE_S
    while not condition():
        assert monotonic() < give_up_at_s, "it did not come so far"
        sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_published_comes_to_all_or_to_none(served: ServedFolder, receiver: Receiver) -> None:
    """Whenever the server is killed."""
    publishers = Publishers(served)
    try:
        for _ in range(KILLS):
            wanted = len(publishers.answered) + PER_KILL
            until(partial(publishers.have, wanted))
            served.kill()
            served.start()
        until(partial(publishers.have, len(publishers.answered) + PUBLISHERS + 1))
    finally:
        publishers.stop()
    first, second = (drain(served, name) for name in QUEUES)
    assert first == second
    assert set(first.values()) == {1}
    assert set(publishers.answered) <= set(first) <= set(publishers.asked)
    until(
        lambda: publishers.answered[-1] in receiver.bodies
    )  # published after the last start, so that no kill delays it
    until(lambda: len(set(first) - set(receiver.bodies)) <= (0 if WHOLE else waiting(served)))
    assert set(receiver.bodies) <= set(first)

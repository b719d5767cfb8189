"""`veilmq forward` is killed again and again while producers send.

Afterwards each message is in the queue of its rule: once if the server forwards, and in FIFO queues also if the
forwarder sends and deletes; groups are in order. `PROVE=whole` kills thirty times.
"""

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, environment
from tests.client.traffic import drained
from tests.conftest import EVERYTHING
from tests.proofs.forking import Forked, run
from tests.proofs.loads import Threads
from tests.proofs.served import ServedFolder
from veilmq.client import HttpQueueClient, NewMessage, Unreachable
from veilmq.core.messages import Attribute

WHOLE = os.environ.get("PROVE") == "whole"
KILLS = 30 if WHOLE else 4
SEED = 20_240_229
PRODUCERS = 2
TENS_MAX = 1_000 if WHOLE else 80
TIMEOUT_S = 1
DRAIN_S_MAX = 90.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RULES = """
default = "rest{0}"

[[rules]]
queue = "big{0}"
size = {{ min = 2000 }}

[[rules]]
queue = "video{0}"
attributes.kind = ["video", "film"]

[[rules]]
queue = "pages{0}"
body."/pages" = {{ min = 50 }}
"""
NAMES = ("rest", "big", "video", "pages")


def queue_of(number: int) -> str:
    if number % 7 == 0:
        return "big"
    if number % 5 in (1, 2):
        return "video"
    return "pages" if number % 4 == 3 else "rest"


def message(producer: int, number: int, *, fifo: bool) -> NewMessage:
    document: dict[str, Any] = {"id": f"{producer}-{number}", "pages": 50 if number % 4 == 3 else 49}
    if number % 7 == 0:
        document["filling"] = "x" * 2_000
    kinds = {1: "video", 2: "film", 3: "text"}
    kind = kinds.get(number % 5)
    return NewMessage(
        body=json.dumps(document),
        attributes={} if kind is None else {"kind": Attribute("String", kind)},
        group=f"{producer}-{number % 3}",
        dedup_id=document["id"] if fifo else None,
    )


class Producer:
    """Send to the intake; only a send to a FIFO queue is repeated."""

    def __init__(self, client: HttpQueueClient, intake: str, number: int) -> None:
        self.sent = 0
        self._client, self._intake, self._number = client, intake, number

    def step(self) -> None:
        fifo = self._intake.endswith(".fifo")
        if self.sent < 10 * TENS_MAX:
            ten = [message(self._number, number, fifo=fifo) for number in range(self.sent, self.sent + 10)]
            while not self._send(ten):
                assert fifo, "only sends to a FIFO queue may be repeated"
            self.sent += 10
        time.sleep(0.04)

    def _send(self, ten: list[NewMessage]) -> bool:
        try:
            assert all(hasattr(answer, "id") for answer in self._client.send_batch(self._intake, ten))
        except Unreachable:
            return False
        return True


@contextmanager
def producing(endpoint: str, intake: str) -> Iterator[list[Producer]]:
    with ExitStack() as stack:
        clients = [stack.enter_context(HttpQueueClient(endpoint)) for _ in range(PRODUCERS)]
        producers = [Producer(client, intake, number) for number, client in enumerate(clients)]
        stack.enter_context(Threads([producer.step for producer in producers]))
        yield producers


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedFolder]:
    with ServedFolder(tmp_path / "store") as served:
        yield served


class Forwarding:
    def __init__(self, server: ServedFolder, intake: str, rules: Path, *options: str) -> None:
        shared = ["--from", intake, "--rules", str(rules), "--timeout", str(TIMEOUT_S), "--wait", "1", *options]
        self._command = [*COMMAND, "forward", *shared]
        self._environment = environment(VEILMQ_ENDPOINT=server.endpoint)

    def run_and_kill(self, after_s: float) -> None:
        process = Forked(self._command, env=self._environment, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        with process.stderr as log:
            assert "forwarding to" in log.readline()
            time.sleep(after_s)
            process.send_signal(signal.SIGKILL)
            assert process.wait(60) == -signal.SIGKILL

    def finish(self, client: HttpQueueClient, intake: str) -> None:
        deadline_s = time.monotonic() + DRAIN_S_MAX
        while True:
            ended = run(
                [*self._command, "--until-empty"],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                timeout=120,
            )
            assert ended.returncode == 0, ended.stderr
            status = client.show(intake)
            if status.visible + status.in_flight == 0:
                return
            assert time.monotonic() < deadline_s, ended.stderr


def create(client: HttpQueueClient, suffix: str) -> None:
    for name in ("intake", *NAMES):
        client.create_queue(f"{name}{suffix}", {"fifo": True} if suffix else {})


def check(client: HttpQueueClient, sent: list[int], suffix: str, *, once: bool) -> None:
    arrived: Counter[tuple[str, str]] = Counter()
    for name in NAMES:
        found = [(each.group, json.loads(each.body)["id"]) for each in drained(client, f"{name}{suffix}")]
        arrived.update((name, each) for _, each in found)
        if suffix:
            for group in {group for group, _ in found}:
                numbers = [int(each.partition("-")[2]) for of, each in found if of == group]
                assert numbers == sorted(numbers)
    wanted = {
        (queue_of(number), f"{producer}-{number}") for producer in range(PRODUCERS) for number in range(sent[producer])
    }
    assert min(sent) > 0
    assert set(arrived) == wanted
    if once:
        assert arrived.total() == len(wanted)


@pytest.mark.parametrize(
    ("suffix", "options", "once"),
    [
        pytest.param("", (), True, id="forward-standard", marks=EVERYTHING),
        pytest.param(".fifo", (), True, id="forward-fifo", marks=EVERYTHING),
        pytest.param("", ("--plain",), False, id="plain-standard", marks=EVERYTHING),
        pytest.param(".fifo", ("--plain",), True, id="plain-fifo"),
    ],
)
def test_each_message_is_forwarded_if_the_forwarder_is_killed(
    server: ServedFolder, tmp_path: Path, suffix: str, options: tuple[str, ...], once: bool
) -> None:
    chance = random.Random(SEED)
    rules = tmp_path / "routes.toml"
    rules.write_text(RULES.format(suffix))
    with HttpQueueClient(server.endpoint) as client:
        create(client, suffix)
        forwarding = Forwarding(server, f"intake{suffix}", rules, *options)
        with producing(server.endpoint, f"intake{suffix}") as producers:
            for _ in range(KILLS):
                forwarding.run_and_kill(chance.uniform(0.02, 0.4))
        forwarding.finish(client, f"intake{suffix}")
        check(client, [each.sent for each in producers], suffix, once=once)


def test_each_message_is_forwarded_once_if_the_server_is_killed_too(server: ServedFolder, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    rules = tmp_path / "routes.toml"
    rules.write_text(RULES.format(".fifo"))
    with HttpQueueClient(server.endpoint) as client:
        create(client, ".fifo")
        forwarding = Forwarding(server, "intake.fifo", rules)
        steady = Forked(forwarding._command, env=forwarding._environment, stderr=subprocess.PIPE, text=True)
        assert steady.stderr is not None
        with steady.stderr as log, producing(server.endpoint, "intake.fifo") as producers:
            assert "forwarding to" in log.readline()
            for _ in range(KILLS // 2):
                forwarding.run_and_kill(chance.uniform(0.02, 0.2))
                server.kill()
                time.sleep(chance.uniform(0, 0.5))
                server.start()
            steady.send_signal(signal.SIGTERM)
            assert steady.wait(60) == 0, log.read()
        with suppress(Unreachable):
            forwarding.finish(client, "intake.fifo")
        check(client, [each.sent for each in producers], ".fifo", once=True)

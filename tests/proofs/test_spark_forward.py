"""From queue to queue through real Spark, with real kills: what was sent arrives once, in the order of its group.

`PROVE=whole` takes many more messages.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.proofs.served import ServedFolder
from tests.spark.forward import PATIENCE_S, Forward
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.client.claims import Claims
from veilmq.client.publications import Publications
from veilmq.testing import RunningServer

WHOLE = os.environ.get("PROVE") == "whole"
MESSAGES = 40_000 if WHOLE else 600
GROUPS = 7
SENDERS = 4
SMALL = {"maxMessagesPerBatch": str(MESSAGES // 3), "shardSize": str(MESSAGES // 6), "wait": "0"}
pytestmark = pytest.mark.timeout(900)
IN, OUT, FIFO_IN, FIFO_OUT = "in", "out", "in.fifo", "out.fifo"


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """Give a server."""
    with RunningServer() as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> Iterator[HttpQueueClient]:
    """Give a client of it; the queues are there."""
    with HttpQueueClient(server.endpoint) as client:
        create(client)
        yield client


def create(client: HttpQueueClient) -> None:
    """Create all queues."""
    for name in (IN, OUT):
        client.create_queue(name)
    for name in (FIFO_IN, FIFO_OUT):
        client.create_queue(name, {"fifo": True, "content_deduplication": True})


def send(client: HttpQueueClient) -> list[str]:
    """Send messages with bodies of their own, and return these."""
    bodies = [f"message {number}" for number in range(MESSAGES)]
    tens = [[NewMessage(body=body) for body in bodies[at : at + 10]] for at in range(0, MESSAGES, 10)]
    with ThreadPoolExecutor(SENDERS) as threads:
        list(threads.map(lambda ten: client.send_batch(IN, ten), tens))
    return bodies


def send_groups(client: HttpQueueClient) -> None:
    """Send numbered messages of several groups."""
    for at in range(0, MESSAGES, 10):
        ten = [NewMessage(body=str(number), group=f"g{number % GROUPS}") for number in range(at, at + 10)]
        client.send_batch(FIFO_IN, ten)


def drain(client: HttpQueueClient, queue: str) -> list[tuple[str | None, str]]:
    """Receive and delete all that is in a queue; return groups and bodies."""
    found: list[tuple[str | None, str]] = []
    while got := client.receive(queue, count=10, wait_s=0, timeout_s=600):
        found += [(message.group, message.body) for message in got]
        client.delete_batch(queue, [message.receipt for message in got])
    return found


def check_nothing_left(client: HttpQueueClient, endpoint: str, source: str, target: str) -> None:
    """Assert that the source has nothing, claimed or not, and that nothing is staged for the target."""
    status = client.show(source)
    assert (status.visible, status.in_flight) == (0, 0)
    with Claims(endpoint, source) as claims, Publications(endpoint, target) as publications:
        assert [view.claims for view in claims.sources()] == [[]]
        assert [view.staged for view in publications.writers()] == [0]


def forward_of(endpoint: str, folder: Path, source: str = IN, target: str = OUT) -> Forward:
    """Return the query under test; all of one test have the same checkpoint."""
    place = folder / "forward"
    place.mkdir(exist_ok=True)
    return Forward(endpoint=endpoint, source=source, target=target, folder=str(place), options=SMALL)


@pytest.mark.parametrize(
    "accidents",
    [
        pytest.param(["staged:1:kill-driver", "published:2:kill-driver"], id="staged-then-published"),
        pytest.param(["reading:2:kill-driver"], id="reading"),
    ],
)
def test_the_driver_is_killed(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path, accidents: list[str]
) -> None:
    sent = send(client)
    forward = forward_of(server.endpoint, tmp_path)
    for accident in accidents:
        own = {"accident": accident}
        killed = (
            replace(forward, options={**SMALL, **own})
            if accident.startswith("reading")
            else replace(forward, write_options=own)
        )
        assert killed.program().wait(PATIENCE_S) == -9
    forward.run(spark)
    arrived = [body for _, body in drain(client, OUT)]
    assert len(arrived) == len(sent)
    assert set(arrived) == set(sent)
    check_nothing_left(client, server.endpoint, IN, OUT)


def test_a_task_fails_when_it_has_staged_all_and_is_tried_again(
    client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    sent = send(client)
    once = tmp_path / "failed"
    own = {"accident": "staged:1:fail", "once": str(once)}
    forward = replace(forward_of(server.endpoint, tmp_path), write_options=own, master="local[2,3]")
    assert forward.program().wait(PATIENCE_S) == 0
    assert once.exists(), "the task did fail"
    arrived = [body for _, body in drain(client, OUT)]
    assert len(arrived) == len(sent)
    assert set(arrived) == set(sent)
    check_nothing_left(client, server.endpoint, IN, OUT)


def test_groups_keep_their_order_through_a_kill_and_have_no_duplicate(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    send_groups(client)
    forward = forward_of(server.endpoint, tmp_path, FIFO_IN, FIFO_OUT)
    killed = replace(forward, write_options={"accident": "published:1:kill-driver"})
    assert killed.program().wait(PATIENCE_S) == -9
    forward.run(spark)
    arrived: defaultdict[str | None, list[int]] = defaultdict(list)
    for group, body in drain(client, FIFO_OUT):
        arrived[group].append(int(body))
    assert arrived == {f"g{group}": list(range(group, MESSAGES, GROUPS)) for group in range(GROUPS)}
    check_nothing_left(client, server.endpoint, FIFO_IN, FIFO_OUT)


def test_the_server_is_killed_after_a_publication(spark: SparkSession, tmp_path: Path) -> None:
    served = ServedFolder(tmp_path / "data")
    served.start()
    try:
        endpoint = f"http://127.0.0.1:{served.port}"
        with HttpQueueClient(endpoint) as client, ThreadPoolExecutor(1) as thread:
            create(client)
            sent = send(client)
            own = {"accident": "published:1:kill-server", "serverpid": str(served.pid)}

            def start_again() -> None:
                served.await_end(PATIENCE_S)
                served.start()

            again = thread.submit(start_again)
            replace(forward_of(endpoint, tmp_path), write_options=own).run(spark)
            again.result()
            arrived = [body for _, body in drain(client, OUT)]
            assert len(arrived) == len(sent)
            assert set(arrived) == set(sent)
            check_nothing_left(client, endpoint, IN, OUT)
    finally:
        served.stop()

"""From queue to queue through real Spark, with real kills: what was sent arrives once, in the order of its group.

`PROVE=whole` takes many more messages.
"""

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.client.traffic import drained, left, send, send_in_order
from tests.conftest import EVERYTHING
from tests.proofs.served import ServedFolder
from tests.spark.forward import PATIENCE_S, Forward
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.client.api import Claims, Publications
from veilmq.testing import RunningServer

WHOLE = os.environ.get("PROVE") == "whole"
MESSAGES = 40_000 if WHOLE else 600
GROUPS = 7
SMALL = {"maxMessagesPerBatch": str(MESSAGES // 3), "shardSize": str(MESSAGES // 6), "wait": "0"}
pytestmark = pytest.mark.timeout(900)
IN, OUT, FIFO_IN, FIFO_OUT = "in", "out", "in.fifo", "out.fifo"


@pytest.fixture
def client(client: HttpQueueClient) -> HttpQueueClient:
    """Give a client; the queues are there."""
    create(client)
    return client


def create(client: HttpQueueClient) -> None:
    """Create all queues."""
    for name in (IN, OUT):
        client.create_queue(name)
    for name in (FIFO_IN, FIFO_OUT):
        client.create_queue(name, {"fifo": True, "content_deduplication": True})


def check_nothing_left(client: HttpQueueClient, endpoint: str, source: str, target: str) -> None:
    """Assert that the source has nothing, claimed or not, and that nothing is staged for the target."""
    assert left(client, source) == (0, 0)
    with Claims(endpoint, source) as claims, Publications(endpoint, target) as publications:
        assert [view.claims for view in claims.sources()] == [[]]
        assert [view.staged for view in publications.writers()] == [0]


def forward_of(endpoint: str, folder: Path, source: str = IN, target: str = OUT) -> Forward:
    """Return the query under test; all of one test have the same checkpoint."""
    place = folder / "forward"
    place.mkdir(exist_ok=True)
    return Forward(endpoint=endpoint, source=source, target=target, folder=str(place), options=SMALL)


@EVERYTHING
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
    sent = send(client, IN, MESSAGES)
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
    arrived = [message.body for message in drained(client, OUT)]
    assert len(arrived) == len(sent)
    assert set(arrived) == set(sent)
    check_nothing_left(client, server.endpoint, IN, OUT)


@EVERYTHING
def test_a_task_fails_when_it_has_staged_all_and_is_tried_again(
    client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    sent = send(client, IN, MESSAGES)
    once = tmp_path / "failed"
    own = {"accident": "staged:1:fail", "once": str(once)}
    forward = replace(forward_of(server.endpoint, tmp_path), write_options=own, master="local[2,3]")
    assert forward.program().wait(PATIENCE_S) == 0
    assert once.exists(), "the task did fail"
    arrived = [message.body for message in drained(client, OUT)]
    assert len(arrived) == len(sent)
    assert set(arrived) == set(sent)
    check_nothing_left(client, server.endpoint, IN, OUT)


@EVERYTHING
def test_groups_keep_their_order_through_a_kill_and_have_no_duplicate(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    numbered = [NewMessage(body=str(number), group=f"g{number % GROUPS}") for number in range(MESSAGES)]
    send_in_order(client, FIFO_IN, numbered)
    forward = forward_of(server.endpoint, tmp_path, FIFO_IN, FIFO_OUT)
    killed = replace(forward, write_options={"accident": "published:1:kill-driver"})
    assert killed.program().wait(PATIENCE_S) == -9
    forward.run(spark)
    arrived: defaultdict[str | None, list[int]] = defaultdict(list)
    for message in drained(client, FIFO_OUT):
        arrived[message.group].append(int(message.body))
    assert arrived == {f"g{group}": list(range(group, MESSAGES, GROUPS)) for group in range(GROUPS)}
    check_nothing_left(client, server.endpoint, FIFO_IN, FIFO_OUT)


def test_the_server_is_killed_after_a_publication(spark: SparkSession, tmp_path: Path) -> None:
    served = ServedFolder(tmp_path / "data")
    served.start()
    try:
        endpoint = f"http://127.0.0.1:{served.port}"
        with HttpQueueClient(endpoint) as client, ThreadPoolExecutor(1) as thread:
            create(client)
            sent = send(client, IN, MESSAGES)
            own = {"accident": "published:1:kill-server", "serverpid": str(served.pid)}

            def start_again() -> None:
                served.await_end(PATIENCE_S)
                served.start()

            again = thread.submit(start_again)
            replace(forward_of(endpoint, tmp_path), write_options=own).run(spark)
            again.result()
            arrived = [message.body for message in drained(client, OUT)]
            assert len(arrived) == len(sent)
            assert set(arrived) == set(sent)
            check_nothing_left(client, endpoint, IN, OUT)
    finally:
        served.stop()

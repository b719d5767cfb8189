"""The crash matrix of the Spark source and sink, with real kills: each message arrives exactly once.

The sink stores a batch once and skips a repeated one. So a message missing from a repeated batch is lost, and an extra
one is there twice: both are detected. `PROVE=whole` sends many more messages.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.client.traffic import drained, left, send, send_in_order
from tests.conftest import EVERYTHING
from tests.proofs.served import Served, ServedFolder, StartNode, wait_until
from tests.spark.stream import PATIENCE_S, Forward, Stream, kept
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.client.api import Claims, Publications
from veilmq.testing import RunningServer

WHOLE = os.environ.get("PROVE") == "whole"
MESSAGES = 60_000 if WHOLE else 1_200
BATCH = str(MESSAGES // 4)
SHARD = str(MESSAGES // 16)
QUEUE = "orders"
HOLD_S = 3_600
until = partial(wait_until, within_s=PATIENCE_S)
SMALL = {"maxMessagesPerBatch": BATCH, "shardSize": SHARD, "wait": "0"}


@pytest.fixture
def client(client: HttpQueueClient) -> HttpQueueClient:
    client.create_queue(QUEUE)
    create(client)
    return client


def check(client: HttpQueueClient, folder: Path, sent: Collection[str]) -> None:
    out = kept(folder)
    assert set(out) == set(sent)
    assert len(out) == len(sent)
    assert left(client, QUEUE) == (0, 0)


def stream_of(server: RunningServer, folder: Path, options: dict[str, str] | None = None, **fields: Any) -> Stream:
    """Return the stream under test; all streams of a test share checkpoint and output."""
    place = folder / "stream"
    place.mkdir(exist_ok=True)
    return Stream(
        endpoint=server.endpoint, queue=QUEUE, folder=str(place), options={**SMALL, **(options or {})}, **fields
    )


@pytest.mark.parametrize(
    ("accident", "kill_after"),
    [
        pytest.param("reading:2:kill-driver", None, id="in-a-batch"),
        pytest.param("", 1, id="after-the-sink-before-the-commit-log", marks=EVERYTHING),
        pytest.param("claimed:3:kill-driver", None, id="after-the-claim-before-the-offset-log", marks=EVERYTHING),
    ],
)
def test_each_message_arrives_once_if_the_driver_is_killed(
    spark: SparkSession,
    client: HttpQueueClient,
    server: RunningServer,
    tmp_path: Path,
    accident: str,
    kill_after: int | None,
) -> None:
    sent = send(client, QUEUE, MESSAGES)
    options = {"accident": accident} if accident else {}
    killed = stream_of(server, tmp_path, options, kill_after=kill_after, available_now=False)
    assert killed.program().wait(PATIENCE_S) == -9
    before = kept(tmp_path / "stream")
    assert 0 < len(before) < len(sent)
    stream_of(server, tmp_path).run(spark)
    check(client, tmp_path / "stream", sent)


def test_each_message_arrives_once_if_the_server_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    with ServedFolder(tmp_path / "data") as served, HttpQueueClient(served.endpoint) as client:
        client.create_queue(QUEUE)
        sent = send(client, QUEUE, MESSAGES)
        options = {**SMALL, "accident": "reading:2:kill-server", "serverpid": str(served.pid)}
        stream = Stream(endpoint=served.endpoint, queue=QUEUE, folder=str(tmp_path / "stream"), options=options)
        query = stream.start(spark)
        served.await_end()
        served.start()
        assert query.awaitTermination(PATIENCE_S)
        check(client, Path(stream.folder), sent)


@EVERYTHING
@pytest.mark.usefixtures("spark")  # for its marks and its Java
def test_messages_arrive_once_if_a_task_is_retried(
    client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    sent = send(client, QUEUE, MESSAGES)
    once = tmp_path / "failed"
    stream = stream_of(server, tmp_path, {"accident": "reading:2:fail", "once": str(once)}, master="local[2,3]")
    assert stream.program().wait(PATIENCE_S) == 0
    assert once.exists(), "the task did not fail"
    check(client, Path(stream.folder), sent)


@EVERYTHING
def test_a_second_driver_on_one_checkpoint_fences_the_first(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """Spark itself stops one of them, too; the restarted one finishes."""
    sent = send(client, QUEUE, MESSAGES // 2)
    stream = stream_of(server, tmp_path, available_now=False)
    first = stream.start(spark)
    until(lambda: len(kept(Path(stream.folder))) > 0)
    second = stream.program()
    try:
        for begin in range(MESSAGES // 2, MESSAGES, MESSAGES // 40):
            sent += send(client, QUEUE, MESSAGES // 40, begin)
            until(lambda: client.show(QUEUE).visible == 0 or not first.isActive)
        until(lambda: not first.isActive)
        error = str(first.exception())
        assert "one checkpoint for only one query" in error or "CONCURRENT_STREAM_LOG_UPDATE" in error, error
    finally:
        first.stop()
        second.kill()
        second.wait(PATIENCE_S)
    stream_of(server, tmp_path).run(spark)
    check(client, Path(stream.folder), sent)


@pytest.mark.parametrize(
    "batches", [pytest.param(2, id="after-some-batches"), pytest.param(1, id="after-the-first", marks=EVERYTHING)]
)
def test_an_idle_stream_has_acknowledged_all_messages(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path, batches: int
) -> None:
    sent = send(client, QUEUE, MESSAGES)
    size = {"maxMessagesPerBatch": str(MESSAGES // batches)}
    query = stream_of(server, tmp_path, size, available_now=False).start(spark)
    until(lambda: left(client, QUEUE) == (0, 0) or not query.isActive)
    query.stop()
    assert query.exception() is None
    server.advance((HOLD_S + 1) * 1_000)
    check(client, tmp_path / "stream", sent)


@EVERYTHING
def test_a_query_fails_after_a_downtime_longer_than_its_hold(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """No message is lost; those that were written before arrive twice."""
    sent = send(client, QUEUE, MESSAGES)
    killed = stream_of(server, tmp_path, available_now=False, kill_after=1)
    assert killed.program().wait(PATIENCE_S) == -9
    server.advance((HOLD_S + 1) * 1_000)
    before = client.show(QUEUE)
    assert before.in_flight == 0
    assert before.visible + len(kept(tmp_path / "stream")) > len(sent)  # some are in both
    stream = stream_of(server, tmp_path)
    with pytest.raises(StreamingQueryException, match="onLostClaim=skip"):
        stream.run(spark)
    assert client.show(QUEUE).visible == before.visible
    stream_of(server, tmp_path, {"onLostClaim": "skip"}).run(spark)
    assert set(kept(tmp_path / "stream")) == set(sent)
    assert left(client, QUEUE) == (0, 0)


@pytest.mark.parametrize("interval_ms", ["15000", pytest.param("1", marks=EVERYTHING)])
def test_asynchronous_progress_is_refused(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path, interval_ms: str
) -> None:
    sent = send(client, QUEUE, MESSAGES)
    asynchronous = {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": interval_ms,
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
    }
    stream = stream_of(server, tmp_path, available_now=False, write_options=asynchronous)
    with pytest.raises(StreamingQueryException, match="asyncProgressTrackingEnabled"):
        stream.run(spark)
    assert sum(left(client, QUEUE)) == len(sent)


FORWARDED = 40_000 if WHOLE else 600
GROUPS = 7
SMALL_FORWARD = {"maxMessagesPerBatch": str(FORWARDED // 3), "shardSize": str(FORWARDED // 6), "wait": "0"}
IN, OUT, FIFO_IN, FIFO_OUT = "in", "out", "in.fifo", "out.fifo"


def create(client: HttpQueueClient) -> None:
    for name in (IN, OUT):
        client.create_queue(name)
    for name in (FIFO_IN, FIFO_OUT):
        client.create_queue(name, {"fifo": True, "content_deduplication": True})


def check_nothing_left(client: HttpQueueClient, endpoint: str, source: str, target: str) -> None:
    assert left(client, source) == (0, 0)
    with Claims(endpoint, source) as claims, Publications(endpoint, target) as publications:
        assert [view.claims for view in claims.sources()] == [[]]
        assert [view.staged for view in publications.writers()] == [0]


def check_forwarded(client: HttpQueueClient, endpoint: str, sent: list[str]) -> None:
    arrived = [message.body for message in drained(client, OUT)]
    assert len(arrived) == len(sent)
    assert set(arrived) == set(sent)
    check_nothing_left(client, endpoint, IN, OUT)


def send_groups(client: HttpQueueClient) -> None:
    numbered = [NewMessage(body=str(number), group=f"g{number % GROUPS}") for number in range(FORWARDED)]
    send_in_order(client, FIFO_IN, numbered)


def check_groups(client: HttpQueueClient, endpoint: str) -> None:
    """Assert that each group arrived completely, once and in order."""
    arrived: defaultdict[str | None, list[int]] = defaultdict(list)
    for message in drained(client, FIFO_OUT):
        arrived[message.group].append(int(message.body))
    assert arrived == {f"g{group}": list(range(group, FORWARDED, GROUPS)) for group in range(GROUPS)}
    check_nothing_left(client, endpoint, FIFO_IN, FIFO_OUT)


@contextmanager
def restarting(served: Served) -> Iterator[None]:
    def start_again() -> None:
        served.await_end(PATIENCE_S)
        served.start()

    with ThreadPoolExecutor(1) as thread:
        again = thread.submit(start_again)
        yield
        again.result()


def forward_of(endpoint: str, folder: Path, source: str = IN, target: str = OUT) -> Forward:
    place = folder / "forward"
    place.mkdir(exist_ok=True)
    return Forward(endpoint=endpoint, source=source, target=target, folder=str(place), options=SMALL_FORWARD)


@pytest.mark.timeout(900)
@EVERYTHING
@pytest.mark.parametrize(
    "accidents",
    [
        pytest.param(["staged:1:kill-driver", "published:2:kill-driver"], id="staged-then-published"),
        pytest.param(["reading:2:kill-driver"], id="reading"),
    ],
)
def test_each_message_is_forwarded_once_if_the_driver_is_killed(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path, accidents: list[str]
) -> None:
    sent = send(client, IN, FORWARDED)
    forward = forward_of(server.endpoint, tmp_path)
    for accident in accidents:
        own = {"accident": accident}
        killed = (
            replace(forward, options={**SMALL_FORWARD, **own})
            if accident.startswith("reading")
            else replace(forward, write_options=own)
        )
        assert killed.program().wait(PATIENCE_S) == -9
    forward.run(spark)
    check_forwarded(client, server.endpoint, sent)


@pytest.mark.timeout(900)
@EVERYTHING
def test_each_message_is_forwarded_once_if_a_task_is_retried_after_staging(
    client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    sent = send(client, IN, FORWARDED)
    once = tmp_path / "failed"
    own = {"accident": "staged:1:fail", "once": str(once)}
    forward = replace(forward_of(server.endpoint, tmp_path), write_options=own, master="local[2,3]")
    assert forward.program().wait(PATIENCE_S) == 0
    assert once.exists(), "the task did not fail"
    check_forwarded(client, server.endpoint, sent)


@pytest.mark.timeout(900)
@EVERYTHING
def test_groups_are_forwarded_once_and_in_order_if_the_driver_is_killed(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    send_groups(client)
    forward = forward_of(server.endpoint, tmp_path, FIFO_IN, FIFO_OUT)
    killed = replace(forward, write_options={"accident": "published:1:kill-driver"})
    assert killed.program().wait(PATIENCE_S) == -9
    forward.run(spark)
    check_groups(client, server.endpoint)


@pytest.mark.timeout(900)
def test_each_message_is_forwarded_once_if_the_server_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    with ServedFolder(tmp_path / "data") as served, HttpQueueClient(served.endpoint) as client:
        create(client)
        sent = send(client, IN, FORWARDED)
        own = {"accident": "published:1:kill-server", "serverpid": str(served.pid)}
        with restarting(served):
            replace(forward_of(served.endpoint, tmp_path), write_options=own).run(spark)
        check_forwarded(client, served.endpoint, sent)


@pytest.mark.timeout(900)
@EVERYTHING
@pytest.mark.parametrize("accident", ["published:1", *(["reading:2"] if WHOLE else [])])
def test_groups_are_forwarded_once_and_in_order_if_a_node_is_killed(
    spark: SparkSession, start_node: StartNode, tmp_path: Path, accident: str
) -> None:
    node = start_node()
    with HttpQueueClient(node.endpoint) as client:
        create(client)
        send_groups(client)
        own = {"accident": f"{accident}:kill-server", "serverpid": str(node.pid)}
        forward = forward_of(node.endpoint, tmp_path, FIFO_IN, FIFO_OUT)
        reading = accident.startswith("reading")
        with restarting(node):
            slow = (
                replace(forward, options={**SMALL_FORWARD, **own}) if reading else replace(forward, write_options=own)
            )
            slow.run(spark)
        check_groups(client, node.endpoint)

"""The crash matrix of the Spark source: real Spark, a real server, real kills; what was sent comes out once.

The sink keeps a batch once and passes over a repeated one, so a message that a repeated batch does not have again is
lost, and one that it has too much is there twice: both show. `PROVE=whole` takes many more messages.
"""

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.client.traffic import left, send
from tests.conftest import EVERYTHING
from tests.proofs.served import ServedFolder
from tests.spark.stream import PATIENCE_S, Stream, kept
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

WHOLE = os.environ.get("PROVE") == "whole"
MESSAGES = 60_000 if WHOLE else 1_200
BATCH = str(MESSAGES // 4)
SHARD = str(MESSAGES // 16)
QUEUE = "orders"
HOLD_S = 3_600
SMALL = {"maxMessagesPerBatch": BATCH, "shardSize": SHARD, "wait": "0"}


@pytest.fixture
def client(client: HttpQueueClient) -> HttpQueueClient:
    """Give a client; the queue is there."""
    client.create_queue(QUEUE)
    return client


def check(client: HttpQueueClient, folder: Path, sent: Collection[str]) -> None:
    """Assert that what was sent is kept, once each, and that the queue has nothing left, claimed or not."""
    out = kept(folder)
    assert set(out) == set(sent)
    assert len(out) == len(sent)
    assert left(client, QUEUE) == (0, 0)


def stream_of(server: RunningServer, folder: Path, options: dict[str, str] | None = None, **fields: Any) -> Stream:
    """Return the stream under test; all of one test have the same checkpoint and the same output."""
    place = folder / "stream"
    place.mkdir(exist_ok=True)
    return Stream(
        endpoint=server.endpoint, queue=QUEUE, folder=str(place), options={**SMALL, **(options or {})}, **fields
    )


def until(holds: Callable[[], bool]) -> None:
    """Return when `holds` does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, "it does not come about"
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("accident", "kill_after"),
    [
        pytest.param("reading:2:kill-driver", None, id="in-a-batch"),
        pytest.param("", 1, id="after-the-sink-before-the-commit-log", marks=EVERYTHING),
        pytest.param("claimed:3:kill-driver", None, id="after-the-claim-before-the-offset-log", marks=EVERYTHING),
    ],
)
def test_the_driver_is_killed(
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
    assert 0 < len(before) < len(sent), "some of it, and not all, was kept before the kill"
    stream_of(server, tmp_path).run(spark)
    check(client, tmp_path / "stream", sent)


def test_the_server_is_killed_in_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    served = ServedFolder(tmp_path / "data")
    served.start()
    try:
        endpoint = f"http://127.0.0.1:{served.port}"
        with HttpQueueClient(endpoint) as client:
            client.create_queue(QUEUE)
            sent = send(client, QUEUE, MESSAGES)
            options = {**SMALL, "accident": "reading:2:kill-server", "serverpid": str(served.pid)}
            stream = Stream(endpoint=endpoint, queue=QUEUE, folder=str(tmp_path / "stream"), options=options)
            query = stream.start(spark)
            served.await_end()
            served.start()
            assert query.awaitTermination(PATIENCE_S)
            check(client, Path(stream.folder), sent)
    finally:
        served.stop()


@EVERYTHING
@pytest.mark.usefixtures("spark")  # only to be marked, and to share its Java
def test_a_task_fails_and_is_tried_again(client: HttpQueueClient, server: RunningServer, tmp_path: Path) -> None:
    sent = send(client, QUEUE, MESSAGES)
    once = tmp_path / "failed"
    stream = stream_of(server, tmp_path, {"accident": "reading:2:fail", "once": str(once)}, master="local[2,3]")
    assert stream.program().wait(PATIENCE_S) == 0
    assert once.exists(), "the task did fail"
    check(client, Path(stream.folder), sent)


@EVERYTHING
def test_two_drivers_on_one_checkpoint(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """The second fences the first. Spark itself stops one of them, too; whoever is started again finishes."""
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
        said = str(first.exception())
        assert "one checkpoint for only one query" in said or "CONCURRENT_STREAM_LOG_UPDATE" in said, said
    finally:
        first.stop()
        second.kill()
        second.wait(PATIENCE_S)
    stream_of(server, tmp_path).run(spark)
    check(client, Path(stream.folder), sent)


@pytest.mark.parametrize(
    "batches",
    [pytest.param(2, id="after-some-batches"), pytest.param(1, id="after-the-first", marks=EVERYTHING)],
)
def test_a_clean_stop_while_idle(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path, batches: int
) -> None:
    """An idle stream has acknowledged all it wrote, so nothing comes again although nobody starts it any more."""
    sent = send(client, QUEUE, MESSAGES)
    size = {"maxMessagesPerBatch": str(MESSAGES // batches)}
    query = stream_of(server, tmp_path, size, available_now=False).start(spark)
    until(lambda: left(client, QUEUE) == (0, 0) or not query.isActive)
    query.stop()
    assert query.exception() is None
    server.advance((HOLD_S + 1) * 1_000)
    check(client, tmp_path / "stream", sent)


@EVERYTHING
def test_a_downtime_longer_than_the_hold(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """The query fails and says why; the messages are back, none is lost; those that were written come twice."""
    sent = send(client, QUEUE, MESSAGES)
    killed = stream_of(server, tmp_path, available_now=False, kill_after=1)
    assert killed.program().wait(PATIENCE_S) == -9
    server.advance((HOLD_S + 1) * 1_000)
    before = client.show(QUEUE)
    assert before.in_flight == 0
    assert before.visible + len(kept(tmp_path / "stream")) > len(sent), "some is in both"
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
    """Before anything is acknowledged: all messages are still in the queue."""
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

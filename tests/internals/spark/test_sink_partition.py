"""A task's part of a write against a real server, without Spark: rows that no request takes."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from veilmq.client import HttpQueueClient
from veilmq.spark.options import SinkOptions
from veilmq.spark.sink import PartitionWriter, QueueStreamWriter, SinkFailed
from veilmq.testing import RunningServer

LONG = "x" * 9_000_000


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server with a queue, and one for what is too long."""
    with RunningServer() as running, HttpQueueClient(running.endpoint) as queues:
        queues.create_queue("jobs")
        queues.create_queue("dead")
        yield running


def writer(server: RunningServer, **options: str) -> PartitionWriter:
    """Return a writer of partition 3."""
    given = {"endpoint": server.endpoint, "queue": "jobs", **options}
    return PartitionWriter(SinkOptions.of(given), writer="w", batch=0, partition=3)


def rows(*attributes: str) -> pa.RecordBatch:
    """Return a row for each value of an attribute."""
    maps = pa.array([[("k", text)] for text in attributes], pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict({"body": pa.array(["b"] * len(attributes)), "attributes": maps})


def test_attributes_that_no_request_takes_are_told_with_their_row(server: RunningServer) -> None:
    """The server would refuse the request as a whole, and could not say which row it was."""
    task = writer(server)
    with pytest.raises(SinkFailed, match=r"Row 2 of partition 3 is too long: 9,000,002 bytes"):
        task.write(iter([rows("a", LONG, "c")]))
    task.close()


def test_rows_that_cannot_be_sent_go_to_a_table(server: RunningServer, tmp_path: Path) -> None:
    """With the reason and where they were; the others are staged, and a task that runs again adds none."""
    bodies = pa.RecordBatch.from_pydict({"body": ["a", "\0", "b", "x" * 2_000_000, None, "c"]})
    for _ in range(2):
        task = writer(server, badRows=f"table={tmp_path}")
        written = task.write(iter([bodies]))
        task.close()
        assert (written.messages, written.bad) == (3, 3)
    (file,) = tmp_path.iterdir()
    kept = pq.read_table(file).to_pylist()
    assert [(row["partition"], row["row"], row["queue"]) for row in kept] == [
        (3, 4, "jobs"),
        (3, 5, "jobs"),
        (3, 2, "jobs"),
    ]
    assert [row["body"] for row in kept] == ["x" * 2_000_000, None, "\0"]
    assert "2,000,000 bytes" in kept[0]["reason"]


def test_rows_that_cannot_be_sent_are_left_out(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    task = writer(server, badRows="SKIP")
    written = task.write(iter([pa.RecordBatch.from_pydict({"body": ["", "a"]})]))
    task.close()
    assert (written.messages, written.bad) == (1, 1)
    options = SinkOptions.of({"endpoint": server.endpoint, "queue": "jobs", "badRows": "skip"})
    QueueStreamWriter(options).commit([written], 0)
    assert "1 rows for the queue jobs could not be sent: left out" in caplog.text
    with HttpQueueClient(server.endpoint) as queues:
        assert queues.show("jobs").visible == 1

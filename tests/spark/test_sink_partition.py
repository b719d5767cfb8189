"""A task's part of a write against a real server, without Spark: rows that no request takes."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from veilmq.client import HttpQueueClient
from veilmq.spark.sink import PartitionWriter, SinkFailed
from veilmq.spark.sink_options import SinkOptions
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


def test_they_go_to_the_dead_letter_queue_like_others(server: RunningServer) -> None:
    task = writer(server, onTooLong="deadLetter", deadLetterQueue="dead")
    written = task.write(iter([rows("a", LONG, "c")]))
    task.close()
    assert (written.messages, written.dead) == (2, 1)

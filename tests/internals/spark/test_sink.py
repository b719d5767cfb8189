"""The sink without Spark: rows that cannot be sent, options and columns, and retries of a publication."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tests.client.scripted_server import ScriptedServer, reply
from veilmq.client import HttpQueueClient
from veilmq.client.api import Publications
from veilmq.client.messages import ClientError
from veilmq.spark import retries
from veilmq.spark.options import FAIL, SKIP, OptionWrong, SinkOptions
from veilmq.spark.sink import (
    ColumnsWrong,
    PartitionWriter,
    QueueStreamWriter,
    QueueWriter,
    SinkFailed,
    Written,
    check_columns,
    sink_options,
)
from veilmq.testing import RunningServer

LONG = "x" * 9_000_000


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer() as running, HttpQueueClient(running.endpoint) as queues:
        queues.create_queue("jobs")
        queues.create_queue("dead")
        yield running


def writer(server: RunningServer, **options: str) -> PartitionWriter:
    given = {"endpoint": server.endpoint, "queue": "jobs", **options}
    return PartitionWriter(SinkOptions.of(given), writer="w", batch=0, partition=3)


def rows(*attributes: str) -> pa.RecordBatch:
    """Return a row for each value of an attribute."""
    maps = pa.array([[("k", text)] for text in attributes], pa.map_(pa.string(), pa.string()))
    return pa.RecordBatch.from_pydict({"body": pa.array(["b"] * len(attributes)), "attributes": maps})


def test_invalid_attributes_are_reported_with_their_row(server: RunningServer) -> None:
    """The server would reject the whole request without naming the row. What is staged would add up with each start."""
    with pytest.raises(SinkFailed, match=r"Row 2 of partition 3 is too long: 9,000,002 bytes"), writer(server) as task:
        task.add(rows("a", LONG, "c"))
    with Publications(server.endpoint, "jobs") as publications:
        assert [(each.writer, each.staged) for each in publications.writers()] == [("w", 0)]


def test_bad_rows_go_to_a_table(server: RunningServer, tmp_path: Path) -> None:
    """With the reason and their position; the other rows are staged, and a repeated task adds none."""
    bodies = pa.RecordBatch.from_pydict({"body": ["a", "\0", "b", "x" * 2_000_000, None, "c"]})
    for _ in range(2):
        with writer(server, badRows=f"table={tmp_path}") as task:
            task.add(bodies)
            written = task.finish()
        assert (written.messages, written.bad) == (3, 3)
    (file,) = tmp_path.iterdir()
    kept = pq.read_table(file).to_pylist()
    assert [(row["partition"], row["row"], row["queue"]) for row in kept] == [
        (3, 5, "jobs"),
        (3, 4, "jobs"),
        (3, 2, "jobs"),
    ]
    assert [row["body"] for row in kept] == [None, "x" * 2_000_000, "\0"]
    assert "2,000,000 bytes" in kept[1]["reason"]


UNFIT: dict[str, tuple[str, dict[str, Any]]] = {
    "no body": ("jobs", {"body": ["", "a"]}),
    "a delay of more than 32 bits": ("jobs", {"body": ["a", "b"], "delay_s": pa.array([1 << 40, 0], pa.int64())}),
    "a body that is not UTF-8": ("jobs", {"body": pa.array([b"a", b"\xff"]).view(pa.string())}),
    "no group, before another row": ("lines.fifo", {"body": ["a", "b"], "group": [None, "g"]}),
}


@pytest.mark.parametrize(("queue", "columns"), UNFIT.values(), ids=UNFIT)
def test_bad_rows_are_left_out(
    server: RunningServer, caplog: pytest.LogCaptureFixture, queue: str, columns: dict[str, Any]
) -> None:
    with HttpQueueClient(server.endpoint) as queues:
        queues.create_queue("lines.fifo", {"fifo": True, "content_deduplication": True})
        with writer(server, queue=queue, badRows="SKIP") as task:
            task.add(pa.RecordBatch.from_pydict(columns))
            written = task.finish()
        assert (written.messages, written.bad) == (1, 1)
        options = SinkOptions.of({"endpoint": server.endpoint, "queue": queue, "badRows": "skip"})
        QueueStreamWriter(options).commit([written], 0)
        assert f"1 rows for the queue {queue} could not be sent: left out" in caplog.text
        assert queues.show(queue).visible == 1


def test_rows_without_a_body_cost_no_request() -> None:
    with ScriptedServer(reply(200, b'{"messages": 1, "again": false}')) as server:
        given = {"endpoint": server.endpoint, "queue": f"{server.endpoint}/000000000000/jobs", "badRows": "skip"}
        with PartitionWriter(SinkOptions.of(given), writer="w", batch=0, partition=0) as task:
            task.add(pa.RecordBatch.from_pydict({"body": [None, "", "a", None]}))
            assert task.finish().bad == 3


def test_killed_task_leaves_no_visible_file(server: RunningServer, tmp_path: Path) -> None:
    """The file is complete when it gets its name; here a folder has this name, so it never does."""
    (tmp_path / "jobs-w-0-3.parquet").mkdir()
    with writer(server, badRows=f"table={tmp_path}") as task:
        task.add(pa.RecordBatch.from_pydict({"body": [""]}))
        with pytest.raises(OSError, match="jobs-w-0-3"):
            task.finish()
    assert ds.dataset(tmp_path, format="parquet").files == []


GIVEN = {"queue": "out"}
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "tinyint": ByteType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "texts": MapType(StringType(), StringType()),
    "numbers": MapType(StringType(), IntegerType()),
}


def test_a_task_that_outlives_its_write_stages_nothing(server: RunningServer) -> None:
    """Nothing would publish its rows or drop them for two weeks."""
    options = SinkOptions.of({"endpoint": server.endpoint, "queue": "jobs"})
    write = QueueWriter(options)
    with PartitionWriter(options, writer=write._job, batch=0, partition=0) as task:
        task.add(rows("a"))
        write.abort([None])
        task.add(rows("b"))
    with Publications(server.endpoint, "jobs") as publications:
        assert [(each.writer, each.staged) for each in publications.writers()] == [(write._job, 0)]


def columns(text: str) -> StructType:
    """Return the schema in `text`; Spark's parser needs a session."""
    pairs = [column.split() for column in text.split(",")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


BODY = columns("body string")


def test_defaults() -> None:
    options = SinkOptions.of(GIVEN)
    assert (options.connection.queue, options.batch_size, options.bad_rows) == ("out", 1_000, FAIL)
    assert (options.messages_per_s_max, options.writer) == (None, None)


def test_names_are_case_insensitive_and_options_of_spark_are_ignored() -> None:
    given = {"BatchSize": "7", "badrows": "Skip", "checkpointLocation": "/c"}
    options = SinkOptions.of(GIVEN | given | {"asyncProgressTrackingEnabled": "true"})
    assert (options.batch_size, options.bad_rows) == (7, SKIP)


@pytest.mark.parametrize(("given", "words"), [
    ({"batchSize": "0"}, "batchSize = '0': must be 1 to 5,000"), ({"messagesPerSecond": "fast"}, "messagesPerSecond"),
    ({"badRows": "table="}, "badRows = 'table=': must be fail, skip or table=PATH"),
    ({"badRows": "drop"}, "must be fail, skip or table=PATH"), ({"writer": "a b"}, "writer"),
    ({"writer": "é"}, "writer"), ({"writer": "w" * 65}, "writer"), ({"mode": "claims"}, "option mode: does not exist"),
])  # fmt: skip
def test_wrong_options_are_reported(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionWrong) as caught:
        SinkOptions.of(GIVEN | given)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", [
    "body string", "BODY string, Group string",
    "body string, attributes texts, attribute_types texts, dedup_id string, delay_s int", "body string, delay_s bigint",
    "body string, delay_s tinyint",
])  # fmt: skip
def test_columns_of_messages_are_accepted(text: str) -> None:
    check_columns(columns(text))


@pytest.mark.parametrize(("text", "words"), [
    ("group string", "The column body is missing"), ("body binary", "use CAST(body AS string), or base64(body)"),
    ("body string, id string, group string", 'add select("body", "group")'), ("id string", 'add select("body")'),
    ("body string, delay_s double", "delay_s must be int, but is double; use CAST(delay_s AS int)"),
    ("body string, attributes numbers", "attributes must be map<string, string>"),
    ("body string, attributes string", "attributes must be map<string, string>"),
    ("body string, group int", "group must be string"), ("body string, BODY string", "occurs twice"),
])  # fmt: skip
def test_other_columns_are_reported_with_the_remedy(text: str, words: str) -> None:
    with pytest.raises(ColumnsWrong) as caught:
        check_columns(columns(text))
    assert words in str(caught.value)


def test_queue_cannot_be_overwritten() -> None:
    with pytest.raises(OptionWrong, match='mode\\("append"\\)'):
        sink_options(GIVEN, BODY, overwrite=True, stream=False)
    with pytest.raises(OptionWrong, match="outputMode"):
        sink_options(GIVEN, BODY, overwrite=True, stream=True)


def test_stream_has_no_writer_name() -> None:
    """A fixed name would outlive a checkpoint, and the batches of the next one would seem to be sent already."""
    with pytest.raises(OptionWrong, match="identified by its checkpoint"):
        sink_options(GIVEN | {"writer": "w"}, BODY, overwrite=False, stream=True)


def test_options_and_columns_are_checked_when_planning() -> None:
    with pytest.raises(ColumnsWrong):
        sink_options(GIVEN, columns("id string"), overwrite=False, stream=False)
    with pytest.raises(OptionWrong, match="queue: is required"):
        sink_options({}, BODY, overwrite=False, stream=True)


AWAY = reply(503, b'{"code": "ShuttingDown", "message": "The server is about to stop."}')


class SleepClock:
    """A replacement of the module ``time`` whose clock advances only by ``sleep``."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, s: float) -> None:
        self.now_s += s


def published(*, more: bool) -> bytes:
    return reply(200, json.dumps({"messages": 4, "duplicates": 0, "again": False, "more": more}).encode())


def publish(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "time", SleepClock())
    queue = f"{server.endpoint}/000000000000/jobs"
    options = SinkOptions.of({"endpoint": server.endpoint, "queue": queue, "patience": "3"})
    written = Written(writer="w", batch=0, attempt="a", partition=0, messages=4)
    QueueStreamWriter(options).commit([written], 0)


def test_each_restart_of_the_server_has_its_own_patience(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch with a rate takes minutes."""
    away: list[Any] = [AWAY] * 12  # the client makes three attempts for each of the sink's
    with ScriptedServer(
        *away, published(more=True), *away, published(more=True), *away, published(more=False)
    ) as server:
        publish(server, monkeypatch)
        assert len(server.requests) == 3 * 13
    assert "was sent before" not in caplog.text


def test_a_throttled_request_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    throttled = reply(403, b'{"__type": "com.amazonaws.sqs#RequestThrottled", "message": "Later."}')
    with ScriptedServer(throttled, throttled, published(more=False)) as server:
        publish(server, monkeypatch)
    assert len(server.requests) == 3


def test_a_refusal_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = reply(409, b'{"code": "Conflict", "message": "No."}')
    with ScriptedServer(refusal) as server, pytest.raises(ClientError, match=r"No\."):
        publish(server, monkeypatch)
    assert len(server.requests) == 1


def test_too_many_partitions_are_refused_with_the_remedy() -> None:
    written = [Written(writer="w", batch=0, attempt=str(n), partition=n, messages=1) for n in range(1_001)]
    with pytest.raises(SinkFailed, match=r"1,001 partitions .* use coalesce\(1000\)"):
        QueueStreamWriter(SinkOptions.of(GIVEN)).commit(written, 0)


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    away: list[Any] = [AWAY] * 60
    with ScriptedServer(*away) as server, pytest.raises(ClientError, match="about to stop"):
        publish(server, monkeypatch)

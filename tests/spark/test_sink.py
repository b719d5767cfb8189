"""The sink on real Spark: messages arrive once and in order; errors of writes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.client.traffic import drained
from veilmq.client import HttpQueueClient
from veilmq.client.api import Publications
from veilmq.testing import RunningServer

OUT = "out"
FIFO = "out.fifo"
DEAD = "dead"
FILES = 2


@pytest.fixture
def client(client: HttpQueueClient) -> HttpQueueClient:
    client.create_queue(OUT)
    client.create_queue(DEAD)
    client.create_queue(FIFO, {"fifo": True, "content_deduplication": True})
    return client


def write(frame: DataFrame, server: RunningServer, queue: str = OUT, **options: str) -> None:
    frame.write.format("veilmq").options(endpoint=server.endpoint, **options).mode("append").save(queue)


def bodies(client: HttpQueueClient, queue: str = OUT) -> list[str]:
    """Receive and delete all messages, and return their bodies in order."""
    return [message.body for message in drained(client, queue)]


def staged(server: RunningServer, queue: str = OUT) -> int:
    with Publications(server.endpoint, queue) as publications:
        return sum(view.staged for view in publications.writers())


# Batch writes.


def test_all_columns_arrive(spark: SparkSession, client: HttpQueueClient, server: RunningServer) -> None:
    """No rows stay staged; a delay starts with the publication."""
    frame = spark.range(3).selectExpr(
        "concat('body ', id) AS body",
        "map('kind', 'a', 'n', string(id)) AS attributes",
        "map('n', 'Number') AS attribute_types",
        "IF(id = 0, 'g', NULL) AS `group`",
        "IF(id = 2, 30L, NULL) AS delay_s",
    )
    write(frame, server)
    got = {message.body: message for message in drained(client, OUT)}
    assert set(got) == {"body 0", "body 1"}
    assert got["body 1"].attributes["kind"].text == "a"
    number = got["body 1"].attributes["n"]
    assert (number.type, number.text) == ("Number", "1")
    assert got["body 0"].group == "g"
    server.advance(30_000)
    assert bodies(client) == ["body 2"]
    assert staged(server) == 0


def test_messages_have_the_order_of_the_rows(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer
) -> None:
    """In a FIFO queue, across partitions and requests that share groups."""
    frame = spark.range(0, 100, 1, 4).selectExpr("string(id) AS body", "'g' AS `group`")
    write(frame, server, FIFO, batchSize="7")
    assert bodies(client, FIFO) == [str(number) for number in range(100)]


def test_fifo_queue_stores_no_duplicate(spark: SparkSession, client: HttpQueueClient, server: RunningServer) -> None:
    frame = spark.range(0, 10, 1, 2).selectExpr(
        "string(id) AS body", "string(id % 2) AS `group`", "string(id % 5) AS dedup_id"
    )
    write(frame, server, FIFO)
    assert sorted(bodies(client, FIFO)) == ["0", "1", "2", "3", "4"]


def test_named_write_is_sent_once(spark: SparkSession, client: HttpQueueClient, server: RunningServer) -> None:
    """A job that is repeated under its name sends nothing; without a name it is another write."""
    frame = spark.range(5).selectExpr("string(id) AS body")
    write(frame, server, writer="nightly-2024-05-01")
    write(frame, server, writer="nightly-2024-05-01")
    assert len(bodies(client)) == 5
    write(frame, server)
    write(frame, server)
    assert len(bodies(client)) == 10


@pytest.mark.parametrize("too_big_for", ["the queue", "any queue"])
def test_long_row_is_reported_and_nothing_is_sent(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, too_big_for: str
) -> None:
    length, limit = (2_000, 1_024) if too_big_for == "the queue" else (9_000_000, 1_048_576)
    client.set(OUT, {"message_bytes_max": limit})
    frame = spark.range(0, 20, 1, 2).selectExpr(f"IF(id = 14, repeat('x', {length}), 'fits') AS body")
    with pytest.raises(PythonException) as caught:
        write(frame, server, batchSize="2")  # so a call stages rows 1 and 2 before
    message = str(caught.value)
    assert f"Row 5 of partition 1 is too long: {length:,} bytes" in message
    assert f"the maximum is {limit:,}" in message
    assert client.show(OUT).visible == staged(server) == 0


def test_bad_row_is_reported(spark: SparkSession, client: HttpQueueClient, server: RunningServer) -> None:
    frame = spark.range(0, 20, 1, 2).selectExpr("IF(id = 14, '', 'x') AS body")
    with pytest.raises(PythonException, match=r"Row 5 of partition 1 cannot be sent: It has no body"):
        write(frame, server)
    assert client.show(OUT).visible == 0


def test_bad_rows_can_be_stored(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """With the reason and their position; the other rows are sent in order. Attributes count for the size."""
    client.set(OUT, {"message_bytes_max": 1_024})
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "IF(id IN (3, 4), repeat('x', 100000), string(id)) AS body",
        "IF(id = 14, map('long', repeat('y', 2000)), NULL) AS attributes",
    )
    write(frame, server, badRows=f"table={tmp_path / 'bad'}")
    assert sorted(map(int, bodies(client))) == [number for number in range(20) if number not in (3, 4, 14)]
    bad = spark.read.parquet(str(tmp_path / "bad")).orderBy("partition", "row").collect()
    assert [(row.partition, row.row, row.queue, row.batch) for row in bad] == [
        (0, 4, OUT, 0),
        (0, 5, OUT, 0),
        (1, 5, OUT, 0),
    ]
    assert bad[0].body == "x" * 100_000
    assert bad[2].reason == "is too long: 2,006 bytes with its attributes, and the maximum is 1,024."


def test_rate_is_kept(spark: SparkSession, client: HttpQueueClient, server: RunningServer) -> None:
    """Over all tasks: 20 messages at 10 per second, on a clock that advances only after the first one."""
    frame = spark.range(0, 20, 1, 2).selectExpr("string(id) AS body")
    began_ms = server.clock.now_ms()
    written = Event()

    def move_time() -> int:
        while not (first := client.show(OUT).visible):
            assert not written.is_set()
        while not written.is_set():
            server.advance(100)
        return first

    with ThreadPoolExecutor(1) as thread:
        moving = thread.submit(move_time)
        try:
            write(frame, server, messagesPerSecond="10")
        finally:
            written.set()
    assert moving.result() == 1
    assert server.clock.now_ms() - began_ms >= 1_900
    assert len(bodies(client)) == 20


def test_errors_are_raised_before_the_job_runs(spark: SparkSession, server: RunningServer) -> None:
    frame = spark.range(1).selectExpr("string(id) AS body", "id")
    with pytest.raises(AnalysisException, match="The column id is not a column of messages"):
        write(frame, server)
    with pytest.raises(AnalysisException, match="batchSize = '0': must be 1 to 5,000"):
        write(frame.select("body"), server, batchSize="0")


def test_error_of_a_task_is_raised_if_its_rows_cannot_be_dropped(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer
) -> None:
    with pytest.raises(PySparkException, match=r"queue does not exist.*Check the options endpoint and queue"):
        write(spark.range(1).selectExpr("'a' AS body"), server, "missing")


# Streams.


def lines(folder: Path) -> None:
    """Write some files of lines, which a stream reads one per batch."""
    folder.mkdir()
    for number in range(FILES):
        (folder / f"{number}.txt").write_text("\n".join(f"{number}-{line:03}" for line in range(100)))


EXPECTED = sorted(f"{number}-{line:03}" for number in range(FILES) for line in range(100))


def run(spark: SparkSession, server: RunningServer, folder: Path, **options: str) -> None:
    reader = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(folder / "lines"))
    writer = reader.selectExpr("value AS body").writeStream.format("veilmq").trigger(availableNow=True)
    writer = writer.options(endpoint=server.endpoint, checkpointLocation=str(folder / "checkpoint"), **options)
    query = writer.start(OUT)
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()


def test_repeated_batch_of_a_stream_is_published_once(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """Its last commit is removed from the log, as if the driver had failed before it: the batch is repeated."""
    lines(tmp_path / "lines")
    run(spark, server, tmp_path)
    assert client.show(OUT).visible == len(EXPECTED)
    for file in (tmp_path / "checkpoint" / "commits").glob(f"*{FILES - 1}*"):
        file.unlink()
    run(spark, server, tmp_path)
    assert sorted(bodies(client)) == EXPECTED
    assert staged(server) == 0


def test_stream_can_write_to_several_queues(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """With `foreachBatch` and a name for each: a repeated batch sends nothing to either."""
    lines(tmp_path / "lines")

    def forward(batch: DataFrame, number: int) -> None:
        for queue in (OUT, DEAD):
            write(batch.selectExpr("value AS body"), server, queue, writer="forward")

    def run_once() -> None:
        reader = spark.readStream.format("text").load(str(tmp_path / "lines"))
        writer: Any = reader.writeStream.foreachBatch(forward).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert query.awaitTermination(120)

    run_once()
    for file in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        file.unlink()
    run_once()
    assert sorted(bodies(client)) == EXPECTED
    assert sorted(bodies(client, DEAD)) == EXPECTED


def test_named_write_of_an_unknown_batch_is_refused(
    spark: SparkSession, client: HttpQueueClient, server: RunningServer, tmp_path: Path
) -> None:
    """In a thread without the local properties of the query, as on Spark Connect: every batch would have one name."""
    lines(tmp_path / "lines")
    java: Any = spark._jvm

    def forward(batch: DataFrame, number: int) -> None:
        def write_there() -> None:
            java.SparkSession.setActiveSession(batch.sparkSession._jsparkSession)
            write(batch.selectExpr("value AS body"), server, writer="forward")

        with ThreadPoolExecutor(1) as thread:
            thread.submit(write_there).result()

    reader = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(tmp_path / "lines"))
    writer: Any = reader.writeStream.foreachBatch(forward).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    with pytest.raises(StreamingQueryException, match=r"option writer: .*Remove writer"):
        query.awaitTermination(120)
    assert client.show(OUT).visible == staged(server) == 0

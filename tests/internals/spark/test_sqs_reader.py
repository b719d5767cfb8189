"""`mode=sqs` on real Spark: plain receives and deletes, at least once."""

from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from tests.client.traffic import left, send
from tests.spark.stream import Stream, kept
from veilmq.client import HttpQueueClient
from veilmq.core.messages import Attribute
from veilmq.spark.options import SourceOptions
from veilmq.spark.sqs_reader import MessagesPartition, SqsStreamReader, shards
from veilmq.testing import RunningServer

LEASE_S = 60


def stream_of(server: RunningServer, folder: Path, queue: str, fail_after: int | None = None) -> Stream:
    """Return a stream of batches of 40 messages, 20 for each task."""
    options = {"mode": "sqs", "maxMessagesPerBatch": "40", "shardSize": "20", "lease": str(LEASE_S)}
    return Stream(
        endpoint=server.endpoint, queue=queue, folder=str(folder / "stream"), options=options, fail_after=fail_after
    )


def test_what_is_there_is_read_and_deleted(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    client.create_queue("plain")
    sent = send(client, "plain", 60)
    query = stream_of(server, tmp_path, "plain").run(spark)
    assert [progress.numInputRows for progress in query.recentProgress] == [40, 20]
    assert sorted(kept(tmp_path / "stream")) == sorted(sent)
    assert left(client, "plain") == (0, 0)


def test_a_message_has_all_its_columns(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    client.create_queue("typed.fifo", {"fifo": True})
    attributes = {"kind": Attribute(type="String", text="a"), "raw": Attribute(type="Binary", data=b"\x00\x01")}
    sent = client.send("typed.fifo", "body", attributes=attributes, group="g", dedup_id="d")
    stream_of(server, tmp_path, "typed.fifo").run(spark)
    (row,) = spark.read.parquet(str(tmp_path / "stream" / "out" / "0")).collect()
    assert (row.id, row.body, row.group, row.sequence_number) == (sent.id, "body", "g", sent.sequence)
    assert row.attributes == {"kind": "a", "raw": "AAE="}
    assert row.attribute_types == {"raw": "Binary"}
    assert (row.receive_count, row.queue) == (1, "typed.fifo")
    assert row.sent_at.timestamp() * 1_000 == pytest.approx(server.clock.now_ms())


def test_what_a_crash_forgets_comes_twice_and_is_not_lost(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """The second batch is written, and its end not logged: Spark repeats it, empty, and its messages come again."""
    client.create_queue("plain")
    sent = send(client, "plain", 60)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        stream_of(server, tmp_path, "plain", fail_after=1).run(spark)
    stream_of(server, tmp_path, "plain").run(spark)
    assert client.show("plain").in_flight == 20
    server.advance(LEASE_S * 1_000)
    stream_of(server, tmp_path, "plain").run(spark)
    out = kept(tmp_path / "stream")
    assert set(out) == set(sent)
    assert len(out) == 80
    assert client.show("plain").in_flight == 0


def test_a_batch_is_no_longer_than_its_bytes(server: RunningServer, client: HttpQueueClient) -> None:
    """What was received and does not fit is the next batch's."""
    client.create_queue("plain")
    for _ in range(6):
        client.send("plain", "x" * 900_000)
    options = {"mode": "sqs", "maxBytesPerBatch": "2097152", "wait": "0", "endpoint": server.endpoint, "queue": "plain"}
    stream, end, batches = SqsStreamReader(SourceOptions.of(options)), {"v": 1, "src": "", "n": 0}, []
    stream._progress.ordered = True
    while (following := stream.latestOffset(end, ReadMaxRows(100))) != end:
        rows = [
            part.batch.num_rows for part in stream.partitions(end, following) if isinstance(part, MessagesPartition)
        ]
        batches.append(sum(rows))
        end = following
    stream.stop()
    assert batches == [2, 2, 2]
    assert left(client, "plain") == (0, 0)


def test_the_messages_of_a_group_are_one_task_s_and_in_their_order(client: HttpQueueClient) -> None:
    client.create_queue("many.fifo", {"fifo": True})
    for number in range(10):
        client.send("many.fifo", str(number), group=f"g{number % 3}", dedup_id=str(number))
    messages = []
    while found := client.receive("many.fifo", count=10):
        messages += found
    parts = shards(messages, 3)
    for group in ("g0", "g1", "g2"):
        bodies = [[int(message.body) for message in part if message.group == group] for part in parts]
        (together,) = filter(None, bodies)
        assert together == sorted(together)

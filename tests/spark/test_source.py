"""`format("veilmq")` on real Spark and a real server: streams, snapshots and errors."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.client.traffic import left, send, send_in_order
from tests.conftest import EVERYTHING
from tests.spark.stream import ROOT, Stream, kept
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.client.api import Claims
from veilmq.client.messages import ClientError
from veilmq.core import errors
from veilmq.core.messages import Attribute
from veilmq.spark import snapshots
from veilmq.spark.retries import REMEDIES, SourceFailed, with_remedies
from veilmq.testing import RunningServer

QUEUE = "orders"
SMALL = {"maxMessagesPerBatch": "40", "shardSize": "20", "wait": "0"}
HOUR_MS = 3_600_000


@pytest.fixture
def client(client: HttpQueueClient) -> HttpQueueClient:
    client.create_queue(QUEUE)
    return client


def stream_of(server: RunningServer, folder: Path, options: dict[str, str] | None = None, **fields: int) -> Stream:
    """Return a stream of batches of 40 messages."""
    place = str(folder / "stream")
    every = {**SMALL, **(options or {})}
    return Stream(
        endpoint=server.endpoint, queue=QUEUE, folder=place, options=every, fail_after=fields.get("fail_after")
    )


def table(spark: SparkSession, server: RunningServer, **options: str) -> DataFrame:
    return spark.read.format("veilmq").options(endpoint=server.endpoint, queue=QUEUE, **options).load()


def test_available_now_reads_the_messages_of_its_start(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    sent = send(client, QUEUE, 60)
    reader = spark.readStream.format("veilmq").options(endpoint=server.endpoint, **SMALL).load(QUEUE)
    counts: list[int] = []

    def count(batch: DataFrame, number: int) -> None:
        counts.append(batch.count())
        if not number:
            send(client, QUEUE, 50, begin=60)

    writer = reader.writeStream.foreachBatch(count).option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert counts == [40, 20]
    assert left(client, QUEUE) == (50, 0)
    assert len(sent) == 60


@pytest.mark.parametrize("timestamp", ["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"])
def test_message_has_all_columns(
    spark: SparkSession,
    server: RunningServer,
    client: HttpQueueClient,
    request: pytest.FixtureRequest,
    timestamp: str,
) -> None:
    """Whatever type SQL's ``timestamp`` has in this session."""
    spark.conf.set("spark.sql.timestampType", timestamp)
    request.addfinalizer(lambda: spark.conf.unset("spark.sql.timestampType"))
    attributes = {"kind": Attribute(type="String", text="a"), "weight": Attribute(type="Number", text="1.5")}
    sent = client.send(QUEUE, "body", attributes=attributes, group="g")
    server.advance(1_000)
    (row,) = table(spark, server).collect()
    assert (row.id, row.body, row.group, row.queue) == (sent.id, "body", "g", QUEUE)
    assert (row.attributes, row.attribute_types) == ({"kind": "a", "weight": "1.5"}, {"weight": "Number"})
    assert (row.receive_count, row.sequence_number) == (1, None)
    assert (row.received_at - row.sent_at).total_seconds() == 1


def test_groups_keep_their_order(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """Across batches, too: within a batch a group is in one partition, and the next batch starts after it."""
    client.create_queue("lines.fifo", {"fifo": True})
    for number in range(90):
        client.send("lines.fifo", f"{number:03}", group=f"g{number % 7}", dedup_id=str(number))
    stream = Stream(endpoint=server.endpoint, queue="lines.fifo", folder=str(tmp_path / "stream"), options=SMALL)
    stream.run(spark)
    out = tmp_path / "stream" / "out"
    seen: dict[str, list[str]] = {}
    for batch in sorted(out.iterdir(), key=lambda place: int(place.name)):
        for row in spark.read.parquet(str(batch)).collect():
            seen.setdefault(row.group, []).append(row.body)
    assert sum(len(bodies) for bodies in seen.values()) == 90
    assert [bodies == sorted(bodies) for bodies in seen.values()] == [True] * 7


def test_long_groups_are_read_completely(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """A claim has a part of each group, and the next one waits until these are deleted; all initial ones are read."""
    client.create_queue("lines.fifo", {"fifo": True, "content_deduplication": True})

    def send_lines(begin: int, end: int) -> None:
        lines = [NewMessage(body=str(number), group=f"g{number % 2}") for number in range(begin, end)]
        send_in_order(client, "lines.fifo", lines)

    send_lines(0, 700)
    seen: list[int] = []

    def keep(batch: DataFrame, number: int) -> None:
        seen.extend(int(row.body) for row in batch.select("body").collect())
        if not number:
            send_lines(700, 720)

    reader = spark.readStream.format("veilmq").options(endpoint=server.endpoint).load("lines.fifo")
    writer = reader.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert len(query.recentProgress) > 2, "more than one claim"
    assert len(seen) == len(set(seen)) == 700
    for group in range(2):
        of_group = [number for number in seen if number % 2 == group]
        assert of_group == list(range(group, 2 * len(of_group), 2))
    assert left(client, "lines.fifo") == (20, 0)


def test_snapshot_is_equal_for_all_jobs_and_consumes_nothing(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient
) -> None:
    sent = send(client, QUEUE, 50)
    snapshot = table(spark, server, maxMessagesPerBatch="1000", shardSize="10")
    assert snapshot.rdd.getNumPartitions() == 5
    assert snapshot.count() == 50
    send(client, QUEUE, 10, begin=50)
    assert sorted(row.body for row in snapshot.collect()) == sent
    assert table(spark, server).count() == 10, "another load is another snapshot"
    server.advance(HOUR_MS)
    assert left(client, QUEUE) == (60, 0)


def test_snapshot_is_acknowledged_by_name(spark: SparkSession, server: RunningServer, client: HttpQueueClient) -> None:
    where = {"endpoint": server.endpoint, "queue": QUEUE}
    send(client, QUEUE, 30)
    assert table(spark, server, snapshot="today").count() == 30
    assert table(spark, server, snapshot="today").count() == 30, "a job that is run again reads the same"
    assert snapshots.acknowledge("today", **where) == 30
    assert left(client, QUEUE) == (0, 0)
    send(client, QUEUE, 5, begin=30)
    assert snapshots.acknowledge("today", **where) == 0, "again it deletes nothing more"
    with pytest.raises(PySparkException, match=r"acknowledged.*another snapshot name"):
        table(spark, server, snapshot="today").count()
    assert left(client, QUEUE) == (5, 0)


def test_snapshot_of_an_empty_queue_stays_empty(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient
) -> None:
    """So that an acknowledgement deletes no message that the first job has not read."""
    where = {"endpoint": server.endpoint, "queue": QUEUE}
    assert table(spark, server, snapshot="early").count() == 0
    send(client, QUEUE, 5)
    assert table(spark, server, snapshot="early").count() == 0
    assert snapshots.acknowledge("early", **where) == 0
    assert left(client, QUEUE) == (5, 0)
    for use in snapshots.acknowledge, snapshots.release:
        with pytest.raises(SourceFailed, match="No job has read a snapshot earyl of this queue"):
            use("earyl", **where)


def test_returned_snapshot_cannot_be_acknowledged(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient
) -> None:
    where = {"endpoint": server.endpoint, "queue": QUEUE}
    send(client, QUEUE, 30)
    assert table(spark, server, snapshot="late", hold="60").count() == 30
    server.advance(61_000)
    with pytest.raises(SourceFailed, match="returned to the queue before"):
        snapshots.acknowledge("late", **where)
    assert left(client, QUEUE) == (30, 0)


def test_released_snapshot_returns_at_once(spark: SparkSession, server: RunningServer, client: HttpQueueClient) -> None:
    where = {"endpoint": server.endpoint, "queue": QUEUE}
    send(client, QUEUE, 30)
    assert table(spark, server, snapshot="peek").count() == 30
    assert left(client, QUEUE) == (0, 30)
    assert snapshots.release("peek", **where) == 30
    assert left(client, QUEUE) == (30, 0)
    assert snapshots.release("peek", **where) == 0


def test_restored_checkpoint_is_reported(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """With empty batches for the deleted messages, because the sink skips the numbers that it has."""
    sent = send(client, QUEUE, 60)
    stream_of(server, tmp_path).run(spark)
    for log in ("offsets", "commits"):
        for file in (tmp_path / "stream" / "checkpoint" / log).glob("*1*"):
            file.unlink()
    last = send(client, QUEUE, 10, begin=60)
    with pytest.raises(StreamingQueryException, match="onAckedReplay=empty"):
        stream_of(server, tmp_path).run(spark)
    assert left(client, QUEUE) == (10, 0)
    stream_of(server, tmp_path, {"onAckedReplay": "empty"}).run(spark)
    assert sorted(kept(tmp_path / "stream")) == sorted([*sent, *last])


@pytest.mark.parametrize(
    "away_ms", [pytest.param(0, id="back-in-time"), pytest.param(2 * HOUR_MS, id="after-the-hold", marks=EVERYTHING)]
)
@pytest.mark.parametrize(
    "count", [pytest.param(80, id="all-of-it", marks=EVERYTHING), pytest.param(100, id="part-of-it")]
)
def test_claim_that_spark_has_not_logged(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path, away_ms: int, count: int
) -> None:
    """It is used again, also by a query with availableNow, or its messages are back in the queue; none is lost."""
    sent = send(client, QUEUE, count)
    accident = {"accident": "claimed:2:fail", "once": str(tmp_path / "once")}
    with pytest.raises(StreamingQueryException, match="Provoked"):
        stream_of(server, tmp_path, accident).run(spark)
    assert left(client, QUEUE) == (count - 80, 40)
    server.advance(away_ms)
    stream_of(server, tmp_path).run(spark)
    assert sorted(kept(tmp_path / "stream")) == sent
    send(client, QUEUE, 10, begin=count)
    stream_of(server, tmp_path).run(spark)
    assert len(kept(tmp_path / "stream")) == count + 10
    assert left(client, QUEUE) == (0, 0)


@EVERYTHING
def test_stream_continues_after_a_long_pause(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """After a week as usual; after many weeks, when the queue has deleted its source, with another one, if allowed."""
    send(client, QUEUE, 50)
    stream_of(server, tmp_path).run(spark)
    server.advance(7 * 24 * HOUR_MS)
    send(client, QUEUE, 50, begin=50)
    stream_of(server, tmp_path).run(spark)
    server.advance(40 * 24 * HOUR_MS)
    send(client, QUEUE, 50, begin=100)
    with pytest.raises(StreamingQueryException, match="has no record of this stream"):
        stream_of(server, tmp_path).run(spark)
    assert left(client, QUEUE) == (50, 0)
    stream_of(server, tmp_path, {"onLostClaim": "skip"}).run(spark)
    send(client, QUEUE, 50, begin=150)
    stream_of(server, tmp_path).run(spark)
    out = kept(tmp_path / "stream")
    assert (len(out), len(set(out))) == (200, 200)
    assert left(client, QUEUE) == (0, 0)


def test_consumer_has_one_stream_unless_taken_over(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    sent = send(client, QUEUE, 40)
    with pytest.raises(StreamingQueryException, match="on purpose"):
        stream_of(server, tmp_path / "a", {"consumer": "lake"}, fail_after=0).run(spark)
    with pytest.raises(StreamingQueryException, match="takeover=true"):
        stream_of(server, tmp_path / "b", {"consumer": "lake"}).run(spark)
    stream_of(server, tmp_path / "b", {"consumer": "lake", "takeover": "true"}).run(spark)
    assert left(client, QUEUE) == (0, 0)
    assert sorted(kept(tmp_path / "b" / "stream")) == sent


def test_running_stream_is_shown_as_alive(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    send(client, QUEUE, 40)
    seen: list[bool] = []
    with Claims(server.endpoint, QUEUE) as claims:

        def list_claims(batch: DataFrame, number: int) -> None:
            (view,) = claims.sources()
            seen.append(view.alive)
            assert [(claim.number, claim.messages, claim.shards) for claim in view.claims] == [(1, 40, 2)]

        reader = spark.readStream.format("veilmq").options(endpoint=server.endpoint, **SMALL).load(QUEUE)
        writer = reader.writeStream.foreachBatch(list_claims).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert seen == [True]
        assert [view.acknowledged for view in claims.sources()] == [1]


def test_empty_queue_is_an_empty_table(spark: SparkSession, server: RunningServer, client: HttpQueueClient) -> None:
    assert table(spark, server).collect() == []


def test_queue_as_a_table_in_sql(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """With options or properties, by SQL or the catalog, as a table, a view or a stream."""
    sent = send(client, QUEUE, 5)
    at = f"ENDPOINT '{server.endpoint}', Queue '{QUEUE}'"
    created = [
        f"CREATE TABLE {{}} USING veilmq OPTIONS ({at}, hold '60')",
        f"CREATE TABLE {{}} USING veilmq COMMENT 'c' TBLPROPERTIES ({at}, hold '60', 'team.name' 'x')",
        f"CREATE TEMPORARY VIEW {{}} USING veilmq OPTIONS ({at}, hold '60')",
    ]
    for number, statement in enumerate(created):
        spark.sql(statement.format(f"q{number}"))
    spark.catalog.createTable("q3", source="veilmq", endpoint=server.endpoint, queue=QUEUE, hold="60")
    spark.sql("CREATE VIEW q4 AS SELECT body FROM q0")
    try:
        for number in range(5):
            assert sorted(row.body for row in spark.sql(f"SELECT body FROM q{number}").collect()) == sent, number
            server.advance(61_000)
        assert spark.sql("SELECT body FROM q0 WITH (maxMessagesPerBatch = 2)").count() == 2
        server.advance(61_000)
        writer = spark.readStream.table("q1").writeStream.format("noop")
        query = writer.option("checkpointLocation", str(tmp_path / "at")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        (reported,) = [json.loads(source.latestOffset) for source in query.recentProgress[0].sources]
        assert {**reported, "oldestAgeSeconds": 0} == {
            "backlog": 0,
            "oldestAgeSeconds": 0,
            "claimed": 5,
            "acknowledged": 0,
            "duplicatesKeptAway": 0,
        }
        assert left(client, QUEUE) == (0, 0)
        with pytest.raises(PySparkException, match="and is read-only"):
            spark.sql("INSERT INTO q0 SELECT * FROM q0")
        with pytest.raises(PySparkException, match="the catalog would store it"):
            spark.sql(f"CREATE TABLE q5 USING veilmq OPTIONS ({at}, accessKey 'a', secretKey 'b')")
    finally:
        for kind, name in (("VIEW", "q4"), ("VIEW", "q2"), ("TABLE", "q0"), ("TABLE", "q1"), ("TABLE", "q3")):
            spark.sql(f"DROP {kind} IF EXISTS {name}")


def test_plans_show_no_secret(spark: SparkSession, server: RunningServer, client: HttpQueueClient) -> None:
    keys = {"accessKey": "AKIAHUSH", "secretKey": "hushhush", "sessionToken": "hushtoo"}
    plans = table(spark, server, **keys)._jdf.queryExecution().toString()
    streamed = spark.readStream.format("veilmq").options(endpoint=server.endpoint, queue=QUEUE, **keys).load()
    plans += streamed._jdf.queryExecution().toString()
    assert QUEUE in plans
    assert "hush" not in plans.lower()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        pytest.param({"leese": "5"}, "did you mean lease?", id="unknown"),
        pytest.param({"queue": "elsewhere"}, "does not exist", id="no-such-queue"),
        pytest.param({"mode": "sqs"}, "a batch read requires mode=claims", id="mode"),
        pytest.param({"endpoint": "http://127.0.0.1:1", "patience": "0"}, "connection refused", id="no-server"),
    ],
)
def test_impossible_batch_read_is_reported(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, options: dict[str, str], text: str
) -> None:
    reader = spark.read.format("veilmq").options(**{"endpoint": server.endpoint, "queue": QUEUE, **options})
    with pytest.raises(PySparkException, match=text):
        reader.load().count()


def test_other_columns_or_types_are_refused_before_messages_are_bound(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient
) -> None:
    send(client, QUEUE, 1)
    reader = spark.read.format("veilmq").options(endpoint=server.endpoint, queue=QUEUE)
    own = reader.load().schema
    assert reader.schema(own).load().count() == 1
    server.advance(HOUR_MS)
    other = StructType([StructField(each.name, BinaryType() if each.name == "body" else each.dataType) for each in own])
    for schema in ("body string", other):
        with pytest.raises(PySparkException, match=r"remove .schema\(...\)"):
            reader.schema(schema).load().count()
    assert left(client, QUEUE) == (1, 0)


@EVERYTHING
def test_example_stores_a_queue_in_a_folder(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    sent = send(client, QUEUE, 70)
    example = [sys.executable, "examples/queue_to_parquet.py", "--once", "--queue", QUEUE]
    for _ in range(2):  # the second run has nothing to do
        where = ["--endpoint", server.endpoint, "--folder", str(tmp_path)]
        done = subprocess.run([*example, *where], cwd=ROOT, timeout=120, check=True, capture_output=True, text=True)
        assert not re.search("BrokenPipe|reset by peer", done.stderr), done.stderr
    assert sorted(row.body for row in spark.read.parquet(str(tmp_path / "messages")).collect()) == sent
    assert left(client, QUEUE) == (0, 0)


# Errors of a stream: the server's text and the remedy.


OF_SQS = {"AccessDenied", "QueueDoesNotExist"}


def test_missing_queue_is_reported_with_the_remedy() -> None:
    with RunningServer() as server:
        for queue in ("none", f"{server.endpoint}/000000000000/none"):
            with (
                Claims(server.endpoint, queue) as claims,
                pytest.raises(SourceFailed, match="options endpoint and queue"),
                with_remedies(),
            ):
                claims.open("s")


def test_other_errors_are_not_changed() -> None:
    with pytest.raises(ClientError, match="a defect"), with_remedies():
        raise ClientError("InternalError", "a defect", 500)


def test_remedies_are_for_existing_errors() -> None:
    assert {code for code in REMEDIES if not hasattr(errors, code)} == OF_SQS


# The session of tests on Spark.


def test_session_runs_python_on_its_workers(spark: SparkSession) -> None:
    """A job needs the JVM, its workers and their Python."""
    assert spark.range(4).rdd.map(lambda row: row.id * 2).collect() == [0, 2, 4, 6]
    assert spark.version >= "4.2"


def test_workers_use_unix_sockets(spark: SparkSession) -> None:
    """Spark knows the setting that docs/spark.md advises."""
    (value,) = spark.range(1).rdd.map(lambda _: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]).collect()
    assert value.lower() == "true"


def test_workers_import_the_installed_pyspark(spark: SparkSession) -> None:
    """Not `pyspark.zip`, which they would compile."""
    (place,) = spark.range(1).rdd.map(lambda _: sys.modules["pyspark"].__file__).collect()
    assert place == pyspark.__file__

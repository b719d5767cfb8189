"""The jobs archive, replay and route on real Spark and a real server."""

import re
import signal
import subprocess
import sys
import threading
import uuid
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.client.traffic import drained, left, send_in_order
from tests.conftest import EVERYTHING, need_java
from tests.internals.pipeline.test_archive_table import written
from veilmq.cli import pipeline as commands
from veilmq.cli.options import signature_of
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.client.api import Claims
from veilmq.core.messages import Attribute
from veilmq.core.settings import RoutingTable, TimeoutClass
from veilmq.pipeline.archive import Plan, Replay, archive, archived, read_archive
from veilmq.pipeline.archive_table import ArchiveTable, compact
from veilmq.pipeline.folders import Place
from veilmq.pipeline.options import ArchiveOptions, ForwardOptions, ReplayOptions, Slice
from veilmq.pipeline.route import PINNED, create_queues, forward, routed
from veilmq.pipeline.session import PipelineFailed, in_tasks
from veilmq.spark.datasource import SCHEMA
from veilmq.testing import RunningServer

CLASSES = (
    TimeoutClass(name="short", visibility_timeout_s=2, queue="short"),
    TimeoutClass(name="middle", visibility_timeout_s=20, queue="middle"),
    TimeoutClass(name="long", visibility_timeout_s=200, queue="long"),
)
TABLE = RoutingTable(version=1, classes=CLASSES, keys={"a": 0, "b": 1}, default=2)


def text(value: str) -> Attribute:
    return Attribute(type="String", text=value)


def test_the_archived_date_is_the_day_of_sending_in_utc(spark: SparkSession) -> None:
    at = [datetime(2026, 1, 2, 23, 59, 59, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)]
    rows = spark.createDataFrame([{"id": str(number), "sent_at": value} for number, value in enumerate(at)], SCHEMA)
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        days = [str(row["date"]) for row in archived(rows).orderBy("id").collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert days == ["2026-01-02", "2026-01-03"]


def test_messages_are_routed_like_class_of(spark: SparkSession) -> None:
    """For each key and number of receives."""
    cases = [
        (key, kind, receives, TABLE.class_of("" if kind else key or "", receives - 1).queue)
        for key in ("a", "b", "unknown", None)
        for kind in (None, "Binary")
        for receives in (1, 2, 3, 9)
    ]
    rows = [
        {
            "id": str(number),
            "body": expected,
            "attributes": {} if key is None else {"Type": key},
            "attribute_types": None if kind is None else {"Type": kind},
            "receive_count": receives,
        }
        for number, (key, kind, receives, expected) in enumerate(cases)
    ]
    found = routed(spark.createDataFrame(rows, SCHEMA), TABLE, fifo=False).collect()
    assert len(found) == len(cases)
    assert [(row["body"], row["queue"]) for row in found] == [(row["body"], row["body"]) for row in found]


def test_archive_and_replay(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """Each message is in the table once, also after several runs; a slice is replayed once for each name of a run."""
    client.create_queue("orders")
    client.create_queue("steps.fifo", {"fifo": True})
    number, raw = Attribute(type="Number.int", text="7"), Attribute(type="Binary", data=b"\0")
    typed = {"Type": text("x"), "number": number, "raw": raw}
    for start in range(0, 20, 5):
        send_in_order(client, "orders", [NewMessage(body=f"o{n}", attributes=typed) for n in range(start, start + 5)])
        server.advance(10)
    steps = [NewMessage(body=f"s{n:02}", group=f"g{n % 3}", dedup_id=str(n)) for n in range(10)]
    send_in_order(client, "steps.fifo", steps)
    folder = str(tmp_path / "archive [1]")  # not a pattern
    options = ArchiveOptions(table=folder, batch_messages=10)
    queues = ("orders", "steps.fifo")
    assert archive(spark, server.endpoint, queues, options).messages == {"orders": 20, "steps.fifo": 10}
    server.advance(1000)
    send_in_order(client, "orders", [NewMessage(body=f"o{n}") for n in range(20, 25)])
    again = archive(spark, server.endpoint, ("orders", "orders"), options)
    assert again.messages == {"orders": 5}
    assert again.files["joined"] > 0
    rows = DeltaTable(folder).to_pyarrow_table()
    assert sorted(rows["body"].to_pylist()) == sorted([f"o{n}" for n in range(25)] + [f"s{n:02}" for n in range(10)])
    assert all(left(client, queue) == (0, 0) for queue in queues)

    client.create_queue("again")
    slice_of_options = signature_of(commands.replay).parameters["part"].annotation  # as the command line creates it
    part = slice_of_options(
        queues=("orders",),
        where="body != 'o3'",
        until=datetime.fromtimestamp(rows.sort_by("sent_at")["sent_at"][-1].as_py().timestamp(), UTC),
    )
    replay_options = ReplayOptions(table=folder, run="one", batch_messages=12)
    replay = Replay(endpoint=server.endpoint, to="again", slice=part, options=replay_options)
    assert replay.send(spark).messages == 19
    assert replay.send(spark).before == 19
    record = Path(folder) / "_replays" / "one.json"
    killed = msgspec.structs.replace(msgspec.json.decode(record.read_bytes(), type=Plan), published=1)
    record.write_bytes(msgspec.json.encode(killed))  # like a kill before later batches are recorded
    assert 0 < replay.send(spark).before < 19
    replayed = drained(client, "again")
    assert Counter(message.body for message in replayed) == Counter(f"o{n}" for n in range(20) if n != 3)
    assert all(message.attributes == typed for message in replayed)
    with pytest.raises(PipelineFailed, match="started with another slice"):
        replace(replay, slice=Slice()).send(spark)
    record.write_bytes(b'{"to": "again"}')  # another format
    with pytest.raises(PipelineFailed, match=r"one.json is not the plan of a run .*choose another name with --run"):
        replay.send(spark)

    client.create_queue("again.fifo", {"fifo": True})
    part, replay_options = Slice(queues=("steps.fifo",)), replace(replay_options, run="two")
    ordered = Replay(endpoint=server.endpoint, to="again.fifo", slice=part, options=replay_options)
    assert ordered.send(spark).messages == 10
    found: dict[str, list[str]] = {}
    for message in drained(client, "again.fifo"):
        found.setdefault(str(message.group), []).append(message.body)
    assert found == {f"g{group}": [f"s{n:02}" for n in range(group, 10, 3)] for group in range(3)}


def test_a_replay_of_a_thousand_batches_is_planned_once(
    spark: SparkSession, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped before the first batch. Of two starts at the same moment, both use the plan of the faster one."""
    table, stop = ArchiveTable(tmp_path), threading.Event()
    table.create()
    table.commit(writer="w", batch=0, files=[written(table, [str(number) for number in range(1_000)])])
    stop.set()
    options = ReplayOptions(table=table.location, run="one", batch_messages=1)
    replay = Replay(endpoint=server.endpoint, to="again", slice=Slice(queues=("orders",)), options=options)
    assert replay.send(spark, stop=stop).messages == 0
    plan = msgspec.json.decode((tmp_path / "_replays" / "one.json").read_bytes(), type=Plan)
    assert plan.messages == (1,) * 1_000
    none = replace(replay, slice=Slice(queues=("other",)), options=replace(options, run="two"))
    assert none.send(spark, stop=stop).messages == 0

    other = msgspec.structs.replace(plan, messages=(1_000,), ends_us=())

    def slowly(*arguments: Any) -> list[Any]:
        table.place.write("_replays/three.json", msgspec.json.encode(other))  # another start of the same run is faster
        return in_tasks(*arguments)

    monkeypatch.setattr("veilmq.pipeline.archive.in_tasks", slowly)
    assert replace(replay, options=replace(options, run="three"))._plan(spark) == other


def test_a_job_killed_before_its_first_offset_continues(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first claim is bound, but not logged: the first file of the log is deleted."""
    client.create_queue("orders")
    send_in_order(client, "orders", [NewMessage(body="o")])
    options = ArchiveOptions(table=str(tmp_path))
    monkeypatch.setattr(ArchiveTable, "add", Mock(side_effect=ValueError("on purpose")))
    with pytest.raises(PipelineFailed, match="on purpose"):
        archive(spark, server.endpoint, ("orders",), options)
    monkeypatch.undo()
    for file in (tmp_path / "_checkpoints" / "orders" / "offsets").iterdir():
        file.unlink()
    assert left(client, "orders") == (0, 1)
    assert archive(spark, server.endpoint, ("orders",), options).messages == {"orders": 1}
    assert left(client, "orders") == (0, 0)


def test_one_of_two_jobs_that_start_a_checkpoint_at_the_same_moment_ends(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one whose id the other job has replaced before Spark reads it: it would archive batches under its own id.

    Its streams that have started are stopped.
    """
    for queue in ("earlier", "orders"):
        client.create_queue(queue)
    send_in_order(client, "orders", [NewMessage(body="o")])
    options, write = ArchiveOptions(table=str(tmp_path)), Place.write

    def write_both(place: Place, path: str, content: bytes) -> None:
        write(place, path, content)
        if place.location.endswith("orders"):
            write(place, path, msgspec.json.encode({"id": str(uuid.uuid4())}))

    monkeypatch.setattr(Place, "write", write_both)
    with pytest.raises(PipelineFailed, match="Another job has started with the checkpoint"):
        archive(spark, server.endpoint, ("earlier", "orders"), replace(options, continuous=True))
    monkeypatch.undo()
    assert not spark.streams.active
    assert left(client, "orders") == (1, 0)
    assert archive(spark, server.endpoint, ("orders",), options).messages == {"orders": 1}


def test_messages_expire_without_compaction(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is stopped once the table has no files."""
    monkeypatch.setattr("veilmq.pipeline.archive.MINUTE_S", 0.0)
    client.create_queue("orders")
    table, stop = ArchiveTable(tmp_path), threading.Event()
    table.create()
    table.commit(writer="w", batch=0, files=[written(table, ["old"])])

    def report(queue: str, rows: int) -> None:
        if not table.snapshot().files:
            stop.set()

    options = ArchiveOptions(table=table.location, continuous=True, compact_minutes=0, expire_days=1)
    assert archive(spark, server.endpoint, ("orders",), options, report=report, stop=stop).files["expired"] == 1


@EVERYTHING
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_a_stopped_job_prints_no_traceback(server: RunningServer, client: HttpQueueClient, tmp_path: Path) -> None:
    """The connections of Spark's idle workers are closed at the end."""
    need_java()
    client.create_queue("orders")
    words = ["orders", "--table", str(tmp_path / "t"), "--endpoint", server.endpoint, "--continuous"]
    words += ["--hold", "7200", "--on-lost-claim", "skip"]
    job = [sys.executable, "-m", "veilmq", "pipeline", "archive", *words]
    with (
        Claims(server.endpoint, "orders") as claims,
        subprocess.Popen(job, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running,
    ):
        while not claims.sources():
            assert running.poll() is None, running.communicate()[0]
        assert claims.sources()[0].hold_until_ms - server.clock.now_ms() > 3_600_000
        running.send_signal(signal.SIGTERM)
        output, _ = running.communicate(timeout=120)
    assert running.returncode == 0, output
    assert "orders: 0 messages archived" in output
    assert not re.search("Traceback|BrokenPipe|reset by peer", output), output


def test_compaction_runs_a_task_for_each_new_file(spark: SparkSession, tmp_path: Path) -> None:
    table = ArchiveTable(tmp_path / "archive")
    table.create()
    for number, queue in enumerate(("a", "b", "c")):
        table.commit(writer="w", batch=number, files=[written(table, [f"{queue}{n}"], queue=queue) for n in range(2)])
    spark.sparkContext.setJobGroup("compaction", "compaction")
    assert compact(table, spark) == 6
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("compaction")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert [stage.numTasks for stage in stages if stage] == [3]
    files = pa.table(DeltaTable(table.location).get_add_actions(flatten=True)).to_pylist()
    known = sorted((file["num_records"], file["min.id"], file["max.id"]) for file in files)
    assert known == [(2, f"{queue}0", f"{queue}1") for queue in "abc"]
    assert [row["id"] for row in read_archive(spark, table, Slice(queues=("b",))).orderBy("id").collect()] == [
        "b0",
        "b1",
    ]


def test_route(
    spark: SparkSession,
    server: RunningServer,
    client: HttpQueueClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each message is forwarded once to the queue of its class, and moves to the next class when it expires.

    A batch reads no file of the checkpoint: on S3 a read is several requests.
    """
    reads: list[str] = []
    read = Place.read

    def recorded(place: Place, path: str) -> bytes | None:
        reads.append(path)
        return read(place, path)

    monkeypatch.setattr(Place, "read", recorded)
    client.create_queue("intake")
    create_queues(client, TABLE, receives_max=1)
    keys = ["a", "b", "c"]
    messages = [NewMessage(body=f"{key}{n}", attributes={"Type": text(key)}) for n in range(20) for key in keys]
    send_in_order(client, "intake", messages)
    options = ForwardOptions(checkpoint=str(tmp_path / "at"), batch_messages=25)
    assert forward(spark, server.endpoint, "intake", TABLE, options) == 60
    assert reads == [PINNED, "metadata"]
    assert [client.show(each.queue).visible for each in CLASSES] == [20, 20, 20]
    assert client.dead_letter_sources("middle") == ["short"]
    assert client.show("middle").settings.visibility_timeout_s == 20
    expired = client.receive("short", count=10)
    server.advance(2_000)
    assert {message.body for message in drained(client, "short")} == {f"a{n}" for n in range(20)} - {
        message.body for message in expired
    }
    moved = {message.body for message in drained(client, "middle")}
    assert moved == {f"b{n}" for n in range(20)} | {message.body for message in expired}
    assert {message.body for message in drained(client, "long")} == {f"c{n}" for n in range(20)}


def test_route_writes_bad_rows_to_a_table_and_forwards_the_others(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """It starts although a kill has left a temporary file of its first offset."""
    client.create_queue("intake")
    create_queues(client, TABLE, receives_max=1)
    client.set("short", {"message_bytes_max": 1_024})
    bodies = ["short", "x" * 2_000]
    send_in_order(client, "intake", [NewMessage(body=body, attributes={"Type": text("a")}) for body in bodies])
    left_over = tmp_path / "at" / "offsets" / ".0.11111111-2222-3333-4444-555555555555.tmp"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("v1\n{")
    options = ForwardOptions(
        checkpoint=str(tmp_path / "at"),
        bad_rows=f"table={tmp_path / 'bad'}",
        hold_s=7_200,
        on_lost_claim="skip",
    )
    assert forward(spark, server.endpoint, "intake", TABLE, options) == 2
    assert [message.body for message in drained(client, "short")] == ["short"]
    (kept,) = spark.read.parquet(str(tmp_path / "bad")).collect()
    assert (kept["body"], kept["queue"], kept["row"]) == ("x" * 2_000, "short", 2)
    with Claims(server.endpoint, "intake") as claims:
        (view,) = claims.sources()
    assert view.hold_until_ms - server.clock.now_ms() > 3_600_000, "the hold of the options"
    assert not left_over.exists()


def test_a_new_table_applies_if_no_batch_was_started_with_the_old_one(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    client.create_queue("intake")
    create_queues(client, TABLE, receives_max=1)
    send_in_order(client, "intake", [NewMessage(body=f"a{n}", attributes={"Type": text("a")}) for n in range(5)])
    folder = tmp_path / "at"
    Place.at(folder).write(PINNED, msgspec.json.encode(TABLE))
    (folder / "offsets").mkdir()
    swapped = RoutingTable(version=2, classes=CLASSES, keys={"a": 1}, default=2)
    options = ForwardOptions(checkpoint=str(folder))
    assert forward(spark, server.endpoint, "intake", swapped, options) == 5
    assert client.show("middle").visible == 5


def test_an_interrupted_batch_keeps_its_table_and_later_ones_use_the_new_table(
    spark: SparkSession,
    server: RunningServer,
    client: HttpQueueClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier attempt could not store its table. The interrupted batch may be in some queues already."""
    client.create_queue("intake")
    create_queues(client, TABLE, receives_max=1)
    client.set("short", {"message_bytes_max": 1_024})
    send_in_order(client, "intake", [NewMessage(body="a" * 2_000, attributes={"Type": text("a")})])
    options = ForwardOptions(checkpoint=str(tmp_path / "at"))
    write = Place.write

    def write_no_table(place: Place, path: str, content: bytes) -> None:
        if path == PINNED:
            raise OSError("no space")
        write(place, path, content)

    with monkeypatch.context() as patched:
        patched.setattr(Place, "write", write_no_table)
        with pytest.raises(PipelineFailed, match="no space"):
            forward(spark, server.endpoint, "intake", TABLE, options)
    with pytest.raises(PipelineFailed, match="too long"):
        forward(spark, server.endpoint, "intake", TABLE, options)
    client.set("short", {"message_bytes_max": 4_096})
    send_in_order(client, "intake", [NewMessage(body="b", attributes={"Type": text("a")})])
    swapped = RoutingTable(version=2, classes=CLASSES, keys={"a": 1}, default=2)
    assert forward(spark, server.endpoint, "intake", swapped, options) == 2
    assert [message.body for message in drained(client, "short")] == ["a" * 2_000]
    assert [message.body for message in drained(client, "middle")] == ["b"]
    assert Place.at(options.checkpoint).read(PINNED) == msgspec.json.encode(swapped)


@pytest.mark.parametrize(
    ("table", "error"),
    [
        pytest.param(
            RoutingTable(version=1, classes=(TimeoutClass(name="x", visibility_timeout_s=1),), default=0),
            "names no queue",
            id="none",
        ),
        pytest.param(
            RoutingTable(
                version=1, classes=(TimeoutClass(name="x", visibility_timeout_s=1, queue="intake"),), default=0
            ),
            "The intake",
            id="itself",
        ),
        pytest.param(
            RoutingTable(
                version=1, classes=(TimeoutClass(name="x", visibility_timeout_s=1, queue="y.fifo"),), default=0
            ),
            "both be FIFO",
            id="kind",
        ),
    ],
)
def test_an_invalid_table_is_refused(spark: SparkSession, table: RoutingTable, error: str) -> None:
    with pytest.raises(PipelineFailed, match=error):
        forward(spark, "http://127.0.0.1:1", "intake", table, ForwardOptions(checkpoint="x"))

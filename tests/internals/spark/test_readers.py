"""The readers of both modes against a server: claims, and plain receives with mode=sqs; the offsets of checkpoints."""

import logging
import runpy
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock
from urllib.request import urlopen

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tests.client.traffic import left, send
from tests.proofs.served import free_ports
from tests.spark.stream import ROOT, Stream, kept
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.client.messages import ClientError, Unreachable
from veilmq.core.claims import Bound, SourceView
from veilmq.core.messages import Attribute
from veilmq.spark.claims_reader import ClaimsStreamReader, HeldSource, ShardPartition
from veilmq.spark.offsets import IDLE_S, INITIAL, AsynchronousProgress, Offset, OffsetUnknown, Progress
from veilmq.spark.options import CLAIMS, SQS, SourceOptions
from veilmq.spark.retries import SourceFailed
from veilmq.spark.snapshots import SnapshotReader
from veilmq.spark.sqs_reader import HeldReceipts, MessagesPartition, SqsStreamReader, shards
from veilmq.testing import RunningServer

QUEUE = "orders"
START = {"v": 1, "src": "", "n": 0}
MEBIBYTE = 1_048_576


@pytest.fixture
def client(client: HttpQueueClient) -> HttpQueueClient:
    client.create_queue(QUEUE)
    return client


@pytest.fixture(autouse=True)
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the heartbeats of the test's readers: the server of the test ends."""
    held: list[HeldSource] = []
    init = HeldSource.__init__

    def opened(self: HeldSource, *arguments: Any) -> None:
        init(self, *arguments)
        held.append(self)

    monkeypatch.setattr(HeldSource, "__init__", opened)
    yield
    for each in held:
        each.stop()


def reader(server: RunningServer, queue: str = QUEUE, **options: str) -> ClaimsStreamReader:
    """Return the reader of a query that has just started."""
    given = {"endpoint": server.endpoint, "queue": queue, "wait": "0", "patience": "0", **options}
    found = ClaimsStreamReader(SourceOptions.of(given))
    found._progress.ordered = True  # as with the trigger availableNow
    return found


def test_batch_is_limited_by_bytes(
    server: RunningServer, client: HttpQueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Also with trigger(once=True), which has no other limit, and logs that its batch is not acknowledged."""
    for _ in range(5):
        client.send(QUEUE, "x" * 900_000)
    stream, end, batches = reader(server, maxBytesPerBatch=str(3 * MEBIBYTE)), START, []
    while (following := stream.latestOffset(end, ReadAllAvailable())) != end:
        parts = stream.partitions(end, following)
        rows = [row for part in parts for rows in stream.read(part) for row in rows.column("body").to_pylist()]
        batches.append(sum(map(len, rows)))
        end = following
    assert "Use trigger(availableNow=True)" in caplog.text
    assert sum(batches) == 5 * 900_000
    assert max(batches) <= 3 * MEBIBYTE
    assert len(batches) == 2, "and not one message at a time"


def test_progress_has_metrics_of_queue_and_stream(server: RunningServer, client: HttpQueueClient) -> None:
    send(client, QUEUE, 5)
    server.advance(3_000)
    stream = reader(server, maxMessagesPerBatch="3")
    assert stream.reportLatestOffset() is None, "before it has looked"
    first = stream.latestOffset(START, stream.getDefaultReadLimit())
    nothing = {"acknowledged": 0, "duplicatesKeptAway": 0}
    assert stream.reportLatestOffset() == {"backlog": 2, "oldestAgeSeconds": 3.0, "claimed": 3, **nothing}
    again = reader(server, maxMessagesPerBatch="3")  # after a crash in the batch
    again.partitions(START, first)
    again.latestOffset(first, again.getDefaultReadLimit())
    progress = again.reportLatestOffset()
    assert progress is not None
    assert (progress["backlog"], progress["claimed"]) == (0, 2)
    assert (progress["acknowledged"], progress["duplicatesKeptAway"]) == (3, 3)


def bodies(stream: ClaimsStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Return the bodies of the batch between two offsets, in order."""
    parts = stream.partitions(start, end)
    return sorted(body for part in parts for rows in stream.read(part) for body in rows.column("body").to_pylist())


@pytest.mark.parametrize("away_ms", [0, 61_000], ids=["back-in-time", "after-the-hold"])
def test_unlogged_claim_is_used_again(server: RunningServer, client: HttpQueueClient, away_ms: int) -> None:
    """Or its messages, if they have returned to the queue."""
    sent = send(client, QUEUE, 7)
    options = {"hold": "60", "maxMessagesPerBatch": "4"}
    before = reader(server, **options)
    first = before.latestOffset(START, before.getDefaultReadLimit())
    kept = bodies(before, START, first)
    before.latestOffset(first, before.getDefaultReadLimit())
    assert left(client, QUEUE) == (0, 3)
    server.advance(away_ms)
    after = reader(server, **options)
    second = after.latestOffset(first, after.getDefaultReadLimit())
    assert sorted(kept + bodies(after, first, second)) == sorted(sent)
    assert after.latestOffset(second, after.getDefaultReadLimit()) == second
    assert left(client, QUEUE) == (0, 0)


@pytest.mark.parametrize("count", [4, 7], ids=["all", "some"])
def test_available_now_reads_an_unlogged_claim_and_the_messages_of_its_start(
    server: RunningServer, client: HttpQueueClient, count: int
) -> None:
    sent, limit = send(client, QUEUE, count), ReadMaxRows(4)
    first = reader(server, stream="s").latestOffset(START, limit)
    after = reader(server, stream="s")
    after.prepareForTriggerAvailableNow()
    send(client, QUEUE, 5, begin=count)
    assert after.latestOffset(START, limit) == first
    read = bodies(after, START, first)
    last = after.latestOffset(first, limit)
    assert sorted(read + bodies(after, first, last)) == sorted(sent)
    assert after.latestOffset(last, limit) == last
    assert left(client, QUEUE) == (5, 0)


def test_jobs_of_a_snapshot_may_start_at_the_same_moment(
    server: RunningServer, client: HttpQueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a self-join: another job opens the snapshot after this one, and binds the messages."""
    send(client, QUEUE, 5)
    jobs = SnapshotReader(SourceOptions.of({"endpoint": server.endpoint, "queue": QUEUE}), "today")
    claim, others = HeldSource.claim, []

    def claim_late(held: HeldSource, *arguments: Any, **named: Any) -> Bound:
        monkeypatch.setattr(HeldSource, "claim", claim)
        others.append(jobs.partitions())
        return claim(held, *arguments, **named)

    monkeypatch.setattr(HeldSource, "claim", claim_late)
    assert [jobs.partitions()] == others == [[ShardPartition("today", 1, 0)]]


def test_first_claim_is_found_by_the_name_of_the_stream(server: RunningServer, client: HttpQueueClient) -> None:
    """Spark has not logged it; the name is used for a new checkpoint, not for a source that the server has deleted."""
    sent = send(client, QUEUE, 3)
    limit = ReadMaxRows(10)
    first = reader(server, stream="s", consumer="lake").latestOffset(START, limit)
    again = reader(server, stream="s", consumer="lake")
    assert again.latestOffset(START, limit) == first
    assert bodies(again, START, first) == sorted(sent)
    again.commit(first)
    with pytest.raises(SourceFailed, match="and a new checkpoint another stream"):
        reader(server, stream="s", consumer="lake").latestOffset(START, limit)
    send(client, QUEUE, 1)
    with Claims(server.endpoint, QUEUE) as claims:
        claims.close_source("s")
    replaced = reader(server, stream="s", consumer="lake", onLostClaim="skip").latestOffset(first, limit)
    assert replaced["src"] != first["src"] == "s"


@pytest.mark.parametrize("finished", [True, False], ids=["written", "cut-off"])
def test_skipped_claims_are_logged_with_their_messages(
    server: RunningServer, client: HttpQueueClient, caplog: pytest.LogCaptureFixture, finished: bool
) -> None:
    send(client, QUEUE, 7)
    end = reader(server, hold="60").latestOffset(START, ReadAllAvailable())
    server.advance(61_000)
    stream, skipping = reader(server), reader(server, onLostClaim="skip")
    if finished:
        with pytest.raises(SourceFailed, match=r"7 messages of the claims \[1\] are in the sink"):
            stream.latestOffset(end, ReadAllAvailable())
        skipping.latestOffset(end, ReadAllAvailable())
        again = "are in the sink, and back in the queue unless purged: they are delivered twice"
        assert f"7 messages of the claims [1] {again}" in caplog.text
    else:
        with pytest.raises(SourceFailed, match="onLostClaim=skip"):
            stream.partitions(START, end)
        assert skipping.partitions(START, end) == []
        assert "its 7 messages are back in the queue and are read by a later batch" in caplog.text


def test_claim_that_the_server_never_bound_is_not_skipped(server: RunningServer, client: HttpQueueClient) -> None:
    """Its data is older than the checkpoint."""
    send(client, QUEUE, 1)
    end = reader(server).latestOffset(START, ReadMaxRows(1))
    with pytest.raises(SourceFailed, match="Use a new checkpoint"):
        reader(server, onLostClaim="skip").partitions(end, {**end, "n": end["n"] + 1})


def test_checkpoint_of_another_queue_is_refused(server: RunningServer, client: HttpQueueClient) -> None:
    """Also with `onLostClaim=skip`, and if both queues are given by URL."""
    client.create_queue("invoices")
    send(client, QUEUE, 1)
    end = reader(server).latestOffset(START, ReadAllAvailable())
    other = f"{server.endpoint}/000000000000/invoices"
    with pytest.raises(OffsetUnknown, match=r"is of the queue orders, not of invoices; .*use a new checkpoint"):
        reader(server, other, onLostClaim="skip").latestOffset(end, ReadAllAvailable())
    same = reader(server, f"{server.endpoint}/000000000000/{QUEUE}")
    assert same.latestOffset(end, ReadAllAvailable()) == end


def test_claims_of_a_deleted_checkpoint_are_reported(
    server: RunningServer, client: HttpQueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a consumer a warning, with one an error; both say how to return the messages at once."""
    send(client, QUEUE, 3)
    reader(server, consumer="lake").latestOffset(START, ReadAllAvailable())
    server.advance(61_000)  # without renewals
    with pytest.raises(
        SourceFailed, match="If the checkpoint of the other stream was deleted, start with takeover=true"
    ):
        reader(server, consumer="lake").latestOffset(START, ReadAllAvailable())
    reader(server).latestOffset(START, ReadAllAvailable())
    assert "has 3 claimed messages" in caplog.text
    assert "veilmq claims close" in caplog.text
    reader(server, consumer="lake", takeover="true").latestOffset(START, ReadAllAvailable())
    assert left(client, QUEUE) == (0, 3)


def test_takeover_with_available_now_reads_the_other_streams_messages(
    server: RunningServer, client: HttpQueueClient
) -> None:
    """No message is visible until the source is opened, which releases them."""
    sent = send(client, QUEUE, 3)
    reader(server, consumer="lake").latestOffset(START, ReadAllAvailable())
    assert left(client, QUEUE) == (0, 3)
    stream = reader(server, consumer="lake", takeover="true")
    stream.prepareForTriggerAvailableNow()
    end = stream.latestOffset(START, stream.getDefaultReadLimit())
    assert bodies(stream, START, end) == sorted(sent)
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end


def test_second_query_of_a_consumer_warns_and_ends_the_first(
    server: RunningServer, client: HttpQueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The second logs a warning at its start; the first fails when it continues."""
    first = reader(server, consumer="lake")
    limit = first.getDefaultReadLimit()
    assert first.latestOffset(START, limit) == START
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        reader(server, consumer="lake").latestOffset(START, limit)
    assert "The consumer lake has another stream" in caplog.text
    assert "give each query its own consumer" in caplog.text
    with pytest.raises(SourceFailed, match="or another stream of the same consumer"):
        first.latestOffset(START, limit)
    with Claims(server.endpoint, QUEUE) as claims:
        assert [view.consumer for view in claims.sources()].count("lake") >= 1


def test_dashboard_of_the_example_has_the_metrics() -> None:
    (port,) = free_ports(1)
    dashboard = runpy.run_path(str(ROOT / "examples" / "queue_to_parquet.py"))["Dashboard"](port)
    source = SimpleNamespace(latestOffset='{"backlog": 7, "oldestAgeSeconds": 1.5}')
    dashboard.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(sources=[source])))
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        shown = page.read().decode()
    assert 'veilmq_stream{figure="backlog"} 7.0' in shown
    assert 'veilmq_stream{figure="oldestAgeSeconds"} 1.5' in shown


PATIENCE_S = 60.0
VIEW = SourceView(
    source="s", consumer="", epoch=1, acknowledged=0, last=0, alive=True, lease_until_ms=0, hold_until_ms=0, claims=[]
)


class ScriptedClaims:
    """Answers heartbeats with `errors`, one after another; sets `well` at the first success."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.beats = 0
        self.well = threading.Event()

    def heartbeat(self, source: str, *, epoch: int) -> SourceView:
        self.beats += 1
        if self.errors:
            raise self.errors.pop(0)
        self.well.set()
        return VIEW


def held(claims: Any, short: str = "lease_s") -> HeldSource:
    """A source with continuous heartbeats, so that neither lease nor hold ends."""
    times: dict[str, Any] = {"lease_s": 3_600, "hold_s": 3_600, short: 0.003}
    options = replace(SourceOptions.of({"queue": "q"}), **times)
    return HeldSource(cast(Claims, claims), VIEW, options)


@pytest.mark.parametrize("short", ["lease_s", "hold_s"])
def test_heartbeats_survive_temporary_errors(short: str) -> None:
    """Otherwise a batch longer than the hold would lose its messages to an error of a proxy."""
    claims = ScriptedClaims(
        Unreachable("http://h", "no answer in time"),
        ClientError("UnexpectedReply", "a page of a proxy", 404),
        ClientError("AccessDenied", "the policy is being changed", 403),
        ClientError("InternalError", "a defect", 500),
    )
    source = held(claims, short)
    thread = threading.Thread(target=source._renew, args=(claims,), daemon=True)
    thread.start()
    assert claims.well.wait(PATIENCE_S)
    source.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("code", ["EpochFenced", "SourceNotFound", "QueueNotFound"])
def test_heartbeats_end_with_the_epoch(code: str, caplog: pytest.LogCaptureFixture) -> None:
    claims = ScriptedClaims(ClientError(code, "it is over", 409))
    held(claims)._renew(cast(Claims, claims))
    assert claims.beats == 1
    assert "end: it is over" in caplog.text


def test_offset_survives_serialisation() -> None:
    for offset in (INITIAL, Offset(source="s", number=7), Offset(source="s", number=7, first=5)):
        assert Offset.of(offset.json()) == offset


def test_initial_offset_is_constant() -> None:
    assert INITIAL.json() == {"v": 1, "src": "", "n": 0}


def test_batch_has_the_claims_between_two_offsets() -> None:
    start = Offset(source="s", number=4)
    assert list(start.claims_to(Offset(source="s", number=6))) == [5, 6]
    assert list(start.claims_to(start)) == []
    assert list(start.claims_to(Offset(source="s", number=9, first=8))) == [8, 9], "the others are lost"


@pytest.mark.parametrize("json", [
    {}, {"v": 2, "src": "s", "n": 1}, {"partition-1": 3}, {"v": 1}, {"v": 1, "src": "s"},
    {"v": 1, "src": "s", "n": "1"}, {"v": 1, "src": None, "n": 1},
], ids=["empty", "newer", "other", "bare", "no-number", "text", "no-source"])  # fmt: skip
def test_foreign_checkpoint_is_refused(json: dict[str, object]) -> None:
    with pytest.raises(OffsetUnknown, match="no offset of veilmq"):
        Offset.of(json)


@pytest.mark.parametrize(("kept", "other"), [(CLAIMS, SQS), (SQS, CLAIMS)])
def test_checkpoint_of_the_other_mode_is_refused(kept: str, other: str) -> None:
    """Its numbers identify other messages; a new checkpoint is accepted by both modes."""
    json = Offset(source=SQS if kept == SQS else "0f5c", number=3).json()
    assert Offset.of(json, mode=kept).number == 3
    with pytest.raises(OffsetUnknown, match=f"mode={kept}"):
        Offset.of(json, mode=other)
    assert Offset.of(INITIAL.json(), mode=other) == INITIAL


def progress_after(*calls: str, ordered: bool = False) -> Progress:
    """Return the progress after calls; a ``batch`` is one as Spark normally processes it from a number on."""
    progress = Progress()
    progress.ordered = ordered
    for call in calls:
        name, number = call.split()
        if name != "batch":
            getattr(progress, name)(int(number))
            continue
        progress.made(int(number) + 1)
        if int(number):
            progress.committed(int(number))
        progress.planned(int(number))
    return progress


@pytest.mark.parametrize(("calls", "finished", "unfinished"), [
    pytest.param(["batch 0"], [], [1], id="first-batch-of-a-process-stays-open"),
    pytest.param(["batch 0", "made 2", "committed 1"], [1], [2], id="committed"),
    pytest.param(["batch 0", "batch 1"], [2], [], id="after-the-normal-order-a-request-is-enough"),
    pytest.param([], [7], [], id="what-an-earlier-process-logged"),
    pytest.param(["planned 6"], [7], [], id="what-an-earlier-process-logged-is-repeated"),
])  # fmt: skip
def test_order_of_calls_determines_finished_batches(
    calls: list[str], finished: list[int], unfinished: list[int]
) -> None:
    progress = progress_after(*calls)
    assert all(map(progress.finished, finished))
    assert not any(map(progress.finished, unfinished))


def test_synchronous_trigger_finishes_batches_at_once() -> None:
    assert progress_after("batch 0", ordered=True).finished(1)


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(["made 2"], id="never"),
        # With asynchronous tracking, Spark commits what it logged before the last batch.
        pytest.param(["made 2", "committed 0"], id="late"),
        # The offset jumps from 1 to 5 if claims 2, 3 and 4 are lost.
        pytest.param(["made 5"], id="claims-were-passed-over"),
    ],
)
def test_plan_before_the_commit_reveals_asynchronous_tracking(calls: list[str]) -> None:
    progress = progress_after("batch 0", *calls)
    with pytest.raises(AsynchronousProgress, match="asyncProgressTrackingEnabled"):
        progress.planned(1)


def test_idle_stream_finishes_after_some_seconds() -> None:
    progress = progress_after("batch 0")
    assert not progress.is_idle(1, 100.0)
    assert not progress.is_idle(1, 100.0 + IDLE_S - 0.1)
    assert progress.is_idle(1, 100.0 + IDLE_S)
    assert not progress.is_idle(2, 101.0 + IDLE_S), "the rest of another one does not count"


def test_idle_stream_finishes_its_first_batch_before_it_waits_again(
    server: RunningServer, client: HttpQueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, now_s, found, limit = reader(server), [0.0], list[tuple[int, int]](), ReadMaxRows(10)
    stream._progress.ordered = False
    following = stream._next

    def wait(*words: Any) -> int | None:
        found.append(left(client, QUEUE))
        now_s[0] += 20
        return following(*words)

    monkeypatch.setattr(stream, "_next", wait)
    monkeypatch.setattr("veilmq.spark.offsets.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    send(client, QUEUE, 1)
    first = stream.latestOffset(START, limit)
    assert [stream.latestOffset(first, limit) for _ in range(2)] == [first] * 2
    assert found == [(1, 0), (0, 1), (0, 0)]


def test_unknown_stream_continues_only_with_skip(server: RunningServer, client: HttpQueueClient) -> None:
    client.send(QUEUE, "a")
    earlier = {"v": 1, "src": "of-another-queue", "n": 3}
    with pytest.raises(SourceFailed, match="The queue has no record of this stream"):
        reader(server).latestOffset(earlier, ReadAllAvailable())
    running = reader(server, onLostClaim="skip")
    end = running.latestOffset(earlier, ReadAllAvailable())
    assert end["n"] == 1
    client.delete_queue(QUEUE)
    server.advance(60_000)
    client.create_queue(QUEUE)
    with pytest.raises(SourceFailed, match="The queue was deleted, or the stream closed"):
        running.latestOffset(end, ReadAllAvailable())


# mode=sqs on real Spark: plain receives and deletes, at least once.


LEASE_S = 60


def stream_of(server: RunningServer, folder: Path, queue: str, fail_after: int | None = None) -> Stream:
    """Return a stream of batches of 40 messages, 20 for each task."""
    options = {"mode": "sqs", "maxMessagesPerBatch": "40", "shardSize": "20", "lease": str(LEASE_S)}
    return Stream(
        endpoint=server.endpoint, queue=queue, folder=str(folder / "stream"), options=options, fail_after=fail_after
    )


def test_message_has_all_columns(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    client.create_queue("typed.fifo", {"fifo": True})
    attributes = {"kind": Attribute(type="String", text="a"), "raw": Attribute(type="Binary", data=b"\x00\x01")}
    sent = client.send("typed.fifo", "body", attributes=attributes, group="g", dedup_id="d")
    stream_of(server, tmp_path, f"{client.queue_url('typed.fifo')}/").run(spark)
    (row,) = spark.read.parquet(str(tmp_path / "stream" / "out" / "0")).collect()
    assert (row.id, row.body, row.group, row.sequence_number) == (sent.id, "body", "g", sent.sequence)
    assert row.attributes == {"kind": "a", "raw": "AAE="}
    assert row.attribute_types == {"raw": "Binary"}
    assert (row.receive_count, row.queue) == (1, "typed.fifo")
    assert row.sent_at.timestamp() * 1_000 == pytest.approx(server.clock.now_ms(), abs=1)


def test_crash_delivers_messages_twice_and_loses_none(
    spark: SparkSession, server: RunningServer, client: HttpQueueClient, tmp_path: Path
) -> None:
    """The second batch is written, but not logged as finished: Spark repeats it, and its messages are redelivered."""
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
    assert left(client, "plain") == (0, 0)


def test_sqs_batch_is_limited_by_bytes(server: RunningServer, client: HttpQueueClient) -> None:
    """Received messages that do not fit are in the next batch."""
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


class Ticks:
    """A replacement of ``threading.Event`` that is set at its third wait, and never waits."""

    def __init__(self) -> None:
        self.waits_s: list[float] = []

    def wait(self, timeout_s: float) -> bool:
        self.waits_s.append(timeout_s)
        return len(self.waits_s) == 3


def test_messages_of_a_batch_are_renewed_three_times_in_a_lease(
    server: RunningServer, client: HttpQueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(client, QUEUE, 12)
    monkeypatch.setattr("veilmq.spark.sqs_reader.threading", SimpleNamespace(Event=Ticks, Thread=MagicMock()))
    options = SourceOptions.of({"endpoint": server.endpoint, "queue": QUEUE, "mode": "sqs", "lease": "30"})
    held = HeldReceipts(options)
    assert held.receive(1, 12, wait_s=0) == 12
    server.advance(20_000)
    held._renew()
    server.advance(20_000)
    assert left(client, QUEUE) == (0, 12)
    assert cast(Ticks, held._stopped).waits_s == [10, 10, 10]


def test_messages_of_a_group_are_in_one_task_in_order(client: HttpQueueClient) -> None:
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

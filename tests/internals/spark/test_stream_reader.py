"""The driver's part of a stream, without Spark: what a batch may have, what is logged, and what the progress tells."""

import logging
import runpy
import socket
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.client.traffic import left, send
from tests.spark.stream import ROOT
from veilmq.client import HttpQueueClient
from veilmq.client.api import Claims
from veilmq.spark.offsets import OffsetUnknown
from veilmq.spark.patience import SourceFailed
from veilmq.spark.source_options import SourceOptions
from veilmq.spark.stream_reader import ClaimsStreamReader
from veilmq.testing import RunningServer

QUEUE = "orders"
START = {"v": 1, "src": "", "n": 0}
MEBIBYTE = 1_048_576


@pytest.fixture
def client(client: HttpQueueClient) -> HttpQueueClient:
    """Give a client; the queue is there."""
    client.create_queue(QUEUE)
    return client


def reader(server: RunningServer, queue: str = QUEUE, **options: str) -> ClaimsStreamReader:
    """Return the reader of a query that has just started."""
    given = {"endpoint": server.endpoint, "queue": queue, "wait": "0", "patience": "0", **options}
    found = ClaimsStreamReader(SourceOptions.of(given))
    found._progress.ordered = True  # as the trigger availableNow is
    return found


def test_a_batch_is_no_longer_than_its_bytes(server: RunningServer, client: HttpQueueClient) -> None:
    for _ in range(5):
        client.send(QUEUE, "x" * 900_000)
    stream, end, batches = reader(server, maxBytesPerBatch=str(3 * MEBIBYTE)), START, []
    while (following := stream.latestOffset(end, ReadAllAvailable())) != end:
        parts = stream.partitions(end, following)
        rows = [row for part in parts for rows in stream.read(part) for row in rows.column("body").to_pylist()]
        batches.append(sum(map(len, rows)))
        end = following
    assert sum(batches) == 5 * 900_000
    assert max(batches) <= 3 * MEBIBYTE
    assert len(batches) == 2, "and not one message at a time"


def test_the_progress_tells_how_queue_and_stream_stand(server: RunningServer, client: HttpQueueClient) -> None:
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
    told = again.reportLatestOffset()
    assert told is not None
    assert (told["backlog"], told["claimed"]) == (0, 2)
    assert (told["acknowledged"], told["duplicatesKeptAway"]) == (3, 3)


def bodies(stream: ClaimsStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Return the bodies of the batch between two offsets, in order."""
    parts = stream.partitions(start, end)
    return sorted(body for part in parts for rows in stream.read(part) for body in rows.column("body").to_pylist())


@pytest.mark.parametrize("away_ms", [0, 61_000], ids=["back-in-time", "after-the-hold"])
def test_a_claim_that_was_never_logged_is_taken_again(
    server: RunningServer, client: HttpQueueClient, away_ms: int
) -> None:
    """Or its messages are, if they are back in the queue."""
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


@pytest.mark.parametrize("finished", [True, False], ids=["written", "cut-off"])
def test_skipping_lost_claims_tells_how_many_messages(
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
        assert (
            "7 messages of the claims [1] are in the sink, and back in the queue: they are delivered twice"
            in caplog.text
        )
    else:
        with pytest.raises(SourceFailed, match="onLostClaim=skip"):
            stream.partitions(START, end)
        assert skipping.partitions(START, end) == []
        assert "its 7 messages are back in the queue and are read by a later batch" in caplog.text


def test_a_checkpoint_of_another_queue_is_named(server: RunningServer, client: HttpQueueClient) -> None:
    """Also with `onLostClaim=skip`, and also where both are given by their URLs."""
    client.create_queue("invoices")
    send(client, QUEUE, 1)
    end = reader(server).latestOffset(START, ReadAllAvailable())
    other = f"{server.endpoint}/000000000000/invoices"
    with pytest.raises(OffsetUnknown, match=r"is of the queue orders, not of invoices; .*use a new checkpoint"):
        reader(server, other, onLostClaim="skip").latestOffset(end, ReadAllAvailable())
    same = reader(server, f"{server.endpoint}/000000000000/{QUEUE}")
    assert same.latestOffset(end, ReadAllAvailable()) == end


def test_a_deleted_checkpoint_leaves_claims_that_are_told(
    server: RunningServer, client: HttpQueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a consumer a warning, with one an error; both say how the messages come back at once."""
    send(client, QUEUE, 3)
    reader(server, consumer="lake").latestOffset(START, ReadAllAvailable())
    server.advance(61_000)  # nobody renews them
    with pytest.raises(
        SourceFailed, match="If the checkpoint of the other stream was deleted, start with takeover=true"
    ):
        reader(server, consumer="lake").latestOffset(START, ReadAllAvailable())
    reader(server).latestOffset(START, ReadAllAvailable())
    assert "has 3 claimed messages" in caplog.text
    assert "veilmq claims close" in caplog.text
    reader(server, consumer="lake", takeover="true").latestOffset(START, ReadAllAvailable())
    assert left(client, QUEUE) == (0, 3)


def test_two_queries_of_one_consumer_both_hear_of_it(
    server: RunningServer, client: HttpQueueClient, caplog: pytest.LogCaptureFixture
) -> None:
    """The second a warning when it starts, the first an error when it goes on."""
    first = reader(server, consumer="lake")
    assert first.latestOffset(START, ReadAllAvailable()) == START
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        reader(server, consumer="lake").latestOffset(START, ReadAllAvailable())
    assert "The consumer lake has another stream" in caplog.text
    assert "give each query its own consumer" in caplog.text
    with pytest.raises(SourceFailed, match="or another stream of the same consumer"):
        first.latestOffset(START, ReadAllAvailable())
    with Claims(server.endpoint, QUEUE) as claims:
        assert [view.consumer for view in claims.sources()].count("lake") >= 1


def test_the_dashboard_of_the_example_has_the_figures() -> None:
    """As Prometheus reads them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    dashboard = runpy.run_path(str(ROOT / "examples" / "queue_to_parquet.py"))["Dashboard"](port)
    source = SimpleNamespace(latestOffset='{"backlog": 7, "oldestAgeSeconds": 1.5}')
    dashboard.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(sources=[source])))
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        shown = page.read().decode()
    assert 'veilmq_stream{figure="backlog"} 7.0' in shown
    assert 'veilmq_stream{figure="oldestAgeSeconds"} 1.5' in shown

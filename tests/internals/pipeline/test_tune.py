"""The jobs on the event log, from files to recommendations, table and report, on Spark."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3
from pyspark.sql import SparkSession

from tests.pipeline.closed import ExportedLog, row
from tests.pipeline.made_report import content
from veilmq.client import HttpQueueClient
from veilmq.core.events import Outcome
from veilmq.core.routing import RoutingTable
from veilmq.pipeline.report import report
from veilmq.pipeline.route import route_table
from veilmq.pipeline.session import PipelineFailed
from veilmq.pipeline.tune import COLUMNS, QueueFacts, to_json, tune
from veilmq.testing import RunningServer

FAST_MS = range(100, 2_100, 5)
SLOW_MS = range(10_000, 26_000, 40)


def worked(*, queue: str = "1/jobs") -> list[tuple[Any, ...]]:
    """Return what an hour had: fast and slow work of one queue."""
    rows = [row(Outcome.DELETED, held_ms, key="fast", queue=queue) for held_ms in FAST_MS]
    rows += [row(Outcome.DELETED, held_ms, key="slow", queue=queue) for held_ms in SLOW_MS]
    return rows + [row(Outcome.EXPIRED, 30_000, key=key, queue=queue) for key in ("fast", "slow")]


def test_advice_table_and_report_come_from_one_state(spark: SparkSession, tmp_path: Path) -> None:
    """Tune writes the recommendations, route-table a table with versions, report a page that needs nothing else.

    Before anything is exported there is nothing to recommend, and the report has no queue.
    """
    log, state, page_at = ExportedLog(tmp_path / "log"), str(tmp_path / "state"), tmp_path / "report.html"
    facts = {"jobs": QueueFacts(visibility_timeout_s=60, full_name="1/jobs")}
    assert tune(spark, events=log.events, state=state, facts=facts).recommendations == ()
    page = report(spark, state=state, path=page_at, at_ms=0).read_text(encoding="utf-8")
    assert content(page)["queues"] == []

    log.export_rows(worked(), node="a0000001")
    tuned = tune(spark, events=log.events, state=state, facts=facts)
    assert [(each.queue, each.key, each.current_s) for each in tuned.recommendations] == [
        ("1/jobs", None, 60), ("1/jobs", "fast", 60), ("1/jobs", "slow", 60),
    ]  # fmt: skip
    written = spark.read.parquet(f"{state}/recommendations")
    assert tuple(written.columns) == COLUMNS
    assert [each["recommended_s"] for each in json.loads(to_json(tuned.recommendations))] == [
        each.recommended_s for each in tuned.recommendations
    ]

    path = tmp_path / "routes.json"
    made = route_table(spark, state=state, queue="jobs", path=path, classes=2)
    assert made.table == msgspec.json.decode(path.read_bytes(), type=RoutingTable)
    assert made.table.version == 1
    assert [each.queue for each in made.table.classes] == ["jobs-class-1", "jobs-class-2"]
    assert (made.table.keys, made.table.default) == ({"fast": 0, "slow": 1}, 1)
    assert 3 <= made.table.classes[0].visibility_timeout_s < 10 < made.table.classes[1].visibility_timeout_s
    assert made.cost == made.cost_by_count[1] < made.cost_by_count[0]
    with pytest.raises(PipelineFailed, match="The queue other has too few receipts"):
        route_table(spark, state=state, queue="other")

    page = report(spark, state=state, path=page_at, at_ms=0, facts=facts).read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script src|<link|@import|<img", page)
    (queue,) = content(page)["queues"]
    assert queue["name"] == "jobs"
    assert [row[-1] for row in (queue["row"], *queue["keys"])] == [each.reason for each in tuned.recommendations]
    assert [len(queue[chart]["lines"]) for chart in ("work", "cost", "days", "waits")] == [3, 4, 2, 2]


def work_beyond_its_timeout(events: Path, stale_receipts: str) -> None:
    """Have 400 messages worked on for 0.5 to 20 s under a timeout of 10 s, by consumers that delete although late.

    What is not done at 10 s is received once more at that moment, and its second consumer takes 20 s.
    """
    with (
        RunningServer(events_to=str(events), stale_receipts=stale_receipts) as server,
        HttpQueueClient(server.endpoint) as client,
    ):
        client.create_queue("jobs", {"visibility_timeout_s": 10})
        for number in range(400):
            client.send("jobs", str(number))
        first = [client.receive("jobs", count=10) for _ in range(40)]
        second: list[str] = []
        for step, done in enumerate(first, start=1):
            server.advance(500)
            if step == 20:
                while again := client.receive("jobs", count=10, timeout_s=30):
                    second += [each.receipt for each in again]
            client.delete_batch("jobs", [each.receipt for each in done])
        server.advance(9_500)
        for at in range(0, len(second), 10):
            client.delete_batch("jobs", second[at : at + 10])
        status = client.show("jobs")
        assert (status.visible, status.in_flight) == (0, 0)
        assert urllib3.request("POST", f"{server.admin_endpoint}/events/flush").status == 200


def test_where_earlier_receipts_delete_the_cost_is_that_without_fencing(spark: SparkSession, tmp_path: Path) -> None:
    """The same work on both kinds of server: the log says which one it was, and a short timeout is less dear there."""
    found = {}
    for stale_receipts in ("fenced", "act"):
        events = tmp_path / stale_receipts
        work_beyond_its_timeout(events, stale_receipts)
        tuned = tune(spark, events=str(events / "receipt_closed"), state=str(tmp_path / f"state-{stale_receipts}"))
        found[stale_receipts] = tuned.recommendations[0]
    fenced, act = found["fenced"], found["act"]
    assert (fenced.current_s, act.current_s) == (10, 10)
    assert fenced.first_receipts == act.first_receipts == 400
    assert fenced.rates.duplicate == act.rates.duplicate > 0.4
    assert fenced.cost_current is not None
    assert act.cost_current is not None
    assert fenced.cost_current > 5 * act.cost_current
    assert act.cost_recommended == pytest.approx(fenced.cost_recommended, rel=0.2)
    report(spark, state=str(tmp_path / "state-act"), path=tmp_path / "report.html", at_ms=0, title="t")

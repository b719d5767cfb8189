"""From the event log to recommendations, changes of queues, a routing table and a report."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3
from pyspark.sql import SparkSession

from tests.internals.pipeline.made_counts import key_with, lognormal, renewed
from tests.internals.proofs.work_shapes import type_of_work
from tests.pipeline.closed import ExportedLog, row, worked
from tests.pipeline.made_report import KEYS, QUEUES, content, made_queues
from veilmq.client import HttpQueueClient
from veilmq.core.receipts import Outcome
from veilmq.core.settings import QueueSettings, RoutingTable
from veilmq.pipeline.cells import KeyCounts, ReceiptCounts
from veilmq.pipeline.folders import read_parquet
from veilmq.pipeline.options import ClassOptions, TuneOptions
from veilmq.pipeline.report import BYTES_MAX, page, report
from veilmq.pipeline.route import route_table
from veilmq.pipeline.session import PipelineFailed
from veilmq.pipeline.tune import (
    COLUMNS,
    DEFAULTS,
    Change,
    Confidence,
    Recommendation,
    apply,
    recommendations,
    rows_of,
    settings_of,
    tune,
    undo,
)
from veilmq.testing import RunningServer

OPTIONS = TuneOptions()
WORK = type_of_work(20)  # median 8.6 s, p99 55 s


def recommendation(first: ReceiptCounts, *, settings: QueueSettings | None = None) -> Recommendation:
    """Return the recommendation for a queue with one key."""
    given = {} if settings is None else {"jobs": settings}
    return next(recommendations([key_with(first)], options=OPTIONS, settings=given))


def test_the_recommended_timeout_costs_little_more_than_the_true_best() -> None:
    """From 20,000 receipts, some of which expired after a crash."""
    found = recommendation(lognormal(WORK.quantile_s(0.5), 20_000, crash_rate=WORK.crash))
    best_s, best = WORK.best
    assert found.recommended_s == pytest.approx(best_s, rel=0.15)
    assert WORK.cost(found.recommended_s or 0) < 1.05 * best
    assert found.current_s == 30
    assert found.change
    assert found.gain > 0.5
    assert found.confidence is Confidence.MEDIUM  # the p99 exceeds 30 s
    assert "late deletes indicate" in found.reason


def test_a_timeout_that_may_be_as_cheap_is_kept() -> None:
    """For a timeout near the best one, the bounds of both costs overlap."""
    seen = lognormal(2.0, 20_000, crash_rate=WORK.crash)
    best_s = recommendation(seen, settings=QueueSettings(visibility_timeout_s=400)).recommended_s or 0
    near = recommendation(seen, settings=QueueSettings(visibility_timeout_s=best_s + 1))
    assert near.recommended_s is None
    assert near.keeps
    assert near.reason.startswith(f"keep {best_s + 1} s: {best_s} s would not surely cost less")
    assert not near.change
    far = recommendation(seen, settings=QueueSettings(visibility_timeout_s=best_s * 10))
    assert far.change
    assert (far.cost_recommended_upper or 0.0) < (far.cost_current_lower or 0.0)
    assert (far.cost_recommended or 0.0) < (far.cost_current or 0.0)


def test_the_maximum_of_receives_affects_the_cost() -> None:
    seen = lognormal(8.0, 20_000, crash_rate=0.05)
    often = recommendation(seen, settings=QueueSettings(visibility_timeout_s=30, receives_max=10))
    rarely = recommendation(seen, settings=QueueSettings(visibility_timeout_s=30, receives_max=2))
    assert often.cost_current is not None
    assert rarely.cost_current is not None
    assert often.cost_current > 2 * rarely.cost_current


def test_renewing_consumers_get_three_renewals() -> None:
    found = recommendation(renewed(20))
    assert found.recommended_s in range(59, 63)
    assert "renew about every" in found.reason
    assert found.confidence is Confidence.HIGH
    nearly = recommendation(renewed(20), settings=QueueSettings(visibility_timeout_s=53))
    assert nearly.recommended_s is None, "the period is not known so precisely"


def test_without_an_identifiable_quantile_only_a_timeout_to_try_is_recommended() -> None:
    """Unless there are too few receipts."""
    gave_up = recommendation(lognormal(20.0, 5000, finishing=False))
    assert gave_up.recommended_s is None
    assert gave_up.explore_s in range(118, 122)
    assert gave_up.confidence is Confidence.NONE
    assert not gave_up.change
    few = recommendation(lognormal(2.0, 50))
    assert (few.recommended_s, few.explore_s) == (None, None)
    assert few.reason == "not identifiable: 50 first receipts, p99 needs 300"


def test_queues_precede_their_keys_and_rare_keys_borrow_receipts() -> None:
    """The recommendation for a rare key has low confidence."""

    def counts(queue: str, key: str, first: ReceiptCounts) -> KeyCounts:
        return key_with(first, queue=queue, key=key)

    found = [
        counts("a", "common", lognormal(2.0, 5000)),
        counts("a", "rare", lognormal(2.0, 20)),
        counts("b", "", lognormal(5.0, 1000)),
    ]
    all_of_them = list(recommendations(found, options=OPTIONS, settings={}))
    assert [(each.queue, each.key) for each in all_of_them] == [
        ("a", None), ("a", "common"), ("a", "rare"), ("b", None), ("b", ""),
    ]  # fmt: skip
    assert all_of_them[2].confidence is Confidence.LOW
    assert "28 receipts are borrowed from the queue" in all_of_them[2].reason


QUEUE = "jobs"
AT_MS = 1_767_225_600_000
SLOW = lognormal(8.0, 50_000, crash_rate=0.003)


@pytest.fixture
def client() -> Iterator[HttpQueueClient]:
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue(QUEUE)
        yield client


def recommended(client: HttpQueueClient, first: ReceiptCounts) -> Recommendation:
    """Return the recommendation for the queue by its name in the event log."""
    settings = settings_of(client, [QUEUE])
    found = key_with(first, queue=next(iter(settings)))
    return next(recommendations([found], options=TuneOptions(), settings=settings))


def timeout_s(client: HttpQueueClient) -> int:
    return client.show(QUEUE).settings.visibility_timeout_s


def test_a_recommended_timeout_is_set_and_recorded(client: HttpQueueClient, tmp_path: Path) -> None:
    """The record has a line for each change."""
    found = recommended(client, SLOW)
    record = tmp_path / "state" / "changes.jsonl"
    (change,) = apply(client, [found], record=record, at_ms=AT_MS)
    assert (found.recommended_s or 0) > 90
    assert timeout_s(client) == change.after_s == 90  # a step is a factor of three
    assert (change.before_s, change.at_ms, change.reason) == (30, AT_MS, found.reason)
    assert [msgspec.json.decode(line, type=Change) for line in record.read_bytes().splitlines()] == [change]


def test_a_timeout_falls_by_at_most_a_factor_of_three(client: HttpQueueClient, tmp_path: Path) -> None:
    client.set(QUEUE, {"visibility_timeout_s": 3_000})
    found = recommended(client, lognormal(8.0, 5_000, timeout_s=3_000.0, crash_rate=0.003))
    apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS)
    assert found.recommended_s is not None
    assert found.recommended_s < timeout_s(client) == 1_000


def test_apply_is_idempotent_once_the_recommendation_is_reached(client: HttpQueueClient, tmp_path: Path) -> None:
    """This takes two steps."""
    for _ in range(2):
        apply(client, [recommended(client, SLOW)], record=tmp_path / "changes", at_ms=AT_MS)
    again = recommended(client, SLOW)
    assert again.keeps
    assert again.gain == 0
    assert apply(client, [again], record=tmp_path / "changes", at_ms=AT_MS) == []


def test_a_queue_that_was_changed_meanwhile_is_not_changed(client: HttpQueueClient, tmp_path: Path) -> None:
    found = recommended(client, SLOW)
    client.set(QUEUE, {"visibility_timeout_s": 45})
    assert apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS) == []
    assert timeout_s(client) == 45


@pytest.mark.parametrize(
    "other",
    [{"queue": "222222222222/jobs"}, {"queue": "000000000000/gone"}, {"key": "a"}, {"confidence": Confidence.LOW}],
    ids=["of-others", "gone", "key", "low-confidence"],
)
def test_other_accounts_missing_queues_keys_and_low_confidence_are_skipped(
    client: HttpQueueClient, tmp_path: Path, other: dict[str, Any]
) -> None:
    found = dataclasses.replace(recommended(client, SLOW), **other)
    assert apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS) == []
    assert timeout_s(client) == 30


def test_longer_timeouts_are_tried_only_with_explore(client: HttpQueueClient, tmp_path: Path) -> None:
    """If consumers give up at the deadline, only a longer one gives more data."""
    found = recommended(client, lognormal(20.0, 5000, finishing=False))
    assert apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS) == []
    (change,) = apply(client, [found], record=tmp_path / "changes", at_ms=AT_MS, explore=True)
    assert (found.explore_s or 0) > 90
    assert timeout_s(client) == change.after_s == 90


def test_a_dry_run_changes_nothing_and_undo_reverts_the_last_run_once(client: HttpQueueClient, tmp_path: Path) -> None:
    record = tmp_path / "changes"
    (would,) = apply(client, [recommended(client, SLOW)], record=record, at_ms=AT_MS, dry_run=True)
    assert (would.after_s, timeout_s(client), record.exists()) == (90, 30, False)
    for at_ms in (AT_MS, AT_MS + 1000):
        assert undo(client, record=record, at_ms=at_ms) == []
        apply(client, [recommended(client, SLOW)], record=record, at_ms=at_ms)
        assert timeout_s(client) == 90
        record.write_bytes(record.read_bytes() + b'{"at_ms":17')  # torn by a kill or a full disk
        (undone,) = undo(client, record=record, at_ms=at_ms + 1)
        assert (undone.before_s, undone.after_s, undone.undoes_ms) == (90, 30, at_ms)
        assert timeout_s(client) == 30
    assert len(record.read_bytes().splitlines()) == 6


@pytest.mark.parametrize("later_ms", [1, -1], ids=["later", "by-a-clock-set-back"])
def test_undo_reverts_only_the_last_run(client: HttpQueueClient, tmp_path: Path, later_ms: int) -> None:
    """The run before it changed another queue."""
    record = tmp_path / "changes"
    (first,) = apply(client, [recommended(client, SLOW)], record=record, at_ms=AT_MS)
    client.create_queue("other", {"visibility_timeout_s": 60})
    (other,) = settings_of(client, ["other"])
    second = msgspec.structs.replace(first, queue=other, before_s=45, after_s=60, at_ms=AT_MS + later_ms)
    record.write_bytes(record.read_bytes() + msgspec.json.encode(second) + b"\n")
    assert [each.queue for each in undo(client, record=record, at_ms=AT_MS + 2)] == [other]
    assert (timeout_s(client), client.show("other").settings.visibility_timeout_s) == (90, 45)


def test_undo_skips_a_queue_that_was_changed_since(client: HttpQueueClient, tmp_path: Path) -> None:
    apply(client, [recommended(client, SLOW)], record=tmp_path / "changes", at_ms=AT_MS)
    client.set(QUEUE, {"visibility_timeout_s": 45})
    assert undo(client, record=tmp_path / "changes", at_ms=AT_MS + 1) == []
    assert timeout_s(client) == 45


def test_settings_are_read_from_the_queues(client: HttpQueueClient) -> None:
    client.create_queue("dead")
    client.set(QUEUE, {"dead_letter_queue": "dead", "receives_max": 3})
    ((queue, settings),) = settings_of(client, [QUEUE]).items()
    assert (settings.visibility_timeout_s, settings.receives_max) == (30, 3)
    assert queue.endswith("/jobs")


def test_recommendations_routing_table_and_report_use_one_state(spark: SparkSession, tmp_path: Path) -> None:
    """With an empty log there is no recommendation, and the report has no queue. The report is self-contained."""
    log, state, page_at = ExportedLog(tmp_path / "log {1}"), str(tmp_path / "state [1]"), tmp_path / "report.html"
    settings = {"1/jobs": QueueSettings(visibility_timeout_s=60)}
    assert tune(spark, events=log.events, state=state, settings=settings) == ()
    page = report(spark, state=state, path=page_at, at_ms=0).read_text(encoding="utf-8")
    assert content(page)["queues"] == []

    crashed = [row(Outcome.EXPIRED, 30_000, key=key) for key in ("fast", "slow")]
    log.export_rows(worked() + crashed, node="a0000001")
    tuned = tune(spark, events=log.events, state=state, settings=settings)
    assert [(each.queue, each.key, each.current_s) for each in tuned] == [
        ("1/jobs", None, 60), ("1/jobs", "fast", 60), ("1/jobs", "slow", 60),
    ]  # fmt: skip
    written = read_parquet(spark.read, f"{state}/recommendations")
    assert tuple(written.columns) == COLUMNS
    assert [each["recommended_s"] for each in rows_of(tuned)] == [each.recommended_s for each in tuned]

    path = tmp_path / "routes.json"
    table = route_table(spark, state=state, queue="jobs", path=path, classes=ClassOptions(classes=2))
    assert table == msgspec.json.decode(path.read_bytes(), type=RoutingTable)
    assert table.version == 1
    assert [each.queue for each in table.classes] == ["jobs-class-1", "jobs-class-2"]
    assert (table.keys, table.default) == ({"fast": 0, "slow": 1}, 1)
    assert 3 <= table.classes[0].visibility_timeout_s < 10 < table.classes[1].visibility_timeout_s
    with pytest.raises(PipelineFailed, match=r"The queue other has too few receipts .* or correct the name or --state"):
        route_table(spark, state=state, queue="other")

    page = report(spark, state=state, path=page_at, at_ms=0, settings=settings).read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script src|<link|@import|<img", page)
    (queue,) = content(page)["queues"]
    assert queue["name"] == "jobs"
    assert [row[-1] for row in (queue["row"], *queue["keys"])] == [each.reason for each in tuned]
    assert [len(queue[chart]["lines"]) for chart in ("work", "cost", "days", "waits")] == [3, 4, 2, 2]


def work_beyond_its_timeout(events: Path, stale_receipts: str) -> None:
    """Process 400 messages for 0.5 to 20 s with a timeout of 10 s and late deletes.

    Messages that expire at 10 s are received again at once, and the second consumer takes 20 s.
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


def test_the_log_determines_whether_the_cost_is_with_or_without_fencing(spark: SparkSession, tmp_path: Path) -> None:
    """A short timeout costs less if earlier receipts delete."""
    found = {}
    for stale_receipts in ("fenced", "act"):
        events = tmp_path / stale_receipts
        work_beyond_its_timeout(events, stale_receipts)
        tuned = tune(spark, events=str(events / "receipt_closed"), state=str(tmp_path / f"state-{stale_receipts}"))
        found[stale_receipts] = tuned[0]
    fenced, act = found["fenced"], found["act"]
    assert (fenced.current_s, act.current_s) == (10, 10)
    assert fenced.first_receipts == act.first_receipts == 400
    assert fenced.rates.duplicate == act.rates.duplicate > 0.4
    assert fenced.cost_current is not None
    assert act.cost_current is not None
    assert fenced.cost_current > 5 * act.cost_current
    assert act.cost_recommended == pytest.approx(fenced.cost_recommended, rel=0.2)
    report(spark, state=str(tmp_path / "state-act"), path=tmp_path / "report.html", at_ms=0, title="t")
    with pytest.raises(PipelineFailed, match=r"nothing is not a state of tune: run `veilmq pipeline tune` first"):
        report(spark, state=str(tmp_path / "nothing"), path=tmp_path / "none.html", at_ms=0)
    assert not (tmp_path / "none.html").exists()


def test_two_hundred_queues_are_one_small_file() -> None:
    """The worst queue is first. In a file of limited size, only the worst queues have the reasons of their keys."""
    queues = made_queues(QUEUES)
    text = page(queues, title="Timeouts & more", at_ms=0, options=DEFAULTS)
    assert len(text.encode()) <= BYTES_MAX == 600_000
    assert not re.search(r"https?:|<link|@import|<img|<script src", text)
    assert "<title>Timeouts &amp; more</title>" in text
    found = content(text)["queues"]
    assert [each["lost"] for each in found] == sorted((each["lost"] for each in queues), reverse=True)
    assert sum(len(each["keys"]) for each in found) == QUEUES * KEYS
    assert all(each["row"][-1] for each in found)
    with_reasons = [all(row[-1] for row in each["keys"]) for each in found]
    assert with_reasons == sorted(with_reasons, reverse=True)
    assert with_reasons[0]

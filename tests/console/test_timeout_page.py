"""Processing times and the recommended visibility timeout on the page of a queue, and applying it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.console.visitor import Seen, Visitor
from tests.server.keys import OWNER, REGION, client, set_policy, written
from veilmq.client import HttpQueueClient
from veilmq.testing import RunningServer

QUEUE = "/console/queues/000000000000/jobs"


def recommend(folder: Path, *, queue: str = "000000000000/jobs", **fields: Any) -> None:
    """Write recommendations as ``veilmq pipeline tune`` does, for a queue and for one of its keys."""
    row = {"queue": queue, "current_s": 30, "recommended_s": 75, "explore_s": None, "change": True}
    row |= {"confidence": "high", "reason": "5 % of the messages took longer."} | fields
    rows = [{**row, "key": "slow", "recommended_s": 999}, {**row, "key": None}]
    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.Table.from_pylist(rows), folder / "part-0.snappy.parquet")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(events_to=str(tmp_path / "events"), recommendations=tmp_path / "recommendations") as running:
        running.queue("jobs", visibility_timeout_s=30)
        yield running


def timeout_s(server: RunningServer) -> int:
    with HttpQueueClient(server.endpoint) as queues:
        return queues.show("jobs").settings.visibility_timeout_s


def apply(server: RunningServer, recommended_s: str = "75") -> Seen:
    with Visitor(server) as visitor:
        return visitor.post(QUEUE, at="/console/queues/new", recommended_s=recommended_s)


def test_the_page_draws_processing_times_and_timeouts(server: RunningServer, tmp_path: Path) -> None:
    recommend(tmp_path / "recommendations")
    with HttpQueueClient(server.endpoint) as queues:
        for _ in range(3):
            queues.send("jobs", "m")
            (held,) = queues.receive("jobs")
            server.advance(4_000)
            queues.delete("jobs", held.receipt)
    with Visitor(server) as visitor:
        server.advance(61_000)
        server.wait_until(lambda: list((tmp_path / "events").rglob("*.parquet")))
        seen = visitor.get(QUEUE)
    assert "The newest 3 receipts" in seen.text
    assert "timeout 30 s" in seen.text
    assert "recommended 1 min 15 s" in seen.text
    assert "Apply 1 min 15 s" in seen.text
    assert 'class="histogram"' in seen.html


def test_a_recommendation_is_applied(server: RunningServer, tmp_path: Path) -> None:
    recommend(tmp_path / "recommendations")
    assert "The recommended timeout was set" in apply(server).text
    assert timeout_s(server) == 75
    again = apply(server)
    assert (again.status, "The queue already has this timeout" in again.text) == (409, True)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"current_s": 45}, "The queue was changed: its timeout"),
        ({"change": False}, "The improvement is too small"),
        ({"recommended_s": None, "confidence": "none"}, "not enough data for a recommendation"),
        ({"recommended_s": None, "confidence": "medium"}, "No other timeout is clearly better"),
        ({"recommended_s": 80}, "The recommendation has changed"),
        ({"queue": "000000000000/other"}, "There is no recommendation for this queue"),
    ],
)
def test_an_outdated_or_missing_recommendation_is_not_applied(
    server: RunningServer, tmp_path: Path, fields: dict[str, Any], why: str
) -> None:
    recommend(tmp_path / "recommendations", **fields)
    refused = apply(server)
    assert (refused.status, why in refused.text) == (409, True)
    assert timeout_s(server) == 30


def test_the_page_names_the_settings_for_recommendations() -> None:
    with RunningServer() as server, Visitor(server) as visitor:
        server.queue("jobs")
        text = visitor.get(QUEUE).text
        assert "--events-to" in text
        assert "--recommendations" in text


def test_applying_a_recommendation_needs_permission(tmp_path: Path) -> None:
    recommend(tmp_path, queue=f"{OWNER}/jobs")
    carol, page = f"arn:aws:iam::{OWNER}:user/carol", f"/console/queues/{OWNER}/jobs"
    denial = {"Effect": "Deny", "Principal": {"AWS": carol}, "Action": "sqs:SetQueueAttributes"}
    keys = written(tmp_path / "keys.toml")
    with RunningServer(credentials=keys, region=REGION, recommendations=tmp_path) as server:
        owner = client(server)
        url = owner.create_queue(QueueName="jobs")["QueueUrl"]
        set_policy(owner, url, {**denial, "Resource": f"arn:aws:sqs:{REGION}:{OWNER}:jobs"})
        with Visitor(server, key="AKIDCAROL") as visitor:
            assert visitor.post(page, at=page, recommended_s="75").status == 403
        found = owner.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])
        assert found["Attributes"]["VisibilityTimeout"] == "30"

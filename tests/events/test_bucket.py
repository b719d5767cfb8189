"""The event log in a bucket: a server exports to it while S3 is killed, and jobs read it (`make test-all`)."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
import urllib3
from pyarrow import dataset, fs

from tests.bucket import S3Server
from tests.pipeline.closed import ExportedLog, run_jobs, worked
from tests.pipeline.made_report import content
from tests.proofs.served import ServedFolder
from veilmq.client import HttpQueueClient

ROUNDS, BATCH = 24, 10
KILL_AT, RESTART_AT = 8, 16


@pytest.fixture
def served(s3: S3Server, bucket: str, tmp_path: Path) -> Iterator[ServedFolder]:
    """A server that exports small ranges to the bucket every second."""
    options = ("--events-to", f"{bucket}/log", "--events-period-s", "1", "--events-per-file", "40")
    server = ServedFolder(tmp_path / "store", *options)
    server.start()
    yield server
    server.stop()


def failures(server: ServedFolder) -> int:
    text = urllib3.request("GET", f"{server.admin_endpoint}/metrics").data.decode()
    (line,) = [line for line in text.splitlines() if line.startswith("veilmq_event_export_failures_total ")]
    return int(float(line.split()[1]))


def flush(server: ServedFolder) -> None:
    """Retry until everything is exported."""
    until_s = time.monotonic() + 60
    while urllib3.request("POST", f"{server.admin_endpoint}/events/flush").status != 200:
        assert time.monotonic() < until_s


def work(server: ServedFolder, s3: S3Server) -> None:
    """Process messages while S3 is killed and restarted."""
    with HttpQueueClient(server.endpoint) as client:
        client.create_queue("jobs", {"visibility_timeout_s": 30})
        for turn in range(ROUNDS):
            for number in range(BATCH):
                client.send("jobs", str(number))
            client.delete_batch("jobs", [each.receipt for each in client.receive("jobs", count=BATCH)])
            if turn == KILL_AT - 1:
                flush(server)
            if turn == KILL_AT:
                s3.kill()
                until_s = time.monotonic() + 60
                while not failures(server):
                    assert time.monotonic() < until_s
            if turn == RESTART_AT:
                s3.start()


def run(folder: Path, s3: S3Server, *jobs: list[str]) -> str:
    settings = [word for name, value in s3.settings.items() for word in ("--conf", f"{name}={value}")]
    return run_jobs(folder, ([*job, "--endpoint", "http://127.0.0.1:1", *settings] for job in jobs))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_log_in_a_bucket_has_each_event_once_and_serves_jobs(
    served: ServedFolder, s3: S3Server, bucket: str, tmp_path: Path
) -> None:
    """No event is lost or doubled while S3 is down; state, table and report are read from the bucket."""
    work(served, s3)
    flush(served)
    place = f"{bucket}/log/receipt_closed"
    filesystem, path = fs.FileSystem.from_uri(place)
    events = dataset.dataset(path, filesystem=filesystem, partitioning="hive").to_table()["event"].to_pylist()
    assert sorted(events) == list(range(1, ROUNDS * BATCH + 1))
    found = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    assert [info.path for info in found if "tmp" in info.path] == []
    kept = boto3.client("s3").list_objects_v2(Bucket=bucket.removeprefix("s3://"), Prefix="log/")["Contents"]
    assert not any("-" in each["ETag"] for each in kept), "each file was one request, not an upload in parts"

    received_at = datetime.now(tz=UTC) - timedelta(minutes=1)  # older days would outweigh it
    made = worked(received_at=received_at)
    files = ExportedLog(f"{bucket}/log").export_rows(made, node="b0000002")
    tune = ["tune", "--events", place, "--state", f"{bucket}/state", "--json"]
    output = run(
        tmp_path, s3, tune, tune,
        ["route-table", "1/jobs", "--state", f"{bucket}/state", "--to", "routes.json"],
        ["report", "--state", f"{bucket}/state", "--to", "report.html"],
    )  # fmt: skip
    advice, again = (json.loads(part + "]") for part in output.split("]\n")[:2])
    receipts = {each["queue"]: each["receipts"] for each in advice if each["key"] is None}
    assert receipts == pytest.approx({"000000000000/jobs": ROUNDS * BATCH, "1/jobs": len(made)}, rel=0.1)
    assert advice == again
    counted = dataset.dataset(f"{bucket.removeprefix('s3://')}/state/files", filesystem=filesystem).count_rows()
    assert counted == len([info for info in found if info.path.endswith(".parquet")]) + len(files)
    assert json.loads((tmp_path / "routes.json").read_bytes())["version"] == 1
    queues = content((tmp_path / "report.html").read_text(encoding="utf-8"))["queues"]
    assert {each["row"][-1] for each in queues} == {each["reason"] for each in advice if each["key"] is None}

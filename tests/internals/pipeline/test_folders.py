"""Folders and URLs for Spark, and the jobs with a bucket of a real S3 server (``make test-all``)."""

import re
import threading
from pathlib import Path

import boto3
import msgspec
import pytest
from botocore.exceptions import ClientError
from deltalake import DeltaTable

from tests.bucket import S3Server
from tests.client.traffic import drained, left, send_in_order
from tests.conftest import need_java
from tests.internals.pipeline.test_elsewhere import run
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.core.messages import Attribute
from veilmq.core.settings import RoutingTable, TimeoutClass
from veilmq.pipeline.archive_table import ArchiveTable
from veilmq.pipeline.folders import Place, located
from veilmq.pipeline.session import PipelineFailed
from veilmq.testing import RunningServer


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        pytest.param("state", "{here}/state", id="relative"),
        pytest.param("./a/state/", "{here}/a/state", id="dot"),
        pytest.param("/mnt/state/", "/mnt/state", id="absolute"),
        pytest.param("s3a://bucket/state/", "s3a://bucket/state", id="url"),
        pytest.param("file:/mnt/state", "file:/mnt/state", id="file"),
    ],
)
def test_a_relative_folder_is_relative_to_the_working_directory(
    place: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert located(place) == expected.format(here=tmp_path)


def test_a_file_is_synced_before_its_rename_and_its_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan of a replay must not be empty or missing after a power failure."""
    synced: list[tuple[Path, bool]] = []
    file = tmp_path / "place" / "folder" / "file"
    monkeypatch.setattr("veilmq.events.exporter.sync", lambda path: synced.append((Path(path), file.exists())))
    Place.at(tmp_path / "place").write("folder/file", b"content")
    (written, *named), existed = zip(*synced, strict=True)
    assert written.match("folder/_file.*.tmp")
    assert named == [file.parent, tmp_path / "place", tmp_path]
    assert existed == (False, True, True, True)
    assert file.read_bytes() == b"content"


def test_one_of_several_concurrent_writers_creates_the_object(s3: S3Server, bucket: str) -> None:
    """The log of the archive table requires this of the bucket (``If-None-Match: *``)."""
    outcomes: list[str] = []
    start = threading.Barrier(8)
    name = bucket.removeprefix("s3://")

    def write(number: int) -> None:
        client = boto3.session.Session().client("s3")
        start.wait()
        try:
            client.put_object(Bucket=name, Key="log/0", Body=str(number).encode(), IfNoneMatch="*")
            outcomes.append(str(number))
        except ClientError as error:
            outcomes.append(error.response["Error"]["Code"])

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    written = [outcome for outcome in outcomes if outcome.isdigit()]
    assert len(written) == 1
    assert sorted(outcomes)[1:] == ["PreconditionFailed"] * 7
    content = boto3.client("s3").get_object(Bucket=name, Key="log/0")["Body"].read()
    assert content.decode() == written[0]


@pytest.mark.parametrize(
    ("place", "secret", "reason"),
    [
        pytest.param("s3://no-such-bucket/archive", None, "The specified bucket does not exist", id="bucket"),
        pytest.param("{bucket}/archive", "wrong", "request signature", id="keys"),
        pytest.param("{bucket}/archive", None, "has no archive", id="empty"),
    ],
)
def test_an_error_names_the_location_and_the_reason(
    bucket: str, place: str, secret: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if secret is not None:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    location = place.format(bucket=bucket)
    with pytest.raises(PipelineFailed, match=f"^{re.escape(location)} .*{reason}.*$"):
        ArchiveTable(location).snapshot()


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_restarted_jobs_continue_from_the_bucket(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """The bucket has the table, the checkpoints and the plan of a replay."""
    need_java()
    classes = tuple(TimeoutClass(name=name, visibility_timeout_s=60, queue=name) for name in ("short", "long"))
    routes = RoutingTable(version=1, classes=classes, keys={"a": 0}, default=1)
    (tmp_path / "routes.json").write_bytes(msgspec.json.encode(routes))
    table = f"s3a{bucket.removeprefix('s3')}/archive"  # Hadoop's scheme
    where = ["--master", "local[2]", "--conf", f"spark.jars={s3.settings['spark.jars']}"]
    kinds = {f"{kind}{number}": kind for number in range(10) for kind in "ab"}
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        for queue in ("orders", "intake", "again"):
            client.create_queue(queue)
        for queue in ("orders", "intake"):
            messages = [
                NewMessage(body=body, attributes={"Type": Attribute(type="String", text=kind)})
                for body, kind in kinds.items()
            ]
            send_in_order(client, queue, messages)
        here = [*where, "--endpoint", server.endpoint]
        archive = ["archive", "orders", "--table", table, "--batch", "5"]
        route = ["route", "intake", "--table", "routes.json", "--checkpoint", f"{bucket}/route", "--create"]
        replay = ["replay", "again", "--table", table, "--run", "one"]
        output = run(tmp_path, here, archive, archive, route, route, replay, replay)
        assert output.splitlines() == [
            "orders: 20 messages archived",
            "orders: 0 messages archived",
            "intake: 20 messages forwarded",
            "intake: 0 messages forwarded",
            "again: 20 messages replayed",
            "again: 20 messages replayed, 20 of them earlier",
        ]
        assert sorted(message.body for message in drained(client, "again")) == sorted(kinds)
        assert sorted(message.body for message in drained(client, "short")) == sorted(f"a{n}" for n in range(10))
        assert (left(client, "orders"), left(client, "intake")) == ((0, 0), (0, 0))
    assert [file.name for file in tmp_path.iterdir()] == ["routes.json"], "everything else is in the bucket"
    assert len(DeltaTable(f"{bucket}/archive").file_uris()) == 1

"""The jobs on a Spark cluster and a Spark Connect server, and the declarative pipeline of the examples."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyspark
import pytest

from tests.client.traffic import drained, left, send_in_order
from tests.conftest import EVERYTHING, need_java
from tests.internals.pipeline.test_archive_table import written
from tests.internals.proofs.standalone import Standalone
from tests.pipeline.closed import HELD_MS, row, run_jobs, worked
from tests.pipeline.made_report import content
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.core.messages import Attribute
from veilmq.core.receipts import Outcome
from veilmq.core.settings import RoutingTable, TimeoutClass
from veilmq.events.parquet import SCHEMA
from veilmq.pipeline.archive_table import ArchiveTable
from veilmq.testing import RunningServer

SPARK_HOME = Path(pyspark.__file__).parent
CONNECT_MAIN = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_S_MAX = 120.0
CONNECT = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
_STARTED = re.compile(r"Spark Connect server started at: (\S+:\d+)")


class ConnectServer:
    """A context manager that runs a server, at ``remote``, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._started_or_ended = threading.Event()
        self.remote = ""

    def __enter__(self) -> Self:
        self._folder.mkdir()
        settings = [word for name, value in CONNECT.items() for word in ("--conf", f"{name}={value}")]
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", CONNECT_MAIN, "--master", "local[2]", *settings]
        environment = os.environ | {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable}
        self._process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read_output, name="connect-server", daemon=True)
        self._reader.start()
        self._started_or_ended.wait(START_S_MAX)
        started = _STARTED.search(self.output())
        if started is None:
            self._end()
            pytest.fail(f"Spark Connect did not start: {self.output()}")
        self.remote = f"sc://{started[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def output(self) -> str:
        return "".join(self._lines)

    def _read_output(self) -> None:
        """Read the output to its end, so that the server never blocks on the pipe."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line)
                if _STARTED.search(line):
                    self._started_or_ended.set()
        self._started_or_ended.set()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()


pytestmark = [EVERYTHING, pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

MESSAGES = 60
CRASHED = 20
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of Java for a fast start."""
CLUSTER = (
    "spark.driver.host=127.0.0.1",
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
    "spark.sql.codegen.wholeStage=false",
)


@pytest.fixture(scope="module", params=["cluster", "connect"])
def where(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    need_java()
    folder = tmp_path_factory.mktemp("place") / request.param
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
        if request.param == "cluster":
            with Standalone(folder, workers=1) as cluster:
                yield ["--master", cluster.master, *(word for each in CLUSTER for word in ("--conf", each))]
        else:
            with ConnectServer(folder) as server:
                yield ["--remote", server.remote]


def run(folder: Path, where: Sequence[str], *jobs: Sequence[str]) -> str:
    return run_jobs(folder, ([*words, *where] for words in jobs))


def export(folder: Path) -> None:
    """Write the event log of a queue with fast and slow work."""
    rows = worked() + [row(Outcome.EXPIRED, 30_000, key="fast")] * CRASHED
    hour = folder / "date=2026-01-01" / "hour=12"
    hour.mkdir(parents=True)
    table = pa.Table.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in rows], schema=SCHEMA)
    pq.write_table(table, hour / "one.parquet")


def test_tune_route_table_and_report(where: Sequence[str], tmp_path: Path) -> None:
    """Relative folders are relative to the working directory of the job."""
    export(tmp_path / "events")
    shared = ["--state", "state", "--endpoint", "http://127.0.0.1:1"]
    output = run(
        tmp_path,
        where,
        ["tune", "--events", "events", "--json", *shared],
        ["route-table", "jobs", "--to", "routes.json", "--classes", "2", *shared],
        ["report", "--to", "report.html", *shared],
    )
    recommended = json.loads(output[output.index("[") : output.rindex("]") + 1])
    assert [(each["queue"], each["key"]) for each in recommended] == [
        ("1/jobs", None), ("1/jobs", "fast"), ("1/jobs", "slow"),
    ]  # fmt: skip
    assert recommended[0]["receipts"] == sum(map(len, HELD_MS.values())) + CRASHED
    assert recommended[1]["recommended_s"] < 10
    assert (recommended[2]["recommended_s"], recommended[2]["reason"].split(":")[0]) == (None, "keep 30 s")
    written = pq.read_table(tmp_path / "state" / "recommendations")["recommended_s"].to_pylist()
    assert written == [each["recommended_s"] for each in recommended]
    table = msgspec.json.decode((tmp_path / "routes.json").read_bytes(), type=RoutingTable)
    assert (table.keys, len(table.classes)) == ({"fast": 0, "slow": 1}, 2)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    (queue,) = content(page)["queues"]
    assert queue["row"][-1] == recommended[0]["reason"]


def test_route_and_replay(where: Sequence[str], tmp_path: Path) -> None:
    """Each message is sent once. (A proof tests ``archive`` on a cluster.)"""
    classes = tuple(TimeoutClass(name=name, visibility_timeout_s=60, queue=name) for name in ("short", "long"))
    table = RoutingTable(version=1, classes=classes, keys={"a": 0}, default=1)
    (tmp_path / "routes.json").write_bytes(msgspec.json.encode(table))
    sent = {f"{kind}{number}": kind for number in range(MESSAGES // 2) for kind in "ab"}
    archive = ArchiveTable(tmp_path / "archive")
    archive.create()
    kept = [f"m{number}" for number in range(MESSAGES)]
    archive.commit(writer="w", batch=0, files=[written(archive, kept)])
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        for queue in ("intake", "again"):
            client.create_queue(queue)
        send_in_order(client, "intake", [message(body, kind) for body, kind in sent.items()])
        route = ["route", "intake", "--table", "routes.json", "--checkpoint", "checkpoint", "--create", "--batch", "40"]
        replay = ["replay", "again", "--table", "archive", "--run", "one"]
        output = run(tmp_path, where, *([*words, "--endpoint", server.endpoint] for words in (route, replay)))
        assert output.splitlines() == [f"intake: {MESSAGES} messages forwarded", f"again: {MESSAGES} messages replayed"]
        assert left(client, "intake") == (0, 0)
        assert sorted(each.body for each in drained(client, "again")) == sorted(f"body of {each}" for each in kept)
        for queue, expected in (("short", "a"), ("long", "b")):
            bodies = [each.body for each in drained(client, queue)]
            assert sorted(bodies) == sorted(body for body, kind in sent.items() if kind == expected)


def message(body: str, kind: str) -> NewMessage:
    return NewMessage(body=body, attributes={"Type": Attribute(type="String", text=kind)})


FORWARD = """
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

def forward(batch, number):
    batch.select("body").write.format("veilmq").options(endpoint=ENDPOINT, **OPTIONS).mode("append").save("out")

spark = SparkSession.builder.remote(REMOTE).getOrCreate()
rows = spark.readStream.format("veilmq").options(endpoint=ENDPOINT, maxMessagesPerBatch="10").load("in")
writer = rows.writeStream.foreachBatch(forward).option("checkpointLocation", CHECKPOINT).trigger(availableNow=True)
query = writer.start()
try:
    query.awaitTermination(120)
except PySparkException as error:
    print(error)
"""


@pytest.mark.parametrize("where", ["connect"], indirect=True)
def test_write_in_a_foreach_batch_on_spark_connect(where: Sequence[str], tmp_path: Path) -> None:
    """Spark passes no batch number to it: with a name it is refused, because only the first batch would be sent."""
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        for queue in ("in", "out"):
            client.create_queue(queue)
        sent = [f"m{number}" for number in range(30)]
        send_in_order(client, "in", [message(body, "a") for body in sent])
        values = {"ENDPOINT": server.endpoint, "REMOTE": where[1], "CHECKPOINT": str(tmp_path / "checkpoint")}
        outputs = []
        for options in ({"writer": "forward"}, {}):
            lines = [f"{name} = {value!r}" for name, value in (values | {"OPTIONS": options}).items()]
            command = [sys.executable, "-c", "\n".join([*lines, FORWARD])]
            done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
            outputs.append(done.stdout)
        assert "option writer: in foreachBatch" in outputs[0]
        assert outputs[1] == ""
        assert left(client, "in") == (0, 0)
        assert sorted(each.body for each in drained(client, "out")) == sorted(sent)


ORDERS = 40


def test_the_declarative_pipeline_of_the_examples(tmp_path: Path) -> None:
    """Each message of the queue is moved to a table once, and the event log is counted into histograms."""
    need_java()
    spec = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "declarative", spec)
    events = tmp_path / "events"
    events.mkdir()
    ended = [row(Outcome.DELETED, 1_000), row(Outcome.EXPIRED, 30_000, receipt=2)]
    rows = [dict(zip(SCHEMA.names, each, strict=True)) for each in ended]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), events / "one.parquet")
    with RunningServer() as server, HttpQueueClient(server.endpoint) as client:
        client.create_queue("orders")
        for start in range(0, ORDERS, 10):
            client.send_batch("orders", [NewMessage(body=str(start + number)) for number in range(10)])
        text = (spec / "spark-pipeline.yml").read_text(encoding="utf-8")
        text = text.replace("http://127.0.0.1:9324", server.endpoint).replace("./events/receipt_closed", str(events))
        text = text.replace("file:///tmp/veilmq-declarative", f"file://{tmp_path}")
        (spec / "spark-pipeline.yml").write_text(text, encoding="utf-8")
        run_declarative(spec, tmp_path)
        assert client.show("orders").visible == 0
    warehouse = tmp_path / "warehouse"
    messages = ds.dataset(warehouse / "messages", format="parquet", exclude_invalid_files=True).to_table()
    assert sorted(messages["body"].to_pylist(), key=int) == [str(number) for number in range(ORDERS)]
    days = ds.dataset(warehouse / "days", format="parquet", exclude_invalid_files=True).to_table().to_pylist()
    assert {each["outcome"]: each["n"] for each in days} == {"deleted": 1, "expired": 1}


def run_declarative(spec: Path, folder: Path) -> None:
    home = Path(pyspark.__file__).parent
    done = subprocess.run(
        [
            str(home / "bin" / "spark-pipelines"),
            *("run", "--spec", str(spec / "spark-pipeline.yml"), "--remote", "local[2]"),
            *("--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}", "--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"),
        ],
        cwd=folder,
        env=os.environ | {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]

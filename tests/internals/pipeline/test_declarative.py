"""The declarative pipeline of the examples, run by Spark's own program."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pyspark
import pytest

from tests.conftest import EVERYTHING, need_java
from tests.pipeline.closed import row
from tests.tidy.tree import ROOT
from veilmq.client import HttpQueueClient, NewMessage
from veilmq.core.receipts import Outcome
from veilmq.events.parquet import SCHEMA
from veilmq.testing import RunningServer

pytestmark = [EVERYTHING, pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

MESSAGES = 40


def test_the_declarative_pipeline_of_the_examples(tmp_path: Path) -> None:
    """The queue ends up in a table, each message once, and the event log in histograms; the queue is empty then."""
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
        for start in range(0, MESSAGES, 10):
            client.send_batch("orders", [NewMessage(body=str(start + number)) for number in range(10)])
        text = (spec / "spark-pipeline.yml").read_text(encoding="utf-8")
        text = text.replace("http://127.0.0.1:9324", server.endpoint).replace("./events/receipt_closed", str(events))
        text = text.replace("file:///tmp/veilmq-declarative", f"file://{tmp_path}")
        (spec / "spark-pipeline.yml").write_text(text, encoding="utf-8")
        run(spec, tmp_path)
        assert client.show("orders").visible == 0
    warehouse = tmp_path / "warehouse"
    messages = ds.dataset(warehouse / "messages", format="parquet", exclude_invalid_files=True).to_table()
    assert sorted(messages["body"].to_pylist(), key=int) == [str(number) for number in range(MESSAGES)]
    days = ds.dataset(warehouse / "days", format="parquet", exclude_invalid_files=True).to_table().to_pylist()
    assert {each["outcome"]: each["n"] for each in days} == {"deleted": 1, "expired": 1}


def run(spec: Path, folder: Path) -> None:
    """Run the pipeline whose specification is in `spec`."""
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

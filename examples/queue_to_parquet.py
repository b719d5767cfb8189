"""Store all messages of a queue in a folder of Parquet files, exactly once.

    python examples/queue_to_parquet.py --queue orders --folder ./lake [--endpoint http://127.0.0.1:9324] [--once]

The program can be killed and restarted at any time: the folder has each message once. With --once, it ends after the
messages that are visible at its start. --dashboard PORT serves metrics of the stream for Prometheus. Needs Java 17 and
pip install 'veilmq[spark]' prometheus-client.
"""

import argparse
import json
import os
import sys

from prometheus_client import Gauge, start_http_server
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's usual name
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


class Dashboard(StreamingQueryListener):
    """Serves metrics of the stream for Prometheus or Grafana at ``http://127.0.0.1:PORT/metrics``."""

    def __init__(self, port: int) -> None:
        self._gauge = Gauge("veilmq_stream", "State of queue and stream, in messages and seconds.", ["figure"])
        start_http_server(port, "127.0.0.1")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's names
        """Export the metrics of the source: backlog, oldestAgeSeconds, claimed, acknowledged, duplicatesKeptAway."""
        for source in event.progress.sources:
            for figure, value in json.loads(source.latestOffset or "{}").items():
                self._gauge.labels(figure).set(value)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Keep the last metrics."""


def main() -> None:
    parser = argparse.ArgumentParser(description="Store all messages of a queue in a folder of Parquet files.")
    parser.add_argument("--endpoint", default="http://127.0.0.1:9324")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--once", action="store_true", help="end after the messages that are visible now")
    parser.add_argument("--dashboard", type=int, metavar="PORT", help="port that serves metrics for Prometheus")
    arguments = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers need veilmq too
    spark = SparkSession.builder.appName("queue to Parquet").getOrCreate()
    if arguments.dashboard:
        spark.streams.addListener(Dashboard(arguments.dashboard))
    messages = spark.readStream.format("veilmq").option("endpoint", arguments.endpoint).load(arguments.queue)
    writer = (
        messages.withColumn("date", F.to_date("sent_at"))
        .writeStream.format("parquet")
        .partitionBy("date")
        .option("path", f"{arguments.folder}/messages")
        .option("checkpointLocation", f"{arguments.folder}/checkpoint")  # keep it as long as the folder
    )
    query = (writer.trigger(availableNow=True) if arguments.once else writer).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()

"""Keep all messages of a queue in a folder of Parquet files, exactly once.

    python examples/queue_to_parquet.py --queue orders --folder ./lake [--endpoint http://127.0.0.1:9324] [--once]

Stop it and start it again, kill it if you like: what was sent is in the folder once. With --once it ends when what was
there at the start is kept; without, it goes on until it is stopped. Needs Java 17 and pip install 'veilmq[spark]'
prometheus-client. --dashboard PORT serves the figures of the stream for Prometheus.
"""

import argparse
import json
import os
import sys

from prometheus_client import Gauge, start_http_server
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's own examples have it
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)


class Dashboard(StreamingQueryListener):
    """What a dashboard of Prometheus or Grafana shows of the stream, at ``http://127.0.0.1:PORT/metrics``."""

    def __init__(self, port: int) -> None:
        """Serve it."""
        self._gauge = Gauge("veilmq_stream", "How queue and stream stand, in messages and seconds.", ["figure"])
        start_http_server(port, "127.0.0.1")

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's names
        """Take what the source reports: backlog, oldestAgeSeconds, claimed, acknowledged, duplicatesKeptAway."""
        for source in event.progress.sources:
            for figure, value in json.loads(source.latestOffset or "{}").items():
                self._gauge.labels(figure).set(value)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Nothing is known yet."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """The last figures stay."""


def main() -> None:
    """Run the stream."""
    parser = argparse.ArgumentParser(description="Keep all messages of a queue in a folder of Parquet files.")
    parser.add_argument("--endpoint", default="http://127.0.0.1:9324")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--once", action="store_true", help="end when what is there now is kept")
    parser.add_argument("--dashboard", type=int, metavar="PORT", help="serve figures for a dashboard")
    given = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need veilmq, too
    spark = SparkSession.builder.appName("queue to Parquet").getOrCreate()
    if given.dashboard:
        spark.streams.addListener(Dashboard(given.dashboard))
    messages = spark.readStream.format("veilmq").option("endpoint", given.endpoint).load(given.queue)
    kept = (
        messages.withColumn("date", F.to_date("sent_at"))
        .writeStream.format("parquet")
        .partitionBy("date")
        .option("path", f"{given.folder}/messages")
        .option("checkpointLocation", f"{given.folder}/checkpoint")  # keep it as long as the folder
    )
    query = (kept.trigger(availableNow=True) if given.once else kept).start()
    query.awaitTermination()


if __name__ == "__main__":
    main()

"""Keep all messages of a queue in a folder of Parquet files, exactly once.

    python examples/queue_to_parquet.py --queue orders --folder ./lake [--endpoint http://127.0.0.1:9324] [--once]

Stop it and start it again, kill it if you like: what was sent is in the folder once. With --once it ends when what was
there at the start is kept; without, it goes on until it is stopped. Needs Java 17 and pip install 'veilmq[spark]'.
"""

import argparse
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's own examples have it


def main() -> None:
    """Run the stream."""
    parser = argparse.ArgumentParser(description="Keep all messages of a queue in a folder of Parquet files.")
    parser.add_argument("--endpoint", default="http://127.0.0.1:9324")
    parser.add_argument("--queue", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--once", action="store_true", help="end when what is there now is kept")
    given = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need veilmq, too
    spark = SparkSession.builder.appName("queue to Parquet").getOrCreate()
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

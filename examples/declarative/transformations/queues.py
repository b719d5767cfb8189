"""The queue and the event log as tables that Spark updates."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from veilmq.pipeline import cells as counting
from veilmq.pipeline import event_log
from veilmq.pipeline.archive import archived

spark = SparkSession.active()


@dp.table(name="messages", partition_cols=["queue", "date"])
def messages() -> DataFrame:
    """Each message of the queue, once."""
    stream = spark.readStream.format("veilmq").option("endpoint", spark.conf.get("veilmq.endpoint"))
    return archived(stream.load(spark.conf.get("veilmq.queue")))


@dp.table(name="receipts")
def receipts() -> DataFrame:
    """Each receipt that ended; each file of the event log is read once."""
    return spark.readStream.schema(event_log.SCHEMA).parquet(spark.conf.get("veilmq.events"))


@dp.materialized_view(name="cells")
def cells() -> DataFrame:
    """The histograms for the recommendations of timeouts."""
    return counting.cells(spark.read.table("receipts"))


@dp.materialized_view(name="days")
def days() -> DataFrame:
    """Outcomes of receipts by queue and day."""
    return counting.days(spark.read.table("cells"))

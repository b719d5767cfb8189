"""The few lines by which Spark finds ``format("veilmq")`` on its own: it imports modules named ``pyspark_*``."""

from veilmq.spark.datasource import VeilmqDataSource as DefaultSource

__all__ = ["DefaultSource"]

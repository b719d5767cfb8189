"""Spark: queues as tables and streams, ``format("veilmq")``. See ``docs/spark.md``."""

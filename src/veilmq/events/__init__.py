"""The exporter of the event log: Parquet files that Spark, pyarrow and others read (``docs/events.md``)."""

"""The data pipeline on Spark: archive, replay, tune, route, report. See ``docs/pipeline.md``."""

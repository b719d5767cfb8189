"""The frame that the tests on Spark stand on."""

import os
import sys

import pyspark
from pyspark.sql import SparkSession


def test_a_session_runs_python_on_its_workers(spark: SparkSession) -> None:
    """A job that needs the JVM, its workers and Python in them answers."""
    assert spark.range(4).rdd.map(lambda row: row.id * 2).collect() == [0, 2, 4, 6]
    assert spark.version >= "4.2"


def test_its_workers_are_reached_over_unix_sockets(spark: SparkSession) -> None:
    """The setting that docs/spark.md advises is one that Spark knows."""
    (said,) = spark.range(1).rdd.map(lambda _: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]).collect()
    assert said.lower() == "true"


def test_its_workers_take_pyspark_from_where_it_is_installed(spark: SparkSession) -> None:
    """Not from `pyspark.zip`, which they would compile."""
    (place,) = spark.range(1).rdd.map(lambda _: sys.modules["pyspark"].__file__).collect()
    assert place == pyspark.__file__

"""The job ``tune``: event log → cells → a recommended timeout for each queue and routing key.

The job is incremental and can run at any time: it reads only new files, and equal cells give equal recommendations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from pyspark.sql import DataFrame, SparkSession

from veilmq.core.limits import TUNE_MAP_TASKS
from veilmq.pipeline.cell_store import CellStore
from veilmq.pipeline.folders import located
from veilmq.pipeline.histograms import decayed, octaves
from veilmq.pipeline.recommendation import QueueFacts, Recommendation
from veilmq.pipeline.recommendation_table import SCHEMA, rows_of
from veilmq.pipeline.shift import shifts
from veilmq.pipeline.tallies import KeyTally, tallies
from veilmq.pipeline.tune_options import TuneOptions
from veilmq.pipeline.tuning import recommendations

DEFAULTS = TuneOptions()


@dataclass(frozen=True, slots=True)
class Tuned:
    """The result of a run: the number of new files, and the recommendations, each queue before its keys."""

    files: int
    recommendations: tuple[Recommendation, ...]


def tune(
    spark: SparkSession,
    *,
    events: str,
    state: str,
    options: TuneOptions = DEFAULTS,
    facts: Mapping[str, QueueFacts] | None = None,
    map_tasks: int = TUNE_MAP_TASKS.default,
    at_ms: int | None = None,
) -> Tuned:
    """Count the new files of ``events`` (the table ``receipt_closed``) into ``state``, and recommend timeouts.

    Both are folders, or URLs that Spark reads and writes. The recommendations are also written to
    ``<state>/recommendations`` as Parquet. ``facts`` has the settings of the queues (``applying.facts_of``); without
    it, the log determines the current timeouts. At most ``map_tasks`` tasks read the log. ``at_ms`` (default: now)
    determines the day; the first run of a day lists the whole log.
    """
    store = CellStore(spark, state)
    counted = store.count(events, map_tasks=map_tasks, at_ms=at_ms)
    found = tuple(recommendations(known(store.cells(), options), options=options, facts=facts or {}))
    table(spark, found).coalesce(1).write.mode("overwrite").parquet(f"{located(state)}/recommendations")
    return Tuned(files=counted.files, recommendations=found)


def known(cells: DataFrame, options: TuneOptions) -> list[KeyTally]:
    """Return the tallies of each queue and key in ``cells``: older days are decayed, days before a shift excluded."""
    since = shifts(octaves(cells).toPandas())
    rows = [(queue, key, date.fromisoformat(day)) for (queue, key), day in since.items()]
    cut = cells.sparkSession.createDataFrame(rows, "queue string, key string, since date") if rows else None
    return list(tallies(decayed(cells, half_life_days=options.half_life_days, since=cut).toPandas(), since))


def table(spark: SparkSession, found: tuple[Recommendation, ...]) -> DataFrame:
    """Return the recommendations as a DataFrame with the columns of ``recommendation_table.SCHEMA``."""
    return spark.createDataFrame(rows_of(found), SCHEMA)

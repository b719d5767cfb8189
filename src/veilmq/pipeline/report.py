"""The job ``report``: one HTML file that shows people what the statistics saw, and asks nothing of anybody else.

Charts are inline SVG, and styles are in the file, so that it can be mailed, kept and printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from pyspark.sql import SparkSession

from veilmq.core.events import Outcome
from veilmq.pipeline import charts
from veilmq.pipeline.cell_store import CellStore
from veilmq.pipeline.cost import candidates_s, parts
from veilmq.pipeline.durations import seconds, share
from veilmq.pipeline.estimate import estimates
from veilmq.pipeline.histograms import days
from veilmq.pipeline.recommendation import QueueFacts, Recommendation, facts_for, plain_name
from veilmq.pipeline.tallies import EDGES_S, KeyTally
from veilmq.pipeline.tune import DEFAULTS, known
from veilmq.pipeline.tune_options import TuneOptions
from veilmq.pipeline.tuning import options_for, receives_max_of, recommended

KEY_CURVES_MAX = 12
KEY_ROWS_MAX = 60
DAYS_MAX = 60
HOURS_MAX = 24 * 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One queue of the report: what is recommended, for it and for its keys, and its charts."""

    name: str
    whole: Recommendation
    keys: tuple[Recommendation, ...]
    keys_left_out: int
    survival: str
    cost: str
    days: str
    waits: str


def report(
    spark: SparkSession,
    *,
    state: str,
    path: Path,
    at_ms: int,
    title: str = "Visibility timeouts",
    options: TuneOptions = DEFAULTS,
    facts: Mapping[str, QueueFacts] | None = None,
) -> Path:
    """Write the report about the cells that ``tune`` keeps in ``state`` to ``path``; ``at_ms`` is the time it states.

    ``facts`` says what the queues are set to, as for ``tune``. Returns ``path``.
    """
    store = CellStore(spark, state)
    by_day = _by_queue(days(store.cells()).toPandas())
    by_hour = _by_queue(store.waits().toPandas())
    found = known(store.cells(), options)
    sections = [
        _section(queue, list(keys), by_day.get(queue), by_hour.get(queue), facts_for(facts or {}, queue), options)
        for queue, keys in groupby(found, key=lambda each: each.queue)
    ]
    page = _template().render(title=title, at=_instant(at_ms), sections=sections, options=options)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _section(
    queue: str, keys: list[KeyTally], by_day: Any, by_hour: Any, facts: QueueFacts | None, options: TuneOptions
) -> Section:
    options = options_for(keys, options)
    known, by_key = estimates(keys, options=options)
    whole, *each_key = recommended(keys, known, by_key, options=options, facts=facts)
    shown = sorted(each_key, key=lambda each: -each.first_receipts)[:KEY_ROWS_MAX]
    marks = charts.Marks(whole.current_s, whole.recommended_s)
    timeouts_s = _shown_timeouts_s(known.sight_s, marks)
    load = known.load(receives_max=receives_max_of(facts, options))
    frequent = sorted(keys, key=lambda each: -each.first.receipts)[:KEY_CURVES_MAX]
    return Section(
        name=plain_name(queue),
        whole=whole,
        keys=tuple(sorted(shown, key=lambda each: each.key or "")) if len(each_key) > 1 else (),
        keys_left_out=len(each_key) - len(shown),
        survival=charts.survival_chart(
            known.curve, [by_key[each.key].curve for each in frequent if len(keys) > 1], marks
        ),
        cost=charts.cost_chart(timeouts_s, parts(load, timeouts_s, prices=options.prices), marks),
        days=_days_chart(by_day),
        waits=_waits_chart(by_hour),
    )


def _shown_timeouts_s(sight_s: float, marks: charts.Marks) -> Any:
    """Return the timeouts whose cost is drawn: those around what was seen and what is marked."""
    every = candidates_s()
    last_s = 2.0 * max(sight_s, marks.current_s, marks.recommended_s or 0.0)
    return every[every <= max(last_s, 10.0)]


def _days_chart(by_day: Any) -> str:
    table = by_day.pivot_table(index="day", columns="outcome", values="n", aggfunc="sum", fill_value=0)
    table = table.reindex(columns=[each.value for each in Outcome], fill_value=0).sort_index().tail(DAYS_MAX)
    late = table[Outcome.LATE_DELETED.value]
    expired = table[Outcome.EXPIRED.value]
    ended = (Outcome.DELETED, Outcome.DELETED_BY_EARLIER, Outcome.EXPIRED, Outcome.NACKED)
    receipts = table[[each.value for each in ended]].sum(axis=1).clip(lower=1)
    recovered = ((expired - late) / receipts).clip(lower=0.0)
    return charts.days_chart([str(day) for day in table.index], list(late / receipts), list(recovered))


def _waits_chart(by_hour: Any) -> str:
    if by_hour is None:
        return ""
    hours, oldest_s, median_s = [], [], []
    for hour, part in by_hour.sort_values(["hour", "bucket"]).groupby("hour"):
        counted = part["n"].cumsum().to_numpy()
        middle = int(np.searchsorted(counted, counted[-1] / 2))
        hours.append(int(hour))
        oldest_s.append(float(EDGES_S[part["bucket"].iloc[-1]]))
        median_s.append(float(EDGES_S[part["bucket"].iloc[middle]]))
    return charts.waits_chart(hours[-HOURS_MAX:], oldest_s[-HOURS_MAX:], median_s[-HOURS_MAX:])


def _by_queue(rows: Any) -> dict[str, Any]:
    return dict(list(rows.groupby("queue")))


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("veilmq.pipeline", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"seconds": seconds, "share": share, "count": lambda value: f"{value:,.0f}"}
    return environment.get_template("report.html")

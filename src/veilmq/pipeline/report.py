"""The job ``report``: one self-contained HTML file with the statistics.

200 queues with 40 keys each have 8,000 rows and 800 charts, too many to render in advance. So the file contains
compressed numbers and ``report.js``, which draws the queues that the user opens. The queue with the largest loss comes
first. A point of a chart is one character: a level of ``_LEVELS``.
"""

import base64
import gzip
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
import msgspec
import numpy as np
from pyspark.sql import SparkSession

from veilmq.core.limits import VISIBILITY_TIMEOUT_S
from veilmq.core.receipts import Outcome
from veilmq.core.settings import QueueSettings
from veilmq.pipeline.cells import EDGES_S, Array, KeyCounts, days
from veilmq.pipeline.cost import parts
from veilmq.pipeline.estimate import TWO_SIDES, Estimate, estimates
from veilmq.pipeline.event_log import CellStore
from veilmq.pipeline.folders import existing, located
from veilmq.pipeline.options import TuneOptions
from veilmq.pipeline.session import PipelineFailed
from veilmq.pipeline.tune import (
    DEFAULTS,
    Recommendation,
    current_counts,
    options_for,
    plain_name,
    queue_recommendations,
)

BYTES_MAX = 600_000
"""A larger report omits the reasons of keys, first for the queues that lose least."""

KEY_CURVES_MAX = 6
KEY_ROWS_MAX = 60
DAYS_MAX = 60
HOURS_MAX = 24 * 14
POINTS = 41
WAITS_MAX = 84
LEFT_MIN = 1e-4

_LEVELS = "".join(chr(code) for code in range(35, 127) if chr(code) != "\\")


def report(
    spark: SparkSession,
    *,
    state: str,
    path: Path,
    at_ms: int,
    title: str = "Visibility timeouts",
    options: TuneOptions = DEFAULTS,
    settings: Mapping[str, QueueSettings] | None = None,
) -> Path:
    """Write the report on the cells of ``tune`` in ``state`` to ``path``, and return ``path``.

    ``at_ms`` is shown; ``settings`` are as for ``tune``. Raises ``PipelineFailed`` if ``tune`` did not write ``state``.
    """
    if existing(spark.read, f"{located(state)}/recommendations") is None:
        raise PipelineFailed(f"{state} is not a state of tune: run `veilmq pipeline tune` first, or correct --state.")
    store = CellStore(spark, state)
    frames: list[Any] = [days(store.cells()).toPandas(), store.waits().toPandas()]
    by_day, by_hour = (dict(list(frame.groupby("queue"))) for frame in frames)
    found = current_counts(store.cells(), options)
    queues = [
        _section(queue, list(keys), by_day.get(queue), by_hour.get(queue), (settings or {}).get(queue), options)
        for queue, keys in groupby(found, key=lambda each: each.queue)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(queues, title=title, at_ms=at_ms, options=options), encoding="utf-8")
    return path


def page(queues: Sequence[dict[str, Any]], *, title: str, at_ms: int, options: TuneOptions) -> str:
    """Return the page on ``queues`` (``_section``), the worst first, within ``BYTES_MAX`` if possible."""
    worst_first = sorted(queues, key=lambda each: (-each["lost"], -each["doubled"], each["name"]))
    facts = {
        "at": datetime.fromtimestamp(at_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "half_life": options.half_life_days,
        "percentile": round(100 * options.quantile, 4),
        "dead_letter": options.dead_letter,
        "wait": options.wait,
    }
    environment = jinja2.Environment(loader=jinja2.PackageLoader("veilmq.pipeline", "."), autoescape=True)
    template = environment.get_template("report.html")
    script = (files("veilmq.pipeline") / "report.js").read_text(encoding="utf-8")

    def rendered(with_reasons: int) -> str:
        others = [{**each, "keys": [[*row[:-1], ""] for row in each["keys"]]} for each in worst_first[with_reasons:]]
        shown = [*worst_first[:with_reasons], *others]
        packed = gzip.compress(msgspec.json.encode({**facts, "queues": shown}), 9, mtime=0)
        return template.render(title=title, script=script, data=base64.b64encode(packed).decode())

    html = rendered(len(queues))
    fits, too_many = 0, len(queues)
    while len(html) > BYTES_MAX and fits + 1 < too_many:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if len(rendered(middle)) <= BYTES_MAX else (fits, middle)
    return html if len(html) <= BYTES_MAX else rendered(fits)


def _section(
    queue: str, keys: list[KeyCounts], by_day: Any, by_hour: Any, settings: QueueSettings | None, options: TuneOptions
) -> dict[str, Any]:
    """Return the data of one queue: the recommendations for it and its keys, and its charts."""
    options = options_for(keys, options, settings)
    estimate, by_key = estimates(keys, options=options)
    of_queue, *each_key = queue_recommendations(keys, estimate, by_key, options, settings)
    shown = sorted(each_key, key=lambda each: -each.first_receipts)[:KEY_ROWS_MAX] if len(each_key) > 1 else []
    frequent = sorted(keys, key=lambda each: -each.first.receipts)[:KEY_CURVES_MAX] if shown else []
    lost = (of_queue.cost_current or 0.0) - (of_queue.cost_recommended or 0.0) if of_queue.gain > 0 else 0.0
    return {
        "name": plain_name(queue),
        "lost": _short(lost * of_queue.receipts),
        "doubled": _short(of_queue.rates.duplicate * of_queue.receipts),
        "row": _row(of_queue),
        "keys": [_row(each) for each in sorted(shown, key=lambda each: each.key or "")],
        "left_out": len(each_key) - len(shown) if shown else 0,
        "work": _work(estimate, [by_key[each.key] for each in frequent], of_queue),
        "cost": _cost(estimate, of_queue, options),
        "days": _days(by_day),
        "waits": None if by_hour is None else _waits(by_hour),
    }


def _row(each: Recommendation) -> list[Any]:
    """Return a row of the page with the columns ``FIELDS`` of ``report.js``; the reason must be last."""
    recommended = [each.recommended_s, each.explore_s, each.change, each.keeps, _short(max(each.gain, 0.0))]
    quantile = [_short(each.quantile.point_s), _short(each.quantile.late_s)]
    rates = [_short(each.rates.duplicate), _short(each.rates.recovery), each.current_s]
    counts = [round(each.receipts), round(each.first_receipts)]
    return [each.key, *counts, *quantile, *rates, *recommended, each.confidence.value, each.reason]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.3g}")


def _coded(values: Iterable[float] | Array, low: float, high: float, *, linear: bool = False) -> str:
    """Encode ``values`` between ``low`` and ``high`` as characters, on a logarithmic scale unless ``linear``."""
    found = np.asarray(values, dtype=float)
    share = found / high if linear else np.log(found.clip(low) / low) / math.log(high / low)
    return "".join(_LEVELS[int(level)] for level in np.rint(share.clip(0.0, 1.0) * (len(_LEVELS) - 1)))


def _work(estimate: Estimate, keys: Sequence[Estimate], marks: Recommendation) -> dict[str, Any]:
    """Return the share of unfinished work by time, within the observed range, on logarithmic scales."""
    first_s = float(EDGES_S[(estimate.survival[0] < 0.9995).argmax()]) / 2
    last_s = max(estimate.sight_s, marks.current_s, marks.recommended_s or 0.0, 2 * first_s) * 1.3
    times_s = np.geomspace(first_s, max(estimate.sight_s, 1.5 * first_s), POINTS)
    places = np.searchsorted(EDGES_S, times_s).clip(0, len(EDGES_S) - 1)

    def line(survival: Array, sight_s: float) -> str:
        seen = places[times_s <= max(sight_s, float(times_s[0])) * 1.01]
        return _coded(survival[seen], LEFT_MIN, 1.0)

    bounds = np.quantile(estimate.survival, TWO_SIDES, axis=0)
    lines = [line(each, estimate.sight_s) for each in (estimate.survival[0], *bounds)]
    return {
        "x": [_short(first_s), _short(float(times_s[-1])), _short(last_s)],
        "lines": lines,
        "keys": [line(each.survival[0], each.sight_s)[::2] for each in keys],
    }


def _cost(estimate: Estimate, marks: Recommendation, options: TuneOptions) -> dict[str, Any]:
    """Return the costs of timeouts around those observed and marked, on logarithmic scales."""
    last_s = max(2.0 * max(estimate.sight_s, marks.current_s, marks.recommended_s or 0.0), 10.0)
    timeouts_s = np.geomspace(1.0, min(last_s, VISIBILITY_TIMEOUT_S.maximum), POINTS)
    lines = parts(estimate.load(options.receives_max), timeouts_s, prices=options)
    total = lines.sum(axis=0)
    low, high = (float(total[total > 0].min()) / 6 if (total > 0).any() else 1e-6), float(total.max()) * 2 or 1.0
    coded = [_coded(each, low, high) for each in (*lines, total)]
    return {"x": [1, _short(float(timeouts_s[-1]))], "y": [_short(low), _short(high)], "lines": coded}


def _days(by_day: Any) -> dict[str, Any]:
    table = by_day.pivot_table(index="day", columns="outcome", values="n", aggfunc="sum", fill_value=0)
    table = table.reindex(columns=[each.value for each in Outcome], fill_value=0).sort_index().tail(DAYS_MAX)
    late = table[Outcome.LATE_DELETED.value]
    ended = (Outcome.DELETED, Outcome.DELETED_BY_EARLIER, Outcome.EXPIRED, Outcome.NACKED)
    receipts = table[[each.value for each in ended]].sum(axis=1).clip(lower=1)
    shares = [late / receipts, ((table[Outcome.EXPIRED.value] - late) / receipts).clip(lower=0.0)]
    high = max(*(float(each.max()) for each in shares), 1e-4) * 1.25
    lines = [_coded(each, 0.0, high, linear=True) for each in shares]
    return {"days": [str(day)[5:] for day in table.index], "y": _short(high), "lines": lines}


def _waits(by_hour: Any) -> dict[str, Any]:
    """Return the maximum and the median age at the first receive, by one or several hours."""
    hours = by_hour["hour"]
    first = max(int(hours.min()), int(hours.max()) - HOURS_MAX + 1)
    step = -(-(int(hours.max()) - first + 1) // WAITS_MAX)
    recent = by_hour[hours >= first]
    places, oldest_s, half_s = [], [], []
    for place, part in recent.sort_values("bucket").groupby((recent["hour"] - first) // step):
        counted = part["n"].cumsum().to_numpy()
        places.append(int(place))
        oldest_s.append(float(EDGES_S[part["bucket"].iloc[-1]]))
        half_s.append(float(EDGES_S[part["bucket"].iloc[int(np.searchsorted(counted, counted[-1] / 2))]]))
    low, high = max(min(half_s), 1e-3) / 2, max(oldest_s) * 2
    lines = [_coded(each, low, high) for each in (oldest_s, half_s)]
    return {"first": first, "step": step, "places": places, "y": [_short(low), _short(high)], "lines": lines}

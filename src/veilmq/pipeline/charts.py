"""Charts of the report: inline SVG whose colours are those of the page, light or dark.

Matplotlib draws with a few colours that stand for names (``PALETTE``); in the SVG they become the page's variables.
Text stays text, so that it takes the font of the page.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from veilmq.pipeline.cost import Parts
from veilmq.pipeline.durations import seconds, share
from veilmq.pipeline.survival import Curve
from veilmq.pipeline.tallies import EDGES_S, Array

INK, GRID, BLUE, AMBER, RED, TEAL = "#101010", "#202020", "#303030", "#404040", "#505050", "#606060"
PALETTE = {INK: "ink", GRID: "grid", BLUE: "blue", AMBER: "amber", RED: "red", TEAL: "teal"}

SIZE_INCHES = (5.8, 3.3)
TIMES_S = (0.001, 0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 36000.0)
LEFT_MIN = 1e-4

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "veilmq",
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True, slots=True)
class Marks:
    """The timeouts that charts mark, in seconds."""

    current_s: float
    recommended_s: float | None


@mpl.rc_context(_STYLE)
def survival_chart(whole: Curve, keys: Iterable[Curve], marks: Marks) -> str:
    """Return how much work is not done yet after a time: the queue with its bounds, its keys as thin lines."""
    figure, axes = _axes()
    for curve in keys:
        axes.plot(*_seen(curve.survival, curve), color=BLUE, linewidth=0.8, alpha=0.35)
    times_s, lower = _seen(whole.lower, whole)
    axes.fill_between(times_s, lower.clip(LEFT_MIN / 2), _seen(whole.upper, whole)[1], color=BLUE, alpha=0.18, lw=0)
    axes.plot(*_seen(whole.survival, whole), color=BLUE, linewidth=2)
    axes.set_yscale("log")
    axes.set_ylim(LEFT_MIN, 1.3)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: share(value)))
    axes.set_xlim(_first_s(whole), max(whole.sight_s, marks.current_s, marks.recommended_s or 0.0) * 1.3)
    _duration_axis(axes, "time since the receive")
    _mark(axes, marks)
    return _svg(figure, "share of the work that is not done, over time")


@mpl.rc_context(_STYLE)
def cost_chart(timeouts_s: Array, parts: Parts, marks: Marks) -> str:
    """Return what each timeout would cost for each message, and of what."""
    figure, axes = _axes()
    total = parts.in_vain + parts.dead + parts.waiting
    for name, values, color in (
        ("work in vain", parts.in_vain, AMBER),
        ("false dead letters", parts.dead, RED),
        ("waiting after crashes", parts.waiting, TEAL),
    ):
        axes.plot(timeouts_s, values, color=color, linewidth=1.2, label=name)
    axes.plot(timeouts_s, total, color=BLUE, linewidth=2.2, label="all")
    axes.set_yscale("log")
    lowest = float(total[total > 0].min()) if (total > 0).any() else 1e-6
    axes.set_ylim(lowest / 6, float(total.max()) * 2)
    axes.set_xlim(timeouts_s[0], timeouts_s[-1])
    _duration_axis(axes, "timeout")
    _mark(axes, marks)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    figure.legend(loc="outside lower center", ncols=4)
    return _svg(figure, "cost of each timeout")


@mpl.rc_context(_STYLE)
def days_chart(days: Sequence[str], duplicates: Sequence[float], recoveries: Sequence[float]) -> str:
    """Return the shares of receipts that expired, by day: deleted late, or never finished."""
    figure, axes = _axes()
    places = range(len(days))
    axes.bar([place - 0.2 for place in places], duplicates, width=0.38, color=AMBER, label="duplicates")
    axes.bar([place + 0.2 for place in places], recoveries, width=0.38, color=TEAL, label="recoveries")
    step = max(1, len(days) // 8)
    axes.set_xticks(list(places)[::step], [day[5:] for day in days][::step])
    axes.set_xlim(-0.7, max(len(days), 4) - 0.3)
    axes.grid(visible=False, axis="x")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: share(value)))
    axes.set_ylim(0, max([*duplicates, *recoveries, 1e-4]) * 1.25)
    figure.legend(loc="outside lower center", ncols=2)
    return _svg(figure, "duplicates and recoveries by day")


@mpl.rc_context(_STYLE)
def waits_chart(hours: Sequence[int], oldest_s: Sequence[float], median_s: Sequence[float]) -> str:
    """Return how old messages were at their first receive, by hour of the epoch: the oldest, and half of them."""
    figure, axes = _axes()
    style = {"marker": "o", "markersize": 3} if len(hours) < 60 else {}
    axes.plot(hours, oldest_s, color=BLUE, linewidth=1.6, label="oldest message", **style)
    axes.plot(hours, median_s, color=TEAL, linewidth=1.6, label="half of them", **style)
    axes.set_yscale("log")
    low, high = max(min(median_s), 1e-3), max(oldest_s)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds(value)))
    axes.set_ylim(low / 2, high * 2)
    axes.yaxis.set_minor_locator(NullLocator())
    ticks = sorted({round(hours[0] + part * (hours[-1] - hours[0]) / 4) for part in range(5)})
    axes.set_xticks(ticks, [_hour(each) for each in ticks])
    figure.legend(loc="outside lower center", ncols=2)
    return _svg(figure, "age of the oldest message by hour")


def _axes() -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE_INCHES, layout="constrained")
    return figure, figure.add_subplot()


def _seen(values: Array, curve: Curve) -> tuple[Array, Array]:
    """Return times and ``values`` as far as anything was seen."""
    known = curve.sight_s >= EDGES_S * 0.99
    return EDGES_S[known], values[known]


def _first_s(curve: Curve) -> float:
    """Return from when on something happens."""
    return float(EDGES_S[(curve.survival < 0.9995).argmax()]) / 2


def _duration_axis(axes: Any, label: str) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(TIMES_S))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _round_time(value)))
    axes.set_xlabel(label)


def _round_time(value_s: float) -> str:
    return {60.0: "1 min", 600.0: "10 min", 3600.0: "1 h", 36000.0: "10 h"}.get(round(value_s, 3), f"{value_s:g} s")


def _hour(hour: int) -> str:
    return datetime.fromtimestamp(hour * 3600, tz=UTC).strftime("%m-%d %H:%M")


def _mark(axes: Any, marks: Marks) -> None:
    """Draw the timeouts, each with its name above in a line of its own, for which an empty title keeps the place."""
    axes.set_title(" \n ", fontsize=9)
    recommended_s = marks.recommended_s
    apart = recommended_s is not None and recommended_s != marks.current_s
    _line(axes, marks.current_s, f"now {seconds(marks.current_s)}", RED if apart else INK, row=0)
    if apart and recommended_s is not None:
        _line(axes, recommended_s, f"recommended {seconds(recommended_s)}", TEAL, row=1)


def _line(axes: Any, at_s: float, text: str, color: str, *, row: int) -> None:
    axes.axvline(at_s, color=color, linewidth=1.4, linestyle=(0, (4, 2)))
    first_s, last_s = axes.get_xlim()
    left = at_s * at_s > first_s * last_s
    name = axes.annotate(
        text, (at_s, 1.0), xycoords=("data", "axes fraction"), xytext=(3 if left else -3, 2 + 12 * row),
        textcoords="offset points", color=color, ha="right" if left else "left", va="bottom", annotation_clip=False,
    )  # fmt: skip
    name.set_in_layout(False)


def _svg(figure: Figure, label: str) -> str:
    """Return ``figure`` as an element of a page: no prologue, colours of the page, ids that no other chart has."""
    written = io.StringIO()
    figure.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    text = written.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', rf'<svg role="img" aria-label="{label}" \g<1>>', text, count=1)
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{mark}-", text)
    for color, variable in PALETTE.items():
        text = text.replace(color, f"var(--{variable})")
    return text

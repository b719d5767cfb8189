"""The chart: rates against ceiling and peers on a log axis, and the cost of a receive + delete over the backlog."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.backlog import curves
from benchmarks.row import Row, Section
from benchmarks.table import columns

mpl.use("Agg")

from matplotlib import pyplot as plt


def draw(sections: Sequence[Section], *, path: Path, title: str) -> None:
    """Write a PNG with both charts."""
    figure, (rates, flatness) = plt.subplots(2, 1, figsize=(11, 10), layout="constrained")
    figure.suptitle(title, fontsize=9)
    _rates(rates, [row for section in sections for row in section.rows if row.compare])
    _flatness(flatness, curves(sections))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _rates(axes: Any, rows: Sequence[Row]) -> None:
    servers = columns([Section(name="rates", rows=tuple(rows))])
    width = 0.8 / max(1, len(servers))
    for n, server in enumerate(servers):
        bars = [(i + n * width, row.values[server]) for i, row in enumerate(rows) if _number(row, server)]
        if bars:
            axes.bar([x for x, _ in bars], [y for _, y in bars], width=width, label=server)
    axes.set_yscale("log")
    axes.set_ylabel("per second")
    axes.set_xticks([i + 0.4 - width / 2 for i in range(len(rows))])
    axes.set_xticklabels([f"{row.figure}\n{row.unit}" for row in rows], fontsize=7)
    if axes.containers:
        axes.legend(fontsize=8)
    else:
        _nothing(axes)


def _number(row: Row, server: str) -> bool:
    value = row.values.get(server)
    return isinstance(value, float) and value > 0


def _flatness(axes: Any, curves: Mapping[str, list[tuple[int, float]]]) -> None:
    for kind, curve in curves.items():
        axes.plot([messages for messages, _ in curve], [cost for _, cost in curve], marker="o", label=kind)
    axes.set_xlabel("messages of backlog")
    axes.set_ylabel("receive + delete, µs")
    if curves:
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    else:
        _nothing(axes)


def _nothing(axes: Any) -> None:
    axes.text(0.5, 0.5, "not measured in this run", ha="center", va="center", transform=axes.transAxes)

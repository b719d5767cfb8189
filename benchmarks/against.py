"""Compare this checkout with another commit in alternating turns, A B A B …, by the median of the ratios of the pairs.

The other commit is checked out into a temporary git worktree and uses the packages of this environment. Every turn is
a new server on an empty folder, which averages differences between processes (memory layout, hash seed). Both sides get
the load of this checkout, with the headers of an AWS SDK. A workload is a row of `WORKLOADS`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks import rates, stock
from benchmarks.bench import Bench
from benchmarks.rates import CYCLE, CYCLE_TEN, DELETE, RECEIVE, SEND, SEND_TEN, Measured, Setup, Workload
from benchmarks.servers import CHECKOUT, ROOMY, Server, paths, veilmq
from benchmarks.table import WIDTH, cell

TURNS = 5
SDK = {"BENCH_HEADS": "sdk"}
FIFO_GROUPS = 1_000


class AgainstError(Exception):
    """The other commit cannot be checked out, or a server would not run its sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Workloads that run one after another on the same server in a turn."""

    workloads: tuple[Workload, ...]
    setup: Setup = field(default_factory=lambda: Setup(environment=SDK))


def _fill(bench: Bench, port: int, queue_url: str) -> None:
    stock.fill(port=port, queue_url=queue_url, messages=bench.backlog_max)


WORKLOADS: Mapping[str, Comparison] = {
    "send": Comparison(workloads=(SEND,)),
    "receive": Comparison(workloads=(RECEIVE, DELETE)),
    "cycle": Comparison(workloads=(CYCLE,)),
    "batch": Comparison(workloads=(SEND_TEN, CYCLE_TEN)),
    "waiting": Comparison(workloads=(CYCLE,), setup=Setup(environment=SDK, prepare=_fill)),
    "fifo": Comparison(
        workloads=(CYCLE,),
        setup=Setup(
            attributes={"FifoQueue": "true"},
            environment={**SDK, "BENCH_GROUPS": str(FIFO_GROUPS), "BENCH_FIFO": "1"},
        ),
    ),
}
DEFAULT_ROWS = ("send", "receive", "cycle", "batch")

FIGURES: Mapping[str, Callable[[Measured], float]] = {
    "requests/s": lambda measured: measured.load.requests_per_s,
    "server CPU, µs a request": lambda measured: measured.server_cores / measured.load.requests_per_s * 1e6,
    "p50 ms": lambda measured: measured.load.p50_ms,
    "p99 ms": lambda measured: measured.load.p99_ms,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of one workload on both sides, a number per turn; `trouble` is the reason if there is none."""

    row: str
    workload: str
    figure: str
    there: Sequence[float] = ()
    here: Sequence[float] = ()
    trouble: str = ""

    def ratio(self) -> float | None:
        """Return the median of here ÷ there over the pairs, or None if a pair has no ratio."""
        pairs = list(zip(self.here, self.there, strict=True))
        return median(here / there for here, there in pairs) if pairs and all(self.there) else None


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    """Check `revision` out into a temporary folder. Raises `AgainstError` if git does not have it."""
    with tempfile.TemporaryDirectory(prefix="veilmq-against-") as folder:
        path = Path(folder) / "checkout"
        _git("worktree", "add", "--quiet", "--detach", str(path), f"{revision}^{{commit}}")
        try:
            _verify(path)
            yield path
        finally:
            _git("worktree", "remove", "--force", str(path))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AgainstError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _verify(checkout: Path) -> None:
    """Raise `AgainstError` unless a server that is started for `checkout` imports its sources."""
    words = [sys.executable, "-c", "import veilmq; print(veilmq.__file__)"]
    environment = {**os.environ, **paths(checkout)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    if not Path(done.stdout.strip()).resolve().is_relative_to(checkout.resolve()):
        raise AgainstError(f"a server for {checkout} would run {done.stdout.strip()}: uninstall that one first")


def compare(bench: Bench, revision: str, *, names: Sequence[str], turns: int) -> list[Compared]:
    with checked_out(revision) as checkout:
        there, here = (veilmq(*ROOMY, checkout=each) for each in (checkout, CHECKOUT))
        return [each for name in names for each in _row(bench, name, there, here, revision, turns)]


def _row(bench: Bench, name: str, there: Server, here: Server, revision: str, turns: int) -> Iterator[Compared]:
    row = WORKLOADS[name]
    found: dict[Server, list[Mapping[str, Measured]]] = {there: [], here: []}
    for turn in range(turns):
        for server, called in ((there, revision), (here, "here")):
            bench.log(f"{name}, turn {turn + 1} of {turns}, {called}")
            outcome = rates.outcome_on(bench, server, row.workloads, seconds=bench.seconds, setup=row.setup)
            if isinstance(outcome, str):
                yield Compared(row=name, workload=row.workloads[0].figure, figure="", trouble=f"{called}: {outcome}")
                return
            found[server].append(outcome)
    for workload in row.workloads:
        for figure, value in FIGURES.items():
            sides = ([value(outcome[workload.figure]) for outcome in found[server]] for server in (there, here))
            old, new = sides
            yield Compared(row=name, workload=workload.figure, figure=figure, there=old, here=new)


def render(compared: Sequence[Compared], *, revision: str, title: str) -> Table:
    """Return the table: medians of both sides, and median, minimum and maximum of the ratios."""
    table = Table(title=title, title_justify="left")
    for column in ("row", "workload", "figure"):
        table.add_column(column, no_wrap=True)
    for column in (revision, "here", "here ÷ there", "of the pairs"):
        table.add_column(column, justify="right")
    last = ""
    for each in compared:
        if each.row != last:
            table.add_section()
        last = each.row
        table.add_row(each.row, each.workload, each.figure, *_cells(each))
    return table


def _cells(each: Compared) -> tuple[str, ...]:
    ratio = each.ratio()
    if ratio is None:
        return ("", "", "none", each.trouble or "not measured")
    ratios = [here / there for here, there in zip(each.here, each.there, strict=True)]
    spread = f"{min(ratios):.3f} … {max(ratios):.3f}"
    return (cell(median(each.there)), cell(median(each.here)), f"{ratio:.3f}", spread)


def run(
    bench: Bench, revision: str, *, names: Sequence[str], turns: int, out: Path, machine: Mapping[str, object]
) -> int:
    """Measure, print the table and write `against.json`; return 1 if a row has no figure."""
    compared = compare(bench, revision, names=names or DEFAULT_ROWS, turns=turns)
    title = " · ".join(f"{name} {value}" for name, value in machine.items())
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(render(compared, revision=revision, title=title))
    out.mkdir(parents=True, exist_ok=True)
    rows = [
        {"row": each.row, "workload": each.workload, "figure": each.figure, "there": each.there, "here": each.here}
        | {"ratio": each.ratio(), "trouble": each.trouble}
        for each in compared
    ]
    content = {"against": revision, "turns": turns, "seconds": bench.seconds, "machine": machine, "rows": rows}
    (out / "against.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {out / 'against.json'}")
    return 1 if any(each.trouble for each in compared) else 0

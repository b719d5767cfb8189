"""`python -m benchmarks`: measure, print one table, write a JSON file and a picture."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks import backlog, chart, idle, keeps, machine, rates, report, table, wrk
from benchmarks.bench import Bench
from benchmarks.row import Section
from benchmarks.servers import CHECKOUT

BACKLOG_MAX = 100_000
BACKLOG_WHOLE = 3_000_000


def _one(measure: Callable[[Bench], Section]) -> Callable[[Bench], Iterator[Section]]:
    def sections(bench: Bench) -> Iterator[Section]:
        yield measure(bench)

    return sections


MEASUREMENTS: Mapping[str, Callable[[Bench], Iterator[Section]]] = {
    "keeps": _one(keeps.measure),
    **{name: partial(rates.measure, name=name) for name in rates.GROUPS},
    "backlog": backlog.measure,
    "idle": _one(idle.measure),
}


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--seconds", type=_positive, default=10.0, help="length of one load on veilmq (default 10)")
    parser.add_argument("--connections", type=int, default=64, help="connections of wrk (default 64)")
    parser.add_argument("--only", action="append", choices=tuple(MEASUREMENTS), help="measure this; may be repeated")
    parser.add_argument(
        "--backlog", type=int, help=f"largest backlog (default {BACKLOG_MAX:,}; whole {BACKLOG_WHOLE:,})"
    )
    parser.add_argument("--whole", action="store_true", help="large backlogs, also delayed and released ones")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure the peers too")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "benchmarks" / "out", help="folder of the results")
    parser.add_argument("--work", type=Path, default=CHECKOUT / "veilmq-bench", help="folder of the data: a real disk")
    return parser.parse_args(given)


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def settings(options: argparse.Namespace) -> Bench:
    largest = BACKLOG_WHOLE if options.whole else BACKLOG_MAX
    return Bench(
        seconds=options.seconds,
        connections=options.connections,
        backlog_max=max(backlog.REFERENCE, options.backlog or largest),
        whole=options.whole,
        peers=options.peers,
        work=options.work.resolve(),
    )


def run(bench: Bench, names: list[str]) -> list[Section]:
    """The sections of what was asked for, in the order of the table."""
    sections = [section for name in MEASUREMENTS if name in names for section in MEASUREMENTS[name](bench)]
    compared = rates.by_ten(sections)
    return [*sections, compared] if compared else sections


def main() -> int:
    options = arguments(sys.argv[1:])
    if not wrk.installed():
        print("wrk is not installed, rows that need it will say so: `apt-get install wrk`", file=sys.stderr)
    bench = settings(options)
    names = options.only or list(MEASUREMENTS)
    here = machine.describe()
    title = " · ".join(f"{name} {value}" for name, value in here.items())
    sections = run(bench, names)
    options.out.mkdir(parents=True, exist_ok=True)
    asked = {
        "seconds": bench.seconds,
        "connections": bench.connections,
        "backlog": bench.backlog_max,
        "only": names,
    }
    report.write(report.document(sections, machine=here, settings=asked), path=options.out / "bench.json")
    chart.draw(sections, path=options.out / "bench.png", title=title)
    table.show(sections, title=title)
    print(f"written: {options.out / 'bench.json'} and {options.out / 'bench.png'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

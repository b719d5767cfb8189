"""`python -m benchmarks`: measure, print one table, write a JSON file and a chart."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from benchmarks import (
    against,
    backlog,
    chart,
    console,
    drain,
    idle,
    keeps,
    kinds,
    machine,
    on_postgres,
    rates,
    report,
    signed,
    smq,
    streams,
    table,
    wrk,
)
from benchmarks.bench import Bench
from benchmarks.options import arguments, settings
from benchmarks.row import Section


def _one(measure: Callable[[Bench], Section]) -> Callable[[Bench], Iterator[Section]]:
    def sections(bench: Bench) -> Iterator[Section]:
        yield measure(bench)

    return sections


MEASUREMENTS: Mapping[str, Callable[[Bench], Iterator[Section]]] = {
    "keeps": _one(keeps.measure),
    **{name: partial(rates.measure, name=name) for name in rates.GROUPS},
    "smq": _one(smq.measure),
    "kinds": kinds.measure,
    "signed": _one(signed.measure),
    "drain": _one(drain.measure),
    "spark": _one(streams.measure),
    "backlog": backlog.measure,
    "postgres": on_postgres.measure,
    "idle": _one(idle.measure),
    "console": _one(console.measure),
}


def run(bench: Bench, names: list[str]) -> list[Section]:
    """Return the requested sections in the order of the table."""
    sections = [section for name in MEASUREMENTS if name in names for section in MEASUREMENTS[name](bench)]
    compared = rates.by_ten(sections)
    return [*sections, compared] if compared else sections


def main() -> int:
    options = arguments(sys.argv[1:])
    if not wrk.installed():
        print("wrk is not installed; rows that need it are not measured: `apt-get install wrk`", file=sys.stderr)
    bench = settings(options)
    here = machine.describe()
    if options.against:
        try:
            against.run(
                bench,
                options.against,
                names=options.only,
                processes=options.processes,
                turns=options.turns,
                out=options.out,
                machine=here,
            )
        except against.AgainstError as error:
            print(error, file=sys.stderr)
            return 1
        return 0
    names = options.only or list(MEASUREMENTS)
    title = " · ".join(f"{name} {value}" for name, value in here.items())
    sections = run(bench, names)
    options.out.mkdir(parents=True, exist_ok=True)
    used = {
        "seconds": bench.seconds,
        "connections": bench.connections,
        "backlog": bench.backlog_max,
        "only": names,
    }
    report.write(report.document(sections, machine=here, settings=used), path=options.out / "bench.json")
    chart.draw(sections, path=options.out / "bench.png", title=title)
    table.show(sections, title=title)
    print(f"written: {options.out / 'bench.json'} and {options.out / 'bench.png'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

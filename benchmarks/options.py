"""The options of `python -m benchmarks`, and the settings that follow from them."""

import argparse
from pathlib import Path
from typing import TypeVar

from benchmarks import against, backlog, rates
from benchmarks.bench import Bench
from benchmarks.servers import CHECKOUT

Number = TypeVar("Number", int, float)

BACKLOG_MAX = 100_000
BACKLOG_WHOLE = 3_000_000
NAMES = ("keeps", *rates.GROUPS, "smq", "kinds", "signed", "drain", "spark", "backlog", "postgres", "idle", "console")
DESCRIPTION = "Measure veilmq beside the ceiling and its peers: one table, a JSON file and a picture."


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=DESCRIPTION)
    parser.add_argument("--seconds", type=_seconds, default=10.0, help="length of one load on veilmq (default 10)")
    parser.add_argument("--connections", type=_count, default=64, help="connections of wrk (default 64)")
    every = tuple(dict.fromkeys((*NAMES, *against.ROWS)))
    parser.add_argument("--only", action="append", choices=every, help="measure this; may be repeated")
    parser.add_argument("--against", metavar="REV", help="measure this checkout in turns with another commit")
    turns, processes = against.TURNS, against.PROCESSES
    parser.add_argument("--turns", type=_count, default=turns, help=f"turns of a pair of servers (default {turns})")
    parser.add_argument("--processes", type=_count, default=processes, help=f"pairs of servers (default {processes})")
    parser.add_argument(
        "--backlog", type=_count, help=f"largest backlog (default {BACKLOG_MAX:,}; whole {BACKLOG_WHOLE:,})"
    )
    parser.add_argument("--whole", action="store_true", help="large backlogs, also delayed and released ones")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="measure the peers too")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "benchmarks" / "out", help="folder of the results")
    parser.add_argument("--work", type=Path, default=CHECKOUT / "veilmq-bench", help="folder of the data: a real disk")
    options = parser.parse_args(given)
    known = against.ROWS if options.against else NAMES
    if unknown := [name for name in options.only or () if name not in known]:
        alone = "no row of --against" if options.against else "a row of --against alone"
        parser.error(f"--only {unknown[0]} is {alone}; choose from {', '.join(known)}")
    return options


def _seconds(text: str) -> float:
    return _positive(text, float(text) if text.replace(".", "", 1).isdigit() else 0.0)


def _count(text: str) -> int:
    return _positive(text, int(text) if text.isdigit() else 0)


def _positive(text: str, value: Number) -> Number:
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
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

"""Compare this checkout with another commit in alternating turns, A B A B …, by the median of the ratios of the pairs.

The other commit is checked out into a temporary git worktree and uses the packages of this environment. Its server and
this checkout's run side by side; new ones on empty folders replace them, which averages differences between processes
(memory layout, hash seed). Both get the load of this checkout, with the headers of an AWS SDK.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import groups, on_postgres, rates, stock, wrk
from benchmarks.bench import Bench, Opened
from benchmarks.process import Command
from benchmarks.rates import CYCLE, CYCLE_TEN, SEND, SEND_TEN, Workload
from benchmarks.servers import CHECKOUT, ROOMY, Server, paths, veilmq, veilmq_on
from benchmarks.sqs import Sqs
from benchmarks.wrk import Load
from examples.cluster.postgres_server import PostgresServer

PROCESSES, TURNS = 2, 3
SDK = {"BENCH_HEADS": "sdk"}
QUEUES = 500
POLLS = 200
SENDERS = 8
IN_FLIGHT = 100_000
SLOW_MS = 5

RECEIVE = replace(rates.RECEIVE, filled=False, share=1.0)
DELETE = replace(rates.DELETE, share=0.35)
RECEIVE_TEN = Workload(
    figure="receive by ten", script="receive_ten", per_s=lambda result: result.count_per_s("received"), share=1.0
)
DELETE_TEN = Workload(
    figure="delete by ten", script="delete_ten", per_s=lambda result: result.count_per_s("deleted"), share=0.35
)
QUEUES_CYCLE = Workload(figure="cycle", script="queues", per_s=lambda result: result.count_per_s("deletes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Workloads that run one after another on one server in a turn; `slow`: on a disk with slow syncs.

    `postgres`: a node with its own PostgreSQL; the first turn of each process is a warm-up and does not count.
    """

    workloads: tuple[Workload, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Bench, int, str], object] = lambda bench, port, queue_url: None
    each_turn: Callable[[Bench, int, str], object] = lambda bench, port, queue_url: None
    slow: bool = False
    polls: bool = False
    queues: bool = False
    postgres: bool = False


def _fill(per_s: int) -> Callable[[Bench, int, str], object]:
    def fill(bench: Bench, port: int, queue_url: str) -> None:
        stock.fill(port=port, queue_url=queue_url, messages=round(bench.seconds * 0.5 * per_s))

    return fill


def _wait(bench: Bench, port: int, queue_url: str) -> None:
    stock.fill(port=port, queue_url=queue_url, messages=bench.backlog_max)


def _take(bench: Bench, port: int, queue_url: str) -> None:
    stock.fill(port=port, queue_url=queue_url, messages=IN_FLIGHT + 1_000)
    groups.lease(port=port, queue_url=queue_url, messages=IN_FLIGHT)


def _block(bench: Bench, port: int, queue_url: str) -> None:
    groups.block_groups(port=port, queue_url=queue_url, groups=10_000)


FIFO = {"BENCH_GROUPS": "1000", "BENCH_FIFO": "1"}

ROWS: Mapping[str, Row] = {
    "send": Row(workloads=(SEND,)),
    "receive": Row(workloads=(RECEIVE, DELETE), each_turn=_fill(90_000)),
    "cycle": Row(workloads=(CYCLE,)),
    "send-ten": Row(workloads=(SEND_TEN,)),
    "receive-ten": Row(workloads=(RECEIVE_TEN, DELETE_TEN), each_turn=_fill(240_000)),
    "cycle-ten": Row(workloads=(CYCLE_TEN,)),
    "waiting": Row(workloads=(CYCLE,), prepare=_wait),
    "in-flight": Row(workloads=(CYCLE,), prepare=_take),
    "fifo": Row(workloads=(CYCLE,), attributes={"FifoQueue": "true"}, environment=FIFO),
    "blocked": Row(workloads=(CYCLE,), attributes={"FifoQueue": "true"}, environment=FIFO, prepare=_block),
    "queues": Row(workloads=(QUEUES_CYCLE,), queues=True),
    "polls": Row(workloads=(), polls=True),
    "slow-send": Row(workloads=(SEND,), slow=True),
    "slow-cycle": Row(workloads=(CYCLE,), slow=True),
    "postgres": Row(workloads=(CYCLE,), postgres=True),
    "postgres-ten": Row(workloads=(CYCLE_TEN,), postgres=True),
    "postgres-fifo": Row(workloads=(CYCLE,), attributes={"FifoQueue": "true"}, environment=FIFO, postgres=True),
}
DEFAULT_ROWS = ("send", "receive", "cycle", "send-ten", "receive-ten", "cycle-ten")


class AgainstError(Exception):
    """The other commit cannot be checked out, or a server would not run its sources."""


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


def server(checkout: Path, *, slow: bool, database: PostgresServer | None) -> Server:
    """Return veilmq of a checkout, optionally with slow syncs or on a database."""
    options = (*ROOMY, "--fifo-in-flight-max", "1000000")
    if database is not None:
        return veilmq_on(database.url, *options, checkout=checkout)
    made = veilmq(*options, checkout=checkout)

    def command(port: int, admin_port: int, data: Path) -> Command:
        start = made.command(port, admin_port, data)
        arguments = list(start.arguments)
        if slow:
            arguments[1:3] = [str(CHECKOUT / "benchmarks" / "slow_sync.py"), str(SLOW_MS)]
        return replace(start, arguments=arguments)

    return replace(made, command=command)


class Figure(NamedTuple):
    """Messages or requests per second, p50 and p99, and the CPU time of server and database per message."""

    per_s: float
    cpu_us: float
    p50_ms: float
    p99_ms: float
    database_us: float = 0.0
    wal_bytes: float = 0.0


Figures = dict[str, Figure]


class Side:
    """A server of one checkout on an empty folder, prepared for the row."""

    def __init__(self, bench: Bench, row: Row, opened: Opened, handles: Path, database: PostgresServer | None) -> None:
        self._bench, self._row, self._opened, self._database = bench, row, opened, database
        with Sqs(port=opened.port) as sqs:
            self._url = sqs.create_queue("bench.fifo" if row.attributes else "bench", attributes=row.attributes)
            for n in range(QUEUES if row.queues else 0):
                sqs.create_queue(f"bench{n}")
        self._environment = {**SDK, **row.environment, "BENCH_HANDLES": str(handles), "BENCH_QUEUE_URL": self._url}
        self._environment["BENCH_QUEUES"] = str(QUEUES)
        row.prepare(bench, opened.port, self._url)

    def turn(self, number: int) -> Figures:
        if self._row.polls:
            return {"polls": _polls(self._bench, self._opened, self._url)}
        self._row.each_turn(self._bench, self._opened.port, self._url)
        environment = {**self._environment, "BENCH_RUN": str(number)}
        return {
            each.figure: _one(self._bench, self._opened, each, environment, self._database)
            for each in self._row.workloads
        }


def _one(
    bench: Bench, opened: Opened, workload: Workload, environment: Mapping[str, str], database: PostgresServer | None
) -> Figure:
    seconds = bench.seconds * workload.share
    load = Load(script=workload.script, seconds=seconds, connections=bench.connections, environment=environment)
    spent = None if database is None else on_postgres.spent(database)
    before = opened.process.usage()
    result = wrk.run(load, url=opened.url)
    after = opened.process.usage()
    if why := rates.refusal(workload, result, connections=load.connections):
        raise AgainstError(f"{workload.figure}: {why}")
    if sum(result.errors.values()) or result.counts["refused"]:
        raise AgainstError(f"{workload.figure}: {result.errors} {result.counts}")
    per_s = workload.per_s(result)
    messages = per_s * result.duration_s
    figure = Figure(per_s, (after.cpu_s - before.cpu_s) / messages * 1e6, result.p50_ms, result.p99_ms)
    if database is None or spent is None:
        return figure
    cost = on_postgres.cost(spent, on_postgres.spent(database), messages=round(messages), seconds=result.duration_s)
    return figure._replace(database_us=cost.cpu_us, wal_bytes=cost.wal_bytes)


def _polls(bench: Bench, opened: Opened, url: str) -> Figure:
    environment = {**SDK, "BENCH_QUEUE_URL": url}
    polling: list[wrk.LoadResult] = []

    def poll() -> None:
        load = Load(script="polls", seconds=bench.seconds + 1, connections=POLLS, environment=environment)
        polling.append(wrk.run(load, url=opened.url))

    thread = threading.Thread(target=poll)
    thread.start()
    before = opened.process.usage()
    load = Load(script="send", seconds=bench.seconds, connections=SENDERS, environment=environment)
    sending = wrk.run(load, url=opened.url)
    after = opened.process.usage()
    thread.join()
    (polled,) = polling
    per_s = polled.counts["deletes"] / bench.seconds
    cpu_us = (after.cpu_s - before.cpu_s) / bench.seconds / per_s * 1e6
    return Figure(per_s, cpu_us, sending.p50_ms, polled.p99_ms)


def compare(
    bench: Bench, name: str, processes: int, turns: int, checkouts: tuple[Path, Path]
) -> dict[str, list[tuple[Figure, Figure]]]:
    """Return the figures of both sides for each workload of a row, a pair per turn.

    Two servers run side by side in alternating turns; after `turns` turns, two new ones replace them.
    """
    row = ROWS[name]
    found: list[tuple[Figures, Figures]] = []
    for process in range(processes):
        with ExitStack() as stack:
            sides = {}
            for checkout in checkouts:
                database = stack.enter_context(on_postgres.database(bench)) if row.postgres else None
                opened = stack.enter_context(bench.opened(server(checkout, slow=row.slow, database=database)))
                handles = stack.enter_context(bench.folder()) / "handles"
                sides[checkout] = Side(bench, row, opened, handles, database)
                if row.postgres:
                    sides[checkout].turn(turns)
            for turn in range(turns):
                order = checkouts if turn % 2 == process % 2 else checkouts[::-1]
                got = {checkout: sides[checkout].turn(turn) for checkout in order}
                found.append((got[checkouts[0]], got[checkouts[1]]))
                bench.log(f"{name} {process + 1}.{turn + 1} " + _short(*found[-1]))
    return {figure: [(old[figure], new[figure]) for old, new in found] for figure in found[0][0]}


def _short(old: Figures, new: Figures) -> str:
    return " ".join(
        f"{figure}: {old[figure].per_s:,.0f} → {new[figure].per_s:,.0f} = {new[figure].per_s / old[figure].per_s:.3f}"
        f" (CPU {old[figure].cpu_us:.1f} → {new[figure].cpu_us:.1f} µs)"
        for figure in old
    )


def _line(name: str, figure: str, pairs: Sequence[tuple[Figure, Figure]]) -> str:
    ratios = [new.per_s / old.per_s for old, new in pairs]
    cpu = [new.cpu_us / old.cpu_us for old, new in pairs]
    old, new = (median(pair[side].per_s for pair in pairs) for side in (0, 1))
    p50 = median(new.p50_ms / old.p50_ms for old, new in pairs)
    p99 = median(new.p99_ms / old.p99_ms for old, new in pairs)
    each = " ".join(f"{ratio:.2f}" for ratio in ratios)
    line = (
        f"| {name} | {figure} | {old:,.0f} | {new:,.0f} | {median(ratios):.2f} | {min(ratios):.2f}–{max(ratios):.2f} | "
        f"{median(cpu):.2f} | {p50:.2f} | {p99:.2f} | {each} |"
    )
    if all(old.wal_bytes for old, _ in pairs):
        database = median(new.database_us / old.database_us for old, new in pairs)
        line += f" database {database:.2f} | WAL {median(new.wal_bytes / old.wal_bytes for old, new in pairs):.2f} |"
    return line


def run(
    bench: Bench,
    revision: str,
    *,
    names: Sequence[str],
    processes: int,
    turns: int,
    out: Path,
    machine: Mapping[str, object],
) -> None:
    """Measure, print a line for each workload, and write `against.json`. Raises `AgainstError`."""
    rows: list[dict[str, object]] = []
    with checked_out(revision) as there:
        print(" · ".join(f"{name} {value}" for name, value in machine.items()))
        print(f"| row | workload | {revision} | here | here ÷ there | of the pairs | CPU | p50 | p99 | each |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        for name in names or DEFAULT_ROWS:
            for figure, pairs in compare(bench, name, processes, turns, (there, CHECKOUT)).items():
                print(_line(name, figure, pairs), flush=True)
                rows.append(
                    {"row": name, "workload": figure, "pairs": [[old._asdict(), new._asdict()] for old, new in pairs]}
                )
    out.mkdir(parents=True, exist_ok=True)
    content = {"against": revision, "seconds": bench.seconds, "machine": machine, "rows": rows}
    (out / "against.json").write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"written: {out / 'against.json'}")

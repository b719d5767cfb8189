"""The cost of other kinds of queues relative to a standard one: FIFO, fair, many blocked groups.

Every figure is a ratio of two measurements in alternating turns on the same server, so a busy minute affects both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

from benchmarks import groups, rates, stock, wrk
from benchmarks.bench import Bench, Opened
from benchmarks.rates import CYCLE, Workload
from benchmarks.row import Row, Section, alone, failed
from benchmarks.servers import VEILMQ, Server, veilmq
from benchmarks.sqs import Sqs
from benchmarks.wrk import Load, LoadError

MANY = 1_000
TURNS = 2
GROUPS_MOST = 100_000
FREE = 10
NOISY_MOST = 1_000_000
QUIET_TRIES = 200
IN_FLIGHT_MAX = 200_000
ROOMY = veilmq("--in-flight-max", str(IN_FLIGHT_MAX), "--fifo-in-flight-max", str(IN_FLIGHT_MAX))
FIFO = {"FifoQueue": "true"}
EXPORTING = veilmq("--events-to", "{data}/events", "--events-period-s", "1", "--event-log", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of queue for the cycle; its sends use `groups` message groups in turn."""

    figure: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    groups: int = 0
    connections: int | None = None

    def queue(self, turn: int) -> str:
        """Return a new name for each turn: messages left in flight would block groups of the next turn."""
        words = "".join(c if c.isalnum() else "-" for c in self.figure)
        return f"kind-{turn}-{words}" + (".fifo" if self.is_fifo else "")

    @property
    def is_fifo(self) -> bool:
        return "FifoQueue" in self.attributes

    @property
    def environment(self) -> Mapping[str, str]:
        if not self.groups:
            return {}
        return {"BENCH_GROUPS": str(self.groups), "BENCH_FIFO": "1" if self.is_fifo else "0"}


STANDARD = Kind(figure="standard")
ALONE = Kind(figure="standard, 1 connection", connections=1)
PAIRS = (
    (Kind(figure=f"FIFO, {MANY:,} groups", attributes=FIFO, groups=MANY), STANDARD),
    (Kind(figure=f"fair, {MANY:,} groups", groups=MANY), STANDARD),
    (Kind(figure="FIFO, one group, 1 connection", attributes=FIFO, groups=1, connections=1), ALONE),
)
LOGGED_PAIRS = ((Kind(figure="logged and exported", attributes={"VeilmqEventLog": "closed"}), STANDARD),)


def measure(bench: Bench) -> Iterator[Section]:
    """Measure cycles of each kind against the standard one, then blocked and noisy groups."""
    bench.log("kinds …")
    parts = (
        ("cycle by kind of queue", partial(_cycles, server=VEILMQ, pairs=PAIRS)),
        ("cycle with the event log", partial(_cycles, server=EXPORTING, pairs=LOGGED_PAIRS)),
        ("blocked groups", _blocked),
        ("noisy group", _noisy),
    )
    for name, rows in parts:
        bench.log(f"  {name}")
        yield Section(name=name, rows=tuple(_safely(bench, name, rows)))


def _safely(bench: Bench, name: str, rows: Callable[[Bench], Iterator[Row]]) -> Iterator[Row]:
    try:
        yield from rows(bench)
    except rates.FAILURES as failure:
        bench.log(f"  {failure}")
        yield alone(name, "", failed(failure))


def _cycles(bench: Bench, *, server: Server, pairs: Sequence[tuple[Kind, Kind]]) -> Iterator[Row]:
    with bench.opened(server) as opened:
        for kind, base in pairs:
            shares, per_s = [], []
            for turn in range(TURNS):
                standard = _cycle_per_s(bench, opened, base, turn)
                per_s.append(_cycle_per_s(bench, opened, kind, turn))
                shares.append(per_s[-1] / standard)
            yield alone(f"cycle, {kind.figure}", "requests/s", median(per_s))
            yield alone(f"cycle, {kind.figure} ÷ {base.figure}", "times", median(shares))


def _cycle_per_s(bench: Bench, opened: Opened, kind: Kind, turn: int) -> float:
    with Sqs(port=opened.port) as sqs:
        url = sqs.create_queue(kind.queue(turn), attributes=kind.attributes)
    return per_s(opened, CYCLE, url, bench.seconds / 2, kind.connections or bench.connections, kind.environment)


def per_s(
    opened: Opened, workload: Workload, url: str, seconds: float, connections: int, environment: Mapping[str, str]
) -> float:
    """Return the requests per second of `workload` on the queue at `url`. Raises `LoadError` if they did no work."""
    load = Load(
        script=workload.script,
        seconds=seconds,
        connections=connections,
        environment={"BENCH_QUEUE_URL": url, **environment},
    )
    result = wrk.run(load, url=opened.url)
    if why := rates.refusal(workload, result, connections=connections):
        raise LoadError(f"{workload.figure}: {why}")
    return result.requests_per_s


def _blocked(bench: Bench) -> Iterator[Row]:
    """Compare receives from a queue with mostly blocked groups to one that has only the free ones."""
    most = min(GROUPS_MOST, bench.backlog_max)
    with bench.opened(ROOMY) as opened, Sqs(port=opened.port) as sqs:
        crowded = sqs.create_queue("crowded.fifo", attributes=FIFO)
        empty = sqs.create_queue("empty.fifo", attributes=FIFO)
        groups.block_groups(port=opened.port, queue_url=crowded, groups=most - FREE)
        costs = _in_turn(opened, crowded, empty, send=groups.send_fifo)
        yield alone(f"FIFO, {most:,} groups, {most - FREE:,} blocked: receive + delete", "µs", costs[0])
        yield alone(f"FIFO, {most - FREE:,} groups blocked: cost ÷ cost without them", "times", costs[0] / costs[1])
        yield alone(f"FIFO, {most:,} groups: memory", "MB", opened.process.usage().rss_bytes / 1e6)


def _noisy(bench: Bench) -> Iterator[Row]:
    """Measure the messages of a quiet group behind the backlog of a noisy one."""
    most = min(NOISY_MOST, bench.backlog_max)
    with bench.opened(ROOMY) as opened, Sqs(port=opened.port) as sqs:
        crowded, empty = sqs.create_queue("crowded"), sqs.create_queue("empty")
        groups.make_noisy(port=opened.port, queue_url=crowded, messages=most)
        first = sum(groups.quiet_is_next(sqs, crowded, turn) for turn in range(QUIET_TRIES))
        yield alone(f"fair, {most:,} of a noisy group: quiet message is the next one", "of 1", first / QUIET_TRIES)
        costs = _in_turn(opened, crowded, empty, send=groups.send_fair)
        yield alone(f"fair, behind {most:,} of a noisy group: receive + delete", "µs", costs[0])
        yield alone(f"fair, behind {most:,}: cost ÷ cost without them", "times", costs[0] / costs[1])


def _in_turn(opened: Opened, here: str, there: str, *, send: Callable[..., object]) -> tuple[float, float]:
    """Return the wall time (µs) of a receive and a delete in both queues, in alternating rounds."""
    times: dict[str, list[float]] = {here: [], there: []}
    for turn in range(groups.ROUNDS):
        for url in (there, here):
            send(port=opened.port, queue_url=url, groups=FREE, messages=groups.ROUND, run=f"{turn}")
            times[url].append(stock.drain(port=opened.port, queue_url=url, messages=groups.ROUND, connections=FREE))
    return tuple(median(times[url]) / groups.ROUND * 1e6 for url in (here, there))  # type: ignore[return-value]

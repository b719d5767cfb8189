"""Requests and messages per second under wrk, next to the ceiling and the peers.

Each group of workloads runs on one fresh server, in the order ceiling, own class, veilmq, veilmq in memory, ceiling,
peers. The ceiling runs the same script before and after, and the two are averaged, so a change of the machine's speed
during the run favours no server.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import stock, wrk
from benchmarks.bench import Bench, Opened
from benchmarks.dialogue import DialogueError
from benchmarks.process import ServerError
from benchmarks.row import CEILING, SUBJECT, Row, Section, failed, mean
from benchmarks.servers import CEILING as CEILING_SERVER
from benchmarks.servers import IN_MEMORY, OWN_CLASS, PEERS, VEILMQ, Server
from benchmarks.sqs import AUTHORIZATION, Sqs, SqsError
from benchmarks.wrk import Load, LoadError, LoadResult

FILL_PER_S = 80_000
EMPTY_SHARE_MAX = 0.01
CEILING_CORES_MIN = 0.85
CEILING_DRIFT_MAX = 0.15
WRK_CORES_MAX = 0.95
PEER_SECONDS_MAX = 5.0
PEER_CONNECTIONS_FEWER = 8
PEER_ERRORS_MAX = 0.01
FAILURES = (LoadError, ServerError, SqsError, DialogueError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One script. `share` is its part of `--seconds`, `per_s` its messages per second, `short` its empty receives."""

    figure: str
    script: str
    per_s: Callable[[LoadResult], float]
    short: Callable[[LoadResult, int], int] = lambda result, connections: 0
    stored: Callable[[LoadResult], int] | None = None
    share: float = 1.0
    one_each: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One workload on one server. `trouble` lists everything but plain success; empty is good."""

    load: LoadResult
    messages_per_s: float
    server_cores: float
    rss_bytes: int
    connections: int
    trouble: str


SEND = Workload(
    figure="send",
    script="send",
    per_s=lambda result: result.requests_per_s,
    stored=lambda result: result.succeeded,
    one_each=True,
)
RECEIVE = Workload(
    figure="receive",
    script="receive",
    per_s=lambda result: result.count_per_s("received"),
    short=lambda result, connections: result.counts["short"],
    share=0.6,
    one_each=True,
    filled=True,
)
DELETE = Workload(
    figure="delete", script="delete", per_s=lambda result: result.requests_per_s, share=0.3, one_each=True
)
CYCLE = Workload(
    figure="cycle",
    script="cycle",
    per_s=lambda result: result.count_per_s("deletes"),
    short=lambda result, connections: max(0, result.counts["receives"] - result.counts["received"] - connections),
)
SEND_TEN = Workload(
    figure="send by ten",
    script="send_ten",
    per_s=lambda result: result.count_per_s("sent"),
    stored=lambda result: result.counts["sent"],
)
CYCLE_TEN = Workload(
    figure="cycle by ten",
    script="cycle_ten",
    per_s=lambda result: result.count_per_s("deleted"),
)

GROUPS: Mapping[str, Sequence[tuple[Workload, ...]]] = {
    "send": ((SEND,),),
    "receive": ((RECEIVE, DELETE),),
    "cycle": ((CYCLE,),),
    "batch": ((SEND_TEN,), (CYCLE_TEN,)),
}
ONE_BY_ONE = ((SEND,), (CYCLE,))

Outcome = Mapping[str, Measured] | str


def measure(bench: Bench, name: str) -> Iterator[Section]:
    """Yield the sections of one named group."""
    for group in GROUPS[name]:
        figures = ", ".join(workload.figure for workload in group)
        bench.log(f"{figures} …")
        outcomes = dict(_outcomes(bench, group))
        rows = tuple(row for workload in group for row in _rows(workload, outcomes))
        yield Section(name=figures, rows=rows, raw={server: _raw(outcome) for server, outcome in outcomes.items()})


def by_ten(sections: Sequence[Section]) -> Section | None:
    """Return messages/s by ten over messages/s one by one, if both were measured."""
    found = {(row.figure, row.unit): row for section in sections for row in section.rows}
    rows = []
    for ten, one, unit in ((SEND_TEN, SEND, "requests/s"), (CYCLE_TEN, CYCLE, "messages/s")):
        many, single = found.get((ten.figure, "messages/s")), found.get((one.figure, unit))
        if many is not None and single is not None:
            rows.append(_quotient(f"{ten.figure} ÷ one by one", many.values[SUBJECT], single.values[SUBJECT]))
    return Section(name="by ten against one by one", rows=tuple(rows)) if rows else None


def _quotient(figure: str, many: float | str, single: float | str) -> Row:
    value: float | str = "not measured"
    if isinstance(many, float) and isinstance(single, float) and single > 0:
        value = many / single
    return Row(figure=figure, unit="times", values={SUBJECT: value})


def _outcomes(bench: Bench, group: tuple[Workload, ...]) -> Iterator[tuple[str, Outcome]]:
    before = outcome_on(bench, CEILING_SERVER, group, seconds=bench.seconds / 2)
    yield OWN_CLASS.name, outcome_on(bench, OWN_CLASS, group, seconds=bench.seconds / 2)
    yield SUBJECT, outcome_on(bench, VEILMQ, group, seconds=bench.seconds)
    if group in ONE_BY_ONE:
        yield IN_MEMORY.name, outcome_on(bench, IN_MEMORY, group, seconds=bench.seconds / 2)
    after = outcome_on(bench, CEILING_SERVER, group, seconds=bench.seconds / 2)
    yield f"{CEILING} before", before
    yield f"{CEILING} after", after
    if bench.peers and group in ONE_BY_ONE:
        for peer in PEERS:
            yield peer.name, _peer_outcome(bench, peer, group)


def _peer_outcome(bench: Bench, peer: Server, group: tuple[Workload, ...]) -> Outcome:
    """Measure a peer with all connections, or with fewer if it fails with all."""
    seconds = min(bench.seconds, PEER_SECONDS_MAX)
    found = outcome_on(bench, peer, group, seconds=seconds)
    if isinstance(found, str) or all(_error_share(measured.load) <= PEER_ERRORS_MAX for measured in found.values()):
        return found
    bench.log(f"  {peer.name} fails with {bench.connections} connections; again with {PEER_CONNECTIONS_FEWER}")
    return outcome_on(bench, peer, group, seconds=seconds, connections=PEER_CONNECTIONS_FEWER)


def _error_share(load: LoadResult) -> float:
    return sum(load.errors.values()) / max(1, load.requests)


def outcome_on(
    bench: Bench,
    server: Server,
    group: tuple[Workload, ...],
    *,
    seconds: float,
    connections: int | None = None,
) -> Outcome:
    """Measure the group on a fresh `server`; return the reason if that fails."""
    if missing := server.missing():
        return missing
    bench.log(f"  {server.name}")
    try:
        with bench.opened(server) as opened, bench.folder() as scratch:
            run = _Run(opened, server, scratch / "handles", connections or bench.connections)
            return {workload.figure: run.measure(workload, seconds=seconds * workload.share) for workload in group}
    except FAILURES as failure:
        bench.log(f"  {server.name}: {failure}")
        return failed(failure)


def refusal(workload: Workload, result: LoadResult, *, connections: int) -> str | None:
    """Return why the counts of wrk are no valid figure of this workload, or None."""
    if workload.per_s(result) <= 0:
        return f"no message was moved by {result.requests} requests"
    if spent := result.counts["spent"]:
        return f"the handles ran out, {spent} deletes were repeats"
    short = workload.short(result, connections)
    if short > EMPTY_SHARE_MAX * result.requests:
        return f"{short} of {result.requests} requests were receives that came back empty"
    return None


class _Run:
    """One server that is up, and the workloads that run on it one after another."""

    def __init__(self, opened: Opened, server: Server, handles: Path, connections: int) -> None:
        self._opened = opened
        self._server = server
        self._connections = connections
        self.queue_url = "" if server.constant else self._create_queue()
        self._environment = {"BENCH_HANDLES": str(handles)}
        self._environment |= {"BENCH_CONSTANT": "1"} if server.constant else {"BENCH_QUEUE_URL": self.queue_url}
        if server.authorization:
            self._environment["BENCH_AUTHORIZATION"] = AUTHORIZATION

    def _create_queue(self) -> str:
        with Sqs(port=self._opened.port) as sqs:
            return sqs.create_queue("bench")

    def measure(self, workload: Workload, *, seconds: float) -> Measured:
        if workload.filled and not self._server.constant:
            stock.fill(port=self._opened.port, queue_url=self.queue_url, messages=round(seconds * FILL_PER_S))
        load = Load(
            script=workload.script,
            seconds=seconds,
            connections=self._connections,
            environment=self._environment,
        )
        before = self._opened.process.usage()
        result = wrk.run(load, url=self._opened.url)
        after = self._opened.process.usage()
        self._check(workload, result)
        return Measured(
            load=result,
            messages_per_s=workload.per_s(result),
            server_cores=(after.cpu_s - before.cpu_s) / result.duration_s,
            rss_bytes=after.rss_bytes,
            connections=self._connections,
            trouble="; ".join(self._troubles(workload, result)),
        )

    def _troubles(self, workload: Workload, result: LoadResult) -> Iterator[str]:
        yield from (f"{count} {name} errors" for name, count in result.errors.items() if count)
        yield from (f"{result.counts[name]} {name}" for name in ("refused",) if result.counts[name])
        if short := workload.short(result, self._connections):
            yield f"{short} empty receives"

    def _check(self, workload: Workload, result: LoadResult) -> None:
        """Raise if the figure is invalid: see `refusal`, and acknowledged sends that are missing."""
        if why := refusal(workload, result, connections=self._connections):
            raise LoadError(f"{workload.figure}: {why}")
        if workload.stored is None or self._server.constant:
            return
        acknowledged = workload.stored(result)
        with Sqs(port=self._opened.port) as sqs:
            present = sqs.messages(self.queue_url)
        if present < acknowledged:
            raise LoadError(f"{acknowledged - present} of {acknowledged} acknowledged sends are missing")


def _rows(workload: Workload, outcomes: Mapping[str, Outcome]) -> Iterator[Row]:
    note = "; ".join(_notes(workload, outcomes))

    def row(unit: str, value: Callable[[Measured], float], *, compare: bool = False, note: str = "") -> Row:
        values = _values(workload, outcomes, value)
        return Row(figure=workload.figure, unit=unit, values=values, compare=compare, note=note)

    yield row("requests/s", lambda measured: measured.load.requests_per_s, compare=True, note=note)
    if not workload.one_each:
        yield row("messages/s", lambda measured: measured.messages_per_s, compare=True)
    yield row("p50 ms", lambda measured: measured.load.p50_ms)
    yield row("p99 ms", lambda measured: measured.load.p99_ms)
    yield row("server cores", lambda measured: measured.server_cores)
    yield row("wrk cores", lambda measured: measured.load.load_cores)


def _values(
    workload: Workload, outcomes: Mapping[str, Outcome], value: Callable[[Measured], float]
) -> Mapping[str, float | str]:
    values: dict[str, float | str] = {}
    ceilings: list[float] = []
    for server, outcome in outcomes.items():
        number = outcome if isinstance(outcome, str) else value(outcome[workload.figure])
        if not server.startswith(CEILING):
            values[server] = number
        elif isinstance(number, float):
            ceilings.append(number)
    return {CEILING: mean(ceilings) if ceilings else "not measured", **values}


def _notes(workload: Workload, outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    yield from quiet(_ceilings(workload, outcomes))
    most = max((m[workload.figure].connections for m in outcomes.values() if not isinstance(m, str)), default=0)
    for server, outcome in outcomes.items():
        if isinstance(outcome, str):
            continue
        measured = outcome[workload.figure]
        if measured.trouble:
            yield f"{server}: {measured.trouble}"
        if measured.connections < most:
            yield f"{server}: {measured.connections} connections"
    if limited := _limited(workload, outcomes):
        yield f"wrk at its limit: {', '.join(limited)}"


def _limited(workload: Workload, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Name the servers at which wrk was the bottleneck: they may be faster than the figure."""
    measured = {name: outcome[workload.figure] for name, outcome in outcomes.items() if not isinstance(outcome, str)}
    return [name for name, one in measured.items() if one.load.load_cores > WRK_CORES_MAX]


def _ceilings(workload: Workload, outcomes: Mapping[str, Outcome]) -> list[Measured]:
    found = (outcome for server, outcome in outcomes.items() if server.startswith(CEILING))
    return [outcome[workload.figure] for outcome in found if not isinstance(outcome, str)]


def quiet(ceilings: Sequence[Measured]) -> Iterator[str]:
    """Return why the ceiling is invalid, if another program used the machine.

    The ceiling and wrk are always busy, so each either had a core or was kept from it.
    """
    if not ceilings:
        return
    cores = min(measured.server_cores for measured in ceilings)
    if cores < CEILING_CORES_MIN:
        yield f"NOT QUIET: the ceiling got {cores:.2f} cores, so shares of it are too high"
    rates = [measured.load.requests_per_s for measured in ceilings]
    if max(rates) > min(rates) * (1 + CEILING_DRIFT_MAX):
        yield f"NOT QUIET: the ceiling was {rates[0]:,.0f} before and {rates[-1]:,.0f} after"


def _raw(outcome: Outcome) -> object:
    if isinstance(outcome, str):
        return outcome
    return {figure: asdict(measured) for figure, measured in outcome.items()}

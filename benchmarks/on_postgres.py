"""veilmq on PostgreSQL: over HTTP with one and two nodes, and the cost of its statements in the database.

All measurements use one PostgreSQL server, from the wheel, with durable settings. The second part drives the store
directly, ten messages per cycle, next to the statements of pgmq (without its extension): processor time of the database
and WAL per message, on an empty queue, behind a backlog, and with many messages in flight.
"""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import asyncpg
import psutil

from benchmarks import wrk
from benchmarks.bench import Bench, Opened, Place
from benchmarks.direct import GROUPS, IN_FLIGHT, Direct, Ours, OursWithGroups, PgmqStyle
from benchmarks.process import running
from benchmarks.rates import CYCLE, CYCLE_TEN, FAILURES, Workload, refusal
from benchmarks.row import SUBJECT, Row, Section, alone, failed
from benchmarks.servers import veilmq_on
from benchmarks.sqs import Sqs
from benchmarks.wrk import Load, LoadError
from examples.cluster.postgres_server import PostgresServer

PEER = "pgmq's statements"
NODES = (1, 2)
CYCLES = 1_000
HELD = "a transaction held open"
BATCH = 10
DRAINED = 12_000
SETTINGS = {
    "checkpoint_timeout": "1h",
    "fsync": "on",
    "max_wal_size": "8GB",
    "shared_buffers": "1GB",
    "synchronous_commit": "on",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Processor time and WAL of the database so far."""

    cpu_s: float
    wal_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a message from send to delete."""

    messages_per_s: float
    cpu_us: float
    wal_bytes: float


def measure(bench: Bench) -> Iterator[Section]:
    """Yield the rates over HTTP, then the costs in the database."""
    bench.log("postgres …")
    try:
        with database(bench) as server:
            for nodes in NODES:
                yield from (_served(bench, server, workload, nodes) for workload in (CYCLE, CYCLE_TEN))
            yield _costs(bench, server)
            yield _held(bench, server)
    except FAILURES as failure:
        yield Section(name="postgres", rows=(Row(figure="postgres", unit="", values={SUBJECT: failed(failure)}),))


@contextmanager
def database(bench: Bench) -> Iterator[PostgresServer]:
    """Run a new server in a folder on the disk of the bench."""
    with bench.folder() as folder:
        for path in (folder.parent, folder):
            path.chmod(0o755)  # started by root, it runs as another user
        with PostgresServer(folder / "postgres", settings=SETTINGS) as server:
            yield server


def spent(server: PostgresServer) -> Spent:
    """Return the usage of all processes of the server, including those that have ended."""
    leader = psutil.Process(server.pid)
    times = leader.cpu_times()
    cpu_s = times.user + times.system + times.children_user + times.children_system
    for child in leader.children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # ended after the listing; the leader reports its time in the next figure
            with_child = child.cpu_times()
            cpu_s += with_child.user + with_child.system
    return Spent(cpu_s=cpu_s, wal_bytes=int(server.sql("SELECT pg_current_wal_insert_lsn() - '0/0'")))


def cost(before: Spent, after: Spent, *, messages: int, seconds: float) -> Cost:
    return Cost(
        messages_per_s=messages / seconds,
        cpu_us=(after.cpu_s - before.cpu_s) / messages * 1e6,
        wal_bytes=(after.wal_bytes - before.wal_bytes) / messages,
    )


# Over HTTP.


def _served(bench: Bench, server: PostgresServer, workload: Workload, nodes: int) -> Section:
    figure = f"{workload.figure}, {nodes} {'node' if nodes == 1 else 'nodes'}"
    bench.log(f"  {figure}")
    try:
        result, node_us = _load(bench, server, workload, nodes)
    except FAILURES as failure:
        return Section(name=figure, rows=(Row(figure=figure, unit="messages/s", values={SUBJECT: failed(failure)}),))
    rows = (
        alone(figure, "messages/s", result.messages_per_s),
        alone(figure, "database CPU µs/message", result.cpu_us),
        alone(figure, "node CPU µs/message", node_us),
        alone(figure, "WAL bytes/message", result.wal_bytes),
    )
    return Section(name=figure, rows=rows, raw=asdict(result))


def _load(bench: Bench, server: PostgresServer, workload: Workload, nodes: int) -> tuple[Cost, float]:
    """Drive the nodes at once, each with its share of the connections; return also their CPU time per message."""
    with ExitStack() as stack:
        opened = [_node(stack, bench, server) for _ in range(nodes)]
        with Sqs(port=opened[0].port) as sqs:
            queue_url = sqs.create_queue(f"bench-{workload.script.replace('_', '-')}-{nodes}")
        connections = max(1, bench.connections // nodes)
        load = Load(
            script=workload.script,
            seconds=bench.seconds,
            connections=connections,
            environment={"BENCH_QUEUE_URL": queue_url},
        )
        before, nodes_before_s = spent(server), _cpu_s(opened)
        with ThreadPoolExecutor(nodes) as pool:
            results = list(pool.map(lambda node: wrk.run(load, url=node.url), opened))
        after, nodes_s = spent(server), _cpu_s(opened) - nodes_before_s
    for result in results:
        if nodes == 1 and (why := refusal(workload, result, connections=connections)):
            raise LoadError(f"{workload.figure}: {why}")
    seconds = max(result.duration_s for result in results)
    messages = round(sum(workload.per_s(result) * result.duration_s for result in results))
    if not messages:
        raise LoadError(f"{workload.figure}: no message was moved")
    return cost(before, after, messages=messages, seconds=seconds), nodes_s / messages * 1e6


def _node(stack: ExitStack, bench: Bench, server: PostgresServer) -> Opened:
    place = Place.fresh(veilmq_on(server.url, "--in-flight-max", "1000000"), data=Path())
    return Opened(process=stack.enter_context(running(place.command)), port=place.port)


def _cpu_s(nodes: list[Opened]) -> float:
    return sum(node.process.usage().cpu_s for node in nodes)


# In the database.


def _costs(bench: Bench, server: PostgresServer) -> Section:
    points = [(0, 0), (0, IN_FLIGHT), (bench.backlog_max, 0)]
    rows: list[Row] = []
    found: dict[str, dict[str, Cost]] = {}
    for name, kind in ((SUBJECT, Ours), (PEER, PgmqStyle)):
        bench.log(f"  statements: {name}")
        found[name] = asyncio.run(_measured(server, kind(server.url), points, held=True))
    bench.log("  statements: veilmq, with groups")
    (grouped,) = asyncio.run(_measured(server, OursWithGroups(server.url), points[:1])).values()
    first, *others = found[SUBJECT]
    for at in found[SUBJECT]:
        here = {name: costs[at] for name, costs in found.items()}
        rows.append(_pair(at, "database CPU µs/message", {name: each.cpu_us for name, each in here.items()}))
        rows.append(_pair(at, "WAL bytes/message", {name: each.wal_bytes for name, each in here.items()}))
        rows.append(_pair(at, "messages/s", {name: each.messages_per_s for name, each in here.items()}))
    at = f"{GROUPS:,} groups"
    rows.append(alone(at, "database CPU µs/message", grouped.cpu_us))
    rows.append(alone(at, "WAL bytes/message", grouped.wal_bytes))
    for at in others:
        ratios = {name: costs[at].cpu_us / costs[first].cpu_us for name, costs in found.items()}
        rows.append(_pair(f"{at} ÷ {first}", "times the CPU", ratios))
    return Section(
        name="statements, ten at a time", rows=tuple(rows), raw={name: _raw(costs) for name, costs in found.items()}
    )


async def _measured(
    server: PostgresServer, kind: Direct, points: list[tuple[int, int]], *, held: bool = False
) -> dict[str, Cost]:
    """Return the cost at each of `points` (messages waiting, in flight), and while a snapshot is `held`."""
    costs: dict[str, Cost] = {}
    async with kind as direct:
        for waiting, in_flight in points:
            await direct.begin(waiting=waiting, in_flight=in_flight)
            at = f"{in_flight:,} in flight" if in_flight else f"{waiting:,} waiting"
            costs[at] = await _cycles(server, direct)
        if held:
            await direct.begin(waiting=0, in_flight=0)
            connection = await asyncpg.connect(server.url)
            async with connection.transaction(isolation="repeatable_read"):
                await connection.execute("SELECT FROM mq.queue")
                costs[HELD] = await _cycles(server, direct)
            await connection.close()
    return costs


def _raw(costs: dict[str, Cost]) -> dict[str, object]:
    return {at: asdict(cost) for at, cost in costs.items()}


def _held(bench: Bench, server: PostgresServer) -> Section:
    """Compare the rate at the end of a drain with one while an open transaction prevents all cleanup."""
    rates: dict[str, dict[bool, float]] = {}
    for name, kind in ((SUBJECT, Ours), (PEER, PgmqStyle)):
        bench.log(f"  a transaction held open: {name}")
        rates[name] = {held: asyncio.run(_drained(kind(server.url), server.url, held=held)) for held in (False, True)}
    return Section(
        name=f"{DRAINED:,} messages drained, the last third",
        rows=(
            _pair("no transaction open", "messages/s", {name: rate[False] for name, rate in rates.items()}),
            _pair("one held open", "messages/s", {name: rate[True] for name, rate in rates.items()}),
            _pair(
                "held open ÷ none open",
                "times the rate",
                {name: rate[True] / rate[False] for name, rate in rates.items()},
            ),
        ),
    )


async def _drained(kind: Direct, url: str, *, held: bool) -> float:
    async with kind as direct:
        await direct.begin(waiting=DRAINED, in_flight=0)
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction(isolation="repeatable_read"):
                if held:
                    await connection.execute("SELECT count(*) FROM pg_class")  # from here on nothing is cleaned up
                for _ in range(DRAINED * 2 // 3 // BATCH):
                    await direct.take(BATCH)
                began_s = time.perf_counter()
                for _ in range(DRAINED // 3 // BATCH):
                    await direct.take(BATCH)
                return DRAINED // 3 / (time.perf_counter() - began_s)
        finally:
            await connection.close()


async def _cycles(server: PostgresServer, direct: Direct) -> Cost:
    for _ in range(CYCLES // 10):
        await direct.cycle(BATCH)
    before, began_s = spent(server), time.perf_counter()
    for _ in range(CYCLES):
        await direct.cycle(BATCH)
    seconds = time.perf_counter() - began_s
    return cost(before, spent(server), messages=CYCLES * BATCH, seconds=seconds)


def _pair(figure: str, unit: str, values: dict[str, float]) -> Row:
    return Row(figure=figure, unit=unit, values=dict(values))

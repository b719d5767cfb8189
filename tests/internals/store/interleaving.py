"""A driver that decides which of several transactions on PostgreSQL goes on, at each of their statements.

Each call has a connection of its own, which waits before every statement, commit and rollback until it is the call's
turn; so one statement runs at a time. One that waits for a lock is recognised by what the server says of its backend
(`pg_blocking_pids`), and another call goes on; it arrives at its next statement once the lock is free.

A schedule is the list of the calls that were chosen. `explore` runs the calls one after the other, in each order, then
every schedule that differs from one that was run by a switch from a call that could have gone on, up to a bound.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

from veilmq.store.postgres.database import SETTINGS

_PATIENCE_S = 60
_LOOK_S = 0.002
"""How long a statement may take before the server is asked whether it waits for a lock."""
_STATEMENTS = frozenset({"execute", "executemany", "fetch", "fetchrow", "fetchval"})


class Turns:
    """When the call of one connection goes on."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.pid = connection.get_server_pid()
        self.is_over = False
        self._arrived = asyncio.Event()
        self._may_go = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Whether it waits for its turn."""
        return self._arrived.is_set() and not self.is_over

    async def wait(self) -> None:
        self._arrived.set()
        await self._may_go.wait()
        self._may_go.clear()

    def give(self) -> None:
        self._arrived.clear()
        self._may_go.set()

    def end(self) -> None:
        self.is_over = True
        self._arrived.set()

    async def arrival(self, timeout_s: float) -> bool:
        if not self._arrived.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return False
        return True


class Stepped:
    """A connection whose statements wait for their turn."""

    def __init__(self, connection: Any, turns: Turns) -> None:
        self._connection = connection
        self._turns = turns

    def __getattr__(self, name: str) -> Any:
        made = getattr(self._connection, name)
        if name not in _STATEMENTS:
            return made

        async def stepped(*arguments: Any, **options: Any) -> Any:
            await self._turns.wait()
            return await made(*arguments, **options)

        return stepped

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        transaction = self._connection.transaction(**options)
        await transaction.start()
        try:
            yield
        except BaseException:
            await self._turns.wait()
            await transaction.rollback()
            raise
        await self._turns.wait()
        await transaction.commit()

    async def cursor(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await self._turns.wait()
        async for row in self._connection.cursor(*arguments, **options):
            yield row


class OneConnection:
    """What stands for the database of a node that has one connection."""

    relaxes = False

    def __init__(self, connection: Any) -> None:
        self.on_lost: Any = None
        self._connection = connection
        self._afterwards: list[Callable[[], None]] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        try:
            yield self._connection
        finally:
            calls, self._afterwards = self._afterwards, []
            for call in calls:
                call()

    relaxed = connection

    def afterwards(self, connection: Any, call: Callable[[], None]) -> None:
        self._afterwards.append(call)


class Point(NamedTuple):
    """Where a call was chosen, and those that could have been."""

    chosen: int
    ready: frozenset[int]


class Run(NamedTuple):
    """What came of one schedule."""

    points: list[Point]
    answers: list[Any]
    deadlocks: int

    @property
    def schedule(self) -> tuple[int, ...]:
        """The calls that were chosen."""
        return tuple(point.chosen for point in self.points)

    def switches(self, end: int) -> int:
        """Return how often, of the first `end` choices, another call was chosen than one that could have gone on."""
        return sum(
            before.chosen != point.chosen and before.chosen in point.ready
            for before, point in zip(self.points[:end], self.points[1:end], strict=False)
        )


Begin = Callable[[Any], Awaitable[Any]]
"""Makes a call on a stepped connection; what it raises is its answer."""


class Driver:
    """Runs calls by a schedule, each on a connection of its own."""

    def __init__(self, connections: Sequence[Any], monitor: Any) -> None:
        self._connections = connections
        self._monitor = monitor

    async def run(self, calls: Sequence[Begin], schedule: Sequence[int]) -> Run:
        """Make the choices of `schedule`, but those that cannot be made; then go on with the last call while it can."""
        wanted = list(reversed(schedule))
        turns = [Turns(each) for each in self._connections[: len(calls)]]
        points: list[Point] = []
        deadlocks = 0
        tasks = [asyncio.ensure_future(_answer(call, each)) for call, each in zip(calls, turns, strict=True)]
        try:
            async with asyncio.timeout(_PATIENCE_S):
                for each in turns:
                    await self._settle(each)
                while not all(each.is_over for each in turns):
                    ready = frozenset(number for number, each in enumerate(turns) if each.is_ready)
                    if not ready:  # each waits for another one, until the server ends one of them
                        deadlocks += 1
                        while not any(each.is_ready for each in turns):
                            for each in turns:
                                await each.arrival(_LOOK_S)
                        continue
                    while wanted and wanted[-1] not in ready:
                        wanted.pop()
                    last = points[-1].chosen if points else None
                    chosen = wanted.pop() if wanted else last if last in ready else min(ready)
                    points.append(Point(chosen, ready))
                    turns[chosen].give()
                    for each in (turns[chosen], *turns):
                        await self._settle(each)
            return Run(points, [await task for task in tasks], deadlocks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, turns: Turns) -> None:
        while not await turns.arrival(_LOOK_S):
            if await self._monitor.fetchval("SELECT pg_blocking_pids($1)", turns.pid):
                return


async def _answer(call: Begin, turns: Turns) -> Any:
    try:
        return await call(Stepped(turns.connection, turns))
    except Exception as error:  # noqa: BLE001 - it is the answer
        return error
    finally:
        turns.end()


async def explore(
    run: Callable[[Sequence[int]], Awaitable[Run]], *, switches_max: int, runs_max: int | None, seed: int
) -> None:
    """Run all schedules of up to `switches_max` switches, or so many of them, drawn by `seed`.

    The first ones have no switch: the calls follow each other, in each order.
    """
    draw = random.Random(seed)
    levels: list[list[tuple[int, ...]]] = [[()], *([] for _ in range(switches_max))]
    runs = 0
    for level in levels:
        while level and (level is levels[0] or runs_max is None or runs < runs_max):
            prefix = level.pop(draw.randrange(len(level)))
            done = await run(prefix)
            runs += 1
            for switches, other in _others(done, len(prefix)):
                if switches <= switches_max:
                    levels[switches].append(other)


def _others(done: Run, after: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the schedules that differ from `done` in one choice behind the first `after`, with their switches."""
    schedule = done.schedule
    for place in range(after, len(done.points)):
        before = done.points[place - 1].chosen if place else None
        for other in done.points[place].ready - {done.points[place].chosen}:
            is_switch = before in done.points[place].ready and before != other
            yield done.switches(place) + is_switch, (*schedule[:place], other)


@asynccontextmanager
async def connected(url: str, count: int) -> AsyncIterator[list[Any]]:
    """Keep connections as nodes have them for a while; the server ends deadlocks at once."""
    settings = {**SETTINGS, "deadlock_timeout": "5ms"}
    terms: dict[str, Any] = {"server_settings": settings, "statement_cache_size": 1_000}
    connections = [await asyncpg.connect(url, **terms) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            await connection.close()

"""A driver that decides which of several PostgreSQL transactions continues, at each of their statements.

Each call has its own connection, which waits before every statement, commit and rollback until the driver releases it,
so one statement runs at a time. `pg_blocking_pids` shows whether a statement waits for a lock; then another call
continues, and the blocked call reaches its next statement when the lock is free.

A schedule is the list of chosen calls. `explore` runs the calls one after the other, in each order, then every schedule
that differs from a previous one by a switch away from a call that could continue, up to a limit.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import asyncpg

from veilmq.store.postgres.database import SETTINGS

_TIMEOUT_S = 60
_POLL_S = 0.002  # how long a statement may take before the driver checks whether it waits for a lock
_STATEMENTS = frozenset({"execute", "executemany", "fetch", "fetchrow", "fetchval"})


class Gate:
    """Holds one call before each of its statements."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.pid = connection.get_server_pid()
        self.is_finished = False
        self._arrived = asyncio.Event()
        self._released = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """Return whether the call waits for its release."""
        return self._arrived.is_set() and not self.is_finished

    async def wait(self) -> None:
        self._arrived.set()
        await self._released.wait()
        self._released.clear()

    def release(self) -> None:
        self._arrived.clear()
        self._released.set()

    def end(self) -> None:
        self.is_finished = True
        self._arrived.set()

    async def arrival(self, timeout_s: float) -> bool:
        if not self._arrived.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return False
        return True


class SteppedConnection:
    """A connection whose statements wait for their gate."""

    def __init__(self, connection: Any, gate: Gate) -> None:
        self._connection = connection
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._connection, name)
        if name not in _STATEMENTS:
            return attribute

        async def stepped(*arguments: Any, **options: Any) -> Any:
            await self._gate.wait()
            return await attribute(*arguments, **options)

        return stepped

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        transaction = self._connection.transaction(**options)
        await transaction.start()
        try:
            yield
        except BaseException:
            await self._gate.wait()
            await transaction.rollback()
            raise
        await self._gate.wait()
        await transaction.commit()

    async def cursor(self, *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        await self._gate.wait()
        async for row in self._connection.cursor(*arguments, **options):
            yield row


class SingleConnectionDatabase:
    """Replaces the database of a node by one connection."""

    relaxes = False

    def __init__(self, connection: Any) -> None:
        self.on_lost: Any = None
        self._connection = connection
        self._afterwards: list[Callable[[], None]] = []

    @asynccontextmanager
    async def connection(self, *, relaxed: bool = False) -> AsyncIterator[Any]:
        try:
            yield self._connection
        finally:
            calls, self._afterwards = self._afterwards, []
            for call in calls:
                call()

    def afterwards(self, connection: Any, call: Callable[[], None]) -> None:
        self._afterwards.append(call)


class Choice(NamedTuple):
    """The call chosen at a step, and all that were ready."""

    chosen: int
    ready: frozenset[int]


class Run(NamedTuple):
    """The result of one schedule."""

    choices: list[Choice]
    results: list[Any]
    deadlocks: int

    @property
    def schedule(self) -> tuple[int, ...]:
        """The chosen calls."""
        return tuple(choice.chosen for choice in self.choices)

    def switches(self, end: int) -> int:
        """Return how many of the first `end` choices switched away from a call that was ready."""
        return sum(
            before.chosen != choice.chosen and before.chosen in choice.ready
            for before, choice in zip(self.choices[:end], self.choices[1:end], strict=False)
        )


Call = Callable[[Any], Awaitable[Any]]  # runs a command on a stepped connection; an error is its result


class Driver:
    """Runs calls by a schedule, each on its own connection."""

    def __init__(self, connections: Sequence[Any], monitor: Any) -> None:
        self._connections = connections
        self._monitor = monitor

    async def run(self, calls: Sequence[Call], schedule: Sequence[int]) -> Run:
        """Follow `schedule` without choices that are not ready, then continue with the last call while it is ready."""
        remaining = list(reversed(schedule))
        gates = [Gate(each) for each in self._connections[: len(calls)]]
        choices: list[Choice] = []
        deadlocks = 0
        tasks = [asyncio.ensure_future(_result(call, each)) for call, each in zip(calls, gates, strict=True)]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                for each in gates:
                    await self._settle(each)
                while not all(each.is_finished for each in gates):
                    ready = frozenset(number for number, each in enumerate(gates) if each.is_ready)
                    if not ready:  # a deadlock, until the server aborts one of them
                        deadlocks += 1
                        while not any(each.is_ready for each in gates):
                            for each in gates:
                                await each.arrival(_POLL_S)
                        continue
                    while remaining and remaining[-1] not in ready:
                        remaining.pop()
                    last = choices[-1].chosen if choices else None
                    chosen = remaining.pop() if remaining else last if last in ready else min(ready)
                    choices.append(Choice(chosen, ready))
                    gates[chosen].release()
                    for each in (gates[chosen], *gates):
                        await self._settle(each)
            return Run(choices, [await task for task in tasks], deadlocks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _settle(self, gate: Gate) -> None:
        while not await gate.arrival(_POLL_S):
            if await self._monitor.fetchval("SELECT pg_blocking_pids($1)", gate.pid):
                return


async def _result(call: Call, gate: Gate) -> Any:
    try:
        return await call(SteppedConnection(gate.connection, gate))
    except Exception as error:  # noqa: BLE001 - it is the result
        return error
    finally:
        gate.end()


async def explore(
    run: Callable[[Sequence[int]], Awaitable[Run]], *, switches_max: int, runs_max: int | None, seed: int
) -> None:
    """Run all schedules with up to `switches_max` switches, or `runs_max` of them at random with `seed`.

    The first ones have no switch: they run the calls one after the other, in each order.
    """
    rng = random.Random(seed)
    levels: list[list[tuple[int, ...]]] = [[()], *([] for _ in range(switches_max))]
    runs = 0
    for level in levels:
        while level and (level is levels[0] or runs_max is None or runs < runs_max):
            prefix = level.pop(rng.randrange(len(level)))
            done = await run(prefix)
            runs += 1
            for switches, other in _others(done, len(prefix)):
                if switches <= switches_max:
                    levels[switches].append(other)


def _others(done: Run, after: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the schedules that differ from `done` in one choice after the first `after`, with their switches."""
    schedule = done.schedule
    for place in range(after, len(done.choices)):
        before = done.choices[place - 1].chosen if place else None
        for other in done.choices[place].ready - {done.choices[place].chosen}:
            is_switch = before in done.choices[place].ready and before != other
            yield done.switches(place) + is_switch, (*schedule[:place], other)


@asynccontextmanager
async def connected(url: str, count: int) -> AsyncIterator[list[Any]]:
    """Open connections with the settings of nodes, and with immediate detection of deadlocks."""
    settings = {**SETTINGS, "deadlock_timeout": "5ms"}
    terms: dict[str, Any] = {"server_settings": settings, "statement_cache_size": 1_000}
    connections = [await asyncpg.connect(url, **terms) for _ in range(count)]
    try:
        yield connections
    finally:
        for connection in connections:
            await connection.close()

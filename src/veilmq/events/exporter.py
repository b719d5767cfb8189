"""The exporter: takes events out of the store in their order and puts them where they belong, again and again.

For each range: it is planned (in the store), read in slices, written as files, and forgotten. Whatever ends the process
in between, the next one finds the plan and does the same again: files that are there are replaced by the same files. So
an event is neither lost nor told twice. While the target cannot be written, events wait in the store, up to a bound
(``docs/events.md``), and another try follows.

It runs in the event loop and works in threads: rows become columns there, files are written there. The latter are
daemons, as a target may answer nothing for hours, and asyncio waits for its own threads before it ends.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from veilmq.core.commands import Command
from veilmq.core.errors import VeilmqError
from veilmq.core.events import CountEvents, EventCounts, EventRange, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.events.failures import EventsError
from veilmq.events.parquet import DATA_SET, encoded, entry, files, to_table
from veilmq.events.target import Target

log = logging.getLogger(__name__)

_SLICE_BYTES = 262_144  # some milliseconds of Python in the thread that makes columns of it
_LOOK_S_MAX = 5

Execute = Callable[[Command], Awaitable[Any]]
"""Submits a command to the engine and waits for its result; raises its ``VeilmqError``."""


class Exporter:
    """Exports the events of one store to one target."""

    def __init__(self, *, execute: Execute, clock: Clock, target: Target, period_s: int, events_per_range: int) -> None:
        """Export once in ``period_s``, and as soon as ``events_per_range`` wait; no range has many more than that."""
        self._execute = execute
        self._clock = clock
        self._target = target
        self._period_ms = period_s * SECOND_MS
        self._events_per_range = events_per_range
        self._exported_at_ms = clock.now_ms()
        self._one_at_a_time = asyncio.Lock()
        self._timer: Timer | None = None
        self._working: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._failing = False
        to_table((), "")  # pyarrow loads some of itself, and pandas where it is, at its first use: not beside requests
        self.failures = 0
        """How many tries have failed."""

    def start(self) -> None:
        """Look now and then from here on."""
        wait_ms = min(self._period_ms, _LOOK_S_MAX * SECOND_MS)
        self._timer = self._clock.call_at(self._clock.now_ms() + wait_ms, self._look)

    def _look(self) -> None:
        self._working = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        try:
            if await self._is_due():
                await self.flush()
        except (EventsError, VeilmqError):
            pass  # told already; another look follows
        self.start()

    async def _is_due(self) -> bool:
        if self._clock.now_ms() >= self._exported_at_ms + self._period_ms:
            return True
        counts: EventCounts = await self._execute(CountEvents())
        return counts.waiting >= self._events_per_range

    async def flush(self) -> EventCounts:
        """Export everything that waits now; raises ``EventsError`` when that failed."""
        async with self._one_at_a_time:
            counts: EventCounts = await self._execute(CountEvents())
            until = counts.recorded
            try:
                while (planned := await self._plan()) is not None:
                    await self._export(planned)
                    if planned.last >= until:
                        break
            except Exception as error:
                raise self._failed(error) from error
            self._recovered()
            self._exported_at_ms = self._clock.now_ms()
            exported: EventCounts = await self._execute(CountEvents())
        return exported

    async def _plan(self) -> EventRange | None:
        planned: EventRange | None = await self._execute(PlanExport(events_max=self._events_per_range))
        return planned

    async def _export(self, planned: EventRange) -> None:
        tables = []
        first = planned.first
        while first <= planned.last:
            page = await self._execute(ReadEvents(first=first, last=planned.last, bytes_max=_SLICE_BYTES))
            tables.append(await asyncio.to_thread(to_table, page.batches, planned.node))
            first = page.next
        await _in_daemon(partial(self._put, tables, planned))
        while (await self._execute(ForgetEvents(last=planned.last))).more:
            pass

    def _put(self, tables: Sequence[Any], planned: EventRange) -> None:
        paths = []
        for folder, name, table in files(tables, planned):
            self._target.put(folder, name, encoded(table))
            paths.append(f"{folder}/{name}")
        self._target.put(*entry(planned, paths))

    def _failed(self, error: Exception) -> EventsError:
        self.failures += 1
        if not self._failing:
            log.warning("events cannot be exported to %s; they wait in the store: %s", self._target.root, error)
        self._failing = True
        return EventsError(f"Events cannot be exported to {self._target.root}/{DATA_SET}: {error}")

    def _recovered(self) -> None:
        if self._failing:
            log.warning("events are exported to %s again", self._target.root)
        self._failing = False

    async def close(self) -> None:
        """Export what is left and look no more; what cannot be exported now is by the next start."""
        self._closing = asyncio.current_task()
        self._disarm()
        try:
            if self._working is not None:
                await self._working
            self._disarm()
            await self.flush()
        except (EventsError, VeilmqError, asyncio.CancelledError) as error:
            log.warning("events are left for the next start: %s", str(error) or "there was no time")
        self._closing = None

    def cut(self) -> None:
        """Make ``close`` end now."""
        if self._closing is not None:
            self._closing.cancel()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _in_daemon(work: Callable[[], None]) -> None:
    """Call ``work`` in a thread that does not keep the process from ending."""
    done: Future[None] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            work()
            done.set_result(None)
        except BaseException as raised:  # noqa: BLE001 (the caller gets it)
            done.set_exception(raised)

    threading.Thread(target=run, name="veilmq-events", daemon=True).start()
    await asyncio.wrap_future(done)

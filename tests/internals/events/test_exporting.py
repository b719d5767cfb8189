"""The exporter's steps, on a store that counts them: when it looks, what it asks for, and when it has enough."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from veilmq.core.commands import Command
from veilmq.core.receipts import CountEvents, EventCounts, EventPage, EventRange, ForgetEvents, PlanExport, ReadEvents
from veilmq.core.receipts import Forgotten as Forgot
from veilmq.events.exporter import Exporter, open_target
from veilmq.testing import VirtualClock

PERIOD_S = 60


class Store:
    """Has ranges of two events; `log` has the names of the commands that it was given."""

    def __init__(self, *, ranges: int = 0, came: int = 0, slices: int = 1) -> None:
        """`came` events come with each plan, and a range is forgotten in `slices`."""
        self.recorded = 2 * ranges
        self.exported = 0
        self.log: list[str] = []
        self._came = came
        self._slices = slices
        self._left = slices
        self._answers: dict[type[Command], Callable[[], Any]] = {
            CountEvents: self._count,
            PlanExport: self._plan,
            ReadEvents: lambda: EventPage(batches=[], next=self.exported + 3),
            ForgetEvents: self._forget,
        }

    async def execute(self, command: Command) -> Any:
        """Answer, in a later turn of the loop."""
        await asyncio.sleep(0)
        self.log.append(type(command).__name__)
        return self._answers[type(command)]()

    def _count(self) -> EventCounts:
        return EventCounts(recorded=self.recorded, exported=self.exported, dropped=0)

    def _plan(self) -> EventRange | None:
        self.recorded += self._came
        if self.exported == self.recorded:
            return None
        return EventRange(node="n", first=self.exported + 1, last=self.exported + 2)

    def _forget(self) -> Forgot:
        self._left -= 1
        if self._left:
            return Forgot(more=True)
        self._left = self._slices
        self.exported += 2
        return Forgot(more=False)


def run(store: Store, folder: Path, story: Callable[[Exporter, VirtualClock], Awaitable[None]]) -> None:
    """Tell `story` of an exporter of `store`."""

    async def tell() -> None:
        clock = VirtualClock()
        exporter = Exporter(
            execute=store.execute,
            clock=clock,
            target=open_target(str(folder)),
            period_s=PERIOD_S,
            events_per_range=2,
        )
        await story(exporter, clock)

    asyncio.run(tell())


async def look(exporter: Exporter, clock: VirtualClock) -> None:
    """Let five seconds pass, and the exporter do what it does then."""
    clock.advance(5_000)
    if exporter._checking is not None:
        await exporter._checking


def test_a_flush_ends_though_events_go_on_to_come(tmp_path: Path) -> None:
    store = Store(ranges=2, came=2)

    async def story(exporter: Exporter, clock: VirtualClock) -> None:
        await exporter.flush()

    run(store, tmp_path, story)
    assert store.exported == 4


def test_two_flushes_do_not_export_the_same(tmp_path: Path) -> None:
    """The second finds nothing left."""
    store = Store(ranges=1)

    async def story(exporter: Exporter, clock: VirtualClock) -> None:
        await asyncio.gather(exporter.flush(), exporter.flush())

    run(store, tmp_path, story)
    assert (store.exported, store.log.count("ReadEvents")) == (2, 1)


def test_a_range_is_forgotten_whole_before_the_next(tmp_path: Path) -> None:
    store = Store(ranges=1, slices=3)

    async def story(exporter: Exporter, clock: VirtualClock) -> None:
        await exporter.flush()

    run(store, tmp_path, story)
    assert (store.exported, store.log.count("ForgetEvents")) == (2, 3)


def test_a_period_begins_with_each_export(tmp_path: Path) -> None:
    """In between it counts what waits, and no more than that."""
    store = Store()
    planned_at_s: list[int] = []

    async def story(exporter: Exporter, clock: VirtualClock) -> None:
        exporter.start()
        for place in range(30):
            plans = store.log.count("PlanExport")
            await look(exporter, clock)
            if store.log.count("PlanExport") > plans:
                planned_at_s.append(5 * (place + 1))
        await exporter.close()

    run(store, tmp_path, story)
    assert planned_at_s == [PERIOD_S, 2 * PERIOD_S]


def test_a_whole_range_is_exported_at_once_and_less_is_not(tmp_path: Path) -> None:
    store = Store()

    async def story(exporter: Exporter, clock: VirtualClock) -> None:
        exporter.start()
        store.recorded = 1
        await look(exporter, clock)
        assert store.exported == 0
        store.recorded = 2
        await look(exporter, clock)
        assert store.exported == 2
        await exporter.close()

    run(store, tmp_path, story)

"""The database's clock, by which everything is visible or not: a node's clock that agrees with it, and a node's doubts.

It is the clock of the node's machine and what that differs by, as far as answers of the database tell: its instant was
read between the sending of a statement and the coming of the answer. So who waits at a node looks when there is
something, and neither late nor, again and again, too early.

A step of the database's clock must not delete what waits. Retention is reckoned from an instant at most an hour after
the last one that a node confirmed (``mq.retention_now()``). A node confirms an instant to which its own boot clock has
come as well. Where the clock stepped by more than an hour, and the node's wall clock does not say the same, the node
writes that it doubts the clock: then no node confirms, and retention ends nothing, until an operator trusts the clock
or the step is undone.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock, Timer
from veilmq.engines.figures import Figure, gauge
from veilmq.engines.named_sql import load
from veilmq.engines.store import NOTHING_HELD_BACK
from veilmq.store.postgres.catalog import Catalog
from veilmq.store.postgres.database import Database

log = logging.getLogger(__name__)

SQL = load("veilmq.store.postgres", "sweeps.sql")

STEP_MS = 3_600 * SECOND_MS
"""How far a clock may be from what is expected; the same hour stands in ``mq.retention_now()``."""

_CONFIRMED_AGAIN_MS = 300 * SECOND_MS  # so that many nodes write one row seldom
_ROUNDING_MS = 1


class MachineClock(Clock, Protocol):
    """The clocks of a node's machine."""

    def boot_ms(self) -> int:
        """Return milliseconds that follow no step of the wall clock."""

    def wall_ms(self) -> int:
        """Return the wall clock, steps and all."""


class DatabaseClock:
    """``core.ports.Clock``; until it has seen an answer it is that of the machine."""

    def __init__(self, machine: MachineClock) -> None:
        """``machine`` is the clock of the node's machine."""
        self.machine = machine
        self._ahead_ms = 0
        self._last_ms = 0

    def now_ms(self) -> int:
        """Return the present instant of the database; never less than before."""
        self._last_ms = max(self._last_ms, self.machine.now_ms() + self._ahead_ms)
        return self._last_ms

    def shown_ms(self, at_ms: int | None = None) -> int:
        """Return the same: the database's clock is shown as it is."""
        return self.now_ms() if at_ms is None else at_ms

    def call_at(self, at_ms: int, callback: Callable[[], object]) -> Timer:
        """Call ``callback`` when ``now_ms()`` is ``at_ms``, as far as is known now."""
        return self.machine.call_at(at_ms - self._ahead_ms, callback)

    def saw(self, database_ms: int, *, sent_ms: int) -> None:
        """Take note of an instant that the database has just told, asked at ``sent_ms`` of the machine's clock."""
        at_most_ms = database_ms - sent_ms + _ROUNDING_MS
        at_least_ms = database_ms - self.machine.now_ms() - _ROUNDING_MS
        self._ahead_ms = min(max(self._ahead_ms, at_least_ms), at_most_ms)


class Seen(NamedTuple):
    """The database's clock beside the boot clock of the node's machine, at one instant."""

    database_ms: int
    boot_ms: int


class ClockGuard:
    """What one node makes of the database's clock."""

    def __init__(self, *, database: Database, machine: MachineClock, catalog: Catalog, node: str) -> None:
        """``node`` names this one; the queues of its ``catalog`` keep messages longer while the clock is doubted."""
        self._database = database
        self._machine = machine
        self._catalog = catalog
        self._node = node
        self._good: Seen | None = None
        self._trusts = 0
        self._suspects = False  # the last look found a step; a second one makes sure
        self._doubted_by_ms: int | None = None

    async def look(self) -> None:
        """Confirm the database's clock, or doubt it."""
        async with self._database.connection() as connection:
            row = await connection.fetchrow(SQL["clock"])
            seen = Seen(row["now"], self._machine.boot_ms())
            if row["trusts"] != self._trusts:
                self._trusts, self._good = row["trusts"], None
            confirmed_ms = seen.database_ms if row["confirmed_at"] is None else row["confirmed_at"]
            doubter, suspects = row["doubted_by"], False
            if abs(self._step_ms(seen, confirmed_ms)) <= STEP_MS:
                is_ours = doubter in (None, self._node) or self._knows_from_before(seen, confirmed_ms)
                confirms = is_ours and (doubter is not None or self._is_old(row["confirmed_at"], seen))
                self._good, is_doubted = seen, not is_ours
            elif abs(seen.database_ms - self._machine.wall_ms()) <= STEP_MS:
                confirms = doubter == self._node
                self._good, is_doubted = seen, doubter not in (None, self._node)
            else:
                confirms, is_doubted = False, doubter is not None or self._suspects
                if doubter is None and self._suspects:
                    await connection.execute(SQL["doubt_clock"], self._node, confirmed_ms)
                suspects = True
            if confirms:
                await connection.execute(SQL["confirm_clock"], doubter)
                confirmed_ms = seen.database_ms
        self._suspects = suspects
        self._hold(seen.database_ms - confirmed_ms, is_doubted=is_doubted)

    def _step_ms(self, seen: Seen, confirmed_ms: int) -> int:
        """Return how far the clock is from where this node expects it: where its boot clock has come since."""
        if self._good is None:
            return seen.database_ms - confirmed_ms
        return seen.database_ms - self._good.database_ms - (seen.boot_ms - self._good.boot_ms)

    def _knows_from_before(self, seen: Seen, confirmed_ms: int) -> bool:
        """Tell whether this node may end the doubts of another: it knows the time from before the step."""
        known_ms = seen.database_ms if self._good is None else min(self._good.database_ms, seen.database_ms)
        return known_ms <= confirmed_ms + STEP_MS

    @staticmethod
    def _is_old(confirmed_at_ms: int | None, seen: Seen) -> bool:
        return confirmed_at_ms is None or abs(seen.database_ms - confirmed_at_ms) > _CONFIRMED_AGAIN_MS

    def _hold(self, ahead_ms: int, *, is_doubted: bool) -> None:
        """Have messages kept longer by what no node has confirmed."""
        if is_doubted and self._doubted_by_ms is None:
            log.warning(
                "the database's clock is doubted: it is %d s from the last confirmed instant", ahead_ms // 1_000
            )
        self._doubted_by_ms = ahead_ms if is_doubted else None
        self._catalog.keep_longer(ahead_ms if is_doubted or ahead_ms > STEP_MS else 0)

    async def trust(self) -> str:
        """Confirm the present instant, as an operator says that it is right; return what that changed."""
        was_doubted = self._doubted_by_ms is not None
        async with self._database.connection() as connection:
            await connection.execute(SQL["trust_clock"])
        await self.look()
        return "The database's clock is trusted: retention deletes again." if was_doubted else NOTHING_HELD_BACK

    def warnings(self) -> list[str]:
        """Return what is wrong although requests are answered."""
        if self._doubted_by_ms is None:
            return []
        hours = self._doubted_by_ms / STEP_MS
        text = (
            f"The clock of the database is doubted: it is {hours:+.1f} h from the last confirmed instant, and retention"
        )
        return [f"{text} deletes nothing. Set the clock right, or, if it is right, run veilmq clock trust."]

    def figures(self) -> list[Figure]:
        """Return whether the clock is doubted."""
        is_doubted = self._doubted_by_ms is not None
        return [gauge("store_clock_doubted", "1 while retention deletes nothing, as a clock is doubted.", is_doubted)]

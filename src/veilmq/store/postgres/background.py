"""What a node does without being asked: move tasks, sweeping, and what it has to do with other nodes."""

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

from veilmq.store import claim_endings, moves, publications
from veilmq.store.postgres.catalog import Catalog
from veilmq.store.postgres.cold_commands import ColdCommands
from veilmq.store.postgres.counts import Totals
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.database_clock import ClockGuard, DatabaseClock
from veilmq.store.postgres.event_export import EventExport
from veilmq.store.postgres.event_numbers import EventNumbers
from veilmq.store.postgres.janitor import Janitor
from veilmq.store.postgres.mover import Mover
from veilmq.store.postgres.nodes import Nodes
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.sends import Positions
from veilmq.store.postgres.watches import Rounds, Watches

Start = Callable[[Coroutine[Any, Any, None]], None]


class Shared(NamedTuple):
    """What the workers of a node share; ``start`` makes a task of the engine."""

    database: Database
    catalog: Catalog
    watches: Watches
    positions: Positions
    options: PostgresOptions
    clock: DatabaseClock
    start: Start
    totals: Totals


class Background:
    """Each of its workers says in its module how exactly one node at a time does its work."""

    def __init__(self, shared: Shared, cold: ColdCommands) -> None:
        """The watches hear from then on what other nodes tell; ``cold`` runs slices, and has them done."""
        database, catalog, watches, _, options, clock, start, _ = shared
        step = partial(cold.running(moves.step, changes=True), moves.MoveStep())
        self.mover = Mover(step=step, clock=clock, start=start)
        step = partial(cold.running(publications.step, changes=True), publications.PublicationStep())
        self.publisher = Mover(step=step, clock=clock, start=start, pause_ms_min=1)
        cold.schedulers[publications.PublicationStep] = self.publisher.look
        step = partial(cold.running(claim_endings.step, changes=True), claim_endings.ClaimStep())
        self.claimant = Mover(step=step, clock=clock, start=start, pause_ms_min=1)
        cold.schedulers[claim_endings.ClaimStep] = self.claimant.look
        self.janitor = Janitor(database=database, sweep=cold.sweep, clock=clock, start=start)
        self.rounds = Rounds(
            database=database, catalog=catalog, watches=watches, options=options, clock=clock, start=start
        )
        self.nodes = Nodes(
            database=database,
            catalog=catalog,
            watches=watches,
            rounds=self.rounds,
            clock=clock,
            start=start,
            look_for_moves=self.mover.look,
        )
        cold.schedulers[moves.MoveStep] = self.nodes.moves_changed
        watches.elsewhere = self.nodes
        self.clock_guard = ClockGuard(database=database, machine=clock.machine, catalog=catalog, node=self.nodes.name)
        self._clock_look = Mover(step=self.clock_guard.look, clock=clock, start=start)
        self.events = EventExport(database=database, numbers=EventNumbers(options=options), clock=clock, cold=cold)
        self._listens = options.listens

    def begin(self) -> None:
        """Begin; commands need not wait for it."""
        if self._listens:
            self.nodes.open()
        self.mover.look()
        self.publisher.look()
        self.claimant.look()
        self._clock_look.look()
        self.janitor.look_later()

    async def stop(self) -> None:
        """Do no more, and leave all turns to others."""
        self.mover.stop()
        self.publisher.stop()
        self.claimant.stop()
        self._clock_look.stop()
        self.rounds.stop()
        await self.nodes.stop()
        await self.janitor.stop()
        self.events.stop()

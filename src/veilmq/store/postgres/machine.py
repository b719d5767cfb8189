"""What a node can do: the tables of commands, and the work that goes on by itself."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from veilmq.core import commands
from veilmq.core.commands import Command
from veilmq.core.receipts import ReceiptBook
from veilmq.store.cold import COLD, READS
from veilmq.store.postgres.background import Background, Shared
from veilmq.store.postgres.catalog import Catalog
from veilmq.store.postgres.coalescing import OnQueue, Work
from veilmq.store.postgres.cold_commands import ColdCommands
from veilmq.store.postgres.counts import InFlight, Totals
from veilmq.store.postgres.database import Database
from veilmq.store.postgres.database_clock import DatabaseClock
from veilmq.store.postgres.event_log import EventLog
from veilmq.store.postgres.fair import FairQueues
from veilmq.store.postgres.low_water import LowWater
from veilmq.store.postgres.options import PostgresOptions
from veilmq.store.postgres.receipts import Receipts
from veilmq.store.postgres.receives import Receives
from veilmq.store.postgres.sends import Positions, Sends
from veilmq.store.postgres.watches import Watches

Alone = Callable[[Any], Awaitable[Any]]
"""Carries out one command: returns its result, or raises ``VeilmqError``."""

Together = tuple[Work, Callable[[Any], int]]
"""Carries commands of one kind on one queue out together; and how many messages one of them brings."""

Start = Callable[[Coroutine[Any, Any, None]], None]


class Machine:
    """``together`` and ``alone`` have an entry for each type of command; ``background`` needs none."""

    def __init__(
        self, *, database: Database, options: PostgresOptions, clock: DatabaseClock, book: ReceiptBook, start: Start
    ) -> None:
        """``start`` makes a task of the engine; ``book`` has the receipts' keys."""
        self.watches = watches = Watches()
        self.catalog = catalog = Catalog(fresh_s=options.fresh_s)
        self.positions = positions = Positions()
        in_flight = InFlight(options=options, clock=clock, watches=watches)
        on_queue = OnQueue(database=database, catalog=catalog)
        fair = FairQueues(clock=clock)
        totals = Totals()
        sends = Sends(on_queue=on_queue, book=book, watches=watches, positions=positions, fair=fair, totals=totals)
        shared = Shared(database, catalog, watches, positions, options, clock, start, totals)
        event_log = EventLog(options=options)
        receives = _receives(shared, on_queue, book, in_flight, event_log, fair)
        receipts = Receipts(
            on_queue=on_queue, book=book, watches=watches, in_flight=in_flight, log=event_log, fair=fair, totals=totals
        )
        self.together = _together(sends, receives, receipts)
        self.cold = cold = ColdCommands(
            database=database,
            catalog=catalog,
            watches=watches,
            positions=positions,
            totals=totals,
            options=options,
            fair=fair,
            book=book,
            in_flight=in_flight,
        )
        self.background = Background(shared, cold)
        self.alone: dict[type[Command], Alone] = {
            **{kind: cold.running(run, changes=kind not in READS) for kind, run in COLD.items()},
            **self.background.events.handlers,
        }

    def begin(self) -> None:
        """Begin with the work that goes on by itself."""
        self.background.begin()

    async def stop(self) -> None:
        """End that work."""
        await self.background.stop()


def _receives(
    shared: Shared,
    on_queue: OnQueue,
    book: ReceiptBook,
    in_flight: InFlight,
    log: EventLog,
    fair: FairQueues,
) -> Receives:
    low_water = LowWater(clock=shared.clock)
    shared.database.on_lost.append(low_water.clear)
    return Receives(
        on_queue=on_queue,
        catalog=shared.catalog,
        book=book,
        watches=shared.watches,
        in_flight=in_flight,
        low_water=low_water,
        positions=shared.positions,
        log=log,
        fair=fair,
        totals=shared.totals,
    )


def _together(sends: Sends, receives: Receives, receipts: Receipts) -> dict[type[Command], Together]:
    return {
        commands.Send: (sends.send, _messages),
        commands.Receive: (receives.receive, _count),
        commands.Delete: (receipts.delete, _receipts),
        commands.ChangeVisibility: (receipts.change, _changes),
    }


def _messages(command: commands.Send) -> int:
    return len(command.messages)


def _count(command: commands.Receive) -> int:
    return command.count


def _receipts(command: commands.Delete) -> int:
    return len(command.receipts)


def _changes(command: commands.ChangeVisibility) -> int:
    return len(command.changes)

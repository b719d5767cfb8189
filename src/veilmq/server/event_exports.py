"""The export of the event log as a part of the server: made from its settings. What it needs is an extra."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from veilmq.core.events import EventCounts
from veilmq.core.ports import Clock, Engine
from veilmq.events import EventsError
from veilmq.server.settings import ServerSettings
from veilmq.server.shutdown import Shutdown
from veilmq.store.port import execute


class EventExports(Protocol):
    """What a server needs of an exporter."""

    failures: int

    def start(self) -> None:
        """Look now and then from here on."""

    async def flush(self) -> EventCounts:
        """Export everything that waits now; raises ``EventsError`` when that failed."""

    async def close(self) -> None:
        """Export what is left and look no more."""

    def cut(self) -> None:
        """Make ``close`` end now."""


def log_of(settings: ServerSettings) -> str:
    """Return what queues log that do not say it themselves."""
    if settings.event_log != "auto":
        return settings.event_log
    return "off" if settings.events_to is None else "closed"


def place_of(settings: ServerSettings) -> Any:
    """Return the target that ``settings`` name, ``None`` for none; raises ``EventsError`` when it cannot be used."""
    if settings.events_to is None:
        return None
    try:
        target = import_module("veilmq.events.exporter")
    except ModuleNotFoundError as error:
        raise EventsError(
            f"events_to (--events-to) needs the module {error.name}, which this install does not have: "
            "pip install 'veilmq[arrow]'"
        ) from error
    return target.open_target(settings.events_to)


@asynccontextmanager
async def exporting(
    settings: ServerSettings, target: Any, *, engine: Engine, clock: Clock, shutdown: Shutdown
) -> AsyncIterator[EventExports | None]:
    """Export the events of ``engine`` to ``target``, which is ``place_of`` the settings, while the context lasts.

    At its end what is left is exported, as long as ``shutdown`` allows. Gives ``None`` where there is no target.
    """
    if target is None:
        yield None
        return
    exporter: EventExports = import_module("veilmq.events.exporter").Exporter(
        execute=partial(execute, engine),
        clock=clock,
        target=target,
        period_s=settings.events_period_s,
        events_per_range=settings.events_per_file,
    )
    exporter.start()
    try:
        yield exporter
    finally:
        await shutdown.let_finish(exporter.close(), cut=exporter.cut)

"""The export of the event log as a part of the server: made from its settings. What it needs is an extra."""

from functools import partial
from importlib import import_module
from typing import Any, Protocol

from veilmq.core.events import EventCounts
from veilmq.core.ports import Clock, Engine
from veilmq.engines.execute import execute
from veilmq.events.failures import EventsError
from veilmq.server.settings import ServerSettings


class EventExports(Protocol):
    """What a server needs of an exporter."""

    failures: int

    def start(self) -> None:
        """Look now and then from here on."""

    async def flush(self) -> EventCounts:
        """Export everything that waits now; raises ``EventsError`` when that failed."""

    async def close(self) -> None:
        """Export what is left and look no more."""

    def stop(self) -> None:
        """Look no more."""


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
        target = import_module("veilmq.events.target")
    except ModuleNotFoundError as error:
        raise EventsError(
            f"events_to (--events-to) needs the module {error.name}, which this install does not have: "
            "pip install 'veilmq[arrow]'"
        ) from error
    return target.open_target(settings.events_to)


def exports(settings: ServerSettings, target: Any, *, engine: Engine, clock: Clock) -> EventExports | None:
    """Return what exports the events of ``engine`` to ``target``, which is ``place_of`` the settings."""
    if target is None:
        return None
    exporter: EventExports = import_module("veilmq.events.exporter").Exporter(
        execute=partial(execute, engine),
        clock=clock,
        target=target,
        period_s=settings.events_period_s,
        events_per_range=settings.events_per_file,
    )
    return exporter

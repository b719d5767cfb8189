"""The one place that knows which kinds of store there are: from the settings to an open one."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

from veilmq.core.ports import MaySend
from veilmq.server.event_exports import log_of
from veilmq.server.settings import ServerSettings
from veilmq.store.clock import StoreClock, SystemClock, stopwatch_s
from veilmq.store.copying import Told
from veilmq.store.port import Store, StoreError
from veilmq.store.sqlite import SqliteStore, conversion
from veilmq.store.sqlite.database import EngineOptions
from veilmq.store.urls import split_urls

log = logging.getLogger(__name__)

_TOLD_S = 5.0


async def open_store(
    settings: ServerSettings,
    *,
    clock: StoreClock | None,
    on_fatal: Callable[[BaseException], None],
    may_send: MaySend | None = None,
) -> Store:
    """Open what ``settings`` name; raises ``StoreError``.

    ``clock`` is the store's time, its own without one. ``on_fatal`` is called when the store has failed and the process
    should end. ``may_send`` decides whether move tasks go on.
    """
    if settings.store is None:
        options = replace(sqlite_options(settings), may_send=may_send)
        if settings.data is not None and conversion.is_old(settings.data):
            await asyncio.to_thread(conversion.convert, settings.data, told=_tell_seldom())
        return SqliteStore(settings.data, clock=clock or SystemClock(), options=options, on_fatal=on_fatal)
    urls = split_urls(settings.store)
    postgres = postgres_parts("store (--store)")
    store: Store = await postgres.Shards.open(
        urls, clock=clock or SystemClock(), options=replace(postgres_options(settings), may_send=may_send)
    )
    return store


def _tell_seldom() -> Told:
    """Return what logs how far a conversion is, every few seconds."""
    due_s = stopwatch_s()

    def told(converted: int, in_all: int) -> None:
        nonlocal due_s
        if stopwatch_s() >= due_s or converted == in_all:
            due_s = stopwatch_s() + _TOLD_S
            log.warning("the data folder is converted: %d of %d messages", converted, in_all)

    return told


def postgres_parts(what: str) -> Any:
    """Return the module ``store.postgres``, whose driver is an extra; raises ``StoreError`` for ``what`` needs it."""
    try:
        return import_module("veilmq.store.postgres")
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{what} needs the module {error.name}, which this install does not have: pip install 'veilmq[postgres]'"
        ) from error


def sqlite_options(settings: ServerSettings) -> EngineOptions:
    """Return what of ``settings`` is that of the store on SQLite."""
    return EngineOptions(
        free_space_reserve_bytes=settings.free_space_reserve_bytes,
        in_flight_max=settings.in_flight_max,
        fifo_in_flight_max=settings.fifo_in_flight_max,
        purge_pause_s=settings.purge_pause_s,
        queue_name_pause_s=settings.queue_name_pause_s,
        event_log=log_of(settings),
        routing_attribute=settings.routing_attribute,
        events_waiting_max=settings.events_waiting_max,
    )


def postgres_options(settings: ServerSettings) -> Any:
    """Return what of ``settings`` is that of the store on PostgreSQL."""
    parts = postgres_parts("store (--store)")
    return parts.PostgresOptions(
        migrates=not settings.no_migrate,
        connections=settings.store_connections,
        durability=parts.Durability(settings.durability),
        in_flight_max=settings.in_flight_max,
        fifo_in_flight_max=settings.fifo_in_flight_max,
        purge_pause_s=settings.purge_pause_s,
        queue_name_pause_s=settings.queue_name_pause_s,
        event_log=log_of(settings),
        routing_attribute=settings.routing_attribute,
        events_waiting_max=settings.events_waiting_max,
    )

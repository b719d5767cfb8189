"""Open the store and event exporter that the settings name, and copy stopped stores.

Only this module knows the kinds of stores. PostgreSQL and the exporter need extras.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from veilmq.core.commands import MaySend
from veilmq.core.errors import VeilmqError
from veilmq.events import EventsError
from veilmq.server.settings import ServerSettings
from veilmq.store.clock import SystemClock, stopwatch_s
from veilmq.store.copying import CopyRefused, Progress, copy
from veilmq.store.port import Store, StoreError, execute
from veilmq.store.sqlite import SqliteStore, conversion
from veilmq.store.sqlite.copying import FolderSource, FolderTarget, back_up
from veilmq.store.sqlite.database import OLD_NAME, EngineOptions, FolderError, database_of, locked
from veilmq.store.urls import split_urls, without_passwords


def event_exporter(settings: ServerSettings) -> Callable[[Store], Any]:
    """Return a factory of the store's ``events.exporter.Exporter``; of ``None`` without a target.

    Raises ``EventsError`` when the target cannot be used.
    """
    if settings.events_to is None:
        return lambda engine: None
    try:
        exporter = import_module("veilmq.events.exporter")
    except ModuleNotFoundError as error:
        raise EventsError(
            f"events_to (--events-to) needs the module {error.name}, which is not installed: pip install "
            "'veilmq[arrow]'"
        ) from error
    target = exporter.open_target(settings.events_to)
    return lambda engine: exporter.Exporter(
        execute=partial(execute, engine),
        clock=engine.clock,
        target=target,
        period_s=settings.events_period_s,
        events_per_range=settings.events_per_file,
    )


log = logging.getLogger(__name__)

_PROGRESS_S = 5.0


async def open_store(
    settings: ServerSettings,
    *,
    clock: SystemClock | None,
    on_fatal: Callable[[BaseException], None],
    may_send: MaySend | None = None,
) -> Store:
    """Open the store that ``settings`` name; raises ``StoreError``.

    ``clock`` defaults to the store's own. ``on_fatal`` is called if the store has failed and the process should end.
    ``may_send`` decides whether move tasks continue.
    """
    if settings.store is None:
        reserve_bytes = settings.free_space_reserve_bytes
        options = EngineOptions(may_send=may_send, free_space_reserve_bytes=reserve_bytes, **_options(settings))
        # Path.is_file() would raise for a folder that may not be entered: the store's error names the folder.
        if settings.data is not None and os.path.isfile(settings.data / OLD_NAME):  # noqa: ASYNC240, PTH113
            await asyncio.to_thread(conversion.convert, settings.data, progress=_progress_logger())
        return SqliteStore(settings.data, clock=clock or SystemClock(), options=options, on_fatal=on_fatal)
    postgres = postgres_parts("store (--store)")
    options = postgres.PostgresOptions(
        migrates=not settings.no_migrate,
        connections=settings.store_connections,
        durability=postgres.Durability(settings.durability),
        may_send=may_send,
        **_options(settings),
    )
    urls = split_urls(settings.store)
    return cast(Store, await postgres.Shards.open(urls, clock=clock or SystemClock(), options=options))


def _progress_logger() -> Progress:
    due_s = stopwatch_s()

    def progress(converted: int, in_all: int) -> None:
        nonlocal due_s
        if stopwatch_s() >= due_s or converted == in_all:
            due_s = stopwatch_s() + _PROGRESS_S
            log.warning("converting the data folder: %d of %d messages", converted, in_all)

    return progress


def postgres_parts(what: str) -> Any:
    """Import ``store.postgres``, whose driver is an extra; raises ``StoreError``, saying that ``what`` needs it."""
    try:
        return import_module("veilmq.store.postgres")
    except ModuleNotFoundError as error:
        raise StoreError(
            f"{what} needs the module {error.name}, which is not installed: pip install 'veilmq[postgres]'"
        ) from error


_OF_BOTH = (
    "in_flight_max",
    "fifo_in_flight_max",
    "purge_pause_s",
    "queue_name_pause_s",
    "routing_attribute",
    "events_waiting_max",
)


def _options(settings: ServerSettings) -> dict[str, Any]:
    auto = "off" if settings.events_to is None else "closed"
    event_log = auto if settings.event_log == "auto" else settings.event_log
    return {"event_log": event_log, **{name: getattr(settings, name) for name in _OF_BOTH}}


async def copy_store(source: str, target: str, *, clock: SystemClock, progress: Progress | None = None) -> int:
    """Copy the stopped store ``source`` to the empty ``target``: folders or URLs (``postgresql://…``).

    Return the number of messages. Raises ``CopyRefused``, or ``StoreError`` if a driver is missing; ``target`` is then
    unchanged.
    """
    for location, remedy in ((source, _FROM_SEVERAL), (target, _TO_SEVERAL)):
        try:
            names = [without_passwords(url) for url in split_urls(location)]
        except ValueError:  # a folder, or an invalid URL, which is refused below
            continue
        if names[1:]:
            raise CopyRefused(f"{' and '.join(names)} are {len(names)} databases, and {remedy}")
    try:
        async with AsyncExitStack() as stack:
            if _is_url(source) != _is_url(target):
                return await copy(await _source(stack, source, clock), await _target(stack, target), progress=progress)
            if _is_url(source):
                databases = [await _locked(stack, each) for each in (source, target)]
                return int(await _postgres().copy_tables(*databases, progress=progress))
            folder = Path(source)
            database_of(folder, "--from")
            stack.enter_context(locked(folder))
            signal.signal(signal.SIGINT, signal.default_int_handler)  # asyncio's waits for the next await
            return int(back_up(folder, Path(target), progress=progress)["messages"])
    except (FolderError, VeilmqError) as error:
        raise CopyRefused(str(error)) from error


def _is_url(location: str) -> bool:
    return "://" in location


_FROM_SEVERAL = (
    "each is copied separately, to an empty database: copy one after the other, and list the new ones in the same "
    "order. They cannot be copied to a data folder."
)
_TO_SEVERAL = (
    "a store is copied to one: copy it to the first, then start servers with all of them; new queues go to the "
    "others. Copy each database of a store separately."
)


async def _source(stack: AsyncExitStack, location: str, clock: SystemClock) -> Any:
    if _is_url(location):
        return await _postgres().DatabaseSource.open(await _locked(stack, location))
    return stack.enter_context(FolderSource.opened(Path(location), clock=clock))


async def _target(stack: AsyncExitStack, location: str) -> Any:
    if _is_url(location):
        return _postgres().DatabaseTarget(await _locked(stack, location))
    return stack.enter_context(FolderTarget(Path(location)))


async def _locked(stack: AsyncExitStack, location: str) -> Any:
    try:
        (url,) = split_urls(location)
    except ValueError as error:
        raise CopyRefused(f"{without_passwords(location)} is not the URL of one database (postgresql://…).") from error
    return await stack.enter_async_context(_postgres().CopyTransaction.open(url))


def _postgres() -> Any:
    postgres_parts("copy")
    return import_module("veilmq.store.postgres.copying")

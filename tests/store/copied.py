"""Stores that move house: a copy of what a host has, and a host on the copy that goes on from the same instant."""

import asyncio
from pathlib import Path

from tests.store.host import Host
from tests.store.postgres_host import PostgresHost, set_clock
from veilmq.server.stores import copy_store
from veilmq.store.copying import CopyRefused
from veilmq.store.sqlite.database import EngineOptions
from veilmq.testing import VirtualClock

__all__ = ["CopyRefused", "copied", "moved_to_database", "moved_to_folder", "place_of"]


def place_of(host: Host) -> str:
    """Return where the store of `host` is, as people name it."""
    return host.url if isinstance(host, PostgresHost) else str(host.folder)


def copied(source: str, target: str, now_ms: int) -> int:
    """Copy a store that nobody has open at that instant."""
    return asyncio.run(copy_store(source, target, clock=VirtualClock(now_ms)))


def moved_to_database(host: Host, url: str) -> PostgresHost:
    """Close `host`; return one on a copy of its store in the database of `url`, which is emptied first."""
    PostgresHost.on_empty(url).close()
    now_ms = _close(host, url)
    copied(place_of(host), url, now_ms)
    there = PostgresHost(url)
    there.advance(now_ms - there.clock.now_ms())
    return there


def moved_to_folder(host: Host, folder: Path, options: EngineOptions | None = None) -> Host:
    """Close `host`; return one on a copy of its store in `folder`, which must not exist."""
    now_ms = _close(host, host.url if isinstance(host, PostgresHost) else None)
    copied(place_of(host), str(folder), now_ms)
    return Host(folder, options=options, clock=VirtualClock(now_ms))


def _close(host: Host, url: str | None) -> int:
    now_ms = host.clock.now_ms()
    host.close()
    if url is not None:
        asyncio.run(set_clock(url, now_ms))
    return now_ms

"""The databases that a command is about: those that serve would use with the same settings."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from veilmq.cli.extras import needs_extra
from veilmq.cli.failures import CommandFailed
from veilmq.server.settings import ServerSettings
from veilmq.store.urls import split_urls

T = TypeVar("T")


class Databases(NamedTuple):
    """The module ``store.postgres``, and the URLs that the settings give, the home's first."""

    parts: Any
    urls: tuple[str, ...]

    def all(self) -> dict[int, str]:
        """Return the URLs of all databases by their places: those that are given, and those that the home knows."""
        known = done(lambda: self.parts.known_urls(self.urls[0]))
        return dict(sorted({**known, **dict(enumerate(self.urls))}.items()))


def databases(settings: ServerSettings, *, command: str) -> Databases:
    """Return the databases of ``settings``, which name some; raises ``CommandFailed`` where the driver is missing."""
    assert settings.store is not None
    with needs_extra("server", command=command):
        from veilmq.server.stores import postgres_parts
        from veilmq.store.port import StoreError
    try:
        return Databases(postgres_parts(f"veilmq {command}"), split_urls(settings.store))
    except StoreError as error:
        raise CommandFailed(str(error)) from error


def done(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what ``work`` returns; raises ``CommandFailed`` where a database cannot be reached or used."""
    from veilmq.store.port import StoreError  # what ``databases`` has found

    try:
        return asyncio.run(work())
    except StoreError as error:
        raise CommandFailed(str(error)) from error

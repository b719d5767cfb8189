"""What the page of health is told of the server."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec


class HealthFigure(NamedTuple):
    """One number that the store tells of itself: ``words`` say what it is, ``value`` is written out."""

    words: str
    value: str


class ExportHealth(NamedTuple):
    """How the event log is exported: events by their number."""

    recorded: int
    waiting: int
    dropped: int
    failures: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One server at one moment. ``obstacles`` say why no requests should be sent here; without any it is ready.
    ``warnings`` say what is wrong all the same.

    ``kept`` follows the words "messages are kept"; ``queues`` is how many there are, ``None`` where the store does not
    say; ``exports`` is ``None`` where nothing is exported.
    """

    obstacles: list[str]
    warnings: list[str]
    kept: str
    version: str
    python: str
    started_at_ms: int
    queues: int | None
    parked_polls: int
    open_connections: int
    exports: ExportHealth | None
    figures: list[HealthFigure]


TellHealth = Callable[[], Awaitable[Health]]
"""Looks at the server now."""

"""The schema and its history: numbered scripts, each applied once, in order.

A node that finds an older schema upgrades it before it serves; two that start together take turns. A newer schema than
the node knows is refused: it may mean something else by then.
"""

import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from veilmq.core.errors import VeilmqError

_SCRIPT = re.compile(r"(\d{3})_\w+\.sql")
_TURN = 0x7665696C6D71  # "veilmq", the key of the advisory lock

_PREPARE = """
CREATE SCHEMA IF NOT EXISTS mq;
CREATE TABLE IF NOT EXISTS mq.migration (number int PRIMARY KEY);
"""


class SchemaTooNew(VeilmqError):
    """The database was made by a later version."""

    def __init__(self, found: int, known: int) -> None:
        """``found`` is the number of its last migration, ``known`` that of ours."""
        super().__init__(
            f"The database has format {found}, this version knows {known}; use the one that made it, or a later one."
        )
        self.found = found
        self.known = known


async def migrate(connection: Any) -> list[int]:
    """Bring the schema up to date, all of it or nothing; return the numbers of what was applied."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _TURN)
        await connection.execute(_PREPARE)
        found = await connection.fetchval("SELECT coalesce(max(number), 0) FROM mq.migration")
        known = max(number for number, _ in scripts())
        if found > known:
            raise SchemaTooNew(found, known)
        applied = []
        for number, text in scripts():
            if number > found:
                await connection.execute(text)
                await connection.execute("INSERT INTO mq.migration (number) VALUES ($1)", number)
                applied.append(number)
    return applied


def scripts() -> Iterator[tuple[int, str]]:
    """Yield number and text of every script, in order."""
    folder = files("veilmq.engines.postgres").joinpath("migrations")
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        match = _SCRIPT.fullmatch(entry.name)
        if match is not None:
            yield int(match[1]), entry.read_text(encoding="utf-8")

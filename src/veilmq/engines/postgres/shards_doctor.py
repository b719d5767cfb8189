"""The doctor of several databases: whether they are one store, and each queue is where the home says; changes nothing.

It may run beside nodes, and there is no snapshot of several databases. But a place is written down before its queue is
made, and forgotten when the queue is gone. So a queue that was there before the home was asked, and still is, is known
there, or something is wrong.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import asyncpg

from veilmq.engines.examination import Finding
from veilmq.engines.named_sql import load
from veilmq.engines.postgres import identity
from veilmq.engines.postgres.failures import sentence
from veilmq.engines.postgres.identity import Identity, objection
from veilmq.engines.postgres.transits import SHARDS
from veilmq.engines.store_urls import without_passwords
from veilmq.store.postgres.migrate import SchemaRefused, require

SQL = load("veilmq.engines.postgres", "shards_doctor.sql")

ONE_STORE = "the databases are one store"
PLACES = "every queue is in the database that the home names"

_NOT_COMPARED = "not looked at: name the first database of a store"

_CONNECT_S = 5.0
_PAGE = 500
_TROUBLE = (OSError, TimeoutError, ValueError, SchemaRefused, asyncpg.InterfaceError, asyncpg.PostgresError)


class _Met(NamedTuple):
    """A database, and what it knows of itself."""

    name: str
    place: int
    connection: Any
    knows: Identity | None
    is_empty: bool


async def examine_together(urls: Mapping[int, str]) -> list[Finding]:
    """Check what belongs together in ``urls``, by places, the home at 0; one that cannot be asked is a finding."""
    async with AsyncExitStack() as stack:
        met: list[_Met] = []
        missed: list[str] = []
        for place, url in urls.items():
            try:
                met.append(await _meet(stack, url, place))
            except _TROUBLE as error:
                missed.append(f"{without_passwords(url)} could not be asked: {sentence(error)}")
        strangers = _strangers(met)
        misplaced = [_NOT_COMPARED] if strangers else await _misplaced(met)
        return [_finding(ONE_STORE, strangers + missed), _finding(PLACES, misplaced + missed)]


def _finding(check: str, faults: list[str]) -> Finding:
    return Finding(check, ok=not faults, detail="\n".join(faults))


async def _meet(stack: AsyncExitStack, url: str, place: int) -> _Met:
    connection = await asyncpg.connect(url, timeout=_CONNECT_S, server_settings={"search_path": "mq"})
    stack.callback(connection.terminate)
    await require(connection)
    is_empty = await connection.fetchval(SHARDS["is_empty"])
    return _Met(without_passwords(url), place, connection, await identity.read(connection), is_empty)


def _strangers(met: Sequence[_Met]) -> list[str]:
    """Compare the databases with the home, or where that is down with the first that knows the store."""
    known = [each.knows for each in met if each.knows is not None or each.place == 0]
    store = known[0].store if known and known[0] is not None else None
    faults = []
    for each in met:
        fault = objection(each.knows, store=store, place=each.place)
        if not fault and each.knows is None and each.place and not each.is_empty:
            fault = f"it has queues of its own, so it cannot be number {each.place + 1} of another store."
        if fault:
            faults.append(f"{each.name}: {fault}")
    return faults


async def _misplaced(met: Sequence[_Met]) -> list[str]:
    if not met or met[0].place:
        return []
    home = met[0]
    faults = []
    for each in met:
        try:
            names = await _misplaced_at(each, home)
        except _TROUBLE as error:
            faults.append(f"{each.name} could not be compared with {home.name}: {sentence(error)}")
            continue
        if names:
            faults.append(f"{each.name} has {len(names)} that the home looks for elsewhere, the first is {min(names)}")
    return faults


async def _misplaced_at(shard: _Met, home: _Met) -> list[str]:
    """Return the queues of a database that nobody finds there."""
    after, misplaced = "", []
    while queues := dict(await shard.connection.fetch(SQL["next_queues"], after, _PAGE)):
        after = max(queues)
        elsewhere = await home.connection.fetch(SQL["placed_elsewhere"], list(queues), shard.place)
        if elsewhere:
            numbers = [queues[name] for (name,) in elsewhere]
            misplaced += [name for (name,) in await shard.connection.fetch(SQL["still_there"], numbers)]
    return misplaced

"""Which databases a store has: the home, the first one, lists the others with their URLs.

A node that has read the list keeps it in a file, so that it starts while the home is down. No password is kept in
either: libpq's variables, ``.pgpass`` and service files have it. A place is never given to another database, so what
names it (receipts, what is on its way) means that one.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from hashlib import blake2s
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec

from veilmq.engines.postgres import identity
from veilmq.engines.postgres.failures import sentence
from veilmq.engines.postgres.transits import SHARDS
from veilmq.engines.store import StoreError
from veilmq.engines.store_urls import bare, without_passwords
from veilmq.store.postgres.migrate import SchemaRefused, migrate, require

log = logging.getLogger(__name__)

CONNECT_S = 5.0
Prepare = Callable[[Any], Awaitable[Any]]
_REFUSED = (OSError, TimeoutError, ValueError, asyncpg.InterfaceError, asyncpg.PostgresError)


class Member(msgspec.Struct, frozen=True):
    """A database of a store but the home. ``url`` has no password, and is ``None`` where nobody knows it."""

    place: int
    url: str | None
    removed: bool = False


async def members(home: Any) -> list[Member]:
    """Return the other databases, as the connection ``home`` has them, in the order of their places."""
    return [Member(*row) for row in await home.fetch(SHARDS["members"])]


async def register(home: Any, place: int, url: str, *, is_sure: bool) -> None:
    """Note that the database at ``place`` is at ``url``; within a transaction that ``locked`` the list.

    ``is_sure`` says that the database there knows so itself. Raises ``StoreError`` where another one has the place.
    """
    kept = {member.place: member for member in await members(home)}.get(place)
    if kept is not None and kept.removed:
        raise StoreError(f"it was number {place + 1} of the store, and was removed; name the first database alone.")
    if kept is None or kept.url is None or (is_sure and kept.url != bare(url)):
        await home.execute(SHARDS["note_own"])
        await home.execute(SHARDS["put_member"], place, bare(url))
    elif kept.url != bare(url):
        raise StoreError(
            f"number {place + 1} of the store is {kept.url}; name the first database alone, and add others with "
            "`veilmq database add`."
        )


@asynccontextmanager
async def locked(home: Any) -> AsyncIterator[None]:
    """Have one transaction at a time change the list."""
    async with home.transaction():
        await home.fetchval(SHARDS["lock_members"])
        yield


# The list that a node has read last.


def last_known(home_url: str) -> list[Member]:
    """Return the list that was kept last for the home at ``home_url``; nothing where there is none."""
    path = _file(home_url)
    try:
        return [] if path is None else msgspec.json.decode(path.read_bytes(), type=list[Member])
    except (OSError, msgspec.DecodeError):
        return []


def keep(home_url: str, known: list[Member]) -> None:
    """Keep the list, for a start while the home is down; a log line says so where that is not possible."""
    path = _file(home_url)
    if last_known(home_url) == known:
        return
    if path is None:
        log.warning("the list of databases is kept nowhere, as there is no home folder: set XDG_STATE_HOME")
        return
    new = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(msgspec.json.encode(known))
        new.replace(path)
    except OSError as error:
        log.warning(
            "the list of databases cannot be kept: %s; this server will not start while %s is down", error, path
        )


def _file(home_url: str) -> Path | None:
    """Return the file, by the home's URL: servers of one user that have the same home share it."""
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError:
        return None
    return folder / "veilmq" / f"databases-{blake2s(bare(home_url).encode(), digest_size=8).hexdigest()}.json"


# What an operator does.


class Listed(NamedTuple):
    """A database as ``veilmq database list`` shows it; ``error`` says why it cannot be asked."""

    number: int
    database: str
    queues: int | None
    error: str | None = None


async def listing(home_url: str) -> list[Listed]:
    """Return all databases of the store, the home first."""
    async with _connected(home_url) as home:
        found = [
            Listed(1, without_passwords(home_url), await home.fetchval(SHARDS["count_queues"])),
        ]
        kept = [member for member in await members(home) if not member.removed]
    return [*found, *[await _listed(member) for member in kept]]


async def _listed(member: Member) -> Listed:
    number, url = member.place + 1, member.url
    if url is None:
        return Listed(number, "", None, "its URL is not known: add it, or start a server with all URLs once.")
    try:
        async with _connected(url) as connection:
            return Listed(number, url, await connection.fetchval(SHARDS["count_queues"]))
    except (StoreError, *_REFUSED) as error:
        return Listed(number, url, None, sentence(error))


async def known_urls(home_url: str) -> dict[int, str]:
    """Return the URLs of the other databases by their places, as far as the home knows them and can be asked."""
    with suppress(StoreError, *_REFUSED):
        async with _connected(home_url, prepare=None) as home:
            return {each.place: each.url for each in await members(home) if each.url is not None and not each.removed}
    return {}


async def add(home_url: str, url: str) -> Listed:
    """Have the database at ``url`` take part in the store; say where it is, if it does.

    Raises ``StoreError`` for one that has queues of its own or is of another store, and where servers could not connect
    without the password that ``url`` has.
    """
    async with (
        _connected(home_url) as home,
        _connected(bare(url), prepare=migrate, lost=bare(url) != url) as other,
    ):
        store = await identity.found(home)
        async with locked(home):
            place = await _place_for(home, store, other, bare(url))
            await register(home, place, url, is_sure=True)
        try:
            await identity.join(other, store, place)
        except StoreError:
            await home.execute(SHARDS["forget_member"], place)
            raise
        return Listed(place + 1, bare(url), await other.fetchval(SHARDS["count_queues"]))


async def _place_for(home: Any, store: identity.Identity, other: Any, url: str) -> int:
    """Return the place that a database has, or the next one."""
    kept = {member.place: member for member in await members(home)}
    ours = await identity.read(other)
    if ours is not None:
        if ours.store != store.store:
            raise StoreError(f"{url} belongs to another store.")
        if ours.place == 0:
            raise StoreError(f"{url} is the first database of the store itself.")
        if ours.place not in kept or not kept[ours.place].removed:
            return ours.place
        await identity.leave(other)  # a node that did not know of the removal may have had it join again
    if not await other.fetchval(SHARDS["is_empty"]):
        raise StoreError(f"{url} has queues of its own: only an empty database can be added.")
    return next(
        (each.place for each in kept.values() if each.url == url and not each.removed), max(kept, default=0) + 1
    )


async def remove(home_url: str, name: str) -> Listed:
    """Have a database, by its number or URL, take part no more; raises ``StoreError`` unless it is empty.

    New queues cannot be placed there from the first statement on, and those that are being made are waited for.
    """
    async with _connected(home_url) as home:
        store = await identity.found(home)
        async with locked(home):
            kept = [member for member in await members(home) if not member.removed]
            found = [member for member in kept if name in (str(member.place + 1), member.url)]
            if not found:
                raise StoreError(_not_found(name, kept))
            (member,) = found
            if member.url is None:
                raise StoreError(f"The URL of number {member.place + 1} is not known: add it first, then remove it.")
            await home.execute(SHARDS["remove_member"], member.place)
            await home.execute(SHARDS["drop_places"], member.place)
            async with _connected(member.url) as other:
                await _require_empty(home, other, member, store, kept)
                await identity.leave(other)
    return Listed(member.place + 1, member.url, 0)


def _not_found(name: str, kept: list[Member]) -> str:
    if name == "1":
        return "The first database is the home, which cannot be removed."
    there = ", ".join(f"{member.place + 1} ({member.url})" for member in kept)
    return f"No database {name!r} can be removed: there {'are ' + there if there else 'is the home alone'}."


async def _require_empty(home: Any, other: Any, member: Member, store: identity.Identity, kept: list[Member]) -> None:
    """Raise ``StoreError`` where a database has something that is not elsewhere, or something is on its way to it."""
    fault = identity.objection(await identity.read(other), store=store.store, place=member.place)
    if fault:
        raise StoreError(f"{member.url}: {fault}")
    queues = await other.fetchval(SHARDS["count_queues"])
    if queues:
        raise StoreError(f"{member.url} has queues ({queues}): move their messages elsewhere, and delete them first.")
    if await other.fetchval(SHARDS["is_waiting"], None):
        raise StoreError(f"Messages from {member.url} are on their way to other databases: try again in a while.")
    if await other.fetchval(SHARDS["has_events"]):
        raise StoreError(f"{member.url} has events that are not exported: run `veilmq events flush`, and try again.")
    for each in kept:
        if each.place != member.place and each.url is not None:
            async with _connected(each.url) as connection:
                await _require_none_for(connection, member)
    await _require_none_for(home, member)


async def _require_none_for(connection: Any, member: Member) -> None:
    if await connection.fetchval(SHARDS["is_waiting"], member.place):
        raise StoreError(f"Messages are on their way to {member.url}: try again in a while.")


@asynccontextmanager
async def _connected(url: str, *, prepare: Prepare | None = require, lost: bool = False) -> AsyncIterator[Any]:
    """Keep a connection for a while; raises ``StoreError``. ``lost`` says that a password was taken out of ``url``."""
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_S, server_settings={"search_path": "mq"})
    except _REFUSED as error:
        if lost and isinstance(error, asyncpg.InvalidAuthorizationSpecificationError):
            raise StoreError(
                f"{url} takes no connection without the password in the URL, which would be lost: no password is kept "
                "in a database. Put it into PGPASSWORD, ~/.pgpass or a service file of each server, and try again."
            ) from error
        raise StoreError(f"{without_passwords(url)} cannot be used: {sentence(error)}") from error
    try:
        if prepare is not None:
            await prepare(connection)
        yield connection
    except SchemaRefused as error:
        raise StoreError(f"{without_passwords(url)}: {error}") from error
    except _REFUSED as error:
        raise StoreError(f"A database failed; what was begun can be done again: {sentence(error)}") from error
    finally:
        await connection.close()

"""Which databases a store has: the home, the first one, lists the others with their URLs.

A node that has read the list keeps it in a file, so that it starts while the home is down. No password is kept in
either: libpq's variables, ``.pgpass`` and service files have it. A place is never given to another database, so what
names it (receipts, what is on its way) means that one.
"""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from hashlib import blake2s
from os import urandom
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec

from veilmq.core.receipts import KEY_BYTES
from veilmq.store.named_queries import load
from veilmq.store.port import Finding, StoreError
from veilmq.store.postgres.database import sentence
from veilmq.store.postgres.queues import SQL
from veilmq.store.postgres.schema import CONNECT_S, SchemaRefused, migrate, require
from veilmq.store.urls import bare, without_passwords

log = logging.getLogger(__name__)
SHARDS = load("veilmq.store.postgres", "shards.sql")

_ID_BYTES = 16
_ID, _PLACE = "store", "store_place"
_RECEIPT_KEY, _TOKEN_KEY = "receipt_key", "token_key"


class Identity(NamedTuple):
    """``place`` is which database of the store this is, from 0."""

    store: bytes
    place: int
    receipt_key: bytes
    token_key: bytes


async def read(connection: Any) -> Identity | None:
    """Return what the database knows of itself; ``None`` for one that is of no store yet."""
    store = await connection.fetchval(SQL["setting"], _ID)
    if store is None:
        return None
    place, *keys = [await connection.fetchval(SQL["setting"], name) for name in (_PLACE, _RECEIPT_KEY, _TOKEN_KEY)]
    return Identity(store, int(place), *keys)


def objection(ours: Identity | None, *, store: bytes | None, place: int) -> str:
    """Return why a database cannot be at ``place`` of ``store``; empty where it is, or belongs to none yet."""
    if ours is None:
        return ""
    if ours.store != store:
        return f"it belongs to another store; name the one that was number {place + 1} here."
    if ours.place != place:
        return f"it is number {ours.place + 1} of its store, and named as number {place + 1}."
    return ""


async def found(connection: Any) -> Identity:
    """Return what the home knows of itself, which it makes at first; raises ``StoreError`` for another database."""
    async with connection.transaction():
        store = await connection.fetchval(SQL["kept_key"], _ID, urandom(_ID_BYTES))
        place = int(await connection.fetchval(SQL["kept_key"], _PLACE, b"0"))
        keys = [
            await connection.fetchval(SQL["kept_key"], name, urandom(KEY_BYTES)) for name in (_RECEIPT_KEY, _TOKEN_KEY)
        ]
        if place:
            raise StoreError(f"it is number {place + 1} of the databases of its store; name the first one, its home.")
    return Identity(store, place, *keys)


async def join(connection: Any, home: Identity, place: int) -> None:
    """Have a database be at ``place`` of the store that ``home`` tells of; raises ``StoreError`` where it cannot be."""
    async with connection.transaction():
        ours = await read(connection)
        if ours is None and not await connection.fetchval(SHARDS["is_empty"]):
            raise StoreError(f"it has queues of its own, so it cannot be number {place + 1} of another store.")
        store = await connection.fetchval(SQL["kept_key"], _ID, home.store)
        kept = await connection.fetchval(SQL["kept_key"], _PLACE, b"%d" % place)
        reason = objection(home._replace(store=store, place=int(kept)), store=home.store, place=place)
        if reason:
            raise StoreError(reason)
        for name, key in ((_RECEIPT_KEY, home.receipt_key), (_TOKEN_KEY, home.token_key)):
            await connection.execute(SQL["put_setting"], name, key)


async def leave(connection: Any) -> None:
    """Have a database be of no store."""
    await connection.execute(SHARDS["leave"])


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
        found = [Listed(1, without_passwords(home_url), await home.fetchval(SHARDS["queues_there"]))]
        kept = [member for member in await members(home) if not member.removed]
    return [*found, *[await _listed(member) for member in kept]]


async def _listed(member: Member) -> Listed:
    number, url = member.place + 1, member.url
    if url is None:
        return Listed(number, "", None, "its URL is not known: add it, or start a server with all URLs once.")
    try:
        async with _connected(url) as connection:
            return Listed(number, url, await connection.fetchval(SHARDS["queues_there"]))
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
    async with _connected(home_url) as home, _connected(bare(url), prepare=migrate, lost=bare(url) != url) as other:
        store = await found(home)
        async with locked(home):
            place = await _place_for(home, store, other, bare(url))
            await register(home, place, url, is_sure=True)
        try:
            await join(other, store, place)
        except StoreError:
            await home.execute(SHARDS["forget_member"], place)
            raise
        return Listed(place + 1, bare(url), await other.fetchval(SHARDS["queues_there"]))


async def _place_for(home: Any, store: Identity, other: Any, url: str) -> int:
    """Return the place that a database has, or the next one."""
    kept = {member.place: member for member in await members(home)}
    ours = await read(other)
    if ours is not None:
        if ours.store != store.store:
            raise StoreError(f"{url} belongs to another store.")
        if ours.place == 0:
            raise StoreError(f"{url} is the first database of the store itself.")
        if ours.place not in kept or not kept[ours.place].removed:
            return ours.place
        await leave(other)  # a node that did not know of the removal may have had it join again
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
        store = await found(home)
        async with locked(home):
            kept = [member for member in await members(home) if not member.removed]
            named = [member for member in kept if name in (str(member.place + 1), member.url)]
            if not named:
                raise StoreError(_not_found(name, kept))
            (member,) = named
            if member.url is None:
                raise StoreError(f"The URL of number {member.place + 1} is not known: add it first, then remove it.")
            await home.execute(SHARDS["remove_member"], member.place)
            await home.execute(SHARDS["drop_places"], member.place)
            async with _connected(member.url) as other:
                await _require_empty(home, other, member, store, kept)
                await leave(other)
    return Listed(member.place + 1, member.url, 0)


def _not_found(name: str, kept: list[Member]) -> str:
    if name == "1":
        return "The first database is the home, which cannot be removed."
    there = ", ".join(f"{member.place + 1} ({member.url})" for member in kept)
    return f"No database {name!r} can be removed: there {'are ' + there if there else 'is the home alone'}."


async def _require_empty(home: Any, other: Any, member: Member, store: Identity, kept: list[Member]) -> None:
    """Raise ``StoreError`` where a database has something that is not elsewhere, or something is on its way to it."""
    fault = objection(await read(other), store=store.store, place=member.place)
    if fault:
        raise StoreError(f"{member.url}: {fault}")
    queues = await other.fetchval(SHARDS["queues_there"])
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


ONE_STORE = "the databases are one store"
PLACES = "every queue is in the database that the home names"

_NOT_COMPARED = "not looked at: name the first database of a store"

_PAGE = 500
_TROUBLE = (*_REFUSED, SchemaRefused)


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
    connection = await asyncpg.connect(url, timeout=CONNECT_S, server_settings={"search_path": "mq"})
    stack.callback(connection.terminate)
    await require(connection)
    is_empty = await connection.fetchval(SHARDS["is_empty"])
    return _Met(without_passwords(url), place, connection, await read(connection), is_empty)


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
    while queues := dict(await shard.connection.fetch(SHARDS["next_queues"], after, _PAGE)):
        after = max(queues)
        elsewhere = await home.connection.fetch(SHARDS["placed_elsewhere"], list(queues), shard.place)
        if elsewhere:
            numbers = [queues[name] for (name,) in elsewhere]
            misplaced += [name for (name,) in await shard.connection.fetch(SHARDS["still_there"], numbers)]
    return misplaced

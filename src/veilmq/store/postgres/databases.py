"""The databases of a store: the home (the first one) lists the others with their URLs.

A node also saves the list in a file, so that it can start while the home is down. Neither has passwords: these come
from libpq's variables, ``.pgpass`` and service files. The place (number) of a database is never reused, because
receipts and messages in transit name it.
"""

import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from hashlib import blake2s
from os import urandom
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg
import msgspec

from veilmq.core.errors import VeilmqError
from veilmq.core.receipts import KEY_BYTES
from veilmq.store.named_queries import load
from veilmq.store.port import Finding, Report, StoreError
from veilmq.store.postgres.database import FAILURES, UNREACHABLE, sentence
from veilmq.store.postgres.queues import SQL
from veilmq.store.postgres.schema import Durability, SchemaRefused, connect, examine, migrate, read_format, require
from veilmq.store.urls import remove_passwords, without_passwords

log = logging.getLogger(__name__)
SHARDS = load("veilmq.store.postgres", "shards.sql")

_ID_BYTES = 16


class PlaceRefused(VeilmqError):
    """The database cannot have that place in that store; the text continues its URL."""


@contextmanager
def store_errors(url: str, failed: str = "cannot be used", *, kind: type[Exception] = StoreError) -> Iterator[None]:
    """Raise failures as ``kind`` with the URL of the database, without its password."""
    shown_url = without_passwords(url)
    try:
        yield
    except (SchemaRefused, PlaceRefused) as error:
        raise kind(f"{shown_url}: {error}") from error
    except asyncpg.ReadOnlySQLTransactionError as error:
        raise kind(f"{shown_url} is a standby, which accepts no writes: use the primary.") from error
    except (*FAILURES, ValueError, VeilmqError) as error:
        raise kind(f"{shown_url} {failed}: {sentence(error)}") from error


class Identity(NamedTuple):
    """A database of a store; ``place`` counts from 0, the home."""

    store: bytes
    place: int
    receipt_key: bytes
    token_key: bytes


async def identity(connection: Any) -> Identity | None:
    """Return the identity of a database; ``None`` if it belongs to no store yet."""
    found = dict(await connection.fetch(SHARDS["identity"]))
    if "store" not in found:
        return None
    return Identity(found["store"], int(found["store_place"]), found["receipt_key"], found["token_key"])


async def require_place(connection: Any, *, store: bytes | None, place: int) -> bool:
    """Return whether the database is at ``place`` of ``store`` already; raises ``PlaceRefused`` if it cannot be."""
    ours = await identity(connection)
    if ours is None:
        if place and await connection.fetchval(SQL["count_queues"]):
            raise PlaceRefused(f"it has queues of its own, so it cannot be number {place + 1} of another store.")
        return False
    if ours.store != store:
        raise PlaceRefused(f"it belongs to another store; name the one that was number {place + 1} here.")
    if ours.place != place:
        raise PlaceRefused(f"it is number {ours.place + 1} of its store, and named as number {place + 1}.")
    return True


async def home_identity(connection: Any) -> Identity:
    """Return the identity of the home, created on first use; raises ``PlaceRefused`` for another database."""
    new = Identity(urandom(_ID_BYTES), 0, urandom(KEY_BYTES), urandom(KEY_BYTES))
    async with connection.transaction():
        home = await _complete_identity(connection, new)
        if home.place:
            raise PlaceRefused(
                f"it is number {home.place + 1} of the databases of its store; name the first one, its home."
            )
    return home


async def join(connection: Any, home: Identity, place: int) -> None:
    """Give a database the identity ``place`` of the store of ``home``; raises ``PlaceRefused`` if it cannot have it."""
    async with connection.transaction():
        for _ in range(2):  # the second check follows the write, so no other node can interfere
            if not await require_place(connection, store=home.store, place=place) and place == 0:
                raise PlaceRefused(
                    "it belongs to no store, but is named as the home of one: correct its URL or restore it."
                )
            await _complete_identity(connection, home._replace(place=place))
        for name in ("receipt_key", "token_key"):
            await connection.execute(SQL["put_setting"], name, getattr(home, name))


async def _complete_identity(connection: Any, new: Identity) -> Identity:
    """Store the missing parts of the identity; return the complete one."""
    values = {"store": new.store, "store_place": b"%d" % new.place}
    values |= {"receipt_key": new.receipt_key, "token_key": new.token_key}
    store, place, *keys = [await connection.fetchval(SQL["insert_setting"], *each) for each in values.items()]
    return Identity(store, int(place), *keys)


class Member(msgspec.Struct, frozen=True):
    """A database other than the home. ``url`` has no password, and is ``None`` if unknown."""

    place: int
    url: str | None
    removed: bool = False


async def members(home: Any) -> list[Member]:
    """Return the databases that the home lists, by place."""
    return [Member(*row) for row in await home.fetch(SHARDS["members"])]


async def register(home: Any, place: int, url: str, *, is_sure: bool) -> None:
    """Record the URL of a database, in a transaction that has locked the list; ``is_sure``: it has confirmed its place.

    Raises ``PlaceRefused`` if another database has the place.
    """
    kept = {member.place: member for member in await members(home)}.get(place)
    if kept is not None and kept.removed:
        raise PlaceRefused(f"it was number {place + 1} of the store, and was removed; name the first database alone.")
    if kept is None or kept.url is None or (is_sure and kept.url != remove_passwords(url)):
        await home.execute(SHARDS["register_home_queues"])
        await home.execute(SHARDS["put_member"], place, remove_passwords(url))
    elif kept.url != remove_passwords(url):
        raise PlaceRefused(
            f"number {place + 1} of the store is {kept.url}; name the first database alone, and add others with "
            "`veilmq database add`."
        )


def load_members(home_url: str) -> list[Member]:
    """Return the saved list for the home at ``home_url``; empty without one."""
    try:
        return msgspec.json.decode(_members_file(home_url).read_bytes(), type=list[Member])
    except (OSError, msgspec.DecodeError):
        return []


def save_members(home_url: str, known: list[Member]) -> None:
    """Save the list, for a start while the home is down; log a warning on failure."""
    if load_members(home_url) == known:
        return
    try:
        path = _members_file(home_url)
        new = path.with_suffix(f".{os.getpid()}")
        path.parent.mkdir(parents=True, exist_ok=True)
        new.write_bytes(msgspec.json.encode(known))
        new.replace(path)
    except OSError as error:
        log.warning("the list of databases is not stored: %s; no server can start here while the home is down", error)


def _members_file(home_url: str) -> Path:
    """Return the file for a home; servers of one user with the same home share it. Raises ``OSError``."""
    try:
        folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    except RuntimeError as error:
        raise OSError("there is no home folder: set XDG_STATE_HOME") from error
    name = blake2s(remove_passwords(home_url).encode(), digest_size=8).hexdigest()
    return folder / "veilmq" / f"databases-{name}.json"


@asynccontextmanager
async def _connected(url: str, *, needs_schema: bool = True) -> AsyncIterator[Any]:
    """Open a connection; raises ``StoreError``, also for failures inside the context."""
    with store_errors(url):
        connection = await connect(url)
        try:
            if needs_schema:
                await require(connection)
            yield connection
        finally:
            await connection.close()


class Upgrade(NamedTuple):
    """The database (URL without a password), its format before, and the names of the upgrades."""

    shown_url: str
    found: int
    upgrades: list[str]


async def upgrade(url: str, *, apply: bool) -> Upgrade:
    """Upgrade the schema, or only return the pending upgrades; raises ``StoreError``."""
    async with _connected(url, needs_schema=False) as connection:
        before, pending = await read_format(connection)
        applied = await migrate(connection) if apply else pending
        if not applied:  # another process may have upgraded it meanwhile
            before, _ = await read_format(connection)
    return Upgrade(without_passwords(url), before, [script.name for script in applied])


async def examine_database(url: str, *, durability: str) -> tuple[str, Report]:
    """Return the database (URL without a password) and the doctor's report; raises ``StoreError``."""
    async with _connected(url, needs_schema=False) as connection:
        return without_passwords(url), await examine(connection, durability=Durability(durability))


class Listed(NamedTuple):
    """A row of ``veilmq database list``; ``error`` is the reason if the database cannot be read."""

    number: int
    database: str
    queues: int | None
    error: str | None = None


async def list_databases(home_url: str) -> list[Listed]:
    """Return all databases of the store, the home first."""
    async with _connected(home_url) as home:
        ours = await identity(home)
        number = 1 if ours is None else ours.place + 1  # not the home, if another URL was given
        first = Listed(number, without_passwords(home_url), await home.fetchval(SQL["count_queues"]))
        return [first, *[await _entry(member) for member in await members(home) if not member.removed]]


async def _entry(member: Member) -> Listed:
    number, url = member.place + 1, member.url
    if url is None:
        return Listed(number, "", None, "its URL is not known: add it, or start a server with all URLs once.")
    try:
        async with _connected(url) as connection:
            return Listed(number, url, await connection.fetchval(SQL["count_queues"]))
    except StoreError as error:
        return Listed(number, url, None, str(error))


async def known_urls(home_url: str) -> dict[int, str]:
    """Return the known URLs of the other databases by place; as saved on this machine if the home cannot be reached."""
    try:
        async with _connected(home_url, needs_schema=False) as home:
            known = await members(home)
    except StoreError as error:
        known = load_members(home_url) if isinstance(error.__cause__, UNREACHABLE) else []
    return {each.place: each.url for each in known if each.url is not None and not each.removed}


async def add(home_url: str, url: str) -> Listed:
    """Add the database at ``url`` to the store; a database that belongs to it already keeps its place.

    Raises ``StoreError`` if it has queues, belongs to another store, or needs the password in ``url``.
    """
    kept_url = remove_passwords(url)
    async with _connected(home_url) as home, AsyncExitStack() as stack:
        try:
            other = await stack.enter_async_context(_connected(kept_url, needs_schema=False))
        except StoreError as error:
            if kept_url == url or not isinstance(error.__cause__, asyncpg.InvalidAuthorizationSpecificationError):
                raise
            raise StoreError(
                f"{kept_url} accepts no connection without the password in the URL, and passwords are not stored. Put "
                "it into PGPASSWORD, ~/.pgpass or a service file of each server, and try again."
            ) from error
        await migrate(other)
        store = await home_identity(home)
        async with home.transaction():
            await home.execute(SHARDS["lock_members"])
            place = await _place_for(home, store, other, kept_url)
            await register(home, place, kept_url, is_sure=True)
        try:
            await join(other, store, place)
        except PlaceRefused:
            await home.execute(SHARDS["delete_member"], place)
            raise
        return Listed(place + 1, kept_url, await other.fetchval(SQL["count_queues"]))


async def _place_for(home: Any, store: Identity, other: Any, url: str) -> int:
    """Return the place of the database, or a new one."""
    kept = {member.place: member for member in await members(home)}
    ours = await identity(other)
    if ours is not None:
        if ours.store != store.store:
            raise StoreError(f"{url} belongs to another store.")
        if ours.place == 0:
            raise StoreError(f"{url} is the first database of the store itself.")
        if ours.place not in kept or not kept[ours.place].removed:
            return ours.place
        await other.execute(SHARDS["delete_identity"])  # a node that had not seen the removal may have added it again
    if await other.fetchval(SQL["count_queues"]):
        raise StoreError(f"{url} has queues of its own: only an empty database can be added.")
    places = (each.place for each in kept.values() if each.url == url and not each.removed)
    return next(places, max(kept, default=0) + 1)


async def remove(home_url: str, name: str) -> Listed:
    """Remove an empty database, by its number or URL; raises ``StoreError``.

    First it blocks the placement of new queues there, and waits for those in creation.
    """
    async with _connected(home_url) as home:
        store = await home_identity(home)
        async with home.transaction():
            await home.execute(SHARDS["lock_members"])
            kept = [member for member in await members(home) if not member.removed]
            member = next((each for each in kept if name in (str(each.place + 1), each.url)), None)
            if member is None and name == "1":
                raise StoreError("The first database is the home, which cannot be removed.")
            if member is None:
                there = ", ".join(f"{member.place + 1} ({member.url})" for member in kept)
                which = f"are {there}" if there else "is the home alone"
                raise StoreError(f"No database {name!r} can be removed: there {which}.")
            if member.url is None:
                raise StoreError(f"The URL of number {member.place + 1} is not known: add it first, then remove it.")
            await home.execute(SHARDS["remove_member"], member.place)
            await home.execute(SHARDS["delete_places"], member.place)
            async with _connected(member.url) as other:
                await _require_empty(other, member, store)
                for url in (home_url, *(each.url for each in kept if each is not member and each.url is not None)):
                    async with _connected(url) as connection:
                        if await connection.fetchval(SHARDS["is_waiting"], member.place):
                            raise StoreError(f"Messages are on their way to {member.url}: try again in a while.")
                await other.execute(SHARDS["delete_identity"])
    return Listed(member.place + 1, member.url, 0)


async def _require_empty(other: Any, member: Member, store: Identity) -> None:
    """Raise ``StoreError`` if the database has data that would be lost."""
    await require_place(other, store=store.store, place=member.place)
    if queues := await other.fetchval(SQL["count_queues"]):
        raise StoreError(f"{member.url} has queues ({queues}): move their messages elsewhere, and delete them first.")
    if await other.fetchval(SHARDS["is_waiting"], None):
        raise StoreError(f"Messages from {member.url} are on their way to other databases: try again in a while.")
    if await other.fetchval(SHARDS["has_events"]):
        raise StoreError(f"{member.url} has events that are not exported: run `veilmq events flush`, and try again.")


ONE_STORE = "the databases are one store"
PLACES = "every queue is in the database that the home names"

_NOT_COMPARED = "not checked: name the first database of a store"
_PAGE = 500


async def examine_together(urls: Mapping[int, str]) -> list[Finding]:
    """Check the databases ``urls``, by place, for consistency; an unreachable one is a finding."""
    connections: dict[int, Any] = {}
    unreachable: list[str] = []
    strangers: list[str] = []
    misplaced: list[str] = []
    async with AsyncExitStack() as stack:
        for place, url in urls.items():
            try:
                connections[place] = await stack.enter_async_context(_connected(url))
            except StoreError as error:
                unreachable.append(str(error))
        # While the home is down, the first database with an identity determines the store.
        identities = {place: await identity(each) for place, each in connections.items()}
        ours = identities[0] if 0 in identities else next(filter(None, identities.values()), None)
        store = None if ours is None else ours.store
        for place, connection in connections.items():
            try:
                await require_place(connection, store=store, place=place)
            except PlaceRefused as error:
                strangers.append(f"{without_passwords(urls[place])}: {error}")
        if strangers:
            misplaced.append(_NOT_COMPARED)
        elif 0 in connections:
            misplaced = await _misplaced(connections, urls)
    faults_by_check = {ONE_STORE: strangers + unreachable, PLACES: misplaced + unreachable}
    return [Finding(check, ok=not faults, detail="\n".join(faults)) for check, faults in faults_by_check.items()]


async def _misplaced(connections: Mapping[int, Any], urls: Mapping[int, str]) -> list[str]:
    """Return a text for each database with queues that the home locates elsewhere."""
    faults: list[str] = []
    for place, connection in connections.items():
        name, after, misplaced = without_passwords(urls[place]), "", []
        try:
            while queues := dict(await connection.fetch(SHARDS["next_queues"], after, _PAGE)):
                after = max(queues)
                elsewhere = await connections[0].fetch(SHARDS["placed_elsewhere"], list(queues), place)
                numbers = [queues[each] for (each,) in elsewhere]
                if numbers:
                    misplaced += [each for (each,) in await connection.fetch(SHARDS["still_there"], numbers)]
        except FAILURES as error:
            faults.append(f"{name} could not be compared with the home: {sentence(error)}")
            continue
        if misplaced:
            first = min(misplaced)
            faults.append(f"{name} has queues ({len(misplaced)}) that the home locates elsewhere, the first is {first}")
    return faults

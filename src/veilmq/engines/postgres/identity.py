"""Which store a database belongs to, and its place among the databases of that store.

The first database of a store, its home, makes an id and the keys; each other one is given them when it joins, with its
place. So URLs that are missing, swapped or of another store are found out before anything is done there.
"""

from os import urandom
from typing import Any, NamedTuple

from veilmq.core.receipts import KEY_BYTES
from veilmq.engines.postgres.catalog import SQL
from veilmq.engines.postgres.transits import SHARDS
from veilmq.engines.store import StoreError

_ID_BYTES = 16
_ID, _PLACE, _PLACES = "store", "store_place", "store_places"
_RECEIPT_KEY, _TOKEN_KEY = "receipt_key", "token_key"


class Identity(NamedTuple):
    """``places`` is how many databases the store has, ``place`` which of them this is, from 0."""

    store: bytes
    place: int
    places: int
    receipt_key: bytes
    token_key: bytes


async def read(connection: Any) -> Identity | None:
    """Return what the database knows of itself; ``None`` for one that was never one of several."""
    store = await connection.fetchval(SQL["setting"], _ID)
    if store is None:
        return None
    place, places, *keys = [
        await connection.fetchval(SQL["setting"], name) for name in (_PLACE, _PLACES, _RECEIPT_KEY, _TOKEN_KEY)
    ]
    return Identity(store, int(place), int(places), *keys)


async def check_alone(connection: Any) -> None:
    """Raise ``StoreError`` for one of several databases."""
    found = await read(connection)
    if found is not None and found.places > 1:
        raise StoreError(
            f"it is number {found.place + 1} of the {found.places} databases of a store; name all, in their order."
        )


def objection(ours: Identity | None, *, store: bytes | None, place: int) -> str:
    """Return why a database cannot be at ``place`` of ``store``; empty where it is, or belongs to none yet."""
    if ours is None:
        return ""
    if ours.store != store:
        return f"it belongs to another store; name the one that was number {place + 1} here."
    if ours.place != place:
        return f"it is number {ours.place + 1} of its store, and named as number {place + 1}; name all in their order."
    return ""


async def found(connection: Any, places: int) -> Identity:
    """Return what the home knows of itself when it has ``places`` databases from now on; raises ``StoreError``."""
    async with connection.transaction():
        store = await connection.fetchval(SQL["kept_key"], _ID, urandom(_ID_BYTES))
        place = int(await connection.fetchval(SQL["kept_key"], _PLACE, b"0"))
        before = int(await connection.fetchval(SQL["kept_key"], _PLACES, b"%d" % places))
        keys = [
            await connection.fetchval(SQL["kept_key"], name, urandom(KEY_BYTES)) for name in (_RECEIPT_KEY, _TOKEN_KEY)
        ]
        if place != 0:
            raise StoreError(f"it is number {place + 1} of its store, and named first; name all in their order.")
        if places < before:
            raise StoreError(f"its store has {before} databases, and {places} are named; name all of them.")
        await connection.execute(SQL["put_setting"], _PLACES, b"%d" % places)
        await connection.execute(SHARDS["note_own"])
    return Identity(store, place, places, *keys)


async def join(connection: Any, home: Identity, place: int) -> None:
    """Have a database be at ``place`` of the store that ``home`` tells of; raises ``StoreError`` where it cannot be."""
    async with connection.transaction():
        ours = await read(connection)
        if ours is None and not await connection.fetchval(SHARDS["is_empty"]):
            raise StoreError(f"it has queues of its own, so it cannot be number {place + 1} of another store.")
        reason = objection(ours, store=home.store, place=place)
        if reason:
            raise StoreError(reason)
        kept = {
            _ID: home.store,
            _PLACE: b"%d" % place,
            _PLACES: b"%d" % home.places,
            _RECEIPT_KEY: home.receipt_key,
            _TOKEN_KEY: home.token_key,
        }
        for name, value in kept.items():
            await connection.execute(SQL["put_setting"], name, value)

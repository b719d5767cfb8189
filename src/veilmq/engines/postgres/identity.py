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

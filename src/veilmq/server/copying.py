"""From one stopped store to another, of whichever kinds they are."""

from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from veilmq.core.errors import VeilmqError
from veilmq.engines import store_urls
from veilmq.engines.clock import StoreClock
from veilmq.engines.copying import CopyRefused, Told, copy
from veilmq.engines.embedded import FolderError
from veilmq.engines.embedded.backup import back_up
from veilmq.engines.embedded.copy_source import FolderSource
from veilmq.engines.embedded.copy_target import FolderTarget
from veilmq.engines.embedded.folder import FolderLock
from veilmq.server.opening import postgres_parts


class Copied(NamedTuple):
    """What came of a copy: how many messages there are, and whether receipts issued before act there."""

    messages: int
    keeps_receipts: bool


async def copy_store(source: str, target: str, *, clock: StoreClock, told: Told | None = None) -> Copied:
    """Copy the stopped store ``source`` to ``target``, which has nothing: folders, or URLs (``postgresql://…``).

    Raises ``CopyRefused`` when that is not possible, ``StoreError`` when a driver is missing; the target is then as it
    was.
    """
    _refuse_several(source, target)
    between = _BETWEEN[_is_url(source), _is_url(target)]
    try:
        return await between(source, target, clock, told)
    except (FolderError, VeilmqError) as error:
        raise CopyRefused(str(error)) from error


def _is_url(place: str) -> bool:
    return "://" in place


def _refuse_several(source: str, target: str) -> None:
    """Raise ``CopyRefused`` where several databases are named as one store, and say what to do instead."""
    for place, advice in ((source, _FROM_SEVERAL), (target, _TO_SEVERAL)):
        try:
            names = [store_urls.without_passwords(url) for url in store_urls.split(place)]
        except ValueError:  # a folder, or what is refused as no URL
            continue
        if names[1:]:
            raise CopyRefused(f"{' and '.join(names)} are {len(names)} databases, and {advice}")


_FROM_SEVERAL = (
    "each is copied by itself, to an empty database: copy one after the other, and name the new ones in the same "
    "order. No data folder takes them."
)
_TO_SEVERAL = (
    "a store is copied to one: copy it to the first, then start servers with all of them; new queues go to the others. "
    "Of a store on several databases copy each by itself."
)


async def _folder_to_folder(source: str, target: str, clock: StoreClock, told: Told | None) -> Copied:
    lock = FolderLock.of_source(Path(source))
    try:
        made = back_up(Path(source), Path(target), told=told)
    finally:
        lock.release()
    return Copied(int(made.facts["messages"]), keeps_receipts=True)


async def _folder_to_database(source: str, target: str, clock: StoreClock, told: Told | None) -> Copied:
    with FolderSource(Path(source), clock=clock) as folder:
        async with AsyncExitStack() as stack:
            database = await _held(stack, target)
            messages = await copy(folder, _of_postgres("copy_target").DatabaseTarget(database), told=told)
    return Copied(messages, keeps_receipts=True)


async def _database_to_folder(source: str, target: str, clock: StoreClock, told: Told | None) -> Copied:
    with FolderTarget(Path(target)) as folder:
        async with AsyncExitStack() as stack:
            database = await _of_postgres("copy_source").DatabaseSource.open(await _held(stack, source))
            messages = await copy(database, folder, told=told)
    return Copied(messages, keeps_receipts=False)


async def _database_to_database(source: str, target: str, clock: StoreClock, told: Told | None) -> Copied:
    async with AsyncExitStack() as stack:
        databases = [await _held(stack, each) for each in (source, target)]
        messages = await _of_postgres("copy_tables").copy_tables(*databases, told=told)
    return Copied(messages, keeps_receipts=True)


_BETWEEN = {
    (False, False): _folder_to_folder,
    (False, True): _folder_to_database,
    (True, False): _database_to_folder,
    (True, True): _database_to_database,
}
"""By whether source and target are databases."""


async def _held(stack: AsyncExitStack, place: str) -> Any:
    try:
        (url,) = store_urls.split(place)
    except ValueError as error:
        raise CopyRefused(
            f"{store_urls.without_passwords(place)} is not the URL of one database (postgresql://…)."
        ) from error
    return await stack.enter_async_context(_of_postgres("copy_lock").CopyLock(url))


def _of_postgres(module: str) -> Any:
    postgres_parts("copy")
    return import_module(f"veilmq.engines.postgres.{module}")

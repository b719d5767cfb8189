"""From one stopped store to another, of whichever kinds they are."""

from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

from veilmq.core.errors import VeilmqError
from veilmq.server.opening import postgres_parts
from veilmq.store.clock import StoreClock
from veilmq.store.copying import CopyRefused, Told, copy
from veilmq.store.sqlite.copying import FolderSource, FolderTarget, back_up
from veilmq.store.sqlite.database import FolderError, FolderLock, database_of
from veilmq.store.urls import split_urls, without_passwords


async def copy_store(source: str, target: str, *, clock: StoreClock, told: Told | None = None) -> int:
    """Copy the stopped store ``source`` to ``target``, which has nothing: folders, or URLs (``postgresql://…``).

    Return how many messages there are. Raises ``CopyRefused`` when that is not possible, ``StoreError`` when a driver
    is missing; the target is then as it was.
    """
    _refuse_several(source, target)
    try:
        async with AsyncExitStack() as stack:
            if _is_url(source) != _is_url(target):
                reader = await _source(stack, source, clock)
                filled = await _target(stack, target)
                return await copy(reader, filled, told=told)
            if not _is_url(source):
                return _copy_folder(stack, Path(source), Path(target), told)
            databases = [await _held(stack, each) for each in (source, target)]
            return int(await _postgres().copy_tables(*databases, told=told))
    except (FolderError, VeilmqError) as error:
        raise CopyRefused(str(error)) from error


def _is_url(place: str) -> bool:
    return "://" in place


def _refuse_several(source: str, target: str) -> None:
    """Raise ``CopyRefused`` where several databases are named as one store, and say what to do instead."""
    for place, advice in ((source, _FROM_SEVERAL), (target, _TO_SEVERAL)):
        try:
            names = [without_passwords(url) for url in split_urls(place)]
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


async def _source(stack: AsyncExitStack, place: str, clock: StoreClock) -> Any:
    if _is_url(place):
        return await _postgres().DatabaseSource.open(await _held(stack, place))
    return stack.enter_context(FolderSource.opened(Path(place), clock=clock))


async def _target(stack: AsyncExitStack, place: str) -> Any:
    if _is_url(place):
        return _postgres().DatabaseTarget(await _held(stack, place))
    return stack.enter_context(FolderTarget(Path(place)))


def _copy_folder(stack: AsyncExitStack, source: Path, target: Path, told: Told | None) -> int:
    """Copy a folder as it is; return how many messages there are."""
    database_of(source, "--from")
    stack.enter_context(FolderLock(source))
    return int(back_up(source, target, told=told)["messages"])


async def _held(stack: AsyncExitStack, place: str) -> Any:
    try:
        (url,) = split_urls(place)
    except ValueError as error:
        raise CopyRefused(f"{without_passwords(place)} is not the URL of one database (postgresql://…).") from error
    return await stack.enter_async_context(_postgres().CopyLock(url))


def _postgres() -> Any:
    postgres_parts("copy")
    return import_module("veilmq.store.postgres.copying")

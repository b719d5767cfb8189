"""Commands on queues and accounts, and the cooldowns after a purge and a deletion.

A command that changes a queue locks its row. Purge and deletion retire the partition, at a cost independent of its
messages, which the janitor deletes. A purged queue continues with a new partition.
"""

from typing import Any

import msgspec
from msgspec.structs import replace

from veilmq.core import commands
from veilmq.core.commands import QueueCounts, QueuePage, QueueView, SetAccount, ShowAccount
from veilmq.core.errors import DeadLetterQueueRefused, PurgeInProgress, QueueDeletedRecently, QueueExists
from veilmq.core.limits import SECOND_MS
from veilmq.core.settings import AccountSettings, QueueSettings, checked_settings, dead_letter_refusal, merged_tags
from veilmq.store import claims, publications
from veilmq.store.events import is_logged
from veilmq.store.port import CountQueues, Survey, SurveyQueues
from veilmq.store.transaction import AFTER_NAMES, QueueRow, Transaction, changes, reads

_PURGED, _DELETED = "purged", "deleted"  # the kinds of cooldowns: of a purged queue, and of the name of a deleted one
_COOLDOWNS_PER_SLICE = 1_000
_read_account = msgspec.json.Decoder(AccountSettings).decode


def _view(queue: QueueRow, counts: QueueCounts | None = None) -> QueueView:
    times: Any = {"created_at_ms": queue.created_at_ms, "modified_at_ms": queue.modified_at_ms}
    return QueueView(queue=queue.name, settings=queue.settings, **times, counts=counts)


@changes
async def create_queue(tx: Transaction, command: commands.CreateQueue) -> QueueView:
    while (queue := await tx.find(command.queue, "share")) is None:  # a lock makes the commit wait for standbys
        await _check_name(tx, command)
        settings = checked_settings(None, {**command.defaults, **command.settings})
        settings = replace(settings, tags=merged_tags({}, command.tags))
        await _check_dead_letters(tx, command.queue, settings)
        if await add(tx, command.queue, settings):
            await _check_name(tx, command)  # again: the insertion may have waited for a concurrent deletion
            return replace(_view(await tx.queue(command.queue)), is_new=True)
    setting = queue.settings.first_difference(command.settings)
    if setting is not None:
        raise QueueExists(command.queue, setting)
    return _view(queue)


async def _check_name(tx: Transaction, command: commands.CreateQueue) -> None:
    pause_s = tx.options.queue_name_pause_s
    if not command.skip_name_pause and await _in_cooldown(tx, _DELETED, command.queue, pause_s):
        raise QueueDeletedRecently(command.queue, pause_s)


async def add(tx: Transaction, name: str, settings: QueueSettings) -> bool:
    """Add a queue; return ``False`` if another transaction has added it first. Raises ``StoreFull``."""
    tx.require_space()
    number = await tx.value("insert_queue", name, msgspec.json.encode(settings), await tx.now())
    if number is not None:
        await tx.run("place_queue", number, await tx.value("insert_part", number))
    return number is not None


async def _check_dead_letters(tx: Transaction, name: str, settings: QueueSettings) -> None:
    """Check the dead-letter queue. As in Amazon SQS, a queue may name itself; its messages then stay in it."""
    target = settings.dead_letter_queue
    if target and ((target_settings := await tx.settings(target)) is None or target != name):
        why = dead_letter_refusal(name, settings, target, target_settings)
        if why is not None:
            raise DeadLetterQueueRefused(target, why, missing=target_settings is None)


@changes
async def delete_queue(tx: Transaction, command: commands.DeleteQueue) -> None:
    await remove(tx, await tx.queue(command.queue, lock="update"))
    await tx.run("end_cooldown", _PURGED, command.queue)
    await tx.run("begin_cooldown", _DELETED, command.queue, await tx.now())


async def remove(tx: Transaction, queue: QueueRow) -> None:
    """Remove a queue, whose row is locked, and its messages."""
    await _retire(tx, queue, is_deleted=True)
    await tx.run("delete_moves", queue.number)
    await publications.delete_writers(tx, queue)
    await claims.lose_all(tx, queue)
    await claims.delete_sources(tx, queue.origin)
    await tx.run("delete_queue", queue.number)
    tx.invalidate(queue)


@changes
async def purge_queue(tx: Transaction, command: commands.PurgeQueue) -> None:
    """Delete all messages by giving the queue a new partition."""
    queue = await tx.queue(command.queue, lock="update")
    pause_s = tx.options.purge_pause_s
    if await _in_cooldown(tx, _PURGED, queue.name, pause_s):
        raise PurgeInProgress(queue.name, pause_s)
    await tx.run("begin_cooldown", _PURGED, queue.name, await tx.now())
    await _retire(tx, queue, is_deleted=False)
    await claims.lose_all(tx, queue)
    await tx.run("place_queue", queue.number, await tx.value("insert_part", queue.number))
    tx.invalidate(queue)
    if queue.settings.fifo:
        await tx.change(queue, replace(queue.settings, purges=queue.settings.purges + 1), queue.modified_at_ms)


async def _retire(tx: Transaction, queue: QueueRow, *, is_deleted: bool) -> None:
    """Lock out other transactions, in lock order, then retire the partition of a queue."""
    await tx.rows("source_names", queue.origin, lock="update")
    await tx.run("empty_publications", queue.origin)  # unpublished stages do not belong to the queue and stay
    log = (queue.origin, queue.name) if is_logged(queue.settings, tx.options.event_log) else (None, None)
    await tx.run("retire_part", queue.partition, await tx.now(), *log)  # the janitor logs the ends of its receipts
    await tx.retire(queue, is_deleted=is_deleted)


async def _in_cooldown(tx: Transaction, kind: str, name: str, pause_s: int) -> bool:
    begun_at_ms = await tx.value("cooldown", kind, name)
    return begun_at_ms is not None and await tx.now() < begun_at_ms + pause_s * SECOND_MS


async def delete_cooldowns(tx: Transaction) -> None:
    """Delete a slice of the expired cooldowns, for the janitor."""
    now_ms = await tx.now()
    for kind, pause_s in ((_PURGED, tx.options.purge_pause_s), (_DELETED, tx.options.queue_name_pause_s)):
        await tx.run("delete_cooldowns", kind, now_ms - pause_s * SECOND_MS, _COOLDOWNS_PER_SLICE)


@changes
async def set_queue(tx: Transaction, command: commands.SetQueue) -> None:
    queue = await tx.queue(command.queue, lock="update")
    settings = checked_settings(queue.settings, command.settings)
    if "dead_letter_queue" in command.settings:
        await _check_dead_letters(tx, queue.name, settings)
    await tx.change(queue, settings, await tx.now())


@changes
async def edit_queue(tx: Transaction, command: commands.EditQueue) -> None:
    queue = await tx.queue(command.queue, lock="update")
    value = command.edit(getattr(queue.settings, command.setting))
    await tx.change(queue, checked_settings(queue.settings, {command.setting: value}), await tx.now())


@changes
async def tag_queue(tx: Transaction, command: commands.TagQueue) -> None:
    """Remove and add tags; the modification time of the queue does not change."""
    queue = await tx.queue(command.queue, lock="update")
    kept = {key: value for key, value in queue.settings.tags.items() if key not in command.removed}
    await tx.change(queue, replace(queue.settings, tags=merged_tags(kept, command.tags)), queue.modified_at_ms)


@reads
async def show_queue(tx: Transaction, command: commands.ShowQueue) -> QueueView:
    queue = await tx.queue(command.queue)
    return _view(queue, (await tx.counts([queue], recent=True))[0] if command.counts else None)


@reads
async def count_queues(tx: Transaction, command: CountQueues) -> list[QueueView]:
    queues = await tx.find_all(command.names)
    return list(map(_view, queues, await tx.counts(queues, recent=True)))


@reads
async def list_queues(tx: Transaction, command: commands.ListQueues) -> QueuePage:
    account = f"{command.account}/"
    prefix = account + command.prefix
    rows = await tx.rows("queue_names", prefix, account + command.after, prefix + AFTER_NAMES, command.count + 1)
    names = [name for (name,) in rows[: command.count]]
    return QueuePage(
        names=[name.removeprefix(account) for name in names],
        more=len(rows) > command.count,
        views=await count_queues(tx, CountQueues(names=names)) if command.views else [],
    )


@reads
async def list_sources(tx: Transaction, command: commands.ListDeadLetterSources) -> QueuePage:
    queue = await tx.queue(command.queue)
    rows = await tx.rows("queue_sources", queue.name, command.after, command.count + 1)
    return QueuePage(names=[name for (name,) in rows[: command.count]], more=len(rows) > command.count)


@reads
async def survey(tx: Transaction, command: SurveyQueues) -> Survey:
    rows = await tx.rows("queue_names", "", "", AFTER_NAMES, command.names_max)
    rows_of_claims = await tx.rows("held_claims", await tx.now())
    claims: Any = {name: (*held, bound_at_ms and tx.shown(bound_at_ms)) for name, *held, bound_at_ms in rows_of_claims}
    staged: Any = await tx.rows("staged")
    return Survey([name for (name,) in rows], await tx.value("count_queues"), claims, dict(staged))


@reads
async def show_account(tx: Transaction, command: ShowAccount) -> AccountSettings:
    kept = await tx.value("setting", f"account {command.account}")
    return AccountSettings() if kept is None else _read_account(kept)


@changes
async def set_account(tx: Transaction, command: SetAccount) -> None:
    await tx.run("put_setting", f"account {command.account}", msgspec.json.encode(command.settings))

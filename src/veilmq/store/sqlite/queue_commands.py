"""The commands on queues: one function each, found by command type in ``HANDLERS``."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from veilmq.core import commands, redrive, results
from veilmq.core.commands import Command
from veilmq.core.errors import PurgeInProgress, QueueDeletedRecently, QueueExists, StoreFull
from veilmq.core.limits import ATTEMPT_S, DEDUPLICATION_S, PRIORITY, SECOND_MS
from veilmq.core.settings import QueueSettings
from veilmq.core.settings_rules import purged, settled, tagged
from veilmq.engines.embedded.janitor import Sweep, Swept
from veilmq.store.events import Logged
from veilmq.store.queues import NEVER_MS, SEQ_SHIFT, Queue
from veilmq.store.sqlite import fair, groups
from veilmq.store.sqlite.session import Row, Session

_ROWS_PER_SWEEP = 1_000
_QUEUES_PER_SWEEP = 200
_LOOK_MS = 60 * SECOND_MS


def create(session: Session, command: commands.CreateQueue, now_ms: int) -> results.QueueView:
    """Add the queue, or find it as it was asked for."""
    queue = session.find(command.queue)
    if queue is not None:
        setting = queue.settings.first_difference(command.settings)
        if setting is not None:
            raise QueueExists(command.queue, setting)
        return queue.view()
    if not command.at_once and _rests(session, "deleted", command.queue, now_ms):
        raise QueueDeletedRecently(command.queue, session.options.queue_name_pause_s)
    settings = replace(settled(None, {**command.defaults, **command.settings}), tags=tagged({}, command.tags))
    _check_dead_letters(session, command.queue, settings)
    add(session, command.queue, settings, now_ms)
    return replace(session.queue(command.queue).view(), is_new=True)


def add(session: Session, name: str, settings: QueueSettings, now_ms: int) -> None:
    """Add a queue with its first partition; raises ``StoreFull``."""
    if session.space.look_again(now_ms):
        raise StoreFull
    ((partition,),) = session.rows("insert_partition", None, now_ms)
    encoded, target = msgspec.json.encode(settings), settings.dead_letter_queue
    ((number,),) = session.rows("insert_queue", name, partition, encoded, target, now_ms, now_ms)
    session.run("adopt_partition", number, partition)


def _check_dead_letters(session: Session, name: str, settings: QueueSettings) -> None:
    target = settings.dead_letter_queue
    if target:
        found = session.find(target)
        redrive.check(name, settings, target, None if found is None else found.settings)


def _rests(session: Session, kind: str, name: str, now_ms: int) -> bool:
    pause_s = session.options.purge_pause_s if kind == "purged" else session.options.queue_name_pause_s
    row = session.row("cooldown", kind, name)
    return row is not None and now_ms < row[0] + pause_s * SECOND_MS


def delete(session: Session, command: commands.DeleteQueue, now_ms: int) -> None:
    """Remove the queue, whose name rests."""
    queue = session.queue(command.queue)
    remove(session, queue, now_ms)
    session.run("end_cooldown", "purged", queue.name)
    if session.options.queue_name_pause_s:
        session.run("put_cooldown", "deleted", queue.name, now_ms)


def remove(session: Session, queue: Queue, now_ms: int) -> None:
    """Remove a queue with its messages; receives that wait are woken to find it gone."""
    _retire(session, queue, now_ms)
    session.run("delete_queue", queue.number)
    session.run("delete_moves", queue.number)
    session.drop(queue)
    session.unswept = True
    queue.notify(now_ms)


def _retire(session: Session, queue: Queue, now_ms: int) -> None:
    """Leave the messages of a queue to the janitor; the receipts among them end now."""
    session.run("retire_partition", queue.partition)
    if queue.log is not None:
        session.run("log_retired", queue.name, now_ms, queue.partition)


def purge(session: Session, command: commands.PurgeQueue, now_ms: int) -> None:
    """Delete all messages: the queue goes on with a new partition."""
    queue = session.queue(command.queue)
    if _rests(session, "purged", queue.name, now_ms):
        raise PurgeInProgress(queue.name, session.options.purge_pause_s)
    if session.options.purge_pause_s:
        session.run("put_cooldown", "purged", queue.name, now_ms)
    _retire(session, queue, now_ms)
    ((partition,),) = session.rows("insert_partition", queue.number, now_ms)
    session.run("move_queue", partition, queue.number)
    queue.empty(partition, now_ms)
    if queue.fifo:
        session.change(queue, purged(queue.settings), queue.modified_at_ms)
    session.unswept = True
    queue.free_place(now_ms)


def set_queue(session: Session, command: commands.SetQueue, now_ms: int) -> None:
    """Change settings; what the old retention has ended stays ended, leases keep their deadlines.

    Messages of a FIFO queue without a delay of their own follow the new delay.
    """
    queue = session.queue(command.queue)
    settings = settled(queue.settings, command.settings)
    if "dead_letter_queue" in command.settings:
        _check_dead_letters(session, queue.name, settings)
    session.settle_time(queue, now_ms, swept)
    queue.floor_seq = queue.floor(now_ms)
    session.change(queue, settings, now_ms)
    session.touch(queue)
    queue.free_place(now_ms)
    if queue.fifo:
        groups.notify(session, queue, now_ms, 1)


def swept(session: Session, queue: Queue, rows: list[Row], now_ms: int) -> None:
    """Tell waiters of what the end of retention made free: places, or groups."""
    if queue.fifo:
        groups.refile(session, queue, {row[3] for row in rows})
    elif queue.shares:
        fair.ended(session, queue, [(row[0], row[4], row[3]) for row in rows], now_ms)
    queue.free_place(now_ms)
    if queue.fifo:
        groups.notify(session, queue, now_ms, 1)


def edit(session: Session, command: commands.EditQueue, now_ms: int) -> None:
    """Change one setting by what it is."""
    queue = session.queue(command.queue)
    value = command.edit(getattr(queue.settings, command.setting))
    session.change(queue, settled(queue.settings, {command.setting: value}), now_ms)


def tag(session: Session, command: commands.TagQueue, now_ms: int) -> None:
    """Remove and put tags; that is no change of the queue's settings, whose time stays."""
    queue = session.queue(command.queue)
    kept = {key: value for key, value in queue.settings.tags.items() if key not in command.removed}
    session.change(queue, replace(queue.settings, tags=tagged(kept, command.tags)), queue.modified_at_ms)


def show(session: Session, command: commands.ShowQueue, now_ms: int) -> results.QueueView:
    """Return what the queue is, and how many messages are in which state."""
    queue = session.queue(command.queue)
    return counted(session, queue, now_ms) if command.counts else queue.view()


def counted(session: Session, queue: Queue, now_ms: int) -> results.QueueView:
    """Return the queue with its counts."""
    return replace(queue.view(), counts=counts(session, queue, now_ms))


def counts(session: Session, queue: Queue, now_ms: int) -> results.QueueCounts:
    """Count the messages of a queue by state."""
    session.settle_time(queue, now_ms, swept)
    oldest = session.oldest(queue)
    waiting = 0
    if queue.fifo and queue.delay_ms:
        ((waiting,),) = session.rows("ordered_waiting", queue.partition, (now_ms - queue.delay_ms + 1) << SEQ_SHIFT)
    return results.QueueCounts(
        visible=queue.messages - queue.in_flight - queue.delayed - waiting,
        in_flight=queue.in_flight,
        delayed=queue.delayed + waiting,
        oldest_sent_at_ms=None if oldest is None else oldest >> SEQ_SHIFT,
        redelivered=queue.redelivered,
        sent=queue.sent,
        received=queue.received,
        deleted=queue.deleted,
    )


def list_queues(session: Session, command: commands.ListQueues, now_ms: int) -> results.QueuePage:
    """Return one page of names."""
    account = f"{command.account}/"
    names = session.names(account + command.prefix, account + command.after, command.count + 1)
    page = names[: command.count]
    return results.QueuePage(
        names=[name.removeprefix(account) for name in page],
        more=len(names) > command.count,
        views=[counted(session, session.queue(name), now_ms) for name in page] if command.views else [],
    )


def list_sources(session: Session, command: commands.ListDeadLetterSources, now_ms: int) -> results.QueuePage:
    """Return one page of the queues whose dead-letter queue the named one is."""
    queue = session.queue(command.queue)
    names = [name for (name,) in session.rows("queue_sources", queue.name, command.after, command.count + 1)]
    return results.QueuePage(names=names[: command.count], more=len(names) > command.count)


class AllNames(Command, frozen=True, kw_only=True):
    """List the full names of all queues, in order."""


def all_names(session: Session, command: AllNames, now_ms: int) -> list[str]:
    """Return them."""
    return session.names("", "", -1)


def sweep(session: Session, command: Sweep, now_ms: int) -> Swept:
    """Do one slice of the janitor's work: retired partitions, messages past their retention, what is remembered."""
    session.unswept = False
    session.space.look_again(now_ms)
    left = _ROWS_PER_SWEEP
    retired = session.row("retired_partition")
    if retired is not None:
        left -= _sweep_partition(session, retired, left, now_ms)
    looked_at = session.rows("queues_behind", session.swept_to, _QUEUES_PER_SWEEP if left > 0 else 0)
    for number, name in looked_at:
        queue = session.queue(name)
        messages = queue.messages
        session.settle_time(queue, now_ms, swept)
        left -= messages - queue.messages
        if left <= 0:
            break
        session.swept_to = number
    if len(looked_at) < _QUEUES_PER_SWEEP and left > 0:
        session.swept_to = 0
    session.run("old_attempts", now_ms - ATTEMPT_S * SECOND_MS, _ROWS_PER_SWEEP)
    pause_s = max(session.options.purge_pause_s, session.options.queue_name_pause_s)
    session.run("old_cooldowns", now_ms - pause_s * SECOND_MS, _ROWS_PER_SWEEP)
    old = session.rows("old_accepted", _ROWS_PER_SWEEP, now_ms - DEDUPLICATION_S * SECOND_MS)
    if old:
        session.run("delete_accepted", old[-1][0])
        session.accepted.cut()
    session.flush()  # groups have the rows that say whether they have messages
    many_groups = session.group_numbers.sweep(_ROWS_PER_SWEEP // 2)
    many_expired = session.events.sweep(_ROWS_PER_SWEEP // 4, now_ms)
    more = (
        many_groups or many_expired or left <= 0 or session.swept_to > 0 or session.row("retired_partition") is not None
    )
    return Swept(more=more, next_due_ms=now_ms if more else now_ms + _LOOK_MS)


def _sweep_partition(session: Session, retired: Row, rows_max: int, now_ms: int) -> int:
    """Delete a slice of a retired partition, and its row with the last one; return how many messages that were."""
    count = 0
    partition, logged_queue, ended_at_ms = retired
    log = None if logged_queue is None else Logged(logged_queue, 0, ended_at_ms)
    for kind in ("standard", "ordered"):
        lanes = range(PRIORITY.maximum + 1) if kind == "standard" else ()
        count += len(session.delete_below(kind, partition, lanes, NEVER_MS, rows_max - count, log, now_ms))
    if count:
        return count  # an event of a message has its group, whose number goes after the cursor
    session.run("delete_cursors_of", partition, rows_max)
    session.run("delete_fair_groups_of", partition, rows_max)
    if not any(session.row(f"any_{kind}_of", partition) for kind in ("cursor", "fair_group")):
        session.run("delete_partition", partition)
        session.run("put_progress", now_ms, session.last_seq)
    return count


HANDLERS: dict[type[Command], Callable[[Session, Any, int], object]] = {
    commands.CreateQueue: create,
    commands.SetQueue: set_queue,
    commands.EditQueue: edit,
    commands.TagQueue: tag,
    commands.ShowQueue: show,
    commands.ListQueues: list_queues,
    commands.ListDeadLetterSources: list_sources,
    AllNames: all_names,
    Sweep: sweep,
}

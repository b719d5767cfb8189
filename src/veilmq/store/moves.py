"""Moving messages between queues: move tasks (redrive) and forwards.

A move task returns dead letters, a slice at a time. The task is a row, which a slice locks; the slice moves messages
and writes the progress in one transaction, so a crash never loses, duplicates or miscounts a message, and the next
start continues.

A task moves the messages that are visible when a slice runs, in receive order, and no more than were visible at its
start: a message that fails again at once and returns to the dead-letter queue cannot keep the task running forever. A
task ends after that number, or when nothing is visible.

A forward sends messages in flight to other queues and deletes them in one transaction. It checks all of them first,
then stores those of each target in the order of the command.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, groupby
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from veilmq.core import commands, errors
from veilmq.core.commands import MoveStatus, MoveTask
from veilmq.core.limits import MOVE_SLICE_BYTES, MOVE_SLICE_MESSAGES, MOVE_TASKS_KEPT, SECOND_MS
from veilmq.core.messages import NewMessage, decode_properties, forwarded_message
from veilmq.core.receipts import Receipt, receipt_state
from veilmq.core.settings import check_destination
from veilmq.core.topics import Forward, Forwarded
from veilmq.store.transaction import (
    NEVER_MS,
    QueueRow,
    StoredMessage,
    Transaction,
    VisibleMessage,
    changes,
    snapshot,
    to_struct,
)

_SLICES_PER_S = 10  # of a task with a rate
_PAUSE_MS = 10  # the minimum between two slices
# The pause of a task whose next message goes to an unreachable database, so that other tasks continue.
_UNREACHABLE_PAUSE_MS = 10_000


class MoveStep(commands.Command, frozen=True, kw_only=True):
    """Do a slice of a move task; returns the ms until the next one is due, ``None`` if no task runs."""


class _Task(NamedTuple):
    number: int
    queue: int
    source: str
    destination: str | None
    moves_per_s_max: int | None
    moved: int
    to_move: int
    starter: str | None
    next_at_ms: int


@changes
async def start(tx: Transaction, command: commands.StartMove) -> MoveTask:
    source = await tx.queue(command.source, lock="share")
    if not await tx.has_sources(source.name):
        raise errors.NotADeadLetterQueue(source.name)
    if command.destination is not None:
        target_settings = await tx.settings(command.destination)
        if target_settings is None:
            raise errors.QueueNotFound(command.destination)
        check_destination(source.name, source.settings, command.destination, target_settings, verb="moved")
    args = source.number, tx.ids.next(), source.name, command.destination, command.moves_per_s_max
    visible = (await tx.counts([source]))[0].visible
    row = await tx.row("insert_move", *args, visible, await tx.now(), command.starter)
    if row is None:
        raise errors.MoveTaskRunning(source.name)
    await tx.run("delete_older_moves", source.number, MOVE_TASKS_KEPT)
    tx.schedule(MoveStep)
    return to_struct(row, MoveTask)


@changes
async def cancel(tx: Transaction, command: commands.CancelMove) -> MoveTask:
    source = await tx.queue(command.source)
    row = await tx.row("cancel_move", source.number, command.task)
    if row is None:
        raise errors.MoveTaskNotFound
    return to_struct(row, MoveTask)


@snapshot
async def list_moves(tx: Transaction, command: commands.ListMoves) -> list[MoveTask]:
    source = await tx.queue(command.source)
    return [to_struct(row, MoveTask) for row in await tx.rows("moves_of", source.number, command.count)]


@changes
async def step(tx: Transaction, command: MoveStep) -> int | None:
    """Run a slice of the task that has waited longest; return the ms until the next one is due, if any.

    Raises ``StoreFull``: a move uses space before it frees any.
    """
    now_ms = await tx.now()
    for row in await tx.rows("due_move", now_ms, lock="update skip locked"):
        tx.require_space()
        await _advance(tx, _Task(*row), now_ms)
    following = await tx.row("due_move", NEVER_MS)
    return None if following is None else max(0, _Task(*following).next_at_ms - now_ms)


async def _advance(tx: Transaction, task: _Task, now_ms: int) -> None:
    source = await tx.find(task.source)
    if source is None or source.number != task.queue:
        await tx.run("delete_moves", task.queue)
        return
    left, rate = task.to_move - task.moved, task.moves_per_s_max
    count = min(MOVE_SLICE_MESSAGES if rate is None else max(1, rate // _SLICES_PER_S), left)
    waiting, more = await tx.select_visible(source, count)
    before = accumulate([each.size_bytes for each in waiting], initial=0)
    chosen = [each for each, size_bytes in zip(waiting, before, strict=False) if size_bytes < MOVE_SLICE_BYTES]
    movable, failure, is_unreachable = await _movable(tx, task, source, chosen)
    moved = 0
    for target in {target.number: target for _, target in movable}.values():
        moved += await tx.move(source, target, [each for each, to in movable if to.number == target.number])
    is_over = moved >= left
    if not is_over and len(movable) == len(waiting) and not more:
        is_over = not await tx.receivable(source, 1)  # or another transaction has locked it
    status = MoveStatus.FAILED if failure else MoveStatus.COMPLETED if is_over else MoveStatus.RUNNING
    pause_ms = _UNREACHABLE_PAUSE_MS if is_unreachable else max(_PAUSE_MS, -(-moved * SECOND_MS // rate) if rate else 0)
    await tx.run("update_move", task.number, moved, now_ms + pause_ms, status.value, failure)


async def _movable(
    tx: Transaction, task: _Task, source: QueueRow, messages: Sequence[VisibleMessage]
) -> tuple[list[tuple[VisibleMessage, QueueRow]], str | None, bool]:
    """Return (message, target) pairs in order, why the next message cannot move, and whether that is temporary."""
    movable: list[tuple[VisibleMessage, QueueRow]] = []
    targets: dict[str, QueueRow | None] = {}
    for message in messages:
        name = task.destination or message.source
        if name is None:
            return movable, commands.SOURCE_UNKNOWN, False
        if name not in targets:
            try:
                # Read each time: its policy may have changed, or it may be a new queue.
                targets[name] = await tx.find(name) or await tx.find_target(name, (source.number, source.name))
            except errors.StoreUnavailable:
                return movable, None, True
            found = targets[name]
            may_send, starter = tx.options.may_send, task.starter
            if found and may_send and starter is not None and not may_send(starter, found.name, found.settings.policy):
                return movable, commands.NOT_ALLOWED, False
        target = targets[name]
        if target is None or target.number == source.number or target.settings.fifo != source.settings.fifo:
            return movable, commands.QUEUE_MISSING, False
        movable.append((message, target))
    return movable, None, False


@changes
async def forward(tx: Transaction, command: Forward) -> list[Any]:
    """Move the message of each live receipt; return a ``Forwarded`` or an error for each. Raises ``StoreFull``."""
    intake = await tx.queue(command.queue)
    tx.require_space()
    results: list[Any] = [None] * len(command.entries)
    movable = await _forwardable(tx, intake, command, results)
    moved: list[StoredMessage] = []
    for target in {target.number: target for target, *_ in movable}.values():
        to_target = [each for each in movable if each[0].number == target.number]
        for is_dead, run in groupby(to_target, itemgetter(1)):
            _, _, indexes, messages, new = zip(*run, strict=True)
            if is_dead:  # this also removes it from the intake
                sent = await tx.dead_letter(intake, target, messages, new)
            else:
                sent = await tx.store(target, new, [each.id for each in messages])
                moved += messages
            for index, message, stored in zip(indexes, messages, sent, strict=True):
                is_duplicate = stored.id != message.id
                results[index] = Forwarded(id=stored.id, sequence=stored.sequence, duplicate=is_duplicate)
    if moved:
        await tx.delete(intake, moved)
    return results


async def _forwardable(
    tx: Transaction, intake: QueueRow, command: Forward, results: list[Any]
) -> list[tuple[QueueRow, bool, int, StoredMessage, NewMessage]]:
    """Return what to forward, in order; store the errors of all other entries in ``results``.

    The fields: the target, whether it is a dead letter, the index in ``results``, the message, and the new message.
    """
    receipts: dict[int, Receipt] = {}
    for index, entry in enumerate(command.entries):
        results[index] = errors.ReceiptInvalid()
        with suppress(errors.ReceiptInvalid):
            receipt = tx.codec.read(entry.receipt)
            if receipt.queue == intake.number:
                receipts[index] = receipt
    leased = await tx.find_leased(intake, sorted({receipt.position for receipt in receipts.values()}))
    found = {each.seq: each for each in leased}
    movable: list[tuple[QueueRow, bool, int, StoredMessage, NewMessage]] = []
    blocked: set[str | None] = set()
    targets: dict[str, QueueRow] = {}
    for index, receipt in receipts.items():
        message = found.get(receipt.position)
        if message is None:
            results[index] = errors.ReceiptEnded(errors.ReceiptState.GONE)
            continue
        if not message.receive_count:  # a delayed message: the receipt is invalid
            continue
        group = decode_properties(message.properties).group if intake.settings.fifo else None
        try:
            if group in blocked:
                raise errors.GroupHeld
            state = receipt_state(
                current=(receipt.generation, receipt.epoch) == (message.generation, message.epoch),
                visible_at_ms=message.visible_at_ms,
                now_ms=message.read_at_ms,
            )
            if state is not errors.ReceiptState.LIVE:
                raise errors.ReceiptEnded(state)
            entry = command.entries[index]
            if entry.target not in targets:
                targets[entry.target] = await _target(tx, intake, entry.target)
            target = targets[entry.target]
            sent = message.body, message.properties, message.priority
            new = forwarded_message(*sent, target.settings, entry.reasons)
            if entry.reasons is None:
                new = replace(new, dedup_id=str(UUID(bytes=message.id)))
            movable.append((target, entry.reasons is not None, index, message, new))
            del found[receipt.position]
        except errors.VeilmqError as error:
            results[index] = error
            if group is not None:
                blocked.add(group)
    return movable


async def _target(tx: Transaction, intake: QueueRow, name: str) -> QueueRow:
    target = await tx.find(name) or await tx.find_target(name, (intake.number, intake.name))
    if target is None:
        raise errors.QueueNotFound(name)
    check_destination(intake.name, intake.settings, name, target.settings, verb="forwarded")
    return target

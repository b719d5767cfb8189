"""Move tasks: dead letters on their way back, a slice at a time.

A task is a row, which a slice locks. It moves some messages and writes the progress in one transaction, so a crash at
any moment neither loses nor doubles a message nor miscounts; the next start goes on.

What a task moves are the messages visible when a slice comes to them, in the order in which they would be received, and
not more than were visible when it began: a message that dies again at once, and comes back to the dead-letter queue,
cannot keep the task going for ever. It ends when it has moved so many, or when nothing is visible.
"""

from collections.abc import Sequence
from typing import NamedTuple

from veilmq.core import errors
from veilmq.core.commands import (
    NOT_ALLOWED,
    QUEUE_MISSING,
    SOURCE_UNKNOWN,
    CancelMove,
    Command,
    ListMoves,
    MoveStatus,
    MoveTask,
    StartMove,
)
from veilmq.core.limits import MOVE_SLICE_BYTES, MOVE_SLICE_MESSAGES, MOVE_TASKS_KEPT, SECOND_MS
from veilmq.core.settings import check_destination
from veilmq.store.transaction import QueueRow, Transaction, Waiting, made_of

_SLICES_PER_S = 10  # of a task with a rate
_PAUSE_MS = 10  # at least, between two slices
_AWAY_MS = 10_000
"""How long a task rests whose next message goes to a database that cannot be reached: the others go on."""


class MoveStep(Command, frozen=True, kw_only=True):
    """Do one slice of the move tasks. Answers in how many ms the next one is due, ``None`` while no task runs."""


class _Task(NamedTuple):
    """A task whose turn it is, and when the next of the others is due."""

    number: int
    queue: int
    source: str
    destination: str | None
    moves_per_s_max: int | None
    moved: int
    to_move: int
    starter: str | None
    others_at_ms: int | None


# The commands.


async def start(tx: Transaction, command: StartMove) -> MoveTask:
    """Begin a task; its first slice follows at once."""
    source = await tx.queue(command.source, lock="queue_shared")
    if not await tx.has_sources(source.name):
        raise errors.NotADeadLetterQueue(source.name)
    if command.destination is not None:
        theirs = await tx.settings(command.destination)
        if theirs is None:
            raise errors.QueueNotFound(command.destination)
        check_destination(source.name, source.settings, command.destination, theirs, verb="moved")
    terms = source.number, tx.ids.next(), source.name, command.destination, command.moves_per_s_max
    visible = (await tx.counts(source)).visible
    row = await tx.row("insert_move", *terms, visible, await tx.now(), command.starter)
    if row is None:
        raise errors.MoveTaskRunning(source.name)
    await tx.run("delete_older_moves", source.number, MOVE_TASKS_KEPT)
    tx.schedule(MoveStep)
    return made_of(row, MoveTask)


async def cancel(tx: Transaction, command: CancelMove) -> MoveTask:
    """End a task that is running."""
    source = await tx.queue(command.source)
    row = await tx.row("cancel_move", source.number, command.task)
    if row is None:
        raise errors.MoveTaskNotFound
    return made_of(row, MoveTask)


async def list_moves(tx: Transaction, command: ListMoves) -> list[MoveTask]:
    """Return the latest tasks of a queue, newest first."""
    source = await tx.queue(command.source)
    return [made_of(row, MoveTask) for row in await tx.rows("moves_of", source.number, command.count)]


# The work.


async def step(tx: Transaction, command: MoveStep) -> int | None:
    """Do a slice of the task that has waited longest; return in how many ms the next one is due, if any is.

    Raises ``StoreFull``: moving takes room before it gives any back.
    """
    now_ms = await tx.now()
    due_ms: list[int | None] = []
    for row in await tx.unlocked("due_move", now_ms):
        tx.need_room()
        task = _Task(*row)
        due_ms += [await _advance(tx, task, now_ms), task.others_at_ms]
    if not due_ms:
        due_ms = [await tx.value("next_move")]
    return min((max(0, at_ms - now_ms) for at_ms in due_ms if at_ms is not None), default=None)


async def _advance(tx: Transaction, task: _Task, now_ms: int) -> int | None:
    """Do a slice of a task; return when its next one is due, ``None`` if it has ended."""
    source = await tx.find(task.source)
    if source is None or source.number != task.queue:
        await tx.run("delete_moves", task.queue)
        return None
    left, rate = task.to_move - task.moved, task.moves_per_s_max
    count = min(MOVE_SLICE_MESSAGES if rate is None else max(1, rate // _SLICES_PER_S), left)
    chosen, more = await tx.choose(source, count, MOVE_SLICE_BYTES)
    going, failure, is_away = await _going(tx, task, source, chosen)
    moved = 0
    for target in {target.number: target for _, target in going}.values():
        moved += await tx.move(source, target, [each for each, to in going if to.number == target.number])
    is_over = moved >= left or (len(going) == len(chosen) and not more)
    status = MoveStatus.FAILED if failure else MoveStatus.COMPLETED if is_over else MoveStatus.RUNNING
    rest_ms = _AWAY_MS if is_away else max(_PAUSE_MS, -(-moved * SECOND_MS // rate) if rate else 0)
    next_at_ms = now_ms + rest_ms
    await tx.run("update_move", task.number, moved, next_at_ms, status.value, failure)
    return next_at_ms if status is MoveStatus.RUNNING else None


async def _going(
    tx: Transaction, task: _Task, source: QueueRow, messages: Sequence[Waiting]
) -> tuple[list[tuple[Waiting, QueueRow]], str | None, bool]:
    """Return what of ``messages`` goes where, in order; why the next one cannot go; whether that is not known yet."""
    going: list[tuple[Waiting, QueueRow]] = []
    known: dict[str, QueueRow | None] = {}
    for message in messages:
        name = task.destination or message.source
        if name is None:
            return going, SOURCE_UNKNOWN, False
        if name not in known:
            try:
                # Looked up whatever is known of it: its policy may have changed, or it may be a new queue.
                known[name] = await tx.find(name) or await tx.target(name, (source.number, source.name))
            except errors.StoreUnavailable:
                return going, None, True
            found = known[name]
            may_send, starter = tx.options.may_send, task.starter
            if found and may_send and starter is not None and not may_send(starter, found.name, found.settings.policy):
                return going, NOT_ALLOWED, False
        target = known[name]
        if target is None or target.number == source.number or target.settings.fifo != source.settings.fifo:
            return going, QUEUE_MISSING, False
        going.append((message, target))
    return going, None, False

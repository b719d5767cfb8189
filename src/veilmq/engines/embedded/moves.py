"""Move tasks: dead letters on their way back, a slice at a time.

A task is a row of the table ``move_task``. Its work is done by ``MoveStep`` commands: each moves some messages of the
tasks that are due and writes their progress, in one transaction, so a crash at any moment neither loses nor doubles a
message nor miscounts; the next start goes on with what the table says is running. ``mover.Mover`` decides when.

What a task moves are the messages visible when a slice comes to them, in the order in which they would be received, and
not more than were visible when it began: a message that dies again at once, and comes back to the dead-letter queue,
cannot keep the task going for ever. It ends when it has moved so many, or when nothing is visible.
"""

from typing import NamedTuple

import msgspec

from veilmq.core import commands, redrive
from veilmq.core.commands import Command
from veilmq.core.errors import DestinationRefused, MoveTaskNotFound, MoveTaskRunning, NotADeadLetterQueue
from veilmq.core.ids import IdSource
from veilmq.core.limits import MOVE_TASKS_KEPT, SECOND_MS
from veilmq.core.ports import MaySend
from veilmq.core.results import MoveStatus, MoveTask
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.rows import MessageRow, MoveRow
from veilmq.engines.embedded.run import NEVER_MS
from veilmq.engines.embedded.space import Space

_PAUSE_MS_WHEN_FULL = SECOND_MS


class MoveStep(Command, frozen=True, kw_only=True):
    """Do one slice of the move tasks that are due. Answers ``Stepped``."""


class Stepped(msgspec.Struct, frozen=True, kw_only=True):
    """When the next slice is due (``run.NEVER_MS``: no task is running)."""

    due_ms: int


class Moves:
    """The move tasks of one store: their commands, and the work."""

    def __init__(self, *, catalog: Catalog, journal: Journal, space: Space, may_send: MaySend | None) -> None:
        """Go on with the tasks that ``journal`` says are running, as long as ``may_send`` allows it."""
        self._may_send = may_send
        self._catalog = catalog
        self._journal = journal
        self._space = space
        self._ids = IdSource()
        self._running = {task.queue: task for task in (MoveRow(*row) for row in journal.rows("running_moves"))}

    @property
    def due_ms(self) -> int:
        """When the next slice is due; ``NEVER_MS`` when no task is running."""
        return min(task.next_at_ms for task in self._running.values()) if self._running else NEVER_MS

    # The commands.

    def start(self, command: commands.StartMove, now_ms: int) -> MoveTask:
        """Begin a task; its first slice follows at once."""
        source = self._catalog.queue(command.source)
        if not self._catalog.sources(source.name, count=1):
            raise NotADeadLetterQueue(source.name)
        if command.destination is not None:
            self._check_destination(source, self._catalog.queue(command.destination))
        if source.number in self._running:
            raise MoveTaskRunning(source.name)
        task = MoveRow(
            number=0,
            id=self._ids.next(),
            queue=source.number,
            source=source.name,
            destination=command.destination,
            moves_per_s_max=command.moves_per_s_max,
            status=MoveStatus.RUNNING.value,
            moved=0,
            to_move=source.counts(now_ms).visible,
            started_at_ms=now_ms,
            next_at_ms=now_ms,
            starter=command.starter,
        )
        ((number,),) = self._journal.write("insert_move", *task[1:])
        self._journal.write("delete_older_moves", source.number, MOVE_TASKS_KEPT)
        self._running[source.number] = task._replace(number=number)
        return _told(task)

    def _check_destination(self, source: Queue, destination: Queue) -> None:
        why = redrive.destination_refusal(source.name, source.settings, destination.name, destination.settings)
        if why is not None:
            raise DestinationRefused(destination.name, why)

    def cancel(self, command: commands.CancelMove, now_ms: int) -> MoveTask:
        """End a task that is running."""
        task = self._running.get(self._catalog.queue(command.source).number)
        if task is None or task.id != command.task:
            raise MoveTaskNotFound
        return _told(self._put(task._replace(status=MoveStatus.CANCELLED.value)))

    def list(self, command: commands.ListMoves, now_ms: int) -> list[MoveTask]:
        """Tell the latest tasks of a queue, newest first."""
        source = self._catalog.queue(command.source)
        return [_told(MoveRow(*row)) for row in self._journal.rows("moves_of", source.number, command.count)]

    # The work.

    def step(self, command: MoveStep, now_ms: int) -> Stepped:
        """Do one slice for the tasks that are due, the one that waited longest first."""
        if self._running and self._space.look_again(now_ms):  # moving takes room before it gives any back
            return Stepped(due_ms=now_ms + _PAUSE_MS_WHEN_FULL)
        part = _Slice()
        for task in sorted(self._running.values(), key=lambda each: each.next_at_ms):
            if task.next_at_ms > now_ms or part.is_over:
                break
            self._advance(task, now_ms, part)
        for queue in part.targets:
            queue.rouse(now_ms)
        return Stepped(due_ms=self.due_ms)

    def _advance(self, task: MoveRow, now_ms: int, part: "_Slice") -> None:
        source = self._source(task)
        if source is None:
            del self._running[task.queue]  # its queue was deleted, and its row with it
            return
        source.expire(now_ms)
        before = part.moved
        end = self._move_some(task, source, now_ms, part)
        moved = task.moved + part.moved - before
        if end is _UNDER_WAY and moved >= task.to_move:
            end = _COMPLETED
        next_at_ms = now_ms + redrive.pause_ms(task.moves_per_s_max, part.moved - before)
        self._put(task._replace(moved=moved, next_at_ms=next_at_ms, status=end.status.value, failure=end.failure))

    def _source(self, task: MoveRow) -> Queue | None:
        source = self._catalog.find(task.source)
        return source if source is not None and source.number == task.queue else None

    def _move_some(self, task: MoveRow, source: Queue, now_ms: int, part: "_Slice") -> "_End":
        allowed: set[Queue] = set()
        for _ in range(min(redrive.moved_at_once(task.moves_per_s_max), task.to_move - task.moved)):
            if part.is_over:
                break
            taken = source.take(now_ms)
            if taken is None:
                # Nothing is visible; but where retention has just ended many, there may be something behind them.
                return _COMPLETED if all(lane.swept for lane in source.lanes) else _UNDER_WAY
            target, failure = self._target(task, source, taken[0], allowed)
            if target is None:
                taken[2].give_back(taken)
                return _End(MoveStatus.FAILED, failure)
            if not target.take_over(taken, _as_new(taken[0], self._ids.next()), now_ms):
                taken[2].give_back(taken)
                break
            part.count(taken[0], target)
        return _UNDER_WAY

    def _target(
        self, task: MoveRow, source: Queue, row: MessageRow, allowed: set[Queue]
    ) -> tuple[Queue | None, str | None]:
        """Return where the message goes, or why it cannot go; ``allowed`` has the queues that need no further look."""
        name = task.destination or row.source
        if name is None:
            return None, redrive.SOURCE_UNKNOWN
        target = self._catalog.find(name)
        if target is None or target is source or target.settings.fifo != source.settings.fifo:
            return None, redrive.QUEUE_MISSING
        may_send = self._may_send
        if may_send is not None and task.starter is not None and target not in allowed:
            if not may_send(task.starter, target.name, target.settings.policy):
                return None, redrive.NOT_ALLOWED
            allowed.add(target)
        return target, None

    def _put(self, task: MoveRow) -> MoveRow:
        self._journal.write("update_move", task.status, task.moved, task.next_at_ms, task.failure, task.number)
        if task.status == MoveStatus.RUNNING.value:
            self._running[task.queue] = task
        else:
            del self._running[task.queue]
        return task


class _Slice:
    """What one step has moved, and whom it has to tell."""

    __slots__ = ("_bytes", "moved", "targets")

    def __init__(self) -> None:
        self.moved = 0
        self._bytes = 0
        self.targets: dict[Queue, None] = {}  # a set in order

    def count(self, row: MessageRow, target: Queue) -> None:
        """Take note of a message that was moved to ``target``."""
        self.moved += 1
        self._bytes += len(row.body) + len(row.properties)
        self.targets[target] = None

    @property
    def is_over(self) -> bool:
        """Whether the slice has moved as much as it may."""
        return self.moved >= redrive.SLICE_MESSAGES or self._bytes >= redrive.SLICE_BYTES


class _End(NamedTuple):
    """How a task stands after a slice."""

    status: MoveStatus
    failure: str | None = None


_UNDER_WAY = _End(MoveStatus.RUNNING)
_COMPLETED = _End(MoveStatus.COMPLETED)


def _as_new(row: MessageRow, message_id: bytes) -> MessageRow:
    """Return the row without a past: what a task moves is a new message where it comes to."""
    return row._replace(
        id=message_id, source=None, first_sent_at_ms=None, receives_before=None, first_received_at_ms=None
    )


def _told(task: MoveRow) -> MoveTask:
    return MoveTask(
        id=task.id,
        source=task.source,
        destination=task.destination,
        moves_per_s_max=task.moves_per_s_max,
        status=MoveStatus(task.status),
        messages_moved=task.moved,
        messages_to_move=task.to_move,
        started_at_ms=task.started_at_ms,
        failure=task.failure,
    )

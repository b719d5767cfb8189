"""Publications: what writers stage, the decision that it counts, and its way into the queue.

Staged messages stand in tables of their own, in pieces (``staging``), and no lane knows of them. Publishing decides: in
one transaction the writer's last batch is raised, which guards against a second time, and all that was staged for it
is handed to a row of the table ``publication``, with the stages named in their order. From then on the rest happens by
itself, a slice at a time, each one transaction: pieces of the named stages become messages of the queue, as if they
were sent at that moment, and are deleted with it; when none is left, what was not named is dropped, and the row with
it. A crash loses no slice and repeats none; the next start goes on with what the table says.

A slice is done by whoever publishes, who asks again while there is more, and by a ``mover.Mover`` for those who went
away. Dropping alone (an abandoned batch, a writer that fell silent, a queue that was deleted) is a publication that
names no stage.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from veilmq.core.commands import Command
from veilmq.core.errors import StageMissing, StoreFull
from veilmq.core.limits import SECOND_MS, WRITER_SILENCE_S
from veilmq.core.publications import Abandon, ListWriters, Publish, Published, Stage, Staged, WriterView
from veilmq.engines import staging
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.decided import Decided, Publication
from veilmq.engines.embedded.entrance import Entrance
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.moves import Stepped
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.run import NEVER_MS
from veilmq.engines.embedded.space import Space

_SLICE_MESSAGES = staging.PIECE_MESSAGES
_SLICE_BYTES = staging.PIECE_BYTES
_SLICE_DROPPED_PIECES = 16
_SLICE_DROPPED_STAGES = 500
_SLICE_WRITERS = 100
_DECIDED_WITH_SLICE = 100  # stages; deciding on more of them is work enough for one command
_SEEN_MS = 3_600 * SECOND_MS  # how stale the note may be of when a writer was heard of
_SILENCE_MS = WRITER_SILENCE_S * SECOND_MS
_FIRST_BATCH = 0
_NO_WRITER = 0
_ALL_BATCHES = (_FIRST_BATCH, (1 << 63) - 1)


class PublicationStep(Command, frozen=True, kw_only=True):
    """Do one slice of what is decided. Answers ``moves.Stepped``."""


class _Writer(NamedTuple):
    number: int
    name: str
    batch: int | None
    messages: int
    duplicates: int
    seen_at_ms: int


class Publications:
    """The writers of one store: their commands, and the work."""

    def __init__(self, *, catalog: Catalog, journal: Journal, space: Space, entrance: Entrance) -> None:
        """Go on with what ``journal`` says is decided; ``entrance`` is how messages come into their queues."""
        self._catalog = catalog
        self._journal = journal
        self._space = space
        self._entrance = entrance
        self._decided = Decided(catalog=catalog, journal=journal)
        self.handlers: dict[type[Command], Callable[[Any, int], object]] = {
            Stage: self.stage,
            Publish: self.publish,
            Abandon: self.abandon,
            ListWriters: self.list_writers,
            PublicationStep: self.step,
        }
        self._forget_at_ms = self._next_silence_ms()

    def _next_silence_ms(self) -> int:
        ((seen_at_ms,),) = self._journal.rows("first_seen")
        return NEVER_MS if seen_at_ms is None else seen_at_ms + _SILENCE_MS

    @property
    def due_ms(self) -> int:
        """When the next slice is due; ``NEVER_MS`` when there is nothing to do."""
        return min(self._decided.due_ms, self._forget_at_ms)

    # The commands.

    def stage(self, command: Stage, now_ms: int) -> Staged:
        """Keep the messages, all of them or none."""
        queue = self._catalog.queue(command.queue)
        if self._space.is_short and self._space.look_again(now_ms):
            raise StoreFull
        staging.check(command.messages, queue.settings)
        writer = self._writer(queue, command.writer, now_ms)
        if writer.batch is not None and command.batch <= writer.batch:
            return Staged(messages=0, again=True)
        stage, messages = self._stage(writer, command)
        if self._journal.rows("part_of", stage, command.part):
            return Staged(messages=messages, again=True)
        for place, (count, content) in enumerate(staging.pieces(command.messages, queue.settings)):
            self._journal.write("insert_piece", stage, command.part, place, count, content)
            self._journal.batch_bytes += len(content)
        self._journal.write("add_to_stage", len(command.messages), stage)
        return Staged(messages=messages + len(command.messages))

    def _stage(self, writer: _Writer, command: Stage) -> tuple[int, int]:
        """Return the number of the attempt's stage, made if need be, and how many messages it has."""
        for number, messages in self._journal.rows("stage_at", writer.number, command.batch, command.attempt):
            return number, messages
        ((number,),) = self._journal.write("insert_stage", writer.number, command.batch, command.attempt)
        return number, 0

    def publish(self, command: Publish, now_ms: int) -> Published:
        """Decide, unless it was, and do a slice."""
        queue = self._catalog.queue(command.queue)
        writer = self._find(queue, command.writer)
        again = writer is not None and writer.batch is not None and command.batch <= writer.batch
        if writer is None or not again:
            stages = self._named(writer, command)
            writer = writer or self._add(queue, command.writer, now_ms)
            messages = sum(dict(command.attempts).values())
            self._journal.write("publish_batch", command.batch, messages, now_ms, writer.number)
            publication = self._decided.add(
                queue,
                writer.number,
                command.batch,
                stages,
                now_ms=now_ms,
                messages_per_s_max=command.messages_per_s_max,
            )
            self._hand_over(publication, (_FIRST_BATCH, command.batch))
            if len(stages) > _DECIDED_WITH_SLICE:
                return self._told(queue, writer, command.batch, now_ms, again=False)
        entering = self._decided.entering(writer.number)
        if entering is not None and entering.due_ms(now_ms) <= now_ms:
            self._advance(entering, now_ms)
        return self._told(queue, writer, command.batch, now_ms, again=again)

    def _named(self, writer: _Writer | None, command: Publish) -> list[int]:
        """Return the stages that the command names; raises ``StageMissing``."""
        there: dict[str, tuple[int, int]] = {}
        if writer is not None:
            rows = self._journal.rows("stages_of", writer.number, command.batch)
            there = {attempt: (number, messages) for attempt, number, messages in rows}
        stages = []
        for attempt, wanted in dict(command.attempts).items():
            number, messages = there.get(attempt, (0, 0))
            if messages != wanted:
                raise StageMissing(attempt, messages, wanted)
            if messages:
                stages.append(number)
        return stages

    def _hand_over(self, publication: Publication, batches: tuple[int, int]) -> None:
        """Give what its writer has staged for these batches, from the first to the last, to a publication."""
        if not self._journal.write("decide_stages", publication.number, publication.writer, *batches):
            self._decided.end(publication)

    def _told(self, queue: Queue, before: _Writer, batch: int, now_ms: int, *, again: bool) -> Published:
        writer = self._find(queue, before.name) or before
        is_last = writer.batch == batch
        entering = self._decided.entering(writer.number)
        return Published(
            messages=writer.messages if is_last else 0,
            duplicates=writer.duplicates if is_last else 0,
            again=again,
            more=entering is not None,
            next_due_ms=None if entering is None else entering.due_ms(now_ms),
        )

    def abandon(self, command: Abandon, now_ms: int) -> None:
        """Have what is staged for the batch dropped."""
        queue = self._catalog.queue(command.queue)
        writer = self._find(queue, command.writer)
        if writer is not None:
            dropping = self._decided.add(None, writer.number, command.batch, [], now_ms=now_ms)
            self._hand_over(dropping, (command.batch, command.batch))

    def list_writers(self, command: ListWriters, now_ms: int) -> list[WriterView]:
        """Tell the writers of a queue."""
        queue = self._catalog.queue(command.queue)
        return [
            WriterView(
                writer=name, batch=batch, messages=messages, duplicates=duplicates, staged=staged, seen_at_ms=seen_at_ms
            )
            for _, name, batch, messages, duplicates, seen_at_ms, staged in self._journal.rows(
                "writers_of", queue.number, command.count
            )
        ]

    # Writers.

    def _find(self, queue: Queue, name: str) -> _Writer | None:
        rows = self._journal.rows("writer_at", queue.number, name)
        return _Writer(*rows[0]) if rows else None

    def _writer(self, queue: Queue, name: str, now_ms: int) -> _Writer:
        """Return the writer, made if need be, and take note that it was heard of."""
        writer = self._find(queue, name)
        if writer is None:
            return self._add(queue, name, now_ms)
        if writer.seen_at_ms + _SEEN_MS <= now_ms:
            self._journal.write("see_writer", now_ms, writer.number)
        return writer

    def _add(self, queue: Queue, name: str, now_ms: int) -> _Writer:
        ((number,),) = self._journal.write("insert_writer", queue.number, name, now_ms)
        self._forget_at_ms = min(self._forget_at_ms, now_ms + _SILENCE_MS)
        return _Writer(number, name, None, 0, 0, now_ms)

    def _forget_silent(self, now_ms: int) -> None:
        for (writer,) in self._journal.rows("silent_writers", now_ms - _SILENCE_MS, _SLICE_WRITERS):
            self._hand_over(self._decided.add(None, writer, _FIRST_BATCH, [], now_ms=now_ms), _ALL_BATCHES)
            self._journal.write("delete_writer", writer)
        self._forget_at_ms = self._next_silence_ms()

    # What happens to queues.

    def purge(self, queue: Queue) -> None:
        """Let no message enter that was decided before; what is staged and not published is none of the queue's."""
        for publication in self._decided:
            if publication.queue is queue and publication.stages:
                publication.stages = []
                self._decided.put(publication)

    def delete(self, queue: Queue, now_ms: int) -> None:
        """Forget all writers of the queue, and what they have staged."""
        self.purge(queue)
        dropping = self._decided.add(None, _NO_WRITER, _FIRST_BATCH, [], now_ms=now_ms)
        if not self._journal.write("decide_stages_of", dropping.number, queue.number):
            self._decided.end(dropping)
        self._journal.write("delete_writers_of", queue.number)

    # The work.

    def step(self, command: PublicationStep, now_ms: int) -> Stepped:
        """Do one slice: of the publication that waited longest; forget who fell silent."""
        if self._forget_at_ms <= now_ms:
            self._forget_silent(now_ms)
        due = self._decided.due(now_ms)
        if due is not None:
            self._advance(due, now_ms)
        return Stepped(due_ms=self.due_ms)

    def _advance(self, publication: Publication, now_ms: int) -> None:
        if publication.queue is not None and publication.stages:
            publication.pause(self._enter(publication, publication.queue, now_ms), now_ms)
            self._decided.put(publication)
        elif self._drop_some(publication):
            publication.pause(0, now_ms)
        else:
            self._decided.end(publication)

    def _enter(self, publication: Publication, queue: Queue, now_ms: int) -> int:
        """Let the next messages enter, so many as a slice may; return how many that were."""
        left = publication.messages_at_once(_SLICE_MESSAGES)
        entered = duplicates = size = 0
        while publication.stages and left > 0 and size < _SLICE_BYTES:
            piece = self._journal.rows("first_piece", publication.stages[0])
            if not piece:
                del publication.stages[0]
                continue
            ((number, content),) = piece
            messages = staging.unpack(content)
            self._journal.write("put_piece", 0, b"", number)  # its room is for the messages, also on a full disk
            arrived = self._entrance.enter(queue, messages[:left], now_ms)
            rest = arrived.refused + messages[left:]
            if rest:
                self._journal.write("put_piece", len(rest), staging.pack(rest), number)
            else:
                self._journal.write("delete_piece", number)
            entered, duplicates = entered + len(messages) - len(rest), duplicates + arrived.duplicates
            left, size = left - len(messages), size + len(content)
            if rest:
                break
        if duplicates:
            self._journal.write("count_duplicates", duplicates, publication.writer, publication.batch)
        return entered

    def _drop_some(self, publication: Publication) -> bool:
        """Delete some of what is not to enter; tell whether there may be more."""
        if self._journal.write("delete_pieces", publication.number, _SLICE_DROPPED_PIECES):
            return True
        return bool(self._journal.write("delete_stages", publication.number, _SLICE_DROPPED_STAGES))

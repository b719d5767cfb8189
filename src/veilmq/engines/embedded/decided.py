"""What was decided and is not done yet: the rows of the table ``publication``, in memory and in the journal alike.

Publications of one writer have their turns in the order in which they were decided, those of several by turns.
"""

from collections.abc import Iterator

import msgspec

from veilmq.core.limits import SECOND_MS
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.run import NEVER_MS

PAUSE_MS = 10
_SLICES_PER_S = 10


class Publication:
    """One of them: the messages of ``stages`` are to enter ``queue``, where there are any; then all is dropped.

    ``next_at_ms`` is when its next slice is due; with ``messages_per_s_max``, nobody does one before.
    """

    __slots__ = ("batch", "messages_per_s_max", "next_at_ms", "number", "queue", "stages", "writer")

    def __init__(
        self,
        *,
        number: int,
        writer: int,
        queue: Queue | None,
        batch: int,
        stages: list[int],
        messages_per_s_max: int | None,
        next_at_ms: int,
    ) -> None:
        """The fields are the columns of its row."""
        self.number = number
        self.writer = writer
        self.queue = queue
        self.batch = batch
        self.stages = stages
        self.messages_per_s_max = messages_per_s_max
        self.next_at_ms = next_at_ms

    def messages_at_once(self, slice_messages: int) -> int:
        """Return how many messages a slice may have: with a rate, about a tenth of a second's worth."""
        if self.messages_per_s_max is None:
            return slice_messages
        return min(slice_messages, max(1, self.messages_per_s_max // _SLICES_PER_S))

    def due_ms(self, now_ms: int) -> int:
        """Return when anybody may do its next slice."""
        return now_ms if self.messages_per_s_max is None else max(now_ms, self.next_at_ms)

    def pause(self, messages: int, now_ms: int) -> None:
        """Have the next slice wait: for what so many messages take at the rate, never less than a moment."""
        rate = self.messages_per_s_max
        self.next_at_ms = now_ms + (PAUSE_MS if rate is None else max(PAUSE_MS, -(-messages * SECOND_MS // rate)))


class Decided:
    """All publications of one store that are not done."""

    def __init__(self, *, catalog: Catalog, journal: Journal) -> None:
        """Load what ``journal`` has."""
        self._journal = journal
        queues = {queue.number: queue for queue in catalog.queues()}
        self._publications: dict[int, Publication] = {}
        for number, writer, queue, batch, stages, rate, next_at_ms in journal.rows("all_publications"):
            self._publications[number] = Publication(
                number=number,
                writer=writer,
                queue=queues.get(queue),
                batch=batch,
                stages=msgspec.msgpack.decode(stages),
                messages_per_s_max=rate,
                next_at_ms=next_at_ms,
            )

    def __iter__(self) -> Iterator[Publication]:
        """Yield them in the order in which they were decided."""
        return iter(list(self._publications.values()))

    @property
    def due_ms(self) -> int:
        """When the next slice of any is due; ``NEVER_MS`` when there is none."""
        if not self._publications:
            return NEVER_MS
        return min(publication.next_at_ms for publication in self._first())

    def due(self, now_ms: int) -> Publication | None:
        """Return the one that waited longest for its slice, ``None`` when nothing is due."""
        first = min(self._first(), key=lambda each: each.next_at_ms, default=None)
        return first if first is not None and first.next_at_ms <= now_ms else None

    def entering(self, writer: int) -> Publication | None:
        """Return the first one of a writer that has messages left to enter their queue."""
        return next((each for each in self if each.writer == writer and each.stages), None)

    def _first(self) -> Iterator[Publication]:
        """Yield those that may have a slice: no later one of a writer before an earlier one is in the queue."""
        entering: set[int] = set()
        for publication in self._publications.values():
            if not publication.stages:
                yield publication
            elif publication.writer not in entering:
                entering.add(publication.writer)
                yield publication

    def add(
        self,
        queue: Queue | None,
        writer: int,
        batch: int,
        stages: list[int],
        *,
        now_ms: int,
        messages_per_s_max: int | None = None,
    ) -> Publication:
        """Decide: ``stages`` are to enter ``queue``; the first slice may be done now."""
        number = 0 if queue is None else queue.number
        ((number,),) = self._journal.write(
            "insert_publication", writer, number, batch, _encode(stages), messages_per_s_max, now_ms
        )
        publication = Publication(
            number=number,
            writer=writer,
            queue=queue,
            batch=batch,
            stages=stages,
            messages_per_s_max=messages_per_s_max,
            next_at_ms=now_ms,
        )
        self._publications[number] = publication
        return publication

    def put(self, publication: Publication) -> None:
        """Store how far it is."""
        self._journal.write("put_publication", _encode(publication.stages), publication.next_at_ms, publication.number)

    def end(self, publication: Publication) -> None:
        """Forget one that is done."""
        del self._publications[publication.number]
        self._journal.write("delete_publication", publication.number)


def _encode(stages: list[int]) -> bytes:
    return msgspec.msgpack.encode(stages)

"""Offsets of the stream, which Spark keeps in its checkpoint: a source and the number of its last claim.

Which messages a number means was fixed at the server before Spark wrote it down. ``Progress`` knows when a batch is
finished for certain, as far as a source can know.

Spark asks for what comes after an offset only when that offset is in its commit log, so being asked would be proof
enough. With asynchronous progress tracking it is not: Spark then runs ahead of its logs, and does not tell. What gives
it away is the order of calls. Ordinarily Spark says ``commit(a)`` before it plans the batch from *a* to *b*;
asynchronously it says so later or never. So nothing is taken as finished before the order was seen to be the ordinary
one, but for what is certain anyway: an offset from before this process began was read from the logs, and the first
batch of a process is logged at once also asynchronously, so some idle seconds make it certain. (Spark 4.3.0:
MicroBatchExecution and AsyncProgressTrackingMicroBatchExecution.)
"""

from dataclasses import dataclass
from typing import Any, Self

from veilmq.spark.source_options import CLAIMS, SQS

VERSION = 1


class OffsetUnknown(ValueError):
    """The checkpoint is not of this version of the source, or not of this source at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Claims of ``source`` up to ``number``; a batch that ends here begins with ``first``, if that is not the next.

    ``queue`` is the name of the queue; empty in what earlier versions wrote.
    """

    source: str = ""
    number: int = 0
    first: int | None = None
    queue: str = ""

    @classmethod
    def of(cls, json: dict[str, Any], *, mode: str = CLAIMS, queue: str = "") -> Self:
        """Read what ``json`` made, for a stream of ``mode`` and ``queue``; raises ``OffsetUnknown``."""
        source, number, first = json.get("src"), json.get("n"), json.get("first")
        if json.get("v") != VERSION or type(source) is not str or type(number) is not int:
            raise OffsetUnknown(f"the checkpoint has {json!r}, which is no offset of veilmq's version {VERSION}")
        kept = SQS if source == SQS else CLAIMS
        if source and kept != mode:
            raise OffsetUnknown(f"the checkpoint is of a stream with mode={kept}; go on with that, or begin a new one")
        written = json.get("queue", "")
        if queue and written and written != queue:
            raise OffsetUnknown(
                f"the checkpoint is of the queue {written}, not of {queue}; read {written} with it, or begin a new one"
            )
        return cls(source=source, number=number, first=first, queue=written)

    def json(self) -> dict[str, Any]:
        """Return it as a dictionary of plain values; always the same for the same offset."""
        json: dict[str, Any] = {"v": VERSION, "src": self.source, "n": self.number}
        json |= {} if self.first is None else {"first": self.first}
        return json | ({"queue": self.queue} if self.queue else {})

    def claims_to(self, end: "Offset") -> range:
        """Return the numbers of the claims in the batch from here to ``end``."""
        first = self.number + 1 if end.first is None else end.first
        return range(first, end.number + 1)


INITIAL = Offset()


IDLE_S = 5.0
"""How long Spark may take to write the first two entries of its logs."""


class AsynchronousProgress(Exception):
    """The query tracks its progress asynchronously; a queue cannot be read like that."""

    def __init__(self) -> None:
        """The remedy is in the sentence."""
        super().__init__(
            "The query has asyncProgressTrackingEnabled, with which Spark goes on before it knows that a batch is "
            "kept. Messages would be deleted too early, so veilmq refuses it: leave that option of writeStream out."
        )


class Progress:
    """What one process has seen of its query. ``ordered``: the trigger is one that is never asynchronous."""

    def __init__(self) -> None:
        """Begin with having seen nothing."""
        self.ordered = False
        self._made: list[int] = []  # the last two
        self._committed = 0
        self._idle_since_s: dict[int, float] = {}

    def made(self, number: int) -> None:
        """Note that an offset was handed to Spark."""
        self._made = [*self._made[-1:], number]

    def committed(self, number: int) -> None:
        """Note that Spark said that all up to ``number`` is finished."""
        self._committed = max(self._committed, number)

    def finished(self, number: int) -> bool:
        """Tell whether the batch that ended at ``number``, from which on Spark asks now, is finished for certain."""
        return self.ordered or number <= self._committed or number not in self._made

    def finished_by_rest(self, number: int, now_s: float) -> bool:
        """Tell the same of an idle stream: Spark has asked again and again for what comes after ``number``."""
        since_s = self._idle_since_s.setdefault(number, now_s)
        self._idle_since_s = {number: since_s}
        return now_s - since_s >= IDLE_S

    def planned(self, start: int) -> None:
        """Note that Spark plans a batch from ``start`` on; raises ``AsynchronousProgress`` where that gives it away."""
        if not self.finished(start):
            raise AsynchronousProgress
        self.ordered = self.ordered or (start in self._made and start <= self._committed)

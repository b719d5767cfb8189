"""The options of the sink. ``OPTIONS`` is the one table: of what is read, checked and documented."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from veilmq.core import limits
from veilmq.core.limits import Range
from veilmq.spark import connection
from veilmq.spark.connection import Connection
from veilmq.spark.options import TEXT, Option, OptionWrong, choice, name_of, read, whole

FAIL = "fail"
DEAD_LETTER = "deadletter"

BATCH_SIZE = Range(minimum=1, maximum=limits.STAGE_MESSAGES_MAX, default=1_000)
PATIENCE_S = Range(minimum=0, maximum=3_600, default=60)
_WRITER_CHARACTERS_MAX = 64
# What its streaming writer reads, and hands on all the same.
_OF_SPARK = ("checkpointlocation", "asyncprogresstracking", "queryname")


OPTIONS = (
    *connection.OPTIONS,
    Option(
        name="batchSize",
        field="batch_size",
        kind=whole(BATCH_SIZE),
        default=BATCH_SIZE.default,
        doc="Most messages of one request; one with long messages has fewer.",
    ),
    Option(
        name="messagesPerSecond",
        field="messages_per_s_max",
        kind=whole(limits.PUBLISH_PER_S),
        shown="as fast as it goes",
        doc="How fast the messages of one batch come into the queue, all tasks together. The batch waits for the last.",
    ),
    Option(
        name="onTooLong",
        field="on_too_long",
        kind=choice(FAIL, DEAD_LETTER),
        default=FAIL,
        doc="What a message longer than the queue takes does: end the query, or go to `deadLetterQueue`, cut short.",
    ),
    Option(
        name="deadLetterQueue",
        field="dead_letter_queue",
        kind=TEXT,
        doc="Name or URL of a standard queue for messages that are too long; with `onTooLong=deadLetter`.",
    ),
    Option(
        name="writer",
        field="writer",
        kind=name_of(_WRITER_CHARACTERS_MAX),
        shown="a new one for each write",
        doc="Batch writes only: what is written under one name is sent once, in `foreachBatch` once for each batch.",
    ),
    Option(
        name="patience",
        field="patience_s",
        kind=whole(PATIENCE_S),
        default=PATIENCE_S.default,
        doc="Seconds for which a server that does not answer is tried again before the task fails.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options as values; durations in seconds."""

    connection: Connection
    batch_size: int
    messages_per_s_max: int | None
    on_too_long: str
    dead_letter_queue: str | None
    writer: str | None
    patience_s: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Read what Spark hands over; raises ``OptionWrong``."""
        ours = {name: text for name, text in given.items() if not name.lower().startswith(_OF_SPARK)}
        values = read(OPTIONS, ours)
        options = cls(connection=Connection.of(values), **values)
        if (options.on_too_long == DEAD_LETTER) != (options.dead_letter_queue is not None):
            raise OptionWrong("option deadLetterQueue: goes with onTooLong=deadLetter; give both or none")
        if options.dead_letter_queue is not None and options.dead_letter_queue.endswith(".fifo"):
            raise OptionWrong("option deadLetterQueue: must be a standard queue; what is too long has no order there")
        return options

    @property
    def dead_letters(self) -> Connection | None:
        """Where messages go that are too long, if anywhere."""
        return None if self.dead_letter_queue is None else replace(self.connection, queue=self.dead_letter_queue)

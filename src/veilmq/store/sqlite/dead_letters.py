"""Dead letters: what a receive does with a message that was received as often as its queue allows.

It is not given out: in the transaction of the receive it moves to the dead-letter queue (``moving``).

A receive moves no more than so many messages and bytes, so that it stays short. Where the dead-letter queue cannot take
a message (gone, its permission withdrawn, the disk nearly full), the message stays and is delivered once more.
"""

from veilmq.core import redrive
from veilmq.core.limits import DEAD_LETTER_BYTES_PER_RECEIVE, DEAD_LETTERS_PER_RECEIVE
from veilmq.store.queues import Queue
from veilmq.store.sqlite.moving import bury
from veilmq.store.sqlite.session import Row, Session


class DeadLetterSink:
    """Where a receive of one queue sends its dead letters."""

    __slots__ = ("_bytes_left", "_left", "_now_ms", "_queue", "_receives_max", "_session", "target")

    def __init__(self, session: Session, queue: Queue, target: Queue, now_ms: int) -> None:
        """``target`` is the dead-letter queue of ``queue``, and takes its messages."""
        self._session = session
        self._queue = queue
        self.target = target
        self._now_ms = now_ms
        self._receives_max = queue.settings.receives_max
        self._left = DEAD_LETTERS_PER_RECEIVE
        self._bytes_left = DEAD_LETTER_BYTES_PER_RECEIVE

    @property
    def is_over(self) -> bool:
        """Whether no more may be sent there in this receive."""
        return self._left <= 0 or self._bytes_left <= 0

    def takes(self, row: Row) -> bool:
        """Tell whether the message of a row as it is offered is a dead letter; the caller has it moved."""
        if row[2] < self._receives_max:
            return False
        self._left -= 1
        self._bytes_left -= len(row[6]) + len(row[7])
        return True

    def move(self, rows: list[Row]) -> None:
        """Move the messages of ``rows`` to the target, visible at once."""
        session, queue, now_ms = self._session, self._queue, self._now_ms
        if queue.log is not None:
            session.events.dead_lettered(queue, [row[0] for row in rows], now_ms)
        bury(session, queue, self.target, rows, now_ms)

    def notify(self) -> None:
        """Wake the dead-letter queue's watch if anything came to it."""
        if self._left < DEAD_LETTERS_PER_RECEIVE:
            self.target.notify(self._now_ms)


def sink_of(session: Session, queue: Queue, now_ms: int) -> DeadLetterSink | None:
    """Return where the dead letters of ``queue`` go; ``None`` when they stay where they are."""
    settings = queue.settings
    target = session.find(settings.dead_letter_queue)
    if target is None or redrive.refusal(queue.name, settings, target.name, target.settings) is not None:
        return None
    if session.space.is_short and session.space.look_again(now_ms):
        return None
    return DeadLetterSink(session, queue, target, now_ms)

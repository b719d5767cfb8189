"""How staged messages come into their queue: as if they were sent now, but for the checks, which they have passed.

Delays count from now, a FIFO queue gives sequence numbers and stores no duplicate, and the watch is told.
"""

from typing import NamedTuple

from veilmq.core.commands import NewMessage
from veilmq.core.errors import StoreFull
from veilmq.core.ids import IdSource
from veilmq.core.results import SentMessage
from veilmq.engines.embedded import groups
from veilmq.engines.embedded.fifo_sends import FifoSends
from veilmq.engines.embedded.queue import Queue


class Arrived(NamedTuple):
    """What became of messages: how many were duplicates and not stored, and those behind for which no lane was left."""

    duplicates: int
    refused: tuple[NewMessage, ...]


class Entrance:
    """Stores messages that were checked."""

    def __init__(self, *, fifo_sends: FifoSends) -> None:
        """``fifo_sends`` is the one that the senders use: it knows what they have sent lately."""
        self._fifo_sends = fifo_sends
        self._ids = IdSource()

    def enter(self, queue: Queue, messages: tuple[NewMessage, ...], now_ms: int) -> Arrived:
        """Store the messages in their order."""
        if queue.settings.fifo:
            return self._enter_fifo(queue, messages, now_ms)
        due_ms = []
        for index, new in enumerate(messages):
            try:
                lane = queue.lane_for(new)
            except StoreFull:
                return Arrived(0, messages[index:])
            group_key = None if new.group is None else groups.key_of(new.group)
            due_ms.append(queue.store(lane, new, self._ids.next(), now_ms, group_key))
        if due_ms:
            queue.rouse(min(due_ms))
        return Arrived(0, ())

    def _enter_fifo(self, queue: Queue, messages: tuple[NewMessage, ...], now_ms: int) -> Arrived:
        before = _messages(queue)
        sent = self._fifo_sends.send(queue, messages, now_ms)
        taken = next((at for at, each in enumerate(sent) if not isinstance(each, SentMessage)), len(sent))
        return Arrived(taken - (_messages(queue) - before), messages[taken:])


def _messages(queue: Queue) -> int:
    return sum(lane.counters.messages for lane in queue.lanes)

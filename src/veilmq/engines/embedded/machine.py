"""The state machine: every command, decided in memory, its row changes staged in the journal.

A handler validates before it changes anything and raises a ``VeilmqError`` where the whole command fails; in commands
with several entries each entry has a result or an error of its own.
"""

import gc
from collections.abc import Callable
from typing import Any

from veilmq.core import commands
from veilmq.core.forwards import Forward
from veilmq.core.looks import LookAtLeases, LookAtQueue, Peek
from veilmq.core.ports import Wake
from veilmq.core.receipts import ReceiptBook
from veilmq.core.topics import PublishToTopic
from veilmq.engines.embedded.accounts import Accounts
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.claims import Claims
from veilmq.engines.embedded.dead_letters import DeadLetters
from veilmq.engines.embedded.entrance import Entrance
from veilmq.engines.embedded.event_export import EventExport
from veilmq.engines.embedded.event_log import EventLog
from veilmq.engines.embedded.forwards import Forwards
from veilmq.engines.embedded.janitor import Sweep, Sweeper
from veilmq.engines.embedded.journal import Journal
from veilmq.engines.embedded.keys import RECEIPT_KEY, kept_key
from veilmq.engines.embedded.looks import Looks
from veilmq.engines.embedded.message_commands import MessageCommands
from veilmq.engines.embedded.moves import Moves, MoveStep
from veilmq.engines.embedded.options import EngineOptions
from veilmq.engines.embedded.pauses import QueuePauses
from veilmq.engines.embedded.peeks import Peeks
from veilmq.engines.embedded.publications import Publications
from veilmq.engines.embedded.queue_commands import QueueCommands
from veilmq.engines.embedded.shown_times import ShownTimes
from veilmq.engines.embedded.space import Space
from veilmq.engines.embedded.topic_book import TopicBook
from veilmq.engines.embedded.topic_messages import TopicMessages
from veilmq.engines.embedded.topics import Topics

_RELOADS_PER_COLLECTION = 8

Handlers = dict[type[commands.Command], Callable[[Any, int], object]]


class Machine:
    """All queues of one store, and the table of what can be done with them.

    ``handlers`` has a function for each type of command: ``(command, now_ms)`` → result, or it raises ``VeilmqError``.
    """

    def __init__(self, *, journal: Journal, options: EngineOptions, space: Space) -> None:
        """Load what ``journal`` has; the backlog does not show in time or memory."""
        self._journal = journal
        self._options = options
        self.space = space
        self.shown = ShownTimes()
        self._wakes: dict[str, Wake] = {}
        self._reloads = 0
        self._load()

    def reload(self) -> None:
        """Go back to what the journal has, as after a batch was rolled back; watches stay."""
        self._load()
        self._reloads += 1
        if self._reloads % _RELOADS_PER_COLLECTION == 0:
            gc.collect()  # what was in memory before has cycles, and the windows of all queues

    def _load(self) -> None:
        self.events = EventLog(journal=self._journal, options=self._options, space=self.space)
        self.catalog = Catalog(journal=self._journal, options=self._options, wakes=self._wakes, events=self.events)
        letters = DeadLetters(catalog=self.catalog, space=self.space)
        self.moves = Moves(
            catalog=self.catalog, journal=self._journal, space=self.space, may_send=self._options.may_send
        )
        book = ReceiptBook(keys=[kept_key(self._journal, RECEIPT_KEY)])
        messages = MessageCommands(
            catalog=self.catalog, journal=self._journal, dead_letters=letters, book=book, space=self.space
        )
        entrance = Entrance(fifo_sends=messages.fifo_sends)
        self.publications = Publications(
            catalog=self.catalog, journal=self._journal, space=self.space, entrance=entrance
        )
        self.claims = Claims(
            catalog=self.catalog, journal=self._journal, dead_letters=letters, options=self._options, shown=self.shown
        )
        pauses = QueuePauses(journal=self._journal, options=self._options)
        queues = QueueCommands(
            catalog=self.catalog,
            dead_letters=letters,
            space=self.space,
            pauses=pauses,
            publications=self.publications,
            claims=self.claims,
        )
        forwards = Forwards(catalog=self.catalog, journal=self._journal, space=self.space, messages=messages)
        self.handlers: Handlers = {
            **_of_messages(messages),
            Forward: forwards.forward,
            **_of_queues(queues),
            **self.publications.handlers,
            **self.claims.handlers,
            **_of_moves(self.moves),
            **EventExport(journal=self._journal, events=self.events).handlers,
            **self._of_looks(letters, book),
            **self._of_topics(messages),
            **Accounts(journal=self._journal).handlers,
            Sweep: Sweeper(catalog=self.catalog, journal=self._journal, space=self.space, pauses=pauses).sweep,
        }

    def _of_looks(self, letters: DeadLetters, book: ReceiptBook) -> Handlers:
        looks = Looks(catalog=self.catalog, journal=self._journal, book=book)
        return {
            commands.ListDeadLetterSources: letters.list_sources,
            LookAtQueue: looks.look,
            LookAtLeases: looks.leases,
            Peek: Peeks(catalog=self.catalog, dead_letters=letters).peek,
        }

    def _of_topics(self, messages: MessageCommands) -> Handlers:
        book = TopicBook(journal=self._journal)
        topics = Topics(book=book, catalog=self.catalog, space=self.space, wakes=self._wakes)
        published = TopicMessages(
            book=book, catalog=self.catalog, space=self.space, fifo_sends=messages.fifo_sends, shown=self.shown
        )
        return {**topics.handlers, PublishToTopic: published.publish}

    def watch(self, name: str, wake: Wake) -> None:
        """Have ``wake`` called when the queue of that name may have a message; see ``core.ports.Engine``."""
        self._wakes[name] = wake
        queue = self.catalog.find(name)
        if queue is not None:
            queue.wake = wake

    def unwatch(self, name: str) -> None:
        """End the watch."""
        self._wakes.pop(name, None)
        queue = self.catalog.find(name)
        if queue is not None:
            queue.wake = None


def _of_messages(messages: MessageCommands) -> Handlers:
    return {
        commands.Send: messages.send,
        commands.Receive: messages.receive,
        commands.Delete: messages.delete,
        commands.ChangeVisibility: messages.change_visibility,
    }


def _of_moves(moves: Moves) -> Handlers:
    return {
        commands.StartMove: moves.start,
        commands.CancelMove: moves.cancel,
        commands.ListMoves: moves.list,
        MoveStep: moves.step,
    }


def _of_queues(queues: QueueCommands) -> Handlers:
    return {
        commands.CreateQueue: queues.create,
        commands.DeleteQueue: queues.delete,
        commands.PurgeQueue: queues.purge,
        commands.SetQueue: queues.set,
        commands.EditQueue: queues.edit,
        commands.TagQueue: queues.tag,
        commands.ShowQueue: queues.show,
        commands.ListQueues: queues.list,
    }

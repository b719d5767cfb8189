"""The commands on queues: one handler each, found by command type in ``machine``."""

from veilmq.core import commands, results
from veilmq.core.errors import QueueExists, StoreFull
from veilmq.core.settings import QueueSettings
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.space import Space

_SWEEP_ROWS_MAX = 1_000


class QueueCommands:
    """Create, show, list, change, purge and delete."""

    def __init__(self, *, catalog: Catalog, space: Space) -> None:
        """``catalog`` has the queues; ``space`` tells when the disk is nearly full."""
        self._catalog = catalog
        self._space = space

    def create(self, command: commands.CreateQueue, now_ms: int) -> results.QueueView:
        """Add the queue, or find it as it was asked for."""
        queue = self._catalog.find(command.queue)
        if queue is None:
            if self._space.look_again(now_ms):
                raise StoreFull
            queue = self._catalog.create(command.queue, QueueSettings().changed(command.settings), now_ms)
            return _view(queue)
        setting = queue.settings.first_difference(command.settings)
        if setting is not None:
            raise QueueExists(command.queue, setting)
        return _view(queue)

    def delete(self, command: commands.DeleteQueue, now_ms: int) -> None:
        """Remove the queue; whoever waits for its messages is woken to find it gone."""
        queue = self._catalog.queue(command.queue)
        self._catalog.delete(queue)
        queue.rouse(now_ms)

    def purge(self, command: commands.PurgeQueue, now_ms: int) -> None:
        """Remove all messages."""
        queue = self._catalog.queue(command.queue)
        self._catalog.empty(queue)
        queue.give_place(now_ms)

    def set(self, command: commands.SetQueue, now_ms: int) -> None:
        """Change settings; what the old retention has ended stays ended, leases keep their deadlines."""
        queue = self._catalog.queue(command.queue)
        queue.expire(now_ms)
        self._catalog.change(queue, queue.settings.changed(command.settings), now_ms)

    def edit(self, command: commands.EditQueue, now_ms: int) -> None:
        """Change one setting by looking at it."""
        queue = self._catalog.queue(command.queue)
        value = command.edit(getattr(queue.settings, command.setting))
        self._catalog.change(queue, queue.settings.changed({command.setting: value}), now_ms)

    def show(self, command: commands.ShowQueue, now_ms: int) -> results.QueueView:
        """Tell what the queue is, and how many messages are in which state."""
        queue = self._catalog.queue(command.queue)
        return _view(queue, _counts(queue, now_ms) if command.counts else None)

    def list(self, command: commands.ListQueues, now_ms: int) -> results.QueuePage:
        """Tell one page of names."""
        account = f"{command.account}/"
        names = self._catalog.names(
            prefix=account + command.prefix, after=account + command.after, count=command.count + 1
        )
        page = [name.removeprefix(account) for name in names[: command.count]]
        return results.QueuePage(names=page, more=len(names) > command.count)


def _view(queue: Queue, counts: results.QueueCounts | None = None) -> results.QueueView:
    return results.QueueView(
        queue=queue.name,
        settings=queue.settings,
        created_at_ms=queue.created_at_ms,
        modified_at_ms=queue.modified_at_ms,
        counts=counts,
    )


def _counts(queue: Queue, now_ms: int) -> results.QueueCounts:
    queue.expire(now_ms)
    visible = in_flight = delayed = 0
    oldest_ms = []
    for lane in queue.lanes:
        lane.sweep(_SWEEP_ROWS_MAX)  # rows that the janitor has not come to yet would be counted
        counters = lane.catch_up(now_ms)
        in_flight += counters.in_flight
        delayed += counters.delayed
        visible += counters.messages - counters.in_flight - counters.delayed
        if (sent_at_ms := lane.oldest_sent_at_ms()) is not None:
            oldest_ms.append(sent_at_ms)
    return results.QueueCounts(
        visible=visible, in_flight=in_flight, delayed=delayed, oldest_sent_at_ms=min(oldest_ms, default=None)
    )

"""The commands on queues: one handler each, found by command type in ``machine``."""

from msgspec.structs import replace

from veilmq.core import commands, results
from veilmq.core.errors import PurgeInProgress, QueueDeletedRecently, QueueExists, StoreFull
from veilmq.core.settings_rules import purged, settled, tagged
from veilmq.engines.embedded.catalog import Catalog
from veilmq.engines.embedded.claims import Claims
from veilmq.engines.embedded.dead_letters import DeadLetters
from veilmq.engines.embedded.pauses import QueuePauses
from veilmq.engines.embedded.publications import Publications
from veilmq.engines.embedded.queue import Queue
from veilmq.engines.embedded.space import Space


class QueueCommands:
    """Create, show, list, change, tag, purge and delete."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        dead_letters: DeadLetters,
        space: Space,
        pauses: QueuePauses,
        publications: Publications,
        claims: Claims,
    ) -> None:
        """All are the state machine's own."""
        self._catalog = catalog
        self._dead_letters = dead_letters
        self._space = space
        self._pauses = pauses
        self._publications = publications
        self._claims = claims

    def create(self, command: commands.CreateQueue, now_ms: int) -> results.QueueView:
        """Add the queue, or find it as it was asked for."""
        queue = self._catalog.find(command.queue)
        if queue is None:
            return self._create(command, now_ms)
        setting = queue.settings.first_difference(command.settings)
        if setting is not None:
            raise QueueExists(command.queue, setting)
        return _view(queue)

    def _create(self, command: commands.CreateQueue, now_ms: int) -> results.QueueView:
        if not command.at_once and self._pauses.deleted.holds(command.queue, now_ms):
            raise QueueDeletedRecently(command.queue, self._pauses.deleted.pause_s)
        settings = replace(settled(None, {**command.defaults, **command.settings}), tags=tagged({}, command.tags))
        self._dead_letters.check(command.queue, settings)
        if self._space.look_again(now_ms):
            raise StoreFull
        return replace(_view(self._catalog.create(command.queue, settings, now_ms)), is_new=True)

    def delete(self, command: commands.DeleteQueue, now_ms: int) -> None:
        """Remove the queue; whoever waits for its messages is woken to find it gone."""
        queue = self._catalog.queue(command.queue)
        self._publications.delete(queue, now_ms)
        self._claims.delete(queue)
        self._catalog.delete(queue)
        self._pauses.purged.end(command.queue)
        self._pauses.deleted.begin(command.queue, now_ms)
        queue.rouse(now_ms)

    def purge(self, command: commands.PurgeQueue, now_ms: int) -> None:
        """Remove all messages."""
        queue = self._catalog.queue(command.queue)
        if self._pauses.purged.holds(command.queue, now_ms):
            raise PurgeInProgress(command.queue, self._pauses.purged.pause_s)
        self._pauses.purged.begin(command.queue, now_ms)
        self._publications.purge(queue)
        self._claims.purge(queue)
        self._catalog.empty(queue)
        if queue.settings.fifo:
            self._catalog.change(queue, purged(queue.settings), queue.modified_at_ms)
        queue.give_place(now_ms)

    def set(self, command: commands.SetQueue, now_ms: int) -> None:
        """Change settings; what the old retention has ended stays ended, leases keep their deadlines.

        Of a FIFO queue, messages without a delay of their own follow the new delay.
        """
        queue = self._catalog.queue(command.queue)
        settings = settled(queue.settings, command.settings)
        if "dead_letter_queue" in command.settings:
            self._dead_letters.check(command.queue, settings)
        queue.expire(now_ms)
        self._catalog.change(queue, settings, now_ms)
        if settings.fifo:
            queue.expire(now_ms)  # files a slice of the turns by the new delay
            queue.rouse_groups(now_ms)

    def edit(self, command: commands.EditQueue, now_ms: int) -> None:
        """Change one setting by looking at it."""
        queue = self._catalog.queue(command.queue)
        value = command.edit(getattr(queue.settings, command.setting))
        self._catalog.change(queue, settled(queue.settings, {command.setting: value}), now_ms)

    def tag(self, command: commands.TagQueue, now_ms: int) -> None:
        """Remove and put tags; that is no change of the queue's settings, whose time stays."""
        queue = self._catalog.queue(command.queue)
        kept = {key: value for key, value in queue.settings.tags.items() if key not in command.removed}
        settings = replace(queue.settings, tags=tagged(kept, command.tags))
        self._catalog.change(queue, settings, queue.modified_at_ms)

    def show(self, command: commands.ShowQueue, now_ms: int) -> results.QueueView:
        """Tell what the queue is, and how many messages are in which state."""
        queue = self._catalog.queue(command.queue)
        return _view(queue, queue.counts(now_ms) if command.counts else None)

    def list(self, command: commands.ListQueues, now_ms: int) -> results.QueuePage:
        """Tell one page of names."""
        account = f"{command.account}/"
        names = self._catalog.names(
            prefix=account + command.prefix, after=account + command.after, count=command.count + 1
        )
        page = names[: command.count]
        return results.QueuePage(
            names=[name.removeprefix(account) for name in page],
            more=len(names) > command.count,
            views=[self._counted(name, now_ms) for name in page] if command.views else [],
        )

    def _counted(self, name: str, now_ms: int) -> results.QueueView:
        queue = self._catalog.queue(name)
        return _view(queue, queue.counts(now_ms))


def _view(queue: Queue, counts: results.QueueCounts | None = None) -> results.QueueView:
    return results.QueueView(
        queue=queue.name,
        settings=queue.settings,
        created_at_ms=queue.created_at_ms,
        modified_at_ms=queue.modified_at_ms,
        counts=counts,
    )

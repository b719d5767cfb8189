"""The commands on queues. Each is a transaction on the row of its queue; nobody is in a hurry here."""

from typing import Any

import msgspec
from msgspec.structs import replace

from veilmq.core import commands, redrive, results
from veilmq.core.errors import (
    PurgeInProgress,
    QueueDeletedRecently,
    QueueExists,
    QueueNotFound,
)
from veilmq.core.limits import SECOND_MS
from veilmq.core.settings import QueueSettings
from veilmq.core.settings_rules import purged, settled, tagged
from veilmq.engines.postgres import claim_rows, queue_rows
from veilmq.engines.postgres.catalog import SQL, Catalog, Queue, queue_of
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.event_log import EventLog
from veilmq.engines.postgres.on_queue import retention_ms, sql
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.sweeper import Sweeper, settle_late
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.transaction import ColdCommands, PostgresTransaction
from veilmq.engines.postgres.watches import Watches
from veilmq.store import publications

_PURGED = "purged"
_DELETED = "deleted"


class QueueCommands:
    """Create, show, list, change, tag, purge and delete."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        options: PostgresOptions,
        watches: Watches,
        totals: Totals,
        cold: ColdCommands,
    ) -> None:
        """``catalog``, ``totals`` and ``cold`` are the node's; ``watches`` hears of queues that were deleted."""
        self._cold = cold
        self._totals = totals
        self._database = database
        self._catalog = catalog
        self._options = options
        self._log = EventLog(options=options)
        self._sweeper = Sweeper(options=options, watches=watches)
        self._watches = watches

    async def create(self, command: commands.CreateQueue) -> results.QueueView:
        """Add the queue, or find it as it was asked for."""
        async with self._database.connection() as connection, connection.transaction():
            queue = await self._catalog.find(connection, command.queue)
            if queue is None:
                queue = await self._insert(connection, command)
                if queue is not None:
                    return _view(queue, is_new=True)
                queue = await self._catalog.queue(connection, command.queue)
        setting = queue.settings.first_difference(command.settings)
        if setting is not None:
            raise QueueExists(command.queue, setting)
        return _view(queue)

    async def _insert(self, connection: Any, command: commands.CreateQueue) -> Queue | None:
        """Add the queue; ``None`` when another node has just done so."""
        pause_s = self._options.queue_name_pause_s
        if not command.at_once and await self._holds(connection, _DELETED, command.queue, pause_s):
            raise QueueDeletedRecently(command.queue, pause_s)
        settings = replace(settled(None, {**command.defaults, **command.settings}), tags=tagged({}, command.tags))
        await self._check(connection, command.queue, settings)
        made = await queue_rows.insert(connection, command.queue, settings)
        return None if made is None else self._catalog.note(made)

    async def delete(self, command: commands.DeleteQueue) -> None:
        """Remove the queue and its messages, at a cost that does not depend on them."""
        async with self._database.connection() as connection:
            tx = PostgresTransaction(connection, self._cold)
            async with connection.transaction():
                queue = await self._locked(connection, command.queue)
                await self._log.retire(connection, queue)
                await publications.forget(tx, queue)
                await queue_rows.remove(connection, queue)
                await connection.execute(SQL["end_pause"], _PURGED, queue.name)
                await connection.execute(SQL["begin_pause"], _DELETED, queue.name)
            await tx.end()
        self._catalog.forget(command.queue)
        self._totals.forget(queue.number)
        self._watches.changed(command.queue)

    async def purge(self, command: commands.PurgeQueue) -> None:
        """Remove all messages: the queue goes on with a new partition."""
        pause_s = self._options.purge_pause_s
        async with self._database.connection() as connection, connection.transaction():
            queue = await self._locked(connection, command.queue)
            if await self._holds(connection, _PURGED, queue.name, pause_s):
                raise PurgeInProgress(queue.name, pause_s)
            await connection.execute(SQL["begin_pause"], _PURGED, queue.name)
            await claim_rows.lock_all(connection, queue)
            await publications.purge(PostgresTransaction(connection, self._cold), queue)
            await self._log.retire(connection, queue)
            await connection.execute(SQL["retire_part"], queue.partition)
            await claim_rows.lose_all(connection, queue)
            partition = await connection.fetchval(SQL["insert_part"], queue.number)
            await connection.execute(SQL["place_queue"], queue.number, partition)
            if queue.settings.fifo:
                await self._keep(connection, queue, purged(queue.settings), modified_at_ms=queue.modified_at_ms)
        self._catalog.forget(command.queue)
        self._watches.changed(command.queue)

    async def set(self, command: commands.SetQueue) -> None:
        """Change settings; leases in flight keep their deadlines."""
        async with self._database.connection() as connection, connection.transaction():
            queue = await self._locked(connection, command.queue)
            settings = settled(queue.settings, command.settings)
            if "dead_letter_queue" in command.settings:
                await self._check(connection, queue.name, settings)
            await self._end_what_has_ended(connection, queue, settings)
            now_ms = await self._keep(connection, queue, settings)
            if settings.fifo and settings.delay_s != queue.settings.delay_s:
                await settle_late(connection, queue)
        self._watches.changed(command.queue, now_ms)  # there may be places now

    async def _end_what_has_ended(self, connection: Any, queue: Queue, settings: QueueSettings) -> None:
        """Have what the retention has ended stay so under a longer one: messages of groups are deleted at once."""
        if not queue.settings.fifo:
            await connection.execute(SQL["end_what_has_ended"], queue.partition, retention_ms(queue))
        elif settings.retention_s > queue.settings.retention_s:
            await self._sweeper.sweep_queue(connection, queue)

    async def edit(self, command: commands.EditQueue) -> None:
        """Change one setting by looking at it."""
        async with self._database.connection() as connection, connection.transaction():
            queue = await self._locked(connection, command.queue)
            value = command.edit(getattr(queue.settings, command.setting))
            await self._keep(connection, queue, settled(queue.settings, {command.setting: value}))
        self._watches.changed(command.queue)

    async def tag(self, command: commands.TagQueue) -> None:
        """Remove and put tags; that is no change of the queue's settings, whose time stays."""
        async with self._database.connection() as connection, connection.transaction():
            queue = await self._locked(connection, command.queue)
            kept = {key: value for key, value in queue.settings.tags.items() if key not in command.removed}
            settings = replace(queue.settings, tags=tagged(kept, command.tags))
            await self._keep(connection, queue, settings, modified_at_ms=queue.modified_at_ms)
        self._watches.changed(command.queue)

    async def show(self, command: commands.ShowQueue) -> results.QueueView:
        """Tell what the queue is, and how many messages are in which state."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            counts = await self._counts(connection, queue) if command.counts else None
            return _view(queue, counts=counts)

    async def list(self, command: commands.ListQueues) -> results.QueuePage:
        """Tell one page of names."""
        account = f"{command.account}/"
        async with self._database.connection() as connection:
            rows = await connection.fetch(
                SQL["list_queues"], account + command.prefix, account + command.after, command.count + 1
            )
            names = [name for (name,) in rows[: command.count]]
            views = [await self._counted(connection, name) for name in names] if command.views else []
        return results.QueuePage(
            names=[name.removeprefix(account) for name in names], more=len(rows) > command.count, views=views
        )

    async def _counted(self, connection: Any, name: str) -> results.QueueView:
        queue = await self._catalog.sure(connection, name)
        return _view(queue, counts=await self._counts(connection, queue))

    async def list_sources(self, command: commands.ListDeadLetterSources) -> results.QueuePage:
        """Tell the queues whose dead-letter queue it is."""
        async with self._database.connection() as connection:
            await self._catalog.queue(connection, command.queue)
            rows = await connection.fetch(SQL["list_sources"], command.queue, command.after, command.count + 1)
        names = [name for (name,) in rows]
        return results.QueuePage(names=names[: command.count], more=len(names) > command.count)

    async def _check(self, connection: Any, name: str, settings: QueueSettings) -> None:
        """Raise unless the dead-letter queue that ``settings`` name can serve the queue ``name``."""
        target = settings.dead_letter_queue
        if not target:
            return
        redrive.check(name, settings, target, await self._catalog.settings(connection, target))

    async def _locked(self, connection: Any, name: str) -> Queue:
        """Return the queue as it is, for this transaction to change."""
        row = await connection.fetchrow(SQL["lock_queue"], name)
        if row is None:
            self._catalog.forget(name)
            raise QueueNotFound(name)
        return queue_of(row)

    async def _keep(
        self, connection: Any, queue: Queue, settings: QueueSettings, *, modified_at_ms: int | None = None
    ) -> int:
        """Give ``queue`` other settings; return the present instant."""
        encoded = msgspec.json.encode(settings)
        now_ms: int = await connection.fetchval(SQL["update_queue"], queue.number, encoded, modified_at_ms)
        self._catalog.forget(queue.name)
        return now_ms

    async def _holds(self, connection: Any, kind: str, name: str, pause_s: int) -> bool:
        return bool(pause_s and await connection.fetchval(SQL["holds_pause"], kind, name, pause_s * SECOND_MS))

    async def _counts(self, connection: Any, queue: Queue) -> results.QueueCounts:
        row = await connection.fetchrow(sql(queue)["count"], queue.partition, retention_ms(queue))
        return results.QueueCounts(
            visible=row["visible"],
            in_flight=row["in_flight"],
            delayed=row["delayed"],
            oldest_sent_at_ms=row["oldest_sent_at"],
            redelivered=self._totals.redelivered[queue.number],
            sent=self._totals.sent[queue.number],
            received=self._totals.received[queue.number],
            deleted=self._totals.deleted[queue.number],
        )


def _view(queue: Queue, *, counts: results.QueueCounts | None = None, is_new: bool = False) -> results.QueueView:
    return results.QueueView(
        queue=queue.name,
        settings=queue.settings,
        created_at_ms=queue.created_at_ms,
        modified_at_ms=queue.modified_at_ms,
        counts=counts,
        is_new=is_new,
    )

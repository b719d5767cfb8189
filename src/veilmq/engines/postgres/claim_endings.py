"""Endings: messages of claims that were acknowledged are deleted, those of claims that were lost or released return.

What a claim is changes at once; its messages follow in slices, each a transaction that holds the claim's row. The first
slice is the command's own, so that small claims end with it; the others are done by whichever node comes to it.
"""

from typing import Any

from veilmq.core.claims import ClaimState
from veilmq.core.limits import SECOND_MS, SOURCE_SILENCE_S
from veilmq.engines.postgres.catalog import Queue, queue_of
from veilmq.engines.postgres.claim_rows import ACKNOWLEDGED, SQL, BoundClaim, Source, claim_of, with_claims
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.next_visible import rouse_groups
from veilmq.engines.postgres.on_queue import retention_ms
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.watches import Watches

_SILENCE_MS = SOURCE_SILENCE_S * SECOND_MS
_PAUSE_MS = 5
_STATEMENTS = {
    (True, False): "delete_some",
    (True, True): "delete_some_fifo",
    (False, False): "give_back_some",
    (False, True): "give_back_some_fifo",
}


class Endings:
    """Ends claims, and does the slices that this node comes to."""

    def __init__(self, *, database: Database, watches: Watches, options: PostgresOptions, totals: Totals) -> None:
        """``watches`` hears of what came back, and of groups that are free; ``totals`` of what was deleted."""
        self._totals = totals
        self._database = database
        self._watches = watches
        self._rows = options.claim_slice_rows

    # In the transaction of a command, which holds the locks of the sources.

    async def end(self, connection: Any, claims: list[BoundClaim], state: str, *, forgotten: bool = False) -> None:
        """End open claims in that state, and do a first slice; ``forgotten`` by their source."""
        held = [claim.id for claim in claims if claim.is_held]
        if held:
            await connection.execute(SQL["end_claims"], held, state, forgotten)
            await self.advance(connection, await connection.fetchrow(SQL["lock_claim"], held[0]))

    async def expire(self, connection: Any, source: Source) -> Source:
        """Return the source as it is, its claims lost if its hold has ended."""
        if not source.hold_has_ended:
            return source
        await self.end(connection, source.held, ClaimState.LOST.value)
        return source.as_expired()

    async def detach(self, connection: Any, claims: list[BoundClaim]) -> None:
        """Part claims that have ended from their source: each is forgotten when its messages are gone or back."""
        ids = [claim.id for claim in claims]
        await connection.execute(SQL["detach"], ids)
        await connection.execute(SQL["forget_ended"], ids)

    async def advance(self, connection: Any, row: Any) -> Queue | None:
        """Do a slice for the claim of ``row``, which is locked; return its queue, ``None`` where that is gone."""
        claim = claim_of(row)
        found = await connection.fetchrow(SQL["queue_of"], claim.origin)
        queue = None if found is None else queue_of(found)
        done = 0 if queue is None else await self._slice(connection, claim, queue)
        if done < self._rows:
            await connection.execute(SQL["drop_claim" if row["source"] is None else "ended"], claim.id)
        return queue

    async def _slice(self, connection: Any, claim: BoundClaim, queue: Queue) -> int:
        is_deleted, is_fifo = claim.state == ACKNOWLEDGED, queue.settings.fifo
        terms = [claim.partition, claim.id, self._rows]
        if is_fifo or not is_deleted:
            terms.append(retention_ms(queue))
        done = int(await connection.fetchval(SQL[_STATEMENTS[is_deleted, is_fifo]], *terms))
        if is_deleted:
            self._totals.deleted[queue.number] += done
        return done

    async def advance_of(self, connection: Any, queue: Queue) -> bool:
        """Do a slice for a claim of ``queue``, for whose groups somebody waits; tell whether there was one."""
        row = await connection.fetchrow(SQL["ending_of"], queue.origin)
        if row is None:
            return False
        await self.advance(connection, row)
        return True

    # By itself.

    async def step(self) -> int | None:
        """See whose hold has ended, and do a slice; return in how many ms there is more to do, ``None`` for never."""
        async with self._database.connection() as connection:
            async with connection.transaction():
                looked = await self._look(connection)
            async with connection.transaction():
                row = await connection.fetchrow(SQL["ending"])
                queue = None if row is None else await self.advance(connection, row)
            for each in (looked, queue):
                if each is not None:
                    await self.tell(connection, each)
            due_ms: int | None = await connection.fetchval(SQL["next_look"])
        return None if due_ms is None else due_ms if due_ms > 0 else _PAUSE_MS

    async def _look(self, connection: Any) -> Queue | None:
        """Look at the source that is due: whether its hold has ended, or its time."""
        row = await connection.fetchrow(SQL["due_source"])
        if row is None:
            return None
        source = await with_claims(connection, row)
        forgotten_ms = source.beat_at_ms + _SILENCE_MS
        if source.held and not source.hold_has_ended:
            await connection.execute(SQL["look_later"], source.origin, source.name, source.beat_at_ms + source.hold_ms)
            return None
        if not source.held and source.now_ms >= forgotten_ms:
            await self.detach(connection, list(source.claims.values()))
            await connection.execute(SQL["delete_source"], source.origin, source.name)
            return None
        await self.expire(connection, source)
        await connection.execute(SQL["look_later"], source.origin, source.name, forgotten_ms)
        found = await connection.fetchrow(SQL["queue_of"], source.origin)
        return None if found is None else queue_of(found)

    async def tell(self, connection: Any, queue: Queue) -> None:
        """Tell who waits for ``queue`` that messages came back, that groups are free, or that more may be claimed."""
        if queue.settings.fifo:
            await rouse_groups(connection, queue, self._watches)
        else:
            self._watches.wake(queue.name, await connection.fetchval(SQL["now"]))

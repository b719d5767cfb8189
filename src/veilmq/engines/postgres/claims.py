"""Claims: the commands of ``core.claims``.

Each is a transaction that holds the lock of its source's row, whichever node it comes to; reading needs none. A claim
is bound in slices by as many commands (``claim_binding``), and ends in slices (``claim_endings``).
"""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from veilmq.core import claims, limits
from veilmq.core.claims import ClaimState, SourceView
from veilmq.core.commands import Command
from veilmq.core.errors import (
    ClaimGap,
    ClaimLost,
    ClaimReleased,
    ConsumerTaken,
    EpochFenced,
    InternalError,
    SourceNotFound,
)
from veilmq.core.limits import SECOND_MS
from veilmq.core.ports import Clock
from veilmq.engines.postgres import claim_reads
from veilmq.engines.postgres.catalog import Catalog, Queue
from veilmq.engines.postgres.claim_binding import Binding, Wish
from veilmq.engines.postgres.claim_endings import Endings
from veilmq.engines.postgres.claim_ready import Ready
from veilmq.engines.postgres.claim_rows import (
    ACKNOWLEDGED,
    SQL,
    Backlog,
    BoundClaim,
    Source,
    claim_of,
    ready,
    seen,
    source_of,
    with_claims,
)
from veilmq.engines.postgres.database import Database
from veilmq.engines.postgres.evictions import Evictions
from veilmq.engines.postgres.mover import Mover
from veilmq.engines.postgres.next_visible import next_visible_ms
from veilmq.engines.postgres.on_queue import COLLISIONS, COLLISIONS_MAX, PartitionRetired
from veilmq.engines.postgres.options import PostgresOptions
from veilmq.engines.postgres.positions import Positions
from veilmq.engines.postgres.totals import Totals
from veilmq.engines.postgres.watches import Watches

Work = Callable[[Any, Queue, Any, set[str]], Awaitable[Any]]
"""Carries out a command in a transaction; adds to the last term the names of queues that somebody is to hear of."""


class Claims:
    """The commands on sources, at one node."""

    def __init__(
        self,
        *,
        database: Database,
        catalog: Catalog,
        watches: Watches,
        positions: Positions,
        options: PostgresOptions,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], None],
        totals: Totals,
    ) -> None:
        """``watches`` hears of what comes back; dead letters get some of the ``positions``.

        ``start`` makes a task of the engine.
        """
        self._database = database
        self._catalog = catalog
        self._watches = watches
        self._claimed_max = options.claimed_max
        self._ready = Ready()
        self._binding = Binding(catalog=catalog, positions=positions, options=options, totals=totals)
        self._endings = Endings(database=database, watches=watches, options=options, totals=totals)
        self._evictions = Evictions(catalog=catalog, positions=positions)
        self.mover = Mover(step=self._endings.step, clock=clock, start=start, pause_ms_min=1)
        """Ends holds, and does the slices that no command does."""

    @property
    def handlers(self) -> dict[type[Command], Callable[[Any], Awaitable[Any]]]:
        """What carries out each command."""
        handlers: dict[type[Command], Work] = {
            claims.OpenSource: self._open,
            claims.Claim: self._claim,
            claims.Heartbeat: self._heartbeat,
            claims.AcknowledgeClaims: self._acknowledge,
            claims.ReleaseClaim: self._release,
            claims.EvictMessage: self._evict,
            claims.CloseSource: self._close,
        }
        return {
            **{kind: self._handler(work) for kind, work in handlers.items()},
            claims.ReadClaim: self.read,
            claims.ListSources: self.list_sources,
        }

    def _handler(self, work: Work) -> Callable[[Any], Awaitable[Any]]:
        async def handle(command: Any) -> Any:
            return await self._do(work, command)

        return handle

    async def _do(self, work: Work, command: Any) -> Any:
        """Have ``work`` done in a transaction, which is repeated where nodes were in each other's way."""
        async with self._database.connection() as connection:
            for _ in range(COLLISIONS_MAX):
                touched: set[str] = set()
                try:
                    async with connection.transaction():
                        queue = await self._catalog.sure(connection, command.queue)
                        answer = await work(connection, queue, command, touched)
                except (*COLLISIONS, PartitionRetired):
                    continue
                for name in touched:
                    await self._tell(connection, queue, name)
                self.mover.look()
                return answer
        raise InternalError

    async def _tell(self, connection: Any, queue: Queue, name: str) -> None:
        """Tell who waits for the queue of that name: ``queue``, or that of its dead letters, wherever it is."""
        if name != queue.name:
            self._watches.wake(name, await connection.fetchval(SQL["now"]))
            return
        await self._endings.tell(connection, queue)

    # Sources.

    async def _source(self, connection: Any, queue: Queue, name: str, touched: set[str]) -> Source:
        """Lock the source and return it as it is now; raises ``SourceNotFound``."""
        row = await connection.fetchrow(SQL["lock_source"], queue.origin, name)
        if row is None:
            raise SourceNotFound(name)
        return await self._expired(connection, queue, await with_claims(connection, row), touched)

    async def _expired(self, connection: Any, queue: Queue, source: Source, touched: set[str]) -> Source:
        if source.hold_has_ended:
            touched.add(queue.name)
        return await self._endings.expire(connection, source)

    async def _fenced(self, connection: Any, queue: Queue, command: Any, touched: set[str]) -> Source:
        """Return the source if that is its epoch; raises ``EpochFenced``."""
        source = await self._source(connection, queue, command.source, touched)
        if command.epoch != source.epoch:
            raise EpochFenced(command.epoch, source.epoch)
        return source

    async def _beat(
        self, connection: Any, queue: Queue, source: str, *, hold_s: int | None = None, lease_s: int | None = None
    ) -> Any:
        """Renew lease and hold, of other lengths where they are given; return the source's row."""
        lengths_ms = [None if each is None else each * SECOND_MS for each in (hold_s, lease_s)]
        return await connection.fetchrow(SQL["beat"], queue.origin, source, *lengths_ms)

    async def _view(self, connection: Any, queue: Queue, row: Any) -> SourceView:
        return seen(await with_claims(connection, row), ready=await ready(connection, queue))

    async def _view_of(self, connection: Any, queue: Queue, name: str) -> SourceView:
        return await self._view(connection, queue, await connection.fetchrow(SQL["see_source"], queue.origin, name))

    # The commands of readers.

    async def _open(self, connection: Any, queue: Queue, command: claims.OpenSource, touched: set[str]) -> SourceView:
        await connection.execute(SQL["serialize"], queue.origin)
        rows = await connection.fetch(SQL["lock_sources"], queue.origin, command.source, command.consumer)
        await self._lock_part(connection, queue)
        ours = next((row for row in rows if row["name"] == command.source), None)
        if ours is None:
            await connection.execute(SQL["add_source"], queue.origin, command.source)
        else:
            await self._expired(connection, queue, await with_claims(connection, ours), touched)
        rivals = [
            await self._expired(connection, queue, await with_claims(connection, row), touched)
            for row in rows
            if row["name"] != command.source
        ]
        taken = next((rival for rival in rivals if rival.held), None)
        if taken is not None and not command.takeover:
            raise ConsumerTaken(command.consumer, taken.name)
        for rival in rivals:
            await self._fence(connection, queue, rival, touched)
        await connection.execute(SQL["begin_epoch"], queue.origin, command.source, command.consumer)
        row = await self._beat(connection, queue, command.source, hold_s=command.hold_s, lease_s=command.lease_s)
        return await self._view(connection, queue, row)

    async def _fence(self, connection: Any, queue: Queue, rival: Source, touched: set[str]) -> None:
        """Have another source take its place: its epoch is over, its claims are released."""
        await connection.execute(SQL["begin_epoch"], queue.origin, rival.name, "")
        await self._endings.end(connection, rival.held, ClaimState.RELEASED.value)
        if rival.held:
            touched.add(queue.name)

    async def _heartbeat(
        self, connection: Any, queue: Queue, command: claims.Heartbeat, touched: set[str]
    ) -> SourceView:
        await self._fenced(connection, queue, command, touched)
        row = await self._beat(connection, queue, command.source, hold_s=command.hold_s, lease_s=command.lease_s)
        return seen(await with_claims(connection, row), ready=await self._ready.lately(connection, queue))

    async def _claim(self, connection: Any, queue: Queue, command: claims.Claim, touched: set[str]) -> claims.Bound:
        source = await self._fenced(connection, queue, command, touched)
        number = command.number
        if number > source.last + 1:
            raise ClaimGap(number, source.last)
        await self._lock_part(connection, queue)
        again = number <= source.last
        if again:
            claim = source.open_claim(number)
        else:
            await self._settle(connection, source.claims.get(source.last))
            added = await connection.fetchrow(SQL["add_claim"], queue.origin, queue.partition, source.name, number)
            claim = claim_of(added)
        more = False
        if claim.state == ClaimState.BINDING.value:
            claim, more = await self._bind(connection, queue, claim, command, touched, again=again)
        if not claim.shards:
            await connection.execute(SQL["drop_claim"], claim.id)
            return await self._nothing(connection, queue, number)
        await connection.execute(SQL["bound_last"], queue.origin, source.name, number)
        await self._beat(connection, queue, source.name)
        return claims.Bound(number=number, messages=claim.messages, shards=claim.shards, more=more, again=again)

    async def _lock_part(self, connection: Any, queue: Queue) -> None:
        if await connection.fetchrow(SQL["lock_part"], queue.partition) is None:
            raise PartitionRetired

    async def _bind(
        self, connection: Any, queue: Queue, claim: BoundClaim, command: claims.Claim, touched: set[str], *, again: bool
    ) -> tuple[BoundClaim, bool]:
        """Bind a slice; return the claim, whole if there is no more of it, and whether there is."""
        shard_messages = max(command.shard_messages, -(-command.messages_max // limits.CLAIM_SHARDS_MAX))
        places = await self._places(connection, queue)
        wanted = min(command.messages_max - claim.messages, places)
        wish = Wish(wanted, shard_messages, command.bytes_max)
        done = await self._binding.bind(connection, queue, claim, wish)
        if done.letters_to is not None:
            touched.add(done.letters_to.name)
        claim = done.claim
        if not again and not claim.messages:
            return claim._replace(shards=0), False
        if not done.more:
            claim = claim_of(await connection.fetchrow(SQL["make_whole"], claim.id))
        return claim, done.more

    async def _places(self, connection: Any, queue: Queue) -> int:
        return max(0, self._claimed_max - int(await connection.fetchval(SQL["claimed"], queue.origin)))

    async def _settle(self, connection: Any, claim: BoundClaim | None) -> None:
        """Let the claim be whole with what it has, if it is not."""
        if claim is not None and claim.state == ClaimState.BINDING.value:
            await connection.execute(SQL["make_whole"], claim.id)

    async def _nothing(self, connection: Any, queue: Queue, number: int) -> claims.Bound:
        if queue.settings.fifo and await self._endings.advance_of(connection, queue):
            # All groups may be blocked by that claim.
            return claims.Bound(number=number, messages=0, shards=0, more=True)
        due_ms = None
        if await self._places(connection, queue):  # the end of a claim tells
            due_ms = await next_visible_ms(connection, queue)
        return claims.Bound(number=number, messages=0, shards=0, next_due_ms=due_ms)

    async def _acknowledge(
        self, connection: Any, queue: Queue, command: claims.AcknowledgeClaims, touched: set[str]
    ) -> claims.Acknowledged:
        source = await self._fenced(connection, queue, command, touched)
        number = command.number
        if number > source.last:
            raise ClaimGap(number, source.last)
        if number <= source.acknowledged:
            lost = source.lost if number == source.acknowledged else []
            return claims.Acknowledged(acknowledged=source.acknowledged, lost=lost)
        covered = [claim for each, claim in source.claims.items() if each <= number]
        over = [claim for claim in covered if not claim.is_held]
        lost = [claim.number for claim in over]
        await connection.execute(SQL["acknowledge"], queue.origin, source.name, number, lost)
        await self._endings.detach(connection, over)
        await self._endings.end(connection, covered, ACKNOWLEDGED, forgotten=True)
        touched.add(queue.name)
        return claims.Acknowledged(acknowledged=number, lost=lost)

    async def read(self, command: claims.ReadClaim) -> claims.ClaimPage:
        """Tell messages of a claim; who reads a claim that is not whole has it whole as it is."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                claim = await self._readable(connection, queue, command)
                if claim.state == ClaimState.OPEN.value:
                    return await claim_reads.read(connection, queue, claim, command)
            await self._make_whole(connection, queue, command)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                claim = await self._readable(connection, queue, command)
                return await claim_reads.read(connection, queue, claim, command)

    async def _make_whole(self, connection: Any, queue: Queue, command: claims.ReadClaim) -> None:
        async with connection.transaction():
            if await connection.fetchrow(SQL["lock_source"], queue.origin, command.source) is not None:
                await self._settle(connection, await self._readable(connection, queue, command))

    async def _readable(self, connection: Any, queue: Queue, command: claims.ReadClaim) -> BoundClaim:
        """Return the claim as it is; raises what tells why there is no open one."""
        row = await connection.fetchrow(SQL["see_source"], queue.origin, command.source)
        if row is None:
            raise ClaimLost(command.number)
        source = await with_claims(connection, row)
        return (source.as_expired() if source.hold_has_ended else source).open_claim(command.number)

    # The commands of operators.

    async def list_sources(self, command: claims.ListSources) -> list[SourceView]:
        """Tell the sources, those with open claims first."""
        async with self._database.connection() as connection:
            queue = await self._catalog.sure(connection, command.queue)
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                rows = await connection.fetch(SQL["see_sources"], queue.origin, command.count)
                names = [row["name"] for row in rows]
                bound = await connection.fetch(SQL["see_claims"], queue.origin, names)
                visible = await ready(connection, queue) if rows else Backlog(0, None)
        sources = [source_of(row, [claim for claim in bound if claim["source"] == row["name"]]) for row in rows]
        return [seen(each.as_expired() if each.hold_has_ended else each, ready=visible) for each in sources]

    async def _release(
        self, connection: Any, queue: Queue, command: claims.ReleaseClaim, touched: set[str]
    ) -> SourceView:
        source = await self._source(connection, queue, command.source, touched)
        try:
            claim = source.open_claim(command.number)
        except ClaimReleased:
            return seen(source, ready=await ready(connection, queue))
        await self._endings.end(connection, [claim], ClaimState.RELEASED.value)
        touched.add(queue.name)
        return await self._view_of(connection, queue, source.name)

    async def _close(self, connection: Any, queue: Queue, command: claims.CloseSource, touched: set[str]) -> None:
        source = await self._source(connection, queue, command.source, touched)
        await self._endings.detach(connection, [claim for claim in source.claims.values() if not claim.is_held])
        await self._endings.end(connection, source.held, ClaimState.RELEASED.value, forgotten=True)
        await connection.execute(SQL["delete_source"], queue.origin, source.name)
        touched.add(queue.name)

    async def _evict(
        self, connection: Any, queue: Queue, command: claims.EvictMessage, touched: set[str]
    ) -> SourceView:
        source = await self._source(connection, queue, command.source, touched)
        claim = source.open_claim(command.number)
        target = await self._evictions.evict(connection, queue, claim, command.message)
        touched |= {queue.name, target.name}
        return await self._view_of(connection, queue, source.name)

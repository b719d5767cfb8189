"""Calls of one handler: each for those of its messages that are still ours, and were not done before.

How a message ends is decided here, for every one of them and whatever fails on the way: one that nobody ended would be
held, and renewed, for hours.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from veilmq.consumer.counts import Counts
from veilmq.consumer.deadline import Deadline
from veilmq.consumer.delivery import Delivery
from veilmq.consumer.handlers import Handler
from veilmq.consumer.hooks import Hooks
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.leases import LeaseState
from veilmq.consumer.outcomes import DONE, Ending, Kind, ending_of
from veilmq.consumer.pools import AsyncPool, Pool, ThreadPool
from veilmq.consumer.prefetch import Prefetch
from veilmq.consumer.process_pool import ProcessPool
from veilmq.consumer.records.keeper import keeper_of
from veilmq.consumer.remembered import Remembered
from veilmq.consumer.tracing import Tracing

_POOLS: Mapping[str, Callable[[Handler], Pool]] = {"async": AsyncPool, "thread": ThreadPool, "process": ProcessPool}

_log = logging.getLogger("veilmq.consumer")


class Handling:
    """Used in the event loop; ``at_work`` is how many calls there are now."""

    def __init__(
        self,
        handler: Handler,
        table: LeaseTable,
        counts: Counts,
        *,
        hooks: Hooks,
        prefetch: Prefetch,
        done_before: Remembered,
        tracing: Tracing | None,
    ) -> None:
        """``done_before`` has the ids of messages that are not to be handled again."""
        self._handler = handler
        self._table = table
        self._counts = counts
        self._hooks = hooks
        self._prefetch = prefetch
        self._done_before = done_before
        pool = _POOLS[handler.options.pool](handler)
        self._pool = pool if tracing is None else tracing.around(pool, handler)
        self._keeper = keeper_of(handler.options, table.clock, counts)
        self._cancelling = False
        self.at_work = 0

    @property
    def threads_at_work(self) -> int:
        """Return how many threads work for it."""
        in_handlers = 0 if self._handler.options.pool == "async" else self.at_work
        return in_handlers + (0 if self._keeper is None else self._keeper.at_work)

    def cancel(self) -> None:
        """Begin no handler any more; whoever runs is cancelled by its ``Delivery``."""
        self._cancelling = True

    def close(self) -> None:
        """End the pool and the threads."""
        self._pool.close()
        if self._keeper is not None:
            self._keeper.close()

    async def run(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        """Call the handler once, for as many of ``deliveries`` as it is to be called; return how each ended."""
        try:
            return await self._run(deliveries)
        except Exception as error:  # noqa: BLE001 - it has to end somehow, and comes back
            _log.exception("a call of the handler %s failed outside of it", self._handler.name)
            return [ending_of(error)] * len(deliveries)

    async def ended(self, delivery: Delivery, ending: Ending) -> None:
        """Bring what is recorded of ``delivery`` to what ``ending`` says, before that is carried out."""
        if self._keeper is not None:
            await self._keeper.end(delivery, ending)

    async def _run(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        known = {id(delivery): ending for delivery in deliveries if (ending := self._known(delivery)) is not None}
        fresh = [delivery for delivery in deliveries if id(delivery) not in known] if known else deliveries
        if self._keeper is not None:
            known |= await self._keeper.begin(fresh, too_late=lambda: self._cancelling)
            fresh = [delivery for delivery in fresh if id(delivery) not in known]
        if fresh:
            ended = await self._call(fresh)
            if not known:
                return ended
            known |= {id(delivery): ending for delivery, ending in zip(fresh, ended, strict=True)}
        return [known[id(delivery)] for delivery in deliveries]

    def _known(self, delivery: Delivery) -> Ending | None:
        """Return how ``delivery`` ends without its handler: it was done before, or is perhaps not ours any more."""
        if delivery.lease.state_at(self._table.clock.now_s()) is not LeaseState.HELD:
            return Ending(kind=Kind.LEFT)
        if delivery.message.id in self._done_before:
            self._counts.events["recognised"] += 1
            return DONE
        return None

    async def _call(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        deadlines = [self._start(delivery, loop) for delivery in deliveries]
        try:
            return await self._pool.run(deliveries)
        finally:
            took_s = loop.time() - began_s
            for delivery, deadline in zip(deliveries, deadlines, strict=True):
                deadline.cancel()
                delivery.interrupt = None
            self._prefetch.handled(took_s)
            self._counts.handle_time.add(took_s)

    def _start(self, delivery: Delivery, loop: asyncio.AbstractEventLoop) -> Deadline:
        self._table.start(delivery.lease)
        self._counts.events["started"] += 1
        self._counts.buffer_wait.add(self._table.clock.now_s() - delivery.lease.received_at_s)
        self._hooks.call("start", delivery.context)
        deadline = Deadline(delivery, self._handler.options, loop)
        if self._handler.options.stall_s is not None:
            delivery.context.on_progress = deadline.progress
        return deadline

"""One handler at work on its queue: receives, schedules, has it called (``handling``), settles.

Everything here happens in the event loop's thread; what blocks is sent to threads of this runner's own. ``_held`` has
every message from its receive to its settle.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from veilmq.client.sqs import QueueClient
from veilmq.consumer.context import Context, TableLease
from veilmq.consumer.counts import Counts
from veilmq.consumer.delivery import Delivery
from veilmq.consumer.endings import Endings
from veilmq.consumer.gathering import Gathering
from veilmq.consumer.handlers import Handler
from veilmq.consumer.handling import Handling
from veilmq.consumer.hooks import Hooks
from veilmq.consumer.intake import Intake, Receiver
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.leases import Lease, LeaseState, Subscription
from veilmq.consumer.logged import about
from veilmq.consumer.outcomes import Cause, Ending, Kind, ending_of
from veilmq.consumer.outstanding import Outstanding
from veilmq.consumer.prefetch import Prefetch
from veilmq.consumer.schedule import Schedule
from veilmq.consumer.settler import LINGER_S, Settler
from veilmq.consumer.threads import Threads
from veilmq.consumer.tracing import Tracing
from veilmq.core.limits import SECOND_MS, SQS_RECEIVE_COUNT

OPEN_MAX = 1_000
"""Messages held at once, those included whose deletes are on their way; far below what a queue has in flight."""
BEHIND_MAX = 10
"""Messages that may wait behind another of their FIFO group, for each slot: a queue gives many of one at once,
and they must not keep other groups from the slots.
"""

_THREADS_TO_SETTLE = 4  # with the default polls as many as connections are kept
_GOING_ON = (Kind.DONE, Kind.DROPPED, Kind.REJECT)
_CAUSES = {LeaseState.LOST: Cause.LOST, LeaseState.ENDED: Cause.ENDED}

_log = logging.getLogger("veilmq.consumer")


class Runner:
    """Made, started and stopped by ``Running``."""

    def __init__(
        self,
        handler: Handler,
        client: QueueClient,
        table: LeaseTable,
        *,
        hooks: Hooks,
        failed: Callable[[Exception], object],
        tracing: Tracing | None = None,
        create: bool = False,
    ) -> None:
        """``failed`` is told what makes the queue impossible to consume; ``tracing`` traces the handler.

        With ``create`` its queues are made where they are missing.
        """
        options = handler.options
        self.handler = handler
        self.counts = Counts()
        self._client = client
        self._table = table
        self._hooks = hooks
        self._receiver = Receiver(client, options, table, create=create)
        self._threads = Threads(f"veilmq-io-{options.queue}", options.polls + _THREADS_TO_SETTLE)
        linger_s = 0.0 if self._receiver.fifo else LINGER_S
        self._settler = Settler(client, options.queue, table, self._in_thread, linger_s=linger_s)
        self._endings = Endings(client, options, table, self._settler, self.counts, self._in_thread)
        self._schedule = Schedule(ordered=self._receiver.fifo)
        self._gathering = Gathering(self._schedule, handler, wake=self._begin, failed=self._fail)
        self._prefetch = Prefetch(options.prefetch)
        self._handling = Handling(
            handler,
            table,
            self.counts,
            hooks=hooks,
            prefetch=self._prefetch,
            done_before=self._endings.remembered,
            tracing=tracing,
        )
        self._intake: Intake[Lease] = Intake(
            self._receive,
            room=self._room,
            taken=self._take,
            failed=failed,
            polls_max=options.polls,
            hang_up=client.hang_up,
        )
        self._held: dict[int, Delivery] = {}
        self._outstanding = Outstanding(options.max_outstanding_bytes)
        self.lease_s = 0
        """The timeout with which the latest message was received; 0 before the first."""
        self._working = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False
        self.abandoned = 0
        self._changed = asyncio.Event()

    @property
    def subscription(self) -> Subscription:
        """What the leases of this handler's messages have in common."""
        return self._receiver.subscription

    @property
    def held(self) -> int:
        """Return how many messages are in our hands, from receive to settle."""
        return len(self._held)

    @property
    def working(self) -> int:
        """Return how many messages are in the hands of handlers."""
        return self._working

    @property
    def waiting(self) -> int:
        """Return how many messages wait for a slot."""
        return len(self._schedule) + len(self._gathering)

    @property
    def threads_at_work(self) -> int:
        """Return how many threads of ours have a call in work, of handlers too."""
        return self._handling.threads_at_work + self._threads.at_work

    @property
    def polling(self) -> int:
        """Return how many polls are on their way."""
        return self._intake.polling

    def start(self) -> None:
        """Begin to receive."""
        self._intake.fill()

    def owns(self, lease: Lease) -> bool:
        """Tell whether ``lease`` is of this runner's messages."""
        return lease.subscription is self._receiver.subscription

    # ------------------------------------------------------------------------------------------------- its end

    async def stop_intake(self) -> None:
        """Receive no more, and release what no handler has begun, with what the last polls bring."""
        self._stopping = True
        self._give_back([*self._gathering.drain(), *self._schedule.drain()])
        await self._intake.stop()

    async def idle(self) -> None:
        """Return when nothing is in our hands."""
        while self._held:
            self._changed.clear()
            await self._changed.wait()

    async def worked(self) -> None:
        """Return when no handler runs."""
        while self._working:
            self._changed.clear()
            await self._changed.wait()

    def cancel(self) -> None:
        """Stop all handlers."""
        self._handling.cancel()
        for delivery in list(self._held.values()):
            delivery.cancel(Cause.SHUTDOWN)

    async def abandon(self) -> None:
        """Release what handlers did not let go of; how they end means nothing any more."""
        stuck = [delivery for delivery in self._held.values() if delivery.interrupt is not None]
        self.abandoned = len(stuck)
        for delivery in stuck:
            delivery.given_up = True
            text = "message %s: the handler did not stop; it is released"
            _log.error(text, delivery.message.id, extra=about(delivery.lease))
        await self._settler.release([delivery.lease for delivery in stuck])
        for delivery in stuck:
            self._forget(delivery)

    async def settled(self) -> None:
        """Return when every delete and release has been answered."""
        self._settler.flush()
        await self.idle()

    def close(self) -> None:
        """End the pool and the threads."""
        self._handling.close()
        self._threads.close()

    async def is_drained(self) -> bool:
        """Return whether the queue has nothing visible, as far as the server knows, and nothing is in our hands.

        What is in flight there may be on its way to us, so then the polls of now are answered first.
        """
        if self.held:
            return False
        status = await self._in_thread(partial(self._client.show, self.handler.options.queue))
        if status.visible:
            return False
        if status.in_flight:
            await self._intake.answered()
        return not self.held

    # ------------------------------------------------------------------------------------------------- its leases

    def lease_changed(self, lease: Lease, state: LeaseState) -> None:
        """Take in what the renewer found out."""
        delivery = self._held.get(lease.number)
        if delivery is None:
            return
        self.counts.events[state.value] += 1
        self._hooks.call("suspect" if state is LeaseState.SUSPECT else "lost", delivery.context)
        _log.warning("message %s: its lease is %s", delivery.message.id, state.value, extra=about(lease))
        if state is LeaseState.SUSPECT:
            return
        if delivery.interrupt is not None:
            self._on_lost(delivery, _CAUSES[state])
        elif lease.started_at_s is None:
            self._drop(delivery)

    def lease_renewed(self, lease: Lease) -> None:
        """Tell who watches."""
        delivery = self._held.get(lease.number)
        if delivery is not None:
            self._hooks.call("renew", delivery.context)

    def lease_ending(self, lease: Lease, left_s: float) -> None:
        """Say that the twelve hours of a message are nearly over."""
        delivery = self._held.get(lease.number)
        if delivery is not None:
            text = "message %s: its lease ends for good in %.0f s"
            _log.warning(text, delivery.message.id, left_s, extra=about(lease))
            self._hooks.call("ending", delivery.context, left_s)

    def _on_lost(self, delivery: Delivery, cause: Cause) -> None:
        on_lost = self.handler.options.on_lost
        if callable(on_lost):
            on_lost(delivery.context)
        elif on_lost == "cancel":
            delivery.cancel(cause)

    def _drop(self, delivery: Delivery) -> None:
        """Let go of a message that no handler has begun, and give back what waits behind it in its group."""
        self._gathering.remove(delivery)
        behind = self._schedule.remove(delivery)
        self._table.settle(delivery.lease)
        self._forget(delivery)
        self._give_back(behind)

    # ------------------------------------------------------------------------------------------------- its messages

    def _room(self) -> int:
        options = self.handler.options
        batching = self.handler.batching
        slots = options.concurrency * (batching.size_max if batching else 1)
        ready = self._schedule.ready + len(self._gathering)
        free = slots + self._prefetch.target(slots, lease_s=self.lease_s) - self._working - ready
        if ready and free < SQS_RECEIVE_COUNT.maximum:
            return 0  # a whole batch for one request is worth waiting for while there is something to do
        behind = self._schedule.behind
        return self._outstanding.room(min(free, slots * BEHIND_MAX - behind, OPEN_MAX - len(self._held)))

    async def _receive(self, count: int) -> list[Lease]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        leases: list[Lease] = await self._in_thread(partial(self._receiver.receive, count))
        if leases:
            self.lease_s = leases[0].timeout_s
        if len(leases) == count:  # it did not wait for more
            self._prefetch.received(loop.time() - began_s)
        return leases

    def _take(self, leases: Sequence[Lease]) -> None:
        deliveries = [Delivery(lease, Context(lease.message, TableLease(lease, self._table))) for lease in leases]
        for delivery in deliveries:
            self._held[delivery.lease.number] = delivery
            self._outstanding.add(delivery.message)
            self._count_received(delivery)
        if self._stopping:
            self._give_back(deliveries)
            return
        for delivery in deliveries:
            self._schedule.add(delivery)
        self._begin()

    def _count_received(self, delivery: Delivery) -> None:
        message, events = delivery.message, self.counts.events
        events["received"] += 1
        if message.receive_count > 1:
            events["redelivered"] += 1
        else:
            self.counts.queue_wait.add((message.first_received_at_ms - message.sent_at_ms) / SECOND_MS)
        self._hooks.call("receive", delivery.context)

    def _begin(self) -> None:
        while self._handling.at_work < self.handler.options.concurrency and not self._stopping:
            deliveries = self._gathering.next()
            if not deliveries:
                break
            self._handling.at_work += 1
            self._working += len(deliveries)
            self._spawn(self._work(deliveries))

    async def _work(self, deliveries: list[Delivery]) -> None:
        try:
            endings = await self._handling.run(deliveries)
        finally:
            self._handling.at_work -= 1
            self._working -= len(deliveries)
            self._changed.set()
        self._begin()
        self._intake.fill()
        if len(deliveries) == 1:
            await self._settle(deliveries[0], endings[0])
        else:
            await asyncio.gather(*map(self._settle, deliveries, endings))

    def _fail(self, delivery: Delivery, error: Exception) -> None:
        """End a message that came to no call of the handler."""
        self._spawn(self._settle(delivery, ending_of(error)))

    async def _settle(self, delivery: Delivery, ending: Ending) -> None:
        if delivery.given_up:
            return
        if ending.kind not in _GOING_ON:
            await self._release([*self._schedule.failed(delivery)])
        await self._handling.ended(delivery, ending)
        gone = await self._endings.end(delivery, ending)
        self.counts.hold_time.add(self._table.clock.now_s() - delivery.lease.received_at_s)
        self._hooks.call("settle", delivery.context, ending)
        self._forget(delivery)
        if gone or not self._receiver.fifo:
            self._schedule.done(delivery)
            self._begin()
        else:
            await self._release(self._schedule.failed(delivery))

    def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            self._spawn(self._release(deliveries))

    async def _release(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            await self._settler.release([delivery.lease for delivery in deliveries])
            self.counts.events["released"] += len(deliveries)
        for delivery in deliveries:
            self._hooks.call("release", delivery.context)
            self._forget(delivery)

    def _forget(self, delivery: Delivery) -> None:
        if self._held.pop(delivery.lease.number, None) is not None:
            self._outstanding.remove(delivery.message)
        self._changed.set()
        if not self._intake.polling:
            self._intake.fill()  # it was settling that we had no room for

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _in_thread(self, call: Callable[[], Any]) -> Awaitable[Any]:
        return asyncio.wrap_future(self._threads.submit(call))

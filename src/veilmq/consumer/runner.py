"""One handler at work on its queue: receives, calls the handler, settles.

Everything here happens in the event loop's thread; what blocks is sent to threads of this runner's own. ``_held`` has
every message from its receive to its settle.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from veilmq.client.sqs import QueueClient
from veilmq.consumer.clock import Threads
from veilmq.consumer.context import DONE, Cause, Context, Delivery, Ending, EndingKind, LeaseView, about, ending_of
from veilmq.consumer.handlers import Handler, Hooks, Options, State
from veilmq.consumer.intake import HandlerBatches, Intake, Outstanding, Prefetch, Receiver, Schedule
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable, Subscription
from veilmq.consumer.lifespan import Middleware
from veilmq.consumer.metrics import Counters
from veilmq.consumer.pools import Calls
from veilmq.consumer.records import Keeper
from veilmq.consumer.settling import LINGER_S, Settler
from veilmq.core.limits import SECOND_MS, SQS_RECEIVE_COUNT

_log = logging.getLogger("veilmq.consumer")


WARNED_SHARE = 0.8


class Deadline:
    """Armed while the handler of ``delivery`` runs."""

    __slots__ = ("_delivery", "_loop", "_options", "_stall", "_timer")

    def __init__(self, delivery: Delivery, options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._delivery = delivery
        self._options = options
        self._loop = loop
        self._timer = loop.call_later(options.timeout_s * WARNED_SHARE, self._warn)
        self._stall: asyncio.TimerHandle | None = None
        if options.stall_s is not None:
            self._stall = loop.call_later(options.stall_s, self._expire)

    def progress(self, done: float) -> None:
        """Begin anew to wait for progress; from any thread."""
        self._loop.call_soon_threadsafe(self._rearm)

    def cancel(self) -> None:
        """Be of no effect any more."""
        self._timer.cancel()
        if self._stall is not None:
            self._stall.cancel()

    def _rearm(self) -> None:
        if self._stall is not None and self._options.stall_s is not None and not self._stall.cancelled():
            self._stall.cancel()
            self._stall = self._loop.call_later(self._options.stall_s, self._expire)

    def _warn(self) -> None:
        timeout_s = self._options.timeout_s
        text, used_s = "message %s: the handler has used %.0f of its %.0f s", timeout_s * WARNED_SHARE
        _log.warning(text, self._delivery.message.id, used_s, timeout_s, extra=about(self._delivery.lease))
        self._timer = self._loop.call_later(timeout_s - used_s, self._expire)

    def _expire(self) -> None:
        text = "message %s: the handler timed out"
        _log.error(text, self._delivery.message.id, extra=about(self._delivery.lease))
        self._delivery.cancel(Cause.TIMEOUT)


OPEN_MAX = 1_000
"""Messages held at once, those included whose deletes are on their way; far below what a queue has in flight."""
BEHIND_MAX = 10
"""Messages that may wait behind another of their FIFO group, for each slot: a queue gives many of one at once,
and they must not keep other groups from the slots.
"""

_THREADS_TO_SETTLE = 4  # with the default polls as many as connections are kept
_GOING_ON = (EndingKind.DONE, EndingKind.DROPPED, EndingKind.REJECT)
_CAUSES = {LeaseState.LOST: Cause.LOST, LeaseState.ENDED: Cause.ENDED}


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
        middleware: Sequence[Middleware] = (),
        state: State | None = None,
        tracing: Any = None,
        create: bool = False,
    ) -> None:
        """``failed`` is called with what makes the queue impossible to consume; ``tracing`` traces the handler.

        ``middleware`` is from the outside in; ``state``, what the handler depends on, may be filled until the start.
        With ``create`` its queues are made where they are missing.
        """
        options = handler.options
        self.handler = handler
        self.counts = Counters()
        self.lease_s = 0
        """The timeout with which the latest message was received; 0 before the first."""
        self.working = 0
        """Messages in the hands of handlers."""
        self.abandoned = 0
        self._client = client
        self._table = table
        self._hooks = hooks
        self._receiver = Receiver(client, options, table, create=create)
        self._threads = Threads(f"veilmq-io-{options.queue}", options.polls + _THREADS_TO_SETTLE)
        linger_s = 0.0 if self._receiver.fifo else LINGER_S
        self._settler = Settler(client, options, table, self.counts, self._threads.run, linger_s=linger_s)
        self._schedule = Schedule(ordered=self._receiver.fifo)
        self._batches = HandlerBatches(
            self._schedule,
            handler,
            wake=self._begin,
            failed=lambda delivery, error: self._spawn(self._settle(delivery, ending_of(error))),
        )
        self._prefetch = Prefetch(options.prefetch)
        self._handling = Calls(handler, middleware, {} if state is None else state)
        self._tracing = tracing
        self._keeper = None
        if (idempotency := options.idempotency) is not None:
            self._keeper = Keeper(
                idempotency, queue=options.queue, retry=options.retry, clock=table.clock, counts=self.counts
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
        self._calls = 0  # of the handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = self._cancelling = False
        self._changed = asyncio.Event()

    @property
    def subscription(self) -> Subscription:
        """What the leases of this handler's messages have in common."""
        return self._receiver.subscription

    @property
    def held(self) -> int:
        """Messages held, from receive to settle."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Messages that wait for a slot."""
        return len(self._schedule) + len(self._batches)

    @property
    def threads_at_work(self) -> int:
        """Threads of ours that have a call in work, of handlers too."""
        in_handlers = 0 if self.handler.options.pool == "async" else self._calls
        return in_handlers + self._threads.at_work + (0 if self._keeper is None else self._keeper.at_work)

    @property
    def polling(self) -> int:
        """Polls on their way."""
        return self._intake.polling

    def start(self) -> None:
        """Begin to receive."""
        self._intake.fill()

    # ------------------------------------------------------------------------------------------------- its end

    async def stop_intake(self) -> None:
        """Receive no more, and release what no handler has begun, with what the last polls bring."""
        self._stopping = True
        self._give_back([*self._batches.drain(), *self._schedule.drain()])
        await self._intake.stop()

    async def worked(self) -> None:
        """Return when no handler runs."""
        while self.working:
            self._changed.clear()
            await self._changed.wait()

    def cancel(self) -> None:
        """Stop all handlers, and begin none any more."""
        self._cancelling = True
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
        """Return when every delete and release has a reply: no message is held."""
        self._settler.flush()
        while self._held:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """End the pool and the threads."""
        self._handling.close()
        if self._keeper is not None:
            self._keeper.close()
        self._threads.close()

    async def is_drained(self) -> bool:
        """Return whether the queue has nothing visible, as far as the server knows, and no message is held.

        What is in flight there may be on its way to us, so then the polls of now are answered first.
        """
        if self._held:
            return False
        status = await self._threads.run(self._client.show, self.handler.options.queue)
        if status.visible:
            return False
        if status.in_flight:
            await self._intake.answered()
        return not self._held

    # ------------------------------------------------------------------------------------------------- its leases

    def lease_changed(self, lease: Lease, state: LeaseState) -> None:
        """Stop the handler whose lease is lost; let go of a message that no handler has begun, and of its group."""
        delivery = self._held.get(lease.number)
        if delivery is None:
            return
        self.counts.events[state.value] += 1
        self._hooks.call("suspect" if state is LeaseState.SUSPECT else "lost", delivery.context)
        _log.warning("message %s: its lease is %s", delivery.message.id, state.value, extra=about(lease))
        if state is LeaseState.SUSPECT:
            return
        on_lost = self.handler.options.on_lost
        if delivery.interrupt is None:
            if lease.started_at_s is None:
                self._batches.remove(delivery)
                behind = self._schedule.remove(delivery)
                self._table.settle(lease)
                self._forget(delivery)
                self._give_back(behind)
        elif callable(on_lost):
            on_lost(delivery.context)
        elif on_lost == "cancel":
            delivery.cancel(_CAUSES[state])

    def call_hooks(self, name: str, lease: Lease, *more: object) -> None:
        """Call what watches ``name`` for the message of ``lease``, if it is held."""
        delivery = self._held.get(lease.number)
        if delivery is not None:
            self._hooks.call(name, delivery.context, *more)

    # ------------------------------------------------------------------------------------------------- its messages

    def _room(self) -> int:
        options = self.handler.options
        batching = self.handler.batching
        slots = options.concurrency * (batching.size_max if batching else 1)
        ready = self._schedule.ready + len(self._batches)
        free = slots + self._prefetch.target(slots, lease_s=self.lease_s) - self.working - ready
        if ready and free < SQS_RECEIVE_COUNT.maximum:
            return 0  # a whole batch for one request is worth waiting for while there is something to do
        behind = self._schedule.behind
        return self._outstanding.room(min(free, slots * BEHIND_MAX - behind, OPEN_MAX - len(self._held)))

    async def _receive(self, count: int) -> list[Lease]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        leases = await self._threads.run(self._receiver.receive, count)
        if leases:
            self.lease_s = leases[0].timeout_s
        if len(leases) == count:  # it did not wait for more
            self._prefetch.received(loop.time() - began_s)
        return leases

    def _take(self, leases: Sequence[Lease]) -> None:
        deliveries = [Delivery(lease, Context(lease.message, LeaseView(lease, self._table))) for lease in leases]
        events = self.counts.events
        for delivery in deliveries:
            message = delivery.message
            self._held[delivery.lease.number] = delivery
            self._outstanding.add(message)
            events["received"] += 1
            if message.receive_count > 1:
                events["redelivered"] += 1
            else:
                self.counts.queue_wait.add((message.first_received_at_ms - message.sent_at_ms) / SECOND_MS)
            self._hooks.call("receive", delivery.context)
        if self._stopping:
            self._give_back(deliveries)
            return
        for delivery in deliveries:
            self._schedule.add(delivery)
        self._begin()

    def _begin(self) -> None:
        while self._calls < self.handler.options.concurrency and not self._stopping:
            deliveries = self._batches.next()
            if not deliveries:
                break
            self._calls += 1
            self.working += len(deliveries)
            self._spawn(self._work(deliveries))

    async def _work(self, deliveries: list[Delivery]) -> None:
        try:
            endings = await self._handle(deliveries)
        except Exception as error:  # noqa: BLE001 - it has to end somehow, and returns
            _log.exception("a call of the handler %s failed outside of it", self.handler.name)
            endings = [ending_of(error)] * len(deliveries)
        finally:
            self._calls -= 1
            self.working -= len(deliveries)
            self._changed.set()
        self._begin()
        self._intake.fill()
        if len(deliveries) == 1:
            await self._settle(deliveries[0], endings[0])
        else:
            await asyncio.gather(*map(self._settle, deliveries, endings))

    async def _handle(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        """Call the handler once, for as many of ``deliveries`` as it is to be called; return how each ended."""
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
            return Ending(kind=EndingKind.LEFT)
        if delivery.message.id in self._settler.handled_ids:
            self.counts.events["recognised"] += 1
            return DONE
        return None

    async def _call(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        loop = asyncio.get_running_loop()
        began_s, options = loop.time(), self.handler.options
        deadlines: list[Deadline] = []
        for delivery in deliveries:
            self._table.start(delivery.lease)
            self.counts.events["started"] += 1
            self.counts.buffer_wait.add(self._table.clock.now_s() - delivery.lease.received_at_s)
            self._hooks.call("start", delivery.context)
            deadlines.append(deadline := Deadline(delivery, options, loop))
            if options.stall_s is not None:
                delivery.context.on_progress = deadline.progress
        try:
            if self._tracing is None:
                return await self._handling.run(deliveries)
            endings: list[Ending] = []
            with self._tracing.spans(deliveries, self.handler, endings):
                endings += await self._handling.run(deliveries)
            return endings
        finally:
            took_s = loop.time() - began_s
            for delivery, deadline in zip(deliveries, deadlines, strict=True):
                deadline.cancel()
                delivery.interrupt = None
            self._prefetch.handled(took_s)
            self.counts.handle_time.add(took_s)

    async def _settle(self, delivery: Delivery, ending: Ending) -> None:
        if delivery.given_up:
            return
        ending = self.handler.options.retry.decide(ending, delivery.attempt)
        if ending.kind not in _GOING_ON:
            await self._release(self._schedule.failed(delivery))
        if self._keeper is not None:
            await self._keeper.end(delivery, ending)
        gone = await self._settler.end(delivery, ending)
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

"""The runner of one handler: receives messages, calls the handler, and settles.

It runs in the event loop's thread, and blocking calls in threads of its own. ``_held`` has each message from receive to
settle.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any

from veilmq.client.sqs import QueueClient
from veilmq.consumer.clock import Threads
from veilmq.consumer.context import DONE, Cause, Context, Ending, EndingKind, ending_of
from veilmq.consumer.handlers import Handler, Hooks, Middleware, Options, State
from veilmq.consumer.intake import Intake, Schedule, affordable, body_bytes
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable, RenewalRequest, Subscription, Watcher
from veilmq.consumer.metrics import Counters
from veilmq.consumer.pools import POOLS
from veilmq.consumer.records import Keeper
from veilmq.consumer.renewal_policies import RenewalResult
from veilmq.consumer.settling import Settler
from veilmq.core.limits import SECOND_MS, SQS_RECEIVE_COUNT
from veilmq.wire.sqs.names import is_fifo

_log = logging.getLogger("veilmq.consumer")


CHECK_EVERY_S = 0.05
CANCEL_S = 2.0
CLOSING_S = 1.0
SETTLE_S_MAX = 30.0
WARNING_SHARE = 0.8


class Deadline:
    """The timers of a handler's call: its timeout, a warning before it, and the limit without progress (``stall``)."""

    def __init__(self, deliveries: Sequence[Context], options: Options, loop: asyncio.AbstractEventLoop) -> None:
        self._deliveries = deliveries
        stall_s, warning_s = options.stall_s, options.timeout_s * WARNING_SHARE

        def warn() -> None:
            for delivery in deliveries:
                text = "message %s: the handler has used %.0f of its %.0f s"
                delivery.lease.log(logging.WARNING, text, warning_s, options.timeout_s)
            self._timers[0] = loop.call_later(options.timeout_s - warning_s, self._expire)

        self._timers = [loop.call_later(warning_s, warn)]
        if stall_s is not None:
            self._timers.append(loop.call_later(stall_s, self._expire, "made no progress"))

            def rearm() -> None:
                if not self._timers[1].cancelled():
                    self._timers[1].cancel()
                    self._timers[1] = loop.call_later(stall_s, self._expire, "made no progress")

            for delivery in deliveries:
                delivery.on_progress = lambda done: loop.call_soon_threadsafe(rearm)

    def cancel(self) -> None:
        """Cancel the timers."""
        for timer in self._timers:
            timer.cancel()

    def _expire(self, why: str = "timed out") -> None:
        for delivery in self._deliveries:
            delivery.lease.log(logging.ERROR, "message %s: the handler %s", why)
            delivery.cancel(Cause.TIMEOUT)


HELD_MAX = 1_000
"""Messages held at once, including those whose deletes are pending; far below a queue's in-flight limit."""
BLOCKED_MAX = 10
"""Messages blocked by their FIFO group, for each slot. A receive may return many messages of one group; they must not
keep other groups from the slots.
"""

_SETTLE_THREADS = 4  # beside one for each poll
_REMOVES = (EndingKind.DONE, EndingKind.DROPPED, EndingKind.REJECT)  # the message leaves the queue


@dataclass(eq=False, kw_only=True)
class Runner(Watcher):
    """Receives for one handler, calls it and settles. ``Running`` creates, starts and stops it.

    ``failed`` is called with the error if the queue cannot be consumed. ``middleware`` is ordered from the
    outermost; ``state`` may be filled until the start. With ``create`` missing queues are created.
    """

    handler: Handler
    client: QueueClient
    table: LeaseTable
    hooks: Hooks
    failed: Callable[[Exception], object]
    middleware: Sequence[Middleware]
    state: State
    tracing: Any
    create: bool

    def __post_init__(self) -> None:
        options = self.handler.options
        self.counts = Counters()
        self.lease_s = 0  # of the last receive; 0 before the first
        self.working = 0  # messages in calls of the handler
        self.abandoned = 0
        self._threads = Threads(f"veilmq-io-{options.queue}", options.polls + _SETTLE_THREADS)
        self.subscription = Subscription(
            self.table,
            options.queue,
            options.policy,
            fifo=is_fifo(options.queue),
            strict=options.strict,
            cap_s=options.timeout_s,
            watcher=self,
        )
        self._intake = Intake(
            self.client,
            options,
            self.subscription,
            self._threads.run,
            capacity=self._capacity,
            received=self._received,
            failed=self.failed,
            create=self.create,
        )
        self._settler = Settler(self.client, options, self.table, self.counts, self._threads.run)
        self._schedule = Schedule(self.handler, ordered=self.subscription.fifo, wake=self._start_calls)
        self._pool = POOLS[options.pool](self.handler, self.middleware, self.state)
        self._keeper = None
        if (idempotency := options.idempotency) is not None:
            self._keeper = Keeper(idempotency, queue=options.queue, retry=options.retry, counts=self.counts)
        self._held: dict[Lease, Context] = {}
        self._held_bytes = self._received_bytes = 0  # of bodies
        self._calls = 0  # of the handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = self._cancelling = False
        self._progressed = asyncio.Event()  # a call ended or a message was settled

    @property
    def held(self) -> int:
        """Messages between receive and settle."""
        return len(self._held)

    @property
    def waiting(self) -> int:
        """Messages that wait for a slot."""
        return len(self._schedule)

    @property
    def threads_at_work(self) -> int:
        """Busy threads, including those of handlers."""
        in_handlers = 0 if self.handler.options.pool == "async" else self._calls
        return in_handlers + self._threads.at_work + (0 if self._keeper is None else self._keeper.at_work)

    @property
    def polling(self) -> int:
        """Polls in progress."""
        return len(self._intake.polls)

    def start(self) -> None:
        """Begin to receive. Each call of the handler gets a copy of the current context variables."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._intake.fill()

    async def stop(self, *, grace_s: float, skip_grace: asyncio.Event) -> None:
        """Stop in the order that ``app`` describes; ``skip_grace`` ends the grace period."""
        self._stopping = self._settler.stopping = True
        polled_s = asyncio.get_running_loop().time() + self.handler.options.wait_s
        self._spawn(self._release(self._schedule.drain()))
        polls, skipped = asyncio.ensure_future(self._intake.stop()), asyncio.ensure_future(skip_grace.wait())
        if not await self._wait_until(lambda: not self.working, grace_s, skipped):
            self._cancelling = True
            for delivery in list(self._held.values()):
                delivery.cancel(Cause.SHUTDOWN)
            if not await self._wait_until(lambda: not self.working, CANCEL_S):
                await self._abandon()
        # At most as long as a poll waits: the client would retry against a dead server for minutes.
        left_s = max(0.0, polled_s - asyncio.get_running_loop().time())
        await asyncio.wait([polls, skipped], timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        skipped.cancel()
        await asyncio.wait([polls], timeout=CANCEL_S)  # without grace, polls get as long as cancelled handlers
        polls.cancel()
        if not await self._wait_until(lambda: not self._held, SETTLE_S_MAX):
            _log.error("%d messages were not settled", self.held)

    async def _wait_until(self, holds: Callable[[], bool], timeout_s: float, *stop: "asyncio.Future[Any]") -> bool:
        """Wait until ``holds()``, the timeout, or one of ``stop``; return ``holds()``."""

        async def waiting() -> None:
            while not holds():
                self._progressed.clear()
                await self._progressed.wait()

        waiter = asyncio.ensure_future(waiting())
        await asyncio.wait([waiter, *stop], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        waiter.cancel()
        return holds()

    async def _abandon(self) -> None:
        """Release the messages of handlers that do not stop; their results will be ignored."""
        stuck = [delivery for delivery in self._held.values() if delivery.interrupt is not None]
        self.abandoned = len(stuck)
        for delivery in stuck:
            delivery.abandoned = True
            delivery.lease.log(logging.ERROR, "message %s: the handler did not stop; it is released")
        releasing = asyncio.ensure_future(self._settler.release([delivery.lease for delivery in stuck]))
        await asyncio.wait([releasing], timeout=SETTLE_S_MAX)
        for delivery in stuck:
            self._forget(delivery)

    def close(self) -> None:
        """End the pool and the threads. asyncio does not log tasks that do not stop: ``_abandon`` has."""
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._pool.close()
        if self._keeper is not None:
            self._keeper.close()
        self._threads.close()

    async def is_drained(self) -> bool:
        """Return whether the server reports no visible message and none is held here.

        A message in flight at the server may be in the reply to a poll in progress; so, while the server reports any,
        wait for these polls.
        """
        if self._held or self._intake.to_create:  # a queue that does not exist yet cannot be inspected
            return False
        show, queue = self.client.show, self.handler.options.queue
        status, polls = await self._threads.run(show, queue), set(self._intake.polls)
        while polls and status.in_flight and not status.visible:
            _, polls = await asyncio.wait(polls, timeout=CHECK_EVERY_S)
            status = await self._threads.run(show, queue)
        return not status.visible and not self._held

    def changed(self, lease: Lease, state: LeaseState) -> None:
        if self.tracing is not None:
            self.tracing.changed(lease, state)
        self._in_loop(self._changed, lease, state)

    def ending(self, lease: Lease, left_s: float) -> None:
        lease.log(logging.WARNING, "message %s: its lease reaches the limit of twelve hours in %.0f s", left_s)
        self._in_loop(self._call_hooks, "ending", lease, left_s)

    def renewed(self, requests: Sequence[RenewalRequest], results: Sequence[RenewalResult]) -> None:
        for request, result in zip(requests, results, strict=True):
            lease = request.lease
            if result not in (RenewalResult.RENEWED, RenewalResult.PROVEN) or lease.renewed_at_s != request.sent_at_s:
                continue  # it failed, or the lease ended before the reply
            if self._keeper is not None:
                self._keeper.renewed(lease)
            if self.hooks.has("renew"):
                self._in_loop(self._call_hooks, "renew", lease)
        if self.tracing is not None:
            self.tracing.renewed(requests, results)

    def _in_loop(self, call: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _changed(self, lease: Lease, state: LeaseState) -> None:
        """Stop the handler of a lost lease. If no handler has started, forget the message and release its group."""
        if (delivery := self._held.get(lease)) is None:
            return
        self.counts.events[state.value] += 1
        self.hooks.call("suspect" if state is LeaseState.SUSPECT else "lost", delivery)
        lease.log(logging.WARNING, "message %s: its lease is %s", state.value)
        if state is LeaseState.SUSPECT:
            return
        on_lost = self.handler.options.on_lost
        if delivery.interrupt is None:
            if lease.started_at_s is None:
                blocked = self._schedule.remove(delivery)
                self.table.settle(lease)
                self._forget(delivery)
                self._spawn(self._release(blocked))
        elif callable(on_lost):
            on_lost(delivery)
        elif on_lost == "cancel":
            delivery.cancel(Cause(state.value))

    def _call_hooks(self, name: str, lease: Lease, *more: object) -> None:
        if (delivery := self._held.get(lease)) is not None:
            self.hooks.call(name, delivery, *more)

    def _capacity(self) -> int:
        options = self.handler.options
        batching = self.handler.batching
        slots = options.concurrency * (batching.size_max if batching else 1)
        ready, blocked = self._schedule.ready, self._schedule.blocked
        free = slots + self._intake.prefetch.target(slots, lease_s=self.lease_s) - self.working - ready
        if ready and self._calls == options.concurrency and free < SQS_RECEIVE_COUNT.maximum:
            return 0  # there is work, so wait until one request can receive a full batch
        return affordable(
            min(free, slots * BLOCKED_MAX - blocked, HELD_MAX - len(self._held)),
            bytes_left=options.max_outstanding_bytes - self._held_bytes,
            received=self.counts.events["received"],
            received_bytes=self._received_bytes,
        )

    def _received(self, leases: Sequence[Lease]) -> None:
        deliveries = [Context(lease.message, lease) for lease in leases]
        events = self.counts.events
        for delivery in deliveries:
            message = delivery.message
            self.lease_s = delivery.lease.timeout_s
            self._held[delivery.lease] = delivery
            self._held_bytes += (size := body_bytes(message))
            self._received_bytes += size
            events["received"] += 1
            if message.receive_count > 1:
                events["redelivered"] += 1
            else:
                self.counts.queue_wait.add((message.first_received_at_ms - message.sent_at_ms) / SECOND_MS)
            self.hooks.call("receive", delivery)
        if self._stopping:
            self._spawn(self._release(deliveries))
            return
        for delivery in deliveries:
            try:
                self._schedule.add(delivery)
            except Exception as error:  # noqa: BLE001 - from the user's group_by, or its result is unhashable
                delivery.ending = ending_of(error)
                self._spawn(self._settle(delivery))
        self._start_calls()

    def _start_calls(self) -> None:
        while self._calls < self.handler.options.concurrency and not self._stopping:
            deliveries = self._schedule.next()
            if not deliveries:
                break
            self._calls += 1
            self.working += len(deliveries)
            # The caller may be the task of another call, so do not inherit its context.
            self._context.copy().run(self._spawn, self._process(deliveries))

    async def _process(self, deliveries: list[Context]) -> None:
        try:
            await self._handle(deliveries)
        except Exception as error:  # noqa: BLE001 - each delivery must be settled
            _log.exception("a call of the handler %s failed outside of it", self.handler.name)
            for delivery in deliveries:
                delivery.ending = ending_of(error)
        except asyncio.CancelledError as error:
            for delivery in deliveries:
                delivery.ending = ending_of(error)
            # Either the event loop is closing, or the handler cancelled its own task; then the loop will run this.
            self._loop.call_later(CLOSING_S, self._finish, deliveries)
            raise
        finally:
            self._calls -= 1
            self.working -= len(deliveries)
            self._progressed.set()
        self._finish(deliveries)

    def _finish(self, deliveries: Sequence[Context]) -> None:
        """Settle in other tasks than that of the handler, whose late cancellation would interrupt it."""
        self._start_calls()
        self._intake.fill()
        for delivery in deliveries:
            self._spawn(self._settle(delivery))

    async def _handle(self, deliveries: Sequence[Context]) -> None:
        """Set the ending of each delivery: call the handler once, for those that still need it."""
        for delivery in deliveries:
            if delivery.lease.state is not LeaseState.HELD:  # another consumer may have the message
                delivery.ending = Ending(kind=EndingKind.LEFT)
            elif delivery.message.id in self._settler.handled_ids:
                self.counts.events["recognised"] += 1
                delivery.ending = DONE
        fresh = [delivery for delivery in deliveries if delivery.ending is None]
        if self._keeper is not None:
            await self._keeper.begin(fresh)
            fresh = [delivery for delivery in fresh if delivery.ending is None]
            if self._cancelling:  # set while the records were created
                for delivery in fresh:
                    delivery.ending = Ending(kind=EndingKind.RELEASE)
                return
        if fresh:
            await self._call(fresh)

    async def _call(self, deliveries: Sequence[Context]) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for delivery in deliveries:
            self.table.start(delivery.lease)
            self.counts.events["started"] += 1
            self.counts.buffer_wait.add(self.table.clock.now_s() - delivery.lease.received_at_s)
            self.hooks.call("start", delivery)
        deadline = Deadline(deliveries, self.handler.options, loop)
        try:
            with nullcontext() if self.tracing is None else self.tracing.spans(deliveries, self.handler):
                await self._pool.run(deliveries)
        finally:
            took_s = loop.time() - began_s
            deadline.cancel()
            for delivery in deliveries:
                delivery.interrupt = None
                delivery.message = delivery.lease.message  # a middleware may have replaced it for the call
            self._intake.prefetch.handled(took_s)
            self.counts.handle_time.add(took_s)

    async def _settle(self, delivery: Context) -> None:
        if delivery.abandoned:
            return
        assert delivery.ending is not None
        try:
            ending = await self._settler.decide(delivery, delivery.ending)
            if ending.kind not in _REMOVES:
                await self._release(self._schedule.failed(delivery))
            if self._keeper is not None:
                await self._keeper.end(delivery, ending)
            removed = await self._settler.end(delivery, ending)
        except Exception as error:  # noqa: BLE001 - the user's backoff may raise anything
            delivery.lease.log(logging.ERROR, "message %s could not be settled; its lease runs out", exc_info=True)
            ending, removed = replace(ending_of(error), kind=EndingKind.LEFT), False
            self.table.settle(delivery.lease)
        self.counts.hold_time.add(self.table.clock.now_s() - delivery.lease.received_at_s)
        self.hooks.call("settle", delivery, ending)
        self._forget(delivery)
        if removed or not self.subscription.fifo:
            self._schedule.done(delivery)
            self._start_calls()
        else:
            await self._release(self._schedule.failed(delivery))

    async def _release(self, deliveries: Sequence[Context]) -> None:
        await self._settler.release([delivery.lease for delivery in deliveries])
        self.counts.events["released"] += len(deliveries)
        for delivery in deliveries:
            self.hooks.call("release", delivery)
            self._forget(delivery)

    def _forget(self, delivery: Context) -> None:
        if self._held.pop(delivery.lease, None) is not None:
            self._held_bytes -= body_bytes(delivery.message)
        self._progressed.set()
        if not self._intake.polls:
            self._intake.fill()  # the settle may have freed capacity

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

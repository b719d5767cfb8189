"""Records of the messages that one handler has in work.

A record is begun before the handler is, ends when the message's lease ends, and is extended with each renewal of that:
so whoever gets the message after a crash finds nothing in the way, and whoever gets it too early finds it BUSY. It is
DONE before the message is deleted, and forgotten before the message comes back.
"""

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from veilmq.consumer.backoff import Backoff
from veilmq.consumer.clock import Clock
from veilmq.consumer.counts import Counts
from veilmq.consumer.delivery import Delivery
from veilmq.consumer.handlers import Options
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.outcomes import DONE, Cause, Ending, Kind, ending_of
from veilmq.consumer.records.idempotency import Idempotency
from veilmq.consumer.records.port import Begun, Standing
from veilmq.consumer.threads import Threads

STORE_CALLS_MAX = 4

_FINISHED = (Kind.DONE, Kind.DROPPED)

_log = logging.getLogger("veilmq.consumer")


class _Record(NamedTuple):
    key: str
    owner: str


def keeper_of(options: Options, clock: Clock, counts: Counts) -> "Keeper | None":
    """Return the keeper of a handler with these options, ``None`` where it keeps no records."""
    if options.idempotency is None:
        return None
    return Keeper(options.idempotency, queue=options.queue, retry=options.retry, clock=clock, counts=counts)


class Keeper:
    """Used in the event loop; the store is called in threads of its own."""

    def __init__(self, idempotency: Idempotency, *, queue: str, retry: Backoff, clock: Clock, counts: Counts) -> None:
        """Keys are of ``queue``: another queue's handler does other work."""
        self._idempotency = idempotency
        self._prefix = queue.rpartition("/")[2]
        self._retry = retry
        self._clock = clock
        self._counts = counts
        self._threads = Threads(f"veilmq-records-{self._prefix}", STORE_CALLS_MAX)
        self._records: dict[int, _Record] = {}

    @property
    def at_work(self) -> int:
        """Return how many threads have a call of the store in work."""
        return self._threads.at_work

    async def begin(self, deliveries: Sequence[Delivery], *, too_late: Callable[[], bool]) -> dict[int, Ending]:
        """Return, by ``id``, how those end whose handler is not to run; all, if by then it is ``too_late`` to begin."""
        endings = await asyncio.gather(*map(self._begin, deliveries))
        if too_late():
            endings = [Ending(kind=Kind.RELEASE)] * len(deliveries)
        self._counts.events["recognised"] += sum(ending is DONE for ending in endings)
        return {
            id(delivery): ending for delivery, ending in zip(deliveries, endings, strict=True) if ending is not None
        }

    async def end(self, delivery: Delivery, ending: Ending) -> None:
        """Bring the record to what ``ending`` says, before that is carried out; without a record do nothing."""
        record = self._records.pop(delivery.lease.number, None)
        delivery.lease.on_renewed = None
        if record is None:
            return
        store, ttl_s = self._idempotency.store, self._idempotency.ttl_s
        try:
            if ending.kind in _FINISHED:
                await self._in_thread(partial(store.finish, record.key, for_s=ttl_s))
            else:
                await self._in_thread(partial(store.forget, record.key, owner=record.owner))
        except Exception:  # noqa: BLE001 - a store may raise anything; the record ends with the lease
            _log.exception("message %s: its record could not be written", delivery.message.id)

    def close(self) -> None:
        """Let the threads end."""
        self._threads.close()

    async def _begin(self, delivery: Delivery) -> Ending | None:
        try:
            key = self._idempotency.key(delivery.message)
        except Exception as error:  # noqa: BLE001 - the user's function may raise anything
            return ending_of(error)
        record = _Record(f"{self._prefix}:{key}", uuid.uuid4().hex)
        renewals = delivery.lease.renewals
        try:
            begun = await self._in_thread(partial(self._ask, record, delivery.lease))
        except Exception as error:  # noqa: BLE001 - a store may raise anything
            _log.exception("message %s: no record could be begun", delivery.message.id)
            return self._later(delivery, f"The store of records failed: {error}", 0.0)
        if begun.standing is Standing.DONE:
            return DONE
        if begun.standing is Standing.BUSY:
            return self._later(delivery, "Another worker is at this work.", begun.left_s)
        return self._keep(delivery, record, renewals)

    def _ask(self, record: _Record, lease: Lease) -> Begun:
        return self._idempotency.store.begin(record.key, owner=record.owner, for_s=self._left_s(lease))

    def _keep(self, delivery: Delivery, record: _Record, renewals: int) -> Ending | None:
        """Extend the record from now on, and at once if the lease was renewed since there were so many ``renewals``."""
        self._records[delivery.lease.number] = record
        renewed = partial(self._renewed, delivery, record, asyncio.get_running_loop())
        delivery.lease.on_renewed = renewed
        if delivery.lease.renewals != renewals:
            renewed()
        if delivery.lease.state_at(self._clock.now_s()) is not LeaseState.HELD:
            return Ending(kind=Kind.LEFT, reason="The lease ended while its record was begun.")
        return None

    def _later(self, delivery: Delivery, reason: str, after_s: float) -> Ending:
        """Come back, at a time that is named: it is not an attempt that failed, and no number of them rejects."""
        after_s = max(math.ceil(after_s), self._retry.after_s(delivery.attempt), 1)
        return Ending(kind=Kind.RETRY, after_s=after_s, reason=reason)

    def _renewed(self, delivery: Delivery, record: _Record, loop: asyncio.AbstractEventLoop) -> None:
        """Extend the record by as much as the lease; called in the renewer's thread, which must not wait."""
        self._threads.submit(partial(self._extend, delivery, record, loop))

    def _extend(self, delivery: Delivery, record: _Record, loop: asyncio.AbstractEventLoop) -> None:
        store, left_s = self._idempotency.store, self._left_s(delivery.lease)
        try:
            ours = store.extend(record.key, owner=record.owner, for_s=left_s) or self._is_begun_anew(delivery, record)
        except Exception:  # noqa: BLE001 - a store may raise anything; the next renewal tries again
            _log.exception("message %s: its record could not be extended", delivery.message.id)
            return
        if not ours:
            loop.call_soon_threadsafe(self._taken, delivery)

    def _is_begun_anew(self, delivery: Delivery, record: _Record) -> bool:
        """Begin a record that ended before it was extended, and tell whether that succeeded: nobody has begun it since.

        If the handler ends meanwhile, its end may have come before this begin, and then nothing is left of it.
        """
        number = delivery.lease.number
        if number not in self._records:
            return False
        ours = self._ask(record, delivery.lease).standing is Standing.OURS
        if ours and number not in self._records:
            self._idempotency.store.forget(record.key, owner=record.owner)
        return ours

    def _taken(self, delivery: Delivery) -> None:
        """Stop the handler: somebody else has begun, or done, its work."""
        if delivery.lease.number in self._records:
            _log.warning("message %s: its record is not ours any more", delivery.message.id)
            delivery.cancel(Cause.LOST)

    def _left_s(self, lease: Lease) -> float:
        return max(0.0, lease.remaining_s(self._clock.now_s()))

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._threads.submit(call))

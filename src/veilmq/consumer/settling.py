"""Ends messages at the server: deletes, releases, backoffs and dead letters, each with its lease until confirmed.

A delete waits for no renewal, whose later error means nothing. A release or a backoff does wait, since a renewal that
came after it would hide the message again; and it is only sent while the lease is held, because a receipt past its
deadline may release a message that another consumer works on. For the same reason one whose reply did not come is not
repeated once the first may have made the message visible.
"""

import asyncio
import logging
import math
import random
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from veilmq.client.messages import DEAD_RECEIPT_CODES, ClientError, ReceivedMessage
from veilmq.client.sqs import QueueClient
from veilmq.consumer.context import Context, Ending, EndingKind
from veilmq.consumer.handlers import Options
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable
from veilmq.consumer.metrics import Counters
from veilmq.consumer.renewal_policies import allowed_s, plain_code
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX
from veilmq.core.messages import Attribute
from veilmq.wire.sqs.names import is_fifo

T = TypeVar("T")

LINGER_S = 0.01  # for which a delete waits for others; not in a FIFO queue, where its group waits for it
HANDLED_IDS_MAX = 10_000
TRIES_MAX = 8
PAUSE_S = 0.1
PAUSE_S_MAX = 3.0
PATIENCE_S_MAX = 10.0
"""For the reply to a release; less when the lease ends before."""
LEFT_S_MIN = 0.2
"""Of a lease that is released: with less it returns by itself as soon, and would keep the rest of its batch short."""

_TOO_LATE = ClientError("LeaseEnded", "Its lease ended before the request could be sent.", 400)  # our own code


class _Change(NamedTuple):
    """``lease`` is to be visible in ``after_s`` seconds; not to be sent from ``until_s`` on."""

    lease: Lease
    after_s: int
    until_s: float


@dataclass(eq=False)
class Settler:
    """Settles the messages of one handler; used in the event loop. ``in_thread`` calls a function that blocks."""

    client: QueueClient
    options: Options
    table: LeaseTable
    counts: Counters
    in_thread: Callable[..., Awaitable[Any]]
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        queue, in_thread = self.options.queue, self.in_thread
        self._dead_letter = self.options.dead_letter
        self._is_known = self._dead_letter is not None
        self._moves = True  # until the server says that it cannot
        self.handled_ids: OrderedDict[str, None] = OrderedDict()
        """Of the messages that were handled lately, the latest last."""
        linger_s = 0.0 if is_fifo(queue) else LINGER_S
        self._deletes: Batcher[str] = Batcher(partial(in_thread, self.client.delete_batch, queue), linger_s=linger_s)
        self._changes: Batcher[_Change] = Batcher(partial(in_thread, self._send_changes), linger_s=0)

    async def delete(self, lease: Lease) -> bool:
        """Delete the message of ``lease``, and return whether it is gone beyond doubt; the lease is over then.

        A delete that failed is tried again, alone, for as long as it may help.
        """
        lease.deleting = True
        error = await self._deletes.put(lease.message.receipt)
        for number in range(TRIES_MAX):
            if error is None or _is_final(error):
                break
            await self.pause(_pause_s(number))
            try:
                await self.in_thread(self.client.delete, self.options.queue, lease.message.receipt)
                error = None
            except Exception as failure:  # noqa: BLE001 - the user's client may raise anything
                error = failure
        certain = error is None and lease.state is LeaseState.HELD
        self.table.settle(lease)
        if error is not None:
            lease.log(logging.WARNING, "message %s was not deleted: %s", error)
        return certain

    async def release(self, leases: Sequence[Lease], after_s: int = 0) -> list[bool]:
        """Make the messages of ``leases`` visible in ``after_s`` seconds, and return which of them surely will be.

        The leases are over in any case.
        """
        return await asyncio.gather(*(self._release(lease, after_s) for lease in leases))

    def flush(self) -> None:
        """Send the deletes that wait for others now."""
        self._deletes.flush()

    async def _release(self, lease: Lease, after_s: int) -> bool:
        done = await asyncio.wrap_future(self.table.withdraw(lease)) and await self._change(lease, after_s)
        self.table.settle(lease)
        return done

    async def _change(self, lease: Lease, after_s: int) -> bool:
        """Make the message of ``lease`` visible, in tries for as long as no other consumer can have received it."""
        visible_s, until_s = self.table.clock.now_s() + after_s, math.inf
        error: Exception | None = None
        for number in range(TRIES_MAX):
            error = await self._changes.put(_Change(lease, after_s, until_s))
            if error is None:
                return True
            if not isinstance(error, ClientError) or not 400 <= error.status < 500:
                until_s = visible_s  # the server may have carried it out all the same
            if _is_final(error) or not self._may_send(lease, until_s):
                break
            await self.pause(_pause_s(number))
        lease.log(logging.WARNING, "message %s was not released; it is visible again when its lease ends: %s", error)
        return False

    def _may_send(self, lease: Lease, until_s: float) -> bool:
        left_s = min(until_s, lease.expires_at_s) - self.table.clock.now_s()
        return left_s >= LEFT_S_MIN and lease.may_release

    def _send_changes(self, changes: Sequence[_Change]) -> Sequence[ClientError | None]:
        """Send what may still be sent, now that a thread was free; it is tried once, and no longer than it may be."""
        now_s = self.table.clock.now_s()
        sent: dict[_Change, VisibilityChange] = {}
        until_s = math.inf
        for change in changes:
            if self._may_send(change.lease, change.until_s):
                after_s = max(0, allowed_s(change.after_s, elapsed_s=change.lease.elapsed_s(now_s)))
                sent[change] = VisibilityChange(receipt=change.lease.message.receipt, timeout_s=after_s)
                until_s = min(until_s, change.until_s, change.lease.expires_at_s)
        if not sent:
            return [_TOO_LATE] * len(changes)
        patience_s = min(until_s - now_s, PATIENCE_S_MAX)
        answers = self.client.change_visibility_batch(self.options.queue, [*sent.values()], patience_s=patience_s)
        errors = {
            change: answer if isinstance(answer, ClientError) else None
            for change, answer in zip(sent, answers, strict=True)
        }
        return [errors.get(change, _TOO_LATE) for change in changes]

    async def end(self, delivery: Context, ending: Ending) -> bool:
        """Carry out ``ending``; returns whether the message is gone, so that the next of its group may follow."""
        kind = ending.kind
        if ending.error and (kind is EndingKind.RETRY or ending.trace):
            becomes = "comes back" if kind is EndingKind.RETRY else f"is {ending.outcome}"
            words = delivery.attempt, becomes, ending.error, ending.reason
            delivery.lease.log(logging.WARNING, "message %s, attempt %d, %s: %s: %s", *words, trace=ending.trace)
        if kind in (EndingKind.DONE, EndingKind.DROPPED):
            return await self._count_delete(delivery, counted="acked" if kind is EndingKind.DONE else "dropped")
        if kind is EndingKind.REJECT:
            return await self._reject(delivery, ending)
        if kind is EndingKind.RETRY:
            await self._hide(delivery, ending)
        elif kind is EndingKind.RELEASE:
            await self.release([delivery.lease])
            self.counts.events["released"] += 1
        else:
            self.table.settle(delivery.lease)
            self.counts.events["left"] += 1
        return False

    async def _count_delete(self, delivery: Context, *, counted: str) -> bool:
        self.handled_ids[delivery.message.id] = None
        self.handled_ids.move_to_end(delivery.message.id)
        if len(self.handled_ids) > HANDLED_IDS_MAX:
            self.handled_ids.popitem(last=False)
        certain = await self.delete(delivery.lease)
        self.counts.events[counted if certain else "delete_failed"] += 1
        return certain

    async def _hide(self, delivery: Context, ending: Ending) -> None:
        wanted_s = self.options.retry.after_s(delivery.attempt) if ending.after_s is None else ending.after_s
        self.counts.events["retried"] += 1
        await self.release([delivery.lease], int(wanted_s))

    async def _reject(self, delivery: Context, ending: Ending) -> bool:
        """Have the server move it; else copy first, delete then: a copy that fails leaves the message where it is."""
        try:
            if not self._is_known:  # then it is the queue's own
                status = await self.in_thread(self.client.show, self.options.queue)
                self._dead_letter, self._is_known = status.settings.dead_letter_queue or None, True
            target = self._dead_letter
            if target is not None and await self._move(delivery, ending, target):
                self.table.settle(delivery.lease)
                self.counts.events["rejected"] += 1
                return True
            if target is not None:
                await self._copy(delivery, ending, target)
        except Exception as error:  # noqa: BLE001 - as in ``delete``
            delivery.lease.log(logging.ERROR, "message %s could not be sent to the dead-letter queue: %s", error)
            target = None
        if target is None:
            delivery.lease.log(logging.ERROR, "message %s was rejected and will be received again: %s", ending.reason)
            await self._hide(delivery, ending)
            return False
        return await self._count_delete(delivery, counted="rejected")

    async def _move(self, delivery: Context, ending: Ending, target: str) -> bool:
        """Have the server move the message; returns whether it did. While it may, no renewal's error means anything."""
        if not self._moves:
            return False
        queue, lease = self.options.queue, delivery.lease
        reasons = _reasons(delivery.message, ending, queue)
        # Ours that matter less are left out beyond ten attributes, but not the first.
        room = max(1, _ATTRIBUTES_MAX - len(delivery.message.attributes.keys() - reasons.keys()))
        reasons = dict(list(reasons.items())[:room])
        if self.options.dead_letter is None:  # the queue's own, which is where the queue is: its name says it all
            target = target.rpartition("/")[2]
        move = partial(self.in_thread, self.client.dead_letter, queue, delivery.message.receipt, target)
        lease.deleting = True
        try:
            self._moves = await move(reasons)
        except ClientError as error:
            if error.code == "MessageTooLong":  # with our reasons
                return bool(await move({}))
            if error.fields.get("state") == "gone":  # by an earlier try, whose reply was lost
                return True
            raise
        finally:
            lease.deleting = False
        return self._moves

    async def _copy(self, delivery: Context, ending: Ending, target: str) -> None:
        message = delivery.message
        attributes = dict(message.attributes)
        for name, text in _reasons(message, ending, self.options.queue).items():
            if name in attributes or len(attributes) < _ATTRIBUTES_MAX:
                attributes[name] = Attribute(type="String", text=text)
        group, dedup_id = (message.group or message.id, message.id) if is_fifo(target) else (message.group, None)
        send = partial(self.in_thread, self.client.send, target, message.body, group=group, dedup_id=dedup_id)
        try:
            await send(attributes=attributes)
        except ClientError as error:
            if error.status >= 500:
                raise
            await send(attributes=message.attributes)  # with our reasons it may have been too long


def _pause_s(number: int) -> float:
    return min(PAUSE_S * 2.0**number, PAUSE_S_MAX) * (0.5 + random.random())


def _is_final(error: Exception) -> bool:
    """Return whether a retry cannot help: the receipt is dead."""
    return isinstance(error, ClientError) and error.status < 500 and plain_code(error.code) in DEAD_RECEIPT_CODES


class Batcher(Generic[T]):
    """``put`` returns the result of its own entry, in whatever batch it was sent."""

    def __init__(
        self, call: Callable[[Sequence[T]], Awaitable[Sequence[ClientError | None]]], *, linger_s: float
    ) -> None:
        """``call`` sends up to ten entries. ``linger_s`` is how long the first may wait for others."""
        self._call = call
        self._linger_s = linger_s
        self._entries: list[tuple[T, asyncio.Future[Exception | None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def put(self, entry: T) -> "asyncio.Future[Exception | None]":
        """Send ``entry`` with the next batch; the future gives its error, ``None`` for success."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Exception | None] = loop.create_future()
        self._entries.append((entry, future))
        if len(self._entries) >= SQS_BATCH_ENTRIES_MAX:
            self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._linger_s, self.flush)
        return future

    def flush(self) -> None:
        """Send what waits now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._entries = self._entries, []
        if entries:
            sending = asyncio.get_running_loop().create_task(self._send(entries))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _send(self, entries: "Sequence[tuple[T, asyncio.Future[Exception | None]]]") -> None:
        answers: Sequence[Exception | None]
        try:
            answers = await self._call([entry for entry, _ in entries])
        except Exception as error:  # noqa: BLE001 - whatever it was, each entry has to have a result
            answers = [error] * len(entries)
        for (_, future), answer in zip(entries, answers, strict=True):
            if not future.done():
                future.set_result(answer)


_ATTRIBUTES_MAX = 10
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in messages
_REASON_CHARACTERS_MAX = 500
_TRACE_CHARACTERS_MAX = 1_000


def _reasons(message: ReceivedMessage, ending: Ending, source: str) -> dict[str, str]:
    """Return name → text, the most important first."""
    reasons = {
        "veilmq-reason": _ILLEGAL.sub("", ending.reason)[:_REASON_CHARACTERS_MAX],
        "veilmq-message-id": message.id,
        "veilmq-error": ending.error,
        "veilmq-attempt": str(message.receive_count),
        "veilmq-queue": source.rpartition("/")[2],
        "veilmq-trace": _ILLEGAL.sub("", ending.trace)[-_TRACE_CHARACTERS_MAX:],
    }
    return {name: text for name, text in reasons.items() if text}

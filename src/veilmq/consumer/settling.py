"""Settles messages at the server: deletes, releases, backoffs and dead letters. The lease is kept until the reply.

A delete does not wait for a renewal in flight, whose later error is ignored. A release or a backoff waits, because a
renewal that arrives later would hide the message again. It is sent only while the lease is held: a receipt past its
deadline could release a message that another consumer processes. For the same reason a release without a reply is not
retried after the message may have become visible.
"""

import asyncio
import logging
import math
import random
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from veilmq.client.messages import DEAD_RECEIPT_CODES, ClientError, ReceivedMessage, is_transient
from veilmq.client.sqs import QueueClient
from veilmq.consumer.context import Context, Ending, EndingKind
from veilmq.consumer.handlers import Options
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable
from veilmq.consumer.metrics import Counters
from veilmq.consumer.renewal_policies import allowed_s, plain_code
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX, SQS_MESSAGE_ATTRIBUTES_MAX
from veilmq.core.messages import Attribute
from veilmq.wire.sqs.names import is_fifo

T = TypeVar("T")

LINGER_S = 0.01  # a delete waits so long for others; not on a FIFO queue, where it blocks the group
HANDLED_IDS_MAX = 10_000
TRIES_MAX = 8
PAUSE_S = 0.1
PAUSE_S_MAX = 3.0
CALL_TIMEOUT_S_MAX = 10.0
"""The timeout of a release; shorter if the lease ends earlier."""
LEFT_S_MIN = 0.2
"""Minimum time left for a release: with less, the lease expires as soon, and would shorten its batch's timeout."""

_TOO_LATE = ClientError("LeaseEnded", "Its lease ended before the request could be sent.", 400)  # our own code


class _Change(NamedTuple):
    """Make the message of ``lease`` visible in ``after_s`` seconds; must be sent before ``until_s``."""

    lease: Lease
    after_s: int
    until_s: float


@dataclass(eq=False)
class Settler:
    """Settles the messages of one handler; used in the event loop. ``in_thread`` runs a blocking function."""

    client: QueueClient
    options: Options
    table: LeaseTable
    counts: Counters
    in_thread: Callable[..., Awaitable[Any]]
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep
    stopping: bool = False  # then deletes are not retried for long

    def __post_init__(self) -> None:
        queue, in_thread = self.options.queue, self.in_thread
        self._show: Callable[[], Awaitable[Any]] = lambda: in_thread(self.client.show, queue)
        self._server_moves = True  # until the server reports that it cannot
        self.handled_ids: OrderedDict[str, None] = OrderedDict()  # of recently handled messages, oldest first
        linger_s = 0.0 if is_fifo(queue) else LINGER_S
        self._deletes: Batcher[str] = Batcher(partial(in_thread, self.client.delete_batch, queue), linger_s=linger_s)
        self._changes: Batcher[_Change] = Batcher(partial(in_thread, self._send), linger_s=0)

    async def delete(self, lease: Lease) -> bool:
        """Delete the message of ``lease``, settle the lease, and return whether the message is certainly deleted.

        A failed delete is retried alone while that is useful, and up to ``TRIES_MAX`` times unless the receipt is dead.
        """
        lease.deleting, tries = True, 0
        error = await self._deletes.put(lease.message.receipt)
        while error is not None and not is_final(error):
            useful = is_transient(error) and lease.state is LeaseState.HELD and not self.stopping
            if tries >= TRIES_MAX and not useful:
                break
            await self.pause(_pause_s(tries))
            tries += 1
            try:
                await self.in_thread(self.client.delete, self.options.queue, lease.message.receipt)
                error = None
            except Exception as failure:  # noqa: BLE001 - from the user's client
                error = failure
        self.table.settle(lease)
        if error is not None:
            lease.log(logging.WARNING, "message %s was not deleted: %s", error)
        return error is None and lease.state is LeaseState.HELD

    async def release(self, leases: Sequence[Lease], after_s: int = 0) -> list[bool]:
        """Make the messages of ``leases`` visible in ``after_s`` seconds; return for each whether the server confirmed.

        The leases are settled in either case.
        """
        return await asyncio.gather(*(self._release(lease, after_s) for lease in leases))

    async def _release(self, lease: Lease, after_s: int) -> bool:
        done = await asyncio.wrap_future(self.table.withdraw(lease)) and await self._change(lease, after_s)
        self.table.settle(lease)
        return done

    async def _change(self, lease: Lease, after_s: int) -> bool:
        """Make the message of ``lease`` visible; retry only while no other consumer can have received it."""
        visible_s, until_s = self.table.clock.now_s() + after_s, math.inf
        error: Exception | None = None
        for number in range(TRIES_MAX):
            error = await self._changes.put(_Change(lease, after_s, until_s))
            if error is None:
                return True
            if not isinstance(error, ClientError) or not 400 <= error.status < 500:
                until_s = visible_s  # the server may have executed it
            if is_final(error) or not self._may_send(lease, until_s):
                break
            await self.pause(_pause_s(number))
        lease.log(logging.WARNING, "message %s was not released; it is visible again when its lease ends: %s", error)
        return False

    def _may_send(self, lease: Lease, until_s: float) -> bool:
        left_s = min(until_s, lease.expires_at_s) - self.table.clock.now_s()
        return left_s >= LEFT_S_MIN and lease.may_release

    def _send(self, changes: Sequence[_Change]) -> Sequence[ClientError | None]:
        """Send, once, the changes that may still be sent now that a thread is free."""
        now_s = self.table.clock.now_s()
        sent, until_s = dict[_Change, VisibilityChange](), math.inf
        for change in changes:
            if self._may_send(change.lease, change.until_s):
                after_s = max(0, allowed_s(change.after_s, elapsed_s=change.lease.elapsed_s(now_s)))
                sent[change] = VisibilityChange(receipt=change.lease.message.receipt, timeout_s=after_s)
                until_s = min(until_s, change.until_s, change.lease.expires_at_s)
        if not sent:
            return [_TOO_LATE] * len(changes)
        left_s = min(until_s - now_s, CALL_TIMEOUT_S_MAX)
        replies = self.client.change_visibility_batch(self.options.queue, [*sent.values()], call_timeout_s=left_s)
        errors = {
            change: reply if isinstance(reply, ClientError) else None
            for change, reply in zip(sent, replies, strict=True)
        }
        return [errors.get(change, _TOO_LATE) for change in changes]

    async def decide(self, delivery: Context, ending: Ending) -> Ending:
        """Return ``ending`` with the delay of a retry, or as a rejection after the last attempt.

        At the next receive, a FIFO queue would dead-letter it with those behind it, whose receives it counted too.
        """
        ending = self.options.retry.decide(ending, delivery.attempt)
        if is_fifo(self.options.queue) and ending.kind is EndingKind.RETRY and ending.error:
            with suppress(Exception):  # then the queue decides
                if 0 < (await self._show()).settings.receives_max <= delivery.attempt:
                    return replace(ending, kind=EndingKind.REJECT)
        return ending

    async def end(self, delivery: Context, ending: Ending) -> bool:
        """Apply ``ending``; return whether the message has left the queue, so that its group may continue."""
        kind = ending.kind
        if ending.error and (kind is EndingKind.RETRY or ending.trace):
            words = delivery.attempt, ending.outcome, ending.error, ending.reason
            delivery.lease.log(logging.WARNING, "message %s, attempt %d, is %s: %s: %s", *words, trace=ending.trace)
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
        """Let the server move the message. If it cannot, copy it, then delete it; a failed copy leaves it in place."""
        try:
            target = self.options.dead_letter or (await self._show()).settings.dead_letter_queue
            if not target:
                raise LookupError("there is none")
            if await self._move(delivery, ending, target):
                self.table.settle(delivery.lease)
                self.counts.events["rejected"] += 1
                return True
            await self._copy(delivery, ending, target)
        except Exception as error:  # noqa: BLE001 - from the user's client
            delivery.lease.log(logging.ERROR, "message %s could not be sent to the dead-letter queue: %s", error)
            delivery.lease.log(logging.ERROR, "message %s was rejected and will be received again: %s", ending.reason)
            await self._hide(delivery, ending)
            return False
        return await self._count_delete(delivery, counted="rejected")

    async def _move(self, delivery: Context, ending: Ending, target: str) -> bool:
        """Let the server move the message, and return whether it did. Errors of renewals are ignored meanwhile."""
        if not self._server_moves:
            return False
        queue, lease = self.options.queue, delivery.lease
        reasons = _reasons(delivery.message, ending, queue)
        # Of at most ten attributes, the message's come first, but the most important reason is always sent.
        reasons_max = max(1, SQS_MESSAGE_ATTRIBUTES_MAX - len(delivery.message.attributes.keys() - reasons.keys()))
        reasons = dict(list(reasons.items())[:reasons_max])
        if self.options.dead_letter is None:  # the queue's own has the same region and account: the name suffices
            target = target.rpartition("/")[2]
        move = partial(self.in_thread, self.client.dead_letter, queue, delivery.message.receipt, target)
        lease.deleting = True
        try:
            self._server_moves = await move(reasons)
        except ClientError as error:
            if error.code == "MessageTooLong":  # because of the reasons
                return bool(await move({}))
            if error.fields.get("state") == "gone":  # an earlier try moved it, and its reply was lost
                return True
            raise
        finally:
            lease.deleting = False
        return self._server_moves

    async def _copy(self, delivery: Context, ending: Ending, target: str) -> None:
        message = delivery.message
        attributes = dict(message.attributes)
        for name, text in _reasons(message, ending, self.options.queue).items():
            if name in attributes or len(attributes) < SQS_MESSAGE_ATTRIBUTES_MAX:
                attributes[name] = Attribute(type="String", text=text)
        group, dedup_id = (message.group or message.id, message.id) if is_fifo(target) else (message.group, None)
        send = partial(self.in_thread, self.client.send, target, message.body, group=group, dedup_id=dedup_id)
        try:
            await send(attributes=attributes)
        except ClientError as error:
            if error.status >= 500:
                raise
            await send(attributes=message.attributes)  # the reasons may have made it too long


def _pause_s(number: int) -> float:
    return min(PAUSE_S * 2.0 ** min(number, TRIES_MAX), PAUSE_S_MAX) * (0.5 + random.random())


def is_final(error: Exception) -> bool:
    """Return whether the receipt is dead, so that a retry cannot help."""
    return isinstance(error, ClientError) and error.status < 500 and plain_code(error.code) in DEAD_RECEIPT_CODES


class Batcher(Generic[T]):
    """Sends entries in batches."""

    def __init__(
        self, call: Callable[[Sequence[T]], Awaitable[Sequence[ClientError | None]]], *, linger_s: float
    ) -> None:
        """``call`` sends up to ten entries. The first entry of a batch waits ``linger_s`` for others."""
        self._call = call
        self._linger_s = linger_s
        self._entries: list[tuple[T, asyncio.Future[Exception | None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def put(self, entry: T) -> "asyncio.Future[Exception | None]":
        """Send ``entry`` with the next batch; the future returns its error, or ``None``."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Exception | None] = loop.create_future()
        self._entries.append((entry, future))
        if len(self._entries) >= SQS_BATCH_ENTRIES_MAX:
            self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(self._linger_s, self.flush)
        return future

    def flush(self) -> None:
        """Send the entries that linger now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        entries, self._entries = self._entries, []
        if entries:
            sending = asyncio.get_running_loop().create_task(self._send(entries))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    async def _send(self, entries: "Sequence[tuple[T, asyncio.Future[Exception | None]]]") -> None:
        results: Sequence[Exception | None]
        try:
            results = await self._call([entry for entry, _ in entries])
        except Exception as error:  # noqa: BLE001 - each entry needs a result
            results = [error] * len(entries)
        for (_, future), result in zip(entries, results, strict=True):
            if not future.done():
                future.set_result(result)


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

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
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from veilmq.client.messages import DEAD_RECEIPT_CODES, ClientError, Hidden, NewMessage, ReceivedMessage, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.consumer.context import Delivery, Ending, EndingKind, about, with_traceback
from veilmq.consumer.handlers import Options
from veilmq.consumer.leases import Lease, LeaseState, LeaseTable
from veilmq.consumer.metrics import Counters
from veilmq.consumer.renewal_policies import allowed_s, plain_code
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX
from veilmq.core.properties import Attribute
from veilmq.wire.sqs.names import is_fifo

_log = logging.getLogger("veilmq.consumer")


T = TypeVar("T")

Failure = ClientError | Unreachable
LINGER_S = 0.01
TRIES_MAX = 8
PAUSE_S = 0.1
PAUSE_S_MAX = 3.0
PATIENCE_S_MAX = 10.0
"""For the reply to a release; less when the lease ends before."""
LEFT_S_MIN = 0.2
"""Of a lease that is released: with less it returns by itself as soon, and would keep the rest of its batch short."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call that blocks in a thread."""

_TOO_LATE = ClientError("LeaseEnded", "Its lease ended before the request could be sent.", 400)  # our own code


class _Change(NamedTuple):
    """``lease`` is to be visible in ``after_s`` seconds; not to be sent from ``until_s`` on."""

    lease: Lease
    after_s: int
    until_s: float


class Settler:
    """Settles the messages of one queue; used in the event loop."""

    def __init__(
        self,
        client: QueueClient,
        queue: str,
        table: LeaseTable,
        in_thread: InThread,
        *,
        linger_s: float = LINGER_S,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """``linger_s`` is how long a delete may wait for others, 0 for not at all."""
        self._client = client
        self._queue = queue
        self._table = table
        self._in_thread = in_thread
        self._pause = pause
        self._deletes: Batcher[str] = Batcher(self._delete_batch, linger_s=linger_s)
        self._changes: Batcher[_Change] = Batcher(self._change_batch, linger_s=0)

    async def delete(self, lease: Lease) -> bool:
        """Delete the message of ``lease``, and return whether it is gone beyond doubt; the lease is over then."""
        lease.deleting = True
        error = await self._deletes.put(lease.message.receipt)
        error = await self._insist(lease, error)
        certain = error is None and lease.state_at(self._table.clock.now_s()) is LeaseState.HELD
        self._table.settle(lease)
        if error is not None:
            _log.warning("message %s was not deleted: %s", lease.message.id, error, extra=about(lease))
        return certain

    async def release(self, leases: Sequence[Lease], after_s: int = 0) -> list[bool]:
        """Make the messages of ``leases`` visible in ``after_s`` seconds, and return which of them surely will be.

        The leases are over in any case.
        """
        return await asyncio.gather(*(self._release(lease, after_s) for lease in leases))

    def flush(self) -> None:
        """Send the deletes that wait for others now."""
        self._deletes.flush()

    async def _insist(self, lease: Lease, error: Failure | None) -> Failure | None:
        """Try a failed delete again, alone, for as long as it may help."""
        for number in range(TRIES_MAX):
            if error is None or _is_final(error):
                return error
            await self._pause(_pause_s(number))
            error = await self._delete_alone(lease)
        return error

    async def _delete_alone(self, lease: Lease) -> Failure | None:
        try:
            await self._in_thread(partial(self._client.delete, self._queue, lease.message.receipt))
        except (ClientError, Unreachable) as error:
            return error
        return None

    async def _release(self, lease: Lease, after_s: int) -> bool:
        done = await asyncio.wrap_future(self._table.withdraw(lease)) and await self._change(lease, after_s)
        self._table.settle(lease)
        return done

    async def _change(self, lease: Lease, after_s: int) -> bool:
        """Make the message of ``lease`` visible, in tries for as long as no other consumer can have received it."""
        visible_s, until_s = self._table.clock.now_s() + after_s, math.inf
        error: Failure | None = None
        for number in range(TRIES_MAX):
            error = await self._changes.put(_Change(lease, after_s, until_s))
            if error is None:
                return True
            until_s = visible_s if _is_unanswered(error) else until_s
            if _is_final(error) or not self._may_send(lease, until_s):
                break
            await self._pause(_pause_s(number))
        text = "message %s was not released, it returns by itself: %s"
        _log.warning(text, lease.message.id, error, extra=about(lease))
        return False

    def _may_send(self, lease: Lease, until_s: float) -> bool:
        left_s = min(until_s, lease.expires_at_s) - self._table.clock.now_s()
        return left_s >= LEFT_S_MIN and self._table.may_release(lease)

    async def _delete_batch(self, receipts: Sequence[str]) -> Sequence[ClientError | None]:
        answers: Sequence[ClientError | None] = await self._in_thread(
            partial(self._client.delete_batch, self._queue, receipts)
        )
        return answers

    async def _change_batch(self, changes: Sequence[_Change]) -> Sequence[ClientError | None]:
        answers: Sequence[ClientError | None] = await self._in_thread(partial(self._send_changes, changes))
        return answers

    def _send_changes(self, changes: Sequence[_Change]) -> Sequence[ClientError | None]:
        """Send what may still be sent, now that a thread was free; it is tried once, and no longer than it may be."""
        now_s = self._table.clock.now_s()
        sent = [change for change in changes if self._may_send(change.lease, change.until_s)]
        if not sent:
            return [_TOO_LATE] * len(changes)
        left_s = min(min(change.until_s, change.lease.expires_at_s) for change in sent) - now_s
        answers = self._client.change_visibility_batch(
            self._queue, [_visible(change, now_s) for change in sent], patience_s=min(left_s, PATIENCE_S_MAX)
        )
        reasons = dict(zip(map(id, sent), answers, strict=True))
        return [_refusal(reasons.get(id(change), _TOO_LATE)) for change in changes]


def _visible(change: _Change, now_s: float) -> VisibilityChange:
    after_s = max(0, allowed_s(change.after_s, elapsed_s=change.lease.elapsed_s(now_s)))
    return VisibilityChange(receipt=change.lease.message.receipt, timeout_s=after_s)


def _refusal(answer: ClientError | Hidden | None) -> ClientError | None:
    return answer if isinstance(answer, ClientError) else None


def _pause_s(number: int) -> float:
    return min(PAUSE_S * 2.0**number, PAUSE_S_MAX) * (0.5 + random.random())


def _is_unanswered(error: Failure) -> bool:
    """Return whether the server may have carried out the request all the same."""
    return isinstance(error, Unreachable) or error.status >= 500


def _is_final(error: Failure) -> bool:
    """Return whether a retry cannot help: the receipt is dead."""
    return isinstance(error, ClientError) and error.status < 500 and plain_code(error.code) in DEAD_RECEIPT_CODES


Call = Callable[[Sequence[T]], Awaitable[Sequence[ClientError | None]]]


class Batcher(Generic[T]):
    """``put`` returns the result of its own entry, in whatever batch it was sent."""

    def __init__(self, call: Call[T], *, linger_s: float) -> None:
        """``call`` sends up to ten entries. ``linger_s`` is how long the first may wait for others."""
        self._call = call
        self._linger_s = linger_s
        self._entries: list[tuple[T, asyncio.Future[Failure | None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    def put(self, entry: T) -> "asyncio.Future[Failure | None]":
        """Send ``entry`` with the next batch; the future gives its error, ``None`` for success."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Failure | None] = loop.create_future()
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

    async def _send(self, entries: "Sequence[tuple[T, asyncio.Future[Failure | None]]]") -> None:
        answers: Sequence[Failure | None]
        try:
            answers = await self._call([entry for entry, _ in entries])
        except (ClientError, Unreachable) as error:
            answers = [error] * len(entries)
        for (_, future), answer in zip(entries, answers, strict=True):
            if not future.done():
                future.set_result(answer)


HANDLED_IDS_MAX = 10_000


class HandledIds:
    """The latest ids, up to ``most`` of them; an id that is looked up counts as new."""

    __slots__ = ("_ids", "_most")

    def __init__(self, most: int = HANDLED_IDS_MAX) -> None:
        """Remember nothing yet."""
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        """Return how many ids are known."""
        return len(self._ids)

    def add(self, message_id: str) -> None:
        """Remember ``message_id``; the one that was not touched for longest is forgotten when there are too many."""
        self._ids[message_id] = None
        if len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def __contains__(self, message_id: str) -> bool:
        """Tell whether ``message_id`` is known."""
        if message_id not in self._ids:
            return False
        self._ids.move_to_end(message_id)
        return True


_ATTRIBUTES_MAX = 10
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in messages
_REASON_CHARACTERS_MAX = 500
_TRACE_CHARACTERS_MAX = 1_000

_log.addFilter(with_traceback)


class Endings:
    """The endings of one handler's messages."""

    def __init__(
        self,
        client: QueueClient,
        options: Options,
        table: LeaseTable,
        settler: Settler,
        counts: Counters,
        in_thread: InThread,
    ) -> None:
        """``in_thread`` runs calls of ``client``, which block."""
        self._client = client
        self._options = options
        self._table = table
        self._settler = settler
        self._counts = counts
        self._in_thread = in_thread
        self._dead_letter = options.dead_letter
        self._looked = options.dead_letter is not None
        self._moves = True  # until the server says that it cannot
        self.handled_ids = HandledIds()
        self._ends: Mapping[EndingKind, Callable[[Delivery, Ending], Awaitable[bool]]] = {
            EndingKind.DONE: partial(self._gone, counted="acked"),
            EndingKind.DROPPED: partial(self._gone, counted="dropped"),
            EndingKind.RETRY: self._retry,
            EndingKind.REJECT: self._reject,
            EndingKind.RELEASE: self._release,
            EndingKind.LEFT: self._leave,
        }

    async def end(self, delivery: Delivery, ending: Ending) -> bool:
        """Carry out ``ending``; returns whether the message is gone, so that the next of its group may follow."""
        if ending.kind is EndingKind.RETRY and ending.error:
            _log.warning(
                "message %s, attempt %d, comes back: %s: %s",
                *(delivery.message.id, delivery.attempt, ending.error, ending.reason),
                extra=about(delivery.lease, trace=ending.trace),
            )
        return await self._ends[ending.kind](delivery, ending)

    async def _gone(self, delivery: Delivery, _: Ending, *, counted: str) -> bool:
        self.handled_ids.add(delivery.message.id)
        certain = await self._settler.delete(delivery.lease)
        self._counts.events[counted if certain else "delete_failed"] += 1
        return certain

    async def _retry(self, delivery: Delivery, ending: Ending) -> bool:
        if self._options.retry.exhausted(delivery.attempt) and ending.after_s is None:
            return await self._reject(delivery, ending)
        await self._hide(delivery, ending)
        return False

    async def _hide(self, delivery: Delivery, ending: Ending) -> None:
        after_s = ending.after_s
        wanted_s = self._options.retry.after_s(delivery.attempt) if after_s is None else math.ceil(after_s)
        self._counts.events["retried"] += 1
        await self._settler.release([delivery.lease], wanted_s)

    async def _reject(self, delivery: Delivery, ending: Ending) -> bool:
        """Have the server move it; else copy first, delete then: a copy that fails leaves the message where it is."""
        try:
            target = await self._target()
            if target is not None and await self._move(delivery, ending, target):
                self._table.settle(delivery.lease)
                self._counts.events["rejected"] += 1
                return True
            if target is not None:
                await self._copy(delivery, ending, target)
        except (ClientError, Unreachable) as error:
            text = "message %s could not be sent to the dead letters: %s"
            _log.error(text, delivery.message.id, error, extra=about(delivery.lease))
            target = None
        if target is None:
            text = "message %s was rejected and comes back: %s"
            _log.error(text, delivery.message.id, ending.reason, extra=about(delivery.lease))
            await self._hide(delivery, ending)
            return False
        return await self._gone(delivery, ending, counted="rejected")

    async def _move(self, delivery: Delivery, ending: Ending, target: str) -> bool:
        """Have the server move the message; returns whether it did. While it may, no renewal's error means anything."""
        if not self._moves:
            return False
        queue, lease = self._options.queue, delivery.lease
        reasons = _reasons(delivery.message, ending, source=queue)
        if self._options.dead_letter is None:  # the queue's own, which is where the queue is: its name says it all
            target = target.rpartition("/")[2]
        move = partial(self._client.dead_letter, queue, delivery.message.receipt, target)
        lease.deleting = True
        try:
            self._moves = await self._in_thread(partial(move, reasons))
        except ClientError as error:
            if error.code == "MessageTooLong":  # with our reasons
                return bool(await self._in_thread(partial(move, {})))
            if error.fields.get("state") == "gone":  # by an earlier try, whose reply was lost
                return True
            raise
        finally:
            lease.deleting = False
        return self._moves

    async def _copy(self, delivery: Delivery, ending: Ending, target: str) -> None:
        copy = _dead_letter(delivery.message, ending, source=self._options.queue, target=target)
        try:
            await self._send(copy, target)
        except ClientError as error:
            if error.status >= 500:
                raise
            plain = replace(copy, attributes=delivery.message.attributes)  # with our reasons it may have been too long
            await self._send(plain, target)

    async def _send(self, copy: NewMessage, target: str) -> None:
        send = partial(
            self._client.send, target, copy.body, attributes=copy.attributes, group=copy.group, dedup_id=copy.dedup_id
        )
        await self._in_thread(send)

    async def _target(self) -> str | None:
        """Return the dead-letter queue: the handler's option, else the queue's own, looked up once."""
        if not self._looked:
            status = await self._in_thread(partial(self._client.show, self._options.queue))
            self._dead_letter = status.settings.dead_letter_queue or None
            self._looked = True
        return self._dead_letter

    async def _release(self, delivery: Delivery, _: Ending) -> bool:
        await self._settler.release([delivery.lease])
        self._counts.events["released"] += 1
        return False

    async def _leave(self, delivery: Delivery, _: Ending) -> bool:
        self._table.settle(delivery.lease)
        self._counts.events["left"] += 1
        return False


def _dead_letter(message: ReceivedMessage, ending: Ending, *, source: str, target: str) -> NewMessage:
    """Return the copy of ``message`` of the queue ``source`` that goes to the queue ``target``, ended by ``ending``."""
    attributes = dict(message.attributes)
    for name, text in _all_reasons(message, ending, source).items():
        if text and (name in attributes or len(attributes) < _ATTRIBUTES_MAX):
            attributes[name] = Attribute(type="String", text=text)
    fifo = is_fifo(target)
    return NewMessage(
        body=message.body,
        attributes=attributes,
        group=(message.group or message.id) if fifo else message.group,
        dedup_id=message.id if fifo else None,
    )


def _reasons(message: ReceivedMessage, ending: Ending, *, source: str) -> dict[str, str]:
    """Return what is added to a message that the server moves, which keeps all that it has: at least the reason.

    A queue takes ten attributes of a message: ours that matter less are left out where there is no room.
    """
    reasons = {name: text for name, text in _all_reasons(message, ending, source).items() if text}
    room = max(1, _ATTRIBUTES_MAX - len(message.attributes.keys() - reasons.keys()))
    return dict(list(reasons.items())[:room])


def _all_reasons(message: ReceivedMessage, ending: Ending, source: str) -> dict[str, str]:
    """Return name → text, the most important first."""
    return {
        "veilmq-reason": _ILLEGAL.sub("", ending.reason)[:_REASON_CHARACTERS_MAX],
        "veilmq-message-id": message.id,
        "veilmq-error": ending.error,
        "veilmq-attempt": str(message.receive_count),
        "veilmq-queue": source.rpartition("/")[2],
        "veilmq-trace": _ILLEGAL.sub("", ending.trace)[-_TRACE_CHARACTERS_MAX:],
    }

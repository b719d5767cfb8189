"""Ends messages at the server: deletes, releases and backoffs, in batches, each with its lease until it is confirmed.

A delete waits for no renewal, whose later error means nothing. A release or a backoff does wait, since a renewal that
came after it would hide the message again; and it is only sent while the lease is held, because a receipt past its
deadline may set free a message that another consumer works on. For the same reason one whose answer did not come is not
sent again once the first may have made the message visible.
"""

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from veilmq.client.messages import DEAD_RECEIPT_CODES, ClientError, Hidden, Unreachable
from veilmq.client.sqs import QueueClient
from veilmq.consumer.batcher import Batcher, Failure
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.logged import about
from veilmq.consumer.policies import allowed_s
from veilmq.consumer.verdicts import plain_code
from veilmq.core.commands import VisibilityChange

LINGER_S = 0.01
TRIES_MAX = 8
PAUSE_S = 0.1
PAUSE_S_MAX = 3.0
PATIENCE_S_MAX = 10.0
"""For the answer to a release; less when the lease ends before."""
LEFT_S_MIN = 0.2
"""Of a lease that is released: with less it returns by itself as soon, and would keep the rest of its batch short."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call that blocks in a thread."""

_TOO_LATE = ClientError("LeaseEnded", "Its lease ended before the request could be sent.", 400)  # told by nobody else

_log = logging.getLogger("veilmq.consumer")


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
        """Make the message of ``lease`` visible, in tries for as long as nobody else can have received it."""
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
        told = dict(zip(map(id, sent), answers, strict=True))
        return [_refusal(told.get(id(change), _TOO_LATE)) for change in changes]


def _visible(change: _Change, now_s: float) -> VisibilityChange:
    after_s = max(0, allowed_s(change.after_s, elapsed_s=change.lease.elapsed_s(now_s)))
    return VisibilityChange(receipt=change.lease.message.receipt, timeout_s=after_s)


def _refusal(answer: ClientError | Hidden | None) -> ClientError | None:
    return answer if isinstance(answer, ClientError) else None


def _pause_s(number: int) -> float:
    return min(PAUSE_S * 2.0**number, PAUSE_S_MAX) * (0.5 + random.random())


def _is_unanswered(error: Failure) -> bool:
    """Tell whether the server may have done what was asked for all the same."""
    return isinstance(error, Unreachable) or error.status >= 500


def _is_final(error: Failure) -> bool:
    """Tell whether asking again cannot help: the receipt is no good any more."""
    return isinstance(error, ClientError) and error.status < 500 and plain_code(error.code) in DEAD_RECEIPT_CODES

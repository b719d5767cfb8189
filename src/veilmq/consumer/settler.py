"""Ends messages at the server: deletes, releases and backoffs, in batches, each with its lease until it is confirmed.

A delete waits for no renewal, whose later error means nothing. A release or a backoff does wait, since a renewal that
came after it would hide the message again; and it is only sent while the lease is held, because a receipt past its
deadline may set free a message that another consumer works on.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from veilmq.client.errors import DEAD_RECEIPT_CODES, ClientError, Unreachable
from veilmq.client.port import MessageClient
from veilmq.consumer.batcher import Batcher, Failure
from veilmq.consumer.lease_table import LeaseTable
from veilmq.consumer.leases import Lease, LeaseState
from veilmq.consumer.policies import allowed_s
from veilmq.consumer.verdicts import plain_code
from veilmq.core.commands import VisibilityChange

LINGER_S = 0.01
TRIES_MAX = 8
PAUSE_S = 0.1
PAUSE_S_MAX = 3.0

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a call that blocks in a thread."""

_log = logging.getLogger("veilmq.consumer")


class Settler:
    """Settles the messages of one queue; used in the event loop."""

    def __init__(
        self,
        client: MessageClient,
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
        self._changes: Batcher[VisibilityChange] = Batcher(self._change_batch, linger_s=0)

    async def delete(self, lease: Lease) -> bool:
        """Delete the message of ``lease``, and return whether it is gone beyond doubt; the lease is over then."""
        error = await self._deletes.put(lease.message.receipt)
        error = await self._insist(lease, error)
        certain = error is None and lease.state_at(self._table.clock.now_s()) is LeaseState.HELD
        self._table.settle(lease)
        if error is not None:
            _log.warning("message %s was not deleted: %s", lease.message.id, error)
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
            await self._pause(min(PAUSE_S * 2**number, PAUSE_S_MAX) * (0.5 + random.random()))
            error = await self._delete_alone(lease)
        return error

    async def _delete_alone(self, lease: Lease) -> Failure | None:
        try:
            await self._in_thread(partial(self._client.delete, self._queue, lease.message.receipt))
        except (ClientError, Unreachable) as error:
            return error
        return None

    async def _release(self, lease: Lease, after_s: int) -> bool:
        may = await asyncio.wrap_future(self._table.withdraw(lease))
        done = False
        if may and self._table.may_release(lease):
            for_s = max(0, allowed_s(after_s, elapsed_s=lease.elapsed_s(self._table.clock.now_s())))
            error = await self._changes.put(VisibilityChange(receipt=lease.message.receipt, timeout_s=for_s))
            done = error is None
            if error is not None:
                _log.warning("message %s was not released, it returns by itself: %s", lease.message.id, error)
        self._table.settle(lease)
        return done

    async def _delete_batch(self, receipts: Sequence[str]) -> Sequence[ClientError | None]:
        answers: Sequence[ClientError | None] = await self._in_thread(
            partial(self._client.delete_batch, self._queue, receipts)
        )
        return answers

    async def _change_batch(self, changes: Sequence[VisibilityChange]) -> Sequence[ClientError | None]:
        answers: Sequence[ClientError | None] = await self._in_thread(
            partial(self._client.change_visibility_batch, self._queue, changes)
        )
        return answers


def _is_final(error: Failure) -> bool:
    """Tell whether asking again cannot help: the receipt is no good any more."""
    return isinstance(error, ClientError) and error.status < 500 and plain_code(error.code) in DEAD_RECEIPT_CODES

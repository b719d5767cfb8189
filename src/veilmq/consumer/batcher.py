"""Gathers requests of one kind into batches of the protocol: sent at ten, or a moment after the first."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from veilmq.client.messages import ClientError, Unreachable
from veilmq.core.limits import SQS_BATCH_ENTRIES_MAX

T = TypeVar("T")

Failure = ClientError | Unreachable
Call = Callable[[Sequence[T]], Awaitable[Sequence[ClientError | None]]]


class Batcher(Generic[T]):
    """``put`` answers with what became of the one entry; the batch it went in is nobody's business."""

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

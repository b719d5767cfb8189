"""Where handlers run: on the event loop, in threads, or in processes (``process_pool``).

A pool runs the handler for one message and says how it ended. While the handler runs, ``Delivery.interrupt`` stops it
in the way of the pool: by cancelling the task, by the flag that a thread looks at, by a word to the process.
"""

import asyncio
from collections.abc import Sequence
from contextvars import copy_context
from functools import partial
from typing import Protocol

from veilmq.consumer.batches import Batch, Item
from veilmq.consumer.delivery import Delivery
from veilmq.consumer.handlers import Handler
from veilmq.consumer.outcomes import DONE, Cause, Ending, ending_of
from veilmq.consumer.threads import Threads

_OF_ONE = (Cause.LOST, Cause.ENDED)


class Pool(Protocol):
    """Runs a handler for one message, or for several at once where the handler takes batches."""

    async def run(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        """Return how each ended; raises nothing."""

    def close(self) -> None:
        """End what the pool has started."""


class AsyncPool:
    """Async handlers, in the task that calls ``run``."""

    def __init__(self, handler: Handler) -> None:
        """Run ``handler``."""
        self._handler = handler

    async def run(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        """Return how each ended."""
        task = asyncio.current_task()
        assert task is not None
        for delivery in deliveries:
            delivery.interrupt = partial(_cancel, task, deliveries)
        try:
            work = prepare(self._handler, deliveries)
            result = await self._handler.function(*work.arguments) if work.arguments else None
        except asyncio.CancelledError as error:
            if task.cancelling() and all(delivery.cause is None for delivery in deliveries):
                raise  # the event loop itself is being closed
            while task.cancelling():
                task.uncancel()
            return [ending_of(error, delivery.cause) for delivery in deliveries]
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            return [ending_of(error, delivery.cause) for delivery in deliveries]
        return work.endings(result)

    def close(self) -> None:
        """Do nothing."""


class ThreadPool:
    """Plain handlers, each in a thread. A thread cannot be stopped: the handler looks at its ``Context``."""

    def __init__(self, handler: Handler) -> None:
        """Run ``handler`` in as many threads as its concurrency."""
        self._handler = handler
        self._threads = Threads(f"veilmq-{handler.name}", handler.options.concurrency)

    async def run(self, deliveries: Sequence[Delivery]) -> list[Ending]:
        """Return how each ended."""
        for delivery in deliveries:
            delivery.interrupt = _nothing
            _ = delivery.context.cancelled  # made here, so that no thread makes it at the moment in which it is set
        future = self._threads.submit(partial(copy_context().run, _call, self._handler, deliveries))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Let the threads end after what they do."""
        self._threads.close()


class Work:
    """One call of a handler: its ``arguments`` (``None`` when nothing could be decoded), and how its messages ended."""

    __slots__ = ("_batch", "_deliveries", "_failed", "arguments")

    def __init__(self, deliveries: Sequence[Delivery]) -> None:
        """Begin with nothing to call."""
        self._deliveries = deliveries
        self._failed: dict[int, Ending] = {}
        self._batch: Batch[object] | None = None
        self.arguments: tuple[object, ...] | None = None

    def single(self, handler: Handler) -> None:
        """Prepare the call for one message; raises ``Undecodable``."""
        (delivery,) = self._deliveries
        self.arguments = handler.arguments(handler.decode(delivery.message), delivery.context)

    def several(self, handler: Handler) -> None:
        """Prepare the call for a batch; messages that cannot be decoded are left out of it."""
        items = []
        for place, delivery in enumerate(self._deliveries):
            try:
                items.append(Item(handler.decode(delivery.message), delivery.context))
            except Exception as error:  # noqa: BLE001 - what decodes may be anybody's
                self._failed[place] = ending_of(error)
        if items:
            self._batch = Batch(items)
            self.arguments = (self._batch,)

    def endings(self, result: object) -> list[Ending]:
        """Return how each message ended after the handler returned ``result``."""
        if self._batch is None and not self._failed:
            return [ending_of(result)]
        rest = iter(self._batch or ())
        return [
            failed if (failed := self._failed.get(place)) is not None else _of_item(next(rest))
            for place in range(len(self._deliveries))
        ]


def prepare(handler: Handler, deliveries: Sequence[Delivery]) -> Work:
    """Return the call of ``handler`` for ``deliveries``; raises ``Undecodable`` for a single one."""
    work = Work(deliveries)
    if handler.batching is None:
        work.single(handler)
    else:
        work.several(handler)
    return work


def _of_item(item: Item[object]) -> Ending:
    return DONE if item.outcome is None else ending_of(item.outcome)


def _call(handler: Handler, deliveries: Sequence[Delivery]) -> list[Ending]:
    try:
        work = prepare(handler, deliveries)
        result = handler.function(*work.arguments) if work.arguments else None
    except BaseException as error:  # noqa: BLE001 - a handler may raise anything
        return [ending_of(error, delivery.cause) for delivery in deliveries]
    return work.endings(result)


def _cancel(task: "asyncio.Task[object]", deliveries: Sequence[Delivery], cause: Cause) -> None:
    """Cancel the call. What befalls one message of a batch is told to its own context only, for the others go on."""
    if len(deliveries) > 1:
        if cause in _OF_ONE:
            return
        for delivery in deliveries:
            delivery.join(cause)
    task.cancel(f"veilmq: {cause.value}")


def _nothing(cause: Cause) -> None:
    """Leave it to the flag of the context."""

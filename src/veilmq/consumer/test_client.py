"""A test client for handlers: the real consumer on queues in memory, which deliver each message once.

The ending of a message is what the consumer requests from the queue; a retried message is not delivered again.
"""

import asyncio
import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

from veilmq.client.messages import Hidden, NewMessage, QueueStatus, ReceivedMessage, SentMessage
from veilmq.client.sqs import QueueClient
from veilmq.consumer.clock import refuse_loop, wall_s
from veilmq.consumer.context import Context, Ending, EndingKind
from veilmq.consumer.handlers import attributes_of, body_of
from veilmq.core.commands import VisibilityChange
from veilmq.core.limits import SECOND_MS
from veilmq.core.messages import Attribute
from veilmq.core.settings import QueueSettings

_DEAD_LETTERS = "dead-letters"  # the dead-letter queue of each queue
_RELEASED = Ending(kind=EndingKind.RELEASE, reason="No handler has begun it.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent(NewMessage):
    """A message that was sent to ``queue``."""

    queue: str


class QueuesInMemory(QueueClient):
    """The part of ``QueueClient`` that a consumer uses. Thread-safe. ``sent`` has the sent messages in order."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self._messages: dict[str, deque[ReceivedMessage]] = defaultdict(deque)
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._hung_up = False

    def put(self, queue: str, message: ReceivedMessage) -> None:
        """Add ``message`` for a receive from ``queue``."""
        with self._changed:
            self._messages[queue].append(message)
            self._changed.notify_all()

    def receive(self, queue: str, *, count: int = 1, wait_s: int | None = None, **_: Any) -> list[ReceivedMessage]:
        with self._changed:
            messages = self._messages[queue]
            self._changed.wait_for(lambda: messages or self._hung_up, wait_s)
            return [messages.popleft() for _ in range(min(count, len(messages)))]

    def send(
        self, queue: str, body: str, *, attributes: Mapping[str, Attribute] | None = None, **options: Any
    ) -> SentMessage:
        self.sent.append(Sent(queue=queue, body=body, attributes=attributes or {}, **options))
        return SentMessage(id=f"sent-{next(self._numbers)}")

    def delete_batch(self, queue: str, receipts: Sequence[str]) -> list[Any]:
        return [None] * len(receipts)

    def change_visibility_batch(self, queue: str, changes: Sequence[VisibilityChange], **_: Any) -> Sequence[Any]:
        return [Hidden(change.timeout_s) for change in changes]

    def dead_letter(self, queue: str, receipt: str, target: str, reasons: Mapping[str, str]) -> bool:
        return True

    def show(self, queue: str) -> QueueStatus:
        numbers = dict.fromkeys(("visible", "in_flight", "delayed", "created_at_ms", "modified_at_ms"), 0)
        return QueueStatus(queue=queue, url=queue, settings=QueueSettings(dead_letter_queue=_DEAD_LETTERS), **numbers)

    def create_queue(self, *_: Any, **__: Any) -> str:
        return ""

    def hang_up(self) -> None:
        with self._changed:
            self._hung_up = True
            self._changed.notify_all()

    def close(self) -> None:
        pass


class TestClient:
    """Created by ``Consumer.test_client``; ``sent`` has the messages of ``Consumer.send`` in order.

    ``async with`` runs the handlers in the current event loop; ``with`` runs them in its own one, during ``send``.
    """

    __test__ = False  # not a test class of pytest

    def __init__(self, make: Callable[..., Any], queue_of: Callable[[str | Callable[..., object]], str]) -> None:
        self._make = make
        self._queue_of = queue_of
        self._queues = QueuesInMemory()
        self._waiting: dict[str, asyncio.Future[Ending]] = {}
        self._numbers = itertools.count(1)
        self.sent = self._queues.sent

    async def __aenter__(self) -> Self:
        hooks = dict.fromkeys(("settle", "release"), self._ended)
        self._running = self._make(connect=lambda: self._queues, more_hooks=hooks)
        await self._running.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._running.stop()
        for handled in self._waiting.values():
            if not handled.done():
                handled.set_result(_RELEASED)
        self._waiting.clear()

    def __enter__(self) -> "BlockingTestClient":
        refuse_loop("async with")
        with ExitStack() as stack:
            self._runner = stack.enter_context(asyncio.Runner())
            self._runner.run(self.__aenter__())
            stack.pop_all()
        return BlockingTestClient(self, self._runner)

    def __exit__(self, *_: object) -> None:
        with self._runner:
            self._runner.run(self.__aexit__())

    async def send(
        self,
        to: str | Callable[..., object],
        message: object,
        *,
        attempt: int = 1,
        attributes: Mapping[str, Attribute | str] | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
    ) -> Ending:
        """Deliver ``message`` to a handler, or to the handler of a queue, and return its ending.

        Raises ``ValueError`` if the queue has no handler.
        """
        queue = self._queue_of(to)
        if queue not in (runner.handler.options.queue for runner in self._running.runners):
            raise ValueError(f"there is no handler for the queue {queue!r}")
        number, now_ms = next(self._numbers), int(wall_s() * SECOND_MS)
        received = ReceivedMessage(
            id=f"message-{number}",
            receipt=f"receipt-{number}",
            body=body_of(message),
            attributes=attributes_of(attributes or {}),
            sent_at_ms=now_ms,
            first_received_at_ms=now_ms,
            receive_count=attempt,
            group=group,
            dedup_id=dedup_id,
        )
        handled: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        self._waiting[received.id] = handled
        self._queues.put(queue, received)
        return await handled

    def _ended(self, context: Context, ending: Ending = _RELEASED) -> None:
        handled = self._waiting.pop(context.message_id, None)
        if handled is not None and not handled.done():  # done: the test no longer waits
            handled.set_result(ending)


class BlockingTestClient:
    """``TestClient`` for tests that are not coroutines."""

    def __init__(self, client: TestClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._run: Callable[[Coroutine[Any, Any, Ending]], Ending] = runner.run
        self.sent = client.sent

    def send(self, to: str | Callable[..., object], message: object, **options: Any) -> Ending:
        """``TestClient.send``, blocking."""
        ending: Ending = self._run(self._client.send(to, message, **options))
        return ending

"""From the queue to the handler: polls, prefetch and memory limits, and the order of calls."""

import asyncio
import logging
import random
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from veilmq.client.messages import ClientError, ReceivedMessage
from veilmq.client.sqs import QueueClient
from veilmq.consumer.context import Context, Item, Undecodable
from veilmq.consumer.handlers import Batching, Handler, Options
from veilmq.consumer.leases import Lease, Subscription
from veilmq.consumer.renewal_policies import checked_timeout_s, plain_code
from veilmq.core.limits import SQS_RECEIVE_COUNT
from veilmq.wire.sqs.names import is_fifo

_log = logging.getLogger("veilmq.consumer")

POLL_PAUSE_S = 1.0
POLL_PAUSE_S_MAX = 10.0
HANG_UP_EVERY_S = 0.05
FATAL_CODES = frozenset(
    {
        "AccessDenied",
        "ExpiredToken",
        "InvalidAddress",
        "InvalidClientTokenId",
        "InvalidSignature",
        "NonExistentQueue",
        "QueueDoesNotExist",
        "SignatureDoesNotMatch",
        "UnrecognizedClient",
    }
)


@dataclass(eq=False)
class Intake:
    """Receives the messages of one handler.

    Call ``fill`` whenever capacity may have grown. ``in_thread`` runs a blocking function. ``capacity`` returns how
    many messages may be received now, regardless of polls in progress; ``received`` gets the leases, ``failed`` a fatal
    error. With ``create`` the queue and its dead-letter queue are created before the first receive.
    """

    client: QueueClient
    options: Options
    subscription: Subscription
    in_thread: Callable[..., Awaitable[Any]]
    capacity: Callable[[], int]
    received: Callable[[list[Lease]], object]
    failed: Callable[[Exception], object]
    create: bool = False
    pause: Callable[[float], Awaitable[object]] = asyncio.sleep

    def __post_init__(self) -> None:
        options = self.options
        self.prefetch = Prefetch(options.prefetch)
        self._queue_timeout_s: int | None = None
        self._sends_timeout = not options.policy.queue_decides
        self.to_create = [queue for queue in (options.dead_letter, options.queue) if queue and self.create]
        self.polls: set[Any] = set()  # tasks in progress
        self._requested = 0
        self._busy = False
        self._failures = 0
        self._stopped = False
        self._pausing: asyncio.Task[None] | None = None

    def receive(self, count: int) -> list[Lease]:
        """Poll for up to ``count`` messages. Thread-safe.

        The queue's timeout is read once and sent with each receive, so that it cannot change under the leases. If the
        policy leaves the timeout to the queue, none is sent, unless the queue has visibility rules: these give messages
        different timeouts, which the reply does not contain.

        Raises ``ClientError``, ``Unreachable``, and ``ValueError`` if the queue does not hide messages.
        """
        subscription, options = self.subscription, self.options
        table = subscription.table
        for queue in self.to_create:  # an existing queue is left unchanged; a URL implies one
            if "/" not in queue:
                self.client.create_queue(queue, {"fifo": True} if is_fifo(queue) else {})
        self.to_create = []
        timeout_s = table.receive_timeout_s(subscription)
        effective_s = timeout_s
        if effective_s is None:
            if self._queue_timeout_s is None:
                settings = self.client.show(options.queue).settings
                self._sends_timeout = self._sends_timeout or bool(settings.visibility_rules)
                self._queue_timeout_s = checked_timeout_s(settings.visibility_timeout_s)
            effective_s = self._queue_timeout_s
        requested_at_s = table.clock.now_s()
        messages = self.client.receive(
            options.queue,
            count=count,
            timeout_s=effective_s if self._sends_timeout else timeout_s,
            wait_s=options.wait_s,
            attempt_id=str(uuid.uuid4()) if subscription.fifo else None,
        )
        return table.take(
            subscription,
            messages,
            requested_at_s=requested_at_s,
            answered_at_s=table.clock.now_s(),
            timeout_s=effective_s,
        )

    def fill(self) -> None:
        """Start as many polls as the capacity allows."""
        polls_max = self.options.polls if self._busy else 1
        while not self._stopped and self._pausing is None and len(self.polls) < polls_max:
            count = min(SQS_RECEIVE_COUNT.maximum, self.capacity() - self._requested)
            if count < 1:
                return
            self._requested += count
            self.polls.add(asyncio.get_running_loop().create_task(self._poll(count)))

    async def stop(self) -> None:
        """Start no more polls, end those in progress, and return when all have ended.

        A poll that waits for a thread or a connection is ended once it is sent.
        """
        self._stopped = True
        if self._pausing is not None:
            self._pausing.cancel()
        while self.polls:
            self.client.hang_up()
            await asyncio.wait(self.polls, timeout=HANG_UP_EVERY_S)

    async def _poll(self, count: int) -> None:
        loop, received = asyncio.get_running_loop(), list[Lease]()
        began_s = loop.time()
        try:
            received = await self.in_thread(self.receive, count)
            self._failures = 0
            self._busy = bool(received)
            if len(received) == count:  # a full receive did not wait for messages
                self.prefetch.received(loop.time() - began_s)
        except Exception as error:  # noqa: BLE001 - polling must continue
            if is_final(error):
                self._stopped = True
                _log.error("the queue %s cannot be consumed, stopping: %s", self.options.queue, error)
                self.failed(error)
            elif not self._stopped and self._pausing is None:  # `stop` causes errors; one outage ends many polls
                self._busy = False
                pause_s = min(POLL_PAUSE_S * 2**self._failures, POLL_PAUSE_S_MAX) * (0.75 + random.random() / 4)
                self._failures = min(self._failures + 1, 10)
                _log.warning("receiving from %s failed, trying again in %.1f s: %s", self.options.queue, pause_s, error)
                self._pausing = loop.create_task(self._wait(pause_s))
        finally:
            self._requested -= count
            self.polls.discard(asyncio.current_task())
        self.received(received)
        self.fill()

    async def _wait(self, pause_s: float) -> None:
        try:
            await self.pause(pause_s)
        finally:
            self._pausing = None
        self.fill()


def is_final(error: Exception) -> bool:
    """Return whether a retry cannot help: the queue does not exist, is forbidden, or cannot be consumed."""
    return isinstance(error, ValueError) or (isinstance(error, ClientError) and plain_code(error.code) in FATAL_CODES)


# Prefetch
#
# Prefetched messages keep handlers from waiting for a receive, but they need renewals, count as received, and are
# hidden from other consumers. So there are as few as possible, and none for slow handlers.

SLOW_S = 1.0
PREFETCH_MAX = 100
_WEIGHT = 0.2  # of a new sample, in the moving averages


class Prefetch:
    """Computes the number of prefetched messages from the durations of calls and receives."""

    def __init__(self, most: int | None = None) -> None:
        self._most = PREFETCH_MAX if most is None else most
        self._handle_s: float | None = None
        self._receive_s = 0.0

    def handled(self, took_s: float) -> None:
        """Record the duration of a handler's call."""
        self._handle_s = took_s if self._handle_s is None else self._handle_s + _WEIGHT * (took_s - self._handle_s)

    def received(self, took_s: float) -> None:
        """Record the duration of a full receive."""
        self._receive_s += _WEIGHT * (min(took_s, SLOW_S) - self._receive_s)

    def target(self, concurrency: int, *, lease_s: float) -> int:
        """Return how many messages to prefetch: enough for the time of two receives, but at most for half a lease."""
        if self._handle_s is None or self._handle_s > SLOW_S:
            return 0
        per_s = concurrency / max(self._handle_s, 0.0001)
        return int(min(self._most, per_s * 2 * self._receive_s + 1, per_s * lease_s / 2))


def affordable(most: int, *, bytes_left: int, received: int, received_bytes: int) -> int:
    """Return how many messages of the mean size of all ``received`` ones fit into ``bytes_left``, up to ``most``.

    It is 0 only if no byte is left: otherwise there is capacity for one message of any size.
    """
    if bytes_left <= 0:
        return 0
    if bytes_left * received >= most * received_bytes:
        return most
    return max(1, bytes_left * received // received_bytes)


def body_bytes(message: ReceivedMessage) -> int:
    """Return the length of the body in UTF-8."""
    body = message.body
    return len(body) if body.isascii() else len(body.encode())


class Schedule:
    """The order of calls of ``handler``: waiting messages in order of arrival, one by one or in batches.

    Of a FIFO group one message at a time is ready or in a call; the others are blocked. If it fails, the others are
    returned to be released: the queue delivers no message of the group before the failed one, so the order holds.

    A batch closes when it is full, or when its first message has lingered and a slot is free. The oldest batch is next,
    so that a backlog of one key does not delay other keys.
    """

    def __init__(self, handler: Handler, *, ordered: bool, wake: Callable[[], object]) -> None:
        """``ordered`` keeps the order of groups; ``wake`` is called when a batch has lingered."""
        self._handler = handler
        self._ordered = ordered
        self._wake = wake
        self._ready: deque[list[Context]] = deque()
        self._groups: dict[str, deque[Context]] = {}
        """By group: the message that is ready or in a call, then the blocked ones."""
        self._open: dict[object, tuple[float, list[Context]]] = {}
        """Open batches by key, with the time at which they close; in this order."""
        self._timer: asyncio.TimerHandle | None = None
        self.ready = 0
        """Messages that wait for a slot or for their batch only."""
        self.blocked = 0
        """Messages behind another of their group."""

    def __len__(self) -> int:
        return self.ready + self.blocked

    def add(self, delivery: Context) -> None:
        """Add ``delivery``. Raises the error of the user's ``group_by``, and ``TypeError`` for an unhashable key."""
        group, batching = delivery.message.group, self._handler.batching
        if self._ordered and group is not None:
            if group in self._groups:
                self._groups[group].append(delivery)
                self.blocked += 1
                return
            self._groups[group] = deque([delivery])
        if batching is None:
            self._ready.append([delivery])
        else:
            key, due_s = self._key(batching, delivery), asyncio.get_running_loop().time() + batching.linger_s
            _, members = self._open.setdefault(key, (due_s, []))
            members.append(delivery)
            if len(members) >= batching.size_max:
                self._ready.append(members)
                del self._open[key]
        self.ready += 1

    def next(self) -> list[Context]:
        """Remove and return the messages of the next call; empty if none can start yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._open:
            loop, (key, (due_s, members)) = asyncio.get_running_loop(), next(iter(self._open.items()))
            is_first = not self._ready or members[0].lease.received_at_s < self._ready[0][0].lease.received_at_s
            if is_first and loop.time() >= due_s:
                self._ready.appendleft(members)
                del self._open[key]
            elif not self._ready:
                self._timer = loop.call_at(due_s, self._wake)
        if not self._ready:
            return []
        taken = self._ready.popleft()
        self.ready -= len(taken)
        return taken

    def done(self, delivery: Context) -> None:
        """Unblock the next message of the group: ``delivery`` has left the queue."""
        group = self._headed_by(delivery)
        if len(group) > 1:
            group.popleft()
            self.blocked -= 1
            self.ready += 1
            self._ready.append([group[0]])
        elif group:
            del self._groups[delivery.message.group or ""]

    def failed(self, delivery: Context) -> list[Context]:
        """Remove and return the messages blocked by ``delivery``, which stays in the queue."""
        group = self._headed_by(delivery)
        if group:
            del self._groups[delivery.message.group or ""]
            self.blocked -= len(group) - 1
        return list(group)[1:]

    def remove(self, delivery: Context) -> list[Context]:
        """Remove ``delivery``, whose lease is lost, and the messages blocked by it; return the latter."""
        for members in (*self._ready, *(members for _, members in self._open.values())):
            if delivery in members:
                members.remove(delivery)
                self.ready -= 1
                if not members:
                    self._ready = deque(filter(None, self._ready))
                    self._open = {key: batch for key, batch in self._open.items() if batch[1]}
                return self.failed(delivery)
        group = self._groups.get(delivery.message.group or "", deque())
        if delivery not in islice(group, 1, None):
            return []
        blocked = []
        while (last := group.pop()) is not delivery:
            blocked.append(last)
        self.blocked -= len(blocked) + 1
        return blocked[::-1]

    def drain(self) -> list[Context]:
        """Remove and return all waiting messages. Groups with a message in a call stay blocked."""
        waiting = [*(members for _, members in self._open.values()), *self._ready]
        waiting += [list(group)[1:] for group in self._groups.values()]
        drained = [delivery for members in waiting for delivery in members]
        self._open.clear()
        self._ready.clear()
        self._groups = {name: deque([group[0]]) for name, group in self._groups.items()}
        self.ready = self.blocked = 0
        return drained

    def _headed_by(self, delivery: Context) -> deque[Context]:
        """Return the group if ``delivery`` is its first message; it is not if it was received again meanwhile."""
        group = self._groups.get(delivery.message.group or "")
        return group if group and group[0] is delivery else deque()

    def _key(self, batching: Batching, delivery: Context) -> object:
        if batching.key is None:
            return None
        try:
            return batching.key(Item(self._handler.decode(delivery.message), delivery))
        except Undecodable:
            return None  # the call of its batch will fail this message alone
